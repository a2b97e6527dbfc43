"""The speech WebSocket's state machine: messages and unit progress in, effects out. Sans-I/O.

A socket has contexts: independent lines of speech, the unnamed one and those a client names. A context speaks
*utterances* one after another; an utterance is the text up to `input.done`; it is spoken in *units*
(sentences, clauses, or all of it), one at a time. Units get a serial number; what arrives for a unit that is
not its context's running one is dropped here, so nothing follows `audio.cancelled`.

While a model checks a configuration, what its contexts send waits for the outcome; other contexts go on.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from duplex.adapters.speech import WordTime
from duplex.core.errors import DuplexError, ErrorCode
from duplex.speech.contexts import Context, Utterance
from duplex.speech.effects import (
    AbortUnit,
    Accepted,
    Audio,
    CheckConfig,
    Close,
    Effect,
    EndUnit,
    FeedUnit,
    SetTimer,
    StartUnit,
    Tell,
)
from duplex.speech.fields import SocketConfig, parse
from duplex.speech.gate import ConfigGate
from duplex.speech.messages import context_id, decode

MAX_CONTEXTS: Final = 32
"""Contexts that are known at a time; of those that are silent the one used longest ago makes room."""
MAX_TEXT_BYTES: Final = 128 * 1024
MAX_PENDING_CHARACTERS: Final = 512 * 1024
"""Text of all contexts that waits to be spoken."""
CONFIG_TIMEOUT_S: Final = 10.0
IDLE_TIMEOUT_S: Final = 30.0
MAX_ERRORS: Final = 16
"""Bad messages in a row before the connection is closed (4400)."""


class SpeechSocket:
    """One connection. `terms` None: the client has to send `session.config` first."""

    def __init__(
        self, terms: Accepted | None, now: float, *, config_timeout_s: float = CONFIG_TIMEOUT_S
    ) -> None:
        self.terms = terms
        self.closed = False
        self._configured = terms is not None
        self._preset = False
        """What is being checked came with the handshake, and nothing else can replace it."""
        self._contexts: dict[str | None, Context] = {}
        self._units: dict[int, Context] = {}
        self._serial = 0
        self._errors = 0
        self._gate = ConfigGate()
        self._ending: Close | None = None
        self._opened_at = now
        self._config_timeout_s = config_timeout_s
        self._last_activity = now
        self._heard = False  # audio since the timer came due

    @property
    def busy(self) -> bool:
        """Something is being spoken. Speech that waits for its client's text is not."""
        return any(not context.utterances[0].starves for context in self._units.values())

    def opened(self, preset: SocketConfig | None = None) -> list[Effect]:
        """The client is there; `preset` came with the handshake."""
        effects: list[Effect] = [SetTimer(at=self._due())]
        if preset is not None:
            self._preset = True
            self._gate.begin(None)
            effects.append(CheckConfig(config=preset, context=None))
        return effects

    # --- messages -----------------------------------------------------------------------------------

    def feed(self, frame: str | bytes, now: float) -> list[Effect]:
        """One frame from the client. What is wrong with it becomes an `error` message."""
        if self.closed:
            return []
        self._last_activity = now
        name: object = None
        try:
            message = decode(frame)
            name = message.get("context_id")
            context_id(message)
            effects = self._take(message, len(frame))
        except DuplexError as error:
            self._errors += 1
            effects = self._refuse(error, name)
            if self._errors >= MAX_ERRORS and not self.closed:
                effects += self.end(4400, f"{self._errors} bad messages in a row")
            return effects
        self._errors = 0
        return effects

    def _take(self, message: dict[str, Any], size: int) -> list[Effect]:
        """Do what the message asks, or hold it until a configuration before it is accepted or refused."""
        if not self._gate.has_to_wait(message):
            return self._dispatch(message)
        self._gate.hold(message, size)
        return []

    def _dispatch(self, message: dict[str, Any]) -> list[Effect]:
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
                return self._close()
            case kind:
                raise DuplexError(ErrorCode.UNKNOWN_TYPE, f"unknown message type: {kind[:64]}", param="type")

    def _configure(self, message: dict[str, Any]) -> list[Effect]:
        name = message.get("context_id")
        touched = [self._contexts[name]] if name in self._contexts else []
        if name is None:
            touched = list(self._contexts.values())
        if any(context.utterances for context in touched):
            raise DuplexError(
                ErrorCode.INVALID_VALUE,
                "session.config is refused while an utterance is open; the old one stays",
            )
        raw = {key: value for key, value in message.items() if key not in ("type", "context_id")}
        own = self._contexts[name].terms if name in self._contexts else None
        base = own or self.terms
        config = parse(raw, SocketConfig, base.config if base is not None else SocketConfig())
        self._gate.begin(name)
        return [CheckConfig(config=config, context=name)]

    def config_accepted(self, terms: Accepted, context: str | None) -> list[Effect]:
        """The model can serve it."""
        if self.closed:
            return []
        self._checked(context)
        effects: list[Effect] = []
        if context is None:
            self.terms = terms
            for existing in self._contexts.values():
                existing.terms = None
        else:
            try:
                self._context(context).terms = terms
            except DuplexError as error:
                return self._refuse(error, context) + self._release()
        self._configured = True
        return effects + self._release()

    def config_refused(self, error: DuplexError, context: str | None) -> list[Effect]:
        """The model cannot: the old one stays. What came with the handshake has none before it."""
        if self.closed:
            return []
        if self._preset:
            return self.refuse(error)
        self._checked(context)
        effects = self._refuse(error, context)
        return effects + self._release()

    def _checked(self, context: str | None) -> None:
        self._gate.end(context)
        self._preset = False

    def _release(self) -> list[Effect]:
        """Go on with what was held; what still has to wait keeps its order."""
        effects: list[Effect] = []
        for message, size in self._gate.take_all():
            if self.closed:
                break
            try:
                effects += self._take(message, size)
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
        if not text:
            return []
        context, utterance = self._open(message.get("context_id"))
        text = utterance.whole_characters(text)
        if utterance.deaf or not text:
            return []
        if utterance.streams and context.running is not None and context.utterances[0] is utterance:
            utterance.waiting += len(text)
            return [FeedUnit(unit=context.running, text=text)]
        utterance.put(text)
        return self._advance(context)

    def _done(self, message: dict[str, Any]) -> list[Effect]:
        context, utterance = self._open(message.get("context_id"))
        utterance.ended = True
        if utterance.streams and context.running is not None and context.utterances[0] is utterance:
            return [EndUnit(unit=context.running)]
        return self._advance(context)

    def _cancel(self, message: dict[str, Any]) -> list[Effect]:
        """Stop a context: its running unit, its queue, its unfinished text. The connection speaks on."""
        name = message.get("context_id")
        self._gate.cancel(name)
        context = self._contexts.get(name)
        if context is None or not context.utterances:
            tag = {} if name is None else {"context_id": name}
            return [Tell(message={"type": "audio.cancelled", "utterance_index": None, **tag})]
        effects: list[Effect] = []
        while context.utterances:
            effects += self._drop(context, context.utterances[0])
        return effects + self._end_if_over()

    def _close(self) -> list[Effect]:
        """The client goes: what it has ended is spoken, what it has not is dropped."""
        effects: list[Effect] = []
        for context in self._contexts.values():
            utterance = context.open_utterance
            if utterance is not None:
                effects += self._drop(context, utterance)
        self._ending = self._ending or Close(code=1000, reason="closed by the client")
        return effects + self._end_if_over()

    def _drop(self, context: Context, utterance: Utterance) -> list[Effect]:
        """Speak nothing more of it, and say so. `more`: of the same cancel, another utterance is told of."""
        effects: list[Effect] = []
        last = context.utterances[-1]
        told: dict[str, Any] = {"type": "audio.cancelled", "utterance_index": utterance.index, **context.tag}
        if context.running is not None and context.utterances[0] is utterance:
            effects.append(AbortUnit(unit=context.running))
            told["sentence_index"] = context.sentence
            del self._units[context.running]
            context.running = None
        context.utterances.remove(utterance)
        if utterance is not last:
            told["more"] = True
        return [*effects, Tell(message=told)]

    # --- units --------------------------------------------------------------------------------------

    def _advance(self, context: Context) -> list[Effect]:
        """Start the next unit, if the context is free; tell of utterances that are over."""
        effects: list[Effect] = []
        while context.running is None and context.utterances:
            utterance = context.utterances[0]
            text = utterance.next_unit()
            if text is not None:
                effects += self._start(context, utterance, text)
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
        return effects + self._end_if_over()

    def _start(self, context: Context, utterance: Utterance, text: str) -> list[Effect]:
        self._serial += 1
        context.running = self._serial
        context.sentence = utterance.count
        context.chunk = 0
        utterance.count += 1
        self._units[self._serial] = context
        terms = utterance.terms
        open_text = utterance.streams and not utterance.ended
        if open_text:
            utterance.waiting = len(text)
        started = {
            "type": "audio.start",
            "utterance_index": utterance.index,
            "sentence_index": context.sentence,
            "sentence_text": text,
            "format": terms.config.response_format,
            "sample_rate": terms.sample_rate,
            **context.tag,
        }
        return [
            Tell(message=started),
            StartUnit(unit=self._serial, text=text, terms=terms, open=open_text),
        ]

    def taken(self, unit: int, characters: int) -> None:
        """The model has taken that much of an open unit's text."""
        context = self._units.get(unit)
        if context is not None:
            context.utterances[0].waiting -= characters

    def audio(
        self, unit: int, payload: bytes, words: tuple[WordTime, ...] | None, *, aligned: bool
    ) -> list[Effect]:
        """Encoded audio of a unit. `aligned`: word times were asked for. They go in JSON, and so does audio
        of a context that has a name: several speak at a time, and a binary frame does not say whose it is."""
        context = self._units.get(unit)
        if context is None or not (payload or (aligned and words)):
            return []
        self._heard = True
        if not aligned and context.id is None:
            return [Audio(unit=unit, payload=payload)]
        head: dict[str, Any] = {
            "type": "audio.chunk",
            "utterance_index": context.utterances[0].index,
            "sentence_index": context.sentence,
            "chunk_id": context.chunk,
            **context.tag,
        }
        if aligned:
            head["timestamps"] = None if words is None else [msgspec.to_builtins(word) for word in words]
        context.chunk += 1
        return [Audio(unit=unit, payload=payload, json=head)]

    def unit_ended(
        self,
        unit: int,
        total_bytes: int,
        now: float,
        *,
        error: DuplexError | None = None,
        finish_reason: str | None = None,
    ) -> list[Effect]:
        """A unit's last audio has left, or it failed; the next one begins."""
        context = self._units.pop(unit, None)
        if context is None:
            return []
        self._last_activity = max(self._last_activity, now)
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
            if self.closed:
                return effects
        effects.append(Tell(message=done))
        if utterance.streams and not utterance.ended:
            utterance.deaf = True  # it failed, or was cut, before its text had ended
        utterance.waiting = 0
        return effects + self._advance(context)

    # --- the rest -----------------------------------------------------------------------------------

    def timer(self, now: float) -> list[Effect]:
        """The timer came due: idle, or never configured."""
        if self.closed:
            return []
        if self.busy or self._heard or self._gate.checking:
            self._last_activity = now
            self._heard = False
        if (due := self._due()) > now:
            return [SetTimer(at=due)]
        code = ErrorCode.IDLE_TIMEOUT if self._configured else ErrorCode.CONFIG_TIMEOUT
        words = "idle timeout" if self._configured else "no session.config came"
        return self._refuse(DuplexError(code, words), None)

    def _due(self) -> float:
        if self._configured or self._gate.checking:
            return self._last_activity + IDLE_TIMEOUT_S
        return self._opened_at + self._config_timeout_s

    def _refuse(self, error: DuplexError, context: object) -> list[Effect]:
        message: dict[str, Any] = {"type": "error", "message": error.message, "code": error.code.value}
        if error.param:
            message["param"] = error.param
        if isinstance(context, str):
            message["context_id"] = context[:128]
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
        self._gate.take_all()
        return [*aborts, Close(code=code, reason=reason)]

    def refuse(self, error: DuplexError) -> list[Effect]:
        """The client may not come in: say why and close with the code of the fault."""
        effects = self._refuse(error, None)
        return effects if self.closed else effects + self.end(error.code.traits.close_code, error.code.value)

    def drain(self, grace_s: float) -> list[Effect]:
        """The server goes away: no new utterance, what has begun may be said within the grace."""
        if self.closed:
            return []
        self._ending = self._ending or Close(code=1012, reason="server draining")
        notice = {"type": "server.draining", "grace_ms": int(grace_s * 1000)}
        return [Tell(message=notice), *self._end_if_over()]

    def _end_if_over(self) -> list[Effect]:
        if self._ending is None or any(context.utterances for context in self._contexts.values()):
            return []
        return self.end(self._ending.code, self._ending.reason)

    def fail(self, error: DuplexError) -> list[Effect]:
        """A fault outside any message: told; ends the connection if fatal."""
        return [] if self.closed else self._refuse(error, None)

    def _open(self, name: str | None) -> tuple[Context, Utterance]:
        """The utterance of that context which takes text, begun if need be."""
        known = self._contexts.get(name)
        if known is not None and (utterance := known.open_utterance) is not None:
            return self._context(name), utterance
        if self._ending is not None:
            raise DuplexError(ErrorCode.SESSION_CLOSING, "the connection is closing: no new utterance")
        context = self._context(name)
        terms = context.terms or self.terms
        if terms is None:
            raise DuplexError(ErrorCode.INVALID_VALUE, "session.config has to come first", param="type")
        utterance = Utterance(context.next_index, terms)
        context.next_index += 1
        context.utterances.append(utterance)
        return context, utterance

    def _context(self, name: str | None) -> Context:
        context = self._contexts.pop(name, None)
        if context is None:
            if len(self._contexts) >= MAX_CONTEXTS:
                idle = [c for c in self._contexts.values() if not c.utterances]
                if not idle:
                    raise DuplexError(
                        ErrorCode.INPUT_OVERFLOW, f"more than {MAX_CONTEXTS} contexts", param="context_id"
                    )
                # the one used longest ago; one with a configuration of its own last
                del self._contexts[min(idle, key=lambda c: c.terms is not None).id]
            context = Context(name)
        self._contexts[name] = context  # the last used are at the end
        return context

    def _pending(self) -> int:
        contexts = self._contexts.values()
        return sum(utterance.pending for context in contexts for utterance in context.utterances)
