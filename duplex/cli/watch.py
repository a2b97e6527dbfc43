"""`duplex watch`: a clip as a live source, and what the model says of it."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from duplex.cli.clip import ClipInfo, cut, probe
from duplex.cli.conversation import Conversation, conversation
from duplex.cli.errors import CommandError, UsageError
from duplex.cli.gateway import COMMENTARY, SESSION_PATH, VIDEO_PATH, target
from duplex.cli.look import SILENT, Shown, look, picture, whole
from duplex.cli.screen import Screen
from duplex.cli.timeline import Timeline

ANSWER_S: Final = 20.0
"""Longest wait for what is still to be said when the clip is over."""
AHEAD: Final = 2
"""Windows that are sent ahead of the model when nothing else sets the pace."""
PACE_S: Final = 10.0
"""Longest wait for it."""
WINDOW_MS: Final = 1000.0
"""Length of a window, but for the embedded model, which is that much faster with `SHORT_MS`."""
SHORT_MS: Final = 500.0
LAST_WORDS_S: Final = 2.0
"""The clip is over when so long nothing was said of its end."""


def run(args: argparse.Namespace) -> int:
    """Stream the clip and print the comments; or show it, or a picture, at once."""
    if args.window_ms is None:
        args.window_ms = SHORT_MS if args.model in (None, COMMENTARY) else WINDOW_MS
    if not args.window_ms >= 40:  # NaN is no length
        raise UsageError("--window-ms must be 40 or more")
    questions = _questions(args)
    timeline = Timeline()
    shown = picture(Path(args.clip)) or (whole(probe(Path(args.clip))) if args.whole else None)
    if shown is not None:
        try:
            asyncio.run(_look(args, shown, timeline))
        finally:
            if args.timeline:
                timeline.save(Path(args.timeline))
        return 0
    clip = probe(Path(args.clip))
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
    if not all(text.strip() for text in texts):
        raise UsageError("--ask without a question")
    at = [*(max(0.0, s) * 1000 for s in times), *[float("inf")] * (len(texts) - len(times))]
    return [Question(text=text, at_ms=ms) for text, ms in zip(texts, at, strict=True)]


async def _look(args: argparse.Namespace, shown: Shown, timeline: Timeline) -> None:
    async with _session(args, timeline, **SILENT) as talk:
        needed = "image" if shown.picture is not None else "video"
        _check_modality(talk, needed)
        timeline.begin("watch", f"{shown.path.name}, shown at once")
        await look(talk, shown, args.ask or [])


@asynccontextmanager
async def _session(
    args: argparse.Namespace, timeline: Timeline, **options: float
) -> AsyncIterator[Conversation]:
    async with (
        target(args, COMMENTARY) as gateway,
        conversation(
            gateway.path(SESSION_PATH if args.model else VIDEO_PATH),
            timeline=timeline,
            token=gateway.token,
            model=gateway.model,
            options={"output_modalities": "text", **options},
        ) as talk,
    ):
        yield talk


def _check_modality(talk: Conversation, needed: str) -> None:
    session = talk.client.session
    if needed not in session.capabilities.input_modalities:
        raise UsageError(f"the model {session.model} does not watch {needed}")


async def _run(
    args: argparse.Namespace, clip: ClipInfo, questions: list[Question], timeline: Timeline, screen: Screen
) -> None:
    async with _session(args, timeline) as talk:
        _check_modality(talk, "video")
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
        await talk.show(window)
        sent += 1
        screen.sent(end_ms)
    if tells or talk.watched:
        await _looked_at(talk, sent)
    await _last_words(talk)
    if not talk.client.session.capabilities.proactive and not questions:
        # it says nothing unasked
        known = len(talk.answers)
        await talk.client.respond()
        await talk.until(partial(_answered, talk, known), "there was no comment", ANSWER_S)
    for question in waiting:
        known = len(talk.answers)
        screen.asked(end_ms)
        await talk.ask(question.text)
        await talk.client.commit()
        await talk.until(partial(_answered, talk, known), f"{question.text!r} was not answered", ANSWER_S)
    screen.ended()
    if talk.errors:
        raise CommandError(talk.errors[0].message)


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
