"""Encoders of compressed formats, on libav codecs: FLAC, MP3, AAC, Opus.

Samples are gathered into whole codec frames in reused buffers; libav releases the GIL while it encodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

import av
import av.error
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame
from av.packet import Packet
from numpy.typing import NDArray

from duplex.codecs.encoders import encoded_rate
from duplex.codecs.framing import adts_header, flac_header, mp3_info_frame
from duplex.codecs.opus_streams import OpusOggStream, OpusRawStream, OpusStream, OpusWebmStream
from duplex.codecs.pcm import Samples, SampleType
from duplex.codecs.resample import Resampler
from duplex.core.errors import DuplexError, ErrorCode

OPUS_CLOCK: Final = 48_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spec:
    """How libav is asked for one codec. `format` is its sample format, `dtype` ours for it. `at_once`: frames
    that go to libav together, but for a stream's first one, when the input comes in short pieces."""

    name: str
    format: str
    dtype: SampleType
    options: dict[str, str]
    at_once: int = 1


_SPECS: Final = {
    # level 2: 24 ms blocks instead of 96 ms, so that the first audio leaves 72 ms sooner; speech grows 3 %.
    # A block costs 11 µs and the call around it 7: three at once, or input of 72 ms, share the call
    "flac": _Spec(name="flac", format="s16", dtype="int16", options={"compression_level": "2"}, at_once=3),
    "mp3": _Spec(name="libmp3lame", format="s16p", dtype="int16", options={}),
    "aac": _Spec(name="aac", format="fltp", dtype="float32", options={}),
    "opus": _Spec(name="libopus", format="s16", dtype="int16", options={"frame_duration": "20"}),
}

_OPUS_STREAMS: Final[dict[str, type[OpusStream]]] = {
    "ogg": OpusOggStream,
    "webm": OpusWebmStream,
    "raw": OpusRawStream,
}
_BIT_RATES: Final = {"mp3": (8_000, 320_000), "aac": (8_000, 288_000), "opus": (6_000, 256_000)}


def _default_bit_rate(codec: str, rate: int) -> int:
    # speech is transparent at about 2.7 bits a sample in mp3 and aac, and at 32 kbit/s in opus
    if codec == "opus":
        return 24_000 if rate <= 16_000 else 32_000 if rate <= 24_000 else 48_000
    return 24_000 if rate <= 8_000 else 48_000 if rate <= 16_000 else 64_000 if rate <= 24_000 else 96_000


_MAX_FRAMES: Final = 16
"""Frames given to libav in one call, at most."""


class _Frames:
    """A libav encoder that takes samples in any number and codes whole frames.

    All frames that one piece completes go to libav in one call: a call costs about 10 µs whatever its size.
    None is kept back to wait for another, unless the codec has `at_once`. `sent` counts the samples coded so
    far.
    """

    def __init__(self, spec: _Spec, rate: int, bit_rate: int | None) -> None:
        self.context = cast(AudioCodecContext, AudioCodecContext.create(spec.name, "w"))
        self.context.sample_rate = rate
        self.context.layout = "mono"
        self.context.format = spec.format
        if bit_rate is not None:
            self.context.bit_rate = bit_rate
        self.context.options = dict(spec.options)
        # a stream of speech is one core's work; more threads would only queue behind other streams
        self.context.thread_count = 1
        self.context.open()
        self.frame_size: int = self.context.frame_size
        self.extradata: bytes = self.context.extradata or b""
        self.sent = 0
        self._spec = spec
        self._rest = np.empty(self.frame_size * spec.at_once, spec.dtype)
        self._filled = 0
        self._buffers: dict[int, tuple[AudioFrame, NDArray[Any]]] = {}

    def feed(self, samples: Samples) -> list[Packet[Any]]:
        """Packets of the frames that `samples` complete."""
        packets: list[Packet[Any]] = []
        size, at, count = self.frame_size, 0, len(samples)
        frames = (self._filled + count) // size
        if frames < (self._spec.at_once if self.sent else 1):
            frames = 0
        while frames > 0:
            length = min(frames, _MAX_FRAMES) * size
            frame, buffer = self._buffer(length)
            taken = length - self._filled
            buffer[: self._filled] = self._rest[: self._filled]
            buffer[self._filled :] = samples[at : at + taken]
            at += taken
            self._filled = 0
            packets += self._encode(frame, length)
            frames = (count - at) // size
        self._rest[self._filled : self._filled + count - at] = samples[at:]
        self._filled += count - at
        return packets

    def flush(self) -> list[Packet[Any]]:
        """Packets of the last, shorter frame and of what the encoder holds back. None for no input."""
        packets: list[Packet[Any]] = []
        if self._filled:
            frame, buffer = self._buffer(self._filled)
            buffer[:] = self._rest[: self._filled]
            packets += self._encode(frame, self._filled)
        if self.sent:
            packets += self.context.encode(None)
        return packets

    def _buffer(self, length: int) -> tuple[AudioFrame, NDArray[Any]]:
        """A frame of `length` samples and the view that fills it. libav copies it, so it serves again."""
        known = self._buffers.get(length)
        if known is None:
            frame = AudioFrame(format=self._spec.format, layout="mono", samples=length)
            frame.sample_rate = self.context.sample_rate
            plane: Any = frame.planes[0]  # a buffer, though its stub does not say so
            known = frame, np.frombuffer(plane, self._spec.dtype)
            self._buffers[length] = known
        return known

    def _encode(self, frame: AudioFrame, length: int) -> list[Packet[Any]]:
        frame.pts = self.sent
        self.sent += length
        return self.context.encode(frame)


