"""Semantic turn ends: how long to wait in silence for a user who may not have finished.

Two steps, both pure. What was said is judged: a probability that it is complete, by a model of the voice
where there is one, else by the transcript (`completeness`). Then the probability and the session's eagerness
give the silence that ends the turn (`patience_ms`).
"""

from __future__ import annotations

import re
from typing import Final, Literal

Eagerness = Literal["low", "medium", "auto", "high"]

COMPLETE: Final = 0.9
UNSURE: Final = 0.5
INCOMPLETE: Final = 0.1
PATIENCE_MS: Final[dict[Eagerness, tuple[float, float]]] = {
    "low": (900.0, 8000.0),
    "medium": (450.0, 4000.0),
    "auto": (450.0, 4000.0),
    "high": (250.0, 2000.0),
}
"""Silence (ms) that ends what is certainly complete, and what is certainly not. The longer ones are the
public reference's longest waits for each eagerness."""

_DANGLING: Final = frozenset(
    [
        *("a", "about", "am", "an", "and", "any", "are", "as", "at", "be", "because", "but", "by", "can"),
        *("could", "did", "do", "does", "each", "either", "er", "erm", "every", "for", "from", "had", "has"),
        *("have", "he", "her", "his", "i", "i'd", "i'll", "i'm", "i've", "if", "in", "into", "is", "it's"),
        *("let's", "like", "maybe", "might", "must", "my", "neither", "nor", "of", "on", "onto", "or", "our"),
        *("perhaps", "she", "should", "since", "so", "than", "that", "that's", "the", "their", "then"),
        *("they", "this", "though", "to", "uh", "uhm", "um", "unless", "until", "was", "we", "were", "what"),
        *("when", "where", "whether", "which", "while", "who", "whose", "will", "with", "without", "would"),
        "your",
    ]
)
"""English words that seldom end what somebody has to say, if no question mark follows."""
_LAST_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*(?=[\W_]*$)")
_END = re.compile(r"([.!?…。！？,;:–—-]+)[\s\"'”’)\]]*$")


def completeness(text: str) -> float:
    """Probability that `text`, as it was written down in a pause, is all that the user has to say.

    A question is complete. What trails off, ends in a comma or in a word that another must follow is not,
    even where the recogniser wrote a full stop: it often does at the end of what it is given. Else a full
    stop is trusted, and words without an ending tell nothing.
    """
    text = text.strip()
    if not text:
        return UNSURE
    found = _END.search(text)
    ending = found[1] if found else ""
    if ending.endswith(("?", "？")):
        return COMPLETE
    if "…" in ending or ".." in ending or ending.endswith((",", ";", ":", "–", "—", "-")):
        return INCOMPLETE
    last = _LAST_WORD.search(text)
    if last is not None and last[0].casefold().replace("’", "'") in _DANGLING:
        return INCOMPLETE
    return COMPLETE if ending else UNSURE


def patience_ms(probability: float | None, eagerness: Eagerness) -> float:
    """Silence (ms) that ends the turn when it is complete with that probability; None: nothing is known.

    Between the two ends the wait falls by the same factor for each step of the probability: from 0.1 to 0.2
    as from 0.8 to 0.9.
    """
    complete, incomplete = PATIENCE_MS[eagerness]
    share = UNSURE if probability is None else min(1.0, max(0.0, probability))
    return float(incomplete * (complete / incomplete) ** share)
