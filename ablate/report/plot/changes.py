"""Draws changes of a design: the effect of each (`changes`), and how pairs go together
(`pairs`).

Used by `ablate plot` and `ablate report`, through FIGURE_KINDS in `__init__.py`, which names this
file and its functions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.markers import CARETDOWN, CARETLEFT, CARETRIGHT, CARETUP

from ablate.analysis import (
    Summary,
    SummaryLine,
    Table,
    confidence_level,
)
from ablate.planning import Changes, Plan
from ablate.report.plot.form import BLACK, GREY, FigureForm, Ink, Nothing, RunDirs, ink_of
from ablate.report.plot.gains import NO_INTERVAL, limits_of
from ablate.report.plot.style import Drawing, Subject
from ablate.run import Metric

FEW_PAIRS, ACROSS, MOST_ACROSS = 9, 3, 5  # panels of so few pairs, and of more, in a line
ROOM = 0.4  # of the height of a panel
EXPECTED = 1.15  # on the axis of a panel of a pair: where the additive expectation is drawn to
FADED = "#AAAAAA"


def changes(plan: Plan, table: Table, rundir: RunDirs, form: FigureForm) -> Drawing:
    """Draw a forest: a panel for each column, a line for each part of each change, with its
    simultaneous interval, its seeds and its verdict."""
    plan_changes, blocks = _blocks(plan, table)
    metric = table.metric_of()
    lines = [line for block in blocks for line in block.lines]
    names = list(dict.fromkeys(line.full_label for line in lines))
    headings = {column.label: column.heading for column in table.columns}
    sheet = Drawing.of_lines(
        Subject(
            plan,
            table,
            form,
            "changes",
            f"{metric.change.capitalize()} of each change: {metric.name}",
        ),
        titles=[headings[block.name] for block in blocks],
        names=names,
        words=[_words(metric, line, form) for line in lines],
        x=metric.with_points(metric.change),
    )
    ends = limits_of([line.gain.mean for line in lines], list(map(_reach, lines)))
    for (axes,), block in zip(sheet.panels, blocks, strict=True):
        axes.set_xlim(*ends)
        axes.axvline(0, color=BLACK, linewidth=0.8)
        for line in block.lines:
            y = names.index(line.full_label)
            ink = ink_of(plan_changes.parts.index(line.part) + 1)
            _draw_change(sheet, axes, metric, line, y, ink)
            sheet.write_right(axes, y, _words(metric, line, form))
    sheet.foot(*_foot(table, blocks, ends))
    return sheet


def _draw_change(
    sheet: Drawing,
    axes: Axes,
    metric: Metric,
    line: SummaryLine,
    y: int,
    ink: Ink,
) -> None:
    """Draw the interval, the mean and the seeds of an effect, at a height; an arrow where an end
    lies beyond what is shown."""
    gain, title = line.gain, line.full_label
    if gain.low is not None and gain.high is not None:
        axes.plot([gain.low, gain.high], [y, y], color=ink.colour)
    low, high = _reach(line)
    left_end, right_end = axes.get_xlim()
    if low < left_end:
        axes.plot([left_end], [y], marker=CARETLEFT, color=ink.colour, clip_on=False)
    if high > right_end:
        axes.plot([right_end], [y], marker=CARETRIGHT, color=ink.colour, clip_on=False)
    (point,) = axes.plot([gain.mean], [y], **ink.mark(linestyle="none"))
    sheet.tell(point, f"{title}: {_numbers(metric, line)}")
    effects = list(line.by_seed.values())
    dots = sheet.dots(axes, effects, [y] * len(effects), ink.colour, (0, -1))
    texts = []
    for seed, effect in line.by_seed.items():
        texts.append(f"{seed}: {metric.text(effect, sign=True)}")
    sheet.tell(dots, f"{title}, by seed: {', '.join(texts)}")


def _foot(table: Table, blocks: Sequence[Summary], ends: tuple[float, float]) -> list[str]:
    """Write the caption: what the marks are, what each effect is, and the notes of the table."""
    metric = table.metric_of()
    has_bars = False
    cut_texts = []
    for block in blocks:
        for line in block.lines:
            has_bars = has_bars or _has_interval(line)
            low, high = _reach(line)
            if low < ends[0] or high > ends[1]:
                cut_texts.append(f"{line.full_label} {_numbers(metric, line)}")
    contrasts = " or ".join(str(n) for n in sorted({block.contrasts for block in blocks}))
    level = confidence_level(table.gain_alpha)
    text = "No effect has an interval."
    if has_bars:
        text = f"Bars: {level} intervals over training seeds, joint for {contrasts} comparisons."
    meanings = dict.fromkeys(f"{block.note[0].upper()}{block.note[1:]}." for block in blocks)
    lines = [" ".join([text, "Dots: single seeds.", *meanings])]
    if cut_texts:
        lines.append(f"Cut at the arrows: {'; '.join(cut_texts)}.")
    lines.extend(table.texts("warning"))
    return lines


def _reach(line: SummaryLine) -> tuple[float, float]:
    """Return the ends of an effect's drawing: of its interval and its seeds."""
    gain = line.gain
    ends = list(line.by_seed.values())
    ends.append(gain.mean)
    if gain.low is not None and gain.high is not None:
        ends.append(gain.low)
        ends.append(gain.high)
    return min(ends), max(ends)


