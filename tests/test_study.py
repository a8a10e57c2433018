"""The studies of docs/studies: a page says what its bundles hold, and they verify."""

import io
import json
import math
import re
import statistics
import tarfile

import pandas as pd
import pytest
from conftest import REPOSITORY
from study_page import BATCHNORM_MLP, BLOCK, PATCH_NORM, PLACEMENTS, ROWS, STUDIES, cost

from ablate.analysis.paper import tables

MOST = 1_200_000  # bytes of a study, compressed
DECIMAL = re.compile(r"[+-]?\d+\.\d+")
BUNDLES = [pytest.param(study.folder / part, id=part) for study in STUDIES for part in study.parts]
by_study = pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)


@pytest.mark.whole
@pytest.mark.parametrize("bundle", BUNDLES)
def test_a_bundle_verifies_and_prints_its_table_again(ask, bundle):
    code, text = ask("verify", str(bundle))
    assert (code, "nothing wrong" in text) == (0, True), text
    code, text = ask("table", "--from", str(bundle), "--format", "md", "--notes", "full")
    assert code == 0
    assert text == (bundle / "table.md").read_text()


@by_study
def test_the_page_has_the_tables_of_the_bundles(study):
    assert study.written() == study.page.read_text(), "python tests/study_page.py writes them"


@by_study
def test_the_notes_of_the_tool_come_with_its_tables(study):
    shown = {
        (match[2], match[3].split()[0])
        for match in BLOCK.finditer(study.page.read_text())
        if match[2] in ("table", "notes")
    }
    assert shown == {(block, part) for block in ("table", "notes") for part in study.parts}


def numbers(text: str) -> set[float]:
    return {float(number) for number in DECIMAL.findall(text)}


def numbers_of_bundles(study) -> set[float]:
    """Return what the blocks of a page and the tables of its bundles have, exactly and rounded."""
    shown = numbers("".join(block[4] for block in BLOCK.finditer(study.page.read_text())))
    shown |= {n for part in study.parts for n in numbers(table_of(study, part))}
    return shown | rounded(shown)


def rounded(shown: set[float]) -> set[float]:
    tenths = {round(number, 1) for number in shown}
    return tenths | {abs(number) for number in tenths}


def table_of(study, part: str) -> str:
    return (study.folder / part / "table.md").read_text()


def numbers_of_text(study) -> set[float]:
    without_blocks = BLOCK.sub("", study.page.read_text())
    return numbers(re.sub(r"\(https:[^)]+\)", "", without_blocks))


def spreads(part: str) -> list[float]:
    """Return the standard deviation of a result between seeds, by which each gain was judged."""
    tree = json.loads((PATCH_NORM.folder / part / "table.json").read_text())
    gains = [entry["gain"] for column in tree["columns"] for entry in column["entries"]]
    return [gain["sd"] / math.sqrt(2) for gain in gains if gain and gain["sd"]]


def test_every_number_of_the_text_is_one_of_a_bundle_or_of_the_paper():
    known = numbers_of_bundles(PATCH_NORM)
    known |= {round(spread, 2) for part in PATCH_NORM.parts for spread in spreads(part)}
    gains = {round(tables()["T1L"].gain("dpn", arch, "base"), 1) for arch in ("S/16", "S/32")}
    assert gains == {1.1, 1.9}
    known |= gains
    known |= {round(PATCH_NORM.runs(part).seconds.sum() / 3600, 1) for part in PATCH_NORM.parts}
    known |= numbers((PATCH_NORM.folder / "forecast.txt").read_text())
    assert numbers_of_text(PATCH_NORM) - {0.2} - known == set()  # million parameters


def test_every_number_of_the_readme_on_the_studies_is_one_of_a_bundle():
    [first] = re.findall(
        r"^Two studies .*?\n\n", (REPOSITORY / "README.md").read_text(), re.M | re.S
    )
    assert len(numbers(first)) == 8
    assert numbers(first) <= rounded(
        numbers_of_bundles(PATCH_NORM) | numbers_of_bundles(PLACEMENTS)
    )


@pytest.mark.parametrize("study", [BATCHNORM_MLP, PLACEMENTS], ids=lambda study: study.name)
def test_every_number_of_the_text_is_one_of_its_bundle(study):
    known = numbers_of_bundles(study) | {0.2}  # million parameters
    if study is PLACEMENTS:  # compared with the first study
        known |= numbers_of_bundles(PATCH_NORM)
    assert numbers_of_text(study) - known == set()


def test_a_note_says_which_look_a_noisy_baseline_widened_and_why_a_row_is_judged_alone():
    """At 8 seeds the baseline's gap varies 2.1 times as much as images suggest. At 12 seeds both
    rows that are left are judged by their own spread, so the baseline widens neither."""
    bundle = PLACEMENTS.folder / PLACEMENTS.parts[0]
    table = json.loads((bundle / "table.json").read_text())
    noises = [note["values"] for note in table["caption"] if note["key"] == "look.noise"]
    assert [(noise["seeds"], round(noise["ratio"], 1)) for noise in noises] == [(8, 2.1)]
    [column] = table["columns"]
    own = [entry["row"] for entry in column["entries"] if entry["pool"] == "vague"]
    assert own == ["post/post", "post/pre+post"]
    right = {entry["row"]: entry["values"] for entry in column["entries"]}
    for row in own:
        gains = [right[row][seed] - right["pre/pre"][seed] for seed in right[row]]
        [entry] = [entry for entry in column["entries"] if entry["row"] == row]
        assert entry["gain"]["sd"] == pytest.approx(statistics.stdev(gains))


def test_batchnorm_is_ahead_after_every_epoch():
    curves = pd.read_parquet(BATCHNORM_MLP.folder / "dnn_bn" / "curves.parquet")
    means = curves.groupby(["column", "epoch", "row"]).val_top1.mean().unstack()
    assert len(means) == 30
    assert (means.DNNBN > means.DNN).all()


def test_the_looks_of_the_text_are_those_of_the_ledger():
    lines = (PATCH_NORM.folder / ROWS / "looks.jsonl").read_text().splitlines()
    decided = {
        column["n"]: set(column["decided"])
        for look in map(json.loads, lines)
        for column in look["columns"].values()
        if look["sweep"] == ROWS and column["decided"]
    }
    assert set(decided) == {5, 8}
    assert decided[8] == {"Dual PatchNorm"}
    assert "at 8 seeds; ² at 5" in PATCH_NORM.page.read_text()


@by_study
def test_what_the_repository_has_is_small(study):
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:xz") as archive:
        archive.add(study.folder)
    assert memory.tell() < MOST


def test_every_patch_size_has_its_cost():
    assert cost().count("\n") == 3
