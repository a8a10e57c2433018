"""The study of docs/studies/patch-norm: its page says what its bundles hold, and they verify."""

import io
import json
import math
import re
import tarfile

import pytest
from conftest import REPOSITORY
from study_page import BLOCK, FOLDER, PAGE, PARTS, cost, runs, written

from ablate.analysis.paper import tables

MOST = 1_200_000  # bytes, compressed
DECIMAL = re.compile(r"[+-]?\d+\.\d+")


@pytest.mark.whole
@pytest.mark.parametrize("part", PARTS)
def test_a_bundle_verifies_and_prints_its_table_again(ask, part):
    code, text = ask("verify", str(FOLDER / part))
    assert (code, "nothing wrong" in text) == (0, True), text
    code, text = ask("table", "--from", str(FOLDER / part), "--format", "md", "--notes", "full")
    assert code == 0
    assert text == (FOLDER / part / "table.md").read_text()


def test_the_page_has_the_tables_of_the_bundles():
    assert written() == PAGE.read_text(), "python tests/study_page.py writes them"


def test_the_notes_of_the_tool_come_with_its_tables():
    shown = {
        (match[2], match[3].split()[0]) for match in BLOCK.finditer(PAGE.read_text()) if match[3]
    }
    assert shown == {(block, part) for block in ("table", "notes") for part in PARTS}


def numbers(text: str) -> set[float]:
    return {float(number) for number in DECIMAL.findall(text)}


def spreads(part: str) -> list[float]:
    """Return the standard deviation of a result between seeds, by which each gain was judged."""
    tree = json.loads((FOLDER / part / "table.json").read_text())
    gains = [entry["gain"] for column in tree["columns"] for entry in column["entries"]]
    return [gain["sd"] / math.sqrt(2) for gain in gains if gain and gain["sd"]]


def test_every_number_of_the_text_is_one_of_a_bundle_or_of_the_paper():
    page = PAGE.read_text()
    shown = numbers("".join(found[4] for found in BLOCK.finditer(page)))
    shown |= {n for part in PARTS for n in numbers((FOLDER / part / "table.md").read_text())}
    shown |= {round(spread, 2) for part in PARTS for spread in spreads(part)}
    rounded = {round(number, 1) for number in shown} | {abs(round(number, 1)) for number in shown}
    gains = {round(tables()["T1L"].gain("dpn", arch, "base"), 1) for arch in ("S/16", "S/32")}
    assert gains == {1.1, 1.9}
    hours = {round(runs(part).seconds.sum() / 3600, 1) for part in PARTS}
    forecast = numbers((FOLDER / "forecast.txt").read_text())
    told = numbers(BLOCK.sub("", page)) - {0.2}  # million parameters
    assert told - (shown | rounded | gains | hours | forecast) == set()
    [first] = re.findall(
        r"^A study that .*?\n\n", (REPOSITORY / "README.md").read_text(), re.M | re.S
    )
    assert numbers(first) <= rounded


def test_the_looks_of_the_text_are_those_of_the_ledger():
    lines = (FOLDER / PARTS[0] / "looks.jsonl").read_text().splitlines()
    decided = {
        column["n"]: set(column["decided"])
        for look in map(json.loads, lines)
        for column in look["columns"].values()
        if look["sweep"] == PARTS[0] and column["decided"]
    }
    assert set(decided) == {5, 8}
    assert decided[8] == {"Dual PatchNorm"}
    assert "at 8 seeds; ² at 5" in PAGE.read_text()


def test_what_the_repository_has_is_small():
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:xz") as archive:
        archive.add(FOLDER)
    assert memory.tell() < MOST
    assert cost().count("\n") == 3
