"""`POST /v1/audio/speech` and its batch."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
import pybase64
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from duplex.core.errors import DuplexError, ErrorCode
from duplex.server.faults import error_body
from duplex.speech.fields import MEDIA_TYPES, SpeechBody, over, parse
from duplex.speech.http_common import Count, Guard, Stream, guarded, json_body, unless_gone
from duplex.speech.places import Place
from duplex.speech.synthesis import Encoded, Job, Synthesis, check_whole, once, usage, whole

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
"""Of a speech or batch request: reference audio of 10 MB for several items, in base64."""
MAX_ITEMS: Final = 32
ITEMS_AT_ONCE: Final = 4
"""Items of one batch that are spoken at the same time."""
MAX_TIMESTAMP_HEADER: Final = 4096
"""Bytes; servers and proxies refuse longer headers."""


class SpeechRoutes:
    """The HTTP face. `guard` raises `DuplexError(UNAUTHORIZED)` for a request that may not pass; `count` is
    told of every fault; a client that does not read is cut off after `slow_reader_timeout_s`."""

    def __init__(
        self, synthesis: Synthesis, guard: Guard, count: Count, *, slow_reader_timeout_s: float = 10.0
    ) -> None:
        self._synthesis = synthesis
        self._guard = guard
        self._count = count
        self._slow_s = slow_reader_timeout_s

    @property
    def routes(self) -> list[Route]:
        """For the server's application."""
        handlers = {"/v1/audio/speech": self.speech, "/v1/audio/speech/batch": self.batch}
        return [
            Route(path, guarded(handler, self._guard, self._count), methods=["POST"])
            for path, handler in handlers.items()
        ]

    async def speech(self, request: Request) -> Response:
        """One text. Streams as it is made, but for a WAV or word times in a header, which need the whole."""
        body = parse(await json_body(request, MAX_BODY_BYTES), SpeechBody)
        _check_words(body)
        place = self._synthesis.places.take()
        try:
            job = await unless_gone(request.receive, self._synthesis.prepare(body))
            if body.stream_format == "sse":
                return await self._streamed(request, job, self._sse(job, body, place), place, sse=True)
            streams = body.stream or body.stream_format == "audio"
            if streams or not (body.word_timestamps or body.response_format == "wav"):
                return await self._streamed(request, job, self._bytes(job, body), place)
            parts = await unless_gone(request.receive, self._collect(job, body, _Room()))
        except BaseException:
            place.release()
            raise
        place.release()
        return _whole_response(job, body, parts)

    async def _streamed(
        self,
        request: Request,
        job: Job,
        chunks: AsyncGenerator[bytes, None],
        place: Place,
        *,
        sse: bool = False,
    ) -> Response:
        """A response that has its first chunk: what fails before it still gets a status of its own."""
        try:
            first = await unless_gone(request.receive, anext(chunks))
        except BaseException:
            await chunks.aclose()
            raise
        return Stream(
            first,
            chunks,
            place,
            media_type="text/event-stream" if sse else MEDIA_TYPES[_format(job)],
            headers=_rate(job) | ({"Cache-Control": "no-store"} if sse else {}),
            slow_reader_timeout_s=self._slow_s,
            count=self._count,
        )

    async def _speak(self, job: Job, body: SpeechBody) -> AsyncGenerator[Encoded, None]:
        """The pieces. Raises `EMPTY_INPUT` when the model finds nothing to say in the text."""
        audio_ms = 0.0
        async with contextlib.aclosing(self._synthesis.speak(job, once(body.input))) as audio:
            async for piece in audio:
                audio_ms += piece.duration_ms
                if piece.finish_reason is not None and audio_ms == 0.0:
                    words = "there are no words to speak in the input"
                    raise DuplexError(ErrorCode.EMPTY_INPUT, words, param="input")
                yield piece

    async def _bytes(self, job: Job, body: SpeechBody) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(self._speak(job, body)) as audio:
            async for piece in audio:
                if piece.payload:
                    yield piece.payload

    async def _sse(self, job: Job, body: SpeechBody, place: Place) -> AsyncGenerator[bytes, None]:
        audio_ms = 0.0
        begun = False
        try:
            async with contextlib.aclosing(self._speak(job, body)) as audio:
                async for piece in audio:
                    audio_ms += piece.duration_ms
                    if not (piece.payload or piece.words):
                        continue
                    delta: dict[str, Any] = {
                        "type": "speech.audio.delta",
                        "audio": pybase64.b64encode(piece.payload).decode("ascii"),
                    }
                    if body.word_timestamps:
                        delta["timestamps"] = msgspec.to_builtins(piece.words)
                    begun = True
                    yield _event(delta)
        except DuplexError as error:
            if not begun:
                raise
            self._count(error.code)
            place.release()
            yield _event({"type": "error", **error_body(error)})
            return
        place.release()  # whoever reads the last event may come back at once
        yield _event({"type": "speech.audio.done", "usage": usage(body.input, audio_ms)})

    async def _collect(self, job: Job, body: SpeechBody, room: _Room) -> list[Encoded]:
        """All pieces. One that fails gives its room back to the others of its batch."""
        parts: list[Encoded] = []
        try:
            async with contextlib.aclosing(self._speak(job, body)) as audio:
                async for piece in audio:
                    room.take(len(piece.payload))
                    parts.append(piece)
        except DuplexError:
            room.give_back(sum(len(part.payload) for part in parts))
            raise
        return parts

    # --- batch --------------------------------------------------------------------------------------

    async def batch(self, request: Request) -> Response:
        """Several texts; one item's failure is its own."""
        raw = await json_body(request, MAX_BODY_BYTES)
        items = raw.pop("items", None)
        if not isinstance(items, list) or not 1 <= len(items) <= MAX_ITEMS:
            raise DuplexError(
                ErrorCode.INVALID_VALUE, f"items must be a list of 1 to {MAX_ITEMS} objects", param="items"
            )
        for name in ("input", "stream", "stream_format"):
            if name in raw:
                raise DuplexError(ErrorCode.UNKNOWN_FIELD, f"unknown field: {name}", param=name)
        with self._synthesis.places.take():
            results = await unless_gone(request.receive, self._items(raw, items))
        failed = sum(result["status"] == "error" for result in results)
        return JSONResponse(
            {
                "id": f"speech-batch-{secrets.token_hex(8)}",
                "results": results,
                "total": len(results),
                "succeeded": len(results) - failed,
                "failed": failed,
            }
        )

    async def _items(self, defaults: dict[str, Any], items: list[object]) -> list[dict[str, Any]]:
        room = _Room()
        turns = asyncio.Semaphore(ITEMS_AT_ONCE)

        async def one(index: int, item: object) -> dict[str, Any]:
            async with turns:
                return await self._item(index, defaults, item, room)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(index, item)) for index, item in enumerate(items)]
        return [task.result() for task in tasks]

    async def _item(self, index: int, defaults: dict[str, Any], item: object, room: _Room) -> dict[str, Any]:
        try:
            if not isinstance(item, dict):
                raise DuplexError(ErrorCode.NOT_AN_OBJECT, f"items[{index}] must be an object")
            for name in ("stream", "stream_format"):
                if name in item:
                    raise DuplexError(ErrorCode.UNKNOWN_FIELD, f"unknown field: {name}", param=name)
            body = parse(over(defaults, item), SpeechBody)
            job = await self._synthesis.prepare(body)
            parts = await self._collect(job, body, room)
        except DuplexError as error:
            self._count(error.code)
            fault = {"error": error.message, "param": error.param, "error_code": error.code.value}
            return {"index": index, "status": "error", **fault}
        data = whole(job.format, (part.payload for part in parts))
        result: dict[str, Any] = {
            "index": index,
            "status": "success",
            "audio_data": pybase64.b64encode(data).decode("ascii"),
            "media_type": MEDIA_TYPES[body.response_format],
            "sample_rate": job.format.sample_rate,
            "usage": usage(body.input, sum(part.duration_ms for part in parts)),
        }
        if body.word_timestamps:
            result["timestamps"] = _timestamps(parts)
        return result


