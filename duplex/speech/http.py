"""`POST /v1/audio/speech`, its batch, and the voices endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import pybase64
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from duplex.codecs.encoders import wav_header
from duplex.core.errors import DuplexError, ErrorCode
from duplex.speech.fields import MEDIA_TYPES, SpeechBody, parse
from duplex.speech.synthesis import Encoded, Job, Synthesis, once, usage
from duplex.speech.voices import MAX_VOICE_BYTES

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
"""Of a speech or batch request: reference audio of 10 MB for several items, in base64."""
MAX_ITEMS: Final = 32
MAX_TIMESTAMP_HEADER: Final = 4096
"""Bytes; servers and proxies refuse longer headers."""
RETRY_AFTER_S: Final = 1
_TYPES: Final = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    409: "ConflictError",
    413: "RequestTooLargeError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
}

T = TypeVar("T")
Guard: TypeAlias = Callable[[Request], None]
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


class SpeechRoutes:
    """The HTTP face. `guard` raises `DuplexError(UNAUTHORIZED)` for a request that may not pass."""

    def __init__(self, synthesis: Synthesis, guard: Guard, count: Callable[[ErrorCode], None]) -> None:
        self._synthesis = synthesis
        self._guard = guard
        self._count = count

    @property
    def routes(self) -> list[Route]:
        """For the server's application."""
        return [
            Route("/v1/audio/speech", self._named(self.speech), methods=["POST"]),
            Route("/v1/audio/speech/batch", self._named(self.batch), methods=["POST"]),
            Route("/v1/audio/voices", self._named(self.list_voices), methods=["GET"]),
            Route("/v1/audio/voices", self._named(self.add_voice), methods=["POST"]),
            Route("/v1/audio/voices/{name}", self._named(self.remove_voice), methods=["DELETE"]),
        ]

    def _named(self, handler: Handler) -> Handler:
        """The handler, behind the guard; its faults as JSON in OpenAI's shape."""

        async def handle(request: Request) -> Response:
            try:
                self._guard(request)
                return await handler(request)
            except DuplexError as error:
                self._count(error.code)
                return error_response(error)
            except ClientDisconnect:
                return Response(status_code=499)

        return handle

    # --- speech -------------------------------------------------------------------------------------

    async def speech(self, request: Request) -> Response:
        """One text. Streams as it is made, but for a WAV or word times in a header, which need the whole."""
        body = parse(await _json(request), SpeechBody)
        job = await self._synthesis.prepare(body)
        stack = contextlib.ExitStack()
        stack.enter_context(self._synthesis.admitted())
        try:
            if body.stream_format == "sse":
                return await self._stream(self._sse(job, body), stack, "text/event-stream")
            streams = body.stream or body.stream_format == "audio"
            whole = body.word_timestamps or body.response_format == "wav"
            if streams or not whole:
                return await self._stream(self._bytes(job, body), stack, _media_type(body))
        except BaseException:
            stack.close()
            raise
        with stack:
            parts = await _unless_gone(request, self._collect(job, body))
        return _whole_response(job, body, parts)

    async def _stream(
        self, chunks: AsyncGenerator[bytes, None], stack: contextlib.ExitStack, media_type: str
    ) -> Response:
        """A response that has its first chunk: what fails before it still gets a status of its own."""
        first = await anext(chunks, b"")

        async def body() -> AsyncIterator[bytes]:
            with stack:
                async with contextlib.aclosing(chunks):
                    if first:
                        yield first
                    async for chunk in chunks:
                        yield chunk

        return StreamingResponse(body(), media_type=media_type)

    async def _bytes(self, job: Job, body: SpeechBody) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(self._synthesis.speak(job, once(body.input))) as audio:
            async for piece in audio:
                if piece.payload:
                    yield piece.payload

    async def _sse(self, job: Job, body: SpeechBody) -> AsyncGenerator[bytes, None]:
        audio_ms = 0.0
        begun = False
        try:
            async with contextlib.aclosing(self._synthesis.speak(job, once(body.input))) as audio:
                async for piece in audio:
                    audio_ms += piece.duration_ms
                    if not piece.payload:
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
            yield _event({"type": "error", **error_body(error)})
            return
        yield _event({"type": "speech.audio.done", "usage": usage(body.input, audio_ms)})

    async def _collect(self, job: Job, body: SpeechBody) -> list[Encoded]:
        async with contextlib.aclosing(self._synthesis.speak(job, once(body.input))) as audio:
            return [piece async for piece in audio]

    async def batch(self, request: Request) -> Response:
        """Several texts; one item's failure is its own."""
        raw = await _json(request)
        items = raw.pop("items", None)
        if not isinstance(items, list) or not 1 <= len(items) <= MAX_ITEMS:
            raise DuplexError(
                ErrorCode.INVALID_VALUE, f"items must be a list of 1 to {MAX_ITEMS} objects", param="items"
            )
        with self._synthesis.admitted():
            work = asyncio.gather(*(self._item(n, raw, item) for n, item in enumerate(items)))
            results = await _unless_gone(request, work)
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

    async def _item(self, index: int, defaults: dict[str, Any], item: object) -> dict[str, Any]:
        try:
            if not isinstance(item, dict):
                raise DuplexError(ErrorCode.NOT_AN_OBJECT, f"items[{index}] must be an object")
            for name in ("stream", "stream_format"):
                if name in item or name in defaults:
                    raise DuplexError(ErrorCode.UNKNOWN_FIELD, f"unknown field: {name}", param=name)
            body = parse({**defaults, **item}, SpeechBody)
            job = await self._synthesis.prepare(body)
            parts = await self._collect(job, body)
        except DuplexError as error:
            self._count(error.code)
            return {"index": index, "status": "error", "error": error.message, **_code(error)}
        result: dict[str, Any] = {
            "index": index,
            "status": "success",
            "audio_data": pybase64.b64encode(_join(job, parts)).decode("ascii"),
            "media_type": _media_type(body),
            "usage": usage(body.input, sum(part.duration_ms for part in parts)),
        }
        if body.word_timestamps:
            result["timestamps"] = _timestamps(parts)
        return result

    # --- voices -------------------------------------------------------------------------------------

    async def list_voices(self, request: Request) -> Response:
        """Names that `voice` may have, of one model (`?model=`) or of the default one, and the uploads."""
        _, adapter = self._synthesis.model(request.query_params.get("model"))
        own = adapter.speech.voices
        store = self._synthesis.voices
        names = [name for voice in own for name in (voice.id, *voice.aliases)]
        return JSONResponse(
            {
                "voices": [*dict.fromkeys([*names, *store.precomputed])],
                "uploaded_voices": [msgspec.to_builtins(record) for record in store.uploaded],
                "details": [msgspec.to_builtins(voice) for voice in own],
            }
        )

    async def add_voice(self, request: Request) -> Response:
        """Upload a recording. The same upload again changes nothing and is answered alike, with 200."""
        _check_length(request, MAX_VOICE_BYTES + 64 * 1024)
        try:
            async with request.form(max_files=1, max_fields=8) as form:
                fields = {
                    name: str(form.get(name) or "")
                    for name in ("name", "consent", "ref_text", "speaker_description")
                }
                sample = form.get("audio_sample")
                if not isinstance(sample, UploadFile):
                    raise DuplexError(
                        ErrorCode.INVALID_VALUE, "audio_sample must be a file", param="audio_sample"
                    )
                audio = await sample.read(MAX_VOICE_BYTES + 1)
                kind = sample.content_type or ""
        except MultiPartException as error:
            raise DuplexError(ErrorCode.INVALID_VALUE, error.message) from None
        record, new = await asyncio.to_thread(
            self._synthesis.voices.add, audio=audio, mime_type=kind, **fields
        )
        return JSONResponse(
            {"success": True, "voice": msgspec.to_builtins(record)}, status_code=201 if new else 200
        )

    async def remove_voice(self, request: Request) -> Response:
        """Delete an upload."""
        name = request.path_params["name"]
        await asyncio.to_thread(self._synthesis.voices.remove, name)
        return JSONResponse({"success": True, "message": f"voice {name} deleted"})


