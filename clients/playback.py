"""Playing a response's audio: what a sound card is given, and what the user has heard of it. Sans-I/O.

`PlaybackBuffer` sits between the socket and the sound card; `PlaybackClock` stands in for both where
nothing is really played.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from duplex.clients.events import AudioDelta
from duplex.codecs.resample import Resampler

DUCK_DB = -12.0
"""How much softer a voice is while it is not known whether the user interrupts."""
_REMEMBERED = 256
"""Cancelled responses that are remembered, to drop what still comes of them."""


class Player(Protocol):
    """What a client hands audio to, and asks what was heard."""

    def receive(self, delta: AudioDelta) -> None:
        """More audio of a response."""
        ...

    def finish(self, response_index: int) -> None:
        """No more audio of that response comes."""
        ...

    def cancel(self, response_index: int) -> None:
        """Stop that response; what still comes of it is dropped."""
        ...

    def position(self) -> tuple[int, float] | None:
        """The response that plays, or played last, and how much of it was played in ms."""
        ...

    def unplayed_ms(self) -> float:
        """Audio that is here and has not been played."""
        ...


class _Track:
    """One response's audio on its way to the sound card."""

    __slots__ = ("chunks", "finished", "index", "length", "played", "rate", "resampler")

    def __init__(self, index: int, rate: int, device_rate: int) -> None:
        self.index = index
        self.rate = rate
        self.resampler = Resampler(rate, device_rate)
        self.chunks: deque[NDArray[np.int16]] = deque()
        self.length = 0
        self.played = 0
        self.finished = False

    def add(self, samples: NDArray[np.int16]) -> None:
        if len(samples):
            self.chunks.append(samples)
            self.length += len(samples)

    def take(self, n: int) -> NDArray[np.int16]:
        """The next samples, `n` of them or all there are."""
        parts: list[NDArray[np.int16]] = []
        while n > 0 and self.chunks:
            chunk = self.chunks.popleft()
            if len(chunk) > n:
                self.chunks.appendleft(chunk[n:])
                chunk = chunk[:n]
            parts.append(chunk)
            n -= len(chunk)
            self.length -= len(chunk)
            self.played += len(chunk)
        return np.concatenate(parts) if parts else np.empty(0, np.int16)


