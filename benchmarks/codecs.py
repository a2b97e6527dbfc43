"""What the audio codecs cost: as streams against the library in one call, and to the event loop.

    python benchmarks/codecs.py [--part rtf|lag|all] [--seconds 60] [--sessions 64] [--json FILE]

Part one gives each encoder a minute of speech-like audio in chunks, as a model yields it, and compares its
CPU time with one call of the library on the whole buffer, in the same process and in turns. The
baseline is the bare codec (no container) in one frame. RTF is CPU seconds for a second of audio. The decoders
get the same streams in pieces of 1 kB, against libav opening the whole file.

Part two lets many sessions encode Opus at once, each as a response does in the gateway, and measures how
late the event loop is: with the gateway's encoder pool, and with the same work on the loop itself.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import soxr
from numpy.typing import NDArray

from duplex.codecs import CODECS, Resampler, open_decoder, open_encoder
from duplex.codecs.frame_encoders import _SPECS, _default_bit_rate
from duplex.core.types import AudioDelta, AudioFormat
from duplex.runtime.encoding import EncoderPool, ResponseEncoder

RATE = 24_000
TARGET_RATIO = 1.3
TARGET_LAG_MS = 10.0
Samples = NDArray[np.int16]


def speech(seconds: float) -> Samples:
    """Harmonics that glide, with pauses, over a little noise."""
    t = np.arange(int(seconds * RATE)) / RATE
    pitch = 2 * np.pi * (140 * t + 20 * np.sin(2 * t))
    tone = np.sum([np.sin(k * pitch) / k for k in range(1, 9)], axis=0) * (np.sin(0.7 * t) > -0.7)
    noise = np.random.default_rng(0).standard_normal(len(t))
    return ((0.22 * tone + 0.01 * noise) * 32767).clip(-32768, 32767).astype(np.int16)


def cpu_seconds(work: Callable[[], object]) -> float:
    # process time: libav and the demuxer's thread count too
    start = time.process_time()
    work()
    return time.process_time() - start


def compare(stream: Callable[[], object], library: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Least CPU seconds of each, in turns, so that a busy machine troubles both alike."""
    stream(), library()
    pairs = [(cpu_seconds(stream), cpu_seconds(library)) for _ in range(rounds)]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


# --- part one ----------------------------------------------------------------------------------------


def encode_stream(samples: Samples, chunk: int, codec: str, container: str | None) -> bytes:
    encoder = open_encoder(codec, input_rate=RATE, output_rate=RATE, container=container)
    parts = [encoder.feed(samples[at : at + chunk]) for at in range(0, len(samples), chunk)]
    return b"".join([*parts, encoder.flush()])


def libav_once(samples: NDArray[Any], name: str, format: str, rate: int, **settings: Any) -> bytes:
    """The whole buffer through a bare libav encoder, in one frame."""
    context: Any = av.CodecContext.create(name, "w")
    context.sample_rate, context.layout, context.format = rate, "mono", format
    context.thread_count = 1
    for key, value in settings.items():
        if value is not None:
            setattr(context, key, value)
    frame = av.AudioFrame.from_ndarray(samples[None, :], format=format, layout="mono")
    frame.sample_rate, frame.pts = rate, 0
    return b"".join(map(bytes, [*context.encode(frame), *context.encode(None)]))


def library_call(samples: Samples, codec: str) -> Callable[[], object]:
    if codec == "pcm_s16le" or codec == "wav":
        return samples.tobytes
    if codec == "pcm_f32le":
        return lambda: (samples.astype(np.float32) * np.float32(1 / 32768)).tobytes()
    if codec.startswith("g711"):
        name = "pcm_mulaw" if codec == "g711_ulaw" else "pcm_alaw"
        return lambda: libav_once(samples, name, "s16", RATE)
    spec = _SPECS[codec]
    bits = None if codec == "flac" else _default_bit_rate(codec, RATE)
    options = dict(spec.options)

    def call() -> bytes:
        ready = samples if spec.dtype == "int16" else samples.astype(np.float32) * np.float32(1 / 32768)
        return libav_once(ready, spec.name, spec.format, RATE, bit_rate=bits, options=options)

    return call


