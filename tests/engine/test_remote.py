"""The remote engine against a real HTTP server: what it asks, what it makes of answers, how it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("httpx", reason="needs httpx: the extra remote")

from engine_bench import until
from fake_server import KEY, FakeServer, event, free_port, served

from duplex.adapters.engine.language import (
    ChatPrompt,
    EmbedsPrompt,
    LanguageEngine,
    Sampling,
    TokenDelta,
    TokenPrompt,
)
from duplex.adapters.engine.remote import RemoteEngine, RemoteSettings
from duplex.core.errors import DuplexError, ErrorCode

QUESTION = ChatPrompt(messages=({"role": "user", "content": "Who is there?"},))
SAMPLING = Sampling(max_tokens=16)


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with served(FakeServer()) as server:
        yield server


@pytest.fixture
async def engine(server: FakeServer) -> AsyncIterator[RemoteEngine]:
    engine = RemoteEngine(RemoteSettings(url=server.url))
    await engine.start()
    yield engine
    await engine.stop()


async def answer(
    engine: RemoteEngine, prompt: Any = QUESTION, sampling: Sampling = SAMPLING
) -> list[TokenDelta]:
    return [delta async for delta in engine.generate(prompt, sampling)]


def text_of(deltas: list[TokenDelta]) -> str:
    return "".join(delta.text for delta in deltas)


async def refusal(engine: RemoteEngine, prompt: Any = QUESTION) -> DuplexError:
    with pytest.raises(DuplexError) as refused:
        await answer(engine, prompt)
    return refused.value


# --- answers ----------------------------------------------------------------------------------------


async def test_it_says_what_the_server_has(engine: RemoteEngine) -> None:
    assert isinstance(engine, LanguageEngine)
    assert (engine.info.model, engine.info.context_tokens) == ("tiny", 64)
    assert engine.info.prompts == ("chat", "tokens")
    assert (engine.healthy, engine.fault) == (True, None)
    with pytest.raises(DuplexError, match="no sessions"):
        engine.session()


async def test_a_chat_comes_piece_by_piece(engine: RemoteEngine, server: FakeServer) -> None:
    deltas = await answer(engine)
    assert [delta.text for delta in deltas] == ["Hello", ", ", "world", ".", ""]
    assert [delta.finish for delta in deltas] == [None] * 4 + ["stop"]
    assert deltas[-1].prompt_tokens == 7
    ((path, body),) = server.asked
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "tiny",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 16,
        "temperature": 0.0,
        "top_p": 1.0,
        "messages": [{"role": "user", "content": "Who is there?"}],
    }


async def test_token_ids_go_to_completions_and_come_back_where_the_server_tells_them(
    server: FakeServer,
) -> None:
    server.ids = [11, 12, 13, 14]
    server.finish = "length"
    engine = RemoteEngine(RemoteSettings(url=server.url, extra={"return_token_ids": True}))
    await engine.start()
    sampling = Sampling(
        max_tokens=100, temperature=0.5, top_p=0.9, top_k=5, repetition_penalty=1.1, seed=3, stop_ids=(2,)
    )
    deltas = await answer(engine, TokenPrompt(ids=(5, 6, 7)), sampling)
    assert [id for delta in deltas for id in delta.ids] == [11, 12, 13, 14]
    assert deltas[-1].finish == "length"
    ((path, body),) = server.asked
    assert path == "/v1/completions"
    assert body["prompt"] == [5, 6, 7]
    assert body["max_tokens"] == 64 - 3, "what the context has room for"
    assert body["return_token_ids"] is True
    assert {name: body[name] for name in ("temperature", "top_p", "top_k", "repetition_penalty", "seed")} == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "repetition_penalty": 1.1, "seed": 3
    }  # fmt: skip
    assert body["stop_token_ids"] == [2]
    await engine.stop()


async def test_text_is_whole_characters_however_it_is_cut(engine: RemoteEngine, server: FakeServer) -> None:
    said = "a\u2028b\u0085c 日本 🦊"
    whole = event({"choices": [{"delta": {"content": said}, "finish_reason": "stop"}]})
    halves = b"".join(
        b'data: {"choices": [{"delta": {"content": "\\u%s"}}]}\r\n' % half for half in (b"d83e", b"dd8a")
    )
    server.raw = b": a comment\n" + halves + whole + b"data: [DONE]"
    deltas = await answer(engine)
    assert [delta.text for delta in deltas] == ["🦊", said, ""]


async def test_a_server_that_cannot_stream_is_understood(engine: RemoteEngine, server: FakeServer) -> None:
    server.status = 200
    original = server._answer

    async def whole(request: Any, piece_of: Any) -> Any:
        from starlette.responses import JSONResponse

        await original(request, piece_of)
        message = {"role": "assistant", "content": "All at once."}
        return JSONResponse({"choices": [{"message": message, "finish_reason": "stop"}]})

    server._answer = whole  # type: ignore[method-assign]
    assert text_of(await answer(engine)) == "All at once."


async def test_many_answers_at_a_time(engine: RemoteEngine) -> None:
    answers = await asyncio.gather(*[answer(engine) for _ in range(64)])
    assert {text_of(deltas) for deltas in answers} == {"Hello, world."}


async def test_what_it_counts(engine: RemoteEngine, server: FakeServer) -> None:
    await answer(engine)
    server.status = 500
    await refusal(engine)
    figures = {figure.name: figure.value for figure in engine.figures()}
    wanted = {
        "up": 1,
        "active": 0,
        "requests": 2,
        "failed": 1,
        "aborted": 0,
        "output_tokens": 4,
        "prompt_tokens": 7,
    }
    assert {name: figures[f"language_{name}"] for name in wanted} == wanted


# --- aborts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["closed", "cancelled"])
async def test_an_answer_that_nobody_wants_closes_its_connection(
    engine: RemoteEngine, server: FakeServer, way: str
) -> None:
    server.hold = True
    if way == "closed":
        deltas = engine.generate(QUESTION, SAMPLING)
        assert (await anext(deltas)).text == "Hello"
        await deltas.aclose()
    else:
        begun = asyncio.Event()

        async def listen() -> None:
            async for _ in engine.generate(QUESTION, SAMPLING):
                begun.set()

        task = asyncio.create_task(listen())
        await begun.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
    await server.gone.wait()
    aborted = next(figure for figure in engine.figures() if figure.name == "language_aborted")
    assert aborted.value == 1
    server.hold = False
    assert text_of(await answer(engine)) == "Hello, world."


# --- faults -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "code", "words"),
    [
        (
            500,
            {"error": {"message": "out of memory"}},
            ErrorCode.ADAPTER_FAILED,
            "failed (500): out of memory",
        ),
        (503, "nobody home", ErrorCode.ADAPTER_FAILED, "failed (503)"),
        (429, {}, ErrorCode.ADAPTER_FAILED, "is busy (429)"),
        (404, {}, ErrorCode.ADAPTER_FAILED, "does not know the path or the model 'tiny' (404)"),
        (400, {"message": "bad role"}, ErrorCode.INVALID_VALUE, "refused the prompt (400): bad role"),
        (
            400,
            {"error": {"message": "This model's maximum context length is 64 tokens."}},
            ErrorCode.INPUT_OVERFLOW,
            "maximum context length",
        ),
        (302, "", ErrorCode.ADAPTER_FAILED, "refused the request (302)"),
    ],
)
async def test_a_refusal_has_a_name(
    engine: RemoteEngine, server: FakeServer, status: int, body: Any, code: ErrorCode, words: str
) -> None:
    server.status, server.body = status, body
    error = await refusal(engine)
    assert error.code is code
    assert words in error.message
    assert not error.fatal
    server.status = 200
    assert text_of(await answer(engine)) == "Hello, world.", "the next one is answered"


async def test_a_key_that_is_refused_is_in_no_message(engine: RemoteEngine, server: FakeServer) -> None:
    server.key = "another"
    error = await refusal(engine)
    assert (error.code, "refused the key (401)" in error.message) == (ErrorCode.ADAPTER_FAILED, True)
    assert KEY not in str(error)
    settings = RemoteSettings(url=server.url, api_key=KEY)
    assert KEY not in repr(settings)
    with pytest.raises(DuplexError, match="refused the key") as refused:
        await RemoteEngine(settings).start()
    assert (refused.value.code, refused.value.param) == (ErrorCode.BAD_CONFIG, "api_key")
    assert KEY not in str(refused.value)
    server.key = KEY
    right = RemoteEngine(settings)
    await right.start()
    assert text_of(await answer(right)) == "Hello, world."
    await right.stop()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (event({"choices": [{"delta": {"content": "Hel"}}]}), "ended the answer early"),
        (b"", "ended the answer early"),
        (b"data: {not json}\n\n", "sent what is no completion"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "sent what is no completion"),
        (event({"error": {"message": "CUDA error"}}), "reported an error: CUDA error"),
        (b"data: " + b"x" * 2_000_000, "more than 1 MiB"),
    ],
)
async def test_what_is_no_answer_has_a_name(
    engine: RemoteEngine, server: FakeServer, raw: bytes, words: str
) -> None:
    server.raw = raw
    error = await refusal(engine)
    assert error.code is ErrorCode.ADAPTER_FAILED
    assert words in error.message


async def test_a_server_that_falls_silent_is_given_up(server: FakeServer) -> None:
    server.hold = True
    engine = RemoteEngine(RemoteSettings(url=server.url, silent_s=0.3))
    await engine.start()
    error = await refusal(engine)
    assert (error.code, "said nothing for 0.3 s" in error.message) == (ErrorCode.ADAPTER_FAILED, True)
    await server.gone.wait()
    await engine.stop()


def delta(**fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "finish_reason": None, "delta": fields}]})


@pytest.mark.parametrize(
    "piece",
    [
        b": ping\n\n",
        delta(content=""),
        delta(role="assistant", content=None),
        event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 0}}),
        event({"choices": [{"index": 0, "finish_reason": "stop", "delta": {}}]}),
    ],
    ids=["comments", "empty", "role", "usage", "finish"],
)
async def test_a_server_that_is_there_but_tells_nothing_is_given_up(server: FakeServer, piece: bytes) -> None:
    server.trickle = piece
    engine = RemoteEngine(RemoteSettings(url=server.url, stalled_s=0.2))
    await engine.start()
    async with asyncio.timeout(20):
        error = await refusal(engine)
        assert error.code is ErrorCode.ADAPTER_FAILED
        assert "told nothing for 0.2 s" in error.message
        await server.gone.wait()
    await engine.stop()


async def test_thoughts_are_no_stall(server: FakeServer) -> None:
    """They come for longer than `stalled_s`, and end at what may be written."""
    server.trickle = delta(reasoning_content="Hm, let me think about that. ")
    engine = RemoteEngine(RemoteSettings(url=server.url, stalled_s=1.0))
    await engine.start()
    async with asyncio.timeout(60):
        (last,) = await answer(engine, sampling=Sampling(max_tokens=64))
    assert (last.text, last.finish) == ("", "length")
    await engine.stop()


async def test_the_time_of_a_slow_reader_is_no_stall(server: FakeServer) -> None:
    server.pieces = ["word"] * 3
    engine = RemoteEngine(RemoteSettings(url=server.url, stalled_s=1.0))
    await engine.start()
    text = ""
    async for piece in engine.generate(QUESTION, SAMPLING):
        text += piece.text
        await asyncio.sleep(0.5)
    assert text == "word" * 3
    await engine.stop()


async def test_the_status_of_an_error_that_never_ends_is_told(server: FakeServer) -> None:
    server.trickle, server.status = b"x", 500
    engine = RemoteEngine(RemoteSettings(url=server.url, silent_s=0.2))
    await engine.start()
    async with asyncio.timeout(20):
        error = await refusal(engine)
        await server.gone.wait()
    assert (error.code, "failed (500)" in error.message) == (ErrorCode.ADAPTER_FAILED, True)
    await engine.stop()


async def test_a_server_that_ignores_max_tokens_is_stopped(engine: RemoteEngine, server: FakeServer) -> None:
    server.trickle = delta(content="word " * 50) * 20
    async with asyncio.timeout(20):
        deltas = await answer(engine, sampling=Sampling(max_tokens=8))
        await server.gone.wait()
    assert deltas[-1].finish == "length"
    assert text_of(deltas) == ("word " * 400)[: 8 * 64 + 1024]


async def test_token_ids_are_counted_where_a_server_tells_them(
    engine: RemoteEngine, server: FakeServer
) -> None:
    choice = {"index": 0, "finish_reason": None, "delta": {"content": "a"}, "token_ids": [5]}
    server.trickle = event({"choices": [choice]})
    async with asyncio.timeout(20):
        deltas = await answer(engine, sampling=Sampling(max_tokens=8))
        await server.gone.wait()
    assert [i for d in deltas for i in d.ids] == [5] * 8
    assert deltas[-1].finish == "length"


async def test_more_tokens_that_the_operator_asks_for_are_not_cut(server: FakeServer) -> None:
    server.pieces = ["word " * 1000]
    engine = RemoteEngine(RemoteSettings(url=server.url, extra={"max_tokens": 4000}))
    await engine.start()
    deltas = await answer(engine, sampling=Sampling(max_tokens=8))
    assert (deltas[-1].finish, len(text_of(deltas))) == ("stop", 5000)
    await engine.stop()


async def test_a_whole_answer_that_is_too_large_is_refused(engine: RemoteEngine, server: FakeServer) -> None:
    server.whole = {"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]}
    assert text_of(await answer(engine)) == "Hello."
    server.whole["choices"][0]["message"]["content"] = "x" * (17 << 20)
    error = await refusal(engine)
    assert (error.code, "more than 16 MiB" in error.message) == (ErrorCode.ADAPTER_FAILED, True)


async def test_a_connection_that_breaks_has_a_name() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/models" in head:
            writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 26\r\n\r\n{"data": [{"id": "tiny"}]}')
        else:
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 999\r\n\r\ndata: "
            )
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(close, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        engine = RemoteEngine(RemoteSettings(url=f"http://127.0.0.1:{port}/v1"))
        await engine.start()
        error = await refusal(engine)
        assert (error.code, "broke the connection" in error.message) == (ErrorCode.ADAPTER_FAILED, True)
        await engine.stop()


async def test_prompts_that_cannot_be_are_refused_before_the_server_sees_them(
    engine: RemoteEngine, server: FakeServer
) -> None:
    assert (await refusal(engine, TokenPrompt(ids=(1,) * 64))).code is ErrorCode.INPUT_OVERFLOW
    assert (await refusal(engine, ChatPrompt(messages=()))).code is ErrorCode.COMMIT_EMPTY
    assert (await refusal(engine, EmbedsPrompt(embeds=None))).code is ErrorCode.UNSUPPORTED_MODALITY
    assert server.asked == []


# --- being there ------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_an_error_at_the_start() -> None:
    engine = RemoteEngine(RemoteSettings(url=f"http://127.0.0.1:{free_port()}/v1"))
    with pytest.raises(DuplexError, match="cannot be reached: ConnectError") as refused:
        await engine.start()
    assert refused.value.code is ErrorCode.ENGINE_DOWN
    assert not engine.healthy


async def test_a_server_that_goes_and_comes_back() -> None:
    server = FakeServer()
    port = free_port()
    engine = RemoteEngine(RemoteSettings(url=f"http://127.0.0.1:{port}/v1", required=False, probe_s=0.02))
    await engine.start()
    assert not engine.healthy
    assert (await refusal(engine)).code is ErrorCode.ENGINE_DOWN
    async with served(server, port):
        await until(lambda: engine.healthy)
        assert text_of(await answer(engine)) == "Hello, world."
        server.models_status = 503
        await until(lambda: not engine.healthy)
        assert engine.fault is not None
        assert "is not ready (503)" in engine.fault
        server.models_status = 200
        await until(lambda: engine.healthy)
    await until(lambda: not engine.healthy)
    error = await refusal(engine)
    assert (error.code, "cannot be reached" in error.message) == (ErrorCode.ENGINE_DOWN, True)
    async with served(server, port):
        await until(lambda: engine.healthy)
        assert text_of(await answer(engine)) == "Hello, world."
    await engine.stop()
    assert not engine.healthy
    assert (await refusal(engine)).code is ErrorCode.ENGINE_DOWN


async def test_a_refused_connection_counts_at_once() -> None:
    async with served(FakeServer()) as server:
        engine = RemoteEngine(RemoteSettings(url=server.url, probe_s=600))
        await engine.start()
    assert engine.healthy, "nobody has looked since"
    assert (await refusal(engine)).code is ErrorCode.ENGINE_DOWN
    assert not engine.healthy
    await engine.stop()


@pytest.mark.parametrize(
    ("settings", "models", "param", "words"),
    [
        ({"model": "none"}, None, "model", "has no model 'none'; it has other, tiny"),
        ({}, {"data": []}, "model", "tells no models"),
    ],
)
async def test_a_model_that_the_server_does_not_have_is_refused_at_the_start(
    server: FakeServer, settings: dict[str, Any], models: Any, param: str, words: str
) -> None:
    server.models = models or server.models
    with pytest.raises(DuplexError, match=words) as refused:
        await RemoteEngine(RemoteSettings(url=server.url, **settings)).start()
    assert (refused.value.code, refused.value.param) == (ErrorCode.BAD_CONFIG, param)


@pytest.mark.parametrize(
    ("status", "models", "code", "words"),
    [
        (200, {"data": []}, ErrorCode.BAD_CONFIG, r"tells no models \(200\): name one"),
        (404, {}, ErrorCode.BAD_CONFIG, r"tells no models \(404\): name one"),
        (301, {}, ErrorCode.BAD_CONFIG, r"tells no models \(301\): name one"),
        (429, {}, ErrorCode.ENGINE_DOWN, r"is busy \(429\)"),
    ],
)
async def test_a_list_of_models_that_is_none_is_told_with_its_status(
    server: FakeServer, status: int, models: Any, code: ErrorCode, words: str
) -> None:
    server.models, server.models_status = models, status
    with pytest.raises(DuplexError, match=words) as refused:
        await RemoteEngine(RemoteSettings(url=server.url)).start()
    assert refused.value.code is code


async def test_a_busy_list_of_models_is_looked_at_again(server: FakeServer) -> None:
    server.models_status = 429
    engine = RemoteEngine(RemoteSettings(url=server.url, required=False, probe_s=0.02))
    await engine.start()
    assert not engine.healthy
    server.models_status = 200
    await until(lambda: engine.healthy)
    await engine.stop()


async def test_a_server_without_a_list_serves_the_model_that_is_named(server: FakeServer) -> None:
    server.models_status = 404
    engine = RemoteEngine(RemoteSettings(url=server.url, model="mine", context_tokens=32))
    await engine.start()
    assert (engine.info.model, engine.info.context_tokens) == ("mine", 32)
    assert text_of(await answer(engine)) == "Hello, world."
    await engine.stop()


@pytest.mark.parametrize(
    "url", ["ftp://host/v1", "host:8000", "http://", "http://[bad/v1", "http://host:99999/v1"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(DuplexError) as refused:
        RemoteSettings(url=url)
    assert (refused.value.code, refused.value.param) == (ErrorCode.BAD_CONFIG, "url")


@pytest.mark.parametrize("key", ["sk-é", "sk-a\n", "sk a", "sk\0"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_told(key: str) -> None:
    with pytest.raises(DuplexError) as refused:
        RemoteSettings(url="http://host/v1", api_key=key)
    assert (refused.value.code, refused.value.param) == (ErrorCode.BAD_CONFIG, "api_key")
    assert "sk" not in refused.value.message


async def test_a_list_of_models_that_never_ends_is_given_up() -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" ")
            await asyncio.sleep(0.02)
        writer.close()

    listener = await asyncio.start_server(trickle, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        engine = RemoteEngine(RemoteSettings(url=f"http://127.0.0.1:{port}/v1", connect_s=0.2))
        async with asyncio.timeout(20):
            with pytest.raises(DuplexError, match="cannot be reached") as refused:
                await engine.start()
        assert refused.value.code is ErrorCode.ENGINE_DOWN
