"""The speech WebSocket's state machine: messages and unit progress in, effects out. Sans-I/O.

A socket has contexts: independent lines of speech, the unnamed one and those a client names. A context speaks
*utterances* one after another; an utterance is the text up to `input.done`; it is spoken in *units*
(sentences, clauses, or all of it), one at a time. Units get a serial number; what arrives for a unit that is
not its context's running one is dropped here, so nothing follows `audio.cancelled`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from duplex.adapters.speech import WordTime
from duplex.adapters.text import Splitter
from duplex.core.errors import DuplexError, ErrorCode
from duplex.speech.fields import SocketConfig, parse

MAX_CONTEXTS: Final = 32
MAX_CONTEXT_ID: Final = 128
MAX_CONFIG_BYTES: Final = 4 * 1024 * 1024
MAX_TEXT_BYTES: Final = 128 * 1024
MAX_PENDING_CHARACTERS: Final = 512 * 1024
"""Text of all contexts that waits to be spoken."""
CONFIG_TIMEOUT_S: Final = 10.0
IDLE_TIMEOUT_S: Final = 30.0
MAX_ERRORS: Final = 16
"""Bad messages in a row before the connection is closed (4400)."""


class _Effect(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Tell(_Effect, frozen=True, kw_only=True):
    """Send this JSON object."""

    message: dict[str, Any]


class Audio(_Effect, frozen=True, kw_only=True):
    """Send the unit's audio: as a binary frame, or in JSON with its word times."""

    unit: int
    payload: bytes
    json: dict[str, Any] | None = None


class StartUnit(_Effect, frozen=True, kw_only=True):
    """Synthesise. `text` is complete unless `open`: then more comes by `FeedUnit` and ends by `EndUnit`."""

    unit: int
    text: str
    config: SocketConfig
    open: bool = False


class FeedUnit(_Effect, frozen=True, kw_only=True):
    unit: int
    text: str


class EndUnit(_Effect, frozen=True, kw_only=True):
    unit: int


class AbortUnit(_Effect, frozen=True, kw_only=True):
    """Stop the work and drop what is queued of it."""

    unit: int


class CheckConfig(_Effect, frozen=True, kw_only=True):
    """Ask the model whether it can serve this; answer with `config_accepted` or `config_refused`."""

    config: SocketConfig
    context: str | None


class SetTimer(_Effect, frozen=True, kw_only=True):
    """Call `timer(now)` at `at`, seconds; replaces the one before."""

    at: float


class Close(_Effect, frozen=True, kw_only=True):
    code: int
    reason: str


Effect: TypeAlias = Tell | Audio | StartUnit | FeedUnit | EndUnit | AbortUnit | CheckConfig | SetTimer | Close


class _Utterance:
    __slots__ = ("config", "count", "ended", "index", "pending", "splitter")

    def __init__(self, index: int, config: SocketConfig) -> None:
        self.index = index
        self.config = config
        self.splitter = Splitter(config.split_granularity)
        self.pending: deque[str] = deque()
        self.count = 0
        """Units handed out or pending so far."""
        self.ended = False


class _Context:
    __slots__ = ("chunk", "config", "id", "next_index", "running", "sentence", "utterances")

    def __init__(self, id: str | None) -> None:
        self.id = id
        self.config: SocketConfig | None = None
        self.utterances: deque[_Utterance] = deque()
        self.next_index = 0
        self.running: int | None = None
        self.sentence = 0
        self.chunk = 0

    @property
    def open_utterance(self) -> _Utterance | None:
        """The utterance that still takes text."""
        last = self.utterances[-1] if self.utterances else None
        return last if last is not None and not last.ended else None

    @property
    def tag(self) -> dict[str, Any]:
        return {} if self.id is None else {"context_id": self.id}


