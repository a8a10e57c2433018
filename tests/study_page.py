"""Writes what docs/studies/patch-norm/README.md takes from its bundles: python tests/study_page.py

A block stands between `<!-- NAME ... -->` and `<!-- end -->`. With `--reprint` the derived files of
the bundles (tables, figures, frames) are made anew from their raw files first: do this once a
change of the code changes a table.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pandas as pd
from conftest import REPOSITORY

from ablate.audit.bundle import Bundle
from ablate.audit.export import computing_versions, derived_files
from ablate.store.events import Look

FOLDER = REPOSITORY / "docs" / "studies" / "patch-norm"
PAGE = FOLDER / "README.md"
ROWS, TUNED, FACTORIAL = PARTS = (
    "study_patch_norm",
    "study_patch_norm_tuned",
    "study_patch_norm_factorial",
)
BLOCK = re.compile(r"(<!-- (\w+)((?: \w+)*) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
CHANGES = ("LN before", "LN after", "patch 8", "depth 2")


def runs(sweep: str) -> pd.DataFrame:
    """Read the runs of a bundle, one a line."""
    return pd.read_csv(FOLDER / sweep / "runs.csv")


def table(sweep: str, *numbers: str) -> str:
    """Return these tables of a bundle, counted from 0, with their titles."""
    text = (FOLDER / sweep / "table.md").read_text()
    tables = re.findall(r"^(?:\*\*[^\n]+\n\n)?\|.+?(?=\n\n)", text, re.MULTILINE | re.DOTALL)
    return "\n\n".join(tables[int(number)] for number in numbers)


def notes(sweep: str) -> str:
    """Return the notes that the tool prints below the tables of a bundle."""
    text = (FOLDER / sweep / "table.md").read_text()
    return "\n".join(re.findall(r"^- .+$", text, re.MULTILINE))


def simple_effects() -> str:
    """Tabulate the gain of each change in each of the 8 combinations of the other three."""
    lines = ["| change | mean | least | greatest |", "|---|---:|---:|---:|"]
    for change in CHANGES:
        effects = list(simple_effects_of(change))
        mean = sum(effects) / len(effects)
        lines.append(f"| {change} | {mean:+.2f} | {min(effects):+.2f} | {max(effects):+.2f} |")
    return "\n".join(lines)


def simple_effects_of(change: str) -> Iterator[float]:
    """Yield the points that a change adds to each combination of the others, over both seeds."""
    accuracies = 100 * runs(FACTORIAL).groupby("row", sort=False).top1.mean()
    others = [name for name in CHANGES if name != change]
    for chosen in product((False, True), repeat=len(others)):
        present = {name for name, is_on in zip(others, chosen, strict=True) if is_on}
        yield accuracies[cell_name({*present, change})] - accuracies[cell_name(present)]


def cell_name(present: set[str]) -> str:
    """Return the label of the cell with these changes."""
    if len(present) == len(CHANGES):
        return "all"
    return " + ".join(name for name in CHANGES if name in present) or "none"


def probes() -> str:
    """Tabulate means over seeds of what was measured in the first part."""
    lines = ["| row | patch | embedding | attention |", "|---|---|---:|---:|"]
    cells = runs(ROWS).groupby(["row", "model.patch"], sort=False)
    for (row, patch), cell in cells[["gradnorm:embedding", "attention:mean"]].mean().iterrows():
        lines.append(f"| {row} | {patch} | {cell.iloc[0]:+.2f} | {cell.iloc[1]:.2f} |")
    return "\n".join(lines)


def cost() -> str:
    """Tabulate the seconds of a run by patch size: forecast, least, median."""
    lines = ["| patch | runs | forecast | least | median |", "|---|---:|---:|---:|---:|"]
    forecasts = re.findall(
        r"^ patch (\d) .*?(?:(\d+) min )?(\d+) s +20 planned",
        (FOLDER / "forecast.txt").read_text(),
        re.M,
    )
    for patch, minutes, seconds in forecasts:
        trained = runs(ROWS)
        took = trained[trained["model.patch"] == int(patch)].seconds
        forecast = 60 * int(minutes or 0) + int(seconds)
        lines.append(
            f"| {patch} | {len(took)} | {forecast} | {took.min():.0f} | {took.median():.0f} |"
        )
    return "\n".join(lines)


def written() -> str:
    """Return the page with every block as its bundles have it now."""
    makers = {
        "table": table,
        "notes": notes,
        "simple_effects": simple_effects,
        "probes": probes,
        "cost": cost,
    }

    def block(match: re.Match[str]) -> str:
        return f"{match[1]}{makers[match[2]](*match[3].split())}\n{match[5]}"

    return BLOCK.sub(block, PAGE.read_text())


class _Reprinted(Bundle):
    """A bundle that records the look of its table, as the store that it came from did."""

    def add_look(self, look: Look) -> None:
        with open(self.looks, "a") as file:
            file.write(f"{json.dumps(look)}\n")


def reprint(folder: Path) -> None:
    """Make the derived files of a bundle anew from its raw files, and seal it."""
    bundle = _Reprinted(folder)
    plan, histories = bundle.read_unsealed()
    results = bundle.recompute(plan, histories)
    files = derived_files(bundle, plan, histories, results, bundle, computing_versions())
    for name, content in files.items():
        (bundle.root / name).write_bytes(content)
    bundle.write_manifest()


if __name__ == "__main__":
    if "--reprint" in sys.argv[1:]:
        for part in PARTS:
            reprint(FOLDER / part)
    PAGE.write_text(written())
