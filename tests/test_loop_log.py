"""A past loop's log: how many of its keeps could be noise, by the runs of one code."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import refused
from scipy import stats

from ablate.analysis import LoopNoise
from ablate.audit import read_loop

HEAD = "commit\tval_bpb\tmemory_gb\tstatus\tdescription\n"
LOG = (
    f"{HEAD}a\t1.000\t44\tkeep\tbaseline\nb\t0.995\t44\tkeep\trate\n"
    "c\t1.010\t44\tdiscard\tgelu\nd\t0.000000\t0.0\tcrash\toom\n"
    "a\t1.002\t44\tdiscard\t\na\t0.998\t44\tdiscard\t\na\t1.001\t44\tdiscard\t\n"
    "e\t0.900\t44\tkeep\tdepth\n"
)


def greedy(rng: np.random.Generator, gains: np.ndarray, repeats: int) -> LoopNoise:
    """A loop that keeps whatever beats its record, by one run each; the first code is run again."""
    level, record = 0.0, rng.normal()
    codes, values, kept = ["0"], [record], [True]
    for number, gain in enumerate(gains, 1):
        value = level + gain + rng.normal()
        codes.append(str(number))
        values.append(value)
        kept.append(value > record)
        if value > record:
            level, record = level + gain, value
    codes += ["0"] * repeats
    values += rng.normal(size=repeats).tolist()
    return LoopNoise.of_runs(codes, values, kept + [False] * repeats)


@pytest.mark.parametrize(("proposals", "repeats"), [(1, 3), (40, 1), (40, 6), (120, 6)])
def test_a_loop_without_gains_seldom_has_a_keep_beyond_noise(proposals, repeats):
    rng = np.random.default_rng([proposals, repeats])
    loops = [greedy(rng, np.zeros(proposals), repeats) for _ in range(2000)]
    wrong = sum(any(keep.is_beyond for keep in loop.keeps) for loop in loops)
    assert stats.binomtest(wrong, len(loops), LoopNoise.alpha, "greater").pvalue > 0.001
    assert any(loop.could_be_noise for loop in loops)


def test_a_gain_far_above_the_noise_is_told_from_it():
    rng = np.random.default_rng(5)
    gains = np.zeros(30)
    gains[10] = 15.0
    loops = [greedy(rng, gains, 6) for _ in range(200)]
    told = sum(any(keep.is_beyond for keep in loop.keeps) for loop in loops)
    assert told > 180


def test_the_bound_is_that_of_student_for_the_proposals_of_the_log(tmp_path):
    (tmp_path / "results.tsv").write_text(LOG)
    tree = read_loop(tmp_path / "results.tsv").tree()
    spread = np.std([1.0, 1.002, 0.998, 1.001], ddof=1)
    assert tree["spread"] == pytest.approx(spread, rel=1e-12)
    assert (tree["metric"], tree["direction"]) == ("val_bpb", "less")
    counts = ("runs", "crashes", "proposals", "keeps", "could_be_noise", "repeated", "df")
    assert [tree[key] for key in counts] == [8, 1, 3, 2, 1, 1, 3]
    rate, depth = tree["kept"]
    bound = stats.t(3).ppf(1 - 0.05 / 3) * spread * np.sqrt(2)
    assert (rate["bound"], depth["bound"]) == pytest.approx((bound, bound), rel=1e-9)
    assert (rate["gain"], depth["gain"]) == pytest.approx((0.005, 0.095))
    assert (rate["beyond_noise"], depth["beyond_noise"]) == (False, True)
    assert (depth["place"], depth["text"], tree["needed"]) == ("line 9", "depth", None)


@pytest.mark.parametrize("again", ["", "a\t1.000\t44\tdiscard\tagain\n"], ids=["once", "one seed"])
def test_a_log_that_says_nothing_about_noise_says_what_it_lacks(shell, again):
    (shell.folder / "results.tsv").write_text(LOG.partition("c\t")[0] + again)
    document = json.loads(shell("import", "results.tsv", "--loop", "--format", "json").out)
    assert (document["could_be_noise"], document["keeps"]) == (None, 1)
    assert "seed" in document["needed"]
    assert not (shell.folder / "runs").exists()


def test_lines_of_json_with_other_columns_are_a_log(tmp_path):
    lines = [
        {"run": 1, "commit": "a", "metric": 0.5, "status": "keep", "description": "base"},
        {"run": 2, "commit": "b", "metric": 0.6, "status": "KEEP", "description": "x"},
        {"run": 3, "commit": "b", "metric": 0.61, "status": "checks_failed", "description": "x"},
    ]
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    tree = read_loop(file).tree()
    assert (tree["metric"], tree["direction"], tree["keeps"]) == ("metric", "more", 1)


def test_a_log_that_can_not_be_read_is_a_mistake(tmp_path):
    file = tmp_path / "results.tsv"
    for text, part in (
        (LOG.replace("commit", "row"), "commit"),
        (LOG.replace("crash", "exploded"), "exploded"),
        (f"{HEAD}a\t1.0\t44\tkeep\t\n", "--metric"),
    ):
        file.write_text(text)
        with refused(part):
            read_loop(file)
    lines = [{"commit": "a", "v": 1, "status": "keep"}, {"v": 0, "status": "crash"}]
    json_file = tmp_path / "log.jsonl"
    json_file.write_text("\n".join(map(json.dumps, lines)))
    assert read_loop(json_file, "v:more").tree()["crashes"] == 1
    json_file.write_text("\n".join(map(json.dumps, [*lines, {"v": 2, "status": "keep"}])))
    with refused("line 3: lacks"):
        read_loop(json_file, "v:more")
    file.write_text(LOG)
    with refused("val_bpc"):
        read_loop(file, "val_bpc:less")


@pytest.mark.parametrize(
    ("old", "new", "place", "remedy"),
    [
        ("0.995", "0,995", "line 3: val_bpb: ", "--decimal ,"),
        ("0.995", "", "line 3: val_bpb: ", "crash"),
        ("0.995", "-", "line 3: val_bpb: ", "crash"),
        ("0.995", "nan", "line 3: val_bpb: ", "crash"),
        ("1.010", "", "line 4: val_bpb: ", "crash"),
    ],
)
def test_a_run_without_a_number_is_refused_by_line(tmp_path, old, new, place, remedy):
    """Else a keep would be no keep, and the next gain be measured from an earlier code."""
    file = tmp_path / "results.tsv"
    file.write_text(LOG.replace(old, new))
    for metric in (None, "val_bpb:less"):
        with refused(place) as caught:
            read_loop(file, metric)
        assert remedy in str(caught.value)
        assert "--where" not in str(caught.value)  # which --loop does not take


def test_a_run_that_crashed_or_diverged_needs_no_number(tmp_path):
    file = tmp_path / "results.tsv"
    for crash in ("", "-", "0,0"):
        file.write_text(LOG.replace("0.000000", crash))
        assert read_loop(file).noise.proposals == 3
    file.write_text(LOG.replace("1.010", "nan"))  # it diverged, and was discarded
    assert read_loop(file).noise.proposals == 2


def test_where_no_keep_could_be_noise_no_words_are_about_such_keeps(tmp_path):
    file = tmp_path / "results.tsv"
    for text, noise in ((LOG.replace("0.995", "0.950"), 0), (LOG, 1)):
        file.write_text(text)
        log = read_loop(file)
        assert log.noise.could_be_noise == noise
        [line] = [line for line in log.lines() if line.startswith("of 2 keeps")]
        assert ("from it" in line) == bool(noise)


def test_a_log_is_read_by_the_options_of_its_form_and_no_others(shell):
    file = shell.folder / "results.tsv"
    file.write_text(LOG)
    words = ("import", "results.tsv", "--loop", "--format", "json")
    plain = shell(*words).out
    file.write_text("# a loop\n" + LOG.replace(".", ",").replace("gelu", "gelü"), "latin-1")
    form = ("--decimal", ",", "--comment", "#", "--encoding", "latin-1")
    tree, plain_tree = json.loads(shell(*words, *form).out), json.loads(plain)
    for document in (tree, plain_tree):
        for keep in document["kept"]:
            del keep["place"]
    assert tree == plain_tree
    assert json.loads(shell(*words, "--seed", "s", code=2).out)["place"] == "--seed"
