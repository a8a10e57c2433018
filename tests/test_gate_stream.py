"""A stream of proposals, driven as Python drives it: words, seeds, sealed looks, copies of code.
The gains are known, since the trainer's score is a number in its file plus a draw of the seed."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path

import pytest
from conftest import refused
from support.streams import EVALUATION, WORDS, write_trainer

from ablate.api import GateOptions, Stream
from ablate.audit.streams import stream_conflicts, verify_stream
from ablate.planning import ComposedCode
from ablate.shared import Failure, TryAgain
from ablate.store import Store, StreamFile, streams
from ablate.store.code_copies import MANIFEST


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's folder, in which this process works."""
    monkeypatch.chdir(tmp_path)
    write_trainer(tmp_path)
    return tmp_path


def start(name="idea", **options) -> Stream:
    return Stream.start(name, *WORDS, rules=GateOptions(**options))


def events(kind=None):
    content = Path("runs/streams/idea.jsonl").read_text()
    lines = [json.loads(line) for line in content.splitlines()]
    return [line for line in lines if kind in (None, line["kind"])]


def test_a_gain_is_kept_and_measured_afresh(folder):
    stream = start()
    write_trainer(folder, gain=5.0)
    answer = stream.attempt(note="five")
    assert (answer.word, answer.exit_code, answer.runs, answer.baseline_runs) == ("keep", 0, 4, 8)
    assert answer.interval[0] < answer.gain < answer.interval[1]
    assert 3 < answer.gain < 7
    write_trainer(folder, gain=4.0)
    worse = stream.attempt()
    assert (worse.word, worse.exit_code, worse.against) == ("discard", 3, 1)
    log = stream.log()
    assert (log.kept, log.discarded, log.expected_false_keeps) == (1, 1, 0.02)
    assert [baseline.number for baseline in log.baselines] == [0, 1]
    assert log.baselines[1].mean == pytest.approx(5.0, abs=1.5)
    assert log.runs == 4 + 8 + worse.runs + worse.baseline_runs
    folders = {path.name for path in (folder / "runs" / "runs").iterdir()}
    assert len(folders) == log.runs  # every run is of one code and counted once
    store = Store(folder / "runs")
    plans = [store.read_plan(path.stem) for path in store.plans()]
    seeds = [run.seed for plan in plans for run in plan.runs()]
    assert len(set(seeds)) == log.runs  # a lucky seed passes to no other code


def test_gains_are_those_of_the_results(folder):
    stream = start()
    write_trainer(folder, gain=2.0)
    answer = stream.attempt()
    store, file = Store(folder / "runs"), StreamFile(Store(folder / "runs"), "idea")
    record = file.record()
    means = []
    for name, count in (("idea.1", answer.runs), ("idea.0.baseline", answer.baseline_runs)):
        plan = store.read_plan(name)
        results = [store.rundir(run.id).read_result() for run in plan.runs()][:count]
        means.append(statistics.fmean(result["test"]["score"] for result in results))
    assert answer.gain == pytest.approx(means[0] - means[1], abs=1e-12)
    assert record.proposals[0].looks[-1].gain == answer.gain


def test_the_same_content_has_the_same_answer_and_no_new_runs(folder):
    stream = start()
    write_trainer(folder, gain=5.0)
    kept = stream.attempt(note="first")
    count = len(events())
    assert stream.attempt(note="another name") == kept
    write_trainer(folder, gain=2.0)
    discarded = stream.attempt()
    assert stream.attempt() == discarded
    assert len(events("open")) == 2 < count


def test_another_stream_gives_the_same_content_the_same_runs(folder):
    first, second = start(), start("other")
    write_trainer(folder, gain=2.0)
    answers = first.attempt(), second.attempt()
    assert answers[0].gain == answers[1].gain
    assert answers[0].word == answers[1].word


def test_settings_are_proposals_over_those_of_the_baseline(folder):
    stream = start()
    kept = stream.attempt("trainer.rate=6")
    assert kept.word == "keep"
    write_trainer(folder, gain=5.0)
    assert stream.attempt().word == "keep"  # with the kept rate
    assert stream.attempt("trainer.rate=0").word == "discard"
    with refused(r"^seeds=3"):
        stream.attempt("seeds=3")


def test_the_baseline_is_trained_from_its_kept_bytes(folder):
    stream = start()
    write_trainer(folder, gain=5.0)
    stream.attempt()
    (folder / "toy.py").write_text("raise SystemExit('edited')")
    (folder / "toy.py").unlink()
    write_trainer(folder, gain=12.0)  # the baseline's first fresh runs are of the edited folder's
    answer = stream.attempt()
    assert answer.word == "keep"
    assert stream.log().baselines[1].mean == pytest.approx(5.0, abs=1.5)
    assert b"GAIN = 5.0" in stream.files(1)["toy.py"]
    (folder / "back").mkdir()
    stream.restore(0, folder / "back")
    assert "GAIN = 0.0" in (folder / "back" / "toy.py").read_text()
    assert (folder / "back" / "evaluation.py").read_text() == EVALUATION
    with refused(r"^idea: code"):
        stream.files(7)


