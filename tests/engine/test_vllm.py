"""vLLM's engine core behind our interface: prompts, deltas, aborts, limits, sessions."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs vLLM: the extra vllm or cpu-engine")

import torch
from engine_bench import until
from vllm_tiny import (
    CONTEXT,
    SLOTS,
    answer,
    ids_of,
    sampling,
    text_of,
    tokens,
)

from duplex.adapters.engine.language import EmbedsPrompt, LanguageEngine, LanguageSession, TokenDelta
from duplex.adapters.engine.vllm_engine import VllmEngine
from duplex.core.errors import DuplexError, ErrorCode

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def engine(tiny_engine: VllmEngine) -> VllmEngine:
    return tiny_engine


@pytest.fixture
def model(tiny_model: Path) -> Path:
    return tiny_model


BEGINNING = (9, 41, 133, 77, 8, 250, 19, 301, 66, 5)


def figure(engine: VllmEngine, name: str) -> float:
    return next(figure.value for figure in engine.figures() if figure.name == f"language_{name}")


async def idle(engine: VllmEngine) -> None:
    """The engine has nothing left to do, as its own scheduler tells.

    It tells with each step that it takes: a short answer makes it take some.
    """
    await answer(engine, tokens(7), sampling(4))
    assert figure(engine, "running") <= 1
    assert figure(engine, "waiting") == 0


# --- answers ----------------------------------------------------------------------------------------


async def test_the_engine_says_what_it_is(engine: VllmEngine, model: Path) -> None:
    assert isinstance(engine, LanguageEngine)
    info = engine.info
    assert (info.model, info.context_tokens, info.vocabulary, info.hidden_size) == (
        str(model),
        CONTEXT,
        320,
        64,
    )
    assert set(info.prompts) == {"tokens", "embeds"}
    assert info.sessions
    assert (engine.healthy, engine.fault) == (True, None)
    assert isinstance(engine.session(), LanguageSession)


async def test_answers_come_token_by_token_and_equal_the_model_in_plain_torch(
    engine: VllmEngine, model: Path
) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    prompt = torch.tensor([BEGINNING])
    with torch.inference_mode():
        whole = reference.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=200,
            do_sample=False,
            eos_token_id=None,
        )
    deltas = await answer(engine, tokens(*BEGINNING), sampling(200))
    assert ids_of(deltas) == whole[0, len(BEGINNING) :].tolist()
    assert len(deltas) > 2, "not in one lump"
    assert [delta.finish for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]
    assert {delta.prompt_tokens for delta in deltas} == {len(BEGINNING)}


async def test_many_answers_at_a_time_are_each_their_own(engine: VllmEngine) -> None:
    prompts = [tokens(*BEGINNING, n) for n in range(3 * SLOTS)]
    alone = [ids_of(await answer(engine, prompt, sampling(16))) for prompt in prompts[:4]]
    together = await asyncio.gather(*[answer(engine, prompt, sampling(16)) for prompt in prompts])
    assert [ids_of(deltas) for deltas in together[:4]] == alone
    assert all(len(ids_of(deltas)) == 16 for deltas in together)


async def test_text_is_the_tokenizers_own_in_whole_characters(engine: VllmEngine) -> None:
    tokenizer = engine.up().tokenizer
    for seed in range(4):
        deltas = await answer(engine, tokens(*BEGINNING), sampling(60, temperature=1.5, seed=seed))
        whole = tokenizer.decode(ids_of(deltas), skip_special_tokens=True)
        broken = "\N{REPLACEMENT CHARACTER}"
        assert text_of(deltas).rstrip(broken) == whole.rstrip(broken)


async def test_a_seed_gives_the_same_draws_again(engine: VllmEngine) -> None:
    drawn = [
        ids_of(await answer(engine, tokens(5), sampling(24, temperature=1.0, seed=seed)))
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


async def test_seeded_prompts_that_are_read_in_pieces_do_not_end_the_engine(engine: VllmEngine) -> None:
    """Four prompts of 300 tokens, in steps of 512: a CPU cannot take back what the pieces draw."""
    drawing = sampling(12, temperature=1.0, seed=11)
    prompts = [tokens(*(id for n in range(60) for id in (start, 7, 60 + n, 9, 5))) for start in range(3, 7)]
    together = await asyncio.gather(*(answer(engine, prompt, drawing) for prompt in prompts))
    alone = [ids_of(await answer(engine, prompt, drawing)) for prompt in prompts]
    assert [ids_of(deltas) for deltas in together] == alone, "the pieces draw nothing"
    assert figure(engine, "restarts") == 0


async def test_the_token_that_stops_an_answer_is_told_and_has_no_text(engine: VllmEngine) -> None:
    free = ids_of(await answer(engine, tokens(*BEGINNING), sampling(24)))
    stop = next(id for n, id in enumerate(free) if n > 3 and id not in free[:n])
    at = free.index(stop)
    deltas = await answer(engine, tokens(*BEGINNING), sampling(24, stop_ids=(stop,)))
    assert ids_of(deltas) == free[: at + 1]
    assert deltas[-1].finish == "stop"
    tokenizer = engine.up().tokenizer
    broken = "\N{REPLACEMENT CHARACTER}"
    assert text_of(deltas) == tokenizer.decode(free[:at], skip_special_tokens=True).rstrip(broken)


async def test_embeddings_answer_as_their_tokens_do(engine: VllmEngine, model: Path) -> None:
    from safetensors.torch import load_file

    table = load_file(str(model / "model.safetensors"))["model.embed_tokens.weight"]
    prompt = EmbedsPrompt(embeds=table[torch.tensor(BEGINNING)].clone())
    assert ids_of(await answer(engine, prompt, sampling(12))) == ids_of(
        await answer(engine, tokens(*BEGINNING), sampling(12))
    )


async def test_an_answer_ends_where_the_context_does(engine: VllmEngine) -> None:
    long = tokens(*[11] * (CONTEXT - 6))
    deltas = await answer(engine, long, sampling(100))
    assert (len(ids_of(deltas)), deltas[-1].finish) == (6, "length")


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ((1,) * CONTEXT, ErrorCode.INPUT_OVERFLOW),
        ((), ErrorCode.COMMIT_EMPTY),
        ((320,), ErrorCode.INVALID_VALUE),
    ],
)
async def test_a_prompt_that_cannot_be_is_refused_and_harms_nobody(
    engine: VllmEngine, ids: tuple[int, ...], code: ErrorCode
) -> None:
    with pytest.raises(DuplexError) as refused:
        await answer(engine, tokens(*ids), sampling(4))
    assert refused.value.code is code
    assert len(ids_of(await answer(engine, tokens(5), sampling(4)))) == 4


# --- aborts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["closed", "cancelled"])
async def test_an_answer_that_nobody_wants_leaves_the_engine_within_a_step(
    engine: VllmEngine, way: str
) -> None:
    aborted = figure(engine, "aborted")
    if way == "closed":
        deltas = engine.generate(tokens(5), sampling(CONTEXT))
        await anext(deltas)
        await deltas.aclose()
    else:
        begun = asyncio.Event()

        async def listen() -> None:
            async for _ in engine.generate(tokens(5), sampling(CONTEXT)):
                begun.set()

        task = asyncio.create_task(listen())
        await begun.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert engine.up().engine.output_processor.get_num_unfinished_requests() == 0
    assert (figure(engine, "aborted"), figure(engine, "active")) == (aborted + 1, 0)
    await idle(engine)


async def test_an_answer_that_is_cancelled_before_it_began_leaves_nothing(engine: VllmEngine) -> None:
    for turns in range(6):
        task = asyncio.create_task(answer(engine, tokens(5), sampling(CONTEXT)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert engine.up().engine.output_processor.get_num_unfinished_requests() == 0
    await idle(engine)


# --- sessions ---------------------------------------------------------------------------------------


async def turn(session: LanguageSession, ids: tuple[int, ...], most: int) -> list[TokenDelta]:
    return [delta async for delta in session.turn(ids, sampling(most))]


async def test_turns_of_a_session_equal_one_prompt_with_all_of_it(engine: VllmEngine) -> None:
    session = engine.session()
    past: list[int] = []
    for ids, ahead in ((BEGINNING, ()), ((12, 13), (88, 3, 7)), ((200,), ()), ((), (61, 62))):
        if ahead:
            await session.append(ahead)
            past += ahead
        past += ids
        heard = ids_of(await turn(session, ids, 9))
        assert heard == ids_of(await answer(engine, tokens(*past), sampling(9)))
        past += heard
        assert (session.tokens, session.room) == (len(past), CONTEXT - len(past))
    assert figure(engine, "parked_sessions") == 1
    await session.close()
    assert figure(engine, "parked_sessions") == 0
    await idle(engine)


async def test_what_is_appended_is_read_ahead(engine: VllmEngine) -> None:
    session = engine.session()
    await session.append(BEGINNING)
    request = session._request
    assert request is not None
    await until(lambda: request._ahead == 0)  # the engine has answered to it, and that is not told
    assert request.sent == len(BEGINNING) - 1
    for id in (4, 5, 6):
        await session.append((id,))
    heard = ids_of(await turn(session, (), 5))
    assert session._request is request
    assert heard == ids_of(await answer(engine, tokens(*BEGINNING, 4, 5, 6), sampling(5)))
    await session.close()


async def test_no_session_outgrows_the_model(engine: VllmEngine) -> None:
    session = engine.session()
    while session.room > 55:
        assert (await turn(session, BEGINNING * 3, 25))[-1].finish == "length"
    for _ in range(20):
        with pytest.raises(DuplexError) as refused:
            await turn(session, BEGINNING * 6, 25)
        assert refused.value.code is ErrorCode.INPUT_OVERFLOW
    tokens_left = session.room
    with pytest.raises(DuplexError, match="leaves no room"):
        await session.append((1,) * tokens_left)
    assert session.room == tokens_left, "as it was"
    await session.append((1,) * (tokens_left - 1))
    assert len(ids_of(await turn(session, (), 25))) == 1, "the last that fits"
    assert session.room == 0
    with pytest.raises(DuplexError, match="leaves no room"):
        await turn(session, (), 1)
    await session.close()
    assert len(ids_of(await answer(engine, tokens(5), sampling(4)))) == 4, "the engine lives"
    assert engine.restarts == 0


async def test_a_turn_that_is_closed_early_keeps_what_was_heard(engine: VllmEngine) -> None:
    session = engine.session()
    heard: list[int] = []
    deltas = session.turn(BEGINNING, sampling(200))
    async for delta in deltas:
        heard += delta.ids
        if len(heard) >= 5:
            break
    await deltas.aclose()
    assert session.tokens == len(BEGINNING) + len(heard)
    assert engine.up().engine.output_processor.get_num_unfinished_requests() == 0
    again = ids_of(await turn(session, (33, 34), 8))
    assert again == ids_of(await answer(engine, tokens(*BEGINNING, *heard, 33, 34), sampling(8)))
    await session.close()


async def test_a_turn_may_be_left_at_its_last_token(engine: VllmEngine) -> None:
    session = engine.session()
    past: list[int] = []
    for ids in (BEGINNING, (33, 34)):
        deltas = session.turn(ids, sampling(7))
        past += ids
        async for delta in deltas:
            past += delta.ids
            if delta.finish is not None:
                break
        await deltas.aclose()
    assert figure(engine, "parked_sessions") == 1
    again = ids_of(await turn(session, (35,), 7))
    assert again == ids_of(await answer(engine, tokens(*past, 35), sampling(7)))
    await session.close()


async def test_more_sessions_than_slots_all_go_on(engine: VllmEngine) -> None:
    sessions = [engine.session() for _ in range(2 * SLOTS)]
    pasts = [[n + 5] * 9 for n in range(len(sessions))]
    for _ in range(2):
        heard = await asyncio.gather(
            *[turn(session, tuple(past[-9:]), 6) for session, past in zip(sessions, pasts, strict=True)]
        )
        for past, deltas in zip(pasts, heard, strict=True):
            past += ids_of(deltas)
        assert figure(engine, "parked_sessions") <= SLOTS // 2
        assert len(ids_of(await answer(engine, tokens(5), sampling(4)))) == 4, "parked ones starve nobody"
        for past, n in zip(pasts, range(len(sessions)), strict=True):
            past += [n + 50] * 9
    for session, past in zip(sessions, pasts, strict=True):
        assert session.tokens == len(past) - 9
        await session.close()
    assert engine.up().engine.output_processor.get_num_unfinished_requests() == 0


async def test_a_session_takes_one_turn_at_a_time_and_none_when_closed(engine: VllmEngine) -> None:
    session = engine.session()
    with pytest.raises(DuplexError) as refused:
        await turn(session, (), 4)
    assert refused.value.code is ErrorCode.COMMIT_EMPTY
    first = session.turn(BEGINNING, sampling(50))
    await anext(first)
    with pytest.raises(DuplexError, match="turn that is not over"):
        await turn(session, (1,), 4)
    await first.aclose()
    await session.close()
    with pytest.raises(DuplexError, match="closed"):
        await turn(session, (1,), 4)


@pytest.mark.parametrize("seed", range(2))
async def test_sessions_on_any_course_say_what_one_prompt_would(engine: VllmEngine, seed: int) -> None:
    """Side by side: turns to their end or not, text read ahead, places taken by others, full ones."""

    async def course(number: int) -> int:
        draw = random.Random(f"{seed} {number}")
        session = engine.session()
        past: list[int] = []
        turns = 0
        for _ in range(10):
            ids = [draw.randrange(3, 300) for _ in range(draw.choice((1, 2, 20, 60)))]
            if len(past) + len(ids) >= CONTEXT:
                with pytest.raises(DuplexError, match="leaves no room"):
                    await turn(session, tuple(ids), 1)
                continue
            past += ids
            if draw.random() < 0.3:
                await session.append(ids)
                continue
            most, leave_after = draw.randrange(1, 30), draw.choice((1, 5, 100))
            heard: list[int] = []
            deltas = session.turn(ids, sampling(most))
            async for delta in deltas:
                heard += delta.ids
                if len(heard) >= leave_after:
                    break
            await deltas.aclose()
            whole = ids_of(await answer(engine, tokens(*past), sampling(most)))
            assert heard == whole[: len(heard)]
            assert len(heard) == len(whole) or len(heard) >= leave_after
            past += heard
            turns += 1
            assert session.tokens == len(past)
        await session.close()
        return turns

    assert sum(await asyncio.gather(*[course(number) for number in range(12)])) > 60
    assert figure(engine, "parked_sessions") == 0
    assert engine.up().engine.output_processor.get_num_unfinished_requests() == 0
