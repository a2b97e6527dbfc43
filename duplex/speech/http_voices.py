"""`/v1/audio/voices`: what voices there are, uploading and deleting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from duplex.core.errors import DuplexError, ErrorCode
from duplex.speech.http_common import Count, Guard, check_length, guarded, too_large
from duplex.speech.synthesis import Synthesis
from duplex.speech.voices import MAX_VOICE_BYTES

_MAX_UPLOAD_BYTES: Final = MAX_VOICE_BYTES + 256 * 1024
"""A recording and the words about it."""
_FIELDS: Final = ("name", "consent", "ref_text", "speaker_description")


class VoiceRoutes:
    """The voices of the models and the stored ones. Arguments as of `SpeechRoutes`."""

    def __init__(self, synthesis: Synthesis, guard: Guard, count: Count) -> None:
        self._synthesis = synthesis
        self._guard = guard
        self._count = count

    @property
    def routes(self) -> list[Route]:
        """For the server's application."""
        many, one = "/v1/audio/voices", "/v1/audio/voices/{name}"
        return [
            Route(path, guarded(handler, self._guard, self._count), methods=[method])
            for path, handler, method in (
                (many, self.list_voices, "GET"),
                (many, self.add_voice, "POST"),
                (one, self.remove_voice, "DELETE"),
            )
        ]

    async def list_voices(self, request: Request) -> Response:
        """Names that `voice` may have, of one model (`?model=`) or of the default one, and the uploads."""
        _, adapter = self._synthesis.model(request.query_params.get("model"))
        own = adapter.speech.voices
        store = self._synthesis.voices
        uploaded = await asyncio.to_thread(lambda: store.uploaded)
        names = [name for voice in own for name in (voice.id, *voice.aliases)]
        return JSONResponse(
            {
                "voices": [*dict.fromkeys([*names, *store.precomputed])],
                "uploaded_voices": [msgspec.to_builtins(record) for record in uploaded],
                "details": [msgspec.to_builtins(voice) for voice in own],
            }
        )

    async def add_voice(self, request: Request) -> Response:
        """Upload a recording. The same upload again changes nothing and is answered alike, with 200."""
        form = await _form(request)
        try:
            fields = {name: str(form.get(name) or "") for name in _FIELDS}
            sample = form.get("audio_sample")
            if not isinstance(sample, UploadFile):
                raise DuplexError(
                    ErrorCode.INVALID_VALUE, "audio_sample must be a file", param="audio_sample"
                )
            audio = await sample.read(MAX_VOICE_BYTES + 1)
            kind = sample.content_type or ""
        finally:
            await form.close()
        self._check_free(fields["name"])
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
        return JSONResponse({"success": True, "message": f"voice {name[:64]} deleted"})

    def _check_free(self, name: str) -> None:
        """A stored voice goes before a model's own one, which an upload must not take away from others."""
        taken = {"default"}
        for adapter in self._synthesis.models.values():
            taken.update(n.casefold() for voice in adapter.speech.voices for n in (voice.id, *voice.aliases))
        if name.strip().casefold() in taken:
            raise DuplexError(
                ErrorCode.VOICE_EXISTS, f"voice {name.strip()} is one of a model's own", param="name"
            )


async def _form(request: Request) -> FormData:
    """The multipart form, read no further than an upload may be long.

    Raises:
        DuplexError: `INVALID_VALUE`, `MESSAGE_TOO_LARGE`.
    """
    check_length(request, _MAX_UPLOAD_BYTES)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise DuplexError(ErrorCode.INVALID_VALUE, "the body must be multipart/form-data")
    over = False

    async def bounded() -> AsyncGenerator[bytes, None]:
        nonlocal over
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > _MAX_UPLOAD_BYTES:
                over = True
                raise MultiPartException("too large")  # the parser closes its files for this one
            yield chunk

    try:
        parser = MultiPartParser(request.headers, bounded(), max_files=1, max_fields=8)
        return await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        if over:
            raise too_large(_MAX_UPLOAD_BYTES) from None
        words = getattr(error, "message", "it has no boundary or is cut off")
        raise DuplexError(ErrorCode.INVALID_VALUE, f"the form cannot be read: {words}") from None