def row(name: str, chunk: str, seconds: float, stream: float, library: float, feeds: int) -> dict[str, Any]:
    return {
        "name": name,
        "chunk": chunk,
        "rtf_stream": stream / seconds,
        "rtf_library": library / seconds,
        "ratio": stream / library,
        "us_per_feed": stream / feeds * 1e6,
    }


def encoder_rows(samples: Samples, chunks_ms: list[int], rounds: int) -> list[dict[str, Any]]:
    rows = []
    seconds = len(samples) / RATE
    for codec in CODECS:
        for container in ("ogg", "webm", "raw") if codec == "opus" else (None,):
            for chunk_ms in chunks_ms:
                chunk = RATE * chunk_ms // 1000
                stream, library = compare(
                    lambda codec=codec, chunk=chunk, container=container: encode_stream(
                        samples, chunk, codec, container
                    ),
                    library_call(samples, codec),
                    rounds,
                )
                name = f"{codec} ({container})" if container else codec
                rows.append(row(name, f"{chunk_ms} ms", seconds, stream, library, -(-len(samples) // chunk)))
    return rows


def resampler_rows(samples: Samples, chunks_ms: list[int], rounds: int) -> list[dict[str, Any]]:
    rows = []
    for target in (8000, 16_000, 44_100, 48_000):
        for chunk_ms in chunks_ms:
            chunk = RATE * chunk_ms // 1000

            def stream(target: int = target, chunk: int = chunk) -> None:
                resampler = Resampler(RATE, target)
                for at in range(0, len(samples), chunk):
                    resampler.feed(samples[at : at + chunk])
                resampler.flush()

            def library(target: int = target) -> None:
                soxr.resample(samples, RATE, target)

            pair = compare(stream, library, rounds)
            rows.append(
                row(
                    f"resample to {target}",
                    f"{chunk_ms} ms",
                    len(samples) / RATE,
                    *pair,
                    -(-len(samples) // chunk),
                )
            )
    return rows


DECODERS = [
    ("wav", None, "wav", "wav"),
    ("flac", None, "flac", "flac"),
    ("mp3", None, "mp3", "mp3"),
    ("aac", None, "aac", "aac"),
    ("opus", "ogg", "ogg", "ogg"),
    ("opus", "webm", "webm", "matroska"),
]
PIECE_BYTES = 1024


def decoder_rows(samples: Samples, rounds: int) -> list[dict[str, Any]]:
    rows = []
    for codec, container, name, demuxer in DECODERS:
        data = encode_stream(samples, RATE, codec, container)

        def stream(name: str = name, data: bytes = data) -> None:
            decoder = open_decoder(name)
            for at in range(0, len(data), PIECE_BYTES):
                decoder.feed(data[at : at + PIECE_BYTES])
            decoder.flush()

        def library(demuxer: str = demuxer, data: bytes = data) -> None:
            with av.open(io.BytesIO(data), "r", format=demuxer) as file:
                context: Any = file.streams.audio[0].codec_context
                if context.name == "opus":  # libav's own Opus decoder is not the one that streams use
                    context = av.CodecContext.create("libopus", "r")
                    context.extradata = file.streams.audio[0].codec_context.extradata
                for packet in file.demux(audio=0):
                    for frame in context.decode(packet):
                        frame.to_ndarray()

        pair = compare(stream, library, rounds)
        feeds = -(-len(data) // PIECE_BYTES)
        rows.append(row(f"decode {name}", "1 kB", len(samples) / RATE, *pair, feeds))
    return rows


# --- part two ----------------------------------------------------------------------------------------


class LagMeter:
    """Calls itself every 2 ms and notes how late each call came, ms."""

    INTERVAL_S = 0.002

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self._running = True
        self._loop = asyncio.get_running_loop()
        self._next()

    def _next(self) -> None:
        # not the loop's clock, which uvloop keeps in whole milliseconds
        self._due = time.perf_counter() + self.INTERVAL_S
        self._loop.call_later(self.INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self.late_ms.append(max(0.0, time.perf_counter() - self._due) * 1000)
        if self._running:
            self._next()

    def stop(self) -> None:
        self._running = False


async def session(
    samples: Samples, chunk: int, pool: EncoderPool, pace: float, start_at: float, on_loop: bool
) -> float:
    """One response's audio, a chunk every chunk's time divided by `pace`. Returns the latest chunk, s."""
    loop = asyncio.get_running_loop()
    encoder = ResponseEncoder(AudioFormat(codec="opus", sample_rate=RATE), pool)
    plain = open_encoder("opus", input_rate=RATE, output_rate=RATE) if on_loop else None
    late = 0.0
    for index, at in enumerate(range(0, len(samples), chunk)):
        due = start_at + index * chunk / RATE / pace
        await asyncio.sleep(max(0.0, due - loop.time()))
        piece = samples[at : at + chunk]
        if plain is not None:
            plain.feed(piece)
        else:
            await encoder.encode(AudioDelta(samples=piece, sample_rate=RATE))
        late = max(late, loop.time() - due)
    return late


async def lag(
    samples: Samples, sessions: int, threads: int, chunk_ms: int, pace: float, on_loop: bool
) -> dict[str, Any]:
    pool = EncoderPool(threads)
    chunk = RATE * chunk_ms // 1000
    meter = LagMeter()
    began = asyncio.get_running_loop().time() + 0.05
    cpu, wall = time.process_time(), time.perf_counter()
    late = await asyncio.gather(
        *(session(samples, chunk, pool, pace, began, on_loop) for _ in range(sessions))
    )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    meter.stop()
    pool.close()
    ordered = sorted(meter.late_ms)
    return {
        "where": "loop" if on_loop else f"pool of {threads}",
        "pace": pace,
        "chunk_ms": chunk_ms,
        "sessions": sessions,
        "lag_p50_ms": statistics.median(ordered),
        "lag_p99_ms": ordered[int(len(ordered) * 0.99)],
        "lag_max_ms": ordered[-1],
        # how late the latest chunk was ready; at a pace that none can hold it says nothing
        "chunk_late_max_ms": max(late) * 1000 if pace <= 1 else None,
        "cpu_cores": cpu / wall,
        "audio_s_per_s": sessions * len(samples) / RATE / wall,
    }


def lag_rows(sessions: int, threads: int, seconds: float) -> list[dict[str, Any]]:
    try:
        import uvloop

        runner: Callable[..., Any] = uvloop.run
    except ImportError:
        runner = asyncio.run
    samples = speech(seconds)
    rows = []
    # real time: all sessions' chunks fall due at the same moment. Pace 1000: each is encoded as soon as
    # the last one is, as with a model that is far faster than speech
    for pace, chunk_ms in ((1.0, 80), (1.0, 200), (1000.0, 80), (1000.0, 200)):
        rows.extend(
            runner(lag(samples, sessions, threads, chunk_ms, pace, on_loop)) for on_loop in (False, True)
        )
    return rows


# --- output ------------------------------------------------------------------------------------------


def print_table(rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    cells = [list(rows[0])] + [
        [
            f"{value:.5f}"
            if key.startswith("rtf")
            else f"{value:.2f}"
            if isinstance(value, float)
            else str(value)
            for key, value in row.items()
        ]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("rtf", "lag", "all"), default="all")
    parser.add_argument("--seconds", type=float, default=60.0, help="audio for part one")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--chunks-ms", type=int, nargs="+", default=[20, 80])
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument(
        "--threads", type=int, default=2, help="of the encoder pool; the gateway's default is 2"
    )
    parser.add_argument("--lag-seconds", type=float, default=10.0, help="audio a session in part two")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "av": av.__version__,
        "soxr": soxr.__version__,
    }
    print(json.dumps(result))
    if args.part in ("rtf", "all"):
        samples = speech(args.seconds)
        result["encoders"] = encoder_rows(samples, args.chunks_ms, args.rounds)
        result["resamplers"] = resampler_rows(samples, args.chunks_ms, args.rounds)
        result["decoders"] = decoder_rows(samples, args.rounds)
        for part in ("encoders", "resamplers", "decoders"):
            print_table(result[part])
    if args.part in ("lag", "all"):
        result["lag"] = lag_rows(args.sessions, args.threads, args.lag_seconds)
        print_table(result["lag"])
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
