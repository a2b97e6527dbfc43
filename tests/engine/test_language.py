"""What every language engine promises, without one: limits, whole characters, what sessions may keep."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.adapters.engine import vllm_life
from duplex.adapters.engine.characters import Characters
from duplex.adapters.engine.language import (
    ChatPrompt,
    EmbedsPrompt,
    EngineInfo,
    MediaItem,
    MediaPrompt,
    Prompt,
    Sampling,
    TokenPrompt,
    check,
    length_of,
)
from duplex.adapters.engine.language_figures import Totals
from duplex.adapters.engine.settings import EngineSettings
from duplex.adapters.engine.vllm_engine import VllmEngine
from duplex.adapters.engine.vllm_parking import Parking
from duplex.adapters.engine.vllm_settings import VllmSettings, check_names, prepare_environment
from duplex.adapters.engine.vllm_stats import Stats
from duplex.core.errors import DuplexError, ErrorCode

INFO = EngineInfo(
    model="tiny", prompts=("tokens", "embeds", "media"), context_tokens=16, vocabulary=100, hidden_size=4
)


def item(tokens: int, shape: tuple[int, ...] | None = None) -> MediaItem:
    return MediaItem(key="a", data=np.zeros(shape or (tokens, 4), np.float32), tokens=tokens)


# --- prompts ----------------------------------------------------------------------------------------


def test_a_prompt_is_as_long_as_the_decoder_sees_it() -> None:
    assert length_of(TokenPrompt(ids=(1, 2, 3))) == 3
    assert length_of(EmbedsPrompt(embeds=np.zeros((7, 4)))) == 7
    assert length_of(MediaPrompt(ids=(1, 9, 9, 2), items=(item(5), item(3)))) == 4 - 2 + 5 + 3
    assert length_of(ChatPrompt(messages=({"role": "user", "content": "?"},))) is None


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        (TokenPrompt(ids=tuple(range(16))), ErrorCode.INPUT_OVERFLOW),
        (MediaPrompt(ids=(1, 2), items=(item(15),)), ErrorCode.INPUT_OVERFLOW),
        (EmbedsPrompt(embeds=np.zeros((16, 4))), ErrorCode.INPUT_OVERFLOW),
        (TokenPrompt(ids=()), ErrorCode.COMMIT_EMPTY),
        (TokenPrompt(ids=(1, 100)), ErrorCode.INVALID_VALUE),
        (TokenPrompt(ids=(-1,)), ErrorCode.INVALID_VALUE),
        (EmbedsPrompt(embeds=np.zeros((3, 5))), ErrorCode.INVALID_VALUE),
        (MediaPrompt(ids=(1,), items=(item(3, (4, 4)),)), ErrorCode.INVALID_VALUE),
        (MediaPrompt(ids=(1,), items=(item(3, (3, 8)),)), ErrorCode.INVALID_VALUE),
        (ChatPrompt(messages=({"role": "user", "content": "?"},)), ErrorCode.UNSUPPORTED_MODALITY),
    ],
)
def test_a_prompt_that_cannot_be_is_refused_by_name(prompt: Prompt, code: ErrorCode) -> None:
    with pytest.raises(DuplexError) as refused:
        check(prompt, INFO)
    assert refused.value.code is code
    assert not refused.value.fatal


def test_a_prompt_that_leaves_room_for_one_token_is_taken() -> None:
    assert check(TokenPrompt(ids=tuple(range(15))), INFO) == 15


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"temperature": -0.1},
        {"top_p": 0.0},
        {"top_k": -1},
        {"repetition_penalty": 0.0},
        {"seed": 2**63},
        {"seed": -(2**63) - 1},
    ],
)
def test_sampling_out_of_range_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(DuplexError) as refused:
        Sampling(**{"max_tokens": 8, **fields})
    assert refused.value.param == next(iter(fields))


# --- characters -------------------------------------------------------------------------------------


class Bytes:
    """A tokenizer whose tokens are runs of bytes; id -1 is a special token."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return b"".join(self.pieces[id] for id in token_ids if id >= 0).decode(errors="replace")


