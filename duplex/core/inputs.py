"""What the user gave since the last turn: text, whole audio samples, media windows, and commits under way."""

from __future__ import annotations

from collections import deque

from duplex.core.errors import DuplexError, ErrorCode
from duplex.core.history import RollingWindows
from duplex.core.text import well_formed
from duplex.core.types import AudioWindow, ImageWindow, Modality, TextWindow, VideoWindow, Window

MAX_QUESTION = 128 * 1024
"""Characters of unanswered text that a session may hold."""
MAX_COMMITS = 16
"""Turns that may wait for the adapter's word at once."""


class PendingCommit:
    """A turn that the adapter was asked about and has not answered for yet."""

    __slots__ = ("event_id", "question", "respond", "silent", "wanted")

    def __init__(self, event_id: str | None, question: str | None, *, silent: bool, respond: bool) -> None:
        self.event_id = event_id
        self.question = question
        self.respond = respond
        """False: the client asks for the response itself, or for none."""
        self.silent = silent
        """The client did not ask for it, and is not told when there is nothing to respond to."""
        self.wanted = True
        """False once another response took the turn, or a cancel withdrew it."""


class TurnInput:
    """Input of the turn that is open, and the turns that were committed and not answered."""

    def __init__(self, *, window_history: int, window_history_bytes: int) -> None:
        self.windows = RollingWindows(window_history, window_history_bytes)
        self._question: list[str] = []
        self._question_length = 0
        self._modalities: set[Modality] = set()
        self._carry = b""
        self._carry_rate = 0
        self._commits: deque[PendingCommit] = deque()

    @property
    def open(self) -> bool:
        """Something was appended since the last turn."""
        return bool(self._modalities)

    @property
    def has_question(self) -> bool:
        return bool(self._question)

    @property
    def deciding(self) -> bool:
        """A committed turn waits for the adapter's word, and its response is still wanted."""
        return any(commit.wanted for commit in self._commits)

    @property
    def settling(self) -> bool:
        """A turn is being heard to its end; what answers it has to wait."""
        return any(not commit.respond for commit in self._commits)

    def append(self, window: Window, playout_dbfs: float | None) -> Window | None:
        """Take a window; returns what the adapter is to have of it.

        Audio comes out in whole samples: half a sample at the end waits for its other half.

        Raises:
            DuplexError: `EMPTY_INPUT`, `INVALID_AUDIO` or `INPUT_OVERFLOW`; nothing was taken.
        """
        if isinstance(window, AudioWindow):
            return self._audio(window, playout_dbfs)
        if isinstance(window, TextWindow):
            return self._text(window)
        if isinstance(window, ImageWindow) and not window.data:
            raise DuplexError(ErrorCode.EMPTY_INPUT, "an image without data", param="data")
        if isinstance(window, VideoWindow) and not window.data and not any(window.frames):
            raise DuplexError(ErrorCode.EMPTY_INPUT, "video without data", param="data")
        self._modalities.add(window.modality)
        self.windows.add(window)
        return window

    def _audio(self, window: AudioWindow, playout_dbfs: float | None) -> AudioWindow | None:
        pcm = window.pcm
        if not pcm:
            raise DuplexError(ErrorCode.EMPTY_INPUT, "audio without samples")
        if window.sample_rate <= 0:
            raise DuplexError(
                ErrorCode.INVALID_AUDIO, f"a sample rate of {window.sample_rate} Hz", param="sample_rate"
            )
        if self._carry:
            if self._carry_rate == window.sample_rate:
                pcm = self._carry + pcm
            self._carry = b""
        if len(pcm) % 2:
            self._carry = pcm[-1:]
            self._carry_rate = window.sample_rate
            pcm = pcm[:-1]
        if not pcm:
            return None
        self._modalities.add(Modality.AUDIO)
        if pcm is window.pcm and playout_dbfs is None:
            return window
        return AudioWindow(pcm=pcm, sample_rate=window.sample_rate, playout_dbfs=playout_dbfs)

    def _text(self, window: TextWindow) -> TextWindow:
        text = well_formed(window.text)
        if not text:
            raise DuplexError(ErrorCode.EMPTY_INPUT, "text without characters", param="data")
        length = self._question_length + len(text) + 1
        if length > MAX_QUESTION:
            raise DuplexError(
                ErrorCode.INPUT_OVERFLOW, f"more than {MAX_QUESTION} characters of unanswered text"
            )
        self._modalities.add(Modality.TEXT)
        self._question.append(text)
        self._question_length = length
        return window if text is window.text else TextWindow(text=text)

    def drop_half_sample(self) -> bool:
        """Forget half a sample whose other half will not come; True when there was one."""
        had, self._carry = bool(self._carry), b""
        return had

    # --- turns --------------------------------------------------------------------------------------

    def take_turn(self) -> str | None:
        """The turn is answered now: its question, and those of the commits that this forestalls."""
        questions = [commit.question for commit in self._commits if commit.wanted and commit.question]
        if (own := self._close_turn()) is not None:
            questions.append(own)
        self._withdraw_commits()
        return "\n".join(questions) or None

    def commit(self, event_id: str | None = None, *, silent: bool = False, respond: bool = True) -> None:
        """The turn is over: the adapter decides whether there is something to respond to.

        Raises:
            DuplexError: `INPUT_OVERFLOW`.
        """
        if len(self._commits) >= MAX_COMMITS and not silent:
            raise DuplexError(
                ErrorCode.INPUT_OVERFLOW, f"{MAX_COMMITS} turns wait for the model", event_id=event_id
            )
        self._commits.append(PendingCommit(event_id, self._close_turn(), silent=silent, respond=respond))

    def decided(self, event_id: str | None) -> PendingCommit | None:
        """The adapter has answered for the oldest commit with that event id, and so for those before it."""
        if all(commit.event_id != event_id for commit in self._commits):
            return None
        commit = self._commits.popleft()
        while commit.event_id != event_id:
            commit = self._commits.popleft()
        return commit

    def clear(self) -> None:
        """Forget what is in no turn yet."""
        self._close_turn()
        self._carry = b""

    def withdraw(self) -> list[str]:
        """Committed turns get no response any more; returns what was asked in them."""
        questions = [commit.question for commit in self._commits if commit.wanted and commit.question]
        self._withdraw_commits()
        return questions

    def _withdraw_commits(self) -> None:
        for commit in self._commits:
            commit.wanted = False

    def _close_turn(self) -> str | None:
        question: str | None = "\n".join(self._question)
        if not question or question.isspace():
            question = None  # white space asks nothing
        self._question.clear()
        self._question_length = 0
        self._modalities.clear()
        return question