def test_a_copy_that_was_edited_is_named_and_never_trained(folder):
    stream = start()
    (copy,) = (folder / "runs" / "code").iterdir()
    (copy / "toy.py").write_text("GAIN = 0")
    write_trainer(folder, gain=5.0)
    with pytest.raises(Failure, match=r"toy.py"):
        stream.attempt()


@pytest.mark.parametrize("path", ["../esc.py", "/esc.py", "a/../../esc.py"])
def test_a_copy_of_others_writes_nothing_outside(folder, path):
    copies = StreamFile(Store(folder / "runs"), "idea").copies
    with pytest.raises(Failure) as raised:
        copies.keep({path: b""}, folder)
    assert path in str(raised.value)
    name = copies.keep({"a.py": b"1"}, folder)
    manifest = copies.root / name / MANIFEST
    tree = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**tree, "links": [path]}))
    with pytest.raises(Failure) as raised:
        copies.prepare(name, folder)
    assert path in str(raised.value)


def test_a_copy_of_another_name_is_none(folder):
    copies = StreamFile(Store(folder / "runs"), "idea").copies
    name = copies.keep({"a.py": b"1"}, folder)
    (copies.root / name).rename(copies.root / ("0" * 16))
    with pytest.raises(Failure) as raised:
        copies.files("0" * 16)
    assert "0" * 16 in str(raised.value)
    (copies.root / name).mkdir()
    (copies.root / name / "mine").touch()  # so that no rename replaces it
    with pytest.raises(Failure):
        copies.keep({"a.py": b"1"}, folder)


def test_code_that_is_edited_while_it_is_read_is_no_proposal(folder, monkeypatch):
    stream = start()
    write_trainer(folder, gain=1.0)
    of_folder = ComposedCode.of_folder

    def edited(*arguments):
        composed = of_folder(*arguments)
        write_trainer(folder, gain=2.0)
        return composed

    monkeypatch.setattr(ComposedCode, "of_folder", edited)
    with pytest.raises(TryAgain) as raised:
        stream.attempt()
    assert "toy.py" in str(raised.value)
    assert stream.log().proposals == 0


def test_a_code_that_fixes_its_seed_is_undecided_and_named(folder):
    stream = start()
    write_trainer(folder, gain=4.0, seed="7")
    answer = stream.attempt()
    assert (answer.word, answer.reason, answer.exit_code, answer.runs) == (
        "undecided",
        "bits",
        4,
        4,
    )
    assert events("open")[0]["pool"] == [0.0, 0]
    write_trainer(folder, gain=1.0)
    stream.attempt()
    assert events("open")[1]["pool"] == [0.0, 0]  # equal runs say nothing of the spread


def test_pinned_code_may_not_change(folder):
    stream = start(pins=["evaluation.py:eval*", "evaluation.py:OFFSET", "conf/trainer/*.yaml"])
    (folder / "evaluation.py").write_text(EVALUATION.replace("OFFSET = 0.0", "OFFSET = 9.0"))
    with refused(r"^evaluation.py:OFFSET"):
        stream.attempt()
    (folder / "evaluation.py").write_text(EVALUATION + "\n\nevaluate = lambda value: 9.0\n")
    with refused(r"^evaluation.py:evaluate"):
        stream.attempt()
    (folder / "evaluation.py").write_text("# a remark\n" + EVALUATION)
    assert stream.attempt().proposal == 1  # a remark changes nothing that is pinned
    with refused(r"nothing.py"):
        start("other", pins=["nothing.py"])
    with refused(r"OFFSET, evaluate.*'evalute'.*'evaluate'"):
        start("other", pins=["evaluation.py:evalute"])


def test_other_metrics_are_another_stream(folder):
    stream = start()
    yaml = folder / "conf" / "trainer" / "toy.yaml"
    yaml.write_text(yaml.read_text().replace("score: {direction: more", "score: {direction: less"))
    with refused(r"^metrics:"):
        stream.attempt("trainer.rate=1")


def test_a_run_that_fails_leaves_the_proposal_open(folder):
    stream = start()
    good = (folder / "toy.py").read_text()
    (folder / "toy.py").write_text(good.replace("run.log(1", "1 / 0; run.log(1"))
    with pytest.raises(Failure, match=r"ZeroDivisionError"):
        stream.attempt()
    log = stream.log()
    assert (log.open, log.proposals, log.expected_false_keeps) == (1, 1, 0.01)
    write_trainer(folder, gain=5.0)
    assert stream.attempt().proposal == 2


