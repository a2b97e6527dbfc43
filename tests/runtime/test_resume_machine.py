"""Sockets that break at any moment, and clients that come back, in virtual time: what a client has seen over
all its connections is what an uninterrupted one would have seen, less sound that was cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from runtime_fakes import FakeSocket, ManualClock
from session_driver import Monitor

from duplex.core import commands as c
from duplex.core import effects as fx
from duplex.core import types as t
from duplex.core.events import Event, PlaybackCleared, ResponseAudio, ResponseCancelled, SessionResumed
from duplex.core.facts import ModelFacts, SessionLimits
from duplex.core.session import Session
from duplex.dialects.base import Frame
from duplex.dialects.native import NativeDialect
from duplex.dialects.native_frames import unpack
from duplex.runtime.attachment import Attachment
from duplex.runtime.outbound import OutboundLimits, OutboundQueue

HOLD_S = 5.0
SPOKEN = (t.Modality.TEXT, t.Modality.AUDIO)
MODEL = ModelFacts(id="m", input_modalities=SPOKEN, output_modalities=SPOKEN)
NEVER = 1e6


class Recorded(NativeDialect):
    """Remembers what it encoded: what a client would get whose socket never broke."""

    def __init__(self, log: list[Frame], times: list[float], clock: ManualClock) -> None:
        super().__init__()
        self._log = log
        self._times = times
        self._clock = clock

    def encode(self, event: Event) -> list[Frame]:
        frames = super().encode(event)
        taken_over = any(isinstance(frame, str) and '"taken_over"' in frame for frame in frames)
        if not isinstance(event, SessionResumed) and not taken_over:
            self._log += frames
            self._times += [self._clock.now()] * len(frames)
        return frames


class StrictSocket(FakeSocket):
    """Nothing is written that the client was to stop before."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def write(self, frame: Frame) -> None:
        assert sound_of(frame) not in self._stage.cut, "sound that was cut is written"
        super().write(frame)


class Figures:
    bytes_out = resumed = replayed = lost = 0


class Stage:
    """A session, its attachment, and the runtime's part between them."""

    def __init__(self, frames: str, journal_bytes: int) -> None:
        self.clock = ManualClock()
        self.now = self.clock.now
        self.log: list[Frame] = []
        self.times: list[float] = []
        """When each was first written."""
        self.cut: set[int] = set()
        """Responses that the core has cut."""
        self.figures = Figures()
        self.monitor = Monitor()
        self.turn: t.Turn | None = None
        self.session = Session(
            session_id="s",
            model=MODEL,
            limits=SessionLimits(
                idle_timeout_s=NEVER, resume_grace_s=NEVER, response_stall_s=NEVER, input_stall_s=NEVER
            ),
        )
        self.limits = OutboundLimits(slow_reader_timeout_s=NEVER, journal_s=30.0, journal_bytes=journal_bytes)
        self.attachment = Attachment(
            self,
            self._queue,
            self.figures,  # type: ignore[arg-type]
            resume_token="token",
            hold_s=HOLD_S,
        )
        self.dialect = Recorded(self.log, self.times, self.clock)
        self.dialect.open({"ext": "resume,playback,lifecycle", "frames": frames}, {})

    def _queue(self, socket: Any, dialect: Any) -> OutboundQueue:
        return OutboundQueue(
            socket, dialect, self, limits=self.limits, clock=self.clock, traffic=self.figures
        )

    def step(self, step: Callable[..., list[fx.Effect]], *args: Any, **kwargs: Any) -> None:
        effects = step(*args, **kwargs)
        self.monitor.check(effects, cancelling=True)
        for effect in effects:
            queue = self.attachment.queue
            match effect:
                case fx.Send() if queue is not None:
                    if isinstance(effect.event, ResponseCancelled | PlaybackCleared) and effect.event.index:
                        self.cut.add(effect.event.index)
                    queue.put(effect.event)
                case fx.AbortResponse() if queue is not None:
                    queue.purge(effect.response_id)
                case fx.StartResponse():
                    self.turn = effect.turn
                case fx.SetTimer(name=name, at=at):
                    self.clock.call_at(at, lambda name=name: self.step(self.session.timer, name, self.now()))
                case fx.CloseTransport():
                    raise AssertionError("the session has ended")

    def feed(self, command: c.Command) -> None:
        self.step(self.session.feed, command, self.now())

    # --- for the queue ------------------------------------------------------------------------------

    def run_ahead_ms(self) -> tuple[float, float]:
        return self.session.run_ahead_ms(self.now()), self.session.settings.max_run_ahead_ms

    def audio_written(self, event: ResponseAudio) -> None:
        self.session.written(event, self.now())

    def too_slow(self, words: str) -> None:
        raise AssertionError(words)

    def cannot_encode(self, event: Event) -> None:
        raise AssertionError(event)