class Pair(NamedTuple):
    """Two changes, and what the table says of them. `effect`: None where it says nothing;
    `aliases`: pairs that no cell tells from this one."""

    change: str
    other_change: str
    effect: SummaryLine | None
    aliases: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.change} x {self.other_change}"

    @property
    def title(self) -> str:
        """The name, and that of the pair that no cell tells from it, or how many such there are."""
        if len(self.aliases) > 1:
            return f"{self.name} or {len(self.aliases)} other pairs"
        return " or ".join([self.name, *self.aliases])

    @property
    def is_resolved(self) -> bool:
        """False if the effect can't be distinguished from zero, or has no interval."""
        return self.effect is not None and self.effect.gain.excludes_zero


def pairs(plan: Plan, table: Table, rundir: RunDirs, form: FigureForm) -> Drawing:
    """Draw a panel for each pair of changes, of the first column that has effects: the mean of the
    cells with and without the one, a line for each state of the other, and where the mean with both
    would be if the two added up. A bar shows the interval of the pair's effect from there. A panel
    whose effect can't be distinguished from zero is grey."""
    plan_changes, blocks = _blocks(plan, table)
    if not plan_changes.crossed:
        raise Nothing(f"{plan.name}: {plan_changes.design} has no cells of pairs; factorial has")
    label, metric = blocks[0].name, table.metric_of()
    means = _means(plan, table, plan_changes, label)
    all_pairs = _pairs(table, plan_changes, label)
    sheet = Drawing.of_panels(
        Subject(
            plan,
            table,
            form,
            "pairs",
            f"Pairs of changes: {metric.name}",
        ),
        titles=[""] * len(all_pairs),
        most_across=ACROSS if len(all_pairs) <= FEW_PAIRS else MOST_ACROSS,
        panel=(2.8, 2.5) if len(all_pairs) <= FEW_PAIRS else (2.0, 2.2),
        edge=(0.6, 0.8),
        y=[", ".join(filter(None, (metric.short, metric.unit)))],
    )
    for n, ((axes,), pair) in enumerate(zip(sheet.panels, all_pairs, strict=True)):
        axes.sharey(sheet.panels[0][0])
        if n % len(sheet.axes[0]):
            axes.tick_params(axis="y", labelleft=False)
        _draw_pair(sheet, axes, metric, means, pair, form)
    is_cut = _cut_bars(sheet)
    for place, word in enumerate(("without", "with"), 1):
        style = ink_of(place)
        sheet.names[f"{word} the other change"] = Line2D([], [], **style.line() | style.mark())
    heading = next(column.heading for column in table.columns if column.label == label)
    has_bars = any(pair.effect is not None and _has_interval(pair.effect) for pair in all_pairs)
    pair_blocks = [block for block in table.blocks if block.kind == "pair" and block.name == label]
    contrasts = sum(block.contrasts for block in pair_blocks)
    bars = (
        f" Bars: {confidence_level(table.gain_alpha)} intervals of the difference from that sum, "
        f"joint for {contrasts} comparisons. Grey: the difference can't be distinguished "
        f"from zero.{' An arrow: the bar goes on.' if is_cut else ''}"
        if has_bars
        else " No pair has an interval, so all are grey."
    )
    sheet.foot(
        f"{heading}." if heading else "",
        f"Marks: means over all cells with and without the two changes of a pair, the first on the "
        f"horizontal axis, on one scale. Dotted: to where the mean with both would be if their "
        f"effects added up.{bars}",
        *(f"Above each panel: {block.note}." for block in pair_blocks),
        *table.texts("warning"),
    )
    return sheet


