"""The picture of a sweep: curves, spread over seeds, the metric against each axis, all axes.

A configuration has one colour in all panels: black for the default, one of `COLOURS` for the best.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5x_style.configuration.gin_reader import to_gin
from t5x_style.sweeps import standings
from t5x_style.sweeps.standings import Row
from t5x_style.sweeps.trials import DEFAULT, Curve, Results, Trial

COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00")  # Okabe and Ito; best first
OTHERS, PRUNED = "#9DB8C9", "#999999"
WIDE, DPI = 14.0, 100  # inches of the page; dots per inch
COLUMNS = 3  # of panels with an axis
STRIPS = 15  # configurations whose spread is shown
FEW = 12  # different numbers of an axis that may be a list
DECADE = 10.0  # ratio of the ends of a list that is drawn on a logarithmic scale
MISSING = -0.16  # height of axes that are not set: the recipe's value, or they do not apply
TEXT = 8  # points


@dataclass(frozen=True)
class Scale:
    """Scale on which the values of an axis are drawn.

    Attributes:
      values: the different ones in order: numbers by size, then others by their text.
      is_numeric: whether they are numbers, and not categories.
      logarithmic: whether ratios are drawn as distances.
    """

    values: tuple[Any, ...]
    is_numeric: bool
    logarithmic: bool

    @property
    def is_few(self) -> bool:
        """Whether the values may be a list, so that a mean for each of them makes sense."""
        return not self.is_numeric or len(self.values) <= FEW

    def place(self, value: Any) -> float:
        """The coordinate of a value: the number, or the place of the category."""
        if self.is_numeric:
            return float(value)
        return float([to_gin(one) for one in self.values].index(to_gin(value)))

    def share(self, value: Any) -> float:
        """Position between the lowest and the highest value, from 0 to 1."""
        ends = (self.place(self.values[0]), self.place(self.values[-1]), self.place(value))
        low, high, place = map(math.log, ends) if self.logarithmic else ends
        return 0.5 if low == high else (place - low) / (high - low)

    def ticks(self, gap: float, length: int) -> list[tuple[Any, str]]:
        """(value, label) of values that are some share apart, so that labels do not overlap.

        Args:
          gap: the share.
          length: of a label, in characters.
        """
        found: list[Any] = []
        for value in self.values if self.is_few else (self.values[0], self.values[-1]):
            if not found or self.share(value) - self.share(found[-1]) >= gap:
                found.append(value)
        return [(value, _tick(value, length)) for value in found]


def _tick(value: Any, length: int) -> str:
    return f"{value:.6g}" if isinstance(value, float) else _plain(value, length)


def scale(values: Iterable[Any], logarithmic: bool) -> Scale:
    """The scale of an axis.

    Args:
      values: that it has, at least one.
      logarithmic: whether the sweep draws from it on such a scale. A short list whose
        ends are a decade apart gets one as well.
    """
    different = {to_gin(value): value for value in values}
    if not all(_is_number(value) for value in different.values()):
        ordered = sorted(different.items(), key=_after_numbers)
        return Scale(tuple(value for _, value in ordered), False, False)
    numbers = tuple(sorted(set(different.values())))
    wide = len(numbers) <= FEW and numbers[-1] >= DECADE * numbers[0]
    return Scale(numbers, True, numbers[0] > 0 and (logarithmic or wide))


def _after_numbers(item: tuple[str, Any]) -> tuple[float, str]:
    """Numbers by size, and then other values by their text."""
    text, value = item
    return (float(value) if _is_number(value) else math.inf), text


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def draw(results: Results, png: Path) -> None:
    """Draws the page.

    Args:
      results: of the sweep.
      png: the file, whatever its name ends in.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = standings.rows(results)
    colours = _colours(found)
    heights = [5.4, 2.6 * max(1, math.ceil(len(results.axes) / COLUMNS)), 3.6]
    page: Any = Figure(figsize=(WIDE, sum(heights)), layout="constrained")
    FigureCanvasAgg(page)
    page.suptitle(_title(results, found), fontsize=12)
    top, middle, bottom = page.subfigures(3, 1, height_ratios=heights)
    left, right = top.subplots(1, 2, width_ratios=[3, 2])
    _curves(left, results, found, colours)
    _spread(right, results, found, colours)
    _marginals(middle, results, found, colours)
    all_axes = bottom.subplots()
    _parallel(all_axes, results, found)
    _legend(bottom, all_axes)
    _legend(top, left)
    page.savefig(png, format="png", dpi=DPI)


