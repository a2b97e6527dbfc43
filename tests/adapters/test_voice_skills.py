"""The skills: tolerant of what a recogniser writes, honest about what they cannot do."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex.adapters.embedded.numbers import number_words, read_numbers
from duplex.adapters.embedded.passage import PASSAGE, TITLE
from duplex.adapters.embedded.replies import ReplyRequest
from duplex.adapters.embedded.skills import ABILITIES, GREETING, MAX_COUNT, Skills, answer
from duplex.adapters.text import split
from duplex.core.types import HistoryItem

NOW = datetime(2026, 3, 9, 15, 5)


def user(text: str) -> HistoryItem:
    return HistoryItem(role="user", text=text)


def assistant(text: str, *, interrupted: bool = False) -> HistoryItem:
    return HistoryItem(role="assistant", text=text, interrupted=interrupted)


def say(*items: HistoryItem | str, now: datetime = NOW) -> str | None:
    history = tuple(user(item) if isinstance(item, str) else item for item in items)
    sentences = answer(ReplyRequest(history=history), now)
    return None if sentences is None else "".join(sentences)


@pytest.mark.parametrize(
    ("said", "numbers"),
    [
        ("Count to five.", "One. Two. Three. Four. Five. "),
        ("count 2 3", "Two. Three. "),
        ("Please count from three to seven", "Three. Four. Five. Six. Seven. "),
        ("Could you count from 8 to 5?", "Eight. Seven. Six. Five. "),
        ("Count down from three.", "Three. Two. One. Zero. "),
        ("count backwards from twenty one to nineteen", "Twenty-one. Twenty. Nineteen. "),
        (
            "okay now count from ninety nine to a hundred and one",
            "Ninety-nine. One hundred. One hundred and one. ",
        ),
    ],
)
def test_counting(said: str, numbers: str) -> None:
    assert say(said) == numbers


def test_counting_without_a_number_goes_to_ten() -> None:
    assert (say("Count!") or "").endswith("Nine. Ten. ")


def test_counting_is_bounded() -> None:
    sentences = list(answer(ReplyRequest(history=(user("count to 999999"),)), NOW) or [])
    assert len(sentences) == MAX_COUNT + 1


@pytest.mark.parametrize(
    "said", ["What time is it?", "what's the time", "Please tell me the time.", "Do you know the time?"]
)
def test_the_time(said: str) -> None:
    assert say(said) == "It is 3:05 p.m."
    assert say(said, now=datetime(2026, 3, 9, 0, 0)) == "It is 12 a.m."


@pytest.mark.parametrize(
    "said",
    [
        "What is the date today?",
        "what day is it",
        "Which day is today?",
        "Tell me the date, please.",
        "What's today's date?",
    ],
)
def test_the_date(said: str) -> None:
    assert say(said) == "Today is Monday, March 9, 2026."


@pytest.mark.parametrize(
    ("said", "repeated"),
    [
        ("Repeat after me: the sky is blue.", "the sky is blue."),
        ("Repeat after me, the sky is blue.", "the sky is blue."),
        ("Please say good evening. And smile.", "good evening. And smile."),
        ("say: Count to five", "Count to five"),
    ],
)
def test_repeating_after(said: str, repeated: str) -> None:
    assert say(said) == repeated


@pytest.mark.parametrize("said", ["What did I say?", "Repeat what I said.", "repeat that please", "Repeat."])
def test_repeating_what_was_said(said: str) -> None:
    assert say("The sky is blue.", assistant("I heard."), said) == "You said: The sky is blue."
    assert say(said) == "You have not said anything before that."


def test_reading_until_interrupted_and_going_on() -> None:
    whole = say("Read me a passage.")
    assert whole is not None
    assert whole.startswith(TITLE)
    assert PASSAGE in whole
    sentences = split(PASSAGE)
    heard = f"{TITLE}. {sentences[0]}{sentences[1][:30].rsplit(' ', 1)[0]}"
    rest = say("Read a passage", assistant(heard, interrupted=True), "Stop.", assistant("Okay."), "Go on.")
    assert rest is not None
    assert rest.startswith(sentences[1])
    rest = say(
        "Read a passage", assistant(f"{TITLE}. {sentences[0]}".strip(), interrupted=True), "continue reading"
    )
    assert rest is not None
    assert rest.startswith(sentences[1])
    rest = say("Read a passage", assistant(TITLE[:10], interrupted=True), "please go on")
    assert rest is not None
    assert rest.startswith(sentences[0])
    assert "nothing to go on with" in (say("Go on.") or "")


def test_small_talk() -> None:
    assert say() == GREETING
    assert say("Hello there!") == GREETING
    assert say("Help!") == ABILITIES
    assert say("What can you do?") == ABILITIES
    assert say("Thank you.") == "You are welcome."
    assert say("Stop it, please.") == "Okay."
    assert say("Goodbye.") == "Goodbye."


@pytest.mark.parametrize(
    "said",
    [
        "And Mr. John Dashwood had then leisure to consider how much there might be prudently in his power.",
        "He was not an ill disposed young man.",
        "It was the best of times, it was the worst of times.",
        "I said that the count of Monte Cristo read the date on the letter.",
        "Stop signs are red.",
        "I already read that.",
        "How far is the moon?",
        "…",
    ],
)
def test_what_is_no_wish_fits_no_skill(said: str) -> None:
    assert say(said) is None


def test_the_latest_words_count_and_a_wish_in_two_turns_is_put_together() -> None:
    assert say("What time is it?", "Count to two.") == "One. Two. "
    assert say("Count from three", "to four") == "Three. Four. "


async def collect(skills: Skills, *said: str) -> str:
    request = ReplyRequest(history=tuple(user(text) for text in said))
    return "".join([piece async for piece in skills.reply(request)])


def test_a_wish_is_found_beside_other_sentences() -> None:
    assert say("Stop. what time is it?") == "It is 3:05 p.m."
    assert say("I am bored. Count to two. Thank you very kindly.") == "One. Two. "
    assert say("It rained. We stayed in. He rose. Count the days. It was spring.") is None


def test_without_a_model_it_says_what_it_heard_and_can_do() -> None:
    import asyncio

    reply = asyncio.run(collect(Skills(), "How far is the moon?"))
    assert reply.startswith("I heard: How far is the moon? I have no language model")
    assert reply.endswith(ABILITIES)
    long = asyncio.run(collect(Skills(), "moon " * 500))
    assert len(long) < 500


def test_where_no_skill_fits_the_model_answers() -> None:
    import asyncio

    class Model:
        async def start(self) -> None: ...

        async def stop(self) -> None: ...

        async def reply(self, request: ReplyRequest):  # type: ignore[no-untyped-def]
            yield "As far "
            yield f"as {request.said[-1]}"

    skills = Skills(otherwise=Model(), now=lambda: NOW)
    assert asyncio.run(collect(skills, "the moon")) == "As far as the moon"
    assert asyncio.run(collect(skills, "What time is it?")) == "It is 3:05 p.m."


@settings(deadline=None)
@given(st.integers(0, 999_999))
def test_number_words_read_back(number: int) -> None:
    words = number_words(number).replace("-", " ").split()
    assert read_numbers(words) == [number]
    assert read_numbers([str(number)]) == [number]


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "one",
                "five",
                "twenty",
                "ninety",
                "hundred",
                "thousand",
                "a",
                "and",
                "to",
                "from",
                "7",
                "12",
                "zero",
                "moon",
            ]
        ),
        max_size=8,
    )
)
def test_any_words_can_be_read(words: list[str]) -> None:
    assert all(0 <= number < 1_000_000_000 for number in read_numbers(words))


def test_numbers_side_by_side_stay_apart() -> None:
    assert read_numbers(["from", "twenty", "five", "to", "thirty"]) == [25, 30]
    assert read_numbers(["five", "seven"]) == [5, 7]
    assert read_numbers(["five", "twenty"]) == [5, 20]
