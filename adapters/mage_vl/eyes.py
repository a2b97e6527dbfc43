"""The two kinds of eyes: one that looks with the model's own encoder and gate, and one that only hands frames
on, as JPEG, to a server that has them."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from typing import Any, Final, Protocol

import av
import numpy as np
from numpy.typing import NDArray

from duplex.adapters.health import Figure
from duplex.adapters.mage_vl.ports import Eye, Glance, Picture
from duplex.adapters.mage_vl.prompt import runs_of
from duplex.adapters.mage_vl.windows.types import VisualInput

JPEG_QUALITY: Final = 3
"""libav's quantiser: 2 is the best, 31 the worst."""


class _Tokens(Protocol):
    def torch(self) -> Any: ...


class _Seen(Protocol):
    """What the sight client's `look` gives."""

    @property
    def tokens(self) -> _Tokens: ...

    @property
    def p_speak(self) -> tuple[float, ...] | None: ...


class _ClientEye(Protocol):
    async def look(self, window: VisualInput, *, gate: bool = True) -> _Seen | None: ...

    def close(self) -> None: ...


class _Client(Protocol):
    """The sight client, see `duplex.adapters.mage_vl.sight`."""

    name: str

    @property
    def healthy(self) -> bool: ...

    @property
    def fault(self) -> str | None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def open(self) -> _ClientEye: ...

    def figures(self) -> Iterable[Figure]: ...


class ModelSight:
    """Sight by the model. `jpeg`: prompts are for a server, which looks for itself; only the gate's word is
    kept of what is seen here."""

    def __init__(self, client: _Client, *, gate: bool, jpeg: Executor | None = None) -> None:
        self.gate = gate
        self._client = client
        self._jpeg = jpeg
        self.start = client.start
        self.stop = client.stop
        self.figures = client.figures

    @property
    def healthy(self) -> bool:
        return self._client.healthy

    @property
    def fault(self) -> str | None:
        """With the eye's name: beside a decoder and preparers it says who is down."""
        return f"{self._client.name} {self._client.fault}" if self._client.fault else None

    def open(self) -> Eye:
        return _ModelEye(self._client.open(), self.gate, self._jpeg)


class _ModelEye:
    def __init__(self, eye: _ClientEye, gate: bool, jpeg: Executor | None) -> None:
        self._eye = eye
        self._gate = gate
        self._jpeg = jpeg
        self._keys = _keys()
        self.close = eye.close

    async def look(self, visual: VisualInput) -> Glance | None:
        seen = await self._eye.look(visual, gate=self._gate)
        if seen is None:
            return None
        if self._jpeg is not None:
            pictures = await _as_jpeg(visual, self._jpeg, self._keys)
        else:
            pictures = tuple(
                Picture(
                    key=next(self._keys),
                    time_s=float(time_s),
                    tokens=visual.tokens_per_image,
                    data=tokens,
                    size=tokens.numel() * tokens.element_size(),
                    runs=_runs(visual, number),
                )
                for number, (time_s, tokens) in enumerate(
                    zip(visual.times_s, seen.tokens.torch(), strict=True)
                )
            )
        return _glance(visual, pictures, seen.p_speak[-1] if seen.p_speak else None)


class FrameSight:
    """No sight here: frames go to a server as they are, and nothing tells when to speak."""

    healthy = True
    fault = None
    gate = False

    def __init__(self, pool: Executor) -> None:
        self._pool = pool

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        return None

    def open(self) -> Eye:
        return _FrameEye(self._pool)

    def figures(self) -> Iterable[Figure]:
        return ()


class _FrameEye:
    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._keys = _keys()

    async def look(self, visual: VisualInput) -> Glance | None:
        return _glance(visual, await _as_jpeg(visual, self._pool, self._keys), None)

    def close(self) -> None:
        return None


def _runs(visual: VisualInput, number: int) -> tuple[tuple[float, int], ...]:
    """Of a canvas: which of its tokens are of which source frame."""
    if not len(visual.frame_times_s):
        return ()
    return tuple(runs_of(visual.positions[number], visual.frame_times_s))


def _keys() -> Iterator[str]:
    """Names of a session's images, which no other session's have."""
    session = secrets.token_hex(8)
    return (f"{session}-{number}" for number in itertools.count())


def _glance(visual: VisualInput, pictures: tuple[Picture, ...], score: float | None) -> Glance:
    return Glance(
        pictures=pictures,
        score=score,
        segment_id=visual.segment_id,
        pts_ms=visual.pts_ms,
        duration_ms=visual.duration_ms,
    )


async def _as_jpeg(visual: VisualInput, pool: Executor, keys: Iterator[str]) -> tuple[Picture, ...]:
    loop = asyncio.get_running_loop()
    files = await loop.run_in_executor(pool, lambda: [jpeg(image) for image in visual.images])
    return tuple(
        Picture(
            key=next(keys),
            time_s=float(time_s),
            tokens=visual.tokens_per_image,
            data=file,
            size=len(file),
        )
        for time_s, file in zip(visual.times_s, files, strict=True)
    )


def jpeg(image: NDArray[np.uint8]) -> bytes:
    """An image, uint8 (H, W, 3) RGB, as a JPEG file."""
    height, width, _ = image.shape
    context = av.CodecContext.create("mjpeg", "w")
    assert isinstance(context, av.VideoCodecContext)
    context.width, context.height, context.pix_fmt = width, height, "yuvj420p"
    context.time_base = 1  # type: ignore[assignment]
    context.qmin = context.qmax = JPEG_QUALITY
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24").reformat(
        format="yuvj420p"
    )
    return b"".join(bytes(packet) for packet in (*context.encode(frame), *context.encode(None)))