def test_a_run_that_diverges_discards(folder):
    stream = start()
    write_trainer(folder, gain=float("nan"))
    text = (folder / "toy.py").read_text().replace("GAIN = nan", "GAIN = float('nan')")
    (folder / "toy.py").write_text(text)
    answer = stream.attempt()
    assert (answer.word, answer.reason, answer.gain) == ("discard", "diverged", None)


def test_more_runs_go_on_with_what_was_undecided(folder):
    stream = start(margin=0.1, most=4)
    for tenths in range(3, 20):
        write_trainer(folder, gain=1 + tenths / 1000)
        answer = stream.attempt()
        if answer.word == "undecided":
            break
    assert (answer.word, answer.reason, answer.runs) == ("undecided", "runs", 4)
    more = stream.attempt(most=8)
    assert more.proposal == answer.proposal
    assert more.runs == 8
    sealed = [event["runs"] for event in events("look") if event["proposal"] == more.proposal]
    assert sealed == [1, 2, 4, 8]  # the look at 4 is not taken again
    store = Store(folder / "runs")
    assert verify_stream(store, StreamFile(store, "idea")).findings == []


def test_a_simplification_is_kept_against_the_last_gain(folder):
    stream = start()
    write_trainer(folder, gain=0.001)
    simpler = stream.attempt(simplify=3.0)
    assert simpler.word == "keep"
    write_trainer(folder, gain=0.002)
    stream.attempt(simplify=3.0)
    opened = events("open")
    assert [event["against"] for event in opened] == [0, 1]
    assert [event["measure"] for event in opened] == [0, 0]


def test_a_look_is_sealed_once_by_two_processes(folder):
    """The other one has read a longer baseline, and so has another word."""
    stream = start()
    write_trainer(folder, gain=1.5)
    seal, sealed_looks = Stream._seal, []

    def twice(self, number, fields):
        sealed_looks.append(fields["runs"])
        seal(self, number, dict(fields))
        seal(self, number, {**fields, "word": "undecided", "reason": "runs"})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stream, "_seal", twice)
        stream.attempt()
    assert [look["runs"] for look in events("look")] == sealed_looks
    assert len(sealed_looks) > 1


def test_the_same_content_against_another_baseline_has_other_runs(folder):
    """A was kept, then B; A again has no second use of runs that chose it."""
    stream = start()
    for gain in (5.0, 11.0, 5.0):
        write_trainer(folder, gain=gain)
        stream.attempt()
    record = StreamFile(Store(folder / "runs"), "idea").record()
    assert [proposal.word for proposal in record.proposals] == ["keep", "keep", "discard"]
    seeds = [record.proposal_seeds(number, 4) for number in (1, 2, 3)]
    seeds += [record.baseline_seeds(number, 4) for number in (0, 1, 2)]
    assert len({seed for few in seeds for seed in few}) == 24
    write_trainer(folder)
    again = start("other")
    write_trainer(folder, gain=5.0)
    again.attempt()
    other = StreamFile(Store(folder / "runs"), "other").record()
    assert other.proposal_seeds(1, 4) == seeds[0]


def test_a_simplification_gives_no_second_chance(folder):
    """The measure is the same, and so is the answer."""
    stream = start()
    write_trainer(folder, gain=-1.0)
    discarded = stream.attempt()
    assert discarded.word == "discard"
    write_trainer(folder, gain=0.001)
    assert stream.attempt(simplify=3.0).word == "keep"
    write_trainer(folder, gain=-1.0)
    assert stream.attempt().proposal == discarded.proposal


def test_pairs_are_of_the_same_seeds_side_by_side(folder):
    stream = start(pairs=True)
    write_trainer(folder, gain=4.0)
    answer = stream.attempt()
    assert answer.word == "keep"
    assert answer.gain == pytest.approx(4.0, abs=1e-9)  # the same draw in both of a pair
    plan = Store(folder / "runs").read_plan("idea.1")
    assert [run.cell.row for run in plan.runs()] == ["baseline", "proposal"] * answer.runs
    assert stream.log().runs == 12 + 2 * answer.runs


def test_a_holdout_is_reported_at_a_keep_and_read_by_no_rule(folder):
    stream = start(holdout=["other"])
    write_trainer(folder, gain=5.0)
    assert stream.attempt().holdout == {"other": (5.0, 0.0)}
    assert stream.log().answers[0].holdout == {"other": (5.0, 0.0)}


