"""English number words, both ways: "twenty five" is 25 and back. Whole numbers below a million."""

from __future__ import annotations

import re

_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_VALUES = {word: value for value, word in enumerate(_ONES)} | {
    word: value * 10 for value, word in enumerate(_TENS) if word
}
_SCALES = {"hundred": 100, "thousand": 1000}
_DIGITS = re.compile(r"\d{1,6}")


def number_words(number: int) -> str:
    """`number` as it is said: 0 to 999,999, also below zero."""
    if number < 0:
        return f"minus {number_words(-number)}"
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")
    scale, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    head, rest = divmod(number, scale)
    joint = " and " if rest and rest < 100 else " "
    return f"{number_words(head)} {name}" + (joint + number_words(rest) if rest else "")


def read_numbers(words: list[str]) -> list[int]:
    """The whole numbers in a list of lower-case words, in order: digits, and number words put together.

    "twenty five" is one number and "five seven" are two; "to" between numbers is a word, not 2.
    """
    numbers: list[int] = []
    position = 0
    while position < len(words):
        number, length = _number_at(words, position)
        if length:
            numbers.append(number)
        position += max(1, length)
    return numbers


def _number_at(words: list[str], start: int) -> tuple[int, int]:
    """The number whose words begin at `start`, and how many they are; 0 words for none."""
    if _DIGITS.fullmatch(words[start]):
        return int(words[start]), 1
    total = group = 0
    least = 1_000_000  # what may follow must be smaller: "twenty five", not "five twenty"
    position = start
    while position < len(words):
        word = words[position]
        follows = words[position + 1] if position + 1 < len(words) else ""
        if word in _VALUES and _VALUES[word] < least and (_VALUES[word] or position == start):
            value = _VALUES[word]
            group += value
            least = 10 if value >= 20 else 1
        elif word == "a" and follows in _SCALES and group == 0:
            group, least = 1, 1
        elif word in _SCALES and 0 < group < 1000 and (word == "thousand" or group < 10):
            if word == "thousand":
                total, group = total + group * 1000, 0
            else:
                group *= 100
            least = 100
        elif word == "and" and position > start and words[position - 1] in _SCALES and follows in _VALUES:
            pass
        else:
            break
        position += 1
    return total + group, position - start
