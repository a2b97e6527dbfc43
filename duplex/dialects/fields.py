"""Reading typed fields out of decoded JSON or MessagePack objects, every refusal naming the field."""

from __future__ import annotations

import math
from typing import Any

from duplex.core.errors import DuplexError, ErrorCode
from duplex.dialects.strict_json import json_type

MAX_ID = 512
"""Characters of an event id or a segment id."""


class Fields:
    """The fields of one object. `path` stands before a field's name in `DuplexError.param`.

    A field that is null counts as absent. All getters raise `DuplexError(INVALID_VALUE)`.
    """

    __slots__ = ("_path", "values")

    def __init__(self, values: dict[str, Any], path: str = "") -> None:
        self.values = values
        self._path = path

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def refuse(self, name: str, words: str, code: ErrorCode = ErrorCode.INVALID_VALUE) -> DuplexError:
        """The fault of a field: it must be what `words` say."""
        path = self.path(name)
        return DuplexError(code, f"{path} must be {words}", param=path)

    def _wrong_type(self, name: str, wanted: str) -> DuplexError:
        value = self.values.get(name)
        return self.refuse(name, f"{wanted}, not {json_type(value)}")

    def string(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str):
            raise self._wrong_type(name, "a string")
        return value

    def identifier(self, name: str) -> str:
        """A string of bounded length; "" when absent. Whole numbers are taken for their digits."""
        value = self.values.get(name)
        if value is None:
            return ""
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
            return str(value)
        text = self.string(name)
        if len(text) > MAX_ID:
            raise self.refuse(name, f"at most {MAX_ID} characters")
        return text

    def integer(self, name: str) -> int:
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong_type(name, "a whole number")
        return value

    def number(self, name: str) -> float:
        """A finite number."""
        value = self.values.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong_type(name, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.refuse(name, "a finite number")
        return number

    def optional_number(self, name: str) -> float | None:
        return self.number(name) if name in self else None

    def optional_integer(self, name: str) -> int | None:
        return self.integer(name) if name in self else None

    def object(self, name: str) -> dict[str, Any]:
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self._wrong_type(name, "an object")
        return value

    def optional_object(self, name: str) -> dict[str, Any]:
        return self.object(name) if name in self else {}

    def fields(self, name: str) -> Fields:
        """The fields of the object under `name`."""
        return Fields(self.object(name), self.path(name))

    def strings(self, name: str) -> list[str]:
        value = self.values.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refuse(name, "an array of strings")
        return value

    def only(self, *names: str) -> None:
        """Raises `UNKNOWN_FIELD` for a field that is none of `names`."""
        for name in self.values:
            if name not in names:
                path = self.path(name[:64])
                raise DuplexError(ErrorCode.UNKNOWN_FIELD, f"unknown field: {path}", param=path)
