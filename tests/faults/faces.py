"""One client in two dialects: the same verbs, and what came in the same words, so that a fault is one test.

A `Client` numbers responses 1, 2, … in both dialects. Kinds of what it hears:

opened · created · text · audio · done · cancelled · failed (one of the three ends each response) · cut (how
much of a response was heard, in ms) · speech, speech over · transcript · error (code and event id) · notice
(of a drain) · lag · other
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from gateway_peer import PATIENCE_S, Peer
from websockets.exceptions import ConnectionClosed

from duplex.server.run import Gateway

Dialect = Literal["native", "realtime"]
RATE = 24000
ENDS = ("done", "cancelled", "failed")
EXTENSIONS = "signals,playback,lifecycle"
PATHS = {"native": "/v1/duplex", "realtime": "/v1/realtime"}
CODES = {
    "commit_empty": "input_audio_buffer_commit_empty",
    "missing_type": "invalid_event",
    "invalid_json": "invalid_event",
}
"""What Realtime's clients know errors as, where it is not the gateway's own name."""


class Heard(NamedTuple):
    kind: str
    index: int = 0
    """Of the response."""
    data: Any = None


class Client:
    """One connection. `heard` is all that came."""

    def __init__(self, peer: Peer, dialect: Dialect) -> None:
        self.peer = peer
        self.dialect = dialect
        self.heard: list[Heard] = []
        self._waiting: list[Heard] = []
        self._responses: dict[str, int] = {}
        self._items: dict[str, int] = {}

    @classmethod
    async def connect(
        cls,
        gateway: Gateway,
        dialect: Dialect,
        *,
        opened: bool = True,
        resume: Client | None = None,
        receive_buffer: int | None = None,
        headers: dict[str, str] | None = None,
        **query: str,
    ) -> Client:
        if resume is not None:
            query["resume"] = resume.ticket
        peer = await Peer.connect(
            gateway,
            PATHS[dialect],
            opened=False,
            receive_buffer=receive_buffer,
            headers=headers,
            **{"ext": EXTENSIONS, **query},
        )
        client = cls(peer, dialect)
        if opened:
            await client.expect("opened")
        return client

    @property
    def ticket(self) -> str:
        """The resume token."""
        (opened,) = [h for h in self.heard if h.kind == "opened"]
        return str(opened.data["resume_token"])

    # --- what the client says -----------------------------------------------------------------------

    async def _send(self, type: str, **fields: Any) -> None:
        await self.peer.send(type, **{k: v for k, v in fields.items() if v is not None})

    async def create(self, event_id: str | None = None) -> None:
        """Respond now."""
        await self._send("response.create", event_id=event_id)

    async def cancel(self, index: int | None = None, event_id: str | None = None) -> None:
        if self.dialect == "native":
            await self._send("response.cancel", response_index=index, event_id=event_id)
        else:
            known = {number: name for name, number in self._responses.items()}
            await self._send("response.cancel", response_id=known.get(index or 0), event_id=event_id)

    async def say(self, text: str) -> None:
        """A text of the user that is not answered yet."""
        if self.dialect == "native":
            await self._send("input.append", modality="text", data=text)
        else:
            content = [{"type": "input_text", "text": text}]
            item = {"type": "message", "role": "user", "content": content}
            await self._send("conversation.item.create", item=item)

    async def append(self, pcm: bytes, event_id: str | None = None) -> None:
        """Audio at 24 kHz."""
        data = base64.b64encode(pcm).decode()
        if self.dialect == "native":
            window = {"audio_base64": data, "sample_rate": RATE}
            await self._send("input.append", modality="audio", data=window, event_id=event_id)
        else:
            await self._send("input_audio_buffer.append", audio=data, event_id=event_id)

    async def commit(self, event_id: str | None = None) -> None:
        kind = "input.commit" if self.dialect == "native" else "input_audio_buffer.commit"
        await self._send(kind, event_id=event_id)

    async def heard_only(self, index: int, ms: float) -> None:
        """Of that response, which was cut, this much was heard."""
        if self.dialect == "native":
            await self._send("playback.ack", cursor=ms, response_index=index)
        else:
            (item_id,) = [name for name, number in self._items.items() if number == index]
            await self._send(
                "conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=int(ms)
            )

    async def settled(self) -> None:
        """All that the gateway had to say so far has come: errors keep their place behind it."""
        await self.peer.ws.send("{}")
        await self.expect("error", code=self.code("missing_type"))

    async def leave(self) -> None:
        """Say goodbye, and see the connection closed."""
        await self.peer.ws.close()

    # --- what it hears ------------------------------------------------------------------------------

    def code(self, name: str) -> str:
        """An error's code in this dialect."""
        return CODES.get(name, name) if self.dialect == "realtime" else name

    async def next(self) -> Heard:
        while not self._waiting:
            message = await self.peer.next()
            read = self._native(message) if self.dialect == "native" else self._realtime(message)
            self._waiting += read
        heard = self._waiting.pop(0)
        self.heard.append(heard)
        return heard

    async def expect(self, kind: str, index: int | None = None, code: str | None = None) -> Heard:
        """Read on until this comes."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                heard = await self.next()
                right = heard.kind == kind and index in (None, heard.index)
                if right and (code is None or heard.data["code"] == code):
                    return heard

    async def end_of(self, index: int) -> str:
        """How that response ends."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                heard = await self.next()
                if heard.kind in ENDS and heard.index == index:
                    return heard.kind

    async def until_closed(self) -> tuple[int, str]:
        """Read all that comes; the close code and reason."""
        try:
            while True:
                await self.next()
        except ConnectionClosed as closed:
            if closed.rcvd is None:
                raise AssertionError("the connection was lost without a close frame") from closed
            return closed.rcvd.code, closed.rcvd.reason

    def all(self, kind: str) -> list[Heard]:
        return [heard for heard in self.heard if heard.kind == kind]

    def stale(self) -> list[Heard]:
        """Deltas that came behind the end of their response, and second ends."""
        over: set[int] = set()
        stale = []
        for heard in self.heard:
            if heard.index in over and heard.kind in ("text", "audio", *ENDS):
                stale.append(heard)
            if heard.kind in ENDS:
                over.add(heard.index)
        return stale

    def sound(self, index: int) -> np.ndarray[Any, np.dtype[np.int16]]:
        """All audio of a response."""
        parts = [heard.data for heard in self.heard if heard.kind == "audio" and heard.index == index]
        return np.frombuffer(b"".join(parts), np.int16)

    def sound_ms(self, index: int) -> float:
        return len(self.sound(index)) / RATE * 1000

    # --- the two dialects ---------------------------------------------------------------------------

    def _native(self, message: dict[str, Any]) -> Iterator[Heard]:
        index = message.get("response_index", 0)
        match message["type"]:
            case "session.created":
                yield Heard("opened", data=message)
            case "response.created":
                yield Heard("created", index)
            case "response.delta" if message["modality"] == "audio":
                yield Heard("audio", index, base64.b64decode(message["data"]))
            case "response.delta":
                yield Heard("text", index, message["data"])
            case "response.done":
                yield Heard("done", index)
            case "response.cancelled":
                yield Heard("failed" if message["reason"] == "failed" else "cancelled", index, message)
                if "heard_ms" in message:
                    yield Heard("cut", index, message["heard_ms"])
            case "playback.clear":
                yield Heard("cut", index, message["heard_ms"])
            case "input.speech_started":
                yield Heard("speech", data=message["at_ms"])
            case "input.speech_stopped":
                yield Heard("speech over", data=message["at_ms"])
            case "input.transcript" if message["final"]:
                yield Heard("transcript", data=message["text"])
            case "error":
                yield Heard("error", data=message)
            case "drain.notice":
                yield Heard("notice", data=message["grace_ms"])
            case "input.lag":
                yield Heard("lag", data=message)
            case other:
                yield Heard("other", data=other)

    def _realtime(self, message: dict[str, Any]) -> Iterator[Heard]:
        index = self._responses.get(message.get("response_id", ""), 0)
        match message["type"]:
            case "session.created":
                yield Heard("opened", data=message)
            case "response.created":
                name = message["response"]["id"]
                # the gateway's ids count the responses of a session, over all its connections
                index = self._responses[name] = int(name.rpartition("_")[2])
                yield Heard("created", index)
            case "response.output_item.added":
                self._items[message["item"]["id"]] = index
            case "response.output_audio.delta":
                yield Heard("audio", index, base64.b64decode(message["delta"]))
            case "response.output_audio_transcript.delta" | "response.output_text.delta":
                yield Heard("text", index, message["delta"])
            case "response.done":
                response = message["response"]
                status = {"completed": "done"}.get(response["status"], response["status"])
                yield Heard(status, self._responses[response["id"]], response)
            case "conversation.item.truncated":
                yield Heard("cut", self._items[message["item_id"]], message["audio_end_ms"])
            case "input_audio_buffer.speech_started":
                yield Heard("speech", data=message["audio_start_ms"])
            case "input_audio_buffer.speech_stopped":
                yield Heard("speech over", data=message["audio_end_ms"])
            case "conversation.item.input_audio_transcription.completed":
                yield Heard("transcript", data=message["transcript"])
            case "error":
                yield Heard("error", data=message["error"])
            case "drain.notice":
                yield Heard("notice", data=message["grace_ms"])
            case "input.lag":
                yield Heard("lag", data=message)
            case other:
                yield Heard("other", data=other)


async def happens(event: asyncio.Event) -> None:
    """Wait for it, but not for ever."""
    await asyncio.wait_for(event.wait(), PATIENCE_S)


def loud(value: int, ms: float) -> bytes:
    """PCM of one value."""
    return np.full(int(RATE * ms / 1000), value, "<i2").tobytes()


def line(text: str) -> str:
    """A message of rubbish."""
    return json.dumps({"type": text})
