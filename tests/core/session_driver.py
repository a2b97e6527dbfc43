"""Drives a session in virtual time, the way a runtime does, and checks what must hold after every step."""

from __future__ import annotations

from typing import Any

import msgspec

from duplex.core import commands as c
from duplex.core import effects as fx
from duplex.core import events as ev
from duplex.core import types as t
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.session import ModelFacts, Session, SessionLimits

ALL = (t.Modality.TEXT, t.Modality.AUDIO, t.Modality.IMAGE, t.Modality.VIDEO, t.Modality.CODEC_WINDOW)
SPOKEN = (t.Modality.TEXT, t.Modality.AUDIO)
MODEL = ModelFacts(id="model", input_modalities=ALL, output_modalities=SPOKEN, proactive=True)
RATE = 24000
VIDEO = t.VideoWindow(kind="video/mp4", data=b"mp4")


class Monitor:
    """What must hold of any effects, in any order of events."""

    def __init__(self) -> None:
        self.away = False
        self.created: dict[str, int] = {}
        self.ended: dict[str, ev.Event] = {}
        self.aborted: list[str] = []
        self.released = 0
        self.session_ended = False
        self.over = False
        self.epochs: list[int] = []
        self.proactive: list[str] = []

    def check(self, effects: list[fx.Effect], *, cancelling: bool = False) -> None:
        assert not self.over or not effects, f"after the end: {effects}"
        for effect in effects:
            match effect:
                case fx.Send():
                    assert not self.away, f"nobody is there for {effect.event}"
                    assert not self.session_ended, f"after the last event: {effect.event}"
                    self._sent(effect.event, cancelling)
                case fx.StartResponse():
                    self._started(effect.turn)
                case fx.AbortResponse():
                    assert effect.response_id in self.created
                    assert effect.response_id not in self.aborted
                    assert effect.response_id not in self.ended, "told before it was aborted"
                    self.aborted.append(effect.response_id)
                case fx.ReleaseSlot():
                    self.released += 1
                    assert self.released == 1
                    before = effects[: effects.index(effect)]
                    assert not [e for e in before if isinstance(e, fx.Send)], "the slot is freed first"
                case fx.SetTimer() | fx.ClearTimer():
                    assert effect.name in fx.TimerName
                    assert isinstance(effect, fx.ClearTimer) or effect.at == effect.at
                case fx.CloseTransport():
                    assert self.released == 1
                    assert effect is effects[-1]
                    self.over = True

    def _sent(self, event: ev.Event, cancelling: bool) -> None:
        msgspec.json.encode(event)  # no text that cannot go to a wire
        match event:
            case ev.ResponseCreated():
                assert event.response_id not in self.created
                assert event.index == len(self.created) + 1
                self.created[event.response_id] = event.index
                assert len(self.created) - len(self.ended) == 1, "two responses active"
            case ev.ResponseText() | ev.ResponseAudio():
                assert event.response_id in self.created
                assert event.response_id not in self.ended, "a delta after the terminal event"
            case ev.ResponseCancelled() if event.response_id == "":
                assert cancelling, "the answer to no cancel"
            case ev.ResponseDone() | ev.ResponseCancelled() | ev.ResponseFailed():
                assert event.response_id in self.created
                assert event.response_id not in self.ended, "two terminal events"
                self.ended[event.response_id] = event
                stopped = not isinstance(event, ev.ResponseDone)
                assert stopped == (event.response_id in self.aborted)
            case ev.PlaybackCleared():
                assert event.response_id in self.ended
            case ev.SessionEnded():
                assert self.released == 1
                self.session_ended = True
                assert self.created.keys() == self.ended.keys(), "a response without a terminal event"

    def _started(self, turn: t.Turn) -> None:
        assert not self.away, "started for nobody"
        assert not self.released
        assert self.created[turn.response_id] == turn.index
        assert not self.epochs or turn.epoch > self.epochs[-1]
        self.epochs.append(turn.epoch)
        if turn.trigger is t.Trigger.PROACTIVE:
            assert turn.event_id is not None
            assert turn.event_id not in self.proactive, "answered twice"
            self.proactive.append(turn.event_id)


