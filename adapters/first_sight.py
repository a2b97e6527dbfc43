"""Windows for models that watch: what is wrong with one at first sight, before anything is decoded."""

from __future__ import annotations

from duplex.codecs.video import container_of
from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.types import ImageWindow, VideoWindow


def check_window(window: VideoWindow | ImageWindow, most_bytes: int) -> None:
    """Refuse what cannot be looked at. `most_bytes`: of a video window's data.

    Raises:
        DuplexError: `EMPTY_INPUT`, `MEDIA_TOO_LARGE`, or what `container_of` finds wrong with the kind.
    """
    if isinstance(window, ImageWindow):
        if not window.data:
            raise DuplexError(ErrorCode.EMPTY_INPUT, "an image without bytes", param="data")
        return
    if window.frames:
        if not all(window.frames):
            raise DuplexError(ErrorCode.EMPTY_INPUT, "a frame without bytes", param="data")
        return
    if not window.data:
        raise DuplexError(ErrorCode.EMPTY_INPUT, "a video window without bytes or frames", param="data")
    if len(window.data) > most_bytes:
        raise DuplexError(ErrorCode.MEDIA_TOO_LARGE, f"a window of {len(window.data):,} bytes", param="data")
    container_of(window.kind, window.data)