class FrameEncoder:
    """Base of the compressed formats. Subclasses say what stands around the packets."""

    inline = False
    padding_samples = 0

    def __init__(
        self, codec: str, media_type: str, *, input_rate: int, sample_rate: int, bit_rate: int | None
    ) -> None:
        spec = _SPECS[codec]
        self.codec = codec
        self.media_type = media_type
        self.sample_rate = sample_rate
        self.delay_samples = 0
        self._packets = 0
        self._resampler = Resampler(input_rate, sample_rate, dtype=spec.dtype)
        self._flushed = False
        try:
            self._frames = _Frames(spec, sample_rate, bit_rate)
        except (av.error.FFmpegError, ValueError) as error:
            raise DuplexError(
                ErrorCode.UNSUPPORTED_FORMAT,
                f"{codec} cannot be made at {sample_rate} Hz and {bit_rate} bit/s",
                param="bit_rate",
            ) from error

    def feed(self, samples: Samples) -> bytes:
        resampled = self._resampler.feed(samples)
        if not len(resampled):
            return b""
        packets = self._frames.feed(resampled)
        return self._join(packets) if packets else b""

    def flush(self) -> bytes:
        if self._flushed:
            return b""
        self._flushed = True
        packets = self._frames.feed(self._resampler.flush())
        packets += self._frames.flush()
        return self._join(packets) + self._end()

    def _join(self, packets: list[Packet[Any]]) -> bytes:
        return b"".join([self._wrap(packet) for packet in packets])

    def _count_padding(self) -> None:
        coded = self._packets * self._frames.frame_size
        self.padding_samples = max(0, coded - self.delay_samples - self._frames.sent)

    def _wrap(self, packet: Packet[Any]) -> bytes:
        """One packet with what its format puts around it."""
        raise NotImplementedError

    def _end(self) -> bytes:
        """What comes after the last packet."""
        return b""


class FlacEncoder(FrameEncoder):
    """FLAC, 16 bits; the stream header comes with the first block."""

    def __init__(self, input_rate: int, sample_rate: int, total_samples: int | None) -> None:
        super().__init__("flac", "audio/flac", input_rate=input_rate, sample_rate=sample_rate, bit_rate=None)
        self._header = flac_header(self._frames.extradata, total_samples)

    def _join(self, packets: list[Packet[Any]]) -> bytes:
        # the packet that ends the stream carries an updated STREAMINFO and no audio
        data = b"".join(map(bytes, packets))
        if data and self._header:
            header, self._header = self._header, b""
            return header + data
        return data

    def _end(self) -> bytes:
        header, self._header = self._header, b""
        return header


