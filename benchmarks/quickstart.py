"""Does the quick start say the same again? Its table over and over, each time on fresh seeds.

    python benchmarks/quickstart.py [SETS] [--store FOLDER]

Trains the sweep on SETS (20) sets of seeds, none of which shares a seed with another or with the
sweep's own, and counts each variant's words. Aim: the word of the quick start in 19 of 20. With
--store what was trained is kept, and trained on where it was stopped. Half a minute a set on 2
idle cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from ablate.planning.expand import plan_from_words

NAME = "quickstart"
COMMAND = "import sys; from ablate.cli import main; main()"


def table(seeds: list[int], store: Path) -> Any:
    """The JSON of the table of these seeds, trained if need be: a sweep of its own, so that none
    is another's second look."""
    name = f"{NAME}-{seeds[0]}"
    words = ("sweep", NAME, f"seeds={seeds}".replace(" ", ""), "--as", name)
    _run(*words, "--store", str(store))
    return json.loads(_run("table", name, "--format", "json", "--store", str(store)))


def _run(*words: str) -> str:
    command = [sys.executable, "-c", COMMAND, *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="?", type=int, default=20)
    parser.add_argument("--store", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = given.store or Path(folder)
        own = list(plan_from_words([NAME], store=store)[0].seeds)
        size, first = len(own), max(own) + 1
        sets = [list(range(first + i * size, first + (i + 1) * size)) for i in range(given.sets)]
        own_table = table(own, store)
        tables = [table(seeds, store) for seeds in sets]
    print(f"{given.sets} sets of {size} seeds; the word of seeds {own[0]} to {own[-1]} first")
    for position, row in enumerate(own_table["rows"]):
        if row["label"] == own_table["baseline"]:
            continue
        entry, *entries = (t["columns"][0]["entries"][position] for t in (own_table, *tables))
        words = Counter(entry["verdict"] for entry in entries)
        word = entry["verdict"]
        others = ", ".join(f"{other} {n}" for other, n in words.most_common() if other != word)
        gains = [entry["gain"]["mean"] for entry in entries]
        halves = [(entry["gain"]["high"] - entry["gain"]["low"]) / 2 for entry in entries]
        print(
            f"{row['label']}: {word} {words[word]} of {given.sets}"
            + (f" ({others})" if others else "")
            + f"; gain {statistics.mean(gains):+.2f}, from {min(gains):+.2f} to {max(gains):+.2f}, "
            f"half-width {statistics.mean(halves):.2f} in the mean"
        )


if __name__ == "__main__":
    main()
