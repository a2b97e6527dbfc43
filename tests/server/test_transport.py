"""Peers that do not read, do not answer, or are not there any more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway_peer import PATIENCE_S, Peer, forever, tone, until

from duplex.adapters.scripted import ScriptedAdapter, ScriptedSession
from duplex.core.types import Delta, TextDelta, Turn
from duplex.server.http_protocol import GatewayHttp


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds that a peer is given to read its last events and to answer a close frame."""
    monkeypatch.setattr("duplex.runtime.outbound.FLUSH_S", 0.05)
    monkeypatch.setattr("duplex.server.websocket.LINGER_S", 0.05)


async def loud(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
    while True:
        yield tone(200, turn.index)
        await asyncio.sleep(0)


async def wordy(session: ScriptedSession, turn: Turn) -> AsyncIterator[Delta]:
    while True:
        yield TextDelta(text="x" * 1024)


async def test_slow_reader_loses_its_session_by_name_and_others_do_not_notice(start_gateway: Any) -> None:
    """29: one slow reader let memory grow and the others stall."""
    gateway = await start_gateway(
        ScriptedAdapter(respond=loud), slow_reader_timeout_s=0.1, max_queue_bytes=512 * 1024
    )
    slow = await Peer.connect(gateway, session_id="slow", receive_buffer=4096, max_run_ahead_ms="0")
    (runner,) = gateway.runtime.runners
    connection = runner.connection
    assert connection is not None
    other = await Peer.connect(gateway)
    await slow.send("response.create")
    await slow.expect("response.created")
    slow.vanish()
    await until(lambda: connection.queue.full)
    assert connection.queue.bytes <= 256 * 1024 + 2 * 9600
    await other.send("response.create")
    await other.expect("response.delta", modality="audio")
    await until(lambda: len(gateway.runtime.leases) == 1)
    # it can still learn why, if it reads in time
    slow.ws.transport.resume_reading()
    assert await slow.until_closed() == (4408, "slow_reader")
    assert slow.log[-1]["code"] == "slow_reader"
    await other.send("response.cancel")
    await other.expect("response.cancelled", response_index=1)


async def test_reader_that_never_reads_again_is_cut_off(start_gateway: Any, short_patience: None) -> None:
    gateway = await start_gateway(ScriptedAdapter(respond=loud), slow_reader_timeout_s=0.05)
    slow = await Peer.connect(gateway, receive_buffer=4096, max_run_ahead_ms="0")
    (runner,) = gateway.runtime.runners
    socket = runner.connection.socket
    await slow.send("response.create")
    slow.vanish()
    await until(lambda: len(gateway.runtime.leases) == 0)
    await until(lambda: socket.disconnected)


async def test_flood_of_events_to_a_reader_that_does_not_read_is_bounded(start_gateway: Any) -> None:
    gateway = await start_gateway(ScriptedAdapter(respond=wordy), max_queue_bytes=64 * 1024)
    slow = await Peer.connect(gateway, receive_buffer=4096)
    (runner,) = gateway.runtime.runners
    queue = runner.connection.queue
    await slow.send("response.create")
    slow.vanish()
    await until(lambda: queue.full)
    assert queue.bytes <= 32 * 1024 + 8 * 1280
    assert len(gateway.runtime.leases) == 1
    # the client's own messages are answered, so their answers are bounded too
    for _ in range(400):
        await slow.send("response.cancel")
    await until(lambda: len(gateway.runtime.leases) == 0)


@pytest.mark.parametrize("speaking", [False, True])
async def test_client_that_vanishes_without_a_close_frees_its_slot(
    start_gateway: Any, short_patience: None, speaking: bool
) -> None:
    """27: a client that vanished without a close held its slot for ever."""
    adapter = ScriptedAdapter(respond=forever)
    gateway = await start_gateway(
        adapter, max_sessions=1, ping_interval_s=0.1, ping_timeout_s=0.1, resume_grace_s=0.05
    )
    peer = await Peer.connect(gateway, receive_buffer=4096, max_run_ahead_ms="0")
    (runner,) = gateway.runtime.runners
    socket = runner.connection.socket
    if speaking:
        await peer.send("response.create")
        await peer.expect("response.delta", modality="audio")
    peer.vanish()
    await until(lambda: len(gateway.runtime.leases) == 0)
    await until(lambda: socket.disconnected)
    assert not adapter.open_sessions


@pytest.mark.parametrize("sent", [b"", b"GET /v1/duplex HTTP/1.1\r\nHost: x\r\n"])
async def test_connection_without_a_request_is_dropped(
    start_gateway: Any, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """A client that connected and vanished before its handshake held its socket for ever."""
    monkeypatch.setattr("duplex.server.http_protocol.HEADERS_S", 0.05)
    gateway = await start_gateway()
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    with contextlib.suppress(ConnectionError):  # a FIN says it as well as a reset
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    writer.close()
    # one that has said what it wants keeps its socket
    peer = await Peer.connect(gateway)
    await asyncio.sleep(0.1)
    assert (await peer.close())[0] == 1000


HEAD = b"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\n"


async def request(gateway: Any, *parts: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for part in parts:
        writer.write(part)
        await writer.drain()
    return reader, writer


@pytest.mark.parametrize(
    ("head", "pending"),
    [
        (HEAD + b"content-length: 1000\r\n\r\n", b"{"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n{"),
    ],
)
@pytest.mark.parametrize("bound", ["BODY_SILENCE_S", "BODY_S"])
async def test_half_a_body_held_its_connection_for_ever(
    start_gateway: Any, monkeypatch: pytest.MonkeyPatch, head: bytes, pending: bytes, bound: str
) -> None:
    monkeypatch.setattr(f"duplex.server.http_protocol.{bound}", 0.05)
    if bound == "BODY_S":
        monkeypatch.setattr("duplex.server.http_protocol.BODY_SILENCE_S", 0.1)
    gateway = await start_gateway()
    reader, writer = await request(gateway, head, pending)
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)  # to the end of the connection
    told, _, body = answer.partition(b"\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 408 ")
    error = json.loads(body)["error"]
    assert (error["code"], error["error_code"]) == (408, "idle_timeout")
    writer.close()


async def test_half_a_body_after_its_refusal_held_its_connection_for_ever(
    start_gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was there, and each further byte took uvicorn's keep-alive time-out away."""
    monkeypatch.setattr("duplex.server.http_protocol.BODY_SILENCE_S", 0.05)
    gateway = await start_gateway(auth_token="secret")
    reader, writer = await request(gateway, HEAD + b"content-length: 1000\r\n\r\n{")
    assert b" 401 " in await asyncio.wait_for(reader.readline(), PATIENCE_S)
    writer.write(b"}")
    assert b"408" not in await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()


@pytest.mark.parametrize("rest", [b"GET /hea", b"\r\n"])
async def test_half_a_second_request_held_its_connection_for_ever(
    start_gateway: Any, monkeypatch: pytest.MonkeyPatch, rest: bytes
) -> None:
    gateway = await start_gateway()
    reader, writer = await request(gateway, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b" 200 " in await asyncio.wait_for(reader.readline(), PATIENCE_S)
    await asyncio.wait_for(reader.readuntil(b'"ok"}'), PATIENCE_S)
    monkeypatch.setattr("duplex.server.http_protocol.HEADERS_S", 0.05)
    writer.write(rest)
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    writer.close()


async def test_a_body_that_comes_in_pieces_is_waited_for(
    start_gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duplex.server.http_protocol.BODY_SILENCE_S", 0.5)
    gateway = await start_gateway()
    reader, writer = await request(gateway, HEAD + b"content-length: 12\r\n\r\n")
    for _ in range(12):
        await asyncio.sleep(0.06)
        writer.write(b" ")
    assert b" 400 " in await asyncio.wait_for(reader.readline(), PATIENCE_S)
    # and the connection goes on
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert b'{"status":"ok"}' in await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()


async def test_headers_without_an_end_were_kept_whole(start_gateway: Any) -> None:
    gateway = await start_gateway()
    reader, writer = await request(gateway, b"GET /health HTTP/1.1\r\n")
    line = b"x: " + b"y" * 8000 + b"\r\n"
    for _ in range(17):  # over 128 KiB
        writer.write(line)
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    assert answer.startswith(b"HTTP/1.1 431 ")
    writer.close()


async def test_the_end_of_a_body_counted_as_a_head(
    start_gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was answered before its body was read got a second answer, and lost its connection."""
    monkeypatch.setattr("duplex.server.http_protocol.MAX_HEAD_BYTES", 1000)
    data_received = GatewayHttp.data_received
    whole = asyncio.Event()

    def noting(self: GatewayHttp, data: bytes) -> None:
        data_received(self, data)
        if data.endswith(b"x"):
            whole.set()

    monkeypatch.setattr(GatewayHttp, "data_received", noting)
    gateway = await start_gateway()
    size = 5000
    head = b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size
    reader, writer = await request(gateway, head)
    assert b" 404 " in await asyncio.wait_for(reader.readline(), PATIENCE_S)
    writer.write(b"x" * size)
    await asyncio.wait_for(whole.wait(), PATIENCE_S)
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answers = await asyncio.wait_for(reader.read(), PATIENCE_S)
    assert b" 431 " not in answers
    assert answers.endswith(b'{"status":"ok"}')
    writer.close()


UPGRADE = (
    b" HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize(
    ("handshake", "status"),
    [
        (b"GET /v1/duplex?token=" + b"x" * 9000 + UPGRADE + b"\r\n", 414),
        (b"GET /v1/duplex" + UPGRADE + b"x: " + b"y" * 9000 + b"\r\n\r\n", 431),
        (b"GET /v1/duplex" + UPGRADE + b"x: y\r\n" * 200 + b"\r\n", 431),
    ],
)
async def test_a_handshake_with_a_long_line_was_never_answered(
    start_gateway: Any, caplog: pytest.LogCaptureFixture, handshake: bytes, status: int
) -> None:
    caplog.set_level(logging.INFO, logger="duplex.server")
    gateway = await start_gateway()
    reader, writer = await request(gateway, handshake)
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert "handshake is refused" in caplog.text
    assert "xxx" not in caplog.text  # a token is never in the log
    writer.close()


async def test_a_handshake_to_an_unknown_path_was_403(
    start_gateway: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await start_gateway()
    for path in (b"GET /v1/duplexx", b"GET /v1/models"):
        reader, writer = await request(gateway, path + UPGRADE + b"\r\n")
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert answer.startswith(b"HTTP/1.1 404 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == 404
        writer.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_healthy_client_survives_a_loop_that_was_held_up(start_gateway: Any) -> None:
    """28: the loop was blocked for longer than the ping time-out, and healthy sockets were killed (1011)."""
    gateway = await start_gateway(ping_interval_s=0.05, ping_timeout_s=5.0)
    peer = await Peer.connect(gateway)
    (runner,) = gateway.runtime.runners
    socket = runner.connection.socket
    peer.vanish()  # the answer stays where the loop has not looked yet
    await until(lambda: socket.pong_timer is not None)
    socket.pong_timer.cancel()
    socket.ping_sent_at -= 60
    socket.keepalive_timeout()  # as the loop calls it when it runs again, timers first
    peer.ws.transport.resume_reading()
    await until(lambda: socket.last_ping_rtt > 0)
    await peer.send("response.cancel")
    await peer.expect("response.cancelled")


async def test_client_that_says_goodbye_and_keeps_its_socket_is_cut_off(
    start_gateway: Any, short_patience: None
) -> None:
    gateway = await start_gateway(ScriptedAdapter(respond=loud), resume_grace_s=0.0)
    peer = await Peer.connect(gateway, receive_buffer=4096, max_run_ahead_ms="0")
    (runner,) = gateway.runtime.runners
    socket = runner.connection.socket
    await peer.send("response.create")
    peer.vanish()
    await until(lambda: runner.connection is not None and runner.connection.queue.audio_s > 0)
    peer.ws.protocol.send_close(1000)
    for data in peer.ws.protocol.data_to_send():
        peer.ws.transport.write(data)
    await until(lambda: len(gateway.runtime.leases) == 0)
    await until(lambda: socket.disconnected)


async def test_sockets_of_all_kinds_of_ends_are_let_go(start_gateway: Any) -> None:
    gateway = await start_gateway(resume_grace_s=0.0)
    sockets = []
    for end in ("close", "drop", "leave"):
        peer = await Peer.connect(gateway)
        (runner,) = gateway.runtime.runners
        sockets.append(runner.connection.socket)
        match end:
            case "close":
                await peer.close()
            case "drop":
                peer.drop()
            case _:
                await peer.ws.close(1001)
        await until(lambda: len(gateway.runtime.leases) == 0)
    for socket in sockets:
        await until(lambda socket=socket: socket.disconnected)
