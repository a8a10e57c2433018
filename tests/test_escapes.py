"""What an eager user does after a look ends in a note, or in nothing: fewer seeds, an edited file,
another sweep of the same runs, an unfinished table. The commands themselves, on trainings that take
no time."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import scipy.stats
from conftest import Shell

from ablate.analysis import english

pytestmark = pytest.mark.whole

TRAINER = """
from pathlib import Path


def main(settings, run):
    if run.seed >= int(Path(__file__).with_name("last").read_text()):
        raise ValueError("asked for")
    noise = run.rng("noise", settings["level"]).normal()
    run.result(score=0.5 + 0.002 * settings["level"] + 0.003 * noise, other=noise)
"""
DECLARED = """
name: gauge:main
keys: {level: 0}
metrics:
  score: {direction: more, unit: "%", range: [0, 1]}
  other: {direction: less}
fork_safe: true
"""
FILE = """
base: {trainer: gauge}
baseline: plain
variants:
  - plain: {}
  - low: {trainer.level: 1}
  - middle: {trainer.level: 4}
  - high: {trainer.level: 7}
seeds: 3
"""
EVERY = "trainer.level=0,1,2,3,4,5,6,7,8,9"
BEST = "trainer.level=0,9"
INLINE = "launcher=inline"
ALSO = "Verdicts on these runs were also read in {}, so the chance of a false verdict on some "
COUNTED = "all variants that were read are counted."


def also(sweep, n):
    """Return the beginning of the note on verdicts that were read in another sweep."""
    return ALSO.format(f"sweep {sweep} (n = {n})")


def trainer(folder: Path) -> Shell:
    (folder / "conf" / "trainer").mkdir(parents=True)
    (folder / "conf" / "trainer" / "gauge.yaml").write_text(DECLARED)
    (folder / "gauge.py").write_text(TRAINER)
    (folder / "last").write_text("100")
    return Shell(folder)


@pytest.fixture
def gauge(tmp_path) -> Shell:
    return trainer(tmp_path)


@pytest.fixture(scope="module")
def driven(tmp_path_factory) -> Shell:
    """Nine rows, of which the verdicts at five seeds were read, as `all`."""
    shell = trainer(tmp_path_factory.mktemp("driven"))
    sweep(shell, "all", EVERY, seeds=5)
    return shell


@pytest.fixture
def read(driven, tmp_path) -> Shell:
    """A copy of it."""
    return Shell(shutil.copytree(driven.folder, tmp_path / "read"))


def sweep(shell: Shell, name: str, *words: str, seeds: int, code: int = 0) -> str:
    """Drive a sweep; what it printed, on one line."""
    words = ("trainer=gauge", *words, f"seeds={seeds}", INLINE, "--as", name)
    return flat(shell("sweep", *words, code=code).out)


def flat(text: str) -> str:
    return " ".join(text.split())


def among_nine(*sweeps: str) -> str:
    """The note on rows that were read among nine, in these sweeps."""
    values = {"columns": [], "sweeps": sweeps, "noun": "variant", "compared": 9, "contrasts": 9}
    return english.write("looks.among", values)


def facts(shell: Shell, *words: str) -> dict[tuple[str, str], str]:
    """(row, quantity) -> value or words, of a table of one column."""
    lines = shell.facts(*words)
    return {(one["row"], one["quantity"]): one["value"] or one["text"] for one in lines}


def verdicts(shell: Shell, *words: str) -> set[str]:
    return {row for row, quantity in facts(shell, *words) if quantity == "verdict"}


# --- Fewer seeds --------------------------------------------------------------------------------


def test_fewer_seeds_after_more(read):
    told = sweep(read, "fewer", EVERY, seeds=3)
    assert also("all", 5) in told
    assert re.search(r"on some variant is about [4-8] %\.", told)
    assert len(verdicts(read, "fewer")) == 9
    assert verdicts(read, "fewer", "--strict") == set()
    assert len(verdicts(read, "all", "--strict")) == 9  # the most seeds
    assert also("fewer", 3) in flat(read("table", "all").out)


def test_fewer_seeds_of_the_same_name(read):
    assert also("all", 5) in sweep(read, "all", EVERY, "--replace", seeds=3)


# --- Another sweep of the same runs -------------------------------------------------------------


def test_the_best_row_alone_is_judged_among_nine(read):
    """Its interval is the t interval of the level that nine share, computed here."""
    alone = sweep(read, "best", BEST, seeds=5)
    assert among_nine("all") in alone
    left_out = ", ".join(f"-level={level}" for level in range(1, 9))
    assert f" had been read in all, at n = 5: rows: {left_out}; {COUNTED}" in alone
    found = facts(read, "best", "--show", "accuracy")
    gain = float(found["level=9", "gain"])
    score, baseline_score = (float(found[f"level={level}", "score"]) for level in (9, 0))
    assert gain == pytest.approx(score - baseline_score)
    half = float(found["level=9", "gain.high"]) - gain
    se = float(found["level=9", "gain.sd"]) / 5**0.5
    assert half / se == pytest.approx(scipy.stats.t.ppf(1 - 0.05 / 18, 4))
    assert found["", "contrasts"] == "9"
    assert verdicts(read, "best", "--strict") == set()


def test_the_best_row_alone_with_more_seeds(read):
    told = sweep(read, "longer", BEST, seeds=8)
    assert among_nine("all") in told
    assert also("all", 5) in told


def test_a_row_that_was_not_read_before_is_a_family_of_its_own(read):
    told = sweep(read, "other", "trainer.level=0,20", seeds=5)
    shared = {"columns": [], "variants": 10, "families": 2, "alpha": 0.05}
    assert english.write("looks.shared-baseline", shared) in told
    assert "intervals here are as wide" not in told
    assert verdicts(read, "other", "--strict") == {"level=20"}
    assert facts(read, "other")["", "contrasts"] == "1"


def test_looks_that_give_out_seeds_count_what_was_read_and_are_counted(read):
    told = flat(read("sweep", "trainer=gauge", BEST, "--until", "7", INLINE, "--as", "u").out)
    assert among_nine("all") in told
    assert "until: none -> [5, 7]" in told
    looks = [look for look in recorded(read) if look["sweep"] == "u"]
    assert {look["columns"][""]["contrasts"] for look in looks} == {9}
    fixed = sweep(read, "fixed", BEST, seeds=6)
    others = sorted({look["columns"][""]["n"] for look in looks} - {5})
    told = "".join(f", {n} (sweep u)" for n in others)
    assert ALSO.format(f"sweeps all (n = 5), u (n = 5){told}") in fixed


def recorded(shell: Shell) -> list[dict]:
    lines = (shell.folder / "runs" / "looks.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


# --- An edited file -----------------------------------------------------------------------------


def test_an_edited_file(gauge):
    file = gauge.folder / "photos.yaml"
    file.write_text(FILE)
    assert "also read" not in flat(gauge("sweep", "photos.yaml", INLINE).out)
    for old, new, note in (
        ("  - low: {trainer.level: 1}\n", "", "rows: -low; all "),
        ("seeds: 3", "seeds: 3\nanalysis: {alpha: 0.1}", "analysis.alpha: 0.05 -> 0.1. "),
        ("seeds: 3", "seeds: 3\nanalysis: {metric: other}", "metric: score -> other. "),
        ("low:", "small:", ""),  # another label is no change
    ):
        file.write_text(FILE.replace(old, new))
        told = flat(gauge("sweep", "photos.yaml", INLINE, "--replace").out)
        assert ("Changed after verdicts had been read, at n = 3: " in told) == bool(note)
        assert note in told
    (gauge.folder / "pictures.yaml").write_text(FILE.replace("seeds: 3", "seeds: 4"))
    told = flat(gauge("sweep", "pictures.yaml", INLINE).out)
    assert also("photos", 3) in told


# --- An unfinished table ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Shell:
    """Of five seeds three finished, then four."""
    shell = trainer(tmp_path_factory.mktemp("begun"))
    for seeds in (3, 4):
        (shell.folder / "last").write_text(str(seeds))
        told = sweep(shell, "g", EVERY, "--retry", "failed", seeds=5, code=1)
        assert "UNFINISHED" in told
        assert "[-]" in told
        assert not re.search("helps|hurts|can't tell|correlat", told)
    (shell.folder / "last").write_text("100")
    peeks = [(look["planned"], look["columns"][""]["n"]) for look in recorded(shell)]
    assert peeks == [([5], 3), ([5], 4)]
    return shell


@pytest.fixture
def unfinished(begun, tmp_path) -> Shell:
    """A copy of it."""
    return Shell(shutil.copytree(begun.folder, tmp_path / "unfinished"))


def test_an_unfinished_table_that_is_stopped(unfinished):
    stopped = sweep(unfinished, "stopped", EVERY, seeds=4)
    assert (
        "Means of these runs were also seen in sweep g (n = 3), before all had a result, so the "
        "chance of a false verdict" in stopped
    )
    fewer = sweep(unfinished, "few rows", BEST, "--retry", "failed", seeds=5)
    assert among_nine("g", "stopped") in fewer
    assert ALSO.format("sweep stopped (n = 4), and means in sweep g (n = 3, 4)") in fewer


def test_an_unfinished_table_that_is_finished_as_planned_has_no_note(unfinished):
    told = sweep(unfinished, "g", EVERY, "--retry", "failed", seeds=5)
    assert "of 9 help" in told
    assert not re.search("also read|also seen|Changed after", told)


# --- Carried ------------------------------------------------------------------------------------


def test_a_bundle_and_a_merged_store_know_what_was_read(read):
    sweep(read, "best", BEST, seeds=3)
    read("export", "best", "out")
    words = ("--format", "tidy")
    bundled = read("table", "--from", "out", *words).out
    assert bundled == (read.folder / "out/table.tidy.csv").read_text()
    assert bundled == read("table", "best", *words).out
    assert among_nine("all") in bundled
    assert "nothing wrong" in read("verify", "out").out
    (read.folder / "there").mkdir()
    there = Shell(trainer(read.folder / "there").folder, 1000)
    for source in ("runs", "out"):
        there("merge", f"../{source}", "--store", source)
        told = flat(there("table", "best", "--store", source).out)
        assert among_nine("all") in told
        assert also("all", 5) in told
        assert "nothing wrong" in there("verify", "best", "--store", source).out
