"""Streaming audio encoders: one small interface, one object a stream.

`open_encoder` is the way in. Each encoder resamples by itself when its input has another rate, buffers up to
one codec frame (FLAC, whose frames are short, up to three, but for the first), and gives the same bytes
however its input was cut into chunks. Encoders are not thread-safe: calls on one stream must follow one
another, on whatever threads.

Sample accounting. A decoder that knows nothing about the stream plays `delay_samples`, then the input,
then `padding_samples`. Formats that can say so say so in the bytes, and decoders trim:

| codec | container | delay | padding |
| --- | --- | --- | --- |
| pcm, wav, flac, g711 | any | 0 | 0 |
| opus | ogg, webm | trimmed by pre-skip / CodecDelay | trimmed by the last granule / DiscardPadding |
| opus | raw | declared here: `delay_samples` | declared here, after `flush` |
| mp3 | – | trimmed by the Info header | trimmed if `total_samples` was given, else declared here |
| aac | adts | declared here (ADTS has no field for it) | declared here, after `flush` |
"""

from __future__ import annotations

import struct
from typing import Final, Literal, Protocol, TypeAlias, get_args

from duplex.codecs.g711 import Law, encode_g711
from duplex.codecs.pcm import INT16, Samples, SampleType
from duplex.codecs.resample import SAMPLE_RATES, Resampler
from duplex.core.errors import DuplexError, ErrorCode

Codec: TypeAlias = Literal[
    "pcm_s16le", "pcm_f32le", "wav", "flac", "mp3", "aac", "opus", "g711_ulaw", "g711_alaw"
]
Container: TypeAlias = Literal["ogg", "webm", "raw", "adts"]

CODECS: Final[tuple[str, ...]] = get_args(Codec)


class AudioEncoder(Protocol):
    """A stream of mono samples turned into bytes of one format."""

    codec: str
    media_type: str
    sample_rate: int
    """Rate of the encoded audio, Hz. Opus has no 22.05 and 44.1 kHz: it takes the next rate above."""
    inline: bool
    """True when 20 ms of audio cost less than about 20 µs, so that `feed` may run on the event loop."""
    delay_samples: int
    """Samples at `sample_rate` that stand before the first input sample, unless trimmed by the format."""
    padding_samples: int
    """Samples at `sample_rate` after the last input sample. Known after `flush`."""

    def feed(self, samples: Samples) -> bytes:
        """The bytes that `samples` (shape (n,), int16 or float32 in [-1, 1]) complete; b"" if none.

        Raises `DuplexError(INVALID_AUDIO)` and stays usable when samples are not finite, not mono or of
        another type. Floats outside [-1, 1] saturate.
        """
        ...

    def flush(self) -> bytes:
        """The rest of the stream; b"" if none or if it was flushed before."""
        ...


class _PlainEncoder:
    """Base of formats without frames: each sample is encoded on its own."""

    delay_samples = 0
    padding_samples = 0

    def __init__(self, codec: str, media_type: str, resampler: Resampler) -> None:
        self.codec = codec
        self.media_type = media_type
        self.sample_rate = resampler.output_rate
        self.inline = resampler.passthrough
        self._resampler = resampler
        self._flushed = False
        # the commonest case by far: nothing to check, convert or filter
        self._as_is = resampler.passthrough and resampler.dtype == "int16"

    def feed(self, samples: Samples) -> bytes:
        if self._as_is and not self._flushed and samples.dtype == INT16 and samples.ndim == 1:
            return self._encode(samples)
        return self._encode(self._resampler.feed(samples))

    def flush(self) -> bytes:
        if self._flushed:
            return b""
        self._flushed = True
        return self._encode(self._resampler.flush())

    def _encode(self, samples: Samples) -> bytes:
        return samples.tobytes()


class PcmEncoder(_PlainEncoder):
    """Raw little-endian PCM, `pcm_s16le` or `pcm_f32le`."""

    def __init__(self, codec: Literal["pcm_s16le", "pcm_f32le"], input_rate: int, output_rate: int) -> None:
        dtype: SampleType = "int16" if codec == "pcm_s16le" else "float32"
        super().__init__(codec, "audio/pcm", Resampler(input_rate, output_rate, dtype=dtype))


class G711Encoder(_PlainEncoder):
    """G.711 without a container: one byte a sample."""

    def __init__(self, law: Law, input_rate: int, output_rate: int) -> None:
        media_type = "audio/PCMU" if law == "ulaw" else "audio/PCMA"
        super().__init__(f"g711_{law}", media_type, Resampler(input_rate, output_rate))
        self._law: Law = law

    def _encode(self, samples: Samples) -> bytes:
        return encode_g711(samples, self._law)


