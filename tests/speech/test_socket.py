"""The speech socket's state machine, driven without a network or a model."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from duplex.adapters.speech import WordTime
from duplex.core.errors import DuplexError, ErrorCode
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
from duplex.speech.fields import SocketConfig
from duplex.speech.socket import (
    CONFIG_TIMEOUT_S,
    IDLE_TIMEOUT_S,
    MAX_CONTEXTS,
    MAX_ERRORS,
    SpeechSocket,
)


def open_socket(config: SocketConfig | None) -> SpeechSocket:
    return SpeechSocket(None if config is None else accepted(config), 0.0)


def accepted(config: SocketConfig, sample_rate: int = 24000) -> Accepted:
    return Accepted(config=config, sample_rate=sample_rate)


class Peer:
    """A client and a model beside the socket, answering by hand."""

    def __init__(self, **config: Any) -> None:
        self.socket = open_socket(SocketConfig(**config))
        self.effects: list[Effect] = []

    def send(self, type: str, *, now: float = 0.0, **fields: Any) -> list[Effect]:
        return self._take(self.socket.feed(json.dumps({"type": type, **fields}), now))

    def speak(self, unit: int, payload: bytes = b"aa") -> list[Effect]:
        return self._take(self.socket.audio(unit, payload, None, aligned=False))

    def end(self, unit: int, **kwargs: Any) -> list[Effect]:
        return self._take(self.socket.unit_ended(unit, 2, kwargs.pop("now", 0.0), **kwargs))

    def _take(self, effects: list[Effect]) -> list[Effect]:
        self.effects += effects
        return effects


def told(effects: list[Effect], type: str | None = None) -> list[dict[str, Any]]:
    messages = [effect.message for effect in effects if isinstance(effect, Tell)]
    return [m for m in messages if type in (None, m["type"])]


def started(effects: list[Effect]) -> list[StartUnit]:
    return [effect for effect in effects if isinstance(effect, StartUnit)]


def test_sentences_are_spoken_one_after_another_and_the_flush_ends_the_utterance() -> None:
    peer = Peer()
    first = peer.send("input.text", text="One fish. Two ")
    assert [u.text for u in started(first)] == ["One fish. "]
    assert peer.send("input.text", text="fish.") == []
    assert started(peer.send("input.done")) == []  # the first is still running
    second = peer.end(started(first)[0].unit)
    assert told(second, "audio.done")[0]["sentence_index"] == 0
    assert [u.text for u in started(second)] == ["Two fish."]
    over = peer.end(started(second)[0].unit)
    assert told(over, "session.done") == [
        {"type": "session.done", "utterance_index": 0, "total_sentences": 2}
    ]
    assert told(peer.effects, "audio.start")[0] == {
        "type": "audio.start",
        "utterance_index": 0,
        "sentence_index": 0,
        "sentence_text": "One fish. ",
        "format": "wav",
        "sample_rate": 24000,
    }


def test_an_empty_buffer_is_an_utterance_of_no_sentences() -> None:
    peer = Peer()
    assert told(peer.send("input.done")) == [
        {"type": "session.done", "utterance_index": 0, "total_sentences": 0}
    ]
    assert told(peer.send("input.done"))[0]["utterance_index"] == 1


def test_granularity_none_is_one_unit() -> None:
    peer = Peer(split_granularity="none")
    assert peer.send("input.text", text="One. Two. ") == []
    peer.send("input.text", text="Three.")
    units = started(peer.send("input.done"))
    assert [(u.text, u.open) for u in units] == [("One. Two. Three.", False)]


def test_granularity_none_may_be_spoken_while_it_is_written() -> None:
    peer = Peer(split_granularity="none", stream_text=True)
    (unit,) = started(peer.send("input.text", text="One "))
    assert unit.open
    assert peer.send("input.text", text="more.") == [FeedUnit(unit=unit.unit, text="more.")]
    assert peer.send("input.done") == [EndUnit(unit=unit.unit)]
    over = peer.end(unit.unit)
    assert told(over, "session.done")[0]["total_sentences"] == 1


def test_a_cancel_ends_the_utterance_at_once_and_the_connection_speaks_again() -> None:
    peer = Peer()
    (unit,) = started(peer.send("input.text", text="One fish. Two fish. Red fish. "))
    effects = peer.send("input.cancel")
    assert isinstance(effects[0], AbortUnit)  # the work stops before the client is told
    assert told(effects) == [{"type": "audio.cancelled", "sentence_index": 0, "utterance_index": 0}]
    assert peer.speak(unit.unit) == []
    assert peer.end(unit.unit) == []
    (again,) = started(peer.send("input.text", text="Blue fish. And "))
    assert again.text == "Blue fish. "
    assert told(peer.effects, "audio.start")[-1]["utterance_index"] == 1


def test_a_cancel_while_idle_is_answered() -> None:
    assert told(Peer().send("input.cancel")) == [{"type": "audio.cancelled", "utterance_index": None}]


def test_contexts_are_independent() -> None:
    peer = Peer()
    (a,) = started(peer.send("input.text", text="Alpha speaks. And ", context_id="a"))
    (b,) = started(peer.send("input.text", text="Beta speaks. And ", context_id="b"))
    cancelled = peer.send("input.cancel", context_id="a")
    assert told(cancelled)[0]["context_id"] == "a"
    assert peer.speak(a.unit) == []
    (audio,) = peer.speak(b.unit)
    assert isinstance(audio, Audio)
    assert audio.json is not None  # a binary frame could not say whose it is
    assert (audio.payload, audio.json["context_id"]) == (b"aa", "b")
    assert "timestamps" not in audio.json
    assert told(peer.end(b.unit), "audio.done")[0]["context_id"] == "b"


def test_text_after_the_flush_begins_the_next_utterance_behind_the_running_one() -> None:
    peer = Peer()
    peer.send("input.text", text="One fish.")
    (first,) = started(peer.send("input.done"))
    peer.send("input.text", text="Two fish.")
    assert started(peer.send("input.done")) == []
    effects = peer.end(first.unit)
    assert [m["type"] for m in told(effects)] == ["audio.done", "session.done", "audio.start"]
    assert told(effects, "audio.start")[0]["utterance_index"] == 1


def test_a_config_is_refused_while_an_utterance_is_open_and_the_old_one_stays() -> None:
    peer = Peer(response_format="pcm")
    peer.send("input.text", text="One fish. And ")
    refused = peer.send("session.config", response_format="mp3")
    assert "utterance is open" in told(refused, "error")[0]["message"]
    assert peer.socket.terms is not None
    assert peer.socket.terms.config.response_format == "pcm"


def test_a_config_is_sticky_and_merged_and_what_follows_waits_for_the_models_word() -> None:
    peer = Peer(response_format="pcm", speed=1.5)
    (check,) = peer.send("session.config", voice="vivian")
    assert isinstance(check, CheckConfig)
    assert (check.config.response_format, check.config.speed) == ("pcm", 1.5)
    assert peer.send("input.text", text="One fish. And ") == []
    (unit,) = started(peer.socket.config_accepted(accepted(check.config), check.context))
    assert unit.terms.config.voice_name == "vivian"


def test_a_config_that_the_model_refuses_leaves_the_old_one() -> None:
    peer = Peer(voice="ryan")
    (check,) = peer.send("session.config", voice="nobody")
    assert isinstance(check, CheckConfig)
    peer.send("input.text", text="One fish. And ")
    error = DuplexError(ErrorCode.INVALID_VALUE, "no such voice", param="voice")
    effects = peer.socket.config_refused(error, check.context)
    assert told(effects, "error")[0]["param"] == "voice"
    assert started(effects)[0].terms.config.voice_name == "ryan"


def test_without_a_config_text_is_refused_by_name() -> None:
    socket = open_socket(None)
    effects = socket.feed('{"type":"input.text","text":"Hello."}', 0.0)
    assert told(effects)[0]["message"] == "session.config has to come first"
    assert not socket.closed


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("{", "invalid_json"),
        ("[1]", "not_an_object"),
        ("{}", "missing_type"),
        ('{"type":1}', "missing_type"),
        ('{"type":"nope"}', "unknown_type"),
        (b"\x00", "invalid_frame"),
        ('{"type":"input.text"}', "invalid_value"),
        ('{"type":"input.text","text":"x","context_id":7}', "invalid_value"),
        ('{"type":"session.config","speed":9}', "invalid_value"),
        ('{"type":"session.config","volume":9}', "unknown_field"),
        ('{"type":"session.config","response_format":"wma"}', "invalid_value"),
        ('{"type":"session.config","speaker_embedding":[1.0]}', "invalid_value"),
    ],
)
def test_bad_messages_are_named_and_the_connection_lives(frame: str | bytes, code: str) -> None:
    peer = Peer()
    effects = peer.socket.feed(frame, 0.0)
    assert told(effects)[0]["code"] == code
    assert started(peer.send("input.text", text="Still here. And "))


def test_too_many_bad_messages_in_a_row_close() -> None:
    socket = open_socket(SocketConfig())
    effects = [e for _ in range(MAX_ERRORS) for e in socket.feed("nonsense", 0.0)]
    assert [e.code for e in effects if isinstance(e, Close)] == [4400]


def test_text_over_the_limit_is_refused_and_loses_nothing() -> None:
    peer = Peer()
    peer.send("input.text", text="Kept")
    assert told(peer.send("input.text", text="é" * 70_000))[0]["code"] == "input_overflow"
    assert [u.text for u in started(peer.send("input.done"))] == ["Kept"]


def test_contexts_are_bounded_and_idle_ones_make_room() -> None:
    peer = Peer()
    for n in range(MAX_CONTEXTS):
        peer.send("input.text", text="a", context_id=f"c{n}")
    assert told(peer.send("input.text", text="a", context_id="more"))[0]["code"] == "input_overflow"
    peer.send("input.cancel", context_id="c3")
    assert peer.send("input.text", text="a", context_id="more") == []


def test_idle_and_config_timeouts_are_named() -> None:
    waiting = open_socket(None)
    assert waiting.opened() == [SetTimer(at=CONFIG_TIMEOUT_S)]
    effects = waiting.timer(CONFIG_TIMEOUT_S)
    assert told(effects)[0]["code"] == "config_timeout"
    assert isinstance(effects[-1], Close)
    peer = Peer()
    (unit,) = started(peer.send("input.text", text="One fish. And "))
    (rearmed,) = peer.socket.timer(IDLE_TIMEOUT_S)  # speaking is not idle
    assert isinstance(rearmed, SetTimer)
    peer.end(unit.unit)
    assert told(peer.socket.timer(rearmed.at))[0]["code"] == "idle_timeout"


def test_a_failed_unit_is_flagged_and_the_next_one_is_spoken() -> None:
    peer = Peer()
    (unit,) = started(peer.send("input.text", text="One fish. Two fish. And "))
    effects = peer.end(unit.unit, error=DuplexError(ErrorCode.ADAPTER_FAILED, "no breath"))
    assert told(effects, "audio.done")[0]["error"] is True
    assert told(effects, "error")[0]["code"] == "adapter_failed"
    assert [u.text for u in started(effects)] == ["Two fish. "]


def test_word_times_travel_with_their_audio() -> None:
    peer = Peer(word_timestamps=True)
    (unit,) = started(peer.send("input.text", text="One fish. And "))
    words = (WordTime(word="One", start_ms=0.0, end_ms=200.0),)
    (first,) = peer.socket.audio(unit.unit, b"aa", words, aligned=True)
    (second,) = peer.socket.audio(unit.unit, b"bb", None, aligned=True)
    assert isinstance(first, Audio)
    assert isinstance(second, Audio)
    assert first.json is not None
    assert second.json is not None
    assert first.json["timestamps"] == [msgspec.to_builtins(words[0])]
    assert (first.json["chunk_id"], second.json["chunk_id"]) == (0, 1)
    assert second.json["timestamps"] is None


CONTEXTS = st.sampled_from([None, "a", "b"])


class SocketMachine(RuleBasedStateMachine):
    """Any order of text, flushes, cancels and model progress, on three contexts."""

    def __init__(self) -> None:
        super().__init__()
        self.peer = Peer()
        self.running: dict[int, str | None] = {}
        self.dead: set[int] = set()
        self.flushed: dict[str | None, int] = {}
        self.ended: dict[str | None, list[int]] = {}
        self.seen = 0

    def _fields(self, context: str | None) -> dict[str, Any]:
        return {} if context is None else {"context_id": context}

    def _look(self, context: str | None) -> None:
        for effect in self.peer.effects[self.seen :]:
            if isinstance(effect, StartUnit):
                assert context not in self.running.values(), "two units of one context at a time"
                self.running[effect.unit] = context
            elif isinstance(effect, AbortUnit):
                del self.running[effect.unit]
                self.dead.add(effect.unit)
            elif isinstance(effect, Audio):
                assert effect.unit in self.running
            elif isinstance(effect, Tell):
                assert effect.message.get("context_id") == context
                if effect.message["type"] in ("session.done", "audio.cancelled"):
                    index = effect.message["utterance_index"]
                    if index is not None:
                        self.ended.setdefault(context, []).append(index)
        self.seen = len(self.peer.effects)

    @rule(context=CONTEXTS, text=st.sampled_from(["Hi", " there. ", "One. Two. ", "\n", "…", "好。"]))
    def text(self, context: str | None, text: str) -> None:
        self.peer.send("input.text", text=text, **self._fields(context))
        self._look(context)

    @rule(context=CONTEXTS)
    def done(self, context: str | None) -> None:
        self.peer.send("input.done", **self._fields(context))
        self._look(context)

    @rule(context=CONTEXTS)
    def cancel(self, context: str | None) -> None:
        self.peer.send("input.cancel", **self._fields(context))
        self._look(context)
        assert context not in self.running.values()

    @rule(data=st.data(), failed=st.booleans())
    def unit_ends(self, data: st.DataObject, failed: bool) -> None:
        if self.running:
            unit = data.draw(st.sampled_from(sorted(self.running)))
            context = self.running.pop(unit)
            self.dead.add(unit)
            self.peer.end(unit, error=DuplexError(ErrorCode.ADAPTER_FAILED, "x") if failed else None)
            self._look(context)

    @rule(data=st.data())
    def audio(self, data: st.DataObject) -> None:
        if self.running:
            unit = data.draw(st.sampled_from(sorted(self.running)))
            self.peer.speak(unit)
            self._look(self.running[unit])

    @rule(data=st.data())
    def late(self, data: st.DataObject) -> None:
        """A worker that has not heard of the cancel yet goes on for a while."""
        if self.dead:
            unit = data.draw(st.sampled_from(sorted(self.dead)))
            assert self.peer.speak(unit) == []
            assert self.peer.end(unit) == []

    @invariant()
    def utterances_end_once_in_order(self) -> None:
        for indexes in self.ended.values():
            assert indexes == list(range(len(indexes)))


SocketMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestSocketMachine = SocketMachine.TestCase