def _legend(part: Any, axis: Any) -> None:
    """The lines of an axis, below it, the last drawn first."""
    lines, labels = axis.get_legend_handles_labels()
    if lines:
        part.legend(
            lines[::-1], labels[::-1], loc="outside lower left", frameon=False, fontsize=TEXT
        )


def _title(results: Results, found: Sequence[Row]) -> str:
    direction = "larger" if results.larger_is_better else "smaller"
    text = f"{_plain(results.title, 60)}: {_plain(results.metric, 60)}, {direction} is better"
    if any(row.values for row in found):
        return text
    counts = standings.counts(results).items()
    by_status = ", ".join(f"{count} {status}" for status, count in counts if count)
    return f"{text}\nno trial is done: {by_status or 'there are no trials'}"


def _colours(found: Sequence[Row]) -> dict[str, str]:
    """Name -> colour of the best configurations and of the default."""
    ranked = [row.name for row in found if row.values and row.name != DEFAULT]
    return dict(zip(ranked, COLOURS, strict=False)) | {DEFAULT: "black"}


def _plain(value: Any, length: int) -> str:
    """A value as text without formulas, which matplotlib sees between dollars."""
    return standings.shown(value, length).replace("$", r"\$")


def _label(results: Results, row: Row, default: Mapping[str, Any]) -> str:
    """The configuration's name, and values that the default does not have."""
    values = row.configuration.values
    differing = [
        f"{_plain(axis, 20)}={_plain(values[axis], 20)}"
        for axis in results.axes
        if axis in values and (axis not in default or to_gin(values[axis]) != to_gin(default[axis]))
    ]
    return row.name if row.name == DEFAULT else f"{row.name}: {', '.join(differing[:4])}"


def _empty(axis: Any, text: str) -> None:
    axis.text(0.5, 0.5, text, ha="center", va="center", transform=axis.transAxes, fontsize=10)
    axis.set_xticks([])
    axis.set_yticks([])


def _dress(axis: Any, title: str, across: str = "", up: str = "") -> None:
    axis.set_title(title, fontsize=TEXT + 2)
    axis.set_xlabel(across, fontsize=TEXT + 1)
    axis.set_ylabel(up, fontsize=TEXT + 1)
    axis.tick_params(labelsize=TEXT)
    for line in (axis.xaxis, axis.yaxis):
        line.get_offset_text().set_fontsize(TEXT)


def _curves(axis: Any, results: Results, found: Sequence[Row], colours: Mapping[str, str]) -> None:
    """The metric over steps, the best configurations above the others."""
    title = "metric over steps, mean over seeds"
    curves = [(row, *mean_curve(results, row)) for row in found]
    curves = [(row, points, pruned) for row, points, pruned in curves if points]
    if not curves:
        _empty(axis, "no curve: the metric has no steps,\nor no trial has measured it yet")
        return _dress(axis, title)
    default = next((row.configuration.values for row in found if row.name == DEFAULT), {})
    seen = set()
    for order, (row, points, pruned) in enumerate(reversed(curves)):
        colour = colours.get(row.name)
        label = "pruned" if pruned else "other configurations"
        if colour is not None:
            label = _label(results, row, default) + (" (pruned)" if pruned else "")
        axis.plot(
            *zip(*points, strict=True),
            color=colour or (PRUNED if pruned else OTHERS),
            linestyle="--" if pruned else "-",
            linewidth=0.8 if colour is None else 1.8,
            marker="." if len(points) < 20 else "",
            markersize=3 if colour is None else 5,
            zorder=2 if colour is None else 3 + order / len(curves),
            label=f"_{label}" if label in seen else label,  # matplotlib leaves out those with _
        )
        seen.add(label)
    axis.grid(alpha=0.3)
    return _dress(axis, title, "step", _plain(results.metric, 40))