WAV_UNKNOWN_SIZE: Final = 0xFFFFFFFF
"""Size in a WAV header that is sent before the length is known; readers go on to the end of the stream."""


def wav_header(sample_rate: int, total_samples: int | None = None) -> bytes:
    """The 44 bytes in front of mono 16-bit samples. `total_samples` None: a stream of unknown length."""
    data_size = WAV_UNKNOWN_SIZE
    if total_samples is not None and total_samples * 2 + 36 < WAV_UNKNOWN_SIZE:
        data_size = total_samples * 2
    riff_size = min(data_size + 36, WAV_UNKNOWN_SIZE)
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", riff_size, b"WAVE"),
        *(b"fmt ", 16, 1, 1, sample_rate, sample_rate * 2, 2, 16),
        *(b"data", data_size),
    )


class WavEncoder(_PlainEncoder):
    """16-bit WAV. The header is sent once, with the first bytes (by `flush` when there is no audio)."""

    def __init__(self, input_rate: int, output_rate: int, total_samples: int | None = None) -> None:
        super().__init__("wav", "audio/wav", Resampler(input_rate, output_rate))
        self._header = wav_header(output_rate, total_samples)

    def _encode(self, samples: Samples) -> bytes:
        if self._header and (len(samples) or self._flushed):
            header, self._header = self._header, b""
            return header + samples.tobytes()
        return samples.tobytes()


_OPUS_RATES: Final = {22050: 24000, 44100: 48000}


def encoded_rate(codec: str, rate: int) -> int:
    """The rate (Hz) of audio that is asked for in `codec` at `rate`: Opus takes the next one above."""
    return _OPUS_RATES.get(rate, rate) if codec == "opus" else rate


def open_encoder(
    codec: str,
    *,
    input_rate: int,
    output_rate: int | None = None,
    bit_rate: int | None = None,
    container: str | None = None,
    total_samples: int | None = None,
) -> AudioEncoder:
    """A new stream of `codec` (see `CODECS`).

    `input_rate` is the rate of the samples to come, `output_rate` that of the encoded audio (one of
    `SAMPLE_RATES`; None: the input's). `bit_rate` in bits a second is for mp3, aac and opus only.
    `container`: opus takes ogg (default), webm and raw (see `duplex.codecs.opus_streams`); aac takes adts.
    `total_samples`, at `output_rate`, when it is known beforehand, goes into headers that can hold it.

    Raises `DuplexError(UNSUPPORTED_FORMAT)`, `param` naming the argument at fault.
    """
    rate = input_rate if output_rate is None else output_rate
    if rate not in SAMPLE_RATES:
        raise DuplexError(
            ErrorCode.UNSUPPORTED_FORMAT,
            f"sample_rate {rate!r} is not one of {', '.join(map(str, SAMPLE_RATES))}",
            param="sample_rate",
        )
    _check_container(codec, container)
    if bit_rate is not None and codec not in ("mp3", "aac", "opus"):
        raise DuplexError(ErrorCode.UNSUPPORTED_FORMAT, f"{codec} has no bit_rate", param="bit_rate")
    match codec:
        case "pcm_s16le" | "pcm_f32le":
            return PcmEncoder(codec, input_rate, rate)
        case "wav":
            return WavEncoder(input_rate, rate, total_samples)
        case "g711_ulaw":
            return G711Encoder("ulaw", input_rate, rate)
        case "g711_alaw":
            return G711Encoder("alaw", input_rate, rate)
        case _:
            # libav is loaded by the first stream that needs it, not by an import of the package
            from duplex.codecs.frame_encoders import open_frame_encoder

            return open_frame_encoder(
                codec,
                input_rate=input_rate,
                output_rate=rate,
                bit_rate=bit_rate,
                container=container,
                total_samples=total_samples,
            )


_CONTAINERS: Final[dict[str, tuple[str, ...]]] = {"opus": ("ogg", "webm", "raw"), "aac": ("adts",)}


def _check_container(codec: str, container: str | None) -> None:
    if codec not in CODECS:
        raise DuplexError(
            ErrorCode.UNSUPPORTED_FORMAT,
            f"codec {codec!r} is not one of {', '.join(CODECS)}",
            param="codec",
        )
    allowed = _CONTAINERS.get(codec, ())
    if container is not None and container not in allowed:
        choice = f"it takes {', '.join(allowed)}" if allowed else "it has none to choose"
        raise DuplexError(
            ErrorCode.UNSUPPORTED_FORMAT,
            f"container {container!r} is not for {codec}: {choice}",
            param="container",
        )