class PlaybackBuffer:
    """Jitter buffer of a player: `receive` from the socket, `pull` from the sound card's callback.

    A response begins to sound when `cushion_ms` of it are here, or all of it. When it runs dry in
    mid-word, the sound is faded out, and goes on when a larger cushion is here: `cushion_ms` grows by
    `grow_ms` with each underrun up to `max_cushion_ms`. Every beginning and every end is faded over
    `fade_ms`, a cancel too, so that nothing pops. To be able to fade what turns out to be the end, the
    last `fade_ms` are held back until more comes or the response is finished.

    Responses play one after the other. Audio of another rate is resampled. Thread-safe.

    Args:
        sample_rate: the sound card's rate, Hz.
        cushion_ms, grow_ms, max_cushion_ms: see above.
        fade_ms: 10 to 30 are inaudible as fades and long enough not to click.
        max_buffer_ms: more unplayed audio than this is refused.
    """

    def __init__(
        self,
        sample_rate: int = 24000,
        *,
        cushion_ms: float = 60.0,
        grow_ms: float = 40.0,
        max_cushion_ms: float = 400.0,
        fade_ms: float = 15.0,
        max_buffer_ms: float = 120_000.0,
    ) -> None:
        self.sample_rate = sample_rate
        self.cushion_ms = cushion_ms
        self.underruns = 0
        self.dropped_samples = 0
        """Samples of cancelled responses that were dropped, here or on arrival."""
        self._grow_ms = grow_ms
        self._max_cushion_ms = max_cushion_ms
        self._fade = max(1, round(fade_ms * sample_rate / 1000))
        self._max_buffer_ms = max_buffer_ms
        self._tracks: deque[_Track] = deque()
        self._tail = np.empty(0, np.int16)
        """Faded end of what was cut: plays before anything else."""
        self._sounding = False
        self._last: tuple[int, float] | None = None
        self._cancelled: OrderedDict[int, None] = OrderedDict()
        self._gain = self._wanted_gain = 1.0
        self._lock = threading.Lock()

    # --- from the socket ----------------------------------------------------------------------------

    def receive(self, delta: AudioDelta) -> None:
        """More audio of a response, of any rate; nothing of one that was cancelled.

        Raises:
            ValueError: the audio is not `pcm_s16le`.
            BufferError: more than `max_buffer_ms` would wait.
        """
        self.push(delta.response_index, delta.samples, delta.sample_rate)

    def push(self, response_index: int, samples: NDArray[np.int16], sample_rate: int | None = None) -> None:
        """`receive`, for samples of shape (n,)."""
        rate = sample_rate or self.sample_rate
        with self._lock:
            if response_index in self._cancelled:
                self.dropped_samples += len(samples)
                return
            waiting = sum(track.length for track in self._tracks) / self.sample_rate * 1000
            if waiting + len(samples) / rate * 1000 > self._max_buffer_ms:
                raise BufferError(f"more than {self._max_buffer_ms:g} ms of audio wait to be played")
            track = next((t for t in self._tracks if t.index == response_index), None)
            if track is None or track.finished or track.rate != rate:
                track = _Track(response_index, rate, self.sample_rate)
                self._tracks.append(track)
            track.add(_int16(track.resampler.feed(samples)))

    def finish(self, response_index: int) -> None:
        """All audio of the response is here: what is left plays without waiting for a cushion."""
        with self._lock:
            for track in self._tracks:
                if track.index == response_index and not track.finished:
                    track.finished = True
                    track.add(_int16(track.resampler.flush()))

    def cancel(self, response_index: int) -> None:
        """Fade out what sounds of the response, drop the rest and what still comes of it."""
        with self._lock:
            self._cancelled[response_index] = None
            while len(self._cancelled) > _REMEMBERED:
                self._cancelled.popitem(last=False)
            for track in [t for t in self._tracks if t.index == response_index]:
                if track is self._tracks[0] and self._sounding:
                    self._tail = _faded(track.take(self._fade), out=self._fade)
                    self._sounding = False
                    self._note(track)
                self.dropped_samples += track.length
                self._tracks.remove(track)

    def duck(self, on: bool) -> None:
        """Play softer by `DUCK_DB`, or as loud as before, from the next `pull` on; it is faded over."""
        with self._lock:
            self._wanted_gain = 10 ** (DUCK_DB / 20) if on else 1.0

    # --- to the sound card --------------------------------------------------------------------------

    def pull(self, n: int) -> NDArray[np.int16]:
        """The next `n` samples to play, shape (n,): silence where there is nothing."""
        out = np.zeros(n, np.int16)
        with self._lock:
            at = len(self._tail[:n])
            out[:at] = self._tail[:n]
            self._tail = self._tail[n:]
            while at < n and self._tracks:
                played = self._play(self._tracks[0], n - at)
                if played is None:
                    break
                out[at : at + len(played)] = played
                at += len(played)
            before, self._gain = self._gain, self._wanted_gain
        if before == 1.0 == self._gain or not n:
            return out
        gain = np.full(n, self._gain, np.float32)
        ramp = min(n, self._fade)
        gain[:ramp] = np.linspace(before, self._gain, ramp, dtype=np.float32)
        return (out * gain).astype(np.int16)

    def _play(self, track: _Track, n: int) -> NDArray[np.int16] | None:
        """Up to `n` samples of the track; None when it has to wait for more."""
        if not self._sounding:
            cushion = max(self.cushion_ms * self.sample_rate / 1000, 2 * self._fade)
            if not track.finished and track.length < cushion:
                return None
            self._sounding = True
            # the fade-in is made on what is about to play, once
            track.chunks.appendleft(_faded(self._peel(track), into=self._fade))
        held = 0 if track.finished else self._fade
        playable = track.length - held
        if playable >= n:
            played = track.take(n)
            if track.finished and track.length < self._fade:
                played = self._ending(track, played)
        elif track.finished:
            played = self._ending(track, track.take(n))
        else:
            # dry in mid-word: play to the end of what is here, fading out, and wait for a larger cushion
            self.underruns += 1
            self.cushion_ms = min(self.cushion_ms + self._grow_ms, self._max_cushion_ms)
            rest = _faded(track.take(track.length), out=self._fade)
            self._sounding = False
            self._note(track)
            played, self._tail = rest[:n], rest[n:]
            return played if len(played) else None
        self._note(track)
        if track.finished and not track.length:
            self._tracks.popleft()
            self._sounding = False
        return played

    def _peel(self, track: _Track) -> NDArray[np.int16]:
        """The first fade's worth of the track, taken off without counting as played."""
        head = track.take(self._fade)
        track.length += len(head)
        track.played -= len(head)
        return head

    def _ending(self, track: _Track, played: NDArray[np.int16]) -> NDArray[np.int16]:
        """`played` with the fade-out of the track's end, as far as it reaches into it."""
        ramp = np.linspace(1.0, 0.0, self._fade + 1, dtype=np.float32)[1:]
        # the fade covers the track's last samples; `track.length` of them are still to come
        reach = min(len(played), self._fade - track.length)
        if reach > 0:
            upto = self._fade - track.length
            played = played.copy()
            played[-reach:] = (played[-reach:] * ramp[upto - reach : upto]).astype(np.int16)
        return played

    def _note(self, track: _Track) -> None:
        self._last = (track.index, track.played / self.sample_rate * 1000)

    # --- what was heard -----------------------------------------------------------------------------

    def position(self) -> tuple[int, float] | None:
        with self._lock:
            return self._last

    def unplayed_ms(self) -> float:
        with self._lock:
            return sum(track.length for track in self._tracks) / self.sample_rate * 1000


