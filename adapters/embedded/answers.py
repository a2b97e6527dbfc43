"""Answers to questions about the video, from what was seen of it.

Where no detector can tell, the answer says so and says what can be told instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from duplex.adapters.embedded.events import Counted, Event, Kind
from duplex.adapters.embedded.objects import CLASSES
from duplex.adapters.embedded.scene import View
from duplex.adapters.embedded.words import clock, counted, number, one, plural, quoted, sentence, when

_RETOLD: Final = 5  # events


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PEOPLE: Final = _words("person persons people human humans anyone anybody someone somebody crowd audience")
_SORTS_OF_PEOPLE: Final = _words(
    """man men woman women boy boys girl girls child children kid kids baby guy guys player players presenter
    presenters reporter reporters spectator spectators fan fans referee driver drivers cyclist cyclists
    pedestrian pedestrians rider riders"""
)
_ANIMALS: Final = ("bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe")
_VEHICLES: Final = ("bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat")
_SYNONYMS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("animal", "pet"), _ANIMALS),
    **dict.fromkeys(("vehicle", "traffic"), _VEHICLES),
    **dict.fromkeys(("bike", "cycle"), ("bicycle", "motorcycle")),
    **dict.fromkeys(("motorbike", "moped", "scooter"), ("motorcycle",)),
    **dict.fromkeys(("automobile", "taxi", "cab"), ("car",)),
    **dict.fromkeys(("lorry", "van"), ("truck",)),
    **dict.fromkeys(("plane", "aeroplane", "aircraft", "jet"), ("airplane",)),
    **dict.fromkeys(("phone", "smartphone", "mobile"), ("cell phone",)),
    **dict.fromkeys(("television", "telly"), ("tv",)),
    **dict.fromkeys(("computer", "notebook"), ("laptop",)),
    **dict.fromkeys(("sofa", "settee"), ("couch",)),
    **dict.fromkeys(("ball", "football"), ("sports ball",)),
    **dict.fromkeys(("plant", "flower"), ("potted plant",)),
    **dict.fromkeys(("table", "desk"), ("dining table",)),
    **dict.fromkeys(("glass",), ("wine glass", "cup")),
    **dict.fromkeys(("bag",), ("handbag", "backpack", "suitcase")),
    **dict.fromkeys(("fridge",), ("refrigerator",)),
}
_BY_PLURAL: Final = {plural(label): label for label in CLASSES}

_LOOK: Final = re.compile(
    r"\b(what (?:do|can|did|could) you see|what(?:'s| is| are) (?:in|on|this|that|there|visible|shown)|"
    r"what does (?:it|the \w+) (?:show|look)|describe)\b"
)
_TEXT: Final = re.compile(
    r"\b(text|read|reads|written|writing|words?|captions?|signs?|title|headline|score|scoreboard)\b"
)
_COUNT: Final = re.compile(r"\bhow many ([a-z' -]+)")
_CUTS: Final = re.compile(r"\b(cuts?|shots?|scenes?)\b")
_HAPPENED: Final = re.compile(r"\b(happen\w*|so far|recap|summar\w+|going on|missed|changed?|events?)\b")
_PRESENT: Final = re.compile(
    r"\b(is there|are there|do you see|can you see|did you see|see any|is it|are they|any|was there|"
    r"were there|is anyone|is anybody|is someone)\b"
)
_MOVES: Final = re.compile(r"\b(mov\w+|motion|still|pan\w*|camera|turn\w*)\b")
_COLOUR: Final = re.compile(r"\bcolou?rs?\b")
_WHEN: Final = re.compile(r"\bwhen\b")
_DESCRIBE: Final = re.compile(r"\b(look(?:s|ing)? like|show(?:n|s|ing)?|visible|see|watching)\b")
_BEYOND: Final = re.compile(
    r"\b(who|whose|whom|why|which|name|say\w*|said|talk\w*|speak\w*|sound\w*|hear\w*|feel\w*|emotion\w*|"
    r"happy|sad|angry|old|age|brand|team|winning|won|think|wear\w*|hold\w*|behind|next to|left of|right of)\b"
)
_PICTURE: Final = _words("picture image video screen shot scene view frame clip")
_FILLERS: Final = _PICTURE | _words(
    """a an the any some there is are do you see can did it in on at of this that now right currently visible
    shown show me i we they to please here was were have has how many seen yet be still what which whats"""
)


def answer(question: str, view: View) -> str:
    """One or a few sentences in answer to a question about the video."""
    asked = " ".join(re.sub(r"[^a-z0-9' -]+", " ", question.casefold()).split())
    if view.pts_ms is None:
        return "I have seen no picture yet."
    many = _COUNT.search(asked)
    if many is not None:
        return _how_many(many[1], view)
    if _TEXT.search(asked):
        return _text(asked, view)
    if _WHEN.search(asked):
        return _when(asked, view)
    if _COLOUR.search(asked):
        return _colour(asked, view)
    if _LOOK.search(asked):
        return describe(view)
    if _PRESENT.search(asked) and not _BEYOND.search(asked):
        labels, named = _named(asked)
        if labels or named:
            return _is_there(labels, named, view)
    if _HAPPENED.search(asked):
        return _happened(view)
    if _BEYOND.search(asked):
        return f"I can't tell that. {describe(view)}"
    if _MOVES.search(asked):
        return _moves(view)
    if _DESCRIBE.search(asked):
        return describe(view)
    labels, named = _named(asked)
    if labels:
        return _is_there(labels, named, view)
    return f"I can't tell that from what I detect. {describe(view)}"


def describe(view: View) -> str:
    """What is in the picture now, and what moves."""
    if view.pts_ms is None:
        return "I have seen no picture yet."
    parts = []
    at = f"At {clock(view.pts_ms)}" if view.pts_ms >= 50 else "In the first picture"
    if view.objects:
        parts.append(f"{at} I make out {counted(view.objects)}.")
    elif view.tag:
        parts.append(f"{at} the picture looks like {view.tag}.")
    else:
        parts.append(f"{at} I recognise nothing for certain.")
    if view.objects and view.tag and not any(o.label in view.tag for o in view.objects):
        parts.append(f"The picture as a whole looks like {view.tag}.")
    if view.colours:
        parts.append(f"It is {view.colours}.")
    if view.lines:
        parts.append(f"The screen reads {quoted(view.lines)}.")
    if view.motion is not None:
        parts.append(_motion(view))
    return " ".join(parts)


def recap(events: Sequence[Event]) -> str:
    """The last events, in order."""
    return " ".join(sentence(event) for event in events[-_RETOLD:])


def _how_many(what: str, view: View) -> str:
    if _CUTS.search(what):
        cuts = [e for e in view.events if e.kind in (Kind.CUT, Kind.CHANGE)]
        if not cuts:
            return "I have seen no cut."
        times = f"the last at {clock(cuts[-1].at_ms)}"
        return f"I have seen {number(view.shots - 1)} {'cut' if view.shots == 2 else 'cuts'}, {times}."
    labels, named = _named(what)
    if not labels:
        return _unknown(named, view)
    if "objects" not in view.detects:
        return _no_objects()
    found = _found(labels, view)
    caveat = _caveat(what, found)
    if not found:
        return f"I see {_none(named)} that I am sure of. There may be some that I miss."
    return f"I make out {counted(found)}. There may be more.{caveat}"


def _is_there(labels: tuple[str, ...], named: str, view: View) -> str:
    if not labels:
        return _unknown(named, view)
    if "objects" not in view.detects:
        return _no_objects()
    found = _found(labels, view)
    caveat = _caveat(named, found)
    if found:
        return f"Yes, I make out {counted(found)}.{caveat}"
    earlier = next(
        (
            e
            for e in reversed(view.events)
            if any(_matches(o, labels) for o in e.objects) and e.kind is not Kind.LEFT
        ),
        None,
    )
    if earlier is not None:
        seen = counted([o for o in earlier.objects if _matches(o, labels)])
        return f"Not now, for certain. I made out {seen} {when(earlier.at_ms)}.{caveat}"
    return f"I see {_none(named)} that I am sure of."


def _named(asked: str) -> tuple[tuple[str, ...], str]:
    """The detector's classes that a question names, and the word it used; no class when it knows none."""
    for text in (asked, *_singulars(asked)):
        for label in sorted(CLASSES, key=len, reverse=True):
            if re.search(rf"\b{re.escape(label)}\b", text):
                return (label,), label
    words = asked.split(" ")
    for word in words:
        if word in _PEOPLE or word in _SORTS_OF_PEOPLE:
            return ("person",), word
    for word in words:
        for form in (word, word.removesuffix("s"), word.removesuffix("es")):
            if form in _SYNONYMS:
                return _SYNONYMS[form], form
    rest = [w for w in words if w not in _FILLERS]
    return (), rest[-1] if rest else ""


