"""Computes the trends of a table: how gains grow with a number that columns set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ablate.analysis.across import Arrays, Summary, SummaryLine, noisy
from ablate.analysis.captions import count
from ablate.planning.cell import series
from ablate.planning.declaration import trend_lacks
from ablate.shared.errors import UserError

Verdicts = Mapping[tuple[str, str], str | None]  # (row, column) -> the verdict of the table
STEPS = {"linear": "unit", "log2": "doubling"}


def trends(arrays: Arrays, verdicts: Verdicts) -> tuple[Summary, ...]:
    """Compute a block for every declared trend. `verdicts` say where a row is told from the
    baseline; they are repeated there, not tested again."""
    found = (
        _trend(arrays, name, contrast["across"], contrast["trend"], verdicts)
        for name, contrast in arrays.plan.analysis.contrasts.items()
        if "trend" in contrast
    )
    return tuple(block for block in found if block.lines)


def _trend(arrays: Arrays, name: str, key: str, scale: str, verdicts: Verdicts) -> Summary:
    import numpy as np

    from ablate.analysis import stats

    plan = arrays.plan
    settings = [column.settings for column in plan.columns]
    if lacks := trend_lacks({"across": key, "trend": scale}, settings):
        raise UserError(f"analysis.contrasts.{name}: {lacks}")
    groups = series(settings, key)
    method = arrays.method(len(plan.rows) - 1, len(groups))
    lines: list[SummaryLine] = []
    ratios = []
    for group in groups:
        rest = {k: v for k, v in plan.columns[group[0]].settings.items() if k != key}
        numbers = np.array([plan.columns[c].settings[key] for c in group], dtype=float)
        gains = stats.trends(
            arrays.y[group],
            numbers if scale == "linear" else np.log2(numbers),
            arrays.baseline,
            method,
            arrays.unstable[group],
            arrays.images(group),
        )
        for r, (row, found) in enumerate(zip(plan.rows, gains, strict=True)):
            if found is None:
                continue
            over = [group[c] for c in found.columns]
            ratios += [found.ratio] * found.tripped
            lines.append(
                arrays.line(
                    row.label,
                    ", ".join(f"{k}={v}" for k, v in rest.items()),
                    found.gain,
                    given=not arrays.omitted[over][:, [r, arrays.baseline]].any(),
                    margin=False,
                    words=stats.TREND,
                    columns=tuple(plan.columns[c].label for c in over),
                    where=where(
                        numbers.tolist(),
                        [verdicts.get((row.label, plan.columns[c].label)) for c in group],
                        key,
                    ),
                )
            )
    change, step = plan.metric.change, f"{STEPS[scale]} of {key}"
    of = sorted({len(line.columns) for line in lines})
    notes = [
        f"slope of the least-squares line over {' or '.join(map(str, of))} columns a row, within "
        f"a seed first",
        f"+: the {change} grows with {key}",
        *filter(None, [noisy(ratios)]),
        *([f"without {', '.join(arrays.void)}: its baseline is unstable"] if arrays.void else []),
    ]
    return Summary(
        kind="trend",
        name=name,
        title=f"Trend {name}: {change} per {step}",
        note="; ".join(notes),
        contrasts=method.contrasts,
        lines=tuple(lines),
    )


def where(numbers: Sequence[float], verdicts: Sequence[str | None], key: str) -> str:
    """Say in which columns, in the order of their numbers, a row is told from the baseline: "helps
    from model.depth=6 on"; "" where no column has a verdict."""
    if not any(verdicts):
        return ""
    told = dict.fromkeys(v for v in verdicts if v in ("helps", "hurts", "higher", "lower"))
    clauses = []
    for word in told:
        at = [i for i, verdict in enumerate(verdicts) if verdict == word]
        unbroken = len(at) > 1 and at[-1] - at[0] == len(at) - 1
        if len(at) == len(numbers):
            clauses.append(f"{word} at all {count(len(numbers), 'value')} of {key}")
        elif unbroken and at[-1] == len(numbers) - 1:
            clauses.append(f"{word} from {key}={numbers[at[0]]:g} on")
        elif unbroken and at[0] == 0:
            clauses.append(f"{word} up to {key}={numbers[at[-1]]:g}")
        else:
            clauses.append(f"{word} at {key}={', '.join(f'{numbers[i]:g}' for i in at)}")
    return "; ".join(clauses) or f"no verdict of a difference at any value of {key}"
