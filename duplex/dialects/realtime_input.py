"""The user's spoken turns in the OpenAI Realtime dialect: speech, items, transcription.

Speech that the server detects gets its item's id when it begins; the item itself is there when it stops. A
turn that the client commits gets both at the commit. What is written down of it follows, whenever that is:
partial transcripts are told as deltas of what two of them in a row agree on, and the completed one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from duplex.core.events import UserIdle, UserSpeechStarted, UserSpeechStopped, UserTranscript
from duplex.dialects.realtime_items import Item, Items

Message = dict[str, Any]


class _Turn(msgspec.Struct, kw_only=True):
    """One item of speech that is not completely written down."""

    item_id: str
    started_ms: float | None = None
    seconds: float = 0.0
    committed: bool = False
    before: str = ""
    """The partial transcript before this one."""
    told: str = ""
    """Deltas that were told, joined."""


class UserTurns:
    """Messages about the user's speech, without their `event_id`."""

    def __init__(self, items: Items, new_id: Callable[[], str]) -> None:
        self.transcribe = False
        """The client wants transcripts."""
        self.vad_seen = False
        """The model detects speech itself."""
        self.committed = 0
        """Turns that have become items."""
        self._heard_ms = 0.0
        self._items = items
        self._new_id = new_id
        self._turns: list[_Turn] = []
        self._speaking: _Turn | None = None
        self._early: UserTranscript | None = None
        """What was written down of a turn that the client is still committing."""

    @property
    def unwritten(self) -> bool:
        """Speech has ended whose transcript is still to come."""
        return self._speaking is None and any(turn.committed for turn in self._turns)

    def take_heard_ms(self) -> float:
        """Speech that has become items since the last call."""
        heard_ms, self._heard_ms = self._heard_ms, 0.0
        return heard_ms

    def speech_started(self, event: UserSpeechStarted) -> list[Message]:
        self.vad_seen = True
        turn = _Turn(item_id=self._new_id(), started_ms=event.at_ms)
        self._speaking = turn
        self._turns.append(turn)
        del self._turns[:-16]
        return [
            {
                "type": "input_audio_buffer.speech_started",
                "audio_start_ms": round(event.at_ms),
                "item_id": turn.item_id,
            }
        ]

    def speech_stopped(self, event: UserSpeechStopped) -> list[Message]:
        turn, self._speaking = self._speaking, None
        if turn is None:
            return []
        if turn.started_ms is not None:
            turn.seconds = max(0.0, event.at_ms - turn.started_ms) / 1000
        stopped = {
            "type": "input_audio_buffer.speech_stopped",
            "audio_end_ms": round(event.at_ms),
            "item_id": turn.item_id,
        }
        return [stopped, *self._commit(turn)]

    def client_committed(self, seconds: float) -> list[Message]:
        """The client's commit took effect: what it appended is an item."""
        turn = _Turn(item_id=self._new_id(), seconds=seconds)
        self._turns.append(turn)
        messages = self._commit(turn)
        early, self._early = self._early, None
        if early is not None:
            messages += self.transcript(early)
        elif not self.vad_seen:
            self._turns.remove(turn)  # the model writes nothing down
        return messages

    def timed_out(self, event: UserIdle) -> list[Message]:
        """The user said nothing for too long: the silence becomes an item without words."""
        turn = _Turn(item_id=self._new_id())
        timeout = {
            "type": "input_audio_buffer.timeout_triggered",
            "audio_start_ms": round(event.start_ms),
            "audio_end_ms": round(event.end_ms),
            "item_id": turn.item_id,
        }
        return [timeout, *self._commit(turn)]

    def cleared(self) -> None:
        """Speech that was under way is forgotten."""
        if self._speaking is not None and self._speaking in self._turns:
            self._turns.remove(self._speaking)
        self._speaking = self._early = None

    def _commit(self, turn: _Turn) -> list[Message]:
        turn.committed = True
        self.committed += 1
        self._heard_ms += turn.seconds * 1000
        item: Message = {
            "id": turn.item_id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        previous = self._items.add(Item(wire=item))
        told = {"previous_item_id": previous, "item": {**item, "content": [dict(item["content"][0])]}}
        return [
            {
                "type": "input_audio_buffer.committed",
                "previous_item_id": previous,
                "item_id": turn.item_id,
            },
            {"type": "conversation.item.added", **told},
            {"type": "conversation.item.done", **told},
        ]

    # --- transcription ------------------------------------------------------------------------------

    def transcript(self, event: UserTranscript) -> list[Message]:
        turn = self._turn_of(event)
        if turn is None:
            # of speech that no event has told of: the client commits it, or is about to
            if event.final and self._early is not None and self._early.final:
                event = msgspec.structs.replace(event, text=f"{self._early.text} {event.text}".strip())
            self._early = event
            return []
        if not event.final:
            stable = _agreed(turn.before, event.text)
            turn.before = event.text
            return self._delta(turn, stable)
        self._forget_before(turn)
        item = self._items.get(turn.item_id)
        if item is not None:
            item.history_id = event.item_id
            item.wire["content"] = [{"type": "input_audio", "transcript": event.text}]
        messages = self._delta(turn, event.text)
        if not self.transcribe:
            return messages
        completed = {
            "type": "conversation.item.input_audio_transcription.completed",
            "item_id": turn.item_id,
            "content_index": 0,
            "transcript": event.text,
            "usage": {"type": "duration", "seconds": round(turn.seconds, 3)},
        }
        return [*messages, completed]

    def _turn_of(self, event: UserTranscript) -> _Turn | None:
        if event.started_ms is not None:
            return next((turn for turn in self._turns if turn.started_ms == event.started_ms), None)
        return self._turns[0] if self._turns else None

    def _forget_before(self, turn: _Turn) -> None:
        """This turn is written down, and those before it had no words."""
        del self._turns[: self._turns.index(turn) + 1]

    def _delta(self, turn: _Turn, text: str) -> list[Message]:
        if not self.transcribe or not text.startswith(turn.told) or text == turn.told:
            return []
        delta = text[len(turn.told) :]
        turn.told = text
        return [
            {
                "type": "conversation.item.input_audio_transcription.delta",
                "item_id": turn.item_id,
                "content_index": 0,
                "delta": delta,
            }
        ]


def _agreed(before: str, after: str) -> str:
    """The words that both begin with."""
    length = 0
    for one, other in zip(before, after, strict=False):
        if one != other:
            break
        length += 1
    if length == len(before) == len(after):
        return after
    while length and not after[length - 1].isspace():
        length -= 1
    return after[:length].rstrip()
