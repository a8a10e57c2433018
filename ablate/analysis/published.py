"""Reads a published table as one of ours: its means and +-, our intervals, verdicts and formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ablate.analysis import stats
from ablate.analysis.captions import names
from ablate.analysis.judging import verdict_of
from ablate.analysis.paper import PaperTable, Printed, as_printed, find, printed_numbers, varying
from ablate.analysis.table import Against, Entry, Note, Table, TableColumn, TableRow, notes
from ablate.shared.metrics import DEFAULT, TASKS

WHERE = "paper:"  # `ablate table paper:T1L`
SHOW = ("paper", "gain", "ci", "n", "verdict")
# What a printed mean is of; else one, whatever is printed behind +-. At least three by the text;
# Table 3's by its protocol (App. E), Table 5's by App. G.
TRAININGS = {"T1L": 3, "T2R": 3, "T3": 3, "T4": 3, "T5": 10}
TRANSFERS = ("T2R", "T3", "T4", "T5")  # which the paper prints wide
ALPHA = 0.05


def read_published(name: str) -> Table:
    """Make a published table as one of ours. Each gain has Welch's interval twice: with the printed
    +- read as standard errors, and read as 95 % intervals. Raises UserError for an unknown name."""
    table = find(name)
    n = TRAININGS.get(name, 1)
    columns = tuple(_published_column(table, label, n) for label in table.columns)
    wide = name in TRANSFERS
    return Table(
        sweep=WHERE + name,
        title=f"{table.source}, {name}, as published",
        trained_on="",
        data="",
        metric=TASKS[DEFAULT].metrics[0].key,
        baseline=table.baseline,
        seeds=tuple(range(n)),
        family="column",
        complete=True,
        alpha=ALPHA,
        gain_alpha=ALPHA,
        rows=tuple(TableRow(row, None) for row in table.rows),
        columns=columns,
        notes=(
            *notes("warning", (*_readings(columns), *_means(table))),
            *notes("caption", (*_caption(table, n), *([_columns(table)] * wide))),
            *notes("detail" if wide else "caption", _by_regime(table)),
            *(
                Note("footnote", table.cells[row, label].note, (row, label))
                for label in table.columns
                for row in table.rows
                if (row, label) in table.cells and table.cells[row, label].note
            ),
        ),
        paper="printed",
        groups=tuple(dict.fromkeys(column.group for column in columns if column.group)),
        wide=wide,
    )


def _published_column(table: PaperTable, label: str, n: int) -> TableColumn:
    from scipy.special import stdtrit

    entries = []
    base = table.cells.get((table.baseline, label))
    for row in table.rows:
        printed = table.cells.get((row, label))
        if printed is None and row != table.baseline:
            continue
        gain, said, theirs = None, None, table.gain(row, label)
        if theirs is not None:
            gain = stats.Estimate(theirs, None, None, n)
            if n > 1 and printed and base and printed.pm and base.pm:
                gain = _welch(printed, base, n, 1.0)
                said = _welch(printed, base, n, float(stdtrit(n - 1, 1 - ALPHA / 2)))
        accuracy = None
        if printed and not table.over:
            accuracy = _read(float(printed.value), float(printed.pm or 0), n)
        verdict = verdict_of(gain, None, True) if gain else None
        entries.append(
            Entry(
                row=row,
                column=label,
                planned=n,
                accuracy=accuracy,
                gain=gain,
                verdict=verdict,
                against=Against(
                    table.figure(row, label, theirs, as_printed(table, printed, None)),
                    None,
                    said=said,
                ),
            )
        )
    place = table.places[label]
    column = TableColumn(label, label, tuple(entries), 1, "", None, None, 0, ())
    return replace(column, arch=place.arch, wide=place.heading, group=table.group(label))


def _welch(printed: Printed, base: Printed, n: int, width: float) -> stats.Estimate:
    """Compute the gain between two means whose +- is `width` standard errors."""
    return stats.welch_of_means(
        float(printed.value),
        float(printed.pm) / width,
        float(base.value),
        float(base.pm) / width,
        n,
        ALPHA,
    )


def _read(mean: float, pm: float, n: int) -> stats.Estimate:
    """A printed mean, its +- read as s / sqrt(n)."""
    if n < 2 or not pm:
        return stats.Estimate(mean, None, None, n)
    # Student's t of one mean is Welch's of its difference from a constant.
    gain = stats.welch_of_means(mean, pm, 0.0, 0.0, n, ALPHA)
    return stats.Estimate(mean, gain.low, gain.high, n, gain.sd)


def _caption(table: PaperTable, n: int) -> Iterator[str]:
    if table.over:
        yield f"As printed: {table.metric}, in points over {table.over}."
    elif n > 1:
        yield f"As printed: {table.metric} in %, means of {n} trainings."
        if table.name in TRANSFERS:
            yield "The trainings may share one pre-training: their spread is of the steps after it."
        if any(cell.pm for cell in table.cells.values()):
            yield (
                f"The printed +- has two readings. The text calls it a 95 % interval over at least "
                f"3 runs (gain, ± a 95 % CI); in Tables 1 and 2 it fits a standard error, s / "
                f"sqrt(n), of values rounded to 0.1 (gain, and the verdict). In both readings each "
                f"gain over {table.baseline} has Welch's 95 % interval, of one contrast."
            )
        else:
            yield "No +- is printed, so gains have no interval and no verdict."
    else:
        yield (
            f"As printed: {table.metric} in %. Each value comes from one training, so its +- is "
            f"not over trainings; gains have no interval and no verdict."
        )


def _by_regime(table: PaperTable) -> Iterator[str]:
    """State the training of each column; of columns that differ in their data alone nothing."""
    of: dict[str, list[str]] = {}
    regimes = {regime for _, _, regime in table.columns.values()}
    for label, (_, dataset, regime) in table.columns.items():
        of.setdefault(f"{regime}, {dataset}", []).append(label)
    if not (table.by_data and len(regimes) == 1):
        for what, labels in of.items():
            yield f"{names(labels, len(labels))}: {what}."


def _columns(table: PaperTable) -> str:
    """State the training of all columns at once: "JFT {220k, 1.1M} steps, jft4b->imagenet1k"."""
    datasets = {dataset for _, dataset, _ in table.columns.values()}
    words = []
    for first, others in varying(regime for _, _, regime in table.columns.values()):
        parts = [word.rstrip(",") for word in (first, *others)]
        words.append(f"{{{', '.join(parts)}}}{',' * first.endswith(',')}" if others else first)
    told = " ".join(words)
    return f"Columns: {told}, {'each a dataset' if len(datasets) > 1 else datasets.pop()}."


def _readings(columns: Sequence[TableColumn]) -> Iterator[str]:
    """Count the gains that each reading of +- tells from 0."""
    entries = [entry for column in columns for entry in column.entries]
    said = [(e.column, e.against.said) for e in entries if e.against and e.against.said]
    fitted = [(e.column, e.gain) for e in entries if e.gain and e.against and e.against.said]
    if said:
        yield (
            f"With +- as 95 % intervals {_clear(said)} clear 0, as standard errors "
            f"{_clear(fitted)}."
        )


def _clear(gains: Sequence[tuple[str, stats.Estimate]]) -> str:
    """Return "all 10 gains", or "9 of 10 (not S/16, +1.10 +- 1.13)", of gains with an interval."""
    known = [
        (column, gain.mean, gain.high - gain.mean)
        for column, gain in gains
        if gain.high is not None
    ]
    unclear = [
        f"{column}, {mean:+.2f} +- {half:.2f}" for column, mean, half in known if half >= abs(mean)
    ]
    if not unclear:
        return f"all {len(known)} gains"
    return f"{len(known) - len(unclear)} of {len(known)} (not {'; '.join(unclear)})"


def _means(table: PaperTable) -> Iterator[str]:
    """State the mean gain of each regime or group, its range by rounding, and the claim of the
    text."""
    import numpy as np

    claims = [p for p in printed_numbers() if p.metric == "mean_gain" and p.source == table.source]
    claimed = set()
    for what, over, labels in _averaged(table):
        _, dataset, regime = table.columns[labels[0]]
        for row in table.rows:
            gains = {label: table.gain(row, label) for label in labels}
            known = {label: gain for label, gain in gains.items() if gain is not None}
            if len(known) < 2:
                continue
            mean = stats.mean_interval(np.array(list(known.values())), ALPHA)
            low, high = (mean.mean + sign * table.rounding for sign in (-1, 1))
            said = ""
            for claim in claims:
                matches = claim.dataset == dataset and regime.startswith(claim.regime)
                if matches and claim.variant == row and claim not in claimed:
                    claimed.add(claim)
                    right = abs(float(claim.value) - mean.mean) < 0.05 + 1e-9
                    verb = "rounds it to" if right else "says"
                    said = f" The text {verb} {claim.value}."
            sampled = ""
            if mean.low is not None and mean.high is not None:
                sampled = f" [{mean.low:+.2f}, {mean.high:+.2f} if {over} were a sample]"
            archs = names([table.places[label].arch for label in known])
            which = f"{len(known)} datasets" if over == "datasets" else archs
            yield (
                f"{row}, {what}: mean gain {mean.mean:+.2f} over {which}, from {low:+.2f} to "
                f"{high:+.2f} by rounding{sampled if len(known) > 2 else ''}.{said}"
            )


def _averaged(table: PaperTable) -> Iterator[tuple[str, str, list[str]]]:
    """(what, over what, labels) of every mean: of the datasets of a group, by architecture; else
    of architectures, by regime."""
    found: dict[tuple[str, str], list[str]] = {}
    for label, (arch, dataset, regime) in table.columns.items():
        group = table.group(label)
        found.setdefault((arch, group) if group else (dataset, regime), []).append(label)
    for (one, other), labels in found.items():
        if group := table.group(labels[0]):
            yield f"{one}, {group}", "datasets", labels
        else:
            yield other, "architectures", labels
