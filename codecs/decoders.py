"""Streaming audio decoders: `open_decoder` for streams, `decode_audio` for whole files.

All take bytes cut anywhere and give the same mono samples as for one piece. Encoder delay and padding are
trimmed where the format tells them; for `aac` (ADTS) and `opus_raw` they are the caller's to give.
"""

from __future__ import annotations

from typing import Final

from duplex.codecs.decoding import DEFAULT_LIMITS, AudioDecoder, DecodeLimits, MonoSink, invalid
from duplex.codecs.g711 import Law, decode_g711
from duplex.codecs.pcm import PcmBytes, Samples, SampleType, join
from duplex.codecs.resample import check_rate
from duplex.core.errors import DuplexError, ErrorCode

OPUS_PRE_SKIP: Final = 312
"""Samples at 48 kHz that libopus' encoder adds before the input (6.5 ms)."""

_ALIASES: Final = {"opus": "ogg", "m4a": "mp4", "mkv": "webm", "matroska": "webm", "adts": "aac"}
DECODE_FORMATS: Final = (
    *("pcm_s16le", "pcm_f32le", "g711_ulaw", "g711_alaw", "opus_raw"),
    *("wav", "flac", "mp3", "aac", "ogg", "webm", "mp4"),
)
_RAW: Final = ("pcm_s16le", "pcm_f32le", "g711_ulaw", "g711_alaw")


class PcmDecoder(AudioDecoder):
    """Raw PCM, whole samples whatever the cuts."""

    def __init__(self, codec: str, rate: int, sink: MonoSink) -> None:
        super().__init__(sink)
        self.format = codec
        self._bytes = PcmBytes("int16" if codec == "pcm_s16le" else "float32")
        sink.open(rate, 1)

    def _feed(self, data: bytes) -> None:
        self._sink.add(self._bytes.feed(data))

    def _end(self) -> None:
        self._bytes.flush()


class G711Decoder(AudioDecoder):
    """G.711, one byte a sample."""

    def __init__(self, law: Law, rate: int, sink: MonoSink) -> None:
        super().__init__(sink)
        self.format = f"g711_{law}"
        self._law: Law = law
        sink.open(rate, 1)

    def _feed(self, data: bytes) -> None:
        self._sink.add(decode_g711(data, self._law))

    def _end(self) -> None:
        pass


def open_decoder(
    format: str,
    *,
    input_rate: int | None = None,
    output_rate: int | None = None,
    dtype: SampleType = "int16",
    limits: DecodeLimits = DEFAULT_LIMITS,
    skip_samples: int | None = None,
    total_samples: int | None = None,
) -> AudioDecoder:
    """A decoder of one of `DECODE_FORMATS` (or opus, m4a, mkv).

    `input_rate` (Hz) is for raw PCM and G.711 alone, which say nothing of themselves (G.711: 8000 by
    default). `output_rate` None: the stream's own. `skip_samples` and `total_samples`, at the stream's
    own rate, are the encoder's delay and the length of its input, where the sender declared them
    (`opus_raw`: 312 are skipped by default).

    Raises `DuplexError(UNSUPPORTED_FORMAT)`.
    """
    name = _ALIASES.get(format, format)
    if name not in DECODE_FORMATS:
        raise DuplexError(
            ErrorCode.UNSUPPORTED_FORMAT,
            f"audio format {format!r} is not one of {', '.join(DECODE_FORMATS)}",
            param="format",
        )
    if output_rate is not None:
        check_rate(output_rate, "output_rate")
    if skip_samples is None:
        skip_samples = OPUS_PRE_SKIP if name == "opus_raw" else 0
    sink = MonoSink(
        output_rate=output_rate, dtype=dtype, limits=limits, skip=skip_samples, total=total_samples
    )
    if name in _RAW:
        if input_rate is None and not name.startswith("g711"):
            raise DuplexError(ErrorCode.UNSUPPORTED_FORMAT, f"{name} needs an input_rate", param="input_rate")
        rate = check_rate(8000 if input_rate is None else input_rate, "input_rate")
        if name.startswith("pcm"):
            return PcmDecoder(name, rate, sink)
        return G711Decoder("ulaw" if name == "g711_ulaw" else "alaw", rate, sink)
    return _open_framed(name, sink)