def _singulars(asked: str) -> list[str]:
    text = asked
    for many, label in _BY_PLURAL.items():
        text = re.sub(rf"\b{re.escape(many)}\b", label, text)
    return [text] if text != asked else []


def _matches(seen: Counted, labels: Sequence[str]) -> bool:
    return any(part in labels for part in seen.label.split(" or "))


def _found(labels: Sequence[str], view: View) -> list[Counted]:
    return [seen for seen in view.objects if _matches(seen, labels)]


def _caveat(asked: str, found: Sequence[Counted]) -> str:
    """What the detector does not tell apart."""
    if found and _SORTS_OF_PEOPLE & set(asked.split(" ")):
        return " I only tell people from other things, not who or what they are."
    return ""


def _said(word: str) -> str:
    return "a person" if word in _PEOPLE | _SORTS_OF_PEOPLE else one(word)


def _none(word: str) -> str:
    return "nobody" if word in _PEOPLE | _SORTS_OF_PEOPLE else f"no {word}"


def _unknown(word: str, view: View) -> str:
    if "objects" not in view.detects:
        return _no_objects()
    subject = f'"{word}"' if word else "that"
    return f"My detector does not know {subject}, so I can't tell. {describe(view)}"


def _no_objects() -> str:
    return "I can't tell: no object detector is at work here."


