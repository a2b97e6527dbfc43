"""Signals, files and streams for the audio tests."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
from numpy.typing import NDArray

from duplex.codecs import AudioEncoder, open_encoder
from duplex.codecs.decoders import AudioDecoder, open_decoder
from duplex.codecs.pcm import Samples

SHARED = Path(os.environ.get("DUPLEX_SHARED", Path(__file__).parents[2].parent / "shared"))


def voice(samples: int, rate: int = 24000, seed: int = 0) -> NDArray[np.int16]:
    """Something like a voice: harmonics that glide, over a little noise."""
    t = np.arange(samples) / rate
    pitch = 2 * np.pi * (140 * t + 20 * np.sin(2 * t))
    tone = sum(np.sin(k * pitch) / k for k in range(1, 9)) * (0.6 + 0.4 * np.sin(11 * t))
    noise = np.random.default_rng(seed).standard_normal(samples)
    return ((0.22 * tone + 0.01 * noise) * 32767).clip(-32768, 32767).astype(np.int16)


class Form(NamedTuple):
    """One way to encode, and the decoder for it."""

    codec: str
    container: str | None
    decoder: str


FORMS = [
    Form("pcm_s16le", None, "pcm_s16le"),
    Form("pcm_f32le", None, "pcm_f32le"),
    Form("wav", None, "wav"),
    Form("flac", None, "flac"),
    Form("mp3", None, "mp3"),
    Form("aac", "adts", "aac"),
    Form("opus", "ogg", "ogg"),
    Form("opus", "webm", "webm"),
    Form("opus", "raw", "opus_raw"),
    Form("g711_ulaw", None, "g711_ulaw"),
    Form("g711_alaw", None, "g711_alaw"),
]


def form_id(form: Form) -> str:
    return f"{form.codec}-{form.container}" if form.container else form.codec


def cuts(length: int, sizes: Iterable[int]) -> list[slice]:
    """`length` cut into pieces of `sizes`, which repeat; a size of 0 gives an empty piece."""
    pieces, at = [], 0
    cycle = list(sizes)
    while at < length:
        for size in cycle:
            pieces.append(slice(at, min(at + size, length)))
            at += size
    return pieces


def encode(
    samples: Samples,
    form: Form,
    *,
    rate: int,
    output_rate: int | None = None,
    sizes: Sequence[int] = (),
    total_samples: int | None = None,
) -> tuple[AudioEncoder, bytes]:
    """All bytes of one stream, its input given in one piece or in pieces of `sizes`."""
    encoder = open_encoder(
        form.codec,
        input_rate=rate,
        output_rate=output_rate,
        container=form.container,
        total_samples=total_samples,
    )
    pieces = [samples[piece] for piece in cuts(len(samples), sizes)] if sizes else [samples]
    return encoder, b"".join([*map(encoder.feed, pieces), encoder.flush()])


def opener(form: Form, encoder: AudioEncoder, samples: int | None, **options: object) -> AudioDecoder:
    """A decoder for what `encoder` made, told what the format itself cannot say."""
    if form.decoder in ("pcm_s16le", "pcm_f32le", "g711_ulaw", "g711_alaw"):
        options["input_rate"] = encoder.sample_rate
    if form.decoder == "aac":
        options.update(skip_samples=encoder.delay_samples, total_samples=samples)
    if form.decoder == "opus_raw" and samples is not None:
        options["total_samples"] = samples * (48_000 // encoder.sample_rate)
    return open_decoder(form.decoder, **options)  # type: ignore[arg-type]


def decode(decoder: AudioDecoder, data: bytes, sizes: Sequence[int] = ()) -> Samples:
    """All samples of one stream, its bytes given in one piece or in pieces of `sizes`."""
    pieces = [data[piece] for piece in cuts(len(data), sizes)] if sizes else [data]
    parts = [decoder.feed(piece) for piece in pieces]
    parts.append(decoder.flush())
    return np.concatenate(parts)


def mux(
    samples: NDArray[np.int16],
    rate: int,
    *,
    container: str,
    codec: str,
    layout: str = "mono",
    options: dict[str, str] | None = None,
) -> bytes:
    """A file as libav's own muxer writes it; every channel carries `samples`."""
    out = io.BytesIO()
    with av.open(out, "w", format=container, options=options or {}) as file:
        stream = file.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(samples[None, :], format="s16", layout="mono")
        frame.sample_rate = rate
        frame.pts = 0
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            file.mux(packet)
    return out.getvalue()


def libav_samples(data: bytes, container: str) -> tuple[int, int]:
    """How many samples libav's own demuxer and decoder make of a file, and their rate."""
    with av.open(io.BytesIO(data), "r", format=container) as file:
        total = sum(frame.samples for frame in file.decode(audio=0))
        return total, file.streams.audio[0].rate


def snr_db(signal: Samples, other: Samples) -> float:
    """Ratio of the signal to its difference from `other`, dB."""
    a, b = signal.astype(np.float64), other.astype(np.float64)
    return float(10 * np.log10(np.mean(a**2) / max(np.mean((a - b) ** 2), 1e-12)))