def _open_framed(name: str, sink: MonoSink) -> AudioDecoder:
    # libav is loaded by the first stream that needs it, not by an import of the package
    match name:
        case "wav":
            from duplex.codecs.wav_decoder import WavDecoder

            return WavDecoder(sink)
        case "ogg":
            from duplex.codecs.ogg_decoder import OggDecoder

            return OggDecoder(sink)
        case "webm":
            from duplex.codecs.webm_decoder import WebmDecoder

            return WebmDecoder(sink)
        case "mp4":
            from duplex.codecs.mp4_decoder import Mp4Decoder

            return Mp4Decoder(sink)
        case _:
            from duplex.codecs import frame_decoders

            decoders: dict[str, type[AudioDecoder]] = {
                "mp3": frame_decoders.Mp3Decoder,
                "aac": frame_decoders.AdtsDecoder,
                "flac": frame_decoders.FlacDecoder,
                "opus_raw": frame_decoders.OpusRawDecoder,
            }
            return decoders[name](sink)


def sniff_audio(head: bytes) -> str | None:
    """The format of a file by its first bytes (16 are enough), or None."""
    if head[:4] in (b"RIFF", b"RF64", b"BW64") and head[8:12] == b"WAVE":
        return "wav"
    for magic, name in ((b"fLaC", "flac"), (b"OggS", "ogg"), (b"\x1a\x45\xdf\xa3", "webm"), (b"ID3", "mp3")):
        if head.startswith(magic):
            return name
    if head[4:8] in (b"ftyp", b"styp", b"moov", b"moof"):
        return "mp4"
    if len(head) >= 2 and head[0] == 0xFF:
        if head[1] & 0xF6 == 0xF0:
            return "aac"
        if head[1] & 0xE6 == 0xE2:
            return "mp3"
    return None


_MEDIA_TYPES: Final = {
    **dict.fromkeys(("wav", "x-wav", "wave", "vnd.wave"), "wav"),
    **dict.fromkeys(("flac", "x-flac"), "flac"),
    **dict.fromkeys(("mpeg", "mp3", "x-mp3", "x-mpeg"), "mp3"),
    **dict.fromkeys(("aac", "aacp", "x-aac", "x-hx-aac-adts"), "aac"),
    **dict.fromkeys(("ogg", "opus", "x-opus+ogg"), "ogg"),
    **dict.fromkeys(("webm", "x-matroska", "matroska"), "webm"),
    **dict.fromkeys(("mp4", "m4a", "x-m4a"), "mp4"),
}


def format_of_media_type(media_type: str) -> str | None:
    """The decoder for a media type such as `audio/webm;codecs=opus`, or None."""
    kind, _, name = media_type.split(";", 1)[0].strip().lower().partition("/")
    return _MEDIA_TYPES.get(name) if kind in ("audio", "video", "application") else None


_FEED_BYTES: Final = 64 << 10


def decode_audio(
    data: bytes,
    format: str | None = None,
    *,
    output_rate: int | None = None,
    dtype: SampleType = "int16",
    limits: DecodeLimits = DEFAULT_LIMITS,
) -> tuple[Samples, int]:
    """A whole file as mono samples, shape (n,), and their rate in Hz.

    `format` None: the file's own bytes decide. Raises `DuplexError` as the decoders do, and EMPTY_INPUT
    for no bytes at all. Limits are checked as the audio is decoded, so that a small file that unpacks to
    hours costs no memory.
    """
    if not data:
        raise DuplexError(ErrorCode.EMPTY_INPUT, "the audio file is empty")
    name = format or sniff_audio(data[:64])
    if name is None:
        raise invalid("the data is no audio file of a known format")
    decoder = open_decoder(name, output_rate=output_rate, dtype=dtype, limits=limits)
    try:
        view = memoryview(data)
        parts = [decoder.feed(view[at : at + _FEED_BYTES]) for at in range(0, len(data), _FEED_BYTES)]
        parts.append(decoder.flush())
    finally:
        decoder.close()
    if decoder.sample_rate is None:
        raise invalid(f"the {name} file has no audio")
    return join(parts, dtype), decoder.sample_rate
