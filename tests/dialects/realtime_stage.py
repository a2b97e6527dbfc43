"""The Realtime dialect on the session core, in virtual time: messages in, messages out, no sockets."""

from __future__ import annotations

import base64
import json
from typing import Any

from duplex.core.commands import Command
from duplex.core.effects import (
    AbortResponse,
    AppendInput,
    CommitInput,
    Effect,
    ForgetInput,
    Send,
    StartResponse,
    UpdateAdapter,
)
from duplex.core.errors import DuplexError
from duplex.core.events import ResponseAudio
from duplex.core.facts import ModelFacts
from duplex.core.session import Session
from duplex.core.settings import apply_changes
from duplex.core.types import (
    EncodedAudio,
    LengthReached,
    Modality,
    SessionSettings,
    Signal,
    SpeechStarted,
    SpeechStopped,
    TextDelta,
    ToolCallDelta,
    Transcript,
    Turn,
    TurnEnded,
    Window,
)
from duplex.dialects.realtime import RealtimeDialect

RATE = 24000
SILENCE = base64.b64encode(bytes(2 * RATE // 10)).decode()
"""100 ms."""
Message = dict[str, Any]


class Stage:
    """One client of one session. `log` is all that it got, `new` what came since it was last asked."""

    def __init__(
        self,
        *,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        asked: Message | None = None,
        inputs: tuple[Modality, ...] = tuple(Modality),
        outputs: tuple[Modality, ...] = (Modality.TEXT, Modality.AUDIO),
        default: tuple[Modality, ...] | None = None,
        voices: tuple[str, ...] = ("heart", "bella"),
        answers_updates: bool = True,
    ) -> None:
        self.dialect = RealtimeDialect(frozenset({"model"}), asked, tag="t")
        self.request = self.dialect.open(query or {}, headers or {})
        self.session = Session(
            session_id="sess_1",
            model=ModelFacts(
                id="model",
                input_modalities=inputs,
                output_modalities=outputs,
                default_output_modalities=default,
                voices=voices,
            ),
            settings=apply_changes(SessionSettings(), self.request.settings),
            while_active="refuse",
        )
        self.now = 100.0
        self.log: list[Message] = []
        self.order: list[str] = []
        """Types of messages, and names of effects, in the order that they happened."""
        self.windows: list[Window] = []
        self.turns: list[Turn] = []
        self.aborted: list[str] = []
        self.forgotten = 0
        self.commits: list[str | None] = []
        self._answers_updates = answers_updates
        self._seen = 0
        self.carry_out(self.session.opened(self.now))
        self.new()

    # --- the client ---------------------------------------------------------------------------------

    def send(self, type: str, **fields: Any) -> list[Message]:
        """One message of the client; what it causes."""
        return self.send_raw(json.dumps({"type": type, **fields}))

    def send_raw(self, frame: str | bytes) -> list[Message]:
        commands: list[Command] = []
        try:
            commands = self.dialect.decode(frame)
        except DuplexError as error:
            self.carry_out(self.session.reject(error, self.now))
        for command in commands:
            self.carry_out(self.session.feed(command, self.now))
        return self.new()

    def new(self) -> list[Message]:
        fresh, self._seen = self.log[self._seen :], len(self.log)
        return fresh

    def append(self, audio: str = SILENCE) -> list[Message]:
        return self.send("input_audio_buffer.append", audio=audio)

    def say(self, text: str, **fields: Any) -> list[Message]:
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        return self.send("conversation.item.create", item={**item, **fields})

    # --- the model ----------------------------------------------------------------------------------

    def signal(self, *signals: Signal) -> list[Message]:
        for signal in signals:
            self.carry_out(self.session.signal(signal, self.now))
        return self.new()

    def hear(self, text: str, *, started_ms: float = 0.0, stopped_ms: float = 900.0) -> list[Message]:
        """The user says something, the model hears it and ends the turn."""
        return self.signal(
            SpeechStarted(at_ms=started_ms),
            SpeechStopped(at_ms=stopped_ms),
            Transcript(text=text, final=True, started_ms=started_ms),
            TurnEnded(),
        )

    def answer_commit(self, has_input: bool = True) -> list[Message]:
        event_id = self.commits.pop(0)
        self.carry_out(self.session.committed(has_input, self.now, event_id=event_id))
        return self.new()

    @property
    def turn(self) -> Turn:
        return self.turns[-1]

    def text(self, text: str) -> list[Message]:
        self.carry_out(self.session.deliver(self.turn.epoch, TextDelta(text=text), self.now))
        return self.new()

    def audio(self, ms: int = 1000, text: str = "") -> list[Message]:
        """Sound that reaches the socket at once."""
        rate = self.turn.settings.output_format.sample_rate
        samples = rate * ms // 1000
        delta = EncodedAudio(
            payload=bytes(2 * samples), samples=samples, sample_rate=rate, level_dbfs=-20.0, text=text
        )
        self.carry_out(self.session.deliver(self.turn.epoch, delta, self.now))
        return self.new()

    def call(self, name: str, arguments: str, call_id: str = "call_1") -> list[Message]:
        delta = ToolCallDelta(call_id=call_id, name=name, arguments=arguments)
        self.carry_out(self.session.deliver(self.turn.epoch, delta, self.now))
        return self.new()

    def run_out(self) -> list[Message]:
        """The text of the response has as many tokens as it may have."""
        self.carry_out(self.session.deliver(self.turn.epoch, LengthReached(), self.now))
        return self.finish()

    def finish(self) -> list[Message]:
        self.carry_out(self.session.response_finished(self.turn.epoch, self.now))
        return self.new()

    def answer(self, text: str = "It is noon.", ms: int = 1000) -> list[Message]:
        """A whole response."""
        return [*self.text(text), *self.audio(ms, text), *self.finish()]

    # --- the runtime --------------------------------------------------------------------------------

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    for frame in self.dialect.encode(effect.event):
                        assert isinstance(frame, str)
                        message = json.loads(frame)
                        self.log.append(message)
                        self.order.append(message["type"])
                    if isinstance(effect.event, ResponseAudio):
                        self.session.written(effect.event, self.now)
                case AppendInput():
                    self.windows.append(effect.window)
                case CommitInput():
                    self.commits.append(effect.event_id)
                case ForgetInput():
                    self.forgotten += 1
                case StartResponse():
                    self.turns.append(effect.turn)
                case AbortResponse():
                    self.aborted.append(effect.response_id)
                    self.order.append("abort")
                case UpdateAdapter() if self._answers_updates:
                    applied = self.session.settings_applied
                    self.carry_out(applied(effect.settings, self.now, event_id=effect.event_id))
                case _:
                    pass


def types(messages: list[Message]) -> list[str]:
    return [message["type"] for message in messages]


def only(messages: list[Message], type: str) -> Message:
    """The one message of that type."""
    (found,) = [message for message in messages if message["type"] == type]
    return found