def _draw_pair(
    sheet: Drawing,
    axes: Axes,
    metric: Metric,
    means: Mapping[tuple[str, ...], float],
    pair: Pair,
    form: FigureForm,
) -> None:
    """Draw the panel of a pair."""
    corners = {
        (has_change, has_other): fmean(
            mean
            for on, mean in means.items()
            if (pair.change in on) == has_change and (pair.other_change in on) == has_other
        )
        for has_change in (False, True)
        for has_other in (False, True)
    }
    colours = [ink_of(place + 1).colour if pair.is_resolved else FADED for place in (0, 1)]
    if pair.effect is not None:
        gain = pair.effect.gain
        both, colour = corners[True, True], colours[1]
        expected = both - metric.sign * gain.mean
        axes.plot([0, EXPECTED], [corners[False, True], expected], ":", color=colour, linewidth=1)
        if gain.low is not None and gain.high is not None:
            ends = sorted(expected + metric.sign * end for end in (gain.low, gain.high))
            (bar,) = axes.plot([EXPECTED] * 2, ends, color=colour, linewidth=2.5, alpha=0.6)
            sheet.tell(bar, f"{pair.name}: {_numbers(metric, pair.effect)}")
    for has_other, colour in zip((False, True), colours, strict=True):
        ys = [corners[has_change, has_other] for has_change in (False, True)]
        style = ink_of(int(has_other) + 1)
        line_style = {**style.line(), **style.mark(), "color": colour, "markerfacecolor": colour}
        (line,) = axes.plot([0, 1], ys, **line_style)
        word = f"{'with' if has_other else 'without'} {pair.other_change}"
        sheet.tell(line, f"{word}: {metric.text(ys[0])} to {metric.text(ys[1])}")
    axes.set_xticks([0, 1], ["without", "with"])
    axes.set_xlim(-0.25, 1.4)
    axes.set_xlabel(form.wrapped_name(pair.change))
    numbers = _interval_text(metric, pair.effect) if pair.effect is not None else ""
    verdict = pair.effect.verdict if pair.effect is not None else None
    title = "\n".join(filter(None, (form.wrapped_name(pair.title), numbers, verdict)))
    axes.set_title(title, loc="left", fontsize="small", color=BLACK if pair.is_resolved else GREY)


def _cut_bars(sheet: Drawing) -> bool:
    """Give the panels a scale on which means fill at least ROOM of it, whatever the intervals, with
    an arrow at each end that lies beyond; return whether there is one."""
    bars, means, ends = [], [], []
    for (axes,) in sheet.panels:
        for line in axes.lines:
            xs, ys = list(line.get_xdata()), list(line.get_ydata())
            if xs == [EXPECTED] * 2:
                bars.append(line)
                ends.extend(ys)
            else:
                means.extend(ys)
    beyond = (max(means) - min(means)) * (1 / ROOM - 1) / 2 or 1.0
    low = max(min(means + ends), min(means) - beyond)
    high = min(max(means + ends), max(means) + beyond)
    margin = 0.04 * (high - low)
    sheet.panels[0][0].set_ylim(low - margin, high + margin)
    is_cut = False
    for bar in bars:
        for y, end, arrow in zip(bar.get_ydata(), (low, high), (CARETDOWN, CARETUP), strict=True):
            if not low <= y <= high:
                is_cut = True
                bar.axes.plot([EXPECTED], [end], marker=arrow, color=bar.get_color())
    return is_cut


def _pairs(table: Table, plan_changes: Changes, column: str) -> list[Pair]:
    """List the pairs of changes, each with its effect in a column."""
    effects: dict[str, SummaryLine] = {}
    for block in table.blocks:
        if block.kind == "pair" and block.name == column:
            effects |= {name: line for line in block.lines for name in line.label.split(" or ")}
    all_pairs = []
    for change, other_change in itertools.combinations(plan_changes.names, 2):
        name = f"{change} x {other_change}"
        effect = effects.get(name)
        alike = effect.label.split(" or ") if effect is not None else []
        aliases = tuple(alias for alias in alike if alias != name)
        all_pairs.append(Pair(change, other_change, effect, aliases))
    return all_pairs


def _numbers(metric: Metric, line: SummaryLine) -> str:
    """Write an effect as tables print it, and its verdict."""
    return f"{_interval_text(metric, line)} {line.verdict or ''}".rstrip()


def _words(metric: Metric, line: SummaryLine, form: FigureForm) -> str:
    """Write what stands at the right of an effect: elsewhere than on a page the verdict alone."""
    if form.style == "page":
        return _numbers(metric, line)
    return line.verdict or ""


def _interval_text(metric: Metric, line: SummaryLine) -> str:
    gain = line.gain
    interval = metric.interval(gain.low, gain.high, sign=True) or NO_INTERVAL
    return f"{metric.text(gain.mean, sign=True)} {interval}"


def _has_interval(line: SummaryLine) -> bool:
    return line.gain.low is not None and line.gain.high is not None


def _blocks(plan: Plan, table: Table) -> tuple[Changes, list[Summary]]:
    if plan.changes is None:
        raise Nothing(f"{plan.name}: has variants; `--change` or a file with `changes` has changes")
    blocks = [block for block in table.blocks if block.kind == "change"]
    if not blocks:
        raise Nothing(f"{plan.name}: no effect of a change yet; two seeds of every cell tell one")
    return plan.changes, blocks


def _means(
    plan: Plan, table: Table, plan_changes: Changes, label: str
) -> dict[tuple[str, ...], float]:
    """Return the mean over seeds of each cell of a column, as tables print it, by the changes that
    the cell has."""
    column = next(column for column in table.columns if column.label == label)
    means = {e.row: e.accuracy.mean for e in column.entries if e.accuracy is not None}
    rows = plan.row_names
    return {on: means[rows[cell]] for cell, on in plan_changes.rows.items() if rows[cell] in means}