def mean_curve(results: Results, row: Row) -> tuple[Curve, bool]:
    """The mean over seeds at the steps that all of them have, and whether a seed was pruned.

    Trials that are done or pruned count; where there are none, those that run or failed.
    """
    records = [results.record(trial) for trial in row.trials]
    pruned = any(record.status == "pruned" for record in records)
    ended = [one for one in records if one.status in ("done", "pruned") and one.curve]
    curves = [dict(one.curve) for one in ended or records if one.curve]
    if not curves:
        return (), pruned
    steps = sorted(set.intersection(*(set(one) for one in curves)))
    return tuple((step, sum(one[step] for one in curves) / len(curves)) for step in steps), pruned


def _spread(axis: Any, results: Results, found: Sequence[Row], colours: Mapping[str, str]) -> None:
    """The values of the seeds of the best configurations, and of the default."""
    ranked = [(row, row.summary.mean) for row in found if row.summary is not None]
    shown = ranked[:STRIPS] + [pair for pair in ranked[STRIPS:] if pair[0].name == DEFAULT]
    if not shown:
        _empty(axis, "no trial is done")
        return _dress(axis, "spread over seeds")
    for place, (row, mean) in enumerate(shown):
        colour = colours.get(row.name, "#5F7F93")
        values = list(row.values.values())
        axis.scatter(values, [place] * len(values), s=22, color=colour, alpha=0.6, linewidths=0)
        axis.scatter([mean], [place], s=220, marker="|", color=colour, linewidths=2)
    labels = [f"{row.name}{'' if row.is_complete else ' (incomplete)'}" for row, _ in shown]
    axis.set_yticks(range(len(shown)), labels)
    axis.set_ylim(max(len(shown), 3) - 0.5, -0.5)
    axis.grid(alpha=0.3)
    title = f"spread over seeds ({len(shown)} of {len(found)} configurations), | mean"
    _dress(axis, title, _plain(results.metric, 40))
    for tick, (row, _) in zip(axis.get_yticklabels(), shown, strict=True):
        tick.set_color(colours.get(row.name, "#222222"))
    return None


def _marginals(
    page: Any, results: Results, found: Sequence[Row], colours: Mapping[str, str]
) -> None:
    """A panel for each axis: the value of each trial against the value of the axis."""
    if not results.axes:
        return
    columns = min(COLUMNS, len(results.axes))
    deep = math.ceil(len(results.axes) / columns)
    panels = page.subplots(deep, columns, squeeze=False, sharey=True).flat
    for panel, name in zip(panels, results.axes, strict=False):
        rows = [row for row in found if row.values and name in row.configuration.values]
        if rows:
            _marginal(panel, results, name, rows, colours)
        else:
            _empty(panel, "no trial with it is done")
        _dress(panel, "", _plain(name, 40))
    for first in page.axes[::columns]:
        first.set_ylabel(_plain(results.metric, 24), fontsize=TEXT + 1)
    for panel in page.axes[len(results.axes) :]:
        panel.axis("off")


def _marginal(
    panel: Any, results: Results, name: str, rows: Sequence[Row], colours: Mapping[str, str]
) -> None:
    values = [row.configuration.values[name] for row in rows]
    of_axis = scale(values, name in results.logarithmic)
    points: list[tuple[float, float, str]] = []
    by_value: dict[float, list[float]] = {}
    for row, value in reversed(list(zip(rows, values, strict=True))):  # draw the best last
        place = of_axis.place(value)
        by_value.setdefault(place, []).extend(row.values.values())
        for seed, measured in row.values.items():
            shift = 0.0 if of_axis.is_numeric else _jitter(Trial(row.configuration, seed).name)
            points.append((place + shift, measured, colours.get(row.name, OTHERS)))
    points.sort(key=lambda point: point[2] != OTHERS)
    across, up, colour = zip(*points, strict=True)
    panel.scatter(across, up, s=20, color=colour, alpha=0.8, linewidths=0, zorder=3)
    if of_axis.logarithmic:
        panel.set_xscale("log")
    if of_axis.is_few:
        means = [sum(ones) / len(ones) for ones in by_value.values()]
        width = min(17.0, 200.0 / len(of_axis.values))  # points
        panel.scatter(list(by_value), means, s=width**2, marker="_", color="#444444", zorder=4)
        _name_values(panel, of_axis)
    panel.grid(alpha=0.3)


