"""One session's view of its video: frames in, events out.

Each event is made once. All state is bounded: the current shot, the looks of the last shots, the last events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import numpy as np
from numpy.typing import NDArray

from duplex.adapters.embedded.events import Counted, Event, Kind
from duplex.adapters.embedded.object_tracks import FAINT, ObjectTracks
from duplex.adapters.embedded.objects import ObjectDetector
from duplex.adapters.embedded.scene_motion import MotionEvents
from duplex.adapters.embedded.tags import Tagger
from duplex.adapters.embedded.vision_cuts import CutDetector, FrameLook, coded_afresh
from duplex.adapters.embedded.vision_look import (
    OTHER_VIEW,
    SAME_VIEW,
    THUMB,
    Look,
    cells,
    colour_words,
    likeness,
    look_of,
)
from duplex.adapters.embedded.vision_motion import Motion, MotionMeter
from duplex.codecs.video_frame import VideoFrame

SURE_TAG: Final = 0.7
"""Score from which a tag is believed, twice in a row: true tags of our test pictures scored 0.83 and more,
false ones up to 0.61."""

_DETECT_MS: Final = 500.0
_CONFIRM_MS: Final = 160.0
_RECOUNT_MS: Final = 2500.0
_TAG_MS: Final = 2000.0
_SETTLED_MS: Final = 160.0  # a shot is described this long after it began
_WAIT_MS: Final = 1200.0  # and at the latest this long after
_TEXT_MS: Final = 400.0  # on-screen text is read this long after it began
_SHORTEST_MS: Final = 20.0  # between frames that are looked at: 50 a second
_GRADUAL_MS: Final = 1000.0
_CALM: Final = 1.5  # brightness steps a frame
_MOST_EVENTS: Final = 128
_MOST_SHOTS: Final = 24


class Care(Enum):
    """How closely frames are looked at."""

    FULL = auto()
    BRIEF = auto()  # detectors until the shot is described
    SKIM = auto()  # cuts and motion alone


@dataclass(slots=True)
class _Shot:
    number: int
    start_ms: float
    kind: Kind
    tracks: ObjectTracks = field(default_factory=ObjectTracks)
    described: bool = False
    detections: int = 0
    returns_to_ms: float | None = None
    first: Look | None = None
    tag: str | None = None
    tag_candidate: str | None = None
    tag_said: str | None = None
    counts: dict[str, int] = field(default_factory=dict)  # what was said
    counted_ms: dict[str, float] = field(default_factory=dict)  # when
    text_asked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is known now, for answers.

    Attributes:
        pts_ms: Time of the last frame; None before the first.
        shot_ms: When the current shot began.
        shots: Shots so far, the current one included.
        objects: What is surely in the current shot.
        tag: What the picture looks like.
        colours: Its colours, when they stand out.
        motion: What moves.
        lines: Words last read on the screen in this shot.
        events: The last events, oldest first.
        detects: Detectors at work: `objects`, `tags`, `text`.
    """

    pts_ms: float | None
    shot_ms: float
    shots: int
    objects: tuple[Counted, ...]
    tag: str | None
    colours: str | None
    motion: Motion | None
    lines: tuple[str, ...]
    events: tuple[Event, ...]
    detects: frozenset[str]


