"""The events of one response, in the standard order.

A response has output items, one after the other: an answer that is spoken or written, and calls of the
client's functions. An item is opened by its first delta and closed before the next begins. While an answer
may still have audio on its way, calls wait for its end, so that no item is inside another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pybase64

from duplex.core.events import ResponseAudio, ResponseToolCall
from duplex.core.types import Modality
from duplex.dialects.realtime_items import Item, Items

Message = dict[str, Any]

CHARACTERS_PER_TOKEN: Final = 4
INPUT_MS_PER_TOKEN: Final = 100
OUTPUT_MS_PER_TOKEN: Final = 50
"""A gateway knows no tokenizer: usage is estimated, by the rates that the reference counts audio with."""


class Used(NamedTuple):
    """What went into a response."""

    characters: int = 0
    audio_ms: float = 0.0


class ResponseWriter:
    """Events of one response. Methods return messages without their `event_id`."""

    def __init__(
        self,
        response_id: str,
        index: int,
        modalities: tuple[Modality, ...],
        *,
        shown: Message,
        items: Items,
        new_id: Callable[[], str],
        recorded: bool,
    ) -> None:
        self.id = response_id
        self.index = index
        self._audible = Modality.AUDIO in modalities
        self._shown = shown
        self._items = items
        self._new_id = new_id
        self._recorded = recorded
        self._output: list[Message] = []
        self._previous: dict[str, str | None] = {}
        self._message: Message | None = None
        self._call: Message | None = None
        self._waiting: list[ResponseToolCall] = []
        self._text = ""
        self._has_text = False
        """Text deltas came: the words that come with audio are the same, and are not told twice."""
        self._audio_ms = 0.0
        self._calls_text = 0

    # --- deltas -------------------------------------------------------------------------------------

    def created(self) -> Message:
        return {"type": "response.created", "response": self._response("in_progress")}

    def text(self, text: str) -> list[Message]:
        self._has_text = True
        return self._say(text)

    def _say(self, text: str) -> list[Message]:
        opened = self._open_message()
        self._text += text
        kind = "response.output_audio_transcript.delta" if self._audible else "response.output_text.delta"
        return [*opened, {"type": kind, **self._place(), "delta": text}]

    def audio(self, event: ResponseAudio) -> list[Message]:
        spoken: list[Message] = []
        if event.text and not self._has_text:
            apart = self._text and not self._text[-1].isspace() and not event.text[0].isspace()
            spoken = self._say(f" {event.text}" if apart else event.text)
        opened = self._open_message()
        self._audio_ms += event.duration_ms
        if not event.payload:
            return [*opened, *spoken]
        delta = pybase64.b64encode_as_string(event.payload)
        return [*opened, *spoken, {"type": "response.output_audio.delta", **self._place(), "delta": delta}]

    def call(self, event: ResponseToolCall) -> list[Message]:
        if self._message is not None:
            self._waiting.append(event)
            return []
        return self._write_call(event)

    # --- the end ------------------------------------------------------------------------------------

    def ended(self, status: str, details: Message | None, used: Used) -> list[Message]:
        """Close what is open, then `response.done` and the rate limits."""
        item_status = "completed" if status == "completed" else "incomplete"
        messages = self._close_message(item_status)
        for event in self._waiting:
            messages += self._write_call(event)
        self._waiting.clear()
        messages += self._close_call(item_status)
        done = self._response(status, details)
        done["usage"] = self._usage(used)
        return [
            *messages,
            {"type": "response.done", "response": done},
            {"type": "rate_limits.updated", "rate_limits": []},
        ]

    # --- items --------------------------------------------------------------------------------------

    def _open_message(self) -> list[Message]:
        if self._message is not None:
            return []
        closed = self._close_call("completed")
        item: Message = {
            "id": self._new_id(),
            "object": "realtime.item",
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        self._message = item
        part = {"type": "audio", "transcript": ""} if self._audible else {"type": "text", "text": ""}
        return [
            *closed,
            *self._open(item, Item(wire=item, response_index=self.index)),
            {"type": "response.content_part.added", **self._place(), "part": part},
        ]

    def _open(self, item: Message, kept: Item) -> list[Message]:
        self._output.append(item)
        added = {
            "type": "response.output_item.added",
            "response_id": self.id,
            "output_index": len(self._output) - 1,
            "item": dict(item),
        }
        if not self._recorded:
            return [added]
        previous = self._previous[item["id"]] = self._items.add(kept)
        shown = {"type": "conversation.item.added", "previous_item_id": previous, "item": dict(item)}
        return [added, shown]

    def _close(self, item: Message, status: str) -> list[Message]:
        item["status"] = status
        place = self._output.index(item)
        done = {
            "type": "response.output_item.done",
            "response_id": self.id,
            "output_index": place,
            "item": dict(item),
        }
        if not self._recorded:
            return [done]
        previous = self._previous[item["id"]]
        shown = {"type": "conversation.item.done", "previous_item_id": previous, "item": dict(item)}
        return [shown, done]

    def _close_message(self, status: str) -> list[Message]:
        item = self._message
        if item is None:
            return []
        place = self._place()
        self._message = None
        if self._audible:
            item["content"] = [{"type": "output_audio", "transcript": self._text}]
            part = {"type": "audio", "transcript": self._text}
            ends = [
                {"type": "response.output_audio.done", **place},
                {"type": "response.output_audio_transcript.done", **place, "transcript": self._text},
            ]
        else:
            item["content"] = [{"type": "output_text", "text": self._text}]
            part = {"type": "text", "text": self._text}
            ends = [{"type": "response.output_text.done", **place, "text": self._text}]
        kept = self._items.get(item["id"])
        if kept is not None:
            kept.audio_ms = self._audio_ms
        ended = {"type": "response.content_part.done", **place, "part": part}
        return [*ends, ended, *self._close(item, status)]

    def _write_call(self, event: ResponseToolCall) -> list[Message]:
        messages: list[Message] = []
        if self._call is None or self._call["call_id"] != event.call_id:
            messages = self._close_call("completed")
            self._call = item = {
                "id": self._new_id(),
                "object": "realtime.item",
                "type": "function_call",
                "status": "in_progress",
                "call_id": event.call_id,
                "name": event.name,
                "arguments": "",
            }
            messages += self._open(item, Item(wire=item, history_id=event.call_id))
        if event.arguments:
            self._call["arguments"] += event.arguments
            self._calls_text += len(event.arguments)
            messages.append(
                {
                    "type": "response.function_call_arguments.delta",
                    **self._call_place(self._call),
                    "delta": event.arguments,
                }
            )
        return messages

    def _close_call(self, status: str) -> list[Message]:
        item, self._call = self._call, None
        if item is None:
            return []
        done = {
            "type": "response.function_call_arguments.done",
            **self._call_place(item),
            "name": item["name"],
            "arguments": item["arguments"],
        }
        return [done, *self._close(item, status)]

    def _call_place(self, item: Message) -> Message:
        return {
            "response_id": self.id,
            "item_id": item["id"],
            "output_index": self._output.index(item),
            "call_id": item["call_id"],
        }

    def _place(self) -> Message:
        assert self._message is not None
        return {
            "response_id": self.id,
            "item_id": self._message["id"],
            "output_index": self._output.index(self._message),
            "content_index": 0,
        }

    # --- the response object ------------------------------------------------------------------------

    def _response(self, status: str, details: Message | None = None) -> Message:
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": details,
            "output": [dict(item) for item in self._output],
            "output_modalities": ["audio"] if self._audible else ["text"],
            **self._shown,
            "usage": None,
        }

    def _usage(self, used: Used) -> Message:
        text_in = -(-used.characters // CHARACTERS_PER_TOKEN)
        audio_in = round(used.audio_ms / INPUT_MS_PER_TOKEN)
        text_out = -(-(len(self._text) + self._calls_text) // CHARACTERS_PER_TOKEN)
        audio_out = round(self._audio_ms / OUTPUT_MS_PER_TOKEN)
        return {
            "total_tokens": text_in + audio_in + text_out + audio_out,
            "input_tokens": text_in + audio_in,
            "output_tokens": text_out + audio_out,
            "input_token_details": {
                "text_tokens": text_in,
                "audio_tokens": audio_in,
                "image_tokens": 0,
                "cached_tokens": 0,
                "cached_tokens_details": {"text_tokens": 0, "audio_tokens": 0, "image_tokens": 0},
            },
            "output_token_details": {"text_tokens": text_out, "audio_tokens": audio_out},
        }