class PlaybackClock:
    """Plays nothing, but tells what would have been heard: audio sounds as it comes, gapless, in order.

    For PCM and G.711; audio in other formats counts as nothing.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._spans: deque[tuple[int, float, float, float]] = deque()
        """Response, when its piece begins (s), how long it is (s), what of the response came before (ms)."""
        self._sent: dict[int, float] = {}
        self._last: tuple[int, float] | None = None
        self._dry_at = 0.0

    def receive(self, delta: AudioDelta) -> None:
        width = {"pcm_s16le": 2, "pcm_f32le": 4, "g711_ulaw": 1, "g711_alaw": 1}.get(delta.codec)
        if width is None:
            return
        self._advance()
        start = max(self._now(), self._dry_at)
        duration = len(delta.data) / width / delta.sample_rate
        before = self._sent.get(delta.response_index, 0.0)
        self._spans.append((delta.response_index, start, duration, before))
        self._sent[delta.response_index] = before + duration * 1000
        self._dry_at = start + duration

    def finish(self, response_index: int) -> None:
        self._sent.pop(response_index, None)

    def cancel(self, response_index: int) -> None:
        self._advance()
        now = self._now()
        self._spans = deque(span for span in self._spans if span[0] != response_index)
        self._sent.pop(response_index, None)
        self._dry_at = now
        moved: deque[tuple[int, float, float, float]] = deque()
        for index, start, duration, before in self._spans:  # what was behind it moves up
            begin = start if start <= now else self._dry_at
            moved.append((index, begin, duration, before))
            self._dry_at = begin + duration
        self._spans = moved

    def position(self) -> tuple[int, float] | None:
        self._advance()
        return self._last

    def unplayed_ms(self) -> float:
        return max(0.0, (self._dry_at - self._now()) * 1000)

    def _advance(self) -> None:
        now = self._now()
        while self._spans and self._spans[0][1] < now:
            index, start, duration, before = self._spans[0]
            self._last = (index, before + min(now - start, duration) * 1000)
            if start + duration > now:
                break
            self._spans.popleft()


def _int16(samples: NDArray[np.int16] | NDArray[np.float32]) -> NDArray[np.int16]:
    return samples.astype(np.int16, copy=False)


def _faded(samples: NDArray[np.int16], *, into: int = 0, out: int = 0) -> NDArray[np.int16]:
    """`samples` with a linear fade over the first `into` or the last `out` of them, at most all."""
    faded = samples.astype(np.float32)
    if into and len(samples):
        n = min(into, len(samples))
        faded[:n] *= np.linspace(0.0, 1.0, n + 1, dtype=np.float32)[:n]
    if out and len(samples):
        n = min(out, len(samples))
        faded[-n:] *= np.linspace(1.0, 0.0, n + 1, dtype=np.float32)[1:]
    return faded.astype(np.int16)
