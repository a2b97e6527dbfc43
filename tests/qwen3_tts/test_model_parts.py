"""The frame model's parts: what is remembered, how far a request may go, which text is on the device when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs the extra qwen3-tts")
pytest.importorskip("tokenizers", reason="needs the extra qwen3-tts")

import codec_small as small  # noqa: E402
from golden_talker import CHAT  # noqa: E402
from torch import Tensor  # noqa: E402

from duplex.adapters.qwen3_tts import recordings as recordings_module  # noqa: E402
from duplex.adapters.qwen3_tts import sound as sound_module  # noqa: E402
from duplex.adapters.qwen3_tts.device import find_device  # noqa: E402
from duplex.adapters.qwen3_tts.job import EncodeReference  # noqa: E402
from duplex.adapters.qwen3_tts.memo import Memo  # noqa: E402
from duplex.adapters.qwen3_tts.model import load  # noqa: E402
from duplex.adapters.qwen3_tts.options import read_options  # noqa: E402
from duplex.adapters.qwen3_tts.prompt import Prompt, Voice  # noqa: E402
from duplex.adapters.qwen3_tts.rows import RowMaker  # noqa: E402
from duplex.adapters.qwen3_tts.slot import SlotRun, frame_ceiling  # noqa: E402
from duplex.adapters.qwen3_tts.sound import Sound  # noqa: E402
from duplex.adapters.qwen3_tts.tiny import tiny_config, write_tiny_checkpoint  # noqa: E402
from duplex.core.errors import DuplexError, ErrorCode  # noqa: E402

KEPT = 8
CONFIG = tiny_config()


class Letters:
    """An encoder that takes each character for a token."""

    def feed(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def end(self) -> list[int]:
        return []


@dataclass(slots=True)
class FakeState:
    text: Tensor = field(default_factory=lambda: torch.full((3, KEPT, 1), -1.0))


class FakeCore:
    """The part of a core that text goes to. A row is its text id."""

    text_kept = KEPT
    device = torch.device("cpu")

    @staticmethod
    def text_cells(slot: int, frames: Iterable[int]) -> list[int]:
        return [slot * KEPT + frame % KEPT for frame in frames]

    def put_text(self, cells: Tensor, rows: Tensor) -> None:
        self.state.text.flatten(0, 1).index_copy_(0, cells, rows)

    def __init__(self) -> None:
        self.state = FakeState()
        self.ends: dict[int, int] = {}

    def text_rows(self, ids: Tensor) -> Tensor:
        return ids[:, None].float()

    def end_text(self, slot: int, count: int) -> None:
        assert slot not in self.ends
        self.ends[slot] = count


def run_of(slot: int = 0, *, asked: int | None = None, positions: int = 500) -> SlotRun:
    """A request whose prompt is in and whose first text token is there."""
    prompt = Prompt(CONFIG, CHAT, Voice(), whole=False)
    prompt.add([1])
    encoder: Any = Letters()
    run = SlotRun(slot, prompt, encoder, kind="base", asked=asked, positions=positions)
    run.add_prefilled(len(prompt.rows))
    return run


PIECES = st.lists(st.one_of(st.integers(1, 30), st.just(0)), min_size=1, max_size=40)


@given(first=PIECES, second=PIECES)
def test_each_frame_finds_its_text(first: list[int], second: list[int]) -> None:
    """Text comes at any time (0: not now); whenever a slot makes a frame, that frame's row is in its ring."""
    core: Any = FakeCore()
    rows = RowMaker(core)
    runs = [run_of(0), run_of(1)]
    pieces = [list(first), list(second)]
    heard: list[list[float]] = [[], []]
    letters = iter(range(10_000, 99_999))
    while any(pieces) or not all(run.prompt.ended for run in runs) or any(map(_has_text, runs)):
        for run, waiting in zip(runs, pieces, strict=True):
            if waiting:
                run.feed("".join(chr(next(letters)) for _ in range(waiting.pop(0))), ended=not waiting)
        going = [run for run in runs if run.steppable and _has_text(run)]
        rows.send_text(going)
        for run in going:
            heard[run.slot].append(float(core.state.text[run.slot, run.launched % KEPT, 0]))
            run.launched += 1
    for run in runs:
        assert heard[run.slot] == [float(token) for token in run.prompt.trailing]
        assert run.prompt.trailing[-1] == CONFIG.tts_eos_token_id
        if run.steppable:
            rows.send_text([run])
            assert core.ends[run.slot] == len(run.prompt.trailing)


def _has_text(run: SlotRun) -> bool:
    return run.launched < min(len(run.prompt.trailing), run.limit)


def test_text_goes_out_in_bulk_and_only_when_it_is_needed() -> None:
    core: Any = FakeCore()
    rows = RowMaker(core)
    run = run_of()
    run.feed("abcdef", ended=False)
    rows.send_text([run])
    assert run.uploaded == 6
    run.feed("ghijklmnop", ended=False)
    for frame in range(6):
        rows.send_text([run])
        assert run.uploaded == 6, frame
        run.launched += 1
    rows.send_text([run])
    assert run.uploaded == 6 + KEPT


def test_a_ceiling_grows_with_the_text() -> None:
    assert frame_ceiling("base", 1) == 192
    assert frame_ceiling("base", 100) == 1200
    assert frame_ceiling("custom_voice", 1) == frame_ceiling("voice_design", 1) == 384
    assert frame_ceiling("custom_voice", 100) == 2400
    assert frame_ceiling("base", 10_000) == frame_ceiling("custom_voice", 10_000) == 8192
    run = run_of(positions=5000)
    assert run.limit == 192
    run.feed("x" * 99, ended=False)
    assert run.limit == 1200
    assert run_of(asked=7).limit == 7
    short = run_of(asked=7000, positions=100)
    assert short.limit == short.room == 100 - short.prompt.size  # type: ignore[operator]


