"""From microphone audio to turns: frames, turn detection, and audio to be written down.

Synchronous and deterministic: a session's listener runs on a worker thread, one call at a time, and gives
out events and stretches of audio as data. Nothing here knows the event loop, the models or other sessions:
who calls asks the activity model about each frame, for many sessions at once (`hearing`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from duplex.adapters.embedded.asr import TurnAudio
from duplex.adapters.embedded.vad import FRAME_MS, Frame, Framer, VoiceActivity
from duplex.core.turns import HYSTERESIS, REACH_MS, SpeechPaused, TurnDetector, TurnEvent
from duplex.core.types import AudioWindow, SpeechContinued, SpeechStarted, SpeechStopped, TurnDetection

PARTIAL_MS: Final = 400.0
"""A turn that goes on is written down again after this much more audio."""
TAIL_MS: Final = 200.0
"""Audio after the last speech that belongs to it: soft endings lie below the activity threshold."""
MANUAL_TURN_MS: Final = 1_800_000.0
"""A manual turn is closed at this length though nobody committed it."""


class DraftKind(StrEnum):
    """What a stretch of audio is: the turn so far; the turn, if it ends at this pause; a part of it that is
    cut off and done; the rest of it, now that it has ended; nothing, since the turn is dropped."""

    PARTIAL = "partial"
    AHEAD = "ahead"
    SEGMENT = "segment"
    FINAL = "final"
    DROPPED = "dropped"


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """Audio to write down: float32 at 16 kHz, shape (n,), empty when it holds no speech.

    An `AHEAD` and a `FINAL` of the same `end_ms` hold the same audio.
    """

    kind: DraftKind
    samples: NDArray[np.float32]
    end_ms: float


ListenEvent: TypeAlias = SpeechStarted | SpeechContinued | SpeechStopped | Draft


class Sound(msgspec.Struct, frozen=True, kw_only=True):
    """A frame to be heard, of which `real_ms` are the user's and the rest is filling."""

    frame: Frame
    real_ms: float = FRAME_MS
    playout_dbfs: float | None = None


