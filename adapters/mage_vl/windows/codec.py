"""The backend `codec`: canvases of the patches on which the video's own encoder spent its bits."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from duplex.adapters.mage_vl.windows.costs import CostEstimator, is_key
from duplex.adapters.mage_vl.windows.geometry import fitted, image_size, raster
from duplex.adapters.mage_vl.windows.sampling import Beat, evenly
from duplex.adapters.mage_vl.windows.selection import (
    GROUP_FRAMES,
    GROUP_IMAGES,
    Candidate,
    Canvases,
    block_scores,
    canvases,
)
from duplex.adapters.mage_vl.windows.side_information import SideInformation, read
from duplex.adapters.mage_vl.windows.source import Place, Segment, Source, Visible
from duplex.adapters.mage_vl.windows.types import MOST_PATCHES, PATCH, VisualInput
from duplex.codecs.video import VideoFrame, VideoLimits
from duplex.core.types import CodecWindow, ImageWindow

MOST_GROUPS: Final = 8
"""Groups of one window at most, fewer where canvases are large; beyond them frames are left out evenly."""


class CodecWindows:
    """Selects patches of one session's windows.

    Groups do not reach over windows: what a window shows is known when it ends. The decoder, and the last
    frame that the next is compared with, live on across windows.

    Args:
        fps: Source frames a second that are considered, on one beat; None: all of them. Never more than
            `MOST_GROUPS` groups of a window.
        max_pixels: Pixels of a canvas.
        image_max_pixels: Pixels of a lone image, which is shown whole.
        limits: Bounds of a window.
        place: Where the session's video goes on.
    """

    def __init__(
        self,
        *,
        fps: float | None = None,
        max_pixels: int,
        image_max_pixels: int,
        limits: VideoLimits | None = None,
        place: Place | None = None,
    ) -> None:
        self._beat = None if fps is None else Beat(fps)
        self._max_pixels, self._image_max_pixels = max_pixels, image_max_pixels
        self._most_groups = min(MOST_GROUPS, max(1, MOST_PATCHES * PATCH**2 // (GROUP_IMAGES * max_pixels)))
        self._source = Source(limits, motion=True, place=place)
        self._estimator = CostEstimator()

    def see(self, window: Visible, codec: CodecWindow | None = None) -> VisualInput | None:
        """The window's canvases; None while the decoder holds all of its frames back.

        Args:
            window: Video or stills.
            codec: What the client says of the codec for this segment; it goes before what is found here.

        Raises:
            DuplexError: The window cannot be used: see `Source.open`; or its side information cannot: see
                `side_information.read`. The windows before and after it are not touched by that.
        """
        said = None if codec is None else read(codec)
        segment = self._source.open(window)
        if isinstance(window, ImageWindow):
            return self._whole(segment)
        if segment.stills:  # pictures are compared with those of their own window
            self._estimator.reset()
        return self._select(segment, said)

    def finish(self) -> VisualInput | None:
        """The input ends: what the decoder held back."""
        return self._select(self._source.rest(), None)

    def reset(self) -> None:
        """Windows between the last and the next are missing."""
        self._source.reset()
        self._estimator.reset()

    def close(self) -> None:
        """Give up, at the next frame, what is being decoded. From any thread."""
        self._source.close()

    @property
    def place(self) -> Place:
        """Where the session's video is."""
        return self._source.place

    def _whole(self, segment: Segment) -> VisualInput | None:
        for _, frame in segment.frames():
            size = image_size(frame.width, frame.height, self._image_max_pixels)
            return VisualInput(
                images=fitted(frame, *size, self._image_max_pixels)[None],
                positions=raster([0], *size),
                times_s=segment.seconds(np.array([frame.pts_ms])),
                segment_id=segment.id,
                pts_ms=segment.start_ms,
                duration_ms=segment.duration_ms,
            )
        return None

    def _select(self, segment: Segment, said: SideInformation | None) -> VisualInput | None:
        made: list[Canvases] = []
        group: list[Candidate] = []
        plan: _Plan | None = None
        size = (0, 0)
        last: tuple[int, VideoFrame] | None = None
        frame_ms: list[float] = []
        for index, frame in segment.frames():
            frame_ms.append(frame.pts_ms)
            if plan is None:
                plan = self._plan(segment)
                size = image_size(frame.width, frame.height, self._max_pixels)
            last = (index, frame)
            if not self._on_beat(frame) or not plan.takes():
                continue
            group.append(self._candidate(index, frame, size, segment, said))
            if len(group) == plan.group_size(len(made)):
                made.append(canvases(group))
                group = []
        if last is not None and not made and not group:
            group.append(self._candidate(*last, size, segment, said))
        if group:
            made.append(canvases(group))
        if not made:
            return None
        times = np.concatenate([part.pts_ms for part in made])
        return VisualInput(
            images=np.concatenate([part.images for part in made]),
            positions=np.concatenate([part.positions for part in made]),
            times_s=segment.seconds(times),
            frame_times_s=segment.seconds(np.array(frame_ms)),
            segment_id=segment.id,
            pts_ms=segment.start_ms,
            duration_ms=segment.duration_ms,
        )

    def _plan(self, segment: Segment) -> _Plan:
        count = segment.expected
        if self._beat is not None and not segment.stills:
            count = math.ceil(min(count, segment.duration_ms / self._beat.step_ms))
        return _Plan(count, self._most_groups)

    def _on_beat(self, frame: VideoFrame) -> bool:
        return self._beat is None or self._beat.takes(frame.pts_ms)

    def _candidate(
        self,
        index: int,
        frame: VideoFrame,
        size: tuple[int, int],
        segment: Segment,
        said: SideInformation | None,
    ) -> Candidate:
        image = fitted(frame, *size, self._max_pixels)
        costs = self._estimator.costs(frame, image)
        key: bool | None = None
        if said is not None:
            costs = said.refine(index, segment.expected, costs)
            key = said.is_key(index, segment.expected)
        return Candidate(
            index=index,
            pts_ms=frame.pts_ms,
            key=is_key(frame) if key is None else key,
            image=image,
            scores=block_scores(costs),
        )


class _Plan:
    """How the frames of a window, about `count`, are put into groups of about the same size."""

    def __init__(self, count: int, most_groups: int) -> None:
        most = most_groups * GROUP_FRAMES
        self._wanted = evenly(count, most) if count > most else None
        self._most = most
        self._groups = max(1, math.ceil(min(count, most) / GROUP_FRAMES))
        self._size = max(1, math.ceil(min(count, most) / self._groups))
        self._offered = 0
        self._taken = 0

    def takes(self) -> bool:
        """Whether the next frame is to be considered."""
        number = self._offered
        self._offered += 1
        if self._taken == self._most or (self._wanted is not None and number not in self._wanted):
            return False
        self._taken += 1
        return True

    def group_size(self, made: int) -> int:
        """Frames of the group after `made` groups. The last one has room for more than were expected."""
        return self._size if made < self._groups - 1 else GROUP_FRAMES
