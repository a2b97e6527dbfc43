"""Faults of the speech socket's state machine, each test named after one."""

from __future__ import annotations

import json

import pytest
from test_socket import Peer, accepted, open_socket, started, told

from duplex.adapters.text import Splitter
from duplex.core.errors import DuplexError, ErrorCode
from duplex.speech.effects import AbortUnit, CheckConfig, Close, Effect, EndUnit, FeedUnit, SetTimer
from duplex.speech.fields import SocketConfig
from duplex.speech.gate import MAX_HELD
from duplex.speech.socket import (
    CONFIG_TIMEOUT_S,
    IDLE_TIMEOUT_S,
    MAX_CONTEXTS,
    MAX_PENDING_CHARACTERS,
)


def check_of(effects: list[Effect]) -> CheckConfig:
    (check,) = [effect for effect in effects if isinstance(effect, CheckConfig)]
    return check


def closes(effects: list[Effect]) -> list[int]:
    return [effect.code for effect in effects if isinstance(effect, Close)]


# --- while a configuration is checked -----------------------------------------------------------------


def test_text_that_waited_for_a_configuration_was_spoken_after_its_cancel() -> None:
    peer = Peer()
    check = check_of(peer.send("session.config", voice="vivian"))
    peer.send("input.text", text="Cancelled. And ")
    peer.send("input.done")
    peer.send("input.text", text="Of another. And ", context_id="b")
    assert told(peer.send("input.cancel"), "audio.cancelled")
    effects = peer.socket.config_accepted(accepted(check.config), None)
    assert [unit.text for unit in started(effects)] == ["Of another. "]
    assert [unit.text for unit in started(peer.send("input.text", text="New. And "))] == ["New. "]


def test_one_contexts_configuration_held_up_all_others() -> None:
    peer = Peer()
    check = check_of(peer.send("session.config", voice="vivian", context_id="a"))
    assert started(peer.send("input.text", text="Wait. And ", context_id="a")) == []
    (other,) = started(peer.send("input.text", text="Go on. And ", context_id="b"))
    assert other.text == "Go on. "
    (unit,) = started(peer.socket.config_accepted(accepted(check.config), "a"))
    assert (unit.text, unit.terms.config.voice) == ("Wait. ", "vivian")


def test_a_configuration_for_all_waits_for_the_one_before_it_and_keeps_its_order() -> None:
    peer = Peer()
    first = check_of(peer.send("session.config", voice="ann", context_id="a"))
    assert peer.send("session.config", voice="bob") == []
    assert peer.send("input.text", text="Hi there. And ", context_id="a") == []
    second = check_of(peer.socket.config_accepted(accepted(first.config), "a"))
    assert (second.context, second.config.voice) == (None, "bob")
    (unit,) = started(peer.socket.config_accepted(accepted(second.config), None))
    assert unit.terms.config.voice == "bob"


def test_a_close_that_was_sent_behind_the_text_dropped_it() -> None:
    socket = open_socket(None)
    check = check_of(socket.opened(SocketConfig()))
    for message in ({"type": "input.text", "text": "All of it."}, {"type": "input.done"}):
        assert socket.feed(json.dumps(message), 0.0) == []
    assert socket.feed('{"type":"session.close"}', 0.0) == []
    (unit,) = started(socket.config_accepted(accepted(check.config), None))
    assert unit.text == "All of it."
    effects = socket.unit_ended(unit.unit, 2, 1.0)
    assert [m["type"] for m in told(effects)] == ["audio.done", "session.done"]
    assert closes(effects) == [1000]


def test_messages_that_wait_are_bounded() -> None:
    peer = Peer()
    peer.send("session.config", voice="vivian")
    for _ in range(MAX_HELD):
        assert peer.send("input.text", text="x") == []
    assert told(peer.send("input.text", text="x"))[0]["code"] == "input_overflow"


def test_a_refused_query_left_the_client_without_a_configuration_until_the_timeout() -> None:
    socket = open_socket(None)
    check = check_of(socket.opened(SocketConfig(voice="nobody")))
    refused = DuplexError(ErrorCode.INVALID_VALUE, "no such voice", param="voice")
    effects = socket.config_refused(refused, check.context)
    assert told(effects, "error")[0]["param"] == "voice"
    assert closes(effects) == [1008]


def test_an_answer_of_the_model_after_the_close_is_dropped() -> None:
    peer = Peer()
    check = check_of(peer.send("session.config", voice="vivian"))
    peer.socket.end(1000, "gone")
    assert peer.socket.config_accepted(accepted(check.config), None) == []
    assert peer.socket.config_refused(DuplexError(ErrorCode.INVALID_VALUE, "x"), None) == []


# --- closing ------------------------------------------------------------------------------------------


def test_a_close_cut_off_what_was_being_spoken() -> None:
    peer = Peer()
    peer.send("input.text", text="One fish. Two fish.")
    (unit,) = started(peer.send("input.done")) or started(peer.effects)
    assert closes(peer.send("session.close")) == []
    assert peer.speak(unit.unit) != []
    (second,) = started(peer.end(unit.unit))
    assert closes(peer.end(second.unit)) == [1000]


