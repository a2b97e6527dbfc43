"""What the user has heard: a playout clock for the connection, a ledger for each response.

The client plays audio in order and without gaps as long as it has some, so one number describes its
buffer: the time at which it runs dry. A client that acknowledges playback corrects the estimate.
"""

from __future__ import annotations

from collections import deque

ECHO_TAIL_S = 0.4
"""How long a room and a player's own latency may return our sound after it was due (seconds)."""
LEVEL_STEP_S = 0.1
"""Levels are remembered for spans of about this length (seconds), so that many short chunks stay few."""
NARROW_CHARACTER_MS = 67.0
WIDE_CHARACTER_MS = 200.0
"""Time to say a character: 15 a second at 150 words a minute; 5 a second in scripts of one syllable each."""
ROUNDING_MS = 0.5
"""Sums of chunks that differ by less than this are the same length: no word is lost to rounding."""


class PlayoutClock:
    """Estimates the client's playback from what was written to its socket."""

    __slots__ = ("_levels", "_shift", "dry_at")

    def __init__(self) -> None:
        self.dry_at = float("-inf")
        """When the client has played all that it holds (seconds)."""
        self._levels: deque[tuple[float, float, float]] = deque()  # (start, end, dBFS), in order
        self._shift = 0.0
        """Of all levels: seconds by which acknowledgements moved them."""

    def written(self, duration_ms: float, level_dbfs: float, now: float) -> None:
        """`duration_ms` of audio reached the socket."""
        start = self.dry_at if self.dry_at > now else now
        self.dry_at = end = start + duration_ms / 1000
        levels = self._levels
        if levels:
            shift = self._shift
            start -= shift
            end -= shift
            first, last_end, level = levels[-1]
            # a gap, if any, ends the span; the rounding of the shift is none
            if start - last_end < ROUNDING_MS / 1000 and last_end - first < LEVEL_STEP_S:
                levels[-1] = (first, max(end, last_end), level if level > level_dbfs else level_dbfs)
                return
            self._forget(now)
            start = max(start, last_end)
            end = max(start, end)
        else:
            self._shift = 0.0
        levels.append((start, end, level_dbfs))

    def unplayed_ms(self, now: float) -> float:
        """Audio that the client holds and has not played yet."""
        return (self.dry_at - now) * 1000 if self.dry_at > now else 0.0

    def acknowledged(self, unplayed_ms: float, now: float) -> None:
        """The client said how much is left."""
        if unplayed_ms <= 0 and self.dry_at <= now:
            return  # as we thought; it may have been so for long
        dry_at = now + max(0.0, unplayed_ms) / 1000
        if self._levels:
            self._shift += dry_at - self.dry_at
        self.dry_at = dry_at

    def removed(self, after_ms: float, duration_ms: float, now: float) -> None:
        """The client drops `duration_ms` that it would begin to play in `after_ms`; what is behind moves up.

        What was played before remains as echo.
        """
        begin = now + after_ms / 1000
        length = duration_ms / 1000
        self.dry_at = max(begin, self.dry_at - length)
        begin -= self._shift
        end = begin + length
        kept: deque[tuple[float, float, float]] = deque()
        for start, stop, level in self._levels:
            if start < begin:
                kept.append((start, min(stop, begin), level))
            if stop > end:
                kept.append((max(start, end) - length, stop - length, level))
        self._levels = kept

    def cleared(self, now: float) -> None:
        """The client was told to stop: what it held is gone. The echo tail remains."""
        self.removed(0.0, self.unplayed_ms(now), now)

    def level_dbfs(self, now: float) -> float | None:
        """Loudest level that may be in the air now, None when it should be silent."""
        self._forget(now)
        loudest: float | None = None
        for start, _, level in self._levels:
            if start > now - self._shift:
                break
            if loudest is None or level > loudest:
                loudest = level
        return loudest

    def _forget(self, now: float) -> None:
        levels = self._levels
        before = now - self._shift - ECHO_TAIL_S
        while levels and levels[0][1] < before:
            levels.popleft()


