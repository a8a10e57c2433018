"""The parts of an entry that `--show` names, as cells.

Used by `layout.py`, for `ablate table --show`; `check_show` also by cli/printing.py and
api/tables.py. A new part also needs its name in SHOW, in the help of `show` in cli/printing.py, and
`python tests/options_page.py`, which writes docs/options.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ablate.analysis import (
    Against,
    Cost,
    Entry,
    Table,
    confidence_level,
    setting_text,
    short_number,
    stats,
)
from ablate.planning import METRICS as NAMES
from ablate.planning import is_metric
from ablate.report.formats.grid import GridCell
from ablate.report.text import two_figures
from ablate.run import Metric
from ablate.shared import UserError, unknown_value

if TYPE_CHECKING:
    from ablate.analysis import Estimate

SHOW = (
    *("accuracy", "gain", "ci", "pm", "population", "n", "verdict"),
    *("params", "macs", "cost", "chosen", "paper"),
)
INTERVALS = ("ci", "pm")  # [+0.21, +1.03], and its half: 0.62 ± 0.41
DEFAULT_SHOW = ("accuracy", "gain", "ci", "n", "verdict")
IMPROVED = ("helps", "better")  # verdicts whose gains are bold
OTHERS_HEADING = "others"  # heads what is in no family or group, below what is in one


def check_show(text: str, own_metrics: Collection[str] = ()) -> tuple[str, ...]:
    """Split and check the parts of `--show`. `own_metrics`: metrics of the sweep at hand. Raises
    UserError for an unknown part."""
    show = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in show or (text,):
        if part not in (*SHOW, *own_metrics) and not is_metric(part):
            raise unknown_value("--show", part, (*SHOW, *(own_metrics or NAMES)))
    if not set(show) - set(INTERVALS):
        raise UserError(f"--show: {show[0]} is the interval of another part; add accuracy or gain")
    if set(INTERVALS) <= set(show):
        raise UserError("--show: ci and pm are two forms of one interval; leave one of them out")
    return show


@dataclass(frozen=True)
class ShownPart:
    """A column of a column."""

    heading: str
    text: Callable[[Entry], str]
    number: bool = True
    is_gain: bool = False
    is_verdict: bool = False
    good: tuple[str, ...] = IMPROVED  # verdicts that make a gain bold

    def cell(self, entry: Entry) -> GridCell:
        bold = self.is_gain and entry.verdict in self.good
        return GridCell(self.text(entry), bold=bold, number=self.number, verdict=self.is_verdict)


def parts_of(table: Table, show: Sequence[str]) -> Iterator[ShownPart]:
    ci, metric = interval_form(show), table.metric_of()
    for name in show:
        match name:
            case "ci" | "pm":
                continue
            case "gain" if table.target is not None:
                yield _target(table, table.target, ci)
            case "gain":
                heading = metric.change + bracket(ci, table.gain_alpha)
                yield ShownPart(heading, partial(_gain, table=table, ci=ci), is_gain=True)
            case "population":  # the interval alone: the gain is the one for new seeds
                heading = f"for new images, too [{confidence_level(table.gain_alpha)} CI]"
                yield ShownPart(heading, partial(_population, table=table))
            case "n":
                yield ShownPart("n", lambda entry: str(entry.n))
            case "verdict":
                few = max((entry.n for entry in table.entries), default=0) < stats.FEWEST_SEEDS
                has_fates = any(runs for entry in table.entries for runs in fates(entry, table))
                if few and table.complete and len(show) > 1 and not has_fates:
                    continue  # too few seeds for verdicts, and no runs to count
                heading = "verdict" if table.complete and not few else "runs"
                text = partial(state, table=table)
                yield ShownPart(heading, text, number=False, is_verdict=True)
            case "params":
                yield ShownPart("params", lambda entry: short_number(entry.parameters))
            case "macs":
                yield ShownPart("multiply-adds", lambda entry: short_number(entry.multiply_adds))
            case "cost":
                yield from _cost()
            case "chosen":
                yield from _chosen_settings(table)
            case "paper":
                yield from _paper(table)
            case _:
                yield _value(table, name, ci)


def interval_form(show: Sequence[str]) -> str:
    """Return the form of intervals that `show` names, one of INTERVALS; "" for none."""
    return next((name for name in INTERVALS if name in show), "")


def bracket(form: str, alpha: float) -> str:
    """Return the words of a heading on the intervals below it, by their form: "ci", "pm" or "" for
    none; with the confidence level 1 - alpha."""
    return {
        "ci": f" [{confidence_level(alpha)} CI]",
        "pm": f" ± {confidence_level(alpha)} CI",
        "": "",
    }[form]


def interval(estimate: Estimate | None, metric: Metric, sign: bool = False, ci: str = "ci") -> str:
    """Write "+0.62 [+0.21, +1.03]", or "+0.62 ± 0.41" for `pm`; without an interval "+0.62 [-]" and
    "+0.62 ± -"; without an estimate "-". A t interval is symmetric; one that was cut where an
    accuracy ends has both ends in any form."""
    if estimate is None:
        return "-"
    mean = metric.text(estimate.mean, sign)
    if not ci:
        return mean
    half = estimate.half
    if half is None or estimate.low is None:
        return f"{mean} [-]" if ci == "ci" else f"{mean} ± -"
    is_symmetric = math.isclose(estimate.low + half, estimate.mean, rel_tol=1e-9, abs_tol=1e-9)
    # Rounded to "+0.62 ± 0.62", a gain whose interval excludes 0 would contradict its verdict.
    excludes_zero = sign and half < abs(estimate.mean)
    seems_zero = float(metric.text(abs(estimate.mean))) <= float(metric.text(half))
    if ci == "pm" and is_symmetric and not (excludes_zero and seems_zero):
        return f"{mean} ± {metric.text(half)}"
    return f"{mean} {metric.interval(estimate.low, estimate.high, sign)}"


def _value(table: Table, name: str, ci: str) -> ShownPart:
    """Return the part of a metric by its name; "accuracy" is the table's own metric, whichever it
    is."""
    main = name in ("accuracy", table.metric)
    metric = table.metric_of(None if main else name)

    def text(entry: Entry) -> str:
        measurement = entry if main else entry.others.get(name)
        if measurement is None:
            return "-"
        mean = measurement.accuracy if isinstance(measurement, Entry) else measurement.estimate
        text = interval(mean, metric, ci=ci)
        if not measurement.never or (main and table.target is not None):  # see `fates`
            return text
        return f"{text}; {len(measurement.never)}/{entry.planned} never"

    heading = " ".join(filter(None, (metric.key, metric.unit)))
    return ShownPart(heading + bracket(ci, table.alpha), text)


def _target(table: Table, target: float, ci: str) -> ShownPart:
    """Return the part of the differences from the target."""
    metric = table.metric_of()

    def text(entry: Entry) -> str:
        return interval(entry.difference, metric, True, ci)

    heading = f"mean minus {target:.10g}{bracket(ci, table.gain_alpha)}"
    return ShownPart(heading, text, is_gain=True, good=(table.better_side,))


def _gain(entry: Entry, table: Table, ci: str) -> str:
    return "" if entry.row == table.baseline else interval(entry.gain, table.metric_of(), True, ci)


def _population(entry: Entry, table: Table) -> str:
    estimate = entry.population
    text = table.metric_of().interval(estimate.low, estimate.high, True) if estimate else ""
    return text or "-" * (entry.row != table.baseline)


def state(entry: Entry, table: Table) -> str:
    """Write the verdict, and the numbers of diverged, collapsed and missing runs."""
    word = entry.verdict if table.is_judged(entry.row) else "baseline"
    return "; ".join([*filter(None, [word]), *fates(entry, table)]) or "-"


def fates(entry: Entry, table: Table) -> Iterator[str]:
    """Count the runs without a usual end: "1/3 diverged". In a row without a mean they have not
    reached the target of the table."""
    lost = ((entry.diverged, "diverged"),)
    if table.better_side and table.target is not None and entry.accuracy is None:
        lost = (((*entry.diverged, *entry.never), "not reached"),)
    for seeds, fate in (
        *lost,
        (entry.collapsed, "collapsed"),
        (entry.missing, "missing"),
    ):
        if seeds:
            yield f"{len(seeds)}/{entry.planned} {fate}"


def _cost() -> Iterator[ShownPart]:
    def cost_text(text: Callable[[Cost], str]) -> Callable[[Entry], str]:
        return lambda entry: text(entry.cost) if entry.cost else "-"

    yield ShownPart("device-hours", cost_text(lambda cost: _three_figures(cost.device_s / 3600)))
    yield ShownPart("s a run", cost_text(lambda cost: _three_figures(cost.run_s)))
    yield ShownPart("images/s", cost_text(lambda cost: short_number(cost.images_per_s)))
    yield ShownPart("peak memory", cost_text(lambda cost: short_number(cost.peak_bytes, "B")))
    yield ShownPart("utilisation", cost_text(lambda cost: _share(cost.utilisation)))


def _three_figures(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{two_figures(100 * value)} %"


def _chosen_settings(table: Table) -> Iterator[ShownPart]:
    """Make a column for each searched key, with the chosen value of each search."""
    keys = dict.fromkeys(k for e in table.entries for choice in e.chosen for k in choice.params)

    def choice_text(key: str) -> Callable[[Entry], str]:
        return lambda entry: ", ".join(setting_text(c.params[key]) for c in entry.chosen) or "-"

    for key in keys:
        yield ShownPart(key, choice_text(key))


def _paper(table: Table) -> Iterator[ShownPart]:
    yield ShownPart(table.paper or "paper", _theirs(lambda a: a.published.figure_text))
    if any(_comparison(entry, table) for entry in table.entries):
        yield ShownPart("ours and theirs", lambda entry: _comparison(entry, table), number=False)


def _theirs(text: Callable[[Against], str]) -> Callable[[Entry], str]:
    return lambda entry: text(entry.against) if entry.against else ""


OTHER_SUBJECT = "not compared"  # in place of a comparison: see `Beside.same_subject`
INSIDE = {  # `Against.inside`, in a column of its own and in a line
    True: ("yes", "in our interval"),
    False: ("no", "outside our interval"),
    None: ("too wide", "our interval is too wide"),
}


def paper_apart(table: Table) -> Iterator[ShownPart]:
    """Yield the parts of `paper` one by one, each with a short text."""

    def difference_text(value: float | None) -> str:
        return "" if value is None else table.metric_of().text(value, True)

    yield ShownPart(table.paper or "paper", _theirs(lambda a: a.published.figure_text))
    yield ShownPart("value minus it", _theirs(lambda a: difference_text(a.value)))
    yield ShownPart("gain minus it", _theirs(lambda a: difference_text(a.gain)))
    yield ShownPart("direction", _theirs(_direction))
    yield ShownPart(
        "in our interval", _theirs(lambda a: INSIDE[a.inside][0] if a.agreement else "")
    )


def _direction(against: Against) -> str:
    if not against.published.same_subject:
        return _silence(against)
    return (against.agreement or "").removesuffix(" direction")


def _silence(against: Against) -> str:
    """Return what stands in place of a comparison; "" for a row without a published gain, such as
    the baseline."""
    return "" if against.published.gain is None else OTHER_SUBJECT


def _comparison(entry: Entry, table: Table) -> str:
    """Write "-0.34, gain +0.10", "same direction, in our interval" or "not compared"."""
    if (against := entry.against) is None:
        return ""
    if not against.published.same_subject:
        return _silence(against)
    parts = []
    if against.value is not None:
        parts.append(table.metric_of().text(against.value, True))
    if against.gain is not None:
        parts.append(f"gain {table.metric_of().text(against.gain, True)}")
    if against.agreement is not None:
        parts += [against.agreement, INSIDE[against.inside][1]]
    return ", ".join(parts)