class SpeechSocket:
    """One connection. `config` None: the client has to send `session.config` first.

    `rate_of` gives the output rate (Hz) of an accepted configuration that names none.
    """

    def __init__(
        self, config: SocketConfig | None, now: float, *, rate_of: Callable[[SocketConfig], int]
    ) -> None:
        self.config = config
        self._rate_of = rate_of
        self.closed = False
        self._contexts: dict[str | None, _Context] = {}
        self._units: dict[int, _Context] = {}
        self._serial = 0
        self._errors = 0
        self._checking = 0
        self._draining = False
        self._held: deque[dict[str, Any]] = deque()
        self._last_activity = now

    @property
    def busy(self) -> bool:
        """Something is being spoken."""
        return bool(self._units)

    def opened(self, preset: SocketConfig | None = None) -> list[Effect]:
        """The client is there; `preset` came with the handshake."""
        effects: list[Effect] = [SetTimer(at=self._due())]
        if preset is not None:
            self._checking += 1
            effects.append(CheckConfig(config=preset, context=None))
        return effects

    # --- messages -----------------------------------------------------------------------------------

    def feed(self, frame: str | bytes, now: float) -> list[Effect]:
        """One frame from the client. What is wrong with it becomes an `error` message."""
        if self.closed:
            return []
        self._last_activity = now
        context: str | None = None
        try:
            message = self._decode(frame)
            context = message.get("context_id")
            effects = self._dispatch(message)
        except DuplexError as error:
            self._errors += 1
            effects = self._refuse(error, context if isinstance(context, str) else None)
            if self._errors >= MAX_ERRORS and not self.closed:
                effects += self.end(4400, f"{self._errors} bad messages in a row")
            return effects
        self._errors = 0
        return effects

    def _decode(self, frame: str | bytes) -> dict[str, Any]:
        if isinstance(frame, bytes):
            raise DuplexError(ErrorCode.INVALID_FRAME, "binary frames are not expected; send JSON text")
        if len(frame) > MAX_CONFIG_BYTES:
            raise DuplexError(ErrorCode.MESSAGE_TOO_LARGE, f"message over {MAX_CONFIG_BYTES} bytes")
        try:
            message = msgspec.json.decode(frame)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
            raise DuplexError(ErrorCode.INVALID_JSON, f"message is not JSON: {error}") from None
        if not isinstance(message, dict):
            raise DuplexError(ErrorCode.NOT_AN_OBJECT, "message must be a JSON object")
        if not isinstance(message.get("type"), str):
            raise DuplexError(ErrorCode.MISSING_TYPE, "message needs a string `type`", param="type")
        return message

    def _dispatch(self, message: dict[str, Any]) -> list[Effect]:
        if self._checking and message["type"] in ("session.config", "input.text", "input.done"):
            # a configuration is being checked: what follows it must see its outcome
            if len(self._held) >= 64:
                raise DuplexError(ErrorCode.INPUT_OVERFLOW, "too many messages before the configuration")
            self._held.append(message)
            return []
        match message["type"]:
            case "session.config":
                return self._configure(message)
            case "input.text":
                return self._text(message)
            case "input.done":
                return self._done(message)
            case "input.cancel":
                return self._cancel(message)
            case "session.close":
                return self.end(1000, "closed by the client")
            case kind:
                raise DuplexError(ErrorCode.UNKNOWN_TYPE, f"unknown message type: {kind[:64]}", param="type")

    def _configure(self, message: dict[str, Any]) -> list[Effect]:
        name = self._context_id(message)
        touched = [self._contexts[name]] if name in self._contexts else []
        if name is None:
            touched = list(self._contexts.values())
        if any(context.utterances for context in touched):
            raise DuplexError(
                ErrorCode.INVALID_VALUE,
                "session.config is refused while an utterance is open; the old one stays",
            )
        raw = {key: value for key, value in message.items() if key not in ("type", "context_id")}
        base = self._contexts[name].config if name in self._contexts else None
        config = parse(raw, SocketConfig, base or self.config or SocketConfig())
        self._checking += 1
        return [CheckConfig(config=config, context=name)]

    def config_accepted(self, config: SocketConfig, context: str | None) -> list[Effect]:
        """The model can serve it."""
        self._checking -= 1
        if context is None:
            self.config = config
            for existing in self._contexts.values():
                existing.config = None
        else:
            self._context(context).config = config
        return self._release()

    def config_refused(self, error: DuplexError, context: str | None) -> list[Effect]:
        """The model cannot: the old one stays."""
        self._checking -= 1
        return self._refuse(error, context) + self._release()

    def _release(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._held and not self._checking and not self.closed:
            message = self._held.popleft()
            try:
                effects += self._dispatch(message)
            except DuplexError as error:
                effects += self._refuse(error, message.get("context_id"))
        return effects

    def _text(self, message: dict[str, Any]) -> list[Effect]:
        text = message.get("text")
        if not isinstance(text, str):
            raise DuplexError(ErrorCode.INVALID_VALUE, "input.text needs a string `text`", param="text")
        if len(text) > MAX_TEXT_BYTES or len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
            raise DuplexError(ErrorCode.INPUT_OVERFLOW, f"text over {MAX_TEXT_BYTES} bytes", param="text")
        if self._pending() + len(text) > MAX_PENDING_CHARACTERS:
            raise DuplexError(
                ErrorCode.INPUT_OVERFLOW, f"more than {MAX_PENDING_CHARACTERS} characters wait to be spoken"
            )
        context = self._context(self._context_id(message))
        if not text:
            return []
        utterance = self._open(context)
        if utterance.config.split_granularity == "none" and utterance.config.stream_text:
            return self._stream_text(context, utterance, text)
        return self._queue(context, utterance, utterance.splitter.feed(text))

    def _stream_text(self, context: _Context, utterance: _Utterance, text: str) -> list[Effect]:
        """Granularity none, spoken while it is written: one unit, fed as the text comes."""
        is_running = context.running is not None and context.utterances[0] is utterance
        if is_running:
            return [FeedUnit(unit=context.running or 0, text=text)]
        if utterance.pending:
            utterance.pending[0] += text
            return []
        return self._queue(context, utterance, [text])

    def _done(self, message: dict[str, Any]) -> list[Effect]:
        context = self._context(self._context_id(message))
        utterance = self._open(context)
        utterance.ended = True
        running = context.running if context.utterances[0] is utterance else None
        streams = utterance.config.split_granularity == "none" and utterance.config.stream_text
        if streams and running is not None:
            return [EndUnit(unit=running)]
        return self._queue(context, utterance, utterance.splitter.flush())

    def _cancel(self, message: dict[str, Any]) -> list[Effect]:
        """Stop a context: its running unit, its queue, its unfinished text. The connection speaks on."""
        context = self._contexts.get(self._context_id(message))
        answer: dict[str, Any] = {"type": "audio.cancelled"}
        if context is None or not context.utterances:
            tag = {"context_id": message["context_id"]} if message.get("context_id") is not None else {}
            return [Tell(message={**answer, "utterance_index": None, **tag})]
        effects: list[Effect] = []
        for position, utterance in enumerate(context.utterances):
            told = {**answer, "utterance_index": utterance.index, **context.tag}
            if position == 0 and context.running is not None:
                effects.append(AbortUnit(unit=context.running))
                told["sentence_index"] = context.sentence
                del self._units[context.running]
                context.running = None
            effects.append(Tell(message=told))
        context.utterances.clear()
        return effects + self._end_if_drained()

    # --- units --------------------------------------------------------------------------------------

    def _queue(self, context: _Context, utterance: _Utterance, units: list[str]) -> list[Effect]:
        for text in units:
            if text.strip():  # white space between units is not worth a sentence
                utterance.pending.append(text)
                utterance.count += 1
        return self._advance(context)

    def _advance(self, context: _Context) -> list[Effect]:
        """Start the next unit, if the context is free; tell of utterances that are over."""
        effects: list[Effect] = []
        while context.running is None and context.utterances:
            utterance = context.utterances[0]
            if utterance.pending:
                text = utterance.pending.popleft()
                self._serial += 1
                context.running = self._serial
                context.sentence = utterance.count - len(utterance.pending) - 1
                context.chunk = 0
                self._units[self._serial] = context
                config = utterance.config
                open_text = config.split_granularity == "none" and not utterance.ended
                started = {
                    "type": "audio.start",
                    "utterance_index": utterance.index,
                    "sentence_index": context.sentence,
                    "sentence_text": text,
                    "format": config.response_format,
                    "sample_rate": config.sample_rate or self._rate_of(config),
                    **context.tag,
                }
                effects.append(Tell(message=started))
                effects.append(StartUnit(unit=self._serial, text=text, config=config, open=open_text))
            elif utterance.ended:
                context.utterances.popleft()
                over = {
                    "type": "session.done",
                    "utterance_index": utterance.index,
                    "total_sentences": utterance.count,
                    **context.tag,
                }
                effects.append(Tell(message=over))
            else:
                break
        return effects + self._end_if_drained()

    def audio(
        self, unit: int, payload: bytes, words: tuple[WordTime, ...] | None, *, aligned: bool
    ) -> list[Effect]:
        """Encoded audio of a unit. `aligned`: word times were asked for, so it goes in JSON."""
        context = self._units.get(unit)
        if context is None or not payload:
            return []
        if not aligned:
            return [Audio(unit=unit, payload=payload)]
        timestamps = None if words is None else [msgspec.to_builtins(word) for word in words]
        head = {
            "type": "audio.chunk",
            "utterance_index": context.utterances[0].index,
            "sentence_index": context.sentence,
            "chunk_id": context.chunk,
            "timestamps": timestamps,
            **context.tag,
        }
        context.chunk += 1
        return [Audio(unit=unit, payload=payload, json=head)]

    def unit_ended(
        self,
        unit: int,
        total_bytes: int,
        *,
        error: DuplexError | None = None,
        finish_reason: str | None = None,
    ) -> list[Effect]:
        """A unit's last audio is queued, or it failed; the next one begins."""
        context = self._units.pop(unit, None)
        if context is None:
            return []
        context.running = None
        utterance = context.utterances[0]
        done: dict[str, Any] = {
            "type": "audio.done",
            "utterance_index": utterance.index,
            "sentence_index": context.sentence,
            "total_bytes": total_bytes,
            "error": error is not None,
            **context.tag,
        }
        if finish_reason == "length":
            done["finish_reason"] = finish_reason
        effects: list[Effect] = []
        if error is not None:
            effects += self._refuse(error, context.id)
        effects.append(Tell(message=done))
        if utterance.config.split_granularity == "none" and not utterance.ended:
            utterance.ended = True  # the unit failed, or was cut, before its text had ended
        return effects + self._advance(context)

    # --- the rest -----------------------------------------------------------------------------------

    def timer(self, now: float) -> list[Effect]:
        """The timer came due: idle, or never configured."""
        if self.closed:
            return []
        if self.busy:
            self._last_activity = now
        if (due := self._due()) > now:
            return [SetTimer(at=due)]
        code = ErrorCode.CONFIG_TIMEOUT if self.config is None else ErrorCode.IDLE_TIMEOUT
        words = "no session.config came" if self.config is None else "idle timeout"
        return self._refuse(DuplexError(code, words), None)

    def _due(self) -> float:
        return self._last_activity + (CONFIG_TIMEOUT_S if self.config is None else IDLE_TIMEOUT_S)

    def _refuse(self, error: DuplexError, context: str | None) -> list[Effect]:
        message: dict[str, Any] = {"type": "error", "message": error.message, "code": error.code.value}
        if error.param:
            message["param"] = error.param
        if context is not None:
            message["context_id"] = context
        effects: list[Effect] = [Tell(message=message)]
        if error.fatal:
            effects += self.end(error.code.traits.close_code, error.code.value)
        return effects

    def end(self, code: int, reason: str) -> list[Effect]:
        """Stop everything and close."""
        if self.closed:
            return []
        self.closed = True
        aborts: list[Effect] = [AbortUnit(unit=unit) for unit in self._units]
        self._units.clear()
        self._contexts.clear()
        return [*aborts, Close(code=code, reason=reason)]

    def refuse(self, error: DuplexError) -> list[Effect]:
        """The client may not come in: say why and close with the code of the fault."""
        effects = self._refuse(error, None)
        return effects if self.closed else effects + self.end(error.code.traits.close_code, error.code.value)

    def drain(self, grace_s: float) -> list[Effect]:
        """The server goes away: no new text, what is queued may be said within the grace."""
        self._draining = True
        notice = {"type": "server.draining", "grace_ms": int(grace_s * 1000)}
        return [Tell(message=notice), *self._end_if_drained()]

    def _end_if_drained(self) -> list[Effect]:
        if not self._draining or any(context.utterances for context in self._contexts.values()):
            return []
        return self.end(1012, "server draining")

    def fail(self, error: DuplexError) -> list[Effect]:
        """A fault outside any message: told; ends the connection if fatal."""
        return [] if self.closed else self._refuse(error, None)

    def _open(self, context: _Context) -> _Utterance:
        """The utterance that takes text, begun if need be."""
        utterance = context.open_utterance
        if utterance is None:
            config = context.config or self.config
            if config is None:
                raise DuplexError(ErrorCode.BAD_CONFIG, "session.config has to come first")
            utterance = _Utterance(context.next_index, config)
            context.next_index += 1
            context.utterances.append(utterance)
        return utterance

    def _context(self, name: str | None) -> _Context:
        context = self._contexts.get(name)
        if context is None:
            if len(self._contexts) >= MAX_CONTEXTS:
                idle = next((c for c in self._contexts.values() if not c.utterances), None)
                if idle is None:
                    raise DuplexError(
                        ErrorCode.INPUT_OVERFLOW, f"more than {MAX_CONTEXTS} contexts", param="context_id"
                    )
                del self._contexts[idle.id]
            context = self._contexts[name] = _Context(name)
        return context

    def _pending(self) -> int:
        return sum(
            sum(map(len, utterance.pending)) + len(utterance.splitter.pending)
            for context in self._contexts.values()
            for utterance in context.utterances
        )

    @staticmethod
    def _context_id(message: dict[str, Any]) -> str | None:
        name = message.get("context_id")
        if name is not None and not (isinstance(name, str) and 0 < len(name) <= MAX_CONTEXT_ID):
            raise DuplexError(
                ErrorCode.INVALID_VALUE,
                f"context_id must be a string of 1 to {MAX_CONTEXT_ID} characters",
                param="context_id",
            )
        return name
