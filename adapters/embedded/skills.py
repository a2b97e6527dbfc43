"""What the embedded voice can do without a language model: a few things, done well, and nothing else claimed.

Pure: words in, sentences out. The clock is injected. Understanding is tolerant of what a recogniser writes:
case, punctuation, number words and small talk around a wish do not matter.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from datetime import datetime
from typing import Final

from duplex.adapters.embedded.numbers import number_words, read_numbers
from duplex.adapters.embedded.passage import PASSAGE, TITLE
from duplex.adapters.embedded.replies import Replies, ReplyPart, ReplyRequest
from duplex.adapters.text import split

MAX_COUNT: Final = 1000
"""Numbers in one answer."""
MAX_SENTENCES: Final = 3
"""Who says more at once tells something; no wish is looked for in its sentences."""
ABILITIES: Final = (
    "I can repeat what you say, count, tell the time or the date, and read aloud until you stop me."
)
GREETING: Final = f"Hello. {ABILITIES} What would you like?"
STILL_THERE: Final = "Are you still there?"

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_POLITE = (
    r"(?:(?:please|can you|could you|would you|will you|i want you to|i would like you to|i'd like you to|"
    r"now|then|ok|okay|and|so|well|um|uh|hey|no|yes) )*"
)


def _wish(pattern: str) -> re.Pattern[str]:
    """A wish at the beginning of what was said, after any politeness; for plain lower-case words."""
    return re.compile(rf"^{_POLITE}(?:{pattern})\b")


_STOP = re.compile(
    rf"^{_POLITE}(?:stop|quiet|be quiet|silence|enough|that's enough|shut up|cancel|never ?mind)"
    r"(?: (?:it|that|please|now|talking|reading|counting|there))*$"
)
_HEARD = _wish(
    r"what did i(?: just)? say|what have i(?: just)? said|what i said|tell me what i said|did you hear me|"
    r"repeat (?:what i|that|it|me)|say (?:that|it) again|repeat$"
)
_COUNT = _wish(r"count|countdown|start counting|counting|do you count|you count|let's count")
_TIME = _wish(
    r"what(?:'s| is) the time|what time|tell me (?:the|what) time|the time|do you (?:know|have) the time"
)
_DATE = _wish(
    r"(?:what(?:'s| is)?|which|tell me|do you know)(?: the| is| what| which| today's| current| today)* "
    r"(?:date|day|weekday|month|year)|today's date|the date"
)
_READ = _wish(r"read(?! on\b)|recite|tell me a (?:story|tale)|start reading|a (?:passage|story) please")
_GO_ON = _wish(r"go on|continue|carry on|keep (?:going|reading)|resume|read on")
_HELP = _wish(r"help|what (?:else )?can (?:you|i)|what do you do|what are your|how can you help")
_HELLO = re.compile(rf"^{_POLITE}(?:hello|hi|hey|good (?:morning|afternoon|evening)|greetings)(?: there)?$")
_THANKS = re.compile(r"^(?:thanks|thank you|cheers)(?: very much| a lot| so much)?$")
_BYE = re.compile(r"^(?:goodbye|good bye|bye|bye bye|see you|good night)\b")
_REPEAT_AFTER = re.compile(
    r"^\W*(?:(?:please|can you|could you|would you|will you|now|ok|okay|and)\W+)*"
    r"(?:(?:repeat|say) (?:after me|this|the words?|the sentence)|say|repeat)\b[\s,:;.…–—-]*(.*)$",
    re.IGNORECASE | re.DOTALL,
)


class Skills:
    """Answers from skills, and where none fits from `otherwise`, or with an honest word about what was heard.

    Args:
        now: the local time.
    """

    def __init__(
        self, *, otherwise: Replies | None = None, now: Callable[[], datetime] = datetime.now
    ) -> None:
        self._otherwise = otherwise
        self._now = now

    async def start(self) -> None:
        if self._otherwise is not None:
            await self._otherwise.start()

    async def stop(self) -> None:
        if self._otherwise is not None:
            await self._otherwise.stop()

    async def reply(self, request: ReplyRequest) -> AsyncGenerator[ReplyPart, None]:
        """The answer, sentence by sentence: a listener that stops has the reading stop there."""
        result = request.history[-1].role == "tool" if request.history else False
        sentences = None if result else answer(request, self._now())
        if sentences is None and self._otherwise is not None:
            async with aclosing(self._otherwise.reply(request)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        for sentence in sentences if sentences is not None else _not_understood(request):
            yield sentence


def answer(request: ReplyRequest, now: datetime) -> Iterator[str] | None:
    """The sentences of a skill's answer, None when none fits. The latest words count, then all together."""
    if request.silent:
        return iter([STILL_THERE])
    said = request.said
    if not said:
        return iter([GREETING])
    parts = split(said[-1])
    last_first = reversed(parts) if len(parts) <= MAX_SENTENCES else ()  # "Stop. What time is it?"
    for words in dict.fromkeys([said[-1], *last_first, " ".join(said)]):
        sentences = _answer(words, request, now)
        if sentences is not None:
            return sentences
    return None


