"""What the user has heard: a playout clock for the connection, a ledger for each response.

The client plays audio in order and without gaps as long as it has some, so one number describes its
buffer: the time at which it runs dry. A client that acknowledges playback corrects the estimate.
"""

from __future__ import annotations

from collections import deque

ECHO_TAIL_S = 0.4
"""How long a room and a player's own latency may return our sound after it was due (seconds)."""


class PlayoutClock:
    """Estimates the client's playback from what was written to its socket."""

    def __init__(self) -> None:
        self._dry_at = 0.0
        self._levels: deque[tuple[float, float, float]] = deque()

    def written(self, duration_ms: float, level_dbfs: float, now: float) -> None:
        """`duration_ms` of audio reached the socket."""
        start = max(self._dry_at, now)
        self._dry_at = start + duration_ms / 1000
        while self._levels and self._levels[0][1] < now - ECHO_TAIL_S:
            self._levels.popleft()
        self._levels.append((start, self._dry_at, level_dbfs))

    def unplayed_ms(self, now: float) -> float:
        """Audio that the client holds and has not played yet."""
        return max(0.0, (self._dry_at - now) * 1000)

    def acknowledged(self, unplayed_ms: float, now: float) -> None:
        """The client said how much is left."""
        self._dry_at = now + max(0.0, unplayed_ms) / 1000

    def cleared(self, now: float) -> None:
        """The client was told to stop: what it held is gone. The echo tail remains."""
        self._dry_at = min(self._dry_at, now)
        self._levels = deque(
            (start, min(end, now), level) for start, end, level in self._levels if start <= now
        )

    def level_dbfs(self, now: float) -> float | None:
        """Loudest level that may be in the air now, None when it should be silent."""
        playing = [level for start, end, level in self._levels if start <= now and end >= now - ECHO_TAIL_S]
        return max(playing, default=None)


class PlaybackLedger:
    """What one response generated, sent and had played. All in ms of its audio."""

    def __init__(self) -> None:
        self.text = ""
        self.generated_ms = 0.0
        self.sent_ms = 0.0
        self.acked_ms: float | None = None
        self._spoken: list[tuple[float, float, str]] = []

    def add_text(self, text: str) -> None:
        self.text += text

    def add_audio(self, duration_ms: float, text: str) -> None:
        start = self.generated_ms
        self.generated_ms += duration_ms
        if text or not self._spoken:
            self._spoken.append((start, self.generated_ms, text))
        else:
            first, _, said = self._spoken[-1]
            self._spoken[-1] = (first, self.generated_ms, said)

    def heard_ms(self, unplayed_ms: float) -> float:
        """Audio that was played: as acknowledged, else as estimated from what is unplayed."""
        if self.acked_ms is not None:
            return min(self.acked_ms, self.sent_ms)
        return max(0.0, self.sent_ms - unplayed_ms)

    def heard_text(self, heard_ms: float) -> str:
        """The words that `heard_ms` of audio carried; all of the text when there was no audio.

        A segment that was cut gives its words in proportion, whole words only. An adapter that does not
        say which text its audio speaks has its whole text divided in proportion.
        """
        if self.generated_ms == 0:
            return self.text
        segments = self._spoken
        if not any(text for _, _, text in segments):
            segments = [(0.0, self.generated_ms, self.text)]
        parts = []
        for start, end, text in segments:
            if heard_ms >= end:
                parts.append(text)
            elif heard_ms > start:
                parts.append(_whole_words(text, (heard_ms - start) / (end - start)))
        return "".join(parts)


def _whole_words(text: str, fraction: float) -> str:
    """The leading part of `text` of that fraction of its length, cut back to a word's end."""
    cut = int(len(text) * fraction)
    if cut >= len(text):
        return text
    while cut > 0 and not text[cut].isspace() and not _wide(text[cut]):
        cut -= 1
    return text[:cut].rstrip()


def _wide(character: str) -> bool:
    """Scripts without spaces between words may be cut at any character."""
    return "\u2e80" <= character <= "\u9fff" or "\uac00" <= character <= "\ud7af"