def error_body(error: DuplexError) -> dict[str, Any]:
    """OpenAI's error object; `code` is the HTTP status, `error_code` ours."""
    status = error.code.traits.http_status
    kind = _TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": error.param,
            "code": status,
            "error_code": error.code.value,
        }
    }


def error_response(error: DuplexError) -> Response:
    """A named fault as an HTTP answer."""
    status = error.code.traits.http_status
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status in (429, 503) else None
    return JSONResponse(error_body(error), status_code=status, headers=headers)


async def _json(request: Request) -> dict[str, Any]:
    _check_length(request, MAX_BODY_BYTES)
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise _too_large(MAX_BODY_BYTES)
    try:
        raw = msgspec.json.decode(bytes(data))
    except (msgspec.DecodeError, RecursionError) as error:
        raise DuplexError(ErrorCode.INVALID_JSON, f"the body is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise DuplexError(ErrorCode.NOT_AN_OBJECT, "the body must be a JSON object")
    return raw


def _check_length(request: Request, most: int) -> None:
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > most:
        raise _too_large(most)


def _too_large(most: int) -> DuplexError:
    return DuplexError(ErrorCode.MEDIA_TOO_LARGE, f"the body has over {most} bytes")


async def _unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client hangs up."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hang_up(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return await task
    finally:
        for other in (task, gone):
            other.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _whole_response(job: Job, body: SpeechBody, parts: list[Encoded]) -> Response:
    headers = {}
    if body.word_timestamps:
        words = json.dumps(_timestamps(parts), separators=(",", ":"))  # ASCII, as headers must be
        if len(words) <= MAX_TIMESTAMP_HEADER:
            headers["X-Word-Timestamps"] = words
        else:
            headers["X-Word-Timestamps-Omitted"] = str(len(words))
    return Response(_join(job, parts), media_type=_media_type(body), headers=headers)


def _timestamps(parts: list[Encoded]) -> list[Any] | None:
    if any(part.words is None for part in parts):
        return None
    return [msgspec.to_builtins(word) for part in parts for word in part.words or ()]


def _join(job: Job, parts: list[Encoded]) -> bytes:
    data = b"".join(part.payload for part in parts)
    if job.format.codec != "wav":
        return data
    # the stream's header could not know the length; a file's should
    samples = data[len(wav_header(job.format.sample_rate)) :]
    return wav_header(job.format.sample_rate, len(samples) // 2) + samples


def _media_type(body: SpeechBody) -> str:
    return MEDIA_TYPES[body.response_format]


def _code(error: DuplexError) -> dict[str, str]:
    return {"error_code": error.code.value}


def _event(message: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(message) + b"\n\n"