def _answer(said: str, request: ReplyRequest, now: datetime) -> Iterator[str] | None:
    words = [word.replace("’", "'") for word in _WORD.findall(said.lower())]
    plain = " ".join(words)
    if not plain:
        return None
    if _STOP.match(plain):
        return iter(["Okay."])
    if _HEARD.search(plain):
        return _what_was_said(request)
    if (repeat := _REPEAT_AFTER.match(said.strip())) and _WORD.search(repeat[1]):
        return iter(split(repeat[1].strip()))
    if _COUNT.search(plain):
        return _count(words, plain)
    if _TIME.search(plain):
        return iter([f"It is {_spoken_time(now)}."])
    if _DATE.search(plain):
        return iter([f"Today is {now:%A}, {now:%B} {now.day}, {now.year}."])
    if _GO_ON.match(plain):
        return _go_on(request)
    if _READ.search(plain):
        return _read()
    if _HELP.search(plain):
        return iter([ABILITIES])
    if _HELLO.match(plain):
        return iter([GREETING])
    if _THANKS.match(plain):
        return iter(["You are welcome."])
    if _BYE.match(plain):
        return iter(["Goodbye."])
    return None


def _not_understood(request: ReplyRequest) -> Iterator[str]:
    heard = request.said[-1].strip()
    short = heard if len(heard) <= 200 else heard[:200].rsplit(" ", 1)[0] + "…"
    yield f"I heard: {short}" + (" " if short.endswith((".", "!", "?", "…")) else ". ")
    yield "I have no language model here to answer that with. "
    yield ABILITIES


def _what_was_said(request: ReplyRequest) -> Iterator[str]:
    users = [item.text for item in request.history if item.role == "user"]
    before = users[-2].strip() if len(users) > 1 else ""
    if not before:
        yield "You have not said anything before that."
        return
    yield "You said: "
    yield from split(before)


def _count(words: list[str], plain: str) -> Iterator[str]:
    numbers = read_numbers(words)
    down = "down" in words or "backwards" in words or "backward" in words or "countdown" in words
    if len(numbers) >= 2:
        first, last = numbers[0], numbers[1]
    elif down:
        first, last = (numbers[0] if numbers else 10), 0
    elif numbers and "from" in words:
        first, last = numbers[0], numbers[0] + 9
    else:
        first, last = 1, (numbers[0] if numbers else 10)
    if down and first < last:
        first, last = last, first
    step = 1 if last >= first else -1
    wanted = abs(last - first) + 1
    for number in range(first, first + step * min(wanted, MAX_COUNT), step):
        yield f"{number_words(number).capitalize()}. "
    if wanted > MAX_COUNT:
        yield f"I stop here: {number_words(MAX_COUNT)} numbers are enough."


def _spoken_time(now: datetime) -> str:
    hour = now.hour % 12 or 12
    half = "a.m" if now.hour < 12 else "p.m"
    return f"{hour} {half}" if now.minute == 0 else f"{hour}:{now.minute:02d} {half}"


def _read(start: int = 0, *, title: bool = True) -> Iterator[str]:
    """Read the passage from a sentence on."""
    if title:
        yield f"{TITLE}. "
    yield from split(PASSAGE)[start:]
    yield " That is the end of the passage."


def _go_on(request: ReplyRequest) -> Iterator[str]:
    """Read on from the sentence in which the reading was stopped."""
    sentences = [sentence.strip() for sentence in split(PASSAGE)]
    for item in reversed(request.history):
        if item.role != "assistant" or not item.text.strip():
            continue
        last = split(item.text.strip())[-1].strip()
        for index, sentence in enumerate(sentences):
            if sentence.startswith(last):
                return _read(index + (sentence == last), title=False)
        if TITLE.startswith(last.rstrip(".")):
            return _read(title=False)
    return iter(["There is nothing to go on with. ", "Ask me to read a passage."])