class PlaybackLedger:
    """What one response generated, sent and had played, in ms of its audio; and the text that belongs to it.

    `audible`: the response is to be heard, so text without sound is not yet got.
    """

    __slots__ = (
        "_audible",
        "_parts",
        "_spoken",
        "acked_ms",
        "complete",
        "generated_ms",
        "sent_ms",
        "stopped_ms",
    )

    def __init__(self, *, audible: bool) -> None:
        self.generated_ms = 0.0
        self.sent_ms = 0.0
        self.acked_ms: float | None = None
        """Playback that the client acknowledged; None while there is only our estimate."""
        self.stopped_ms: float | None = None
        """Where the client was told to stop, by our estimate; None while it may play on."""
        self.complete = False
        """All of the response was generated."""
        self._audible = audible
        self._parts: list[str] = []
        self._spoken: list[tuple[float, float, str]] = []  # (start, end, text) in ms of audio

    @property
    def text(self) -> str:
        """The text deltas, joined."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def add_text(self, text: str) -> None:
        self._parts.append(text)

    def add_audio(self, duration_ms: float, text: str) -> None:
        """Audio without a text of its own goes on speaking the text before it."""
        start = self.generated_ms
        self.generated_ms = end = start + duration_ms
        spoken = self._spoken
        if text or not spoken:
            spoken.append((start, end, text))
        else:
            first, _, said = spoken[-1]
            spoken[-1] = (first, end, said)

    def add_sent(self, duration_ms: float) -> None:
        self.sent_ms = min(self.sent_ms + duration_ms, self.generated_ms)

    def acknowledge(self, cursor_ms: float) -> bool:
        """The client played that much. False, and no change, when it had said more before: a late message."""
        if self.acked_ms is not None and cursor_ms < self.acked_ms:
            return False
        self.acked_ms = min(cursor_ms, self.sent_ms)
        return True

    def heard_ms(self, unplayed_ms: float) -> float:
        """Audio that was played: as acknowledged, else all that was sent less what is unplayed."""
        if self.acked_ms is not None:
            return self.acked_ms
        if self.stopped_ms is not None:
            return self.stopped_ms
        return max(0.0, self.sent_ms - unplayed_ms)

    def final_text(self) -> str:
        """All of the response in words: its text deltas, or what its audio said when there were none."""
        return self.text or _joined([text for _, _, text in self._spoken])

    def heard_text(self, heard_ms: float) -> str:
        """The words that `heard_ms` of the audio carried: a prefix of the text, whole words.

        A segment that was cut gives its words in proportion. An adapter that does not say which text its
        audio speaks has its text divided in proportion to the audio; while that is not all there, its length
        is taken from how long the text takes to say. Text alone is got as soon as it is sent, unless sound
        is to come.
        """
        if self.generated_ms == 0:
            return "" if self._audible and not self.complete else self.text
        if self.complete and heard_ms >= self.generated_ms - ROUNDING_MS:
            return self.final_text()
        parts = []
        for start, end, text in self._segments():
            if heard_ms >= end - ROUNDING_MS:
                parts.append(text)
            elif heard_ms > start:
                parts.append(_whole_words(text, (heard_ms - start) / (end - start)))
        spoken = _joined(parts)
        aligned = _aligned(spoken, self.text)
        return spoken.rstrip() if aligned is None else aligned

    def _segments(self) -> list[tuple[float, float, str]]:
        if any(text for _, _, text in self._spoken):
            return self._spoken
        length = self.generated_ms
        if not self.complete:
            length = max(
                length, sum(WIDE_CHARACTER_MS if _wide(c) else NARROW_CHARACTER_MS for c in self.text)
            )
        return [(0.0, length, self.text)]


def _joined(parts: list[str]) -> str:
    """Spoken pieces as one text, with a space where two words would run together."""
    text = ""
    for part in parts:
        if text and part and _breaks_only_at_space(text[-1]) and _breaks_only_at_space(part[0]):
            text += " "
        text += part
    return text


def _aligned(spoken: str, text: str) -> str | None:
    """The prefix of `text` that `spoken` says, spaces aside; None when it says something else.

    Where `spoken` ends in the middle of a word, the word is left out.
    """
    position = 0
    for character in spoken:
        if character.isspace():
            continue
        while position < len(text) and text[position].isspace():
            position += 1
        if position == len(text) or text[position] != character:
            return None
        position += 1
    if position == len(text):
        return text
    while position > 0 and _inside_word(text[position - 1]) and _inside_word(text[position]):
        position -= 1
    return text[:position].rstrip()


def _whole_words(text: str, fraction: float) -> str:
    """The leading part of `text` of that fraction of its length, cut back to a word's end."""
    cut = int(len(text) * fraction)
    if cut >= len(text):
        return text
    while cut > 0 and _breaks_only_at_space(text[cut]) and _breaks_only_at_space(text[cut - 1]):
        cut -= 1
    return text[:cut].rstrip()


def _breaks_only_at_space(character: str) -> bool:
    return not character.isspace() and not _wide(character)


def _inside_word(character: str) -> bool:
    return character.isalnum() and not _wide(character)


def _wide(character: str) -> bool:
    """Scripts without spaces between words may be cut at any character."""
    return "\u2e80" <= character <= "\u9fff" or "\uac00" <= character <= "\ud7af"
