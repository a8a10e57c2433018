"""Writes what docs/studies/patch-norm/README.md takes from its bundles: python tests/study_page.py

A block is what stands between `<!-- NAME ... -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re

import pandas as pd
from conftest import REPOSITORY

FOLDER = REPOSITORY / "docs" / "studies" / "patch-norm"
PAGE = FOLDER / "README.md"
PARTS = ("study_patch_norm", "study_patch_norm_tuned", "study_patch_norm_factorial")
BLOCK = re.compile(r"(<!-- (\w+)((?: \w+)*) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def runs(sweep: str) -> pd.DataFrame:
    return pd.read_csv(FOLDER / sweep / "runs.csv")


def table(sweep: str, *numbers: str) -> str:
    """These tables of a bundle's, with their titles."""
    text = (FOLDER / sweep / "table.md").read_text()
    every = re.findall(r"^(?:\*\*[^\n]+\n\n)?\|.+?(?=\n\n)", text, re.MULTILINE | re.DOTALL)
    return "\n\n".join(every[int(number)] for number in numbers)


def probes() -> str:
    """Means over seeds of the first part."""
    lines = ["| row | patch | embedding | attention |", "|---|---|---:|---:|"]
    found = runs(PARTS[0]).groupby(["row", "model.patch"], sort=False)
    for (row, patch), cell in found[["gradnorm:embedding", "attention:mean"]].mean().iterrows():
        lines.append(f"| {row} | {patch} | {cell.iloc[0]:+.2f} | {cell.iloc[1]:.2f} |")
    return "\n".join(lines)


def cost() -> str:
    """Seconds of a run by the patch: forecast, the least, the median."""
    lines = ["| patch | runs | forecast | least | median |", "|---|---:|---:|---:|---:|"]
    told = re.findall(
        r"^ patch (\d) .*?(?:(\d+) min )?(\d+) s +20 planned",
        (FOLDER / "forecast.txt").read_text(),
        re.M,
    )
    for patch, minutes, seconds in told:
        every = runs(PARTS[0])
        found = every[every["model.patch"] == int(patch)].seconds
        forecast = 60 * int(minutes or 0) + int(seconds)
        lines.append(
            f"| {patch} | {len(found)} | {forecast} | {found.min():.0f} | {found.median():.0f} |"
        )
    return "\n".join(lines)


def written() -> str:
    """The page with every block as its bundles have it now."""
    makers = {"table": table, "probes": probes, "cost": cost}

    def block(found: re.Match[str]) -> str:
        return f"{found[1]}{makers[found[2]](*found[3].split())}\n{found[5]}"

    return BLOCK.sub(block, PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(written())