class _Room:
    """Bytes of audio that one request may hold."""

    def __init__(self) -> None:
        self._taken = 0

    def take(self, size: int) -> None:
        check_whole(self._taken + size)
        self._taken += size

    def give_back(self, size: int) -> None:
        self._taken -= size


def _check_words(body: SpeechBody) -> None:
    if body.word_timestamps and body.stream_format != "sse" and (body.stream or body.stream_format):
        raise DuplexError(
            ErrorCode.INVALID_VALUE,
            "a streamed body has no place for word times: ask for stream_format='sse', or do not stream",
            param="word_timestamps",
        )


def _whole_response(job: Job, body: SpeechBody, parts: list[Encoded]) -> Response:
    headers = _rate(job)
    if body.word_timestamps:
        words = json.dumps(_timestamps(parts), separators=(",", ":"))  # ASCII, as headers must be
        if len(words) <= MAX_TIMESTAMP_HEADER:
            headers["X-Word-Timestamps"] = words
        else:
            headers["X-Word-Timestamps-Omitted"] = str(len(words))
    data = whole(job.format, (part.payload for part in parts))
    return Response(data, media_type=MEDIA_TYPES[body.response_format], headers=headers)


def _timestamps(parts: list[Encoded]) -> list[Any] | None:
    if any(part.words is None for part in parts):
        return None
    return [msgspec.to_builtins(word) for part in parts for word in part.words or ()]


def _rate(job: Job) -> dict[str, str]:
    return {"X-Sample-Rate": str(job.format.sample_rate)}


def _format(job: Job) -> str:
    return "pcm" if job.format.codec == "pcm_s16le" else job.format.codec


def _event(message: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(message) + b"\n\n"
