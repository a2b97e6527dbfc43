"""The picture of a timeline: one panel a step, what was sent above, what was heard below, then the words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duplex.cli.timeline import LEVEL_MS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]
Film = Sequence[tuple[float, NDArray[np.uint8]]]
"""Pictures of a clip, each with its time in s."""
Bar = tuple[float, float, float]
"""Begin and length in s, level in dBFS."""

_YOU: Final = "#2563a8"
_AGENT: Final = "#1f8a5b"
_GONE: Final = "#c9343c"
_INK: Final = "#22272e"
_FAINT: Final = "#8a929c"
_QUIET_DBFS: Final = -60.0
_FULL_S: Final = 4.0
"""Audio ahead of playback that fills the lane's height: the gateway's default bound."""

# all heights in inches: a panel's axis is as tall as it needs to be
_WIDTH: Final = 14.0
_MARGIN: Final = 0.75
_LANE: Final = 0.75
_THIN_LANE: Final = 0.4
_FILM: Final = 0.95
_LABEL: Final = 0.19
_GAP: Final = 0.1
_CHARACTER: Final = 0.066
"""Mean width of a character at 8 pt."""


class Label(NamedTuple):
    """Words at a time. `strong`: a cut. `of_s`: the moment of the film that they are about."""

    at_s: float
    text: str
    colour: str = _INK
    strong: bool = False
    of_s: float | None = None


def plot_timeline(rows: Iterable[Row], path: Path, *, films: dict[str, Film] | None = None) -> None:
    """Draw the rows into a PNG. `films` are pictures of the clip that a step sent."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    films = films or {}
    steps: dict[str, list[Row]] = {}
    for row in rows:
        steps.setdefault(row["step"], []).append(row)
    panels = [
        _Panel(step_rows, films.get(step, ()))
        for step, step_rows in steps.items()
        if any(row["kind"] == "step" for row in step_rows)
    ]
    heights = [panel.height for panel in panels]
    figure, axes = pyplot.subplots(
        len(panels),
        1,
        figsize=(_WIDTH + 1, sum(heights) + 0.5),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for panel, axis in zip(panels, axes[:, 0], strict=True):
        panel.draw(axis)
    _legend(figure)
    figure.savefig(path, dpi=110, facecolor="white")
    pyplot.close(figure)


def _legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    figure.legend(
        handles=[
            Patch(color=_YOU, label="audio sent"),
            Patch(color=_AGENT, label="heard"),
            Patch(color=_AGENT, alpha=0.15, label=f"received, not yet played (full height: {_FULL_S:g} s)"),
            Patch(
                facecolor="white", edgecolor=_GONE, hatch="//////", label="received, cancelled, never played"
            ),
        ],
        loc="outside upper right",
        ncols=4,
        frameon=False,
        fontsize=9,
    )


class _Panel:
    """One step. Time is in s from the step's begin; heights are in inches."""

    def __init__(self, rows: list[Row], film: Film) -> None:
        self.rows = sorted(rows, key=lambda row: float(row["t_ms"]))
        self.film = film
        first = next(row for row in self.rows if row["kind"] == "step")
        self.origin = first["t_ms"]
        self.title = first["title"]
        self.end = max(1.0, 1.01 * max(self._s(row) + row.get("ms", 0) / 1000 for row in self.rows))
        kinds = {row["kind"] for row in rows}
        self.sends_audio = "audio.sent" in kinds
        self.has_audio = "audio.heard" in kinds
        self.has_cuts = "audio.cancelled" in kinds
        self.labels = _stagger([label for row in self.rows if (label := _label(row, self._s(row)))], self.end)
        self.top = (
            (_FILM + _GAP) * bool(film)
            + _LANE * (self.sends_audio + self.has_audio)
            + _THIN_LANE * self.has_cuts
            + _LABEL * (1 + max((lane for _, lane in self.labels), default=0))
        )

    @property
    def height(self) -> float:
        return self.top + _MARGIN

    def _s(self, row: Row) -> float:
        return float(row["t_ms"] - self.origin) / 1000

    def draw(self, axis: Axes) -> None:
        axis.set_title(self.title, loc="left", fontsize=11, fontweight="bold", color=_INK)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.set_yticks([])
        axis.set_xlabel("s", loc="right", fontsize=8, labelpad=-2)
        axis.tick_params(labelsize=8)
        y = self.top
        if self.film:
            self._draw_film(axis, y)
            y -= _FILM + _GAP
        if self.sends_audio:
            self._lane(axis, y - _LANE / 2, "you")
            self._envelope(axis, y - _LANE / 2, "audio.sent", _YOU)
            y -= _LANE
        if self.has_audio:
            self._lane(axis, y - _LANE / 2, "agent")
            self._ahead(axis, y - _LANE / 2)
            self._envelope(axis, y - _LANE / 2, "audio.heard", _AGENT)
            y -= _LANE
        if self.has_cuts:
            self._lane(axis, y - _THIN_LANE / 2, "cancelled")
            self._cancelled(axis, y - _THIN_LANE / 2)
            y -= _THIN_LANE
        for label, lane in self.labels:
            self._draw_label(axis, label, y, y - 0.12 - _LABEL * lane)
        axis.set_xlim(0, self.end)
        axis.set_ylim(0, self.top)

    # --- lanes --------------------------------------------------------------------------------------

    def _lane(self, axis: Axes, y: float, name: str) -> None:
        axis.axhline(y, color=_FAINT, lw=0.5, zorder=0)
        beside = axis.get_yaxis_transform()
        axis.text(-0.006, y, name, transform=beside, fontsize=9, ha="right", va="center", color=_INK)

    def _envelope(self, axis: Axes, y: float, kind: str, colour: str) -> None:
        bars = [(self._s(r), r["ms"] / 1000, r["level_dbfs"]) for r in self.rows if r["kind"] == kind]
        _bars(axis, y, bars, 0.45 * _LANE, color=colour, lw=0)

    def _ahead(self, axis: Axes, y: float) -> None:
        """How much had arrived and was still unplayed."""
        floor = y - 0.45 * _LANE
        for at, until, ahead in self._unplayed():
            tops = [floor + 0.9 * _LANE * min(1.0, seconds / _FULL_S) for seconds in ahead]
            axis.fill_between([at, until], floor, tops, color=_AGENT, alpha=0.15, lw=0)

    def _unplayed(self) -> Iterator[tuple[float, float, tuple[float, float]]]:
        marks = [row for row in self.rows if row["kind"] in ("audio.received", "audio.cancelled")]
        for row, after in zip(marks, [*marks[1:], None], strict=True):
            if row["kind"] == "audio.cancelled":
                continue
            at, ahead = self._s(row), row["unplayed_ms"] / 1000
            until = min(at + ahead, self._s(after) if after else self.end)
            if until > at:
                yield at, until, (ahead, ahead - (until - at))

    def _cancelled(self, axis: Axes, y: float) -> None:
        """What was thrown away, where it would have sounded."""
        step = LEVEL_MS / 1000
        for row in self.rows:
            if row["kind"] == "audio.cancelled":
                at = self._s(row)
                bars = [(at + number * step, step, level) for number, level in enumerate(row["levels_dbfs"])]
                style = {"facecolor": "none", "edgecolor": _GONE, "hatch": "//////", "lw": 0.4}
                _bars(axis, y, bars, 0.45 * _THIN_LANE, **style)

    def _draw_film(self, axis: Axes, top: float) -> None:
        """The clip's pictures at their times, as far apart as they are wide."""
        height, width = self.film[0][1].shape[:2]
        wide = _FILM * width / height * self.end / _WIDTH
        last = -wide
        for at, picture in self.film:
            if at >= last + wide and at + wide <= self.end * 1.02:
                extent = (at, at + wide * 0.97, top - _FILM, top)
                axis.imshow(picture, extent=extent, aspect="auto", zorder=3)
                last = at

    # --- words --------------------------------------------------------------------------------------

    def _draw_label(self, axis: Axes, label: Label, above: float, y: float) -> None:
        """The words at `y`, and a line up to what they are about."""
        style: dict[str, Any] = {
            "color": label.colour,
            "lw": 1.3 if label.strong else 0.7,
            "alpha": 0.9 if label.strong else 0.4,
        }
        if label.of_s is not None:
            axis.plot([label.of_s, label.at_s, label.at_s], [above + _GAP * 0.6, above - 0.02, y], **style)
            axis.plot([label.of_s], [above + _GAP * 0.6], marker="o", ms=3.5, color=label.colour)
        else:
            axis.plot([label.at_s, label.at_s], [y, above if self.film else self.top], zorder=0, **style)
        at_the_end = label.at_s + _width_s(label, self.end) > self.end
        words = axis.text(
            self.end if at_the_end else label.at_s + self.end * 0.002,
            y,
            label.text,
            fontsize=8,
            color=label.colour,
            ha="right" if at_the_end else "left",
            va="center",
            fontweight="bold" if label.strong else "normal",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
        )
        words.set_in_layout(False)


def _bars(axis: Axes, y: float, bars: Sequence[Bar], half: float, **style: Any) -> None:
    """Levels as an envelope around `y`, each bar where it lies; gaps stay gaps. `half` is full scale."""
    runs: list[list[Bar]] = []
    for bar in bars:
        if runs and bar[0] - (runs[-1][-1][0] + runs[-1][-1][1]) < 0.03:
            runs[-1].append(bar)
        else:
            runs.append([bar])
    for run in runs:
        edges = [run[0][0]]
        heights = []
        for at, length, level in run:
            edges.append(max(edges[-1], at + length))
            heights.append(half * max(0.0, 1 - level / _QUIET_DBFS))
        tall = np.asarray([*heights, heights[-1]])
        axis.fill_between(edges, y - tall, y + tall, step="post", zorder=2, **style)


def _width_s(label: Label, end: float) -> float:
    """How much of an axis of `end` s the words take, about."""
    return (len(label.text) + 2) * _CHARACTER * end / _WIDTH


def _stagger(labels: Iterable[Label], end: float) -> list[tuple[Label, int]]:
    """Give each label the first lane where it does not run into the one before."""
    free: list[float] = []
    placed = []
    for label in sorted(labels, key=lambda label: label.at_s):
        wide = _width_s(label, end)
        begin = min(label.at_s, end - wide)
        lane = next((n for n, at in enumerate(free) if at <= begin), len(free))
        if lane == len(free):
            free.append(0.0)
        free[lane] = begin + wide
        placed.append((label, lane))
    return placed


def _label(row: Row, at: float) -> Label | None:
    """The words of a row, or None when the lanes tell it."""
    match row["kind"]:
        case "mark":
            return Label(
                at, row["name"], _GONE if row.get("strong") else _INK, strong=bool(row.get("strong"))
            )
        case "text.sent":
            return Label(at, f"you: {_short(row['text'])}", _YOU)
        case "answer":
            text = row["text"] + " …" if row["status"] == "cancelled" else row["text"]
            return Label(at, f"agent: {_short(text)}", _AGENT)
        case "comment":
            of_s = row["clip_ms"] / 1000 if row["lag_ms"] is not None else None
            return Label(at, _short(row["text"], 72), _AGENT, of_s=of_s)
        case "event":
            return _event_label(row, at)
        case _:
            return None


def _event_label(row: Row, at: float) -> Label | None:
    match row["type"]:
        case "response.cancelled" | "playback.clear":
            return Label(at, row["type"], _GONE, strong=True)
        case "input.speech_started":
            return Label(at, "speech noticed", _YOU)
        case "input.transcript" if row["final"]:
            return Label(at, f"understood: {_short(row['text'])}", _YOU)
        case "error":
            return Label(at, f"error: {row.get('code')}", _GONE, strong=True)
        case _:
            return None


def _short(text: str, most: int = 48) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
