"""The backends by name: how a session's windows become images."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Protocol

import msgspec

from duplex.adapters.mage_vl.windows.codec import CodecWindows
from duplex.adapters.mage_vl.windows.cv_preinfer import TIMEOUT_S, PreinferWindows, find_program
from duplex.adapters.mage_vl.windows.frames import MOST_IMAGES, FrameWindows
from duplex.adapters.mage_vl.windows.pairing import WAIT_S
from duplex.adapters.mage_vl.windows.source import Place, Visible
from duplex.adapters.mage_vl.windows.types import VisualInput
from duplex.codecs.video import VideoLimits
from duplex.core.types import CodecWindow

Pixels = Annotated[int, msgspec.Meta(ge=1024, le=4_000_000)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=60)]

CANVAS_PIXELS: Final = 150_000
"""Of a canvas: what the published processor asks of its selector."""
FRAME_PIXELS: Final = 768 * 768
"""Of a frame or an image."""


class WindowOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How windows become images.

    Attributes:
        backend: `frames`: whole frames. `codec`: canvases of the patches on which the video's encoder spent
            its bits, found with libav. `cv-preinfer`: the same by the published program.
        num_frames: Of a window, for `frames`; the model was made for 8 to 32.
        target_fps: Frames a second, for `frames`; `num_frames` is then ignored. The model was made for 1
            to 2.
        max_pixels: Of a frame or a lone image.
        codec_fps: Source frames a second that `codec` considers; None: all of them.
        codec_max_pixels: Of a canvas.
        cv_preinfer: Path of the program; None: on the PATH.
        cv_preinfer_timeout_s: How long it may take for a window.
        side_information_wait_s: How long a window waits for the client's side information, in sessions that
            send such (`codec` alone uses it).
    """

    backend: Literal["frames", "codec", "cv-preinfer"] = "codec"
    num_frames: Annotated[int, msgspec.Meta(ge=1, le=MOST_IMAGES)] = 8
    target_fps: Rate | None = None
    max_pixels: Pixels = FRAME_PIXELS
    codec_fps: Rate | None = None
    codec_max_pixels: Pixels = CANVAS_PIXELS
    cv_preinfer: str | None = None
    cv_preinfer_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = TIMEOUT_S
    side_information_wait_s: Annotated[float, msgspec.Meta(ge=0, le=5)] = WAIT_S


class Backend(Protocol):
    """One session's windows in, images out. One call at a time and in order, off the event loop; `close` from
    any thread."""

    def see(self, window: Visible, codec: CodecWindow | None = None) -> VisualInput | None:
        """What a window shows; None while the decoder holds its frames back, to come with the next.

        Raises:
            DuplexError: That window cannot be used. The windows before and after it are not touched by that.
        """
        ...

    def finish(self) -> VisualInput | None:
        """The input ends: what was held back."""
        ...

    def reset(self) -> None:
        """Windows between the last and the next are missing: a stream goes on at its next key frame."""
        ...

    def close(self) -> None:
        """Stop at once what runs."""
        ...

    @property
    def place(self) -> Place:
        """Where the session's video is: another backend goes on there."""
        ...


def check(options: WindowOptions) -> None:
    """Make sure that the backend can run. Takes a second for `cv-preinfer`, which is tried out.

    Raises:
        DuplexError: `bad_config`, with words that say what to install.
    """
    if options.backend == "cv-preinfer":
        find_program(options.cv_preinfer)


def wants_codec(options: WindowOptions) -> bool:
    """Whether the backend uses side information that clients send."""
    return options.backend == "codec"


def open_windows(
    options: WindowOptions, limits: VideoLimits | None = None, *, place: Place | None = None
) -> Backend:
    """The backend of one session, from its beginning or from the place where another one was."""
    if options.backend == "frames":
        return FrameWindows(
            num_frames=options.num_frames,
            target_fps=options.target_fps,
            max_pixels=options.max_pixels,
            limits=limits,
            place=place,
        )
    if options.backend == "codec":
        return CodecWindows(
            fps=options.codec_fps,
            max_pixels=options.codec_max_pixels,
            image_max_pixels=options.max_pixels,
            limits=limits,
            place=place,
        )
    return PreinferWindows(
        program=options.cv_preinfer or "cv-preinfer",
        timeout_s=options.cv_preinfer_timeout_s,
        max_pixels=options.codec_max_pixels,
        image_max_pixels=options.max_pixels,
        limits=limits,
        place=place,
    )
