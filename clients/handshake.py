"""The beginning of a session: the settings that it opens with are in force, or there is none."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from duplex.clients.connection import dialled, open_connection, session_created, why_closed
from duplex.clients.errors import BadConfig, settings_refused
from duplex.clients.events import ClientEvent, ErrorMessage, SessionUpdated
from duplex.clients.protocol import ClientProtocol, Frame
from duplex.dialects.native_events import Extension

Send = Callable[[ClientConnection, Frame], Awaitable[None]]

MAX_QUERY_BYTES: Final = 4096
"""Of instructions in the query. Servers and proxies bound an address; longer ones go by `session.update`."""


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The query parameters of a handshake, and the settings that need a `session.update`.

    A server ignores query parameters that it does not know, and cannot tell types in the others: what is not
    surely one of them, of the right type, is left to the message, which is refused by name.

    Raises:
        BadConfig: text that is none (half of a surrogate pair).
    """
    query: dict[str, Any] = {}
    message: dict[str, Any] = {}
    for name, value in options.items():
        match name:
            case "codec" | "sample_rate":  # of the query alone
                query[name] = value
            case "voice" | "output_modalities" if isinstance(value, str):
                query[name] = value
            case "instructions" if isinstance(value, str) and _is_short(value):
                query[name] = value
            case "gate_threshold" | "max_run_ahead_ms" if isinstance(value, str | int | float):
                query[name] = value
            case "turn_detection" if value is None or value == "none":
                query[name] = "none"
            case _:
                message[name] = value
    try:
        urlencode(query)
    except UnicodeEncodeError as error:
        raise BadConfig(f"the options cannot be sent: {error}") from None
    return query, message


def _is_short(text: str) -> bool:
    return len(text) <= MAX_QUERY_BYTES and len(quote_plus(text, errors="replace")) <= MAX_QUERY_BYTES


async def open_session(
    url: str,
    query: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    protocol: ClientProtocol,
    send: Send,
    token: str | None,
    timeout_s: float,
) -> tuple[ClientConnection, list[ClientEvent]]:
    """A connection with a new session whose settings are changed as asked, and the events up to there.

    Raises:
        SessionOver: of the class that names why there is none; `BadConfig` for settings that were refused.
    """
    if not settings:
        socket, begun = await open_connection(url, query, protocol=protocol, token=token, timeout_s=timeout_s)
        return socket, [begun]
    names = [name for name in str(query.get("ext", "")).split(",") if name]
    told = Extension.LIFECYCLE in names
    event_id = protocol.event_id()
    try:
        json.dumps(dict(settings), allow_nan=False)  # below, sets, bytes and NaN would become something else
        update = protocol.request(
            "session.update",
            session=dict(settings),
            extensions=names if told else [*names, Extension.LIFECYCLE],  # without it no change is confirmed
            event_id=event_id,
        )
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadConfig(f"the options cannot be sent: {error}") from None
    protocol.fatal = None
    async with dialled(url, query, token=token, timeout_s=timeout_s) as socket:
        events: list[ClientEvent] = [await session_created(socket, protocol)]
        await _send(socket, send, update)
        events += await _answer(socket, protocol, event_id, send)
        if not told:
            events.pop()
            await _send(socket, send, protocol.request("session.update", extensions=names))
        return socket, events


async def _answer(
    socket: ClientConnection, protocol: ClientProtocol, event_id: str, send: Send
) -> list[ClientEvent]:
    """The events up to `session.updated` of that request, which is the last."""
    events: list[ClientEvent] = []
    try:
        async for frame in socket:
            for event in protocol.receive(frame):
                events.append(event)
                if isinstance(event, SessionUpdated) and event.event_id == event_id:
                    return events
                if isinstance(event, ErrorMessage) and event.event_id == event_id and not event.fatal:
                    await _send(socket, send, protocol.request("close"))  # so that no slot is kept
                    raise settings_refused(event.code, event.message)
    except ConnectionClosed:
        pass
    raise why_closed(socket, protocol)


async def _send(socket: ClientConnection, send: Send, frame: Frame) -> None:
    """Send. That the connection broke is found by who reads next, behind what came before."""
    try:
        await send(socket, frame)
    except ConnectionClosed:
        pass