def test_a_close_drops_the_utterance_that_was_never_ended() -> None:
    peer = Peer()
    (unit,) = started(peer.send("input.text", text="One fish. Two "))
    effects = peer.send("session.close")
    assert isinstance(effects[0], AbortUnit)
    assert effects[0].unit == unit.unit
    assert told(effects, "audio.cancelled")[0]["utterance_index"] == 0
    assert closes(effects) == [1000]


def test_text_that_came_while_the_server_drained_was_spoken() -> None:
    peer = Peer()
    (unit,) = started(peer.send("input.text", text="One fish. And "))
    peer.socket.drain(5.0)
    assert told(peer.send("input.text", text="Other.", context_id="b"))[0]["code"] == "session_closing"
    peer.send("input.text", text="more.")  # the utterance that is open may end
    peer.send("input.done")
    (last,) = started(peer.end(unit.unit))
    assert closes(peer.end(last.unit)) == [1012]


# --- a unit that is spoken while it is written ----------------------------------------------------------


@pytest.mark.parametrize("failed", [True, False])
def test_a_streamed_unit_that_ended_early_made_a_second_utterance_of_its_rest(failed: bool) -> None:
    peer = Peer(split_granularity="none", stream_text=True)
    (unit,) = started(peer.send("input.text", text="One "))
    error = DuplexError(ErrorCode.ADAPTER_FAILED, "no breath") if failed else None
    over = peer.end(unit.unit, error=error, finish_reason="length")
    assert told(over, "audio.done")
    assert told(over, "session.done") == []  # its text has not ended
    assert peer.send("input.text", text="and the rest.") == []
    assert told(peer.send("input.done")) == [
        {"type": "session.done", "utterance_index": 0, "total_sentences": 1}
    ]
    (again,) = started(peer.send("input.text", text="Next."))
    assert told(peer.effects, "audio.start")[-1]["utterance_index"] == 1
    assert again.open


def test_text_that_a_slow_model_has_not_taken_is_bounded() -> None:
    peer = Peer(split_granularity="none", stream_text=True)
    (unit,) = started(peer.send("input.text", text="x" * 1000))
    piece = "y" * 100_000
    fed = 0
    while isinstance(effect := peer.send("input.text", text=piece)[0], FeedUnit):
        fed += len(piece)
        assert fed <= MAX_PENDING_CHARACTERS
    assert told([effect])[0]["code"] == "input_overflow"
    peer.socket.taken(unit.unit, fed)
    assert isinstance(peer.send("input.text", text=piece)[0], FeedUnit)
    assert peer.send("input.done") == [EndUnit(unit=unit.unit)]


# --- text ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("granularity", ["sentence", "none"])
def test_fault_25_an_emoji_cut_between_its_utf16_halves_was_no_json(granularity: str) -> None:
    peer = Peer(split_granularity=granularity)
    for escaped in (r"Hi \ud83d", r"\ude00 there \ud83d", r"\ude80\ud83d", "\\ude00. Yes"):
        effects = peer.socket.feed(f'{{"type":"input.text","text":"{escaped}"}}', 0.0)
        assert told(effects, "error") == []
        peer.effects += effects
    peer.send("input.done")
    spoken = [unit.text for unit in started(peer.effects)]
    while len("".join(spoken)) < len("Hi 😀 there 🚀😀. Yes"):
        spoken += [unit.text for unit in started(peer.end(len(spoken)))]
    assert "".join(spoken) == "Hi 😀 there 🚀😀. Yes"


def test_a_half_character_that_never_finds_its_other_half_is_replaced() -> None:
    peer = Peer()
    peer.socket.feed(r'{"type":"input.text","text":"A \ud83d"}', 0.0)
    peer.socket.feed(r'{"type":"input.text","text":" B \ude00 C \ud83d"}', 0.0)
    (unit,) = started(peer.send("input.done"))
    assert unit.text == "A � B � C "


@pytest.mark.parametrize(
    "frame",
    [
        r'{"type":"session.config","voice":"\ud83d"}',
        r'{"type":"input.text","text":"x","context_id":"\ud83d"}',
        r'{"type":"input.text","text":["\ud83d"]}',
        r'{"type":"input.text","text":"\ud83d"',
        r'["\ud83d"]',
    ],
)
def test_half_characters_anywhere_else_are_refused(frame: str) -> None:
    (refused,) = told(Peer().socket.feed(frame, 0.0))
    assert refused["code"] == "invalid_json"


