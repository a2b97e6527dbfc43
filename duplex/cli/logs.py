"""Log lines on standard error."""

from __future__ import annotations

import logging
import sys


def to_stderr(*, tracebacks: bool) -> None:
    """Send log records to standard error; without `tracebacks` an exception is its last line.

    What a model failed to load with is left out: the command ends with it, in one line.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines() if tracebacks else _OneLine())
    handler.addFilter(_not_loading)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


class _Lines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class _OneLine(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        return f"{record.levelname} {record.name}: {' '.join(text.split())}"


def _not_loading(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("cannot load the models")