@st.composite
def cut(draw: st.DrawFn, source: st.SearchStrategy[bytes]) -> list[bytes]:
    """Bytes in pieces of one to five."""
    whole = draw(source)
    pieces = []
    while whole:
        size = draw(st.integers(1, 5))
        pieces.append(whole[:size])
        whole = whole[size:]
    return pieces


@given(
    cut(st.text(st.characters(codec="utf-8", exclude_characters="\N{REPLACEMENT CHARACTER}")).map(str.encode))
)
def test_text_comes_in_whole_characters_and_all_of_it(pieces: list[bytes]) -> None:
    characters = Characters(Bytes(pieces))
    whole = b"".join(pieces).decode()
    told = ""
    for id in range(len(pieces)):
        told += characters.feed([id])
        assert told == b"".join(pieces[: id + 1]).decode(errors="ignore"), "nothing waits but a piece"
    assert told == whole


@given(cut(st.binary(max_size=30)))
def test_bytes_that_are_no_text_are_told_too(pieces: list[bytes]) -> None:
    characters = Characters(Bytes(pieces))
    told = ""
    for id in range(len(pieces)):
        told += characters.feed([id])
        seen = b"".join(pieces[: id + 1]).decode(errors="replace")
        assert told == seen.rstrip("\N{REPLACEMENT CHARACTER}")


def test_bytes_that_are_never_text_do_not_pile_up() -> None:
    characters = Characters(Bytes([b"\xff", b"a"]))
    assert "".join(characters.feed([0]) for _ in range(320)) == "\N{REPLACEMENT CHARACTER}" * 320
    assert characters.feed([1]) == "a"


def test_special_tokens_have_no_text() -> None:
    characters = Characters(Bytes([b"a", b"b"]))
    assert characters.feed([0, -1, -1, 1, -1]) == "ab"


def test_a_piece_that_never_became_a_character_is_dropped_at_the_end() -> None:
    characters = Characters(Bytes(["é".encode() + "日".encode()[:2]]))
    assert characters.feed([0]) == "é"


def test_without_a_tokenizer_there_is_no_text() -> None:
    characters = Characters(None)
    assert characters.feed([1, 2]) == ""


# --- parking ----------------------------------------------------------------------------------------


class Guest:
    def __init__(self, tokens: int = 0, resting: bool = True) -> None:
        self.tokens = tokens
        self.resting = resting
        self.gone = 0

    def leave(self) -> None:
        self.gone += 1


def test_the_session_that_rested_longest_makes_room() -> None:
    parking = Parking(0.5)
    parking.opened(slots=4, tokens=1000)
    first, second, third = Guest(), Guest(), Guest()
    assert parking.enter(first, 10)
    assert parking.enter(second, 10)
    assert parking.enter(first, 20)
    assert parking.enter(third, 10)
    assert (first.gone, second.gone, len(parking)) == (0, 1, 2)


def test_sessions_may_hold_no_more_of_the_cache_than_their_share() -> None:
    parking = Parking(0.5)
    parking.opened(slots=100, tokens=1000)
    large, small = Guest(tokens=300), Guest(tokens=10)
    assert parking.enter(large, 300)
    assert parking.enter(small, 200), "just enough"
    assert not large.gone
    assert parking.enter(small, 201)
    assert large.gone == 1
    assert not parking.enter(large, 501), "more than there is"


def test_a_session_in_its_turn_does_not_have_to_leave() -> None:
    parking = Parking(0.5)
    parking.opened(slots=2, tokens=1000)
    busy, other = Guest(resting=False), Guest()
    assert parking.enter(busy, 10)
    assert not parking.enter(other, 10)
    assert (busy.gone, len(parking)) == (0, 1)
    parking.left(busy)
    assert parking.enter(other, 10)