def test_a_long_text_of_short_sentences_was_cut_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 KB kept the event loop for half a second."""
    taken = 0
    take = Splitter.take

    def counted(self: Splitter, *, final: bool) -> str | None:
        nonlocal taken
        taken += 1
        return take(self, final=final)

    monkeypatch.setattr(Splitter, "take", counted)
    peer = Peer()
    (unit,) = started(peer.send("input.text", text="Hi you. " * 16_000))
    peer.send("input.done")
    assert taken <= 2
    sentences = 1
    while following := started(peer.end(unit.unit)):
        (unit,) = following
        sentences += 1
    assert sentences == 16_000
    assert told(peer.effects, "session.done")[0]["total_sentences"] == 16_000


def test_a_message_over_the_limit_in_bytes_but_not_in_characters_is_refused() -> None:
    frame = json.dumps({"type": "session.config", "ref_text": "é" * (2 << 20)}, ensure_ascii=False)
    assert len(frame) < 4 << 20
    assert told(Peer().socket.feed(frame, 0.0))[0]["code"] == "message_too_large"


def test_an_error_does_not_repeat_a_long_value() -> None:
    for fields in ({"response_format": "x" * 100_000}, {"x" * 100_000: 1}):
        (refused,) = told(Peer().send("session.config", **fields))
        assert len(json.dumps(refused)) < 1000


# --- contexts -------------------------------------------------------------------------------------------


def test_the_context_that_makes_room_is_the_one_used_longest_ago_and_keeps_no_configuration() -> None:
    peer = Peer()
    check = check_of(peer.send("session.config", voice="own", context_id="own"))
    peer.socket.config_accepted(accepted(check.config), "own")
    for n in range(MAX_CONTEXTS - 1):
        peer.send("input.done", context_id=f"c{n}")
    peer.send("input.done", context_id="c0")  # used again: c1 is the oldest now
    peer.send("input.done", context_id="more")
    (unit,) = started(peer.send("input.text", text="Mine. And ", context_id="own"))
    assert unit.terms.config.voice == "own"
    again = told(peer.send("input.done", context_id="c0"), "session.done")
    assert again[0]["utterance_index"] == 2
    forgotten = told(peer.send("input.done", context_id="c1"), "session.done")
    assert forgotten[0]["utterance_index"] == 0


def test_a_context_id_of_the_wrong_kind_is_refused_for_every_message() -> None:
    for type in ("session.config", "input.text", "input.done", "input.cancel", "session.close"):
        refused = told(Peer().send(type, text="x", context_id=["x"]))
        assert refused[0]["param"] == "context_id"
        assert "context_id" not in refused[0]


def test_every_utterance_that_a_cancel_ends_is_told_and_the_last_one_is_known() -> None:
    peer = Peer()
    for text in ("One fish.", "Two fish.", "Red "):
        peer.send("input.text", text=text)
        if text != "Red ":
            peer.send("input.done")
    cancelled = told(peer.send("input.cancel"))
    assert [(m["utterance_index"], m.get("more", False)) for m in cancelled] == [
        (0, True),
        (1, True),
        (2, False),
    ]


# --- time -----------------------------------------------------------------------------------------------


def test_the_idle_time_counted_from_the_middle_of_the_speech() -> None:
    peer = Peer()
    (unit,) = started(peer.send("input.text", text="One fish. And "))
    (rearmed,) = peer.socket.timer(IDLE_TIMEOUT_S)
    assert isinstance(rearmed, SetTimer)
    peer.end(unit.unit, now=rearmed.at - 1.0)
    (later,) = peer.socket.timer(rearmed.at)
    assert later == SetTimer(at=rearmed.at - 1.0 + IDLE_TIMEOUT_S)
    assert told(peer.socket.timer(later.at))[0]["code"] == "idle_timeout"


def test_a_client_that_left_its_text_open_kept_its_place_for_ever() -> None:
    peer = Peer(stream_text=True, split_granularity="none")
    (unit,) = started(peer.send("input.text", text="One fish and"))
    (untaken,) = peer.socket.timer(IDLE_TIMEOUT_S)  # the model has not begun: its client cannot help that
    assert untaken == SetTimer(at=2 * IDLE_TIMEOUT_S)
    peer.socket.taken(unit.unit, len("One fish and"))
    peer.speak(unit.unit)
    (spoken,) = peer.socket.timer(2 * IDLE_TIMEOUT_S)
    assert spoken == SetTimer(at=3 * IDLE_TIMEOUT_S)
    effects = peer.socket.timer(3 * IDLE_TIMEOUT_S)
    assert told(effects)[0]["code"] == "idle_timeout"
    assert AbortUnit(unit=unit.unit) in effects
    assert isinstance(effects[-1], Close)


def test_messages_that_configure_nothing_do_not_put_off_the_configurations_timeout() -> None:
    socket = open_socket(None)
    socket.feed('{"type":"input.cancel"}', CONFIG_TIMEOUT_S - 1.0)
    assert told(socket.timer(CONFIG_TIMEOUT_S))[0]["code"] == "config_timeout"


def test_a_client_that_configured_only_a_context_ran_into_the_configurations_timeout() -> None:
    socket = open_socket(None)
    check = check_of(socket.feed('{"type":"session.config","context_id":"a"}', 1.0))
    socket.config_accepted(accepted(check.config), "a")
    assert socket.timer(CONFIG_TIMEOUT_S) == [SetTimer(at=1.0 + IDLE_TIMEOUT_S)]


def test_a_check_that_takes_long_is_no_missing_configuration() -> None:
    socket = open_socket(None)
    socket.feed('{"type":"session.config"}', 1.0)
    (effect,) = socket.timer(CONFIG_TIMEOUT_S)
    assert isinstance(effect, SetTimer)
