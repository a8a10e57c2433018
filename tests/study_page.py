"""Writes what the pages of docs/studies take from their bundles: python tests/study_page.py

A block stands between `<!-- NAME ... -->` and `<!-- end -->`. With `--reprint` the derived files of
the bundles (tables, figures, frames) are made anew from their raw files first: do this once a
change of the code changes a table.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pandas as pd
from conftest import REPOSITORY

from ablate.audit.bundle import Bundle
from ablate.audit.export import computing_versions, derived_files
from ablate.store.events import Look

BLOCK = re.compile(r"(<!-- (\w+)((?: \w+)*) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Study:
    """A page of docs/studies and the bundles of its sweeps, `parts`. `own_blocks` makes, by name,
    those blocks of the page that no other study has."""

    name: str
    parts: tuple[str, ...]
    own_blocks: Mapping[str, Callable[[], str]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The page, the bundles and what `plan` said beforehand."""
        return REPOSITORY / "docs" / "studies" / self.name

    @property
    def page(self) -> Path:
        """The page."""
        return self.folder / "README.md"

    def runs(self, part: str) -> pd.DataFrame:
        """Read the runs of a bundle, one a line."""
        return pd.read_csv(self.folder / part / "runs.csv")

    def table(self, part: str, *numbers: str) -> str:
        """Return these tables of a bundle, counted from 0, with their titles."""
        text = (self.folder / part / "table.md").read_text()
        tables = re.findall(r"^(?:\*\*[^\n]+\n\n)?\|.+?(?=\n\n)", text, re.MULTILINE | re.DOTALL)
        return "\n\n".join(tables[int(number)] for number in numbers)

    def notes(self, part: str) -> str:
        """Return the notes that the tool prints below the tables of a bundle."""
        text = (self.folder / part / "table.md").read_text()
        return "\n".join(re.findall(r"^- .+$", text, re.MULTILINE))

    def written(self) -> str:
        """Return the page with every block as its bundles have it now."""
        makers = {"table": self.table, "notes": self.notes, **self.own_blocks}

        def block(match: re.Match[str]) -> str:
            return f"{match[1]}{makers[match[2]](*match[3].split())}\n{match[5]}"

        return BLOCK.sub(block, self.page.read_text())


ROWS, TUNED, FACTORIAL = (
    "study_patch_norm",
    "study_patch_norm_tuned",
    "study_patch_norm_factorial",
)
CHANGES = ("LN before", "LN after", "patch 8", "depth 2")


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
    accuracies = 100 * PATCH_NORM.runs(FACTORIAL).groupby("row", sort=False).top1.mean()
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
    cells = PATCH_NORM.runs(ROWS).groupby(["row", "model.patch"], sort=False)
    for (row, patch), cell in cells[["gradnorm:embedding", "attention:mean"]].mean().iterrows():
        lines.append(f"| {row} | {patch} | {cell.iloc[0]:+.2f} | {cell.iloc[1]:.2f} |")
    return "\n".join(lines)


def cost() -> str:
    """Tabulate the seconds of a run by patch size: forecast, least, median."""
    lines = ["| patch | runs | forecast | least | median |", "|---|---:|---:|---:|---:|"]
    forecasts = re.findall(
        r"^ patch (\d) .*?(?:(\d+) min )?(\d+) s +20 planned",
        (PATCH_NORM.folder / "forecast.txt").read_text(),
        re.M,
    )
    for patch, minutes, seconds in forecasts:
        trained = PATCH_NORM.runs(ROWS)
        took = trained[trained["model.patch"] == int(patch)].seconds
        forecast = 60 * int(minutes or 0) + int(seconds)
        lines.append(
            f"| {patch} | {len(took)} | {forecast} | {took.min():.0f} | {took.median():.0f} |"
        )
    return "\n".join(lines)


def epochs() -> str:
    """Tabulate the mean validation accuracy over the seeds of a cell, after some epochs."""
    curves = pd.read_parquet(BATCHNORM_MLP.folder / "dnn_bn" / "curves.parquet")
    means = 100 * curves.groupby(["column", "row", "epoch"]).val_top1.mean().unstack()
    chosen = [1, 2, 5, 10, 15]
    lines = [
        f"| rate | network |{''.join(f' {epoch} |' for epoch in chosen)}",
        f"|---|---|{'---:|' * len(chosen)}",
    ]
    for (rate, row), accuracies in means[chosen].iterrows():
        numbers = "".join(f" {accuracy:.1f} |" for accuracy in accuracies)
        lines.append(f"| {rate} | {row} |{numbers}")
    return "\n".join(lines)


def courses(part: str) -> str:
    """Tabulate how some placements trained: means over the seeds that all rows have."""
    curves = pd.read_parquet(PLACEMENTS.folder / part / "curves.parquet")
    runs = PLACEMENTS.runs(part)
    shared_seeds = set.intersection(*runs.groupby("row").seed.agg(set))
    validation = 100 * (
        curves[curves.seed.isin(shared_seeds)].groupby(["row", "epoch"]).val_top1.mean().unstack()
    )
    losses = runs[runs.seed.isin(shared_seeds)].groupby("row")[["train_loss", "loss"]].mean()
    lines = [
        "| row | validation %, epoch 1 | epoch 2 | training loss | test loss |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in ("pre/pre", "post/post", "post/pre+post", "pre+post/post", "Dual PatchNorm"):
        first, second = validation.loc[row]
        train_loss, test_loss = losses.loc[row]
        lines.append(f"| {row} | {first:.1f} | {second:.1f} | {train_loss:.3f} | {test_loss:.3f} |")
    return "\n".join(lines)


def seconds(part: str) -> str:
    """Tabulate the seconds of the runs of a column of placements, and their device-hours."""
    took = PLACEMENTS.runs(part).seconds
    hours = took.sum() / 3600
    return "\n".join(
        [
            "| runs | least | median | greatest | device-hours |",
            "|---:|---:|---:|---:|---:|",
            f"| {len(took)} | {took.min():.0f} | {took.median():.0f} | {took.max():.0f} "
            f"| {hours:.1f} |",
        ]
    )


PATCH_NORM = Study(
    "patch-norm",
    (ROWS, TUNED, FACTORIAL),
    {"simple_effects": simple_effects, "probes": probes, "cost": cost},
)
BATCHNORM_MLP = Study("batchnorm-mlp", ("dnn_bn",), {"epochs": epochs})
PLACEMENTS = Study(
    "placements", ("study_placements_patch_8",), {"courses": courses, "seconds": seconds}
)
STUDIES = (PATCH_NORM, BATCHNORM_MLP, PLACEMENTS)


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
    for study in STUDIES:
        if "--reprint" in sys.argv[1:]:
            for part in study.parts:
                reprint(study.folder / part)
        study.page.write_text(study.written())
