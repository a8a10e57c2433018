"""The parts of an entry that `--show` names, as cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ablate.analysis.captions import level
from ablate.analysis.footnotes import setting
from ablate.analysis.scores import short
from ablate.analysis.table import Against, Cost, Entry, Table
from ablate.planning.analysis_keys import METRICS as NAMES
from ablate.planning.analysis_keys import is_metric
from ablate.report.formats.grid import GridCell
from ablate.shared.errors import UserError, unknown
from ablate.shared.metrics import Metric

if TYPE_CHECKING:
    from ablate.analysis.stats import Estimate

SHOW = (
    *("accuracy", "gain", "ci", "pm", "population", "n", "verdict"),
    *("params", "macs", "cost", "chosen", "paper"),
)
INTERVALS = ("ci", "pm")  # [+0.21, +1.03], and its half: 0.62 ± 0.41
DEFAULT = ("accuracy", "gain", "ci", "n", "verdict")
OTHERS = "others"  # heads what is in no family or group, below what is in one


def check_show(text: str, own: Collection[str] = ()) -> tuple[str, ...]:
    """Split and check the parts of `--show`. `own`: metrics of the sweep at hand. Raises UserError
    for an unknown part."""
    show = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in show or (text,):
        if part not in (*SHOW, *own) and not is_metric(part):
            raise unknown("--show", part, (*SHOW, *(own or NAMES)))
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

    def cell(self, entry: Entry) -> GridCell:
        bold = self.is_gain and entry.verdict == "helps"
        return GridCell(self.text(entry), bold=bold, number=self.number, verdict=self.is_verdict)


def parts_of(table: Table, show: Sequence[str]) -> Iterator[ShownPart]:
    ci = interval_form(show)
    for name in show:
        if name in _PARTS:
            yield from _PARTS[name](table, ci)
        elif name not in INTERVALS:
            yield _other(table, name, ci)


def interval_form(show: Sequence[str]) -> str:
    """The form of intervals, one of INTERVALS; "" for none."""
    return next((name for name in INTERVALS if name in show), "")


def bracket(form: str, alpha: float) -> str:
    """What a heading says of the intervals below it."""
    return {"ci": f" [{level(alpha)} CI]", "pm": f" ± {level(alpha)} CI", "": ""}[form]


def interval(estimate: Estimate | None, metric: Metric, sign: bool = False, ci: str = "ci") -> str:
    """Write "+0.62 [+0.21, +1.03]", or "+0.62 ± 0.41" for `pm`; without an interval "+0.62 [-]" and
    "+0.62 ± -"; without an estimate "-". A t interval is symmetric; one that was cut where an
    accuracy ends has both ends in any form."""
    if estimate is None:
        return "-"
    mean = metric.text(estimate.mean, sign)
    if not ci:
        return mean
    if estimate.low is None or estimate.high is None:
        return f"{mean} [-]" if ci == "ci" else f"{mean} ± -"
    half = (estimate.high - estimate.low) / 2
    if ci == "pm" and math.isclose(estimate.low + half, estimate.mean, rel_tol=1e-9, abs_tol=1e-9):
        return f"{mean} ± {metric.text(half)}"
    return f"{mean} {metric.interval(estimate.low, estimate.high, sign)}"


def _value_heading(metric: Metric, alpha: float, ci: str) -> str:
    return " ".join(filter(None, (metric.key, metric.unit))) + bracket(ci, alpha)


def _accuracy(table: Table, ci: str) -> Iterator[ShownPart]:
    def text(entry: Entry) -> str:
        return interval(entry.accuracy, table.of(), ci=ci) + _never(entry.never, entry)

    yield ShownPart(_value_heading(table.of(), table.alpha, ci), text)


def _other(table: Table, name: str, ci: str) -> ShownPart:
    if name == table.metric:
        return next(_accuracy(table, ci))

    def text(entry: Entry) -> str:
        if (other := entry.others.get(name)) is None:
            return "-"
        return interval(other.estimate, table.of(name), ci=ci) + _never(other.never, entry)

    return ShownPart(_value_heading(table.of(name), table.alpha, ci), text)


def _never(never: Sequence[int], entry: Entry) -> str:
    return f"; {len(never)}/{entry.planned} never" if never else ""


def _gain(table: Table, ci: str) -> Iterator[ShownPart]:
    def text(entry: Entry) -> str:
        is_baseline = entry.row == table.baseline
        return "" if is_baseline else interval(entry.gain, table.of(), True, ci)

    yield ShownPart(table.of().change + bracket(ci, table.gain_alpha), text, is_gain=True)


def _population(table: Table, ci: str) -> Iterator[ShownPart]:
    """The interval alone: the gain is the one for new seeds."""

    def text(entry: Entry) -> str:
        found = entry.population
        text = table.of().interval(found.low, found.high, True) if found else ""
        return text or "-" * (entry.row != table.baseline)

    yield ShownPart(f"for new images, too [{level(table.gain_alpha)} CI]", text)


def _n(table: Table, ci: str) -> Iterator[ShownPart]:
    yield ShownPart("n", lambda entry: str(entry.n))


def _verdict(table: Table, ci: str) -> Iterator[ShownPart]:
    heading = "verdict" if table.complete else "runs"
    yield ShownPart(heading, lambda entry: state(entry, table), number=False, is_verdict=True)


def state(entry: Entry, table: Table) -> str:
    """Write the verdict, and the numbers of diverged, collapsed and missing runs."""
    parts = []
    if entry.row == table.baseline:
        parts.append("baseline")
    elif entry.verdict is not None:
        parts.append(entry.verdict)
    return "; ".join([*parts, *fates(entry)]) or "-"


def fates(entry: Entry) -> Iterator[str]:
    """Count the runs without a usual end: "1/3 diverged"."""
    for seeds, what in (
        (entry.diverged, "diverged"),
        (entry.collapsed, "collapsed"),
        (entry.missing, "missing"),
    ):
        if seeds:
            yield f"{len(seeds)}/{entry.planned} {what}"


def _params(table: Table, ci: str) -> Iterator[ShownPart]:
    yield ShownPart("params", lambda entry: short(entry.parameters))


def _macs(table: Table, ci: str) -> Iterator[ShownPart]:
    yield ShownPart("multiply-adds", lambda entry: short(entry.multiply_adds))


def _cost(table: Table, ci: str) -> Iterator[ShownPart]:
    def of(text: Callable[[Cost], str]) -> Callable[[Entry], str]:
        return lambda entry: text(entry.cost) if entry.cost else "-"

    yield ShownPart("device-hours", of(lambda cost: f"{cost.device_s / 3600:.3g}"))
    yield ShownPart("s a run", of(lambda cost: f"{cost.run_s:.3g}"))
    yield ShownPart("images/s", of(lambda cost: short(cost.images_per_s)))
    yield ShownPart("peak memory", of(lambda cost: short(cost.peak_bytes, "B")))
    yield ShownPart("utilisation", of(lambda cost: _share(cost.utilisation)))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2g} %"


def _chosen(table: Table, ci: str) -> Iterator[ShownPart]:
    """Make a column for each searched key, with the chosen value of each search."""
    keys = dict.fromkeys(k for e in table.entries for choice in e.chosen for k in choice.params)

    def of(key: str) -> Callable[[Entry], str]:
        return lambda entry: ", ".join(setting(c.params[key]) for c in entry.chosen) or "-"

    for key in keys:
        yield ShownPart(key, of(key))


def _paper(table: Table, ci: str) -> Iterator[ShownPart]:
    def said(entry: Entry) -> str:
        gain = entry.against.said if entry.against else None
        return interval(gain, table.of(), True) if gain or entry.row != table.baseline else ""

    yield ShownPart(table.paper or "paper", _theirs(lambda a: a.published.said))
    if ci and any(entry.against and entry.against.said for entry in table.entries):
        yield ShownPart("gain, ± a 95 % CI", said)
    if any(_beside(entry, table) for entry in table.entries):
        yield ShownPart("beside it", lambda entry: _beside(entry, table), number=False)


def _theirs(text: Callable[[Against], str]) -> Callable[[Entry], str]:
    return lambda entry: text(entry.against) if entry.against else ""


INSIDE = {  # `Against.inside`, in a column of its own and in a line
    True: ("yes", "in our interval"),
    False: ("no", "outside our interval"),
    None: ("says nothing", "our interval says nothing"),
}


def paper_apart(table: Table) -> Iterator[ShownPart]:
    """The parts of `paper` one by one, each with a short text."""

    def less(value: float | None) -> str:
        return "" if value is None else table.of().text(value, True)

    yield ShownPart(table.paper or "paper", _theirs(lambda a: a.published.said))
    yield ShownPart("value minus it", _theirs(lambda a: less(a.value)))
    yield ShownPart("gain minus it", _theirs(lambda a: less(a.gain)))
    yield ShownPart("direction", _theirs(lambda a: (a.agreement or "").removesuffix(" direction")))
    yield ShownPart(
        "in our interval", _theirs(lambda a: INSIDE[a.inside][0] if a.agreement else "")
    )


def _beside(entry: Entry, table: Table) -> str:
    """Write "-0.34, gain +0.10" or "same direction, in our interval"."""
    if (against := entry.against) is None:
        return ""
    parts = []
    if against.value is not None:
        parts.append(table.of().text(against.value, True))
    if against.gain is not None:
        parts.append(f"gain {table.of().text(against.gain, True)}")
    if against.agreement is not None:
        parts += [against.agreement, INSIDE[against.inside][1]]
    return ", ".join(parts)


_PARTS: dict[str, Callable[[Table, str], Iterator[ShownPart]]] = {
    "accuracy": _accuracy,
    "gain": _gain,
    "population": _population,
    "n": _n,
    "verdict": _verdict,
    "params": _params,
    "macs": _macs,
    "cost": _cost,
    "chosen": _chosen,
    "paper": _paper,
}