class Client:
    """Takes what its socket has, counts it, and remembers the numbers of what it saw."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.lost = 0
        self.next_seq = 1
        self.cut: set[int] = set()

    @property
    def last_seq(self) -> int:
        return self.next_seq - 1

    def receive(self, frame: Frame, log: list[Frame]) -> None:
        if isinstance(frame, bytes):
            self._see(self.next_seq, frame, log)
            return
        message = json.loads(frame)
        if message["type"] == "session.resumed":
            assert message["seq"] > self.last_seq
            self.lost += message["lost"]
            self.next_seq = message["seq"]
            return
        self._see(message.pop("seq"), json.dumps(message), log)

    def _see(self, seq: int, frame: Frame, log: list[Frame]) -> None:
        assert seq >= self.next_seq, "sent twice, or out of order"
        said = log[seq - 1]
        if isinstance(frame, str):
            assert isinstance(said, str)
            assert json.loads(frame) == json.loads(said)
            message = json.loads(frame)
            if message["type"] in ("response.cancelled", "playback.clear"):
                self.cut.add(message["response_index"] or -1)  # 0: before the first
        else:
            assert frame == said
        assert sound_of(said) not in self.cut, "sound of a response that the client knows to be cut"
        self.seen.append(seq)
        self.next_seq = seq + 1


def sound_of(frame: Frame) -> int:
    """The response whose sound a frame is; 0 for all else."""
    if isinstance(frame, bytes):
        return unpack(frame).response_index
    message = json.loads(frame)
    return int(message["response_index"]) if message.get("modality") == "audio" else 0


def cut_responses(log: list[Frame]) -> set[int]:
    """Responses that ended with a cancel, or whose sound was cleared."""
    messages = [json.loads(frame) for frame in log if isinstance(frame, str)]
    return {m["response_index"] for m in messages if m["type"] in ("response.cancelled", "playback.clear")}


class ResumeMachine(RuleBasedStateMachine):
    @initialize(frames=st.sampled_from(["json", "binary"]), small=st.booleans())
    def begin(self, frames: str, small: bool) -> None:
        self.stage = Stage(frames, 3000 if small else 1_000_000)
        self.client = Client()
        self.socket = StrictSocket(self.stage)
        self.taken = 0
        self.away_since: float | None = None
        self.texts = 0
        self.connection = self.stage.attachment.open(self.socket, self.stage.dialect)

    # --- the model ----------------------------------------------------------------------------------

    @property
    def speaking(self) -> bool:
        return self.stage.session.active_response is not None

    @rule(count=st.integers(1, 30))
    @precondition(lambda self: self.speaking)
    def say(self, count: int) -> None:
        turn = self.stage.turn
        assert turn is not None
        for _ in range(count):
            sound = t.EncodedAudio(
                payload=bytes([self.texts % 256]) * 96, samples=2400, sample_rate=24000, level_dbfs=-20.0
            )
            self.stage.step(self.stage.session.deliver, turn.epoch, sound, self.stage.now())
        self.texts += 1
        words = t.TextDelta(text=f"word {self.texts} ")
        self.stage.step(self.stage.session.deliver, turn.epoch, words, self.stage.now())

    @rule()
    @precondition(lambda self: self.speaking)
    def finish(self) -> None:
        queue = self.stage.attachment.queue
        assert queue is not None
        if not queue.audio_s:  # until then a response has not been written
            turn = self.stage.turn
            assert turn is not None
            self.stage.step(self.stage.session.response_finished, turn.epoch, self.stage.now())

    # --- the client ---------------------------------------------------------------------------------

    @rule()
    @precondition(lambda self: self.away_since is None)
    def ask(self) -> None:
        self.stage.feed(c.CreateResponse())

    @rule(index=st.sampled_from([None, None, 1, 2]))
    @precondition(lambda self: self.away_since is None)
    def cancel(self, index: int | None) -> None:
        self.stage.feed(c.CancelResponse(response_index=index))

    @rule(signal=st.sampled_from([t.SpeechStarted(at_ms=0), t.SpeechStopped(at_ms=0), t.TurnEnded()]))
    def voice(self, signal: t.Signal) -> None:
        """The model hears the user, or what had been said before the break."""
        self.stage.step(self.stage.session.signal, signal, self.stage.now())

    @rule(milliseconds=st.integers(0, 3000), index=st.sampled_from([None, 1, 2]))
    @precondition(lambda self: self.away_since is None)
    def acknowledge(self, milliseconds: int, index: int | None) -> None:
        self.stage.feed(c.PlaybackAck(cursor_ms=milliseconds, response_index=index))

    @rule(count=st.integers(1, 50))
    @precondition(lambda self: self.away_since is None)
    def receive(self, count: int) -> None:
        for frame in self.socket.frames[self.taken : self.taken + count]:
            self.client.receive(frame, self.stage.log)
            self.taken += 1

    @rule(takes=st.integers(1, 6))
    @precondition(lambda self: self.away_since is None and not self.socket.blocked)
    def read_slowly(self, takes: int) -> None:
        self.socket.takes = takes

    @rule()
    @precondition(lambda self: self.away_since is None and self.socket.blocked)
    def read_on(self) -> None:
        self.socket.unblock()

    # --- the network --------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.05, 0.5, 1.0, 4.0, 6.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.stage.clock.advance(seconds)

    @rule()
    @precondition(lambda self: self.away_since is None)
    def drop(self) -> None:
        """What the client had not read is gone."""
        self.away_since = self.stage.now()
        self.stage.attachment.detach(self.connection)

    @rule(takes=st.sampled_from([None, None, 2, 4]))
    def come_back(self, takes: int | None) -> None:
        """On another socket, whether or not the one before is known to be gone."""
        before, half_open = self.socket, self.away_since is None
        self.socket, self.taken, self.away_since = StrictSocket(self.stage), 0, None
        self.socket.takes = takes
        known = len(self.stage.log)
        self.connection = self.stage.attachment.take_over(
            self.socket, self.stage.dialect, self.client.last_seq
        )
        resumed = json.loads(self.socket.frames[0])
        assert resumed["type"] == "session.resumed"
        for frame in self.socket.frames[1:]:
            if sound_of(frame):
                at = self.stage.log.index(frame) if isinstance(frame, bytes) else json.loads(frame)["seq"] - 1
                old = at < known and self.stage.now() - self.stage.times[at] > HOLD_S
                assert not old, "sound of long ago is replayed as if it were new"
        if half_open:
            assert before.closed == (4409, "taken_over")

    # --- what holds ---------------------------------------------------------------------------------

    @invariant()
    def a_journal_is_bounded(self) -> None:
        queue = self.stage.attachment.queue if hasattr(self, "stage") else None
        if queue is not None and queue.journal is not None:
            assert queue.journal.bytes <= self.stage.limits.journal_bytes

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        if self.away_since is not None:
            self.come_back(None)
        if self.socket.blocked:
            self.socket.unblock()
        self.socket.takes = None
        for _ in range(200):  # let what waits for playback be written
            self.stage.clock.advance(1.0)
        for frame in self.socket.frames[self.taken :]:
            self.client.receive(frame, self.stage.log)
        log = self.stage.log
        missing = set(range(1, len(log) + 1)) - set(self.client.seen)
        cut = cut_responses(log)
        unexplained = [n for n in missing if sound_of(log[n - 1]) not in cut]
        assert len(unexplained) <= self.client.lost, "missed, not lost by name, and no sound that was cut"
        if not self.client.lost:
            assert not [n for n in missing if not sound_of(log[n - 1])]


def machine(frames: str = "json") -> ResumeMachine:
    machine = ResumeMachine()
    machine.begin(frames, small=False)
    machine.ask()
    return machine


@pytest.mark.parametrize("frames", ["json", "binary"])
def test_sound_that_was_played_long_ago_is_not_replayed_as_new(frames: str) -> None:
    story = machine(frames)
    story.say(1)
    story.finish()
    story.wait(1.0)  # by the estimate it was played when the socket broke; the client never got it
    story.drop()
    story.wait(6.0)
    story.come_back(None)
    assert not [frame for frame in story.socket.frames if sound_of(frame)]


@pytest.mark.parametrize("frames", ["json", "binary"])
def test_cut_while_a_replay_waits_for_the_socket(frames: str) -> None:
    story = machine(frames)
    story.say(8)
    story.drop()
    story.wait(0.5)
    story.come_back(4)  # session.resumed, session.created, response.created and one of sound
    assert len([frame for frame in story.socket.frames if sound_of(frame)]) == 1
    story.cancel(None)
    story.read_on()
    assert len([frame for frame in story.socket.frames if sound_of(frame)]) == 1
    story.teardown()


def test_an_answer_goes_on_where_it_stopped() -> None:
    story = machine()
    story.say(8)
    story.receive(4)
    story.drop()
    story.wait(0.5)
    story.say(3)
    story.come_back(None)
    story.finish()
    story.teardown()
    assert sorted(story.client.seen) == list(range(1, len(story.stage.log) + 1))
    assert not story.stage.cut


def test_an_answer_that_waited_too_long_is_cut() -> None:
    story = machine()
    story.say(8)
    story.drop()
    story.wait(6.0)
    assert story.stage.cut == {1}
    assert story.stage.session.active_response is None
    story.come_back(None)
    assert not [frame for frame in story.socket.frames if sound_of(frame)]
    ends = [json.loads(frame) for frame in story.socket.frames if "cancelled" in str(frame)]
    assert [(end["reason"], end["response_index"]) for end in ends] == [("client_gone", 1)]


TestResumeMachine = ResumeMachine.TestCase
TestResumeMachine.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