class Listener:
    """One session's hearing: every `Sound` that it gives out is told it by `hear`, in order.

    Args:
        settings: of turn detection; None for manual turns, which only `finish` ends and which have no
            `SpeechStarted` and `SpeechStopped`.
    """

    def __init__(
        self,
        settings: TurnDetection | None,
        *,
        stall_timeout_ms: float = 2000.0,
        max_turn_ms: float = 120_000.0,
    ) -> None:
        self.activity = VoiceActivity()
        self._framer = Framer()
        self._detector = TurnDetector(stall_timeout_ms=stall_timeout_ms)
        self._max_turn_ms = max_turn_ms
        self._now_ms = 0.0
        self._recent: deque[tuple[float, Frame, bool]] = deque()
        self._turn = TurnAudio()
        self._draft_ms = 0.0
        self.configure(settings)

    def configure(self, settings: TurnDetection | None) -> None:
        """Change turn detection, also in the middle of a turn."""
        self._manual = settings is None
        turns = settings or TurnDetection()
        self._detector.settings = turns
        self._detector.open_ended = self._manual
        self._detector.max_turn_ms = MANUAL_TURN_MS if self._manual else self._max_turn_ms
        kept = int((turns.prefix_padding_ms + turns.min_speech_ms + REACH_MS) / FRAME_MS) + 8
        self._recent = deque(self._recent, maxlen=kept)

    def judge(self, end_ms: float, complete: float) -> None:
        """The turn, as the `AHEAD` draft of that `end_ms` has it, is complete with that probability."""
        self._detector.judge(end_ms, complete)

    @property
    def needed_ms(self) -> float:
        """Audio after which there is something to do."""
        return FRAME_MS - self._framer.pending_ms

    @property
    def stall_timeout_ms(self) -> float | None:
        """Call `finish` when no audio comes for this long; None: no need to."""
        return None if self._manual else self._detector.stall_timeout_ms

    def feed(self, window: AudioWindow) -> Iterator[Sound]:
        """The frames that a window completes."""
        for frame in self._framer.feed(window.pcm, window.sample_rate):
            yield Sound(frame=frame, playout_dbfs=window.playout_dbfs)

    def rest(self) -> Iterator[Sound]:
        """The input pauses or ends: what was held back. `finish` follows."""
        held_ms = self._framer.pending_ms or FRAME_MS
        for frame in self._framer.flush():
            yield Sound(frame=frame, real_ms=held_ms)

    def hear(self, sound: Sound, level_dbfs: float, probability: float) -> list[ListenEvent]:
        """The next frame, its level and its probability of speech."""
        speech = probability >= self._detector.settings.threshold - HYSTERESIS
        if self._detector.speaking:
            self._turn.add(sound.frame, speech=speech)
        else:
            self._recent.append((self._now_ms, sound.frame, speech))
        turn_events = self._detector.feed(probability, FRAME_MS, level_dbfs, sound.playout_dbfs, self._now_ms)
        self._now_ms += sound.real_ms
        events = self._tell(turn_events)
        if self._detector.speaking:
            events += self._write_down(speech)
        return events

    def finish(self) -> list[ListenEvent]:
        """The turn ends here: by the client's word, or because input has stalled or is over."""
        events = self._tell(self._detector.finish(self._now_ms))
        self.activity.reset()
        return events

    def forget(self) -> list[ListenEvent]:
        """Forget what is in no turn yet. Speech that was under way ends, without a word."""
        was_speaking = self._detector.speaking
        self._detector.reset()
        self._framer.flush()
        self.activity.reset()
        self._recent.clear()
        self._turn = TurnAudio()
        if not was_speaking:
            return []
        stopped: list[ListenEvent] = [] if self._manual else [SpeechStopped(at_ms=self._now_ms)]
        return [*stopped, Draft(kind=DraftKind.DROPPED, samples=np.zeros(0, np.float32), end_ms=self._now_ms)]

    def _tell(self, turn_events: list[TurnEvent]) -> list[ListenEvent]:
        events: list[ListenEvent] = []
        for event in turn_events:
            match event:
                case SpeechStarted():
                    self._begin(event.at_ms)
                    if not self._manual:
                        events.append(event)
                case SpeechContinued():
                    if not self._manual:
                        events.append(event)
                case SpeechPaused():
                    events.append(self._draft(DraftKind.AHEAD, event.at_ms))
                case SpeechStopped():
                    if not self._manual:
                        events.append(event)
                    events.append(self._draft(DraftKind.FINAL, event.at_ms))
                    self._turn = TurnAudio()
        return events

    def _begin(self, at_ms: float) -> None:
        """The turn's audio starts with what was heard before it was known to be speech."""
        for start_ms, frame, speech in self._recent:
            if start_ms + FRAME_MS > at_ms:
                self._turn.add(frame, speech=speech)
        self._recent.clear()
        self._draft_ms = self._now_ms

    def _write_down(self, speech: bool) -> list[ListenEvent]:
        segment = self._turn.take_segment()
        if segment is not None:
            self._draft_ms = self._now_ms
            if len(segment):
                return [Draft(kind=DraftKind.SEGMENT, samples=segment, end_ms=self._now_ms)]
        elif speech and self._now_ms - self._draft_ms >= PARTIAL_MS:
            self._draft_ms = self._now_ms
            return [Draft(kind=DraftKind.PARTIAL, samples=self._turn.audio(), end_ms=self._now_ms)]
        return []

    def _draft(self, kind: DraftKind, end_ms: float) -> Draft:
        if not self._turn.has_speech:
            return Draft(kind=kind, samples=np.zeros(0, np.float32), end_ms=end_ms)
        samples = self._turn.audio(less_ms=self._now_ms - end_ms - TAIL_MS)
        return Draft(kind=kind, samples=samples, end_ms=end_ms)