def _name_values(panel: Any, of_axis: Scale) -> None:
    """Labels the values of a list below a panel."""
    ticks = of_axis.ticks(0.08, 18)
    if of_axis.is_numeric:  # so far apart that no label is over another
        ticks = of_axis.ticks(max(0.08, 0.022 * max(len(label) for _, label in ticks)), 18)
    long = sum(len(label) for _, label in ticks) > 40
    panel.minorticks_off()
    panel.set_xticks([of_axis.place(value) for value, _ in ticks], [label for _, label in ticks])
    if long:
        for label in panel.get_xticklabels():
            label.set(rotation=25, ha="right", rotation_mode="anchor")
    if not of_axis.is_numeric:
        panel.set_xlim(-0.6, len(of_axis.values) - 0.4)


def _jitter(name: str) -> float:
    """A shift between -0.2 and 0.2 that depends on the name alone."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32 * 0.4 - 0.2


def _parallel(axis: Any, results: Results, found: Sequence[Row]) -> None:
    """A line for each configuration across all axes, ending at its mean."""
    ranked = [(row, row.summary.mean) for row in found if row.summary is not None]
    if not ranked:
        _empty(axis, "no trial is done")
        return _dress(axis, "all axes")
    from matplotlib import colormaps

    colour_of = colormaps["viridis_r" if results.larger_is_better else "viridis"]
    of_means = Scale(tuple(sorted(mean for _, mean in ranked)), True, False)
    values = [row.configuration.values for row, _ in ranked]
    scales = {
        name: scale([one[name] for one in values if name in one], name in results.logarithmic)
        for name in results.axes
        if any(name in one for one in values)
    }
    for place, (row, mean) in reversed(list(enumerate(ranked))):
        given = row.configuration.values
        heights = [scales[n].share(given[n]) if n in given else MISSING for n in results.axes]
        share = of_means.share(mean)
        style = _line(row, place == 0, colour_of(share))
        axis.plot(range(len(heights) + 1), [*heights, share], **style)
    if any(name not in one for one in values for name in results.axes):
        axis.text(-0.02, MISSING, "not set", fontsize=TEXT - 1, va="center", ha="right")
    _columns(axis, results, [scales.get(name) for name in results.axes] + [of_means])
    return None


def _line(row: Row, is_best: bool, colour: Any) -> dict[str, Any]:
    """Line of a configuration across all axes."""
    if row.name == DEFAULT:
        label = "the default, which is the best" if is_best else "the default"
        return {"color": "black", "linewidth": 3.0 if is_best else 1.8, "zorder": 3, "label": label}
    if is_best:
        label = f"the best{'' if row.is_complete else ' so far'}: {row.name}"
        return {"color": COLOURS[0], "linewidth": 3.0, "zorder": 4, "label": label}
    return {"color": colour, "linewidth": 1.0, "alpha": 0.7}


def _columns(axis: Any, results: Results, scales: Sequence[Scale | None]) -> None:
    """Vertical lines with the values of the axes."""
    for place, of_axis in enumerate(scales):
        axis.axvline(place, color="#444444", linewidth=0.8, zorder=1)
        if of_axis is None:
            continue
        for value, label in of_axis.ticks(0.09, min(18, 110 // len(scales))):
            axis.text(
                place + 0.02, of_axis.share(value), label, fontsize=TEXT - 1, va="center", zorder=5,
                bbox={"facecolor": "white", "alpha": 0.9, "edgecolor": "none", "pad": 0.8},
            )  # fmt: skip
    names = [_plain(name, max(10, 150 // len(scales))) for name in (*results.axes, results.metric)]
    axis.set_xticks(range(len(scales)), names)
    axis.xaxis.tick_top()
    axis.set_yticks([])
    axis.set_xlim(-0.5, len(scales) - 0.5)
    axis.tick_params(labelsize=TEXT + 1, length=0)
    axis.set_frame_on(False)
