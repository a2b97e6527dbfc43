"""Events in words: short sentences, composed from what the detectors gave and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from duplex.adapters.embedded.events import Counted, Event, Kind

_NUMBERS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_PLURALS: Final = {
    "person": "people",
    "sheep": "sheep",
    "skis": "pairs of skis",
    "knife": "knives",
    "mouse": "mice",
    "scissors": "pairs of scissors",
}
_SINGULARS: Final = {"skis": "a pair of skis", "scissors": "a pair of scissors"}
_LONGEST_LINE: Final = 80
_MOST_LINES: Final = 4


def clock(ms: float) -> str:
    """A time of the video: `4.3 seconds`, from a minute on `1:05`."""
    tenths = max(0, round(ms / 100))
    if tenths >= 600:
        minutes, seconds = divmod(tenths // 10, 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
    if tenths == 10:
        return "1 second"
    return f"{tenths // 10}.{tenths % 10} seconds" if tenths % 10 else f"{tenths // 10} seconds"


def number(count: int) -> str:
    """A small number in words."""
    return _NUMBERS[count] if count < len(_NUMBERS) else str(count)


def plural(label: str) -> str:
    """More than one of a class."""
    if " or " in label:
        return " or ".join(plural(part) for part in label.split(" or "))
    if label in _PLURALS:
        return _PLURALS[label]
    return label + ("es" if label.endswith(("s", "ch", "sh", "x")) else "s")


def one(label: str) -> str:
    """One of a class, with its article."""
    return _SINGULARS.get(label) or f"{'an' if label[0] in 'aeiou' else 'a'} {label}"


def counted(objects: Sequence[Counted]) -> str:
    """`at least three people, a car and a bus`. Never an exact count: a detector misses some."""
    return _listed(
        one(o.label) if o.count == 1 else f"at least {number(o.count)} {plural(o.label)}" for o in objects
    )


def quoted(lines: Sequence[str]) -> str:
    """Words on the screen, in quotation marks, bounded in length."""
    kept = [
        line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 1].rstrip() + "…"
        for line in lines[:_MOST_LINES]
    ]
    return _listed(f'"{line}"' for line in kept)


def _listed(parts: Iterable[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def sentence(event: Event) -> str:
    """One sentence about an event. Its form varies with the event's number, against monotony."""
    text = _COMPOSERS[event.kind](event)
    return text[0].upper() + text[1:]


def _pick(event: Event, *forms: str) -> str:
    return forms[event.number % len(forms)]


def when(ms: float) -> str:
    """`at the start`, `at 4.3 seconds`."""
    return "at the start" if ms < 50 else f"at {clock(ms)}"


def _at(event: Event) -> str:
    return when(event.at_ms)


def _seen(event: Event) -> str | None:
    """What a picture shows, or None when no detector is sure of anything."""
    if event.objects:
        shown = counted(event.objects)
        return f"{shown} in a {event.colours} picture" if event.colours else shown
    if event.tag:
        return f"what looks like {event.tag}"
    return f"a {_article_free(event.colours)} picture" if event.colours else None


def _article_free(colours: str) -> str:
    # "an almost black picture" would need another article
    return colours.replace("almost ", "nearly ")


def _opening(event: Event) -> str:
    seen = _seen(event)
    if seen is None and not event.looked:
        return "The video begins."
    if seen is None:
        return "The video begins. There is nothing in it yet that I recognise for certain."
    return _pick(event, f"The video opens with {seen}.", f"The first picture shows {seen}.")


def _cut(event: Event) -> str:
    seen, at = _seen(event), _at(event)
    if event.returns_to_ms is not None:
        back = f"the view we left at {clock(event.returns_to_ms)}"
        if seen is None:
            return _pick(event, f"{at} the shot cuts back to {back}.", f"cut {at}, back to {back}.")
        return _pick(
            event,
            f"{at} the shot cuts back to {back}, with {seen}.",
            f"cut {at}, back to {back}: {seen}.",
            f"{at} we are back in {back}, with {seen}.",
        )
    if seen is None and not event.looked:
        return _pick(event, f"{at} the shot cuts.", f"cut {at}.")
    if seen is None:
        return _pick(
            event,
            f"{at} the shot cuts to a view in which I recognise nothing for certain.",
            f"cut {at} to another view; nothing in it is certain to me.",
        )
    return _pick(
        event,
        f"{at} the shot cuts to {seen}.",
        f"cut {at}: I make out {seen}.",
        f"a new shot {at} shows {seen}.",
    )


def _change(event: Event) -> str:
    by = f"by {clock(event.at_ms)} the picture looks quite different"
    if event.colours and not event.objects and not event.tag:
        return f"{by}: it is {event.colours}."
    seen = _seen(event)
    return f"{by}: I make out {seen}." if seen else f"{by}."


def _appeared(event: Event) -> str:
    shown, many = counted(event.objects), sum(o.count for o in event.objects) > 1
    return _pick(
        event,
        f"{_at(event)} {shown} {'come' if many else 'comes'} into view.",
        f"{_at(event)} {shown} {'appear' if many else 'appears'}.",
    )


def _noticed(event: Event) -> str:
    shown = counted(event.objects)
    return _pick(
        event,
        f"by {clock(event.at_ms)} I can make out {shown}.",
        f"{_at(event)} I make out {shown}.",
    )


def _left(event: Event) -> str:
    gone = _listed(f"the {o.label if o.count == 1 else plural(o.label)}" for o in event.objects)
    many = sum(o.count for o in event.objects) > 1
    return f"by {clock(event.at_ms)} {gone} {'are' if many else 'is'} no longer to be seen."


def _tag(event: Event) -> str:
    return _pick(
        event,
        f"{_at(event)} the picture looks like {event.tag}.",
        f"this looks like {event.tag}, {_at(event)}.",
    )


def _pan(event: Event) -> str:
    if event.direction is None:
        return f"{_at(event)} the whole view is moving."
    return _pick(
        event,
        f"{_at(event)} the view turns {_way(event.direction)}.",
        f"the view moves {_way(event.direction)} {_at(event)}.",
    )


def _movement(event: Event) -> str:
    where = "in the middle" if event.place == "middle" else f"on the {event.place}"
    way = f", going {_way(event.direction)}" if event.direction else ""
    return f"{_at(event)} something starts to move {where}{way}."


def _way(direction: str) -> str:
    return direction if direction in ("up", "down") else f"to the {direction}"


def _stillness(event: Event) -> str:
    return _pick(
        event,
        f"by {clock(event.at_ms)} hardly anything moves any more.",
        f"the picture is calm by {clock(event.at_ms)}.",
    )


def _text(event: Event) -> str:
    return _pick(
        event,
        f"{_at(event)} the screen reads {quoted(event.lines)}.",
        f"on the screen {_at(event)}: {quoted(event.lines)}.",
    )


def _codec(event: Event) -> str:
    return f"{_at(event)} the codec reports strong motion."


_COMPOSERS: Final = {
    Kind.OPENING: _opening,
    Kind.CUT: _cut,
    Kind.CHANGE: _change,
    Kind.APPEARED: _appeared,
    Kind.NOTICED: _noticed,
    Kind.LEFT: _left,
    Kind.TAG: _tag,
    Kind.PAN: _pan,
    Kind.MOVEMENT: _movement,
    Kind.STILLNESS: _stillness,
    Kind.TEXT: _text,
    Kind.CODEC: _codec,
}