def _text(asked: str, view: View) -> str:
    if "text" not in view.detects:
        return "I can't read text: no reader is installed here (extra `ocr`)."
    if not view.lines:
        return "I have read no words in this shot."
    read = f"The screen reads {quoted(view.lines)}."
    return f"I can't tell the score itself. {read}" if "score" in asked else read


def _when(asked: str, view: View) -> str:
    if _CUTS.search(asked):
        kinds = {Kind.CUT, Kind.CHANGE}
        last = next((e for e in reversed(view.events) if e.kind in kinds), None)
        return f"The last cut was at {clock(last.at_ms)}." if last else "I have seen no cut."
    labels, named = _named(asked)
    event = next((e for e in view.events if any(_matches(o, labels) for o in e.objects)), None)
    if event is not None:
        return f"I first made out {_said(named)} {when(event.at_ms)}."
    return f"I can't tell when. {_happened(view)}"


def _colour(asked: str, view: View) -> str:
    things = [w for w in asked.split(" ") if w not in _FILLERS and not _COLOUR.fullmatch(w)]
    if things:
        return f"I can't tell the colour of a single thing, only of the picture as a whole. {_colours(view)}"
    return _colours(view)


def _colours(view: View) -> str:
    return f"The picture is {view.colours}." if view.colours else "No colour stands out in the picture."


def _happened(view: View) -> str:
    return recap(view.events) if view.events else "Nothing that I can detect has happened yet."


def _moves(view: View) -> str:
    return _motion(view) if view.motion is not None else "I can't tell: I have seen too little."


def _motion(view: View) -> str:
    motion = view.motion
    assert motion is not None
    if motion.pan is not None:
        return "The view as a whole is moving."
    if motion.active < 0.01:
        return "Hardly anything moves."
    if motion.active > 0.4:
        return "Much of the picture is changing."
    x = motion.place[0]
    return (
        f"Something moves {'on the left' if x < 0.38 else 'on the right' if x > 0.62 else 'in the middle'}."
    )