class Driver:
    """A session with a clock. Each method is one step; it returns what the client was sent by it."""

    def __init__(
        self,
        *,
        settings: dict[str, Any] | None = None,
        limits: SessionLimits | None = None,
        model: ModelFacts = MODEL,
        opened: bool = True,
        **options: Any,
    ) -> None:
        self.session = Session(
            session_id="s",
            model=model,
            settings=t.SessionSettings(**(settings or {})),
            limits=limits,
            **options,
        )
        self.monitor = Monitor()
        self.now = 100.0
        self.effects: list[fx.Effect] = []
        self.last: list[fx.Effect] = []
        self.turns: list[t.Turn] = []
        self.queue: list[ev.ResponseAudio] = []
        self.timers: dict[fx.TimerName, float] = {}
        if opened:
            self.do(self.session.opened(self.now))

    # --- what was seen ------------------------------------------------------------------------------

    @property
    def events(self) -> list[ev.Event]:
        return [e.event for e in self.effects if isinstance(e, fx.Send)]

    def of(self, kind: type) -> list[Any]:
        """Effects or events of a kind in the last step."""
        found = [e for e in self.last if isinstance(e, kind)]
        return found or [e.event for e in self.last if isinstance(e, fx.Send) and isinstance(e.event, kind)]

    def one(self, kind: type) -> Any:
        (found,) = self.of(kind)
        return found

    @property
    def turn(self) -> t.Turn:
        return self.turns[-1]

    @property
    def codes(self) -> list[ErrorCode]:
        """Codes of the errors of the last step."""
        return [event.code for event in self.of(ev.ErrorEvent)]

    @property
    def told(self) -> list[str]:
        """What the conversation has of the assistant."""
        return [i.text for i in self.session.conversation.items if i.role == "assistant"]

    @property
    def asked(self) -> list[str]:
        return [i.text for i in self.session.conversation.items if i.role == "user"]

    # --- steps --------------------------------------------------------------------------------------

    def do(self, effects: list[fx.Effect], *, cancelling: bool = False) -> list[ev.Event]:
        self.monitor.check(effects, cancelling=cancelling)
        self.last = effects
        self.effects += effects
        for effect in effects:
            match effect:
                case fx.StartResponse():
                    self.turns.append(effect.turn)
                case fx.AbortResponse():
                    self.queue = [e for e in self.queue if e.response_id != effect.response_id]
                case fx.Send() if isinstance(effect.event, ev.ResponseAudio):
                    self.queue.append(effect.event)
                case fx.SetTimer():
                    self.timers[effect.name] = effect.at
                case fx.ClearTimer():
                    self.timers.pop(effect.name, None)
        return [e.event for e in effects if isinstance(e, fx.Send)]

    def feed(self, command: c.Command) -> list[ev.Event]:
        return self.do(self.session.feed(command, self.now), cancelling=isinstance(command, c.CancelResponse))

    def append(self, window: t.Window, event_id: str | None = None) -> list[ev.Event]:
        return self.feed(c.Append(window=window, event_id=event_id))

    def say(self, text: str) -> list[ev.Event]:
        return self.append(t.TextWindow(text=text))

    def hear(self, pcm: bytes = bytes(640), rate: int = 16000) -> list[ev.Event]:
        """Microphone audio; 20 ms by default."""
        return self.append(t.AudioWindow(pcm=pcm, sample_rate=rate))

    def create(self, event_id: str | None = None, **options: Any) -> list[ev.Event]:
        return self.feed(c.CreateResponse(event_id=event_id, **options))

    def commit(self, event_id: str | None = None) -> list[ev.Event]:
        return self.feed(c.Commit(event_id=event_id))

    def committed(self, has_input: bool = True, **options: Any) -> list[ev.Event]:
        return self.do(self.session.committed(has_input, self.now, **options))

    def cancel(self, index: int | None = None, event_id: str | None = None) -> list[ev.Event]:
        return self.feed(c.CancelResponse(response_index=index, event_id=event_id))

    def ack(self, cursor_ms: float, index: int | None = None) -> list[ev.Event]:
        return self.feed(c.PlaybackAck(cursor_ms=cursor_ms, response_index=index))

    def update(self, event_id: str | None = None, **changes: Any) -> list[ev.Event]:
        return self.feed(c.UpdateSession(changes=changes, event_id=event_id))

    def close(self) -> list[ev.Event]:
        return self.feed(c.CloseSession())

    def text(self, text: str, turn: t.Turn | None = None) -> list[ev.Event]:
        epoch = (turn or self.turn).epoch
        return self.do(self.session.deliver(epoch, t.TextDelta(text=text), self.now))

    def sound(
        self, ms: float, text: str = "", *, turn: t.Turn | None = None, write: bool = True
    ) -> list[ev.Event]:
        """Audio of the response, written to the socket at once."""
        delta = t.EncodedAudio(
            payload=b"\0\0", samples=round(ms * RATE / 1000), sample_rate=RATE, level_dbfs=-20.0, text=text
        )
        sent = self.do(self.session.deliver((turn or self.turn).epoch, delta, self.now))
        if write:
            self.write()
        return sent

    def write(self) -> None:
        """All that is queued reaches the socket."""
        for event in self.queue:
            self.session.written(event, self.now)
        self.queue = []

    def finish(self, turn: t.Turn | None = None) -> list[ev.Event]:
        return self.do(self.session.response_finished((turn or self.turn).epoch, self.now))

    def fail(self, code: ErrorCode = ErrorCode.ADAPTER_FAILED) -> list[ev.Event]:
        error = DuplexError(code, "it broke")
        return self.do(self.session.response_failed(self.turn.epoch, error, self.now))

    def signal(self, signal: t.Signal) -> list[ev.Event]:
        return self.do(self.session.signal(signal, self.now))

    def wish(self, event_id: str) -> list[ev.Event]:
        return self.signal(t.WantsToSpeak(event_id=event_id))

    def speak(self, at_ms: float = 0.0) -> list[ev.Event]:
        return self.signal(t.SpeechStarted(at_ms=at_ms))

    def hush(self, at_ms: float = 0.0) -> list[ev.Event]:
        return self.signal(t.SpeechStopped(at_ms=at_ms))

    def turn_ended(self) -> list[ev.Event]:
        return self.signal(t.TurnEnded())

    def detach(self) -> list[ev.Event]:
        effects = self.session.detach(self.now)
        self.monitor.away = True
        return self.do(effects)

    def attach(self) -> list[ev.Event]:
        self.monitor.away = False
        return self.do(self.session.attach(self.now))

    def wait(self, seconds: float) -> None:
        """Let time pass. Timers that come due fire in their order."""
        end = self.now + seconds
        while self.timers and min(self.timers.values()) <= end:
            name = min(self.timers, key=self.timers.__getitem__)
            self.now = max(self.now, self.timers.pop(name))
            self.do(self.session.timer(name, self.now))
        self.now = end

    def timer(self, name: fx.TimerName) -> list[ev.Event]:
        """A timer fires now, due or not."""
        self.timers.pop(name, None)
        return self.do(self.session.timer(name, self.now))
