"""`duplex watch`: a clip as a live source, and what the model says of it."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from duplex.cli.clip import ClipInfo, cut, probe
from duplex.cli.conversation import Answer, Conversation, conversation
from duplex.cli.errors import CommandError, UsageError
from duplex.cli.gateway import COMMENTARY, SESSION_PATH, VIDEO_PATH, target
from duplex.cli.timeline import Timeline
from duplex.clients import ClientEvent, InputLag, ResponseDone
from duplex.codecs.video_split import ClipWindow

ANSWER_S: Final = 20.0
"""Longest wait for what is still to be said when the clip is over."""
AHEAD: Final = 2
"""Windows that are sent ahead of the model when nothing else sets the pace."""
PACE_S: Final = 3.0
"""Longest wait for it."""
LAST_WORDS_S: Final = 2.0
"""The clip is over when so long nothing was said of its end."""


def run(args: argparse.Namespace) -> int:
    """Stream the clip and print the comments."""
    if args.window_ms < 40:
        raise UsageError("--window-ms must be 40 or more")
    clip = probe(Path(args.clip))
    questions = _questions(args)
    timeline = Timeline()
    screen = Screen(clip)
    try:
        asyncio.run(_run(args, clip, questions, timeline, screen))
    finally:
        screen.clear()
        if args.timeline:
            timeline.save(Path(args.timeline))
    print(screen.summary(), file=sys.stderr)
    return 0


def _questions(args: argparse.Namespace) -> list[Question]:
    """Each `--ask` with its `--ask-at`; without one, at the end."""
    times = args.ask_at or []
    if len(times) > len(args.ask or []):
        raise UsageError("--ask-at without its --ask")
    texts: list[str] = args.ask or []
    at = [*(max(0.0, s) * 1000 for s in times), *[float("inf")] * (len(texts) - len(times))]
    return [Question(text=text, at_ms=ms) for text, ms in zip(texts, at, strict=True)]


async def _run(
    args: argparse.Namespace, clip: ClipInfo, questions: list[Question], timeline: Timeline, screen: Screen
) -> None:
    async with (
        target(args, COMMENTARY) as gateway,
        conversation(
            gateway.path(SESSION_PATH if args.model else VIDEO_PATH),
            timeline=timeline,
            token=gateway.token,
            model=gateway.model,
            options={"output_modalities": "text"},
        ) as talk,
    ):
        if "video" not in talk.client.session.capabilities.input_modalities:
            raise UsageError(f"the model {talk.client.session.model} does not watch video")
        timeline.begin("watch", f"{clip.path.name}, commented on as it plays")
        await watch(
            talk,
            clip,
            questions=questions,
            window_ms=args.window_ms,
            paced=args.speed == "realtime",
            screen=screen,
        )


@dataclass(slots=True, kw_only=True)
class Question:
    """A text question, asked when the clip is at `at_ms`; infinity: at its end."""

    text: str
    at_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """Something said of the clip at `clip_ms`.

    `lag_ms`: how long after that moment it was said, None where the words name none. `answer`: it was asked.
    """

    text: str
    clip_ms: float
    lag_ms: float | None
    answer: bool = False


_MOMENT: Final = re.compile(
    r"""\b(?:at|by|after)\ (?:
        (?P<s>\d+(?:\.\d+)?)\ seconds?
        | (?:(?P<h>\d+):)?(?P<m>\d+):(?P<ss>\d\d)
        | (?P<zero>the\ start)
    )""",
    re.IGNORECASE | re.VERBOSE,
)


def time_in(text: str) -> float | None:
    """The first moment that a comment names, in ms: `at 3.2 seconds`, `at 1:05`, `at the start`."""
    found = _MOMENT.search(text)
    if found is None:
        return None
    if found["zero"]:
        return 0.0
    if found["s"]:
        return float(found["s"]) * 1000
    return (int(found["h"] or 0) * 3600 + int(found["m"]) * 60 + int(found["ss"])) * 1000.0


async def watch(
    talk: Conversation,
    clip: ClipInfo,
    *,
    questions: list[Question],
    window_ms: float,
    paced: bool,
    screen: Screen,
) -> None:
    """Send the whole clip, each window when a camera would have recorded it, and wait for the last words.

    Raises:
        CommandError, UsageError: the clip breaks off, the session ends, a question is not answered.
    """
    screen.begin(talk, paced=paced)
    talk.on_event = screen.take
    waiting = sorted(questions, key=lambda question: question.at_ms)
    windows = iter(cut(clip, window_ms=window_ms))
    start = time.monotonic()
    sent = 0
    end_ms = 0.0
    # without a clock, the model sets the pace, as far as it tells what it has looked at
    tells = not paced
    # the next window is cut in a thread while the last one is on its way
    while (window := await asyncio.to_thread(next, windows, None)) is not None:
        end_ms = window.pts_ms + window.duration_ms
        if paced:
            await asyncio.sleep(max(0.0, start + end_ms / 1000 - time.monotonic()))
        elif tells:
            tells = await _looked_at(talk, sent + 1 - AHEAD)
        if talk.over is not None:
            raise CommandError(f"the session ended: {talk.over}")
        if waiting and waiting[0].at_ms < end_ms:
            screen.asked(end_ms)
            await talk.ask(waiting.pop(0).text)
        await _send(talk, window)
        sent += 1
        screen.sent(end_ms)
    await _last_words(talk)
    for question in waiting:
        known = len(talk.answers)
        screen.asked(end_ms)
        await talk.ask(question.text)
        await talk.client.commit()
        await talk.until(partial(_answered, talk, known), f"{question.text!r} was not answered", ANSWER_S)
    screen.ended()
    if talk.errors:
        raise CommandError(talk.errors[0].message)


async def _send(talk: Conversation, window: ClipWindow) -> None:
    talk.timeline.record(
        "video.sent", pts_ms=window.pts_ms, duration_ms=window.duration_ms, bytes=len(window.data)
    )
    await talk.client.append_video(
        window.data,
        kind=window.kind,
        pts_ms=round(window.pts_ms, 3),
        duration_ms=round(window.duration_ms, 3),
    )


async def _looked_at(talk: Conversation, count: int) -> bool:
    """Wait until so many windows have been looked at; False when the model does not tell."""
    try:
        await talk.until(lambda: talk.watched >= count, "", PACE_S)
    except CommandError:
        return False
    return True


async def _last_words(talk: Conversation) -> None:
    """Until nothing has been said for a while."""
    while True:
        count = len(talk.answers)
        try:
            await talk.until(partial(_more_than, talk, count), "", LAST_WORDS_S)
        except CommandError:
            if talk.over is not None:
                raise
            break
    await talk.until(lambda: talk.quiet, "the last comment did not end", ANSWER_S)


def _more_than(talk: Conversation, count: int) -> bool:
    return len(talk.answers) > count


def _answered(talk: Conversation, before: int) -> bool:
    """There are more answers than before, and all have ended."""
    return _more_than(talk, before) and talk.quiet


@dataclass(slots=True)
class Screen:
    """Comments on standard output as they are said, a progress line on a terminal."""

    clip: ClipInfo
    indent: str = ""
    comments: list[Comment] = field(default_factory=list)
    analysis_lag_ms: float = 0.0
    """The longest that the model said it was behind."""
    coalesced: int = 0
    _talk: Conversation | None = None
    _paced: bool = True
    _start_ms: float = 0.0
    _sent_ms: float = 0.0
    _asked_ms: float = 0.0
    _shown: bool = False

    def begin(self, talk: Conversation, *, paced: bool) -> None:
        self._talk = talk
        self._paced = paced
        self._start_ms = talk.timeline.now_ms

    def take(self, event: ClientEvent) -> None:
        """Hear of an event of the session."""
        talk = self._talk
        assert talk is not None
        match event:
            case ResponseDone():
                self._say(talk, talk.answers[event.response_index])
            case InputLag():
                self.analysis_lag_ms = max(self.analysis_lag_ms, event.lag_ms)
                self.coalesced += event.coalesced
            case _:
                pass

    def _say(self, talk: Conversation, answer: Answer) -> None:
        text = " ".join(answer.text.split())
        if not text:
            return
        said_ms = answer.created_ms - self._start_ms
        seen_ms = None if answer.question else time_in(text)
        lag_ms = said_ms - seen_ms if seen_ms is not None and self._paced else None
        comment = Comment(
            text=text,
            clip_ms=self._asked_ms if answer.question else self._sent_ms if seen_ms is None else seen_ms,
            lag_ms=lag_ms,
            answer=answer.question,
        )
        self.comments.append(comment)
        talk.timeline.record(
            "comment",
            t_ms=answer.created_ms,
            text=text,
            clip_ms=round(comment.clip_ms, 1),
            lag_ms=None if lag_ms is None else round(lag_ms, 1),
        )
        self.clear()
        late = f"   (+{lag_ms / 1000:.1f} s)" if lag_ms is not None else ""
        # sent at full speed, where the sending stands says nothing of the moment that is meant
        known = self._paced or answer.question or seen_ms is not None
        at = clock(comment.clip_ms) if known else "     –"
        print(f"{self.indent}{at}  {'answer: ' if answer.question else ''}{text}{late}", flush=True)
        self._progress()

    def asked(self, at_ms: float) -> None:
        """A question was asked when the clip was here."""
        self._asked_ms = at_ms

    def sent(self, until_ms: float) -> None:
        """The clip was sent up to here."""
        self._sent_ms = until_ms
        self._progress()

    def ended(self) -> None:
        self.clear()

    def _progress(self) -> None:
        if not sys.stderr.isatty():
            return
        total = max(self.clip.duration_ms, self._sent_ms, 1.0)
        filled = round(30 * self._sent_ms / total)
        late = [c.lag_ms for c in self.comments if c.lag_ms is not None]
        lag = f"lag {late[-1] / 1000:.1f} s" if late else ""
        bar = "█" * filled + "░" * (30 - filled)
        print(
            f"\r{bar} {clock(self._sent_ms)} / {clock(total)}  {lag}\x1b[K",
            end="",
            file=sys.stderr,
            flush=True,
        )
        self._shown = True

    def clear(self) -> None:
        """Take the progress line away."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False

    def summary(self) -> str:
        """One line about the whole clip."""
        late = sorted(c.lag_ms for c in self.comments if c.lag_ms is not None)
        answers = sum(comment.answer for comment in self.comments)
        comments = len(self.comments) - answers
        words = [f"{clock(self._sent_ms)} watched", f"{comments} comment{'s' * (comments != 1)}"]
        if answers:
            words.append(f"{answers} answer{'s' * (answers != 1)}")
        if late:
            words.append(f"lag {late[len(late) // 2] / 1000:.2f} s median, {late[-1] / 1000:.2f} s at most")
        if self.analysis_lag_ms:
            words.append(f"analysis at most {self.analysis_lag_ms / 1000:.2f} s behind")
        if self.coalesced:
            words.append(f"{self.coalesced} windows merged to keep up")
        return "; ".join(words)


def clock(ms: float) -> str:
    """`1:02.5`."""
    minutes, seconds = divmod(max(0.0, ms) / 1000, 60)
    return f"{int(minutes)}:{seconds:04.1f}"
