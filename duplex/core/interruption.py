"""Speech over the model's voice: whether it is an interruption, and what it was when it has ended.

Pure. By the session's settings a voice yields at the first sign of speech, or only to speech that proves
itself, by words or by length. Until then it goes on, softer where the client ducks it. "Mhm" and a cough
prove nothing: they are overheard. Words count when they say something; what people say to show that they
listen does not.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from duplex.core.types import (
    Signal,
    SpeechContinued,
    SpeechStarted,
    SpeechStopped,
    Transcript,
    TurnDetection,
    TurnEnded,
)

BACKCHANNELS: Final = frozenset(
    [
        *(
            "ah",
            "aha",
            "alright",
            "cool",
            "eh",
            "er",
            "erm",
            "exactly",
            "fine",
            "good",
            "great",
            "ha",
            "haha",
        ),
        *("hm", "hmm", "huh", "indeed", "mhm", "mhmm", "mm", "mmhm", "mmhmm", "mmm", "nice", "oh", "ok"),
        *("okay", "ooh", "right", "sure", "true", "uh", "uhhuh", "uhm", "um", "wow", "yah", "yea", "yeah"),
        *("yep", "yes", "yup"),
    ]
)
"""What English speakers say while they listen, without asking for the floor."""
CHARACTERS_A_WORD: Final = 2
"""Of scripts that are written without spaces, this many characters count as a word."""

_WORD = re.compile(
    r"[\u2e80-\u30ff\u3130-\u9fff\uac00-\ud7af]+|[^\W_\u2e80-\u30ff\u3130-\u9fff\uac00-\ud7af]+(?:['’-][^\W_]+)*"
)


def counted_words(text: str) -> int:
    """Words in `text` that ask for the floor: all but backchannels."""
    count = 0
    for word in _WORD.findall(text.casefold()):
        if word[0] >= "\u2e80":
            count += -(-len(word) // CHARACTERS_A_WORD)
        elif re.sub(r"['’-]", "", word) not in BACKCHANNELS:
            count += 1
    return count


def needs_proof(policy: TurnDetection) -> bool:
    """The voice does not yield to the first sign of speech."""
    return policy.interrupt_min_words > 0 or policy.interrupt_min_ms > 0


def says_nothing(text: str, policy: TurnDetection) -> bool:
    """What was heard of the user, all of it, was no interruption: no words, or, where words are counted,
    none that count."""
    return counted_words(text) == 0 if policy.interrupt_min_words > 0 else not text.strip()


class Verdict(StrEnum):
    """What speech over the voice is: not known yet; an interruption; nothing to yield to; or a turn like any
    other, since the voice has come to its end meanwhile."""

    OPEN = "open"
    INTERRUPTS = "interrupts"
    OVERHEARD = "overheard"
    ALONE = "alone"


class Overlap:
    """One stretch of speech over the voice, until it is decided. `stopped` is its end, when that has come."""

    __slots__ = ("ducked", "policy", "started", "stopped")

    def __init__(self, started: SpeechStarted, policy: TurnDetection, *, ducked: bool) -> None:
        self.started = started
        self.policy = policy
        self.ducked = ducked
        """The client was told to lower the voice."""
        self.stopped: SpeechStopped | None = None

    def heard(self, signal: Signal, *, voiced: bool) -> Verdict:
        """The next thing that is known of the user's speech. `voiced`: the voice still sounds."""
        if not voiced:
            return Verdict.ALONE
        policy = self.policy
        match signal:
            case SpeechStarted():
                # again, before it was known what the first was: what is said from here on counts
                self.started, self.stopped = signal, None
            case SpeechContinued():
                if 0 < policy.interrupt_min_ms <= signal.speech_ms:
                    return Verdict.INTERRUPTS
            case SpeechStopped():
                self.stopped = signal
                spoken_ms = signal.at_ms - self.started.at_ms - policy.prefix_padding_ms
                if 0 < policy.interrupt_min_ms <= spoken_ms:
                    return Verdict.INTERRUPTS
            case Transcript():
                if 0 < policy.interrupt_min_words <= counted_words(signal.text):
                    return Verdict.INTERRUPTS
                if signal.final and signal.started_ms in (None, self.started.at_ms):
                    return Verdict.OVERHEARD
            case TurnEnded():
                return Verdict.OVERHEARD
        return Verdict.OPEN
