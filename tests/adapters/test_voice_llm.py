"""Replies from a chat endpoint, against a small real server on the loopback address."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import httpx
import pytest

from duplex.adapters.embedded import llm
from duplex.adapters.embedded.llm import ChatReplies, messages
from duplex.adapters.embedded.replies import DEFAULT_INSTRUCTIONS, ReplyRequest
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import HistoryItem

REQUEST = ReplyRequest(history=(HistoryItem(role="user", text="How far is the moon?"),))


class Endpoint:
    """Answers every request with `handler`, and remembers what it was asked."""

    def __init__(self, handler: Callable[[Endpoint, asyncio.StreamWriter], Awaitable[None]]) -> None:
        self.handler = handler
        self.bodies: list[dict[str, object]] = []
        self.heads: list[str] = []
        self.url = ""
        self.gone = asyncio.Event()
        """The client has closed its stream."""
        self.go_on = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(
            next(line for line in head.lower().split("\r\n") if "content-length" in line).split(":")[1]
        )
        self.heads.append(head)
        self.bodies.append(json.loads(await reader.readexactly(length)))
        watcher = asyncio.ensure_future(reader.read())
        watcher.add_done_callback(lambda _: self.gone.set())
        try:
            await self.handler(self, writer)
            await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            watcher.cancel()
            writer.close()


@asynccontextmanager
async def endpoint(
    handler: Callable[[Endpoint, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[Endpoint]:
    server_side = Endpoint(handler)
    server = await asyncio.start_server(server_side.serve, "127.0.0.1", 0)
    server_side.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        yield server_side


def head(writer: asyncio.StreamWriter, status: str = "200 OK", kind: str = "text/event-stream") -> None:
    writer.write(f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode())


def event(content: str | None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": content}}]}).encode() + b"\n\n"


async def collect(url: str, **options: object) -> list[str]:
    replies = ChatReplies(url, **options)  # type: ignore[arg-type]
    await replies.start()
    try:
        return [piece async for piece in replies.reply(REQUEST)]
    finally:
        await replies.stop()


def refused(handler: Callable[[Endpoint, asyncio.StreamWriter], Awaitable[None]]) -> str:
    async def run() -> str:
        async with endpoint(handler) as server:
            with pytest.raises(DuplexError) as error:
                await collect(server.url)
            assert error.value.code is ErrorCode.ADAPTER_FAILED
            assert not error.value.fatal
            return error.value.message

    return asyncio.run(run())


def test_pieces_come_as_they_are_written() -> None:
    async def handler(server: Endpoint, writer: asyncio.StreamWriter) -> None:
        head(writer)
        writer.write(b": comment\n\n" + event(None) + event("About "))
        await writer.drain()
        await server.go_on.wait()
        writer.write(event("384,400 km.") + b"data: [DONE]\n\n" + event("not this"))

    async def run() -> None:
        async with endpoint(handler) as server:
            replies = ChatReplies(server.url, model="m", api_key="secret", max_tokens=7)
            await replies.start()
            pieces = []
            async with aclosing(replies.reply(REQUEST)) as reply:
                async for piece in reply:
                    pieces.append(piece)
                    server.go_on.set()  # only now may the server go on
            await replies.stop()
            assert pieces == ["About ", "384,400 km."]
            assert "POST /v1/chat/completions" in server.heads[0]
            assert "authorization: Bearer secret" in server.heads[0]
            body = server.bodies[0]
            assert (body["model"], body["stream"], body["max_tokens"]) == ("m", True, 7)
            assert body["messages"] == [
                {"role": "system", "content": DEFAULT_INSTRUCTIONS},
                {"role": "user", "content": "How far is the moon?"},
            ]

    asyncio.run(run())


def test_closing_the_reply_closes_the_stream() -> None:
    async def handler(server: Endpoint, writer: asyncio.StreamWriter) -> None:
        head(writer)
        writer.write(event("One. "))
        await writer.drain()
        await server.gone.wait()

    async def run() -> None:
        async with endpoint(handler) as server:
            replies = ChatReplies(server.url)
            await replies.start()
            reply = replies.reply(REQUEST)
            assert await anext(reply) == "One. "
            assert not server.gone.is_set()
            await reply.aclose()
            await asyncio.wait_for(server.gone.wait(), 10)
            await replies.stop()

    asyncio.run(run())


def test_cancelling_while_it_waits_closes_the_stream() -> None:
    async def handler(server: Endpoint, writer: asyncio.StreamWriter) -> None:
        server.go_on.set()
        await server.gone.wait()

    async def run() -> None:
        async with endpoint(handler) as server:
            task = asyncio.ensure_future(collect(server.url))
            await asyncio.wait_for(server.go_on.wait(), 10)
            task.cancel()
            await asyncio.wait_for(server.gone.wait(), 10)
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())


def test_fault_25_a_character_split_over_chunks_and_bytes_is_whole() -> None:
    async def handler(server: Endpoint, writer: asyncio.StreamWriter) -> None:
        head(writer)
        data = (
            b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n'
            b'data: {"choices":[{"delta":{"content":"\\ude00"}}]}\r\n\r\n'
        ) + 'data: {"choices":[{"delta":{"content":"é好"}}]}\n\n'.encode()
        for position in range(len(data)):
            writer.write(data[position : position + 1])
            await writer.drain()

    async def run() -> None:
        async with endpoint(handler) as server:
            assert "".join(await collect(server.url)) == "😀é好"

    asyncio.run(run())


def test_a_server_that_does_not_stream_is_read_whole() -> None:
    async def handler(server: Endpoint, writer: asyncio.StreamWriter) -> None:
        head(writer, kind="application/json")
        writer.write(json.dumps({"choices": [{"message": {"content": "Far."}}]}).encode())

    async def run() -> None:
        async with endpoint(handler) as server:
            assert await collect(server.url + "/chat/completions") == ["Far."]

    asyncio.run(run())


def test_a_reply_that_runs_on_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "MAX_REPLY", 1000)

    async def handler(server: Endpoint, writer: asyncio.StreamWriter) -> None:
        head(writer)
        while not server.gone.is_set():
            writer.write(event("on and on "))
            await writer.drain()
            await asyncio.sleep(0)

    async def run() -> None:
        async with endpoint(handler) as server:
            assert len("".join(await collect(server.url))) == 1000
            await asyncio.wait_for(server.gone.wait(), 10)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        ("401 Unauthorized", "", "refused the key"),
        ("404 Not Found", "", "does not know the path or the model 'default'"),
        ("429 Too Many Requests", "", "is busy"),
        ("500 Internal Server Error", '{"error": {"message": "out of memory"}}', "(500): out of memory"),
        ("503 Service Unavailable", "x" * 10000, "refused the request (503)"),
    ],
)
def test_each_refusal_has_its_words(status: str, body: str, words: str) -> None:
    async def handler(server: Endpoint, writer: asyncio.StreamWriter) -> None:
        head(writer, status, "application/json")
        writer.write(body.encode())

    message = refused(handler)
    assert words in message
    assert message.startswith("the language model at 127.0.0.1:")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"data: {broken\n\n", "no chat completion"),
        (b'data: {"choices": 5}\n\n', "no chat completion"),
        (b'data: {"error": {"message": "overloaded"}}\n\n', "reported an error: overloaded"),
        (b"data: [DONE]\n\n", "empty reply"),
        (b"", "empty reply"),
        (b"data: " + b"x" * (2 * 1024 * 1024), "more than 1 MiB"),
    ],
)
def test_each_bad_stream_has_its_words(data: bytes, words: str) -> None:
    async def handler(server: Endpoint, writer: asyncio.StreamWriter) -> None:
        head(writer)
        writer.write(data)

    assert words in refused(handler)


def test_a_stream_that_stalls_times_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "READ_TIMEOUT_S", 0.05)

    async def handler(server: Endpoint, writer: asyncio.StreamWriter) -> None:
        head(writer)
        writer.write(event("One. "))
        await writer.drain()
        await server.gone.wait()

    assert "did not answer in time" in refused(handler)


def test_an_endpoint_that_is_not_there_is_named() -> None:
    with pytest.raises(DuplexError, match=r"at 127\.0\.0\.1:1 cannot be reached"):
        asyncio.run(collect("http://127.0.0.1:1/v1"))


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host/v1", "http://"])
def test_a_bad_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(DuplexError) as error:
        ChatReplies(url)
    assert error.value.code is ErrorCode.BAD_CONFIG
    assert error.value.param == "llm_url"


def test_the_key_is_in_no_message() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(401)

    with pytest.raises(DuplexError) as error:
        asyncio.run(
            collect("http://user:word@host/v1", api_key="hush", transport=httpx.MockTransport(answer))
        )
    assert "hush" not in error.value.message
    assert "word" not in error.value.message


def test_fault_7_messages_hold_only_what_was_heard_and_alternate() -> None:
    request = ReplyRequest(
        instructions="Be brief.",
        history=(
            HistoryItem(role="user", text="Tell me"),
            HistoryItem(role="user", text="a story."),
            HistoryItem(role="assistant", text="Once upon", interrupted=True),
            HistoryItem(role="user", text="Shorter!"),
        ),
    )
    assert messages(request) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Tell me\na story."},
        {"role": "assistant", "content": "Once upon"},
        {"role": "user", "content": "Shorter!"},
    ]
    assert messages(ReplyRequest())[-1]["role"] == "user"
    long = ReplyRequest(history=tuple(HistoryItem(role="user", text="x") for _ in range(1000)))
    assert len(messages(long)[-1]["content"]) < 100


def test_the_local_model_answers_and_stops() -> None:
    pytest.importorskip("xllamacpp", reason="needs the extra llm")
    from duplex.adapters.embedded.llm_local import LocalReplies, find_weights

    try:
        find_weights()
    except DuplexError as error:
        pytest.skip(error.message)

    async def run() -> None:
        local = LocalReplies()
        await local.start()
        try:
            whole = "".join([piece async for piece in local.reply(REQUEST)])
            assert len(whole) > 10
            reply = local.reply(REQUEST)
            await anext(reply)
            await reply.aclose()
            assert "".join([piece async for piece in local.reply(REQUEST)])
        finally:
            await local.stop()

    asyncio.run(run())


def test_a_missing_local_model_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from duplex.adapters.embedded import llm_local

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DuplexError, match="pip install xllamacpp") as error:
        llm_local.LocalReplies()
    assert error.value.code is ErrorCode.BAD_CONFIG
