"""What `duplex watch` shows: comments as they are said, each with its moment, and a progress line."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import Final

from duplex.cli.clip import ClipInfo
from duplex.cli.conversation import Answer, Conversation
from duplex.clients import ClientEvent, InputLag, ResponseDone


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """Something said of the clip at `clip_ms`.

    `lag_ms`: how long after that moment it was said, None where the words name none. `answer`: it was asked.
    """

    text: str
    clip_ms: float
    lag_ms: float | None
    answer: bool = False


_MOMENT: Final = re.compile(
    r"""\b(?:at|by|after)\ (?:
        (?P<s>\d+(?:\.\d+)?)\ seconds?
        | (?:(?P<h>\d+):)?(?P<m>\d+):(?P<ss>\d\d)
        | (?P<zero>the\ start)
    )""",
    re.IGNORECASE | re.VERBOSE,
)


def time_in(text: str) -> float | None:
    """The first moment that a comment names, in ms: `at 3.2 seconds`, `at 1:05`, `at the start`."""
    found = _MOMENT.search(text)
    if found is None:
        return None
    if found["zero"]:
        return 0.0
    if found["s"]:
        return float(found["s"]) * 1000
    return (int(found["h"] or 0) * 3600 + int(found["m"]) * 60 + int(found["ss"])) * 1000.0


@dataclass(slots=True)
class Screen:
    """Comments on standard output as they are said, a progress line on a terminal."""

    clip: ClipInfo
    indent: str = ""
    comments: list[Comment] = field(default_factory=list)
    analysis_lag_ms: float = 0.0
    """The longest that the model said it was behind."""
    coalesced: int = 0
    _talk: Conversation | None = None
    _paced: bool = True
    _start_ms: float = 0.0
    _sent_ms: float = 0.0
    _asked_ms: float = 0.0
    _shown: bool = False

    def begin(self, talk: Conversation, *, paced: bool) -> None:
        self._talk = talk
        self._paced = paced
        self._start_ms = talk.timeline.now_ms

    def take(self, event: ClientEvent) -> None:
        """Hear of an event of the session."""
        talk = self._talk
        assert talk is not None
        match event:
            case ResponseDone():
                self._say(talk, talk.answers[event.response_index])
            case InputLag():
                self.analysis_lag_ms = max(self.analysis_lag_ms, event.lag_ms)
                self.coalesced += event.coalesced
            case _:
                pass

    def _say(self, talk: Conversation, answer: Answer) -> None:
        text = " ".join(answer.text.split())
        if not text:
            return
        said_ms = answer.created_ms - self._start_ms
        seen_ms = None if answer.question else time_in(text)
        lag_ms = said_ms - seen_ms if seen_ms is not None and self._paced else None
        comment = Comment(
            text=text,
            clip_ms=self._asked_ms if answer.question else self._sent_ms if seen_ms is None else seen_ms,
            lag_ms=lag_ms,
            answer=answer.question,
        )
        self.comments.append(comment)
        talk.timeline.record(
            "comment",
            t_ms=answer.created_ms,
            text=text,
            clip_ms=round(comment.clip_ms, 1),
            lag_ms=None if lag_ms is None else round(lag_ms, 1),
        )
        self.clear()
        late = f"   (+{lag_ms / 1000:.1f} s)" if lag_ms is not None else ""
        # sent at full speed, where the sending stands says nothing of the moment that is meant
        known = self._paced or answer.question or seen_ms is not None
        at = clock(comment.clip_ms) if known else "     –"
        print(f"{self.indent}{at}  {'answer: ' if answer.question else ''}{text}{late}", flush=True)
        self._progress()

    def asked(self, at_ms: float) -> None:
        """A question was asked when the clip was here."""
        self._asked_ms = at_ms

    def sent(self, until_ms: float) -> None:
        """The clip was sent up to here."""
        self._sent_ms = until_ms
        self._progress()

    def ended(self) -> None:
        self.clear()

    def _progress(self) -> None:
        if not sys.stderr.isatty():
            return
        total = max(self.clip.duration_ms, self._sent_ms, 1.0)
        filled = round(30 * self._sent_ms / total)
        late = [c.lag_ms for c in self.comments if c.lag_ms is not None]
        lag = f"lag {late[-1] / 1000:.1f} s" if late else ""
        bar = "█" * filled + "░" * (30 - filled)
        print(
            f"\r{bar} {clock(self._sent_ms)} / {clock(total)}  {lag}\x1b[K",
            end="",
            file=sys.stderr,
            flush=True,
        )
        self._shown = True

    def clear(self) -> None:
        """Take the progress line away."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False

    def summary(self) -> str:
        """One line about the whole clip."""
        late = sorted(c.lag_ms for c in self.comments if c.lag_ms is not None)
        answers = sum(comment.answer for comment in self.comments)
        comments = len(self.comments) - answers
        words = [f"{clock(self._sent_ms)} watched", f"{comments} comment{'s' * (comments != 1)}"]
        if answers:
            words.append(f"{answers} answer{'s' * (answers != 1)}")
        if late:
            words.append(f"lag {late[len(late) // 2] / 1000:.2f} s median, {late[-1] / 1000:.2f} s at most")
        if self.analysis_lag_ms:
            words.append(f"analysis at most {self.analysis_lag_ms / 1000:.2f} s behind")
        if self.coalesced:
            words.append(f"{self.coalesced} windows merged to keep up")
        return "; ".join(words)


def clock(ms: float) -> str:
    """`1:02.5`."""
    minutes, seconds = divmod(max(0.0, ms) / 1000, 60)
    return f"{int(minutes)}:{seconds:04.1f}"
