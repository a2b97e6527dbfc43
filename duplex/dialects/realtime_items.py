"""Items of the conversation, as the OpenAI Realtime dialect shows them, and as the core remembers them."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
import pybase64

from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import HistoryItem, ImageWindow
from duplex.dialects.fields import Fields
from duplex.dialects.windows import still

MAX_ITEMS: Final = 512
MAX_ITEM_BYTES: Final = 4 * 1024 * 1024
"""Items that can be retrieved, truncated and deleted, and what they may hold; the oldest go first."""
ROOT: Final = "root"
"""As `previous_item_id`: in front of all."""
_TEXTS: Final = {"input_text": "text", "output_text": "text", "text": "text"}
_ROLES: Final[dict[str, Literal["user", "assistant", "system"]]] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
}
_SPOKEN: Final = frozenset(["input_audio", "output_audio", "audio"])


class Item(msgspec.Struct, kw_only=True):
    """One item: what the client sees, and where it is in the core."""

    wire: dict[str, Any]
    history_id: str = ""
    response_index: int | None = None
    audio_ms: float = 0.0
    """Audio of it that was sent."""
    size: int = 256
    """Bytes, about."""


class Items:
    """The conversation in its order, bounded."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}
        self._bytes = 0

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    def get(self, item_id: str) -> Item | None:
        return self._items.get(item_id)

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Put an item at the end, behind `after`, or in front (`ROOT`). Returns the id of the one before."""
        item_id = item.wire["id"]
        ids = list(self._items)
        if after is None or (after != ROOT and after not in self._items):
            previous = ids[-1] if ids else None
            self._items[item_id] = item
        else:
            place = 0 if after == ROOT else ids.index(after) + 1
            previous = ids[place - 1] if place else None
            behind = {key: self._items.pop(key) for key in ids[place:]}
            self._items[item_id] = item
            self._items.update(behind)
        self._bytes += item.size
        while len(self._items) > 1 and (len(self._items) > MAX_ITEMS or self._bytes > MAX_ITEM_BYTES):
            self.remove(next(iter(self._items)))
        return previous

    def remove(self, item_id: str) -> None:
        item = self._items.pop(item_id, None)
        if item is not None:
            self._bytes -= item.size

    def of_response(self, index: int) -> Item | None:
        """The spoken or written answer of a response."""
        return next((item for item in self._items.values() if item.response_index == index), None)


class NewItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that a client wrote."""

    wire: dict[str, Any]
    history: HistoryItem
    images: tuple[ImageWindow, ...] = ()


def read_item(fields: Fields, item_id: str) -> NewItem:
    """An item of `conversation.item.create` or of a response's `input`.

    Raises:
        DuplexError: `INVALID_VALUE`, `INVALID_MEDIA`, with `param`.
    """
    kind = fields.string("type") if "type" in fields else "message"
    wire: dict[str, Any] = {"id": item_id, "object": "realtime.item", "type": kind, "status": "completed"}
    match kind:
        case "message":
            return _message(fields, wire)
        case "function_call":
            name, arguments = fields.string("name"), fields.string("arguments")
            call_id = fields.string("call_id") if "call_id" in fields else item_id
            wire |= {"call_id": call_id, "name": name, "arguments": arguments}
            return NewItem(
                wire=wire,
                history=HistoryItem(role="assistant", text=arguments, call_id=call_id, name=name),
            )
        case "function_call_output":
            call_id, output = fields.string("call_id"), fields.string("output")
            wire |= {"call_id": call_id, "output": output}
            return NewItem(wire=wire, history=HistoryItem(role="tool", text=output, call_id=call_id))
    raise fields.refuse("type", "message, function_call or function_call_output")


def _message(fields: Fields, wire: dict[str, Any]) -> NewItem:
    role = _ROLES.get(fields.string("role"))
    if role is None:
        raise fields.refuse("role", "user, assistant or system")
    parts = fields.values.get("content")
    if not isinstance(parts, list) or not parts:
        raise fields.refuse("content", "an array that is not empty")
    texts: list[str] = []
    images: list[ImageWindow] = []
    content: list[dict[str, Any]] = []
    for position, value in enumerate(parts):
        path = fields.path(f"content[{position}]")
        if not isinstance(value, dict):
            raise DuplexError(ErrorCode.INVALID_VALUE, f"{path} must be an object", param=path)
        part = Fields(value, path)
        kind = part.string("type")
        if kind in _TEXTS:
            texts.append(part.string("text"))
            content.append(
                {"type": "output_text" if role == "assistant" else "input_text", "text": texts[-1]}
            )
        elif kind in _SPOKEN:
            if "transcript" not in part:
                raise part.refuse("transcript", "there: audio itself goes through input_audio_buffer")
            texts.append(part.string("transcript"))
            spoken = "output_audio" if role == "assistant" else "input_audio"
            content.append({"type": spoken, "transcript": texts[-1]})
        elif kind == "input_image" and role == "user":
            images.append(ImageWindow(data=_image(part)))
            content.append({"type": kind, "image_url": part.values["image_url"]})
        else:
            raise part.refuse("type", "a kind of content that a message of this role can have")
    wire |= {"role": role, "content": content}
    history = HistoryItem(role=role, text="\n".join(filter(None, texts)))
    return NewItem(wire=wire, history=history, images=tuple(images))


def _image(part: Fields) -> bytes:
    url = part.string("image_url")
    head, found, data = url.partition(";base64,")
    if not found or not head.startswith("data:image/"):
        raise part.refuse("image_url", "a data URL of base64")
    try:
        return still(pybase64.b64decode(data, validate=True), part.path("image_url"))
    except ValueError:
        raise part.refuse("image_url", "a data URL of base64", ErrorCode.INVALID_BASE64) from None
