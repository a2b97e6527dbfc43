"""Sound files: what is written by extension, what is read as microphone audio."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

import numpy as np
from numpy.typing import NDArray

from duplex.cli.errors import CommandError, UsageError
from duplex.codecs import AudioEncoder, Resampler, open_encoder
from duplex.core.errors import DuplexError

_SCALES: Final = {"|u1": (128.0, 2.0**7), "<i2": (0.0, 2.0**15), "<i4": (0.0, 2.0**31)}
"""Middle and full scale of integer samples, by numpy's name of their type."""

FORMATS: Final[dict[str, tuple[str, str | None]]] = {
    ".wav": ("wav", None),
    ".flac": ("flac", None),
    ".mp3": ("mp3", None),
    ".aac": ("aac", None),
    ".opus": ("opus", "ogg"),
    ".ogg": ("opus", "ogg"),
    ".webm": ("opus", "webm"),
    ".pcm": ("pcm_s16le", None),
    ".raw": ("pcm_s16le", None),
}
"""Codec and container by a file's extension."""


class SoundFile:
    """A mono sound file. Samples are kept aside as they come, and encoded when all are there: so that the
    file's header tells its length, and a run that fails leaves no half file behind.

    Raises:
        UsageError: an extension that is not known, a rate that the format has not.
        CommandError: the file cannot be written.
    """

    def __init__(self, path: Path, *, input_rate: int, output_rate: int | None = None) -> None:
        known = FORMATS.get(path.suffix.lower())
        if known is None:
            raise UsageError(f"{path}: unknown sound format; known are {', '.join(FORMATS)}")
        self._codec, self._container = known
        self._input_rate = input_rate
        self._output_rate = output_rate or input_rate
        try:
            self._encoder()
        except DuplexError as error:
            raise UsageError(str(error)) from error
        self.path = path
        self.samples = 0
        self._partial = path.with_name(f".{path.name}.part")
        try:
            self._file: BinaryIO | None = self._partial.open("wb")
        except OSError as error:
            raise CommandError(f"{path}: cannot be written ({error.strerror})") from error
        self._waiting: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115, closed with the file

    def _encoder(self, samples: int | None = None) -> AudioEncoder:
        rates = self._output_rate / self._input_rate
        return open_encoder(
            self._codec,
            input_rate=self._input_rate,
            output_rate=self._output_rate,
            container=self._container,
            total_samples=None if samples is None else round(samples * rates),
        )

    def write(self, samples: NDArray[np.int16]) -> None:
        """Add samples at the input rate."""
        self.samples += len(samples)
        self._waiting.write(samples.astype("<i2", copy=False).tobytes())

    def close(self) -> None:
        """Encode what was written, and give the file its name."""
        if self._file is None:
            return
        try:
            with self._file as file, self._waiting as waiting:
                encoder = self._encoder(self.samples)
                waiting.seek(0)
                while data := waiting.read(2 * self._input_rate):
                    file.write(encoder.feed(np.frombuffer(data, "<i2")))
                file.write(encoder.flush())
            self._partial.replace(self.path)
        except OSError as error:
            raise CommandError(f"{self.path}: cannot be written ({error.strerror})") from error
        self._file = None

    def discard(self) -> None:
        """Leave no file."""
        if self._file is not None:
            self._file.close()
            self._waiting.close()
            self._file = None
        self._partial.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def write_sound(path: Path, samples: NDArray[np.int16], sample_rate: int) -> None:
    """A whole sound file at once."""
    with SoundFile(path, input_rate=sample_rate) as file:
        file.write(samples)


def write_stereo(path: Path, left: NDArray[np.int16], right: NDArray[np.int16], sample_rate: int) -> None:
    """A stereo WAV file; the shorter side is filled up with silence."""
    import soundfile

    both = np.zeros((max(len(left), len(right)), 2), np.int16)
    both[: len(left), 0] = left
    both[: len(right), 1] = right
    try:
        soundfile.write(path, both, sample_rate, subtype="PCM_16")
    except (OSError, soundfile.SoundFileError) as error:
        raise CommandError(f"{path}: cannot be written ({error})") from error


def read_speech(path: Path, sample_rate: int) -> NDArray[np.int16]:
    """The sound of any file with an audio track, mono, at `sample_rate`: shape (n,).

    Raises:
        UsageError: no such file, or no sound in it.
    """
    from av.error import FFmpegError

    if not path.is_file():
        raise UsageError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}")
    try:
        chunks, rate = _decoded(path)
    except (FFmpegError, OSError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path}: not a recording ({str(words).lower()})") from error
    if not chunks or not rate:
        raise UsageError(f"{path}: holds no sound")
    resampler = Resampler(rate, sample_rate)
    out = [resampler.feed(chunk) for chunk in chunks]
    out.append(resampler.flush())
    return np.concatenate(out).astype(np.int16, copy=False)


def _decoded(path: Path) -> tuple[list[NDArray[np.float32]], int]:
    import av

    with av.open(str(path)) as container:
        if not container.streams.audio:
            return [], 0
        stream = container.streams.audio[0]
        chunks = []
        rate = 0
        for frame in container.decode(stream):
            rate = rate or frame.sample_rate
            samples = frame.to_ndarray()
            if not frame.format.is_planar:
                samples = samples.reshape(-1, frame.layout.nb_channels).T
            chunks.append(_mono(samples))
    return chunks, rate


def _mono(samples: NDArray[Any]) -> NDArray[np.float32]:
    """Channels by samples, of any sample type, to mono in [-1, 1]."""
    middle, scale = _SCALES.get(samples.dtype.str, (0.0, 1.0))
    mixed = samples.mean(axis=0, dtype=np.float64)
    return np.asarray((mixed - middle) / scale, np.float32)


def chunks_of(samples: NDArray[np.int16], size: int) -> Iterator[NDArray[np.int16]]:
    """Consecutive pieces of `size` samples; the last one may be shorter."""
    return (samples[at : at + size] for at in range(0, len(samples), size))
