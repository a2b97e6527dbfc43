"""What an adapter raises, in the words of the closed vocabulary."""

from __future__ import annotations

import asyncio
import logging

from duplex.core.errors import DuplexError, ErrorCode

log = logging.getLogger("duplex.adapter")


def named(error: BaseException, doing: str) -> DuplexError:
    """The fault that the client is told. Anything but a `DuplexError` is logged with its traceback; only the
    name of its class goes out, because its words may tell what is none of the client's business."""
    if isinstance(error, DuplexError):
        return error
    log.error("the adapter failed while %s", doing, exc_info=error)
    return DuplexError(ErrorCode.ADAPTER_FAILED, f"the model failed while {doing}: {type(error).__name__}")


def being_cancelled() -> bool:
    """True when the current task was asked to stop: tells our own cancellation from one that an adapter
    raised by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