def test_a_keep_whose_baseline_has_changed_is_stale(folder):
    stream = start()
    write_trainer(folder, gain=5.0)
    second = folder / "second"
    second.mkdir()
    write_trainer(second, gain=6.0)
    open_both(stream, folder, second)
    assert stream.attempt().word == "keep"
    write_trainer(folder, gain=6.0)
    answer = stream.attempt()
    assert (answer.word, answer.exit_code, answer.against) == ("stale", 5, 0)
    assert stream.log().kept == 1
    again = stream.attempt()  # a new proposal, against the baseline of now
    assert (again.proposal, again.against) == (3, 1)


def open_both(stream, folder, second):
    """Open two proposals against the first baseline, as two processes do at once."""
    code = (folder / "toy.py").read_text()
    failing = pytest.MonkeyPatch()
    with failing.context() as patch:
        patch.setattr(Stream, "_judge", interrupted)
        for text in (code, (second / "toy.py").read_text()):
            (folder / "toy.py").write_text(text)
            with pytest.raises(KeyboardInterrupt):
                stream.attempt()
    (folder / "toy.py").write_text(code)


def interrupted(*arguments):
    raise KeyboardInterrupt("stopped")


def test_a_sealed_look_can_not_be_edited(folder):
    stream = start()
    write_trainer(folder, gain=0.5)
    stream.attempt()
    path = folder / "runs" / "streams" / "idea.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])  # a line that a crash cut off is none
    assert stream.log().open == 1
    assert stream.attempt().word == "discard"
    path.write_bytes(whole.replace(b'"discard"', b'"keep"'))
    with pytest.raises(Failure, match=r"line"):
        stream.log()


def test_the_same_start_changes_nothing_and_another_is_refused(folder):
    start()
    count = len(events())
    start()
    assert len(events()) == count
    with refused(r"^idea:"):
        start(margin=2.0)
    for wrong in ({"most": 5}, {"margin": -1.0}, {"level": 0.7}, {"metric": "loss"}):
        with refused(f"^{next(iter(wrong))}"):
            start("other", **wrong)
    with refused(r"^stream:"):
        Stream("nothing")


# --- The store ------------------------------------------------------------------------------------


@pytest.fixture
def kept(folder):
    """A stream with a kept proposal and a discarded one."""
    stream = start()
    write_trainer(folder, gain=5.0)
    assert stream.attempt().word == "keep"
    write_trainer(folder, gain=1.0)
    assert stream.attempt().word == "discard"
    return stream


def test_verify_judges_every_look_again(kept, folder, run):
    assert run("verify", "idea")
    path = folder / "runs" / "streams" / "idea.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    last_seal = ""
    for line in lines:
        del line["seal"]
        if line["kind"] == "look" and line["word"] == "discard":
            line["gain"] += 0.001
        last_seal = line["seal"] = streams.seal_after(last_seal, line)
    path.write_text("".join(f"{json.dumps(line, sort_keys=True)}\n" for line in lines))
    store = Store(folder / "runs")
    findings = verify_stream(store, StreamFile(store, "idea")).findings
    assert len(findings) == 1
    assert "gain" in findings[0]


def test_verify_names_a_result_that_was_edited(kept, folder):
    store = Store(folder / "runs")
    (first, *_) = store.read_plan("idea.1").runs()
    result = store.rundir(first.id).result
    result.write_text(result.read_text().replace('"score":', '"score": 1'))
    assert verify_stream(store, StreamFile(store, "idea")).findings


def test_gc_keeps_the_code_of_kept_baselines_alone(kept, folder, run):
    copies = {path.name for path in (folder / "runs" / "code").iterdir()}
    record = StreamFile(Store(folder / "runs"), "idea").record()
    needed = {code.copy for code in record.needed_codes}
    assert len(copies) == 3
    assert len(needed) == 2
    for path in (folder / "runs" / "code").iterdir():
        os.utime(path, (1.0, 1.0))
    run("gc", "--yes")
    assert {path.name for path in (folder / "runs" / "code").iterdir()} == needed
    write_trainer(folder, gain=9.0)
    assert kept.attempt().word == "keep"  # the baseline is trained from its copy


def test_merge_brings_streams_and_their_code(kept, folder, run):
    run("merge", "runs", "--store", "both")
    there = Stream("idea", store="both")
    assert there.log().sentence == kept.log().sentence
    assert there.log().baselines == kept.log().baselines
    write_trainer(folder, gain=11.0)
    assert there.attempt().word == "keep"
    run("merge", "both", "--store", "runs")
    assert kept.log().kept == 2
    write_trainer(folder, gain=0.3)
    kept.attempt()
    write_trainer(folder, gain=0.4)
    there.attempt()
    store, source = Store(folder / "runs"), Store(folder / "both")
    assert len([*stream_conflicts(store, [source])]) == 1
    assert [*stream_conflicts(store, [store])] == []