class Mp3Encoder(FrameEncoder):
    """MP3 after an Info frame, which makes decoders drop the delay and, with a known total, the padding."""

    def __init__(self, input_rate: int, sample_rate: int, bit_rate: int, total_samples: int | None) -> None:
        super().__init__(
            "mp3", "audio/mpeg", input_rate=input_rate, sample_rate=sample_rate, bit_rate=bit_rate
        )
        self._total = total_samples

    def _wrap(self, packet: Packet[Any]) -> bytes:
        self._packets += 1
        if self._packets > 1:
            return bytes(packet)
        self.delay_samples = -(packet.pts or 0)
        return self._info() + bytes(packet)

    def _info(self) -> bytes:
        if self._total is None:
            return mp3_info_frame(self.sample_rate, self.delay_samples)
        # what LAME makes of n samples: a frame for each begun frame of samples and delay
        frames = self._frames_for(self._total)
        padding = frames * self._frames.frame_size - self.delay_samples - self._total
        return mp3_info_frame(self.sample_rate, self.delay_samples, frames, padding + 529)

    def _frames_for(self, samples: int) -> int:
        return -(-(samples + self.delay_samples) // self._frames.frame_size)

    def _end(self) -> bytes:
        self._count_padding()
        return b""


class AacEncoder(FrameEncoder):
    """AAC-LC in ADTS. ADTS cannot tell delay and padding: `delay_samples`, `padding_samples` do."""

    def __init__(self, input_rate: int, sample_rate: int, bit_rate: int) -> None:
        super().__init__(
            "aac", "audio/aac", input_rate=input_rate, sample_rate=sample_rate, bit_rate=bit_rate
        )
        self.delay_samples = self._frames.frame_size  # libav's encoder primes with one frame

    def _wrap(self, packet: Packet[Any]) -> bytes:
        self._packets += 1
        return adts_header(self.sample_rate, packet.size) + bytes(packet)

    def _end(self) -> bytes:
        self._count_padding()
        return b""


class OpusEncoder(FrameEncoder):
    """Opus in the stream that `container` names. Times inside are on Opus' own 48 kHz clock."""

    def __init__(self, input_rate: int, sample_rate: int, bit_rate: int, container: str) -> None:
        stream_class = _OPUS_STREAMS[container]
        super().__init__(
            "opus", stream_class.media_type, input_rate=input_rate, sample_rate=sample_rate, bit_rate=bit_rate
        )
        head = self._frames.extradata
        pre_skip = int.from_bytes(head[10:12], "little")
        self._scale = OPUS_CLOCK // sample_rate
        self.delay_samples = pre_skip // self._scale
        self._stream: OpusStream = stream_class(head, self._frames.frame_size * self._scale)

    def _wrap(self, packet: Packet[Any]) -> bytes:
        self._packets += 1
        return self._stream.packet(bytes(packet))

    def _end(self) -> bytes:
        self._count_padding()
        return self._stream.end(self._frames.sent * self._scale)


def open_frame_encoder(
    codec: str,
    *,
    input_rate: int,
    output_rate: int,
    bit_rate: int | None,
    container: str | None,
    total_samples: int | None,
) -> FrameEncoder:
    """The encoder of a compressed codec; `duplex.codecs.encoders.open_encoder` has checked the names."""
    if codec == "flac":
        return FlacEncoder(input_rate, output_rate, total_samples)
    rate = encoded_rate(codec, output_rate)
    low, high = _BIT_RATES[codec]
    bits = _default_bit_rate(codec, rate) if bit_rate is None else bit_rate
    if isinstance(bits, bool) or not isinstance(bits, int) or not low <= bits <= high:
        raise DuplexError(
            ErrorCode.UNSUPPORTED_FORMAT,
            f"bit_rate {bits!r} of {codec} must be from {low} to {high} bit/s",
            param="bit_rate",
        )
    if codec == "mp3":
        return Mp3Encoder(input_rate, output_rate, bits, total_samples)
    if codec == "aac":
        return AacEncoder(input_rate, output_rate, bits)
    return OpusEncoder(input_rate, rate, bits, container or "ogg")
