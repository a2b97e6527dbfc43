"""Texts that are longer than a slot has room for."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.adapters.qwen3_tts.utterances import LEAST_POSITIONS, Cutter, Piece, Utterances, frames_of, room
from duplex.core.errors import DuplexError

SENTENCE = "The keeper climbed the stairs, lit the lamp, and watched the ships go by. "
LIMIT = 600.0


def cut(text: str, limit: float = LIMIT, step: int | None = None) -> list[str]:
    """The utterances of a text that comes in pieces of `step` characters."""
    cutter = Cutter(limit)
    found = [""]
    step = step or max(1, len(text))
    pieces = [text[start : start + step] for start in range(0, len(text), step)]
    for piece in [*pieces, None]:
        if piece is None:
            cutter.end()
        else:
            cutter.put(piece)
        while (part := cutter.take()) is not None:
            found[-1] += part.text
            if part.last and not cutter.done:
                found.append("")
    assert cutter.done
    return found


@pytest.mark.parametrize("step", [1, 7, 100, None])
def test_a_long_text_is_cut_between_sentences(step: int | None) -> None:
    text = SENTENCE * 40
    found = cut(text, step=step)
    assert len(found) > 3
    assert "".join(found) == text
    for utterance in found[:-1]:
        assert utterance.endswith("go by. ")
        assert frames_of(utterance) <= LIMIT
        assert frames_of(utterance) > LIMIT / 2


def test_a_short_text_is_passed_on_as_it_comes() -> None:
    cutter = Cutter(LIMIT)
    for word in ("It ", "was ", "the be"):
        cutter.put(word)
        assert cutter.take() == Piece(word, False)
        assert cutter.take() is None
    cutter.end()
    assert cutter.take() == Piece("", True)
    assert cutter.done


@given(
    st.text(alphabet="ab .!?\n,9世界", max_size=600),
    st.floats(120, 700),
    st.integers(1, 50),
)
def test_no_character_is_lost_and_no_utterance_is_too_long(text: str, limit: float, step: int) -> None:
    found = cut(text, limit, step)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(frames_of(utterance) <= limit for utterance in found)


@pytest.mark.parametrize(
    "text",
    [
        "สวัสดีครับ",
        "नमस्ते दुनिया। ",
        "a☃☃☃",
        "مرحبا بالعالم ",
        "Привет, мир! ",
        "ÄÖÜß",
        "ＡＢＣ",
        "\u0958",
        "\U0001d160a",
        "e\u0301\u0301",
    ],
)
@pytest.mark.parametrize("positions", [256, 2048])
def test_scripts_with_many_tokens_a_character_fit_in_a_slot(text: str, positions: int) -> None:
    found = cut(text * 2000, room(positions))
    assert "".join(found) == text * 2000
    # a byte-level tokenizer without a merge makes a token of every byte, and there must be room to speak
    most = max(len(unicodedata.normalize("NFC", utterance).encode()) for utterance in found)
    assert most <= positions - 32


def test_instructions_take_their_tokens_room() -> None:
    assert room(2048, instructions="สวัสดี") == room(2048, instructions="a" * 18)
    assert room(2048, instructions="你好") == room(2048, instructions="ab")


def test_a_sentence_without_an_end_is_cut_all_the_same() -> None:
    for text in ("word " * 1000, "x" * 3000, "字" * 1000, "7" * 1000):
        found = cut(text)
        assert "".join(found) == text
        assert all(frames_of(utterance) <= LIMIT for utterance in found)


def test_instructions_that_took_all_room_were_called_a_recording() -> None:
    with pytest.raises(DuplexError, match="the instructions leave too few") as caught:
        room(512, instructions="a" * 500)
    assert caught.value.param == "instructions"
    assert room(LEAST_POSITIONS) > 0


def test_what_a_request_brings_takes_room() -> None:
    assert room(1000) > room(1000, instructions="slowly") > room(1000, reference_frames=200)
    with pytest.raises(DuplexError, match="too few") as caught:
        room(512, reference_frames=400, reference_text="words")
    assert caught.value.param == "ref_audio"


# --- as it comes --------------------------------------------------------------------------------------


class Tap:
    """A text that comes when the test says so."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[str | None] = asyncio.Queue()
        self.closed = False

    def put(self, *pieces: str | None) -> None:
        for piece in pieces:
            self.queue.put_nowait(piece)

    async def pieces(self) -> AsyncIterator[str]:
        try:
            while (piece := await self.queue.get()) is not None:
                yield piece
        finally:
            self.closed = True


async def test_a_text_that_is_there_is_known_to_be_complete() -> None:
    tap = Tap()
    tap.put("One two. ", "Three.", None)
    utterances = Utterances(tap.pieces(), LIMIT)
    assert await utterances.begin(whole=False) == Piece("One two. Three.", True)
    assert utterances.done
    assert await utterances.begin(whole=False) is None


async def test_an_open_text_begins_with_what_is_there() -> None:
    tap = Tap()
    tap.put("", "… ", "One", " two")
    utterances = Utterances(tap.pieces(), LIMIT)
    assert await utterances.begin(whole=False) == Piece("… One two", False)
    waiting = asyncio.ensure_future(utterances.more())
    await asyncio.sleep(0)
    tap.put(" three")
    assert await waiting == Piece(" three", False)
    tap.put(None)
    assert await utterances.more() == Piece("", True)
    assert await utterances.begin(whole=False) is None


async def test_a_whole_text_is_waited_for() -> None:
    tap = Tap()
    tap.put("One")
    utterances = Utterances(tap.pieces(), LIMIT)
    beginning = asyncio.ensure_future(utterances.begin(whole=True))
    for piece in (" two", " three"):
        await asyncio.sleep(0)
        assert not beginning.done()
        tap.put(piece)
    tap.put(None)
    assert await beginning == Piece("One two three", True)


@pytest.mark.parametrize("text", ["", " ", "…", "\n\n", "*** — !"])
async def test_a_text_without_words_is_no_utterance(text: str) -> None:
    tap = Tap()
    tap.put(text, None)
    utterances = Utterances(tap.pieces(), LIMIT)
    assert await utterances.begin(whole=False) is None


async def test_long_texts_come_as_several_utterances() -> None:
    tap = Tap()
    text = SENTENCE * 20
    tap.put(text, None)
    utterances = Utterances(tap.pieces(), LIMIT)
    found = []
    while (begun := await utterances.begin(whole=False)) is not None:
        assert begun.last
        found.append(begun.text)
    assert len(found) > 2
    assert "".join(found) == text


async def test_giving_up_waiting_loses_no_text_and_close_ends_the_wait() -> None:
    tap = Tap()
    tap.put("One")
    utterances = Utterances(tap.pieces(), LIMIT)
    await utterances.begin(whole=False)
    waiting = asyncio.ensure_future(utterances.more())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    tap.put(" two")
    assert await utterances.more() == Piece(" two", False)
    waiting = asyncio.ensure_future(utterances.more())
    await asyncio.sleep(0)
    waiting.cancel()
    await utterances.close()
    assert tap.closed


async def test_a_text_that_fails_fails_whoever_waits() -> None:
    async def broken() -> AsyncIterator[str]:
        yield "One"
        raise RuntimeError("lost")

    utterances = Utterances(broken(), LIMIT)
    with pytest.raises(RuntimeError, match="lost"):
        await utterances.begin(whole=True)