@given(texts=st.lists(st.integers(0, 50), max_size=20))
def test_the_ceiling_never_stops_a_text_that_goes_on(texts: list[int]) -> None:
    run = run_of(positions=20_000)
    for count in texts:
        run.feed("x" * count, ended=False)
        assert len(run.prompt.trailing) < run.limit


def test_a_slot_makes_no_frame_past_its_ceiling() -> None:
    run = run_of(asked=2)
    run.feed("", ended=True)
    assert run.steppable
    run.launched = 2
    assert not run.steppable


def test_a_memo_forgets_what_was_used_longest_ago() -> None:
    memo: Memo[str] = Memo(100)
    memo.put("a", "A", 40)
    memo.put("b", "B", 40)
    assert memo.get("a") == "A"
    memo.put("c", "C", 40)
    assert (memo.get("a"), memo.get("b"), memo.get("c")) == ("A", None, "C")
    assert (memo.bytes, len(memo)) == (80, 2)
    memo.put("c", "D", 60)
    assert (memo.get("c"), memo.bytes) == ("D", 100)
    memo.put("e", "E", 101)
    assert (memo.get("e"), memo.bytes) == (None, 100)
    memo.clear()
    assert (memo.get("a"), memo.bytes, len(memo)) == (None, 0, 0)


def test_codes_are_brought_over_whatever_the_ring_holds() -> None:
    """Two slots run round a ring of few frames many times; the codec has a ring of its own."""
    here, there = (
        small.decoder("small", slots=2, frames=(1, 2, 3)),
        small.decoder("small", slots=2, frames=(1, 2, 3)),
    )
    ring = torch.zeros(3, KEPT, 16, dtype=torch.int32)
    direct = Sound(here, ring, Memo(0))
    apart = Sound(there, ring, Memo(0))
    apart._mirror = torch.zeros_like(ring)  # as if the CPU were two devices
    codes = [small.codes(seed, 30) for seed in (1, 2)]
    for sound in (direct, apart):
        sound.warm_up()
        for slot in (0, 1):
            sound.begin(slot)
    at = 0
    for frames in (1, 3, 2, 3, 3, 3, 2, 3, 1, 3):
        for frame in range(at, at + frames):
            for slot in (0, 1):
                ring[slot, frame % KEPT] = codes[slot][frame].int()
        apart._mirror[:, at % KEPT] = -1
        sounds = [sound.launch([1, 0], [at, at], frames, Now()).result() for sound in (direct, apart)]
        assert np.array_equal(*sounds)
        assert sounds[0].shape == (2, frames * here.frame_samples)
        at += frames


class Now:
    """Work that is done."""

    def wait_on(self, stream: object) -> None: ...


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "model"),
        ({"model": "m", "slot": 3}, "slot"),
        ({"model": "m", "slots": 0}, "slots is 0"),
        ({"model": "m", "positions": 10}, "positions"),
        ({"model": "m", "dtype": "int8"}, "int8"),
        ({"model": "m", "decode_frames": [2, 4]}, "decode_frames"),
        ({"model": "m", "decode_frames": [1, 4, 2]}, "decode_frames"),
        ({"model": "m", "decode_frames": []}, "decode_frames"),
        ({"model": "m", "prefix_cache_mb": -1}, "prefix_cache_mb"),
    ],
)
def test_bad_options_are_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(DuplexError, match=words) as caught:
        read_options(given)
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_a_device_that_is_not_there_is_refused() -> None:
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("auto").type in ("cpu", "cuda")
    for name in ("cuda:99", "abacus", "mps:4"):
        with pytest.raises(DuplexError, match="there is no device") as caught:
            find_device(name, "codec_device")
        assert (caught.value.code, caught.value.param) == (ErrorCode.BAD_CONFIG, "codec_device")


def test_a_decode_larger_than_what_is_kept_of_a_slot_is_a_bad_option(tmp_path: Path) -> None:
    """It failed in the codec, or was never made."""
    folder = write_tiny_checkpoint(tmp_path / "tts")
    for most in (65, 72, 128):
        with pytest.raises(DuplexError, match="at most 64") as caught:
            load({"model": str(folder), "device": "cpu", "decode_frames": [1, most]})
        assert (caught.value.code, caught.value.param) == (ErrorCode.BAD_CONFIG, "decode_frames")


def test_recordings_take_no_stream_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps what it has freed on a stream for that stream: with one a recording, a GPU's memory would
    be held as often as there are streams."""
    made: list[torch.device] = []
    for module in (recordings_module, sound_module):
        monkeypatch.setattr(module, "new_stream", lambda device: made.append(device))
    model = load(
        {
            "model": str(write_tiny_checkpoint(tmp_path / "tts", "base")),
            "device": "cpu",
            "slots": 1,
            "positions": 64,
        }
    )
    before = len(made)
    assert before
    for pitch in (0.05, 0.06, 0.07):
        wave = np.sin(np.arange(24_000) * pitch).astype("<f4")
        asked = EncodeReference(samples=wave.tobytes(), sample_rate=24_000, codes=True)
        model.call("encode_reference", msgspec.msgpack.encode(asked))
    assert len(made) == before