def test_nobody_parks_where_there_is_no_slot_to_spare() -> None:
    parking = Parking(0.5)
    parking.opened(slots=1, tokens=1000)
    assert not parking.enter(Guest(), 10)


# --- settings and figures ---------------------------------------------------------------------------


def test_an_unknown_engine_option_is_refused_by_name_with_a_guess() -> None:
    with pytest.raises(DuplexError) as refused:
        check_names({"max_model_len": 1, "tensor_paralel_size": 2}, ["max_model_len", "tensor_parallel_size"])
    assert refused.value.code is ErrorCode.BAD_CONFIG
    assert refused.value.param == "engine.tensor_paralel_size"
    assert "'tensor_parallel_size'" in refused.value.message


def test_the_share_of_parked_sessions_is_a_share() -> None:
    with pytest.raises(DuplexError) as refused:
        VllmSettings(model="m", parked=1.5)
    assert refused.value.param == "parked"


def test_the_page_on_operations_lists_every_metric() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
    table = set(re.findall(r"^\| `duplex_(language_\w+)` \| (\w+) \|", page, re.MULTILINE))
    told = VllmEngine(VllmSettings(model="m")).figures()
    assert table == {(f"{one.name}_total" if one.kind == "counter" else one.name, one.kind) for one in told}


def test_an_engine_without_vllm_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DuplexError, match=r"duplex-gateway\[vllm\].*duplex-gateway\[cpu-engine\]") as refused:
        prepare_environment()
    assert refused.value.code is ErrorCode.BAD_CONFIG


async def test_an_engine_that_is_not_started_is_down() -> None:
    engine = VllmEngine(VllmSettings(model="m"), name="tiny")
    assert (engine.healthy, engine.fault) == (False, "tiny is not started")
    with pytest.raises(DuplexError) as down:
        await anext(engine.generate(TokenPrompt(ids=(1,)), Sampling(max_tokens=1)))
    assert (down.value.code, down.value.message) == (ErrorCode.ENGINE_DOWN, "tiny is not started")
    await engine.stop()


@pytest.mark.parametrize("late", [False, True])
async def test_an_engine_that_nobody_waits_for_any_more_is_ended_once_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    loading, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def load(settings: VllmSettings, stats: Stats) -> Any:
        loading.set()
        go_on.wait()
        return SimpleNamespace(shutdown=ended.set)

    monkeypatch.setattr(vllm_life, "prepare_environment", lambda start_timeout_s: None)
    monkeypatch.setattr(vllm_life, "_load", load)
    life = EngineSettings(start_timeout_s=0.01 if late else 600)
    engine = VllmEngine(VllmSettings(model="m", life=life), name="tiny")
    starting = asyncio.create_task(engine.start())
    assert await asyncio.to_thread(loading.wait, 60)
    if late:
        with pytest.raises(DuplexError, match=r"tiny was not ready after 0.01 s") as refused:
            await starting
        assert refused.value.code is ErrorCode.ENGINE_DOWN
    else:
        starting.cancel()
        await asyncio.wait({starting})
        assert starting.cancelled()
    go_on.set()
    assert await asyncio.to_thread(ended.wait, 60)
    assert not engine.healthy


def test_figures_of_all_engines_are_summed() -> None:
    totals = Totals()
    stats = Stats(totals)
    for engine in (0, 1):
        told = SimpleNamespace(
            num_running_reqs=2 + engine,
            num_waiting_reqs=1,
            kv_cache_usage=0.25 * (engine + 1),
            prefix_cache_stats=SimpleNamespace(queries=100, hits=40),
        )
        stats.take(engine, told)
    assert (stats.running, stats.waiting, stats.cache_usage) == (5, 2, 0.5)
    assert (totals.cache_lookup_tokens, totals.cache_found_tokens) == (200, 80)
