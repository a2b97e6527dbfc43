"""One libav audio decoder, packet by packet."""

from __future__ import annotations

from typing import Any, Final, cast

import av.error
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame
from av.codec.context import Flags2
from av.packet import Packet
from numpy.typing import NDArray

from duplex.codecs.decoding import MonoSink, invalid
from duplex.core.errors import DuplexError, ErrorCode

_LAYOUTS: Final = {1: "mono", 2: "stereo", 3: "2.1", 4: "quad", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}


_TYPES: Final[dict[str, type[np.generic]]] = {
    "s16": np.int16,
    "flt": np.float32,
    "s32": np.int32,
    "u8": np.uint8,
    "dbl": np.float64,
}


def frame_samples(frame: AudioFrame) -> NDArray[Any]:
    """A frame's samples, shape (n,) or (n, channels), as int16 or float32."""
    planes: tuple[Any, ...] = frame.planes  # buffers, though their stub does not say so
    kind = _TYPES[frame.format.name.rstrip("p")]
    count = frame.samples
    if len(planes) > 1:
        samples = np.stack([np.frombuffer(plane, kind, count) for plane in planes], axis=1)
    elif (channels := frame.layout.nb_channels) == 1:
        samples = np.frombuffer(planes[0], kind, count)
    else:
        samples = np.frombuffer(planes[0], kind, count * channels).reshape(-1, channels)
    if kind is np.int16 or kind is np.float32:
        return samples
    if kind is np.uint8:
        return (samples.astype(np.int16) - 128) << 8
    scale = 2.0**-31 if kind is np.int32 else 1.0
    return (samples * scale).astype(np.float32)


class PacketDecoder:
    """Decodes packets of one stream into a `MonoSink`.

    `codec` is libav's name; `config` its extradata. libav trims nothing here: delay and padding are the
    container's to say and the sink's to cut.
    """

    def __init__(
        self,
        codec: str,
        sink: MonoSink,
        *,
        what: str,
        config: bytes | None = None,
        rate: int | None = None,
        channels: int | None = None,
    ) -> None:
        self._sink = sink
        self._what = what
        self._shape: tuple[int, int] | None = None
        try:
            self.context = cast(AudioCodecContext, AudioCodecContext.create(codec, "r"))
            if config is not None:
                self.context.extradata = config
            if rate is not None:
                self.context.sample_rate = rate
            if channels is not None:
                self.context.layout = _LAYOUTS[channels]
            self.context.thread_count = 1
            self.context.flags2 |= Flags2.skip_manual
            if codec == "flac":
                # its frames have checksums; the lossy codecs conceal what a joined stream lacks at its start
                self.context.options = {"err_detect": "crccheck+explode"}
            self.context.open()
        except (av.error.FFmpegError, ValueError, KeyError) as error:
            raise DuplexError(ErrorCode.UNSUPPORTED_FORMAT, f"this {what} cannot be decoded") from error

    def decode(self, packet: bytes | Packet[Any], *, discard: int = 0) -> None:
        """One packet; its last `discard` samples are padding."""
        self._run(Packet(packet) if isinstance(packet, bytes) else packet, discard)

    def drain(self) -> None:
        """What the decoder holds back, after the last packet."""
        self._run(None, 0)

    def _run(self, packet: Packet[Any] | None, discard: int) -> None:
        try:
            frames = self.context.decode(packet)
        except av.error.FFmpegError as error:
            raise invalid(f"the {self._what} data is damaged") from error
        for frame in frames:
            samples = frame_samples(frame)
            shape = frame.sample_rate, samples.shape[1] if samples.ndim > 1 else 1
            if shape != self._shape:
                self._sink.open(*shape)
                self._shape = shape
            self._sink.add(samples, discard=discard)
