"""A published table through our own code: its means and +-, our intervals, verdicts and formats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ablate.report.across import verdict_of
from ablate.report.captions import Footnotes, names
from ablate.report.paper import Beside, PaperTable, as_printed, find, printed_numbers
from ablate.report.table import Against, Entry, Table, TableColumn, TableRow

if TYPE_CHECKING:
    from ablate.stats import Estimate

WHERE = "paper:"  # `ablate table paper:T1L`
SHOW = ("paper", "gain", "ci", "n", "verdict")
TRAININGS = {"T1L": 3}  # a printed mean is of; else one, whatever is printed behind +-
ALPHA = 0.05


def published(name: str) -> Table:
    """The published table as ours: each gain with Welch's interval from the printed +-, read as
    standard errors. Raises UserError for a table that is not in the file."""
    table = find(name)
    n = TRAININGS.get(name, 1)
    footnotes = Footnotes()
    columns = tuple(_published_column(table, label, n, footnotes) for label in table.columns)
    return Table(
        sweep=WHERE + name,
        title=f"{table.source}, {name}, as published",
        metric="top1",
        baseline=table.baseline,
        seeds=tuple(range(n)),
        family="column",
        complete=True,
        alpha=ALPHA,
        gain_alpha=ALPHA,
        rows=tuple(TableRow(row, None, ()) for row in table.rows),
        columns=columns,
        caption=tuple(_caption(table, n)),
        notes=tuple(_means(table)),
        footnotes=tuple(footnotes.numbers),
        paper="printed",
    )


def _published_column(table: PaperTable, label: str, n: int, footnotes: Footnotes) -> TableColumn:
    from ablate import stats

    entries = []
    base = table.cells.get((table.baseline, label))
    for row in table.rows:
        printed = table.cells.get((row, label))
        if printed is None and row != table.baseline:
            continue
        gain, theirs = None, table.gain(row, label)
        if theirs is not None:
            gain = stats.Estimate(theirs, None, None, n)
            if n > 1 and printed and base:
                gain = stats.welch_of_means(
                    float(printed.value),
                    float(printed.pm),
                    float(base.value),
                    float(base.pm),
                    n,
                    ALPHA,
                )
        accuracy = None
        if printed and not table.over:
            accuracy = _read(float(printed.value), float(printed.pm or 0), n)
        verdict = verdict_of(gain, None, True) if gain else None
        entries.append(
            Entry(
                row=row,
                column=label,
                planned=n,
                values={},
                missing=(),
                diverged=(),
                collapsed=(),
                accuracy=accuracy,
                gain=gain,
                pool="",
                verdict=verdict,
                footnotes=footnotes.of([printed.note] if printed and printed.note else []),
                against=Against(
                    Beside(
                        table=f"{table.source} {table.name}",
                        row=row,
                        column=label,
                        printed=as_printed(table, printed, None),
                        value=accuracy.mean if accuracy else None,
                        pm=float(printed.pm) if printed and printed.pm else None,
                        gain=theirs,
                        differs="",
                    ),
                    None,
                ),
            )
        )
    return TableColumn(label, label, tuple(entries), 1, None, None, 0, None, (), ())


def _read(mean: float, pm: float, n: int) -> Estimate:
    """A printed mean, its +- read as s / sqrt(n)."""
    from ablate import stats

    if n < 2 or not pm:
        return stats.Estimate(mean, None, None, n)
    # Student's t of one mean is Welch's of its difference from a constant.
    gain = stats.welch_of_means(mean, pm, 0.0, 0.0, n, ALPHA)
    return stats.Estimate(mean, gain.low, gain.high, n, gain.sd)


def _caption(table: PaperTable, n: int) -> Iterator[str]:
    if table.over:
        yield f"As printed: {table.metric}, in points over {table.over}."
    elif n > 1:
        yield (
            f"As printed: {table.metric} in %, means of {n} trainings. Their +- fit standard "
            f"errors, s / sqrt(n), of values rounded to 0.1 and no 95 % interval: read so, each "
            f"gain over {table.baseline} has Welch's 95 % interval, of one contrast."
        )
    else:
        yield (
            f"As printed: {table.metric} in %. One training a value, whatever its +- is over: no "
            f"interval of a gain, no verdict."
        )
    of: dict[str, list[str]] = {}
    for label, (_, dataset, regime) in table.columns.items():
        of.setdefault(f"{regime}, {dataset}", []).append(label)
    for what, labels in of.items():
        yield f"{names(labels, len(labels))}: {what}."


def _means(table: PaperTable) -> Iterator[str]:
    """The mean gain of each regime, beside what the text says of it."""
    import numpy as np

    from ablate import stats

    claims = [p for p in printed_numbers() if p.metric == "mean_gain" and p.source == table.source]
    groups: dict[tuple[str, str], list[str]] = {}
    for label, (_, dataset, regime) in table.columns.items():
        groups.setdefault((dataset, regime), []).append(label)
    claimed = set()
    for (dataset, regime), labels in groups.items():
        for row in table.rows:
            gains = {label: table.gain(row, label) for label in labels}
            known = {label: gain for label, gain in gains.items() if gain is not None}
            if len(known) < 2:
                continue
            mean = stats.mean_interval(np.array(list(known.values())), ALPHA)
            said = ""
            for claim in claims:
                matches = claim.dataset == dataset and regime.startswith(claim.regime)
                if matches and claim.variant == row and claim not in claimed:
                    claimed.add(claim)
                    right = abs(float(claim.value) - mean.mean) < 0.05 + 1e-9
                    verb = "rounds it to" if right else "is wrong to say"
                    said = f" The text {verb} {claim.value}."
            yield (
                f"{row}, {regime}: mean gain {mean.mean:+.2f} over {names([*known])} "
                f"[{mean.low:+.2f}, {mean.high:+.2f} if architectures were a sample].{said}"
            )
