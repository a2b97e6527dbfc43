"""A clip as a live camera would send it: short windows, in order, each with its time.

Codecs that MPEG-TS carries are cut without re-encoding (`duplex.codecs.video_split`); any other clip that
libav can decode (VP8, VP9, AV1, animated pictures, …) is re-encoded window by window into a small H.264
stream, so that `duplex watch` takes any file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

import av
from av.error import FFmpegError

from duplex.cli.errors import UsageError
from duplex.codecs.video_split import ClipWindow, split_clip

WINDOW_MS: Final = 500.0
"""Default length of a window: half a second of the two that live commentary may lag."""

_COPIED = frozenset(("h264", "hevc", "mpeg1video", "mpeg2video"))
_TEXT_ART: Final = frozenset(("tty", "bin", "xbin", "adf", "idf"))
"""libav plays any text as a film of a terminal."""
_RATE: Final = 25
"""Frames/s of a re-encoded clip, at most."""
_SIDE: Final = 640
"""Pixels of its longer side, at most: the picture is watched, not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipInfo:
    """What a clip is. `duration_ms` 0: the file does not say."""

    path: Path
    codec: str
    width: int
    height: int
    frame_rate: float
    duration_ms: float

    @property
    def copied(self) -> bool:
        """True when its packets are sent as they are."""
        return self.codec in _COPIED


def probe(path: Path) -> ClipInfo:
    """Look at a clip.

    Raises:
        UsageError: there is no such file, or it holds no video.
    """
    if not path.is_file():
        raise UsageError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}")
    try:
        with av.open(str(path)) as container:
            name = container.format.name
            if name in _TEXT_ART or name == "image2" or name.endswith("_pipe"):
                raise UsageError(f"{path}: not a video")
            if not container.streams.video:
                raise UsageError(f"{path}: holds no video")
            stream = container.streams.video[0]
            context = stream.codec_context
            if context is None or context.width < 1 or context.height < 1:
                raise UsageError(f"{path}: its video cannot be decoded")
            rate = stream.average_rate or stream.guessed_rate
            return ClipInfo(
                path=path,
                codec=context.name,
                width=context.width,
                height=context.height,
                frame_rate=float(rate) if rate else 25.0,
                duration_ms=(container.duration or 0) / 1000,
            )
    except (FFmpegError, OSError) as error:
        raise UsageError(f"{path}: not a video ({_words(error)})") from error


def cut(clip: ClipInfo, *, window_ms: float = WINDOW_MS, alone: bool = False) -> Iterator[ClipWindow]:
    """Windows of about `window_ms`, for a receiver that keeps its decoder across them; `alone`: of which it
    holds no frame back, see `split_clip`.

    Raises:
        UsageError: the file breaks off or cannot be decoded.
    """
    try:
        if clip.copied:
            yield from split_clip(clip.path, window_ms=window_ms, alone=alone)
        else:
            yield from _recoded(clip, window_ms)
    except (FFmpegError, ValueError) as error:
        raise UsageError(f"{clip.path}: cannot be read to its end ({_words(error)})") from error


def _recoded(clip: ClipInfo, window_ms: float) -> Iterator[ClipWindow]:
    """The clip as H.264 in Annex B: no frame waits for a later one, the first is a key frame."""
    rate = max(1, min(_RATE, round(clip.frame_rate)))
    per_window = max(1, round(window_ms / 1000 * rate))
    encoder = _encoder(clip, rate)
    coded: list[bytes] = []
    start = 0
    for number, frame in enumerate(_at_rate(clip.path, rate)):
        picture = frame.reformat(width=encoder.width, height=encoder.height, format="yuv420p")
        picture.pts = number
        picture.time_base = Fraction(1, rate)
        picture.pict_type = av.video.frame.PictureType.NONE
        coded += [bytes(packet) for packet in encoder.encode(picture)]
        if number + 1 - start == per_window:
            yield _annex_b(coded, start, number + 1, rate)
            coded = []
            start = number + 1
        last = number
    coded += [bytes(packet) for packet in encoder.encode(None)]
    if coded:
        yield _annex_b(coded, start, last + 1, rate)


def _annex_b(coded: list[bytes], start: int, end: int, rate: int) -> ClipWindow:
    return ClipWindow(
        data=b"".join(coded),
        pts_ms=start / rate * 1000,
        duration_ms=(end - start) / rate * 1000,
        kind="video/h264",
    )


def _encoder(clip: ClipInfo, rate: int) -> av.VideoCodecContext:
    scale = min(1.0, _SIDE / max(clip.width, clip.height))
    encoder = av.CodecContext.create("libx264", "w")
    assert isinstance(encoder, av.VideoCodecContext)
    encoder.width = max(16, round(clip.width * scale / 2) * 2)
    encoder.height = max(16, round(clip.height * scale / 2) * 2)
    encoder.pix_fmt = "yuv420p"
    encoder.time_base = Fraction(1, rate)
    encoder.framerate = Fraction(rate)
    encoder.thread_count = 1
    encoder.gop_size = rate * 2
    encoder.options = {"preset": "ultrafast", "tune": "zerolatency", "crf": "26"}
    return encoder


def _at_rate(path: Path, rate: int) -> Iterator[av.VideoFrame]:
    """Decoded frames at an even `rate`: repeated where the clip has fewer, left out where it has more."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        held: av.VideoFrame | None = None
        origin = 0.0
        tick = 0
        for frame in container.decode(stream):
            at = frame.time if frame.time is not None else tick / rate + origin
            if held is None:
                origin = at
            while held is not None and origin + tick / rate < at - 1e-6:
                yield held
                tick += 1
            held = frame
        if held is not None:
            yield held


def _words(error: Exception) -> str:
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(words)[:1].lower() + str(words)[1:]
