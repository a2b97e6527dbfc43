"""The speech endpoints of a gateway: HTTP routes and the WebSocket route, on its models, pool and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import Receive, Scope, Send

from duplex.core.errors import DuplexError, ErrorCode
from duplex.runtime.gateway import Gateway
from duplex.server.auth import check_token
from duplex.server.endpoint import headers_of, query_of, socket_of
from duplex.server.websocket import TOO_LARGE
from duplex.speech.connection import SpeechConnection
from duplex.speech.fields import SocketConfig, parse_query
from duplex.speech.http import SpeechRoutes
from duplex.speech.http_voices import VoiceRoutes
from duplex.speech.reference import ReferencePolicy
from duplex.speech.speaking import Patience
from duplex.speech.synthesis import Synthesis
from duplex.speech.voices import VoiceStore

SOCKET_PATH: Final = "/v1/audio/speech/stream"


def speech_routes(gateway: Gateway) -> list[BaseRoute]:
    """All routes of spoken text.

    Raises:
        DuplexError: `BAD_CONFIG` when a folder of voices cannot be used.
    """
    config = gateway.config
    folder = config.speaker_samples_dir
    try:
        voices = VoiceStore(
            Path(folder) if folder else None,
            most=config.speaker_max_uploaded,
            precomputed=Path(config.custom_voice_dir) if config.custom_voice_dir else None,
        )
    except OSError as error:
        words = f"speaker_samples_dir: {error.strerror or error}"
        raise DuplexError(ErrorCode.BAD_CONFIG, words, param="speaker_samples_dir") from None
    synthesis = Synthesis(
        gateway.adapters.values(),
        voices=voices,
        policy=ReferencePolicy(
            hosts=frozenset(host.lower() for host in config.ref_audio_hosts),
            folder=Path(config.ref_audio_dir) if config.ref_audio_dir else None,
        ),
        pool=gateway.encoders,
        most=config.max_speech_requests,
        check=gateway.check_open,
        first_audio=gateway.metrics.ttfa.observe,
        patience=Patience(
            stall_s=config.response_stall_s, stop_s=config.abort_timeout_s, stray=gateway.stray
        ),
    )
    gateway.drainables.add(synthesis)

    def guard(request: Request) -> None:
        check_token(config.auth_token, request.headers, request.query_params)

    def count(code: ErrorCode) -> None:
        gateway.metrics.errors[code] += 1

    return [
        *SpeechRoutes(synthesis, guard, count, slow_reader_timeout_s=config.slow_reader_timeout_s).routes,
        *VoiceRoutes(synthesis, guard, count).routes,
        WebSocketRoute(SOCKET_PATH, SpeechEndpoint(gateway, synthesis)),
    ]


class SpeechEndpoint:
    """The ASGI app of the speech WebSocket. A connection holds one place for as long as it lives."""

    def __init__(self, gateway: Gateway, synthesis: Synthesis) -> None:
        self._gateway = gateway
        self._synthesis = synthesis

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = socket_of(scope)
        if (await receive())["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept"})
        gateway = self._gateway
        connection = SpeechConnection(
            socket,
            self._synthesis,
            gateway.clock,
            slow_reader_timeout_s=gateway.config.slow_reader_timeout_s,
            config_timeout_s=gateway.config.config_timeout_s,
            count=self._count,
        )
        query = query_of(scope)
        headers = headers_of(scope)
        try:
            check_token(gateway.config.auth_token, headers, query)
            preset = parse_query(query, SocketConfig)
            place = self._synthesis.places.take()
        except DuplexError as error:
            connection.refuse(error)
            await connection.close()
            return
        with place:
            gateway.drainables.add(connection)
            try:
                connection.open(preset, place)
                await _hand_over(connection, receive)
            finally:
                gateway.drainables.discard(connection)
                await connection.close()

    def _count(self, code: ErrorCode) -> None:
        self._gateway.metrics.errors[code] += 1


async def _hand_over(connection: SpeechConnection, receive: Receive) -> None:
    """Give the connection what the client sends, until it is gone."""
    while (message := await receive())["type"] != "websocket.disconnect":
        if message["type"] == TOO_LARGE:
            connection.fail(DuplexError(ErrorCode.MESSAGE_TOO_LARGE, "the message is too large"))
        elif message["type"] == "websocket.receive":
            text = message.get("text")
            connection.receive(text if text is not None else message["bytes"])
