"""Sound files: written in the format of their name, read from whatever has an audio track."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from duplex.cli.errors import CommandError, UsageError
from duplex.cli.sound import FORMATS, SoundFile, read_speech, write_sound


def tone(rate: int, seconds: float = 1.0, hz: float = 440.0) -> np.ndarray:
    t = np.arange(round(rate * seconds)) / rate
    return np.round(12000 * np.sin(2 * np.pi * hz * t)).astype(np.int16)


def pitch_hz(samples: np.ndarray, rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(spectrum.argmax() * rate / len(samples))


@pytest.mark.parametrize("suffix", sorted(set(FORMATS) - {".pcm", ".raw"}))
def test_a_written_file_is_heard_again(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"tone{suffix}"
    with SoundFile(path, input_rate=24000) as file:
        for chunk in np.array_split(tone(24000), 7):
            file.write(chunk)
    heard = read_speech(path, 16000)
    assert len(heard) == pytest.approx(16000, rel=0.1)
    middle = heard[4000:12000].astype(float)
    assert pitch_hz(middle, 16000) == pytest.approx(440, abs=4)
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(12000 / np.sqrt(2), rel=0.1)


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
def test_a_file_names_its_length(tmp_path: Path, suffix: str) -> None:
    """A stream's header says 4 GB, or nothing; a file's header must not."""
    write_sound(tmp_path / f"a{suffix}", tone(24000), 24000)
    info = soundfile.info(tmp_path / f"a{suffix}")
    assert (info.frames, info.samplerate, info.channels) == (24000, 24000, 1)


def test_raw_samples_have_no_header(tmp_path: Path) -> None:
    write_sound(tmp_path / "a.pcm", tone(24000), 24000)
    assert (tmp_path / "a.pcm").read_bytes() == tone(24000).tobytes()


def test_a_failed_run_leaves_no_file(tmp_path: Path) -> None:
    file = SoundFile(tmp_path / "a.flac", input_rate=24000)
    file.write(tone(24000))
    file.__exit__(RuntimeError, RuntimeError(), None)
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"before")
    with SoundFile(path, input_rate=24000) as file:
        file.write(tone(24000))
        assert path.read_bytes() == b"before"
    assert soundfile.info(path).frames == 24000


def test_bad_names_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown sound format; known are \.wav"):
        SoundFile(tmp_path / "a.xyz", input_rate=24000)
    with pytest.raises(UsageError, match="sample_rate 12345"):
        SoundFile(tmp_path / "a.wav", input_rate=24000, output_rate=12345)
    with pytest.raises(CommandError, match="cannot be written") as caught:
        SoundFile(tmp_path / "no" / "a.wav", input_rate=24000)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW"])
def test_any_sample_type_and_rate_is_read(tmp_path: Path, subtype: str) -> None:
    stereo = np.stack([tone(44100), tone(44100)], axis=1) / 32768
    soundfile.write(tmp_path / "a.wav", stereo, 44100, subtype=subtype)
    heard = read_speech(tmp_path / "a.wav", 16000)
    assert heard.dtype == np.int16
    assert len(heard) == pytest.approx(16000, abs=2)
    assert pitch_hz(heard[4000:12000].astype(float), 16000) == pytest.approx(440, abs=4)
    assert np.abs(heard[2000:14000]).max() == pytest.approx(12000, rel=0.05)


def test_what_is_no_recording_is_named(tmp_path: Path) -> None:
    for name, make, words in (
        ("missing.wav", lambda path: None, "no such file"),
        ("folder.wav", lambda path: path.mkdir(), "is a folder"),
        ("text.wav", lambda path: path.write_text("hello " * 1000), "not a recording"),
        ("silent.mp4", _video_only, "holds no sound"),
    ):
        path = tmp_path / name
        make(path)
        with pytest.raises(UsageError, match=words) as caught:
            read_speech(path, 16000)
        assert name in str(caught.value)


def _video_only(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"  # type: ignore[union-attr]
        frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
        container.mux(stream.encode(frame))  # type: ignore[union-attr]
        container.mux(stream.encode(None))  # type: ignore[union-attr]
