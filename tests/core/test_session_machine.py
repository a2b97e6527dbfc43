"""Any order of commands, deltas, signals, timers and failures: a hypothesis state machine drives a session
beside a model of the runtime and of the client's player."""

from __future__ import annotations

import math
from collections import deque

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from session_driver import VIDEO, Driver

from duplex.core import commands as c
from duplex.core import effects as fx
from duplex.core import events as ev
from duplex.core import types as t
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.session import SessionLimits, State

CHUNK_MS = 100.0
EVENT_IDS = st.sampled_from([None, "a", "b"])
LIMITS = SessionLimits(
    idle_timeout_s=60,
    close_grace_s=5,
    resume_grace_s=8,
    response_stall_s=20,
    input_stall_s=2,
    max_errors=3,
    window_history=4,
)


class Player:
    """The client: plays what was written in order, at real time, and drops what it is told to drop."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.played: dict[int, float] = {}
        self.written: dict[int, float] = {}
        self._queue: deque[list[float]] = deque()  # [response index, ms left]

    def advance(self, now: float) -> None:
        left = (now - self.now) * 1000
        self.now = now
        while self._queue and left > 0:
            chunk = self._queue[0]
            step = min(left, chunk[1])
            left -= step
            chunk[1] -= step
            self.played[int(chunk[0])] += step
            if chunk[1] <= 1e-6:
                self._queue.popleft()

    def write(self, event: ev.ResponseAudio) -> None:
        self._queue.append([event.index, event.duration_ms])
        self.played.setdefault(event.index, 0.0)
        self.written[event.index] = self.written.get(event.index, 0.0) + event.duration_ms

    def drop(self, index: int | None = None) -> None:
        self._queue = deque(chunk for chunk in self._queue if index is not None and chunk[0] != index)

    @property
    def unplayed(self) -> float:
        return sum(ms for _, ms in self._queue)


class Scene(Driver):
    """A driver with a player behind it."""

    def __init__(self, **options: object) -> None:
        self.player = Player(100.0)
        self.cut: dict[int, float] = {}
        """Responses that the client was told to stop, with what it had played of them."""
        self.honest = True
        self.acked = False
        self.calls: deque[fx.CommitInput | fx.UpdateAdapter] = deque()
        self.finishing = False
        self.in_flight: list[ev.ResponseAudio] = []
        super().__init__(limits=LIMITS, **options)  # type: ignore[arg-type]

    def do(self, effects: list[fx.Effect], *, cancelling: bool = False) -> list[ev.Event]:
        note(f"{self.now:.2f} {effects}")
        self.player.advance(self.now)
        before = list(self.queue)
        events = super().do(effects, cancelling=cancelling)
        self.in_flight += [e for e in before if e not in self.queue][:1]
        self.calls += [e for e in effects if isinstance(e, fx.CommitInput | fx.UpdateAdapter)]
        self.finishing |= any(isinstance(e, fx.FinishInput) for e in effects)
        for event in events:
            self._play(event)
        return events

    def _play(self, event: ev.Event) -> None:
        if isinstance(event, ev.ResponseCancelled | ev.PlaybackCleared):
            played = self.player.played.get(event.index, 0.0)
            self.player.drop(event.index)
            self.check_heard(event.heard_ms, event.index)
            self.cut.setdefault(event.index, played)

    def check_heard(self, heard_ms: float, index: int) -> None:
        """What the core believes is what the player did."""
        assert 0 <= heard_ms <= self.player.written.get(index, 0.0) + 1e-6
        if not self.honest:
            return
        played = self.cut.get(index, self.player.played.get(index, 0.0))
        assert heard_ms <= played + 1e-3
        if not self.acked:
            assert heard_ms == pytest.approx(played, abs=1e-3)

    def lose_player(self) -> None:
        """The socket is gone, with all that was on its way to it."""
        self.player.advance(self.now)
        self.player.drop()
        for index in [*self.player.written, *(event.index for event in self.in_flight)]:
            self.cut.setdefault(index, self.player.played.get(index, 0.0))

    def write_one(self) -> None:
        self.player.advance(self.now)
        event = self.queue.pop(0)
        self.player.write(event)
        self.session.written(event, self.now)


class SessionMachine(RuleBasedStateMachine):
    @initialize(
        while_active=st.sampled_from(["supersede", "refuse"]),
        turns=st.sampled_from(
            [
                None,
                t.TurnDetection(),
                t.TurnDetection(idle_timeout_ms=1000),
                t.TurnDetection(interrupt_response=False),
                t.TurnDetection(interrupt_min_words=2, interrupt_min_ms=500, duck=True),
            ]
        ),
        modalities=st.sampled_from([None, None, (t.Modality.AUDIO,), (t.Modality.TEXT,)]),
        client=st.sampled_from(["silent", "silent", "acknowledges", "lies"]),
        lasts=st.integers(5, 60),
    )
    def begin(
        self,
        while_active: str,
        turns: t.TurnDetection | None,
        modalities: tuple[t.Modality, ...] | None,
        client: str,
        lasts: int,
    ) -> None:
        self.client = client
        self.steps_left = lasts
        """Steps before the session may be made to end: else most would be short."""
        self.scene = Scene(
            while_active=while_active,
            settings={"turn_detection": turns, "output_modalities": modalities},
        )
        self.words: dict[int, list[tuple[str, float]]] = {}
        """Of each response: words that were spoken, and where in its audio they end (ms)."""
        self.texts: dict[int, list[str]] = {}
        self.spoken_ms: dict[int, float] = {}
        self.wish: str | None = None
        self.epoch = 0

    # --- the client ---------------------------------------------------------------------------------

    @rule(
        window=st.sampled_from(
            [
                *[t.TextWindow(text=text) for text in ("hello", "what is this", "", "\ud83d")],
                *[
                    t.AudioWindow(pcm=bytes(size), sample_rate=rate)
                    for size, rate in ((0, 16000), (1, 16000), (639, 16000), (640, 24000), (1, 24000))
                ],
                VIDEO,
                t.VideoWindow(kind="video/mp4"),
                t.ImageWindow(data=b"png"),
            ]
        ),
        id=EVENT_IDS,
    )
    def append(self, window: t.Window, id: str | None) -> None:
        self.scene.append(window, id)
        for effect in self.scene.of(fx.AppendInput):
            if isinstance(effect.window, t.AudioWindow):
                assert len(effect.window.pcm) % 2 == 0

    @rule(id=EVENT_IDS)
    def commit(self, id: str | None) -> None:
        self.scene.commit(id)

    @rule(answered=st.booleans(), id=EVENT_IDS)
    def ask(self, answered: bool, id: str | None) -> None:
        self.scene.say("what is this")
        self.scene.commit(id)
        while answered and self.scene.calls:
            self.answer(good=True, breaks=False)

    @rule(
        modalities=st.sampled_from([None, None, None, (t.Modality.TEXT,), (t.Modality.VIDEO,)]),
        speak=st.sampled_from([None, "say this"]),
        id=EVENT_IDS,
    )
    def create(self, modalities: tuple[t.Modality, ...] | None, speak: str | None, id: str | None) -> None:
        self.scene.create(id, modalities=modalities, speak_text=speak)

    @rule(behind=st.sampled_from([None, None, 0, 1, 2, -1]))
    def cancel(self, behind: int | None) -> None:
        index = None if behind is None else len(self.scene.turns) - behind
        active = self.scene.session.active_response
        self.scene.cancel(index)
        if not self.scene.monitor.away and not self.scene.monitor.over:
            answers = [*self.scene.of(ev.ResponseCancelled), *self.scene.of(ev.ErrorEvent)]
            assert answers, "a cancel is always answered"
        if index is None and active is not None:
            assert self.scene.monitor.aborted[-1] == active
            assert self.scene.session.run_ahead_ms(self.scene.now) == 0

    @rule(respond=st.sampled_from([False, False, True]), silent=st.booleans(), id=EVENT_IDS)
    def quiet_commit(self, respond: bool, silent: bool, id: str | None) -> None:
        self.scene.feed(c.Commit(respond=respond, silent=silent, event_id=id))

    @rule(after=st.sampled_from([None, "", "item", "none"]), remove=st.booleans(), id=EVENT_IDS)
    def item(self, after: str | None, remove: bool, id: str | None) -> None:
        item = t.HistoryItem(role="user", text="an item")
        self.scene.feed(c.AddItem(item_id="item", item=item, after=after, event_id=id))
        if remove:
            self.scene.feed(c.RemoveItem(item_id="item"))

    @rule(output=st.booleans(), id=EVENT_IDS)
    def clear(self, output: bool, id: str | None) -> None:
        self.scene.feed(c.ClearOutput(event_id=id) if output else c.ClearInput(event_id=id))
        if output and not self.scene.monitor.over:
            assert self.scene.session.run_ahead_ms(self.scene.now) == 0

    @precondition(lambda self: self.client != "silent")
    @rule(behind=st.sampled_from([None, 0, 0, 1, 2]))
    def acknowledge(self, behind: int | None) -> None:
        """As an honest client does."""
        scene = self.scene
        scene.player.advance(scene.now)
        index = None if behind is None else len(scene.turns) - behind
        latest = max(scene.player.written, default=0) if index is None else index
        scene.acked = True
        scene.ack(scene.player.played.get(latest, 0.0), index)

    @precondition(lambda self: self.client == "lies")
    @rule(
        cursor=st.one_of(st.floats(), st.sampled_from([0.0, 50.0, 1e9, math.inf, math.nan])),
        behind=st.sampled_from([None, 0, 1, 2, 30, -1]),
    )
    def acknowledge_anything(self, cursor: float, behind: int | None) -> None:
        self.scene.honest = False
        self.scene.ack(cursor, None if behind is None else len(self.scene.turns) - behind)

    @rule(
        changes=st.sampled_from(
            [
                {"voice": "v"},
                {"turn_detection": None},
                {"turn_detection": {"interrupt_response": True}},
                {"instructions": {"no": "text"}},
                {"options": {"k": "\udc00"}},
                {"max_run_ahead_ms": 0},
                {"output_modalities": ["video"]},
                {"nothing": 1},
            ]
        )
    )
    def update(self, changes: dict[str, object]) -> None:
        self.scene.feed(c.UpdateSession(changes=changes))

    @precondition(lambda self: self.steps_left == 0)
    @rule()
    def bad_message(self) -> None:
        error = DuplexError(ErrorCode.INVALID_JSON, "no")
        self.scene.do(self.scene.session.reject(error, self.scene.now))

    @precondition(lambda self: self.steps_left == 0)
    @rule()
    def close(self) -> None:
        self.scene.close()

    @precondition(lambda self: self.scene.session.attached)
    @rule(really=st.sampled_from([True, False]))
    def leave(self, really: bool) -> None:
        state = self.scene.session.state
        may_end = self.steps_left == 0
        if really and state is not State.CLOSED and (may_end or state is not State.CLOSING):
            self.scene.detach()
            self.scene.lose_player()

    @rule(takes_over=st.sampled_from([False, False, True]))
    def come_back(self, takes_over: bool) -> None:
        if self.scene.session.state is not State.CLOSED and (takes_over or not self.scene.session.attached):
            self.scene.attach()
            self.scene.lose_player()
            assert self.scene.session.run_ahead_ms(self.scene.now) == 0

    # --- the model ----------------------------------------------------------------------------------

    @precondition(lambda self: self.scene.turns)
    @rule(behind=st.sampled_from([0, 0, 0, 0, 0, 1, 2]), count=st.integers(1, 12), write=st.booleans())
    def speak(self, behind: int, count: int, write: bool) -> None:
        """Text and audio. Odd responses write their words before they say them, even ones write none."""
        scene = self.scene
        turn = scene.turns[max(0, len(scene.turns) - 1 - behind)]
        runs = scene.session.active_response == turn.response_id
        spoken = self.words.setdefault(turn.index, [])
        for _ in range(count):
            word = f"w{len(spoken)}"
            if turn.index % 2:
                texts = self.texts.setdefault(turn.index, [])
                if len(texts) <= len(spoken):
                    self._write_text(turn)
            events = scene.sound(CHUNK_MS, word, turn=turn, write=False)
            audible = runs and t.Modality.AUDIO in turn.modalities
            assert len(events) == audible
            if audible:
                self.spoken_ms[turn.index] = self.spoken_ms.get(turn.index, 0.0) + CHUNK_MS
                spoken.append((word, self.spoken_ms[turn.index]))
        while write and scene.queue:
            scene.write_one()

    @rule(count=st.integers(1, 12))
    def whole_answer(self, count: int) -> None:
        """A response from its beginning to its end, still sounding when it ends."""
        if not self.scene.session.active_response:
            self.scene.create()
        if self.scene.session.active_response:
            self.speak(behind=0, count=count, write=True)
            self.finish(behind=0)

    @precondition(lambda self: self.scene.turns)
    @rule(behind=st.sampled_from([0, 0, 0, 1]))
    def write_text(self, behind: int) -> None:
        turn = self.scene.turns[max(0, len(self.scene.turns) - 1 - behind)]
        if turn.index % 2:
            self._write_text(turn)

    def _write_text(self, turn: t.Turn) -> None:
        texts = self.texts.setdefault(turn.index, [])
        word = f"w{len(texts)}"
        runs = self.scene.session.active_response == turn.response_id
        events = self.scene.text(word + " ", turn)
        assert len(events) == (runs and t.Modality.TEXT in turn.modalities)
        if runs:
            texts.append(word)

    @rule(epoch=st.integers(-1, 100), text=st.sampled_from(["x", "\ud83d", ""]))
    def stale_delta(self, epoch: int, text: str) -> None:
        active = self.scene.session.active_response
        if active is not None and self.scene.turn.epoch == epoch:
            return
        assert self.scene.do(self.scene.session.deliver(epoch, t.TextDelta(text=text), self.scene.now)) == []

    @precondition(lambda self: self.scene.queue)
    @rule(count=st.integers(1, 20))
    def write(self, count: int) -> None:
        for _ in range(min(count, len(self.scene.queue))):
            self.scene.write_one()

    @precondition(lambda self: self.scene.in_flight)
    @rule()
    def late_write(self) -> None:
        """A frame of an aborted response was already on its way."""
        scene = self.scene
        event = scene.in_flight.pop()
        if scene.session.state is State.CLOSED:
            scene.session.written(event, scene.now)
            return
        if event.index < max(scene.player.written, default=0):
            return  # a socket keeps its order: it had been written before them
        if event.index in scene.cut or scene.monitor.away:
            ahead = scene.session.run_ahead_ms(scene.now)
            scene.session.written(event, scene.now)
            scene.player.written[event.index] = scene.player.written.get(event.index, 0) + event.duration_ms
            assert scene.session.run_ahead_ms(scene.now) == ahead
        else:  # a response that failed: what the client has of it is played
            scene.queue.insert(0, event)
            scene.write_one()

    @precondition(lambda self: self.scene.turns and not self.scene.queue)
    @rule(behind=st.sampled_from([0, 0, 0, 1]))
    def finish(self, behind: int) -> None:
        turn = self.scene.turns[max(0, len(self.scene.turns) - 1 - behind)]
        active = self.scene.session.active_response == turn.response_id
        self.scene.finish(turn)
        assert bool(self.scene.of(ev.ResponseDone)) == active

    @precondition(lambda self: self.scene.session.active_response)
    @rule(fatal=st.booleans())
    def break_down(self, fatal: bool) -> None:
        fatal = fatal and self.steps_left == 0
        self.scene.fail(ErrorCode.ENGINE_DOWN if fatal else ErrorCode.ADAPTER_FAILED)

    @precondition(lambda self: self.scene.calls)
    @rule(good=st.sampled_from([True, True, False]), breaks=st.sampled_from([False, False, True]))
    def answer(self, good: bool, breaks: bool) -> None:
        """The adapter answers for the oldest call."""
        scene, session = self.scene, self.scene.session
        call = scene.calls.popleft()
        error = DuplexError(ErrorCode.INVALID_VALUE, "no \ud83d")
        if isinstance(call, fx.CommitInput):
            scene.committed(good, event_id=call.event_id, error=error if breaks else None)
        elif good:
            scene.do(session.settings_applied(call.settings, scene.now, event_id=call.event_id))
            assert session.state is State.CLOSED or session.settings == call.settings
        else:
            before = session.settings
            scene.do(session.settings_refused(error, scene.now, event_id=call.event_id))
            assert session.settings == before

    @precondition(lambda self: self.scene.finishing)
    @rule()
    def input_finished(self) -> None:
        self.scene.finishing = False
        self.scene.do(self.scene.session.input_finished(self.scene.now))

    @rule(
        signal=st.sampled_from(
            [
                t.SpeechStarted(at_ms=1.0),
                t.SpeechStarted(at_ms=1.0),
                t.SpeechStopped(at_ms=2.0),
                t.SpeechContinued(speech_ms=600.0),
                t.Transcript(text="mhm", final=True, started_ms=1.0),
                t.Transcript(text="", final=True, started_ms=1.0),
                t.Transcript(text="please stop", started_ms=1.0),
                t.TurnEnded(),
            ]
        )
    )
    def talk(self, signal: t.Signal) -> None:
        active = self.scene.session.active_response
        attached = self.scene.session.attached
        self.scene.signal(signal)
        turns = self.scene.session.settings.turn_detection
        cuts = isinstance(signal, t.SpeechStarted) and turns is not None and turns.interrupt_response
        cuts = cuts and turns is not None and not turns.interrupt_min_words
        if cuts and attached and self.scene.session.state not in (State.CLOSED, State.CLOSING):
            assert self.scene.session.run_ahead_ms(self.scene.now) == 0
            assert active is None or active in self.scene.monitor.aborted

    @rule(
        signal=st.sampled_from(
            [
                t.Transcript(text="so \ud83d", final=True),
                t.Transcript(text="", final=False),
                t.GateScore(score=math.nan),
                t.InputLag(lag_ms=3.0),
                t.InputRejected(code=ErrorCode.INTERNAL_ERROR, message="bad \udc00"),
            ]
        )
    )
    def signal(self, signal: t.Signal) -> None:
        self.scene.signal(signal)

    @rule(number=st.integers(0, 5))
    def wish_to_speak(self, number: int) -> None:
        if f"event {number}" not in self.scene.monitor.proactive:
            self.wish = f"event {number}"
        self.scene.wish(f"event {number}")

    # --- the server and time ------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 0.03, 0.1, 0.25, 1.0, 3.0, 30.0]))
    def wait(self, seconds: float) -> None:
        if seconds > 3 and self.steps_left:
            return
        self.scene.wait(seconds)
        self.scene.player.advance(self.scene.now)

    @rule(name=st.sampled_from(list(fx.TimerName)))
    def timer(self, name: fx.TimerName) -> None:
        """A timer fires that is not due, or was for something that is over."""
        at = self.scene.timers.get(name)
        state = self.scene.session.state
        self.scene.timer(name)
        if at is not None and at > self.scene.now and state is not State.CLOSED:
            assert self.scene.session.state is state

    @precondition(lambda self: self.steps_left == 0)
    @rule(code=st.sampled_from([ErrorCode.INVALID_MEDIA] * 2 + [ErrorCode.SLOW_READER]))
    def fault(self, code: ErrorCode) -> None:
        self.scene.do(self.scene.session.fail(DuplexError(code, "oh"), self.scene.now))

    @precondition(lambda self: self.steps_left == 0)
    @rule(grace=st.sampled_from([0.0, 1.0, 20.0]))
    def drain(self, grace: float) -> None:
        self.scene.do(self.scene.session.drain(grace, self.scene.now))

    @precondition(lambda self: self.steps_left == 0)
    @rule()
    def end(self) -> None:
        self.scene.do(self.scene.session.end(1000, "bye", self.scene.now))
        assert self.scene.session.state is State.CLOSED

    # --- what always holds --------------------------------------------------------------------------

    @invariant()
    def history_is_what_was_heard(self) -> None:
        scene = self.scene
        items = scene.session.conversation.items
        assert len(items) <= 64
        indices = [i.response_index for i in items if i.response_index is not None]
        assert indices == sorted(set(indices))
        for item in items:
            if item.response_index is None:
                assert item.role == "user"
                continue
            index = item.response_index
            said = item.text.split()
            turn = scene.turns[index - 1]
            if t.Modality.AUDIO not in turn.modalities:
                assert said == self.texts.get(index, [])[: len(said)]
                continue
            spoken = self.words.get(index, [])
            if index in scene.cut and spoken:
                # words whose sound was played, by the estimate or by what the client acknowledged
                most = scene.cut[index] if scene.honest else scene.player.written.get(index, 0.0)
                assert said == [word for word, end in spoken if end <= most + 1][: len(said)]
                assert item.interrupted or len(said) == len(self.texts.get(index, spoken))
            elif any(
                isinstance(e, ev.ResponseFailed) and e.index == index for e in scene.monitor.ended.values()
            ):
                written = scene.player.written.get(index, 0.0)
                assert said == [word for word, end in spoken if end <= written + 1][: len(said)]
            else:
                assert said == (self.texts.get(index) or [word for word, _ in spoken])[: len(said)]

    @invariant()
    def the_clock_knows_what_the_player_holds(self) -> None:
        scene = self.scene
        scene.player.advance(scene.now)
        if scene.honest and scene.session.state is not State.CLOSED:
            assert scene.session.run_ahead_ms(scene.now) == pytest.approx(scene.player.unplayed, abs=1e-3)

    @invariant()
    def time_passes(self) -> None:
        self.steps_left = max(0, self.steps_left - 1)

    @invariant()
    def the_epoch_rises(self) -> None:
        assert self.scene.session.epoch >= self.epoch
        self.epoch = self.scene.session.epoch

    @invariant()
    def windows_are_bounded(self) -> None:
        assert len(self.scene.session.windows.items) <= LIMITS.window_history

    @invariant()
    def nothing_that_could_start_waits(self) -> None:
        scene = self.scene
        if self.wish in scene.monitor.proactive:
            self.wish = None
        idle = scene.session.state is State.IDLE and scene.session.attached
        if idle and not any(isinstance(call, fx.UpdateAdapter) for call in scene.calls):
            assert self.wish is None

    @invariant()
    def the_client_knows_of_what_runs(self) -> None:
        monitor = self.scene.monitor
        running = monitor.created.keys() - monitor.ended.keys()
        if not monitor.away and not monitor.over:
            active = self.scene.session.active_response
            assert running == ({active} if active else set())

    def teardown(self) -> None:
        if not hasattr(self, "scene"):
            return
        scene = self.scene
        if scene.session.state is not State.CLOSED:
            scene.attach()
            scene.do(scene.session.end(1000, "bye", scene.now))
        assert scene.session.state is State.CLOSED
        assert scene.monitor.released == 1
        assert scene.monitor.over
        ended = scene.monitor.ended.keys() | set(scene.monitor.aborted)
        assert ended == scene.monitor.created.keys()
        assert scene.session.feed(c.CreateResponse(), scene.now) == []
        assert scene.session.attach(scene.now) == []


TestSession = SessionMachine.TestCase
TestSession.pytestmark = [pytest.mark.timeout(300)]  # a failure takes its time to be made small
TestSession.settings = settings(
    max_examples=120,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
