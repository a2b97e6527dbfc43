"""A picture, or a whole clip, shown at once: it is described, or questions about it are answered."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from duplex.cli.clip import ClipInfo, cut
from duplex.cli.conversation import Conversation
from duplex.cli.errors import CommandError, UsageError
from duplex.clients import ClientEvent, TextDelta
from duplex.codecs.video_split import ClipWindow

ANSWER_S: Final = 300.0
"""Longest wait for an answer: a model on a CPU reads a whole clip before its first word."""
MOST_BYTES: Final = 5 * 1024 * 1024
"""Of one message's media: in base64 it stays below what a gateway takes by default."""
SILENT: Final = {"gate_threshold": 1.0}
"""Settings of a session that speaks when it is asked."""
_ALL_MS: Final = 1e9
_STILLS: Final = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF")


@dataclass(frozen=True, slots=True)
class Shown:
    """What is looked at: one picture, or the windows of a clip, as few as messages can hold."""

    path: Path
    picture: bytes | None = None
    windows: tuple[ClipWindow, ...] = ()


def picture(path: Path) -> Shown | None:
    """The picture in a file; None: it is none.

    Raises:
        UsageError: it is too large for a message.
    """
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(12)
        if not head.startswith(_STILLS) or (head[:4] == b"RIFF" and head[8:12] != b"WEBP"):
            return None
        data = head + file.read(MOST_BYTES)
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path}: larger than {MOST_BYTES >> 20} MiB")
    return Shown(path, picture=data)


def whole(clip: ClipInfo) -> Shown:
    """A whole clip.

    Raises:
        UsageError: it breaks off, or has passages that no message holds.
    """
    with suppress(UsageError):  # else an answer would not see the frames that wait for a later one
        if (windows := _cut_to_fit(clip, alone=True)) is not None:
            return Shown(clip.path, windows=windows)
    if (windows := _cut_to_fit(clip, alone=False)) is not None:
        return Shown(clip.path, windows=windows)
    raise UsageError(f"{clip.path}: too large to be shown at once; leave --whole out")


def _cut_to_fit(clip: ClipInfo, *, alone: bool) -> tuple[ClipWindow, ...] | None:
    """The fewest windows that messages hold, about; None where a passage is too large for one."""
    windows = tuple(cut(clip, window_ms=_ALL_MS, alone=alone))
    size = sum(len(window.data) for window in windows)
    length_ms = sum(window.duration_ms for window in windows)
    # rates differ within a clip: where a part is too large, all are cut finer
    for finer in (1, 2, 4):
        if _fit(windows):
            break
        pieces = math.ceil(size / MOST_BYTES) * finer
        windows = tuple(cut(clip, window_ms=length_ms / pieces, alone=alone))
    return windows if _fit(windows) else None


def _fit(windows: Sequence[ClipWindow]) -> bool:
    return all(len(window.data) <= MOST_BYTES for window in windows)


async def look(talk: Conversation, shown: Shown, questions: Sequence[str]) -> None:
    """Show it, ask, and print the answers as they are written. Without a question it is described.

    Raises:
        CommandError: the session ends, a question is not answered.
    """
    talk.on_event = _print
    if shown.picture is not None:
        talk.timeline.record("image.sent", bytes=len(shown.picture))
        await talk.client.append_image(shown.picture)
    for window in shown.windows:
        await talk.show(window)
    for question in questions or ("",):
        known = len(talk.answers)
        if question:
            print(f"> {question}", flush=True)
            await talk.ask(question)
            await talk.client.commit()
        else:
            await talk.client.respond()
        await talk.until(partial(_answered, talk, known), "there was no answer", ANSWER_S)
        if talk.errors:
            raise CommandError(talk.errors[0].message)
        print(flush=True)


def _answered(talk: Conversation, before: int) -> bool:
    """It was answered, or refused."""
    return bool(talk.errors) or (len(talk.answers) > before and talk.quiet)


def _print(event: ClientEvent) -> None:
    if isinstance(event, TextDelta):
        sys.stdout.write(event.text)
        sys.stdout.flush()
