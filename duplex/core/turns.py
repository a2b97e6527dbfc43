"""Turn taking by voice activity: when the user's speech begins and when their turn is over.

Pure, sans-I/O: probabilities and levels in, events out, times are positions in the input audio (ms). The
caller runs the voice activity model and the one timer (`stall_timeout_ms`).

An onset acts without a transcript. Three things keep noise from acting:

- *duration*: only speech of `min_speech_ms` counts, measured as the least that the voiced frames prove
  (the first may have been touched by its last sample only), from the first to the last frame near the run's
  own peak level, because a model keeps saying "speech" for a while after a loud bang;
- *echo*: while our own audio is unplayed, a frame must be louder than our sound can return from the
  speaker, and the probability must be higher. How much returns is learned from the frames heard while we
  play and nobody speaks: loud speakers beside a microphone hold the bar high, a headset lowers it;
- *hysteresis*: to go on takes less than to begin.

What the bar for our own echo kept from being an onset may still have been the user's first word: a turn that
begins soon after begins with it.

A turn ends after silence: a fixed one, or one that depends on whether what was said is complete (`judge`).
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

import msgspec

from duplex.core.endings import patience_ms
from duplex.core.types import SpeechContinued, SpeechStarted, SpeechStopped, TurnDetection

HYSTERESIS = 0.15
"""Speech goes on while the probability is at least `threshold` less this (the Silero authors' value)."""
ECHO_THRESHOLD_SHARE = 0.4
"""While we play, the probability threshold moves this part of its way to 1."""
ECHO_MARGIN_DB = -10.0
"""Speech must be louder than our own level plus this, until less echo is measured. An echo at −20 dB of our
average level peaks about 8 dB above its average in single frames."""
ECHO_HEADROOM_DB = 6.0
"""Speech must be louder than the echo that was measured plus this."""
ECHO_LEARNED_AFTER_MS = 1000.0
"""Audible echo conditions that must be heard before the measurement counts."""
ECHO_DECAY_DB_PER_S = 1.0
"""How fast the measured echo falls when less returns."""
UNDER_MARGIN_DB = -15.0
"""While we play, speech that is louder than our own level plus this, yet under the bar, may be the user's. An
echo at −20 dB reaches this in one frame of a hundred."""
UNDER_MS = 96.0
"""Speech under the bar that is shorter than this, all in all, is none, but peaks of our echo."""
REACH_MS = 1200.0
"""How far before its onset a turn may begin with speech under the bar."""
AUDIBLE_DBFS = -50.0
"""Our sound must be louder than this to measure its echo."""
PEAK_RANGE_DB = 12.0
"""Frames of an onset that are further below its peak prove no speech, unless the voice comes back: a syllable
falls and rises again, a bang only falls."""
NOISE_MARGIN_DB = 3.0
"""Frames of an onset that stand out of the noise before it by less prove no speech: after a bang in a noisy
room only the noise goes on. Over 32 ms a steady noise differs from itself by less than 1 dB."""
NOISE_SHARE = 0.5
"""Frames with a probability below this part of the threshold are noise to be measured."""
NOISE_MEMORY_MS = 500.0
"""How fast the measured noise follows its level."""
SURE_MS = 480.0
"""What has sounded like speech for so long is speech, how soft ever: no bang sounds on so long."""
PAUSE_MS = 200.0
"""Silence after which the turn may be over: time to transcribe it ahead."""


class SpeechPaused(msgspec.Struct, frozen=True, kw_only=True):
    """Silence since `at_ms` for `PAUSE_MS`: the turn may be over, but is not yet."""

    at_ms: float


TurnEvent: TypeAlias = SpeechStarted | SpeechContinued | SpeechPaused | SpeechStopped


class TurnDetector:
    """One session's turns.

    Args:
        settings: thresholds and times of the session.
        stall_timeout_ms: input that stops in mid-speech ends the turn after this time without a frame.
        max_turn_ms: a turn is closed at this length, whatever is heard.
        open_ended: silence never ends the turn; only `finish`, `stalled` and `max_turn_ms` do (manual turns).
    """

    def __init__(
        self,
        settings: TurnDetection | None = None,
        *,
        stall_timeout_ms: float = 2000.0,
        max_turn_ms: float = 120_000.0,
        open_ended: bool = False,
    ) -> None:
        self.settings = settings or TurnDetection()
        self.max_turn_ms = max_turn_ms
        self.open_ended = open_ended
        self._stall_timeout_ms = stall_timeout_ms
        self._speaking = False
        self._started_ms = 0.0
        self._speech_end_ms = 0.0
        self._spoken_ms = 0.0
        """Voiced frames of the turn."""
        self._continued = False
        self._paused = False
        self._complete: float | None = None
        """Probability that the turn is complete at this pause."""
        self._last_stop_ms = 0.0
        self._run: deque[tuple[float, float]] = deque()  # (duration, level) of the onset's frames
        self._run_start_ms = 0.0
        self._under: deque[tuple[float, float]] = deque()  # (begin, duration) of frames
        self._noise_dbfs: float | None = None
        self._echo_db: float | None = None
        self._echo_heard_ms = 0.0

    @property
    def speaking(self) -> bool:
        """Between `SpeechStarted` and `SpeechStopped`."""
        return self._speaking

    @property
    def stall_timeout_ms(self) -> float | None:
        """Call `stalled` when no frame comes for this long; None: no need to, nobody speaks."""
        return self._stall_timeout_ms if self._speaking or self._run else None

    @property
    def echo_db(self) -> float | None:
        """Level of our own sound in the input, relative to our level; None until it has been measured."""
        return self._echo_db if self._echo_heard_ms >= ECHO_LEARNED_AFTER_MS else None

    def feed(
        self,
        probability: float,
        frame_ms: float,
        level_dbfs: float,
        playout_dbfs: float | None,
        at_ms: float,
    ) -> list[TurnEvent]:
        """One frame of input that begins at `at_ms`.

        `probability` of speech in it, `level_dbfs` its RMS level, `playout_dbfs` the level of our own audio
        that the user's speaker may play meanwhile (None: none). Frames follow each other without gaps.
        """
        threshold, floor_dbfs = self._bar(playout_dbfs)
        if self._speaking or self._run:
            threshold -= HYSTERESIS
        voiced = probability >= threshold and level_dbfs >= floor_dbfs
        if playout_dbfs is not None and not self._speaking:
            self._hear_under(probability, level_dbfs - playout_dbfs, at_ms, frame_ms)
        if playout_dbfs is not None and not self._speaking and not voiced:
            self._learn_echo(level_dbfs - playout_dbfs, frame_ms, playout_dbfs)
        if self._speaking:
            return self._go_on(voiced, frame_ms, at_ms)
        if not voiced:
            self._run.clear()
            if probability < self.settings.threshold * NOISE_SHARE:
                self._learn_noise(level_dbfs, frame_ms)
            return []
        return self._onset(frame_ms, level_dbfs, at_ms)

    def judge(self, at_ms: float, complete: float) -> None:
        """The turn, if it ends at the pause since `at_ms`, is complete with that probability. What is judged
        of another pause than the one that goes on has no effect."""
        if self._speaking and at_ms == self._speech_end_ms:
            self._complete = complete

    def stalled(self, at_ms: float) -> list[TurnEvent]:
        """No input has come for `stall_timeout_ms`; it ended at `at_ms`. An open turn ends."""
        return self.finish(at_ms)

    def finish(self, at_ms: float) -> list[TurnEvent]:
        """The turn ends here by the client's word, or because no more input comes.

        An onset that was still being measured counts when half of `min_speech_ms` is there: a short word at
        the end of what is committed is no noise.
        """
        events: list[TurnEvent] = []
        if not self._speaking and self._run:
            if self._run_ms() >= self.settings.min_speech_ms / 2:
                events += self._start(at_ms)
            self._run.clear()
        if self._speaking:
            events.append(self._stop(self._speech_end_ms))
        return events

    def reset(self) -> None:
        """What was heard in no turn yet is forgotten, a turn that is open included."""
        self._run.clear()
        self._under.clear()
        self._speaking = self._paused = False

    # --- states -------------------------------------------------------------------------------------

    def _onset(self, frame_ms: float, level_dbfs: float, at_ms: float) -> list[TurnEvent]:
        if not self._run:
            self._run_start_ms = at_ms
        self._run.append((frame_ms, level_dbfs))
        kept_ms = max(SURE_MS, 2 * self.settings.min_speech_ms)
        while _length_ms(self._run) - self._run[0][0] >= kept_ms:
            self._run.popleft()  # a bang at its beginning hides no soft voice behind it
        if self._run_ms() - frame_ms < self.settings.min_speech_ms:
            return []
        return self._start(at_ms + frame_ms)

    def _start(self, now_ms: float) -> list[TurnEvent]:
        self._spoken_ms = self._run_ms()
        self._run.clear()
        self._speaking = True
        self._paused = self._continued = False
        self._complete = None
        self._speech_end_ms = now_ms
        padded = self._first_word_ms() - self.settings.prefix_padding_ms
        self._started_ms = max(padded, self._last_stop_ms, 0.0)
        return [SpeechStarted(at_ms=self._started_ms), *self._lasts()]

    def _lasts(self) -> list[TurnEvent]:
        """Once in a turn, when it has lasted as long as an interruption has to."""
        if self._continued or not 0 < self.settings.interrupt_min_ms <= self._spoken_ms:
            return []
        self._continued = True
        return [SpeechContinued(speech_ms=self._spoken_ms)]

    def _go_on(self, voiced: bool, frame_ms: float, at_ms: float) -> list[TurnEvent]:
        now_ms = at_ms + frame_ms
        lasts: list[TurnEvent] = []
        if voiced:
            self._speech_end_ms = now_ms
            self._spoken_ms += frame_ms
            self._paused = False
            self._complete = None
            lasts = self._lasts()
        silence_ms = now_ms - self._speech_end_ms
        if silence_ms >= self._patience_ms() and not voiced and not self.open_ended:
            return [self._stop(self._speech_end_ms)]
        if now_ms - self._started_ms >= self.max_turn_ms:
            return [*lasts, self._stop(now_ms)]
        if silence_ms >= PAUSE_MS and not self._paused:
            self._paused = True
            return [SpeechPaused(at_ms=self._speech_end_ms)]
        return lasts

    def _patience_ms(self) -> float:
        settings = self.settings
        if settings.type == "semantic_vad":
            return patience_ms(self._complete, settings.eagerness)
        return settings.silence_duration_ms

    def _stop(self, at_ms: float) -> SpeechStopped:
        self._speaking = False
        self._last_stop_ms = at_ms
        return SpeechStopped(at_ms=at_ms)

    def _run_ms(self) -> float:
        """Speech in the onset: from its first to its last frame within `PEAK_RANGE_DB` of its peak and out of
        the noise, but at most twice what those frames last: two bangs with a pause between them are no
        speech."""
        bar = max(level for _, level in self._run) - PEAK_RANGE_DB
        if self._noise_dbfs is not None and _length_ms(self._run) < SURE_MS:
            bar = max(bar, self._noise_dbfs + NOISE_MARGIN_DB)
        span_ms = gap_ms = loud_ms = 0.0
        for duration, level in self._run:
            if level >= bar:
                loud_ms += duration
                span_ms += gap_ms + duration
                gap_ms = 0.0
            elif loud_ms:
                gap_ms += duration
        return min(span_ms, 2 * loud_ms)

    # --- speech under the bar ---------------------------------------------------------------------------

    def _hear_under(self, probability: float, ratio_db: float, at_ms: float, frame_ms: float) -> None:
        if probability >= self.settings.threshold and ratio_db >= UNDER_MARGIN_DB:
            self._under.append((at_ms, frame_ms))
        while self._under and self._under[0][0] < at_ms - REACH_MS:
            self._under.popleft()

    def _first_word_ms(self) -> float:
        """Beginning of what the user says: before the onset, if there was speech under the bar that no pause
        parts from it."""
        first_ms = begin_ms = self._run_start_ms
        heard_ms = 0.0
        for at_ms, frame_ms in reversed(self._under):
            if begin_ms - at_ms - frame_ms > self.settings.silence_duration_ms:
                break
            if at_ms < self._run_start_ms:
                begin_ms = at_ms
                heard_ms += frame_ms
        self._under.clear()
        return begin_ms if heard_ms >= UNDER_MS else first_ms

    # --- noise and echo -----------------------------------------------------------------------------

    def _bar(self, playout_dbfs: float | None) -> tuple[float, float]:
        """Probability and level (dBFS) that speech must reach now."""
        threshold = self.settings.threshold
        if playout_dbfs is None:
            return threshold, float("-inf")
        margin = ECHO_MARGIN_DB
        if (measured := self.echo_db) is not None:
            margin = min(margin, measured + ECHO_HEADROOM_DB)
        return threshold + (1 - threshold) * ECHO_THRESHOLD_SHARE, playout_dbfs + margin

    def _learn_noise(self, level_dbfs: float, frame_ms: float) -> None:
        before = self._noise_dbfs
        share = min(1.0, frame_ms / NOISE_MEMORY_MS)
        self._noise_dbfs = level_dbfs if before is None else before + (level_dbfs - before) * share

    def _learn_echo(self, ratio_db: float, frame_ms: float, playout_dbfs: float) -> None:
        if playout_dbfs < AUDIBLE_DBFS:
            return
        self._echo_heard_ms += frame_ms
        if self._echo_db is None:
            self._echo_db = ratio_db
        else:
            self._echo_db = max(ratio_db, self._echo_db - ECHO_DECAY_DB_PER_S * frame_ms / 1000)


def _length_ms(run: deque[tuple[float, float]]) -> float:
    return sum(duration for duration, _ in run)