class Scene:
    """Takes the frames of one session in order, in one thread at a time.

    Args:
        detector: Object detector, or None to do without.
        tagger: Picture tagger, or None to do without.
        read_text: Called with a frame and the shot's number when the words on the screen should be read;
            the lines come back by `text_found`.
    """

    def __init__(
        self,
        detector: ObjectDetector | None = None,
        tagger: Tagger | None = None,
        read_text: Callable[[VideoFrame, int], None] | None = None,
    ) -> None:
        self._detector, self._tagger, self._read_text = detector, tagger, read_text
        self._cuts, self._meter, self._motion = CutDetector(), MotionMeter(), MotionEvents()
        self._shot: _Shot | None = None
        self._shots = 0
        self._views: deque[tuple[float, Look]] = deque(maxlen=_MOST_SHOTS)  # how earlier shots ended
        self._recent: deque[Look] = deque(maxlen=16)
        self._look: Look | None = None
        self._last_ms = -np.inf
        self._detect_due = self._tag_due = -np.inf
        self._last_motion: Motion | None = None
        self._lines: tuple[str, ...] = ()
        self._read: deque[str] = deque(maxlen=64)
        self._events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._number = 0
        self.activity = 0.0
        """Share of the picture that changed at the last frame, 0 to 1."""

    # --- frames -------------------------------------------------------------------------------------

    def watch(self, frame: VideoFrame, *, care: Care = Care.FULL) -> list[Event]:
        """Look at the next frame, with as much care as there is time for."""
        events: list[Event] = []
        if self._last_ms <= frame.pts_ms < self._last_ms + _SHORTEST_MS:
            return events
        if frame.pts_ms < self._last_ms or frame.pts_ms > self._last_ms + 5000.0:
            self._cuts.reset()
            self._meter.reset()
        self._last_ms = frame.pts_ms
        thumb = frame.luma(*THUMB)
        luma = cells(thumb)
        vectors = frame.motion()
        afresh = coded_afresh(frame.key, frame.residual_proxy(vectors))
        if self._shot is None:
            self._begin(Kind.OPENING, frame.pts_ms)
        cut_ms = self._cuts.feed(FrameLook(pts_ms=frame.pts_ms, luma=luma, coded_afresh=afresh))
        if cut_ms is not None:
            events += self._close_shot()
            self._begin(Kind.CUT, cut_ms)
        size = (frame.width, frame.height)
        motion = self._meter.feed(frame.pts_ms, thumb, luma, vectors, frame.type, size)
        self._last_motion, self.activity = motion, motion.active
        events += self._follow(frame, luma, motion, care)
        return events

    def settle(self, frame: VideoFrame) -> list[Event]:
        """No frame follows this one soon (a lone picture): say what it shows.

        Two pictures in a row are asked of every detector: here the second is the mirror image.
        """
        shot = self._shot
        if shot is None or shot.described:
            return []
        if self._detector is not None and shot.detections < 2:
            mirrored = [d.mirrored() for d in self._detector.detect(frame.mirrored(), least=FAINT)]
            shot.tracks.feed(mirrored, cells(frame.luma(*THUMB)))
            shot.detections += 1
        if self._tagger is not None and shot.tag is None:
            for picture in (frame, frame.mirrored()):
                self._tag(shot, picture, self._tagger)
        if self._read_text is not None and not shot.text_asked:
            shot.text_asked = True
            self._read_text(frame, shot.number)
        return self._describe(shot)

    def gap(self) -> None:
        """Frames are missing between the last and the next."""
        self._cuts.reset()
        self._meter.reset()
        self._motion.reset()

    def text_found(self, lines: tuple[str, ...], shot_number: int, at_ms: float) -> list[Event]:
        """Words that were read on the screen. Only new ones, in the shot that still runs, make an event."""
        if self._shot is None or self._shot.number != shot_number:
            return []
        self._lines = lines
        fresh = tuple(line for line in lines if _folded(line) not in self._read)
        self._read.extend(_folded(line) for line in fresh)
        return [self._event(Kind.TEXT, at_ms, lines=fresh)] if fresh else []

    def codec_noticed(self, at_ms: float, motion: float) -> list[Event]:
        """Strong motion in side information that came without pixels (pixels a frame)."""
        return [self._event(Kind.CODEC, at_ms, scores=(("motion", round(motion, 2)),))]

    def view(self) -> View:
        """What is known now."""
        shot = self._shot
        return View(
            pts_ms=self._last_ms if shot is not None else None,
            shot_ms=shot.start_ms if shot is not None else 0.0,
            shots=self._shots,
            objects=shot.tracks.present if shot is not None else (),
            tag=shot.tag if shot is not None else None,
            colours=colour_words(self._look) if self._look is not None else None,
            motion=self._last_motion,
            lines=self._lines,
            events=tuple(self._events),
            detects=frozenset(
                name
                for name, part in (
                    ("objects", self._detector),
                    ("tags", self._tagger),
                    ("text", self._read_text),
                )
                if part is not None
            ),
        )

    # --- shots --------------------------------------------------------------------------------------

    def _begin(self, kind: Kind, start_ms: float) -> None:
        ended = [
            look
            for look in self._recent
            if look.pts_ms < start_ms - (_GRADUAL_MS if kind is Kind.CHANGE else 0)
        ]
        if ended:
            self._views.append((start_ms, ended[-1]))
        self._shots += 1
        self._shot = _Shot(number=self._shots, start_ms=start_ms, kind=kind)
        self._lines = ()
        self._look = None
        self._recent.clear()
        self._meter.reset()
        self._motion.reset()
        self._detect_due = start_ms
        self._tag_due = start_ms + 0.5 * _SETTLED_MS

    def _close_shot(self) -> list[Event]:
        """Say what was not said of a shot that ends before it was described."""
        shot = self._shot
        return self._describe(shot) if shot is not None and not shot.described else []

    def _follow(
        self, frame: VideoFrame, luma: NDArray[np.float32], motion: Motion, care: Care
    ) -> list[Event]:
        shot = self._shot
        assert shot is not None
        events: list[Event] = []
        now, age = frame.pts_ms, frame.pts_ms - shot.start_ms
        if self._look is None or now - self._look.pts_ms >= 120.0:
            self._take_look(shot, frame)
        if care is Care.FULL or (care is Care.BRIEF and not shot.described):
            if self._detector is not None and now >= self._detect_due:
                events += self._detect(shot, frame, luma, self._detector)
            if self._tagger is not None and now >= self._tag_due:
                events += self._tag(shot, frame, self._tagger)
            if self._read_text is not None and not shot.text_asked and age >= _TEXT_MS:
                shot.text_asked = True
                self._read_text(frame, shot.number)
        if not shot.described:
            ready = age >= _SETTLED_MS and (self._detector is None or shot.detections >= 2)
            if ready or age >= _WAIT_MS:
                events += self._describe(shot)
            return events
        gradual = self._gradual_change(shot, now, motion)
        if gradual:
            self._begin(Kind.CHANGE, now)
            return events
        for kind, direction, place in self._motion.feed(motion):
            events.append(self._event(kind, now, direction=direction, place=place))
        return events

    def _take_look(self, shot: _Shot, frame: VideoFrame) -> None:
        self._look = look_of(frame)
        self._recent.append(self._look)
        if shot.first is None:
            shot.first = self._look
            if shot.kind is not Kind.OPENING:
                alike = ((likeness(self._look, view), left_ms) for left_ms, view in self._views)
                best, left_ms = max(alike, default=(0.0, 0.0))
                if best >= SAME_VIEW:
                    shot.returns_to_ms = left_ms

    def _gradual_change(self, shot: _Shot, now: float, motion: Motion) -> bool:
        """True when the view became another one without a cut (a wipe, a dissolve) and is calm again."""
        if self._cuts.change > _CALM or motion.pan is not None or self._look is None:
            return False
        old = next((look for look in self._recent if look.pts_ms <= now - _GRADUAL_MS), None)
        newer = [look for look in self._recent if look.pts_ms >= now - 260.0]
        if old is None or len(newer) < 2 or likeness(self._look, old) >= OTHER_VIEW:
            return False
        # something passed in front of the same view
        if shot.first is not None and likeness(self._look, shot.first) >= OTHER_VIEW:
            return False
        return likeness(newer[0], newer[-1]) >= SAME_VIEW

    # --- detectors ----------------------------------------------------------------------------------

    def _detect(
        self, shot: _Shot, frame: VideoFrame, luma: NDArray[np.float32], detector: ObjectDetector
    ) -> list[Event]:
        changes = shot.tracks.feed(detector.detect(frame, least=FAINT), luma)
        shot.detections += 1
        first = frame.pts_ms - shot.start_ms < _CONFIRM_MS
        self._detect_due = frame.pts_ms + (_CONFIRM_MS - 40.0 if changes.unsure or first else _DETECT_MS)
        if not shot.described:
            return []
        now, events = frame.pts_ms, []
        if changes.appeared:
            events.append(self._count(shot, Kind.APPEARED, changes.appeared, now))
        # larger counts come one after the other as the detector settles: wait for the last
        noticed = tuple(
            c
            for c in shot.tracks.present
            if c.count > shot.counts.get(c.label, 0)
            and now - shot.counted_ms.get(c.label, -np.inf) >= _RECOUNT_MS
        )
        if noticed:
            events.append(self._count(shot, Kind.NOTICED, noticed, now))
        if changes.left and self._same_view_since(now - _DETECT_MS):
            events.append(self._count(shot, Kind.LEFT, changes.left, now))
        return events

    def _count(self, shot: _Shot, kind: Kind, objects: tuple[Counted, ...], now: float) -> Event:
        for counted in objects:
            shot.counts[counted.label] = 0 if kind is Kind.LEFT else counted.count
            shot.counted_ms[counted.label] = now
        return self._event(kind, now, objects=objects)

    def _same_view_since(self, pts_ms: float) -> bool:
        """True when the view as a whole is what it was then: what is gone has gone by itself."""
        old = [look for look in self._recent if look.pts_ms <= pts_ms]
        return bool(old) and self._look is not None and likeness(self._look, old[-1]) >= SAME_VIEW

    def _tag(self, shot: _Shot, frame: VideoFrame, tagger: Tagger) -> list[Event]:
        word, score = tagger.tag(frame)
        sure = score >= SURE_TAG
        shot.tag = word if sure and word == shot.tag_candidate else None
        self._tag_due = frame.pts_ms + (_CONFIRM_MS if sure and word != shot.tag_candidate else _TAG_MS)
        shot.tag_candidate = word if sure else None
        if shot.tag is None or not shot.described or shot.tag == shot.tag_said or _is_object(shot):
            return []
        shot.tag_said = shot.tag
        return [self._event(Kind.TAG, frame.pts_ms, tag=shot.tag, scores=((word, round(score, 2)),))]

    def _describe(self, shot: _Shot) -> list[Event]:
        shot.described = True
        objects = shot.tracks.present
        shot.counts = {c.label: c.count for c in objects}
        shot.counted_ms = dict.fromkeys(shot.counts, shot.start_ms)
        tag = None if _is_object(shot) else shot.tag
        shot.tag_said = tag
        return [
            self._event(
                shot.kind,
                shot.start_ms,
                objects=objects,
                tag=tag,
                colours=colour_words(self._look) if self._look is not None else None,
                returns_to_ms=shot.returns_to_ms,
                looked=shot.detections > 0 or shot.tag_candidate is not None or self._detector is None,
            )
        ]

    def _event(self, kind: Kind, at_ms: float, **facts: object) -> Event:
        self._number += 1
        event = Event(number=self._number, kind=kind, at_ms=at_ms, **facts)  # type: ignore[arg-type]
        self._events.append(event)
        return event


def _is_object(shot: _Shot) -> bool:
    """True when the tag names an object that is counted anyway."""
    words = (shot.tag or "").split()
    return any(part in words for c in shot.tracks.present for part in c.label.split() if part != "or")


def _folded(line: str) -> str:
    return "".join(c for c in line.casefold() if c.isalnum())
