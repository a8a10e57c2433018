"""A stream of proposals, driven as Python drives it: words, seeds, sealed looks, copies of code.
The gains are known, since the trainer's score is a number in its file plus a draw of the seed."""

from __future__ import annotations

import json
import re
import statistics

import pytest
from conftest import refused
from support.files import write_files
from support.streams import (
    EVALUATION,
    WORDS,
    start_stream,
    stream_events,
    stream_record,
    write_trainer,
)

from ablate import cli
from ablate.analysis import StreamJudge
from ablate.api import Stream, Sweep
from ablate.api.pins import read_pinned
from ablate.api.stream_answers import EXIT_CODES
from ablate.audit.streams import verify_stream
from ablate.planning import ComposedCode, Plan
from ablate.report import StreamView
from ablate.report.stream import MARKS, REASONS
from ablate.shared import Failure, TryAgain
from ablate.store import Store, StreamFile, streams


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's folder, in which this process works."""
    monkeypatch.chdir(tmp_path)
    write_trainer(tmp_path)
    return tmp_path


@pytest.mark.whole
def test_a_gain_is_kept_and_measured_afresh(folder):
    stream = start_stream()
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


@pytest.mark.whole
def test_gains_are_those_of_the_results(folder):
    stream = start_stream()
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


@pytest.mark.whole
def test_the_same_content_has_the_same_answer_and_no_new_runs(folder):
    stream = start_stream()
    write_trainer(folder, gain=5.0)
    kept = stream.attempt(note="first")
    count = len(stream_events())
    assert stream.attempt(note="another name") == kept
    write_trainer(folder, gain=2.0)
    discarded = stream.attempt()
    assert stream.attempt() == discarded
    assert len(stream_events("open")) == 2 < count


@pytest.mark.whole
def test_another_stream_gives_the_same_content_the_same_runs(folder):
    first, second = start_stream(), start_stream("other")
    write_trainer(folder, gain=2.0)
    answers = first.attempt(), second.attempt()
    assert answers[0].gain == answers[1].gain
    assert answers[0].word == answers[1].word


@pytest.mark.whole
def test_settings_are_proposals_over_those_of_the_baseline(folder):
    stream = start_stream()
    kept = stream.attempt("trainer.rate=6")
    assert kept.word == "keep"
    write_trainer(folder, gain=5.0)
    assert stream.attempt().word == "keep"  # with the kept rate
    first, second = [answer.next for answer in stream.log().answers]
    assert ("commit" in first, "commit" in second) == (False, True)
    assert stream.attempt("trainer.rate=0").word == "discard"
    with refused(r"^seeds=3"):
        stream.attempt("seeds=3")


@pytest.mark.whole
def test_the_baseline_is_trained_from_its_kept_bytes(folder):
    stream = start_stream()
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


@pytest.mark.whole
def test_a_code_that_fixes_its_seed_is_undecided_and_named(folder):
    stream = start_stream()
    write_trainer(folder, gain=4.0, seed="7")
    answer = stream.attempt()
    assert (answer.word, answer.reason, answer.exit_code, answer.runs) == (
        "undecided",
        "bits",
        4,
        4,
    )
    assert stream_events("open")[0]["pool"] == [0.0, 0]
    write_trainer(folder, gain=1.0)
    stream.attempt()
    assert stream_events("open")[1]["pool"] == [0.0, 0]  # equal runs say nothing of the spread


def test_other_metrics_are_another_stream(folder):
    stream = start_stream()
    yaml = folder / "conf" / "trainer" / "toy.yaml"
    yaml.write_text(yaml.read_text().replace("score: {direction: more", "score: {direction: less"))
    with refused(r"^metrics:"):
        stream.attempt("trainer.rate=1")


@pytest.mark.whole
def test_a_run_that_fails_leaves_the_proposal_open(folder):
    stream = start_stream()
    good = (folder / "toy.py").read_text()
    (folder / "toy.py").write_text(good.replace("run.log(1", "1 / 0; run.log(1"))
    with pytest.raises(Failure, match=r"ZeroDivisionError"):
        stream.attempt()
    log = stream.log()
    assert (log.open, log.proposals, log.expected_false_keeps) == (1, 1, 0.01)
    assert log.answers[0].exit_code is None
    write_trainer(folder, gain=5.0)
    assert stream.attempt().proposal == 2


def test_a_run_that_diverges_discards(folder):
    stream = start_stream()
    write_trainer(folder, gain=float("nan"))
    text = (folder / "toy.py").read_text().replace("GAIN = nan", "GAIN = float('nan')")
    (folder / "toy.py").write_text(text)
    answer = stream.attempt()
    assert (answer.word, answer.reason, answer.gain) == ("discard", "diverged", None)
    assert REASONS["diverged"] in StreamView(stream.log().tree).text


@pytest.mark.whole
def test_more_runs_go_on_with_what_was_undecided(folder):
    stream = start_stream(margin=0.1, most=4)
    for tenths in range(3, 20):
        write_trainer(folder, gain=1 + tenths / 1000)
        answer = stream.attempt()
        if answer.word == "undecided":
            break
    assert (answer.word, answer.reason, answer.runs) == ("undecided", "runs", 4)
    more = stream.attempt(most=8)
    assert more.proposal == answer.proposal
    assert more.runs == 8
    sealed = [
        event["runs"] for event in stream_events("look") if event["proposal"] == more.proposal
    ]
    assert sealed == [1, 2, 4, 8]  # the look at 4 is not taken again
    store = Store(folder / "runs")
    assert verify_stream(store, StreamFile(store, "idea")).findings == []


@pytest.mark.whole
def test_a_simplification_is_kept_against_the_last_gain(folder):
    stream = start_stream()
    write_trainer(folder, gain=0.001)
    simpler = stream.attempt(simplify=3.0)
    assert simpler.word == "keep"
    write_trainer(folder, gain=0.002)
    stream.attempt(simplify=3.0)
    opened = stream_events("open")
    assert [event["against"] for event in opened] == [0, 1]
    assert [event["measure"] for event in opened] == [0, 0]


@pytest.mark.whole
def test_a_look_is_sealed_once_by_two_processes(folder):
    """The other one has read a longer baseline, and so has another word."""
    stream = start_stream()
    write_trainer(folder, gain=1.5)
    seal, sealed_looks = Stream._seal, []

    def twice(self, number, fields):
        sealed_looks.append(fields["runs"])
        seal(self, number, dict(fields))
        seal(self, number, {**fields, "word": "undecided", "reason": "runs"})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stream, "_seal", twice)
        stream.attempt()
    assert [look["runs"] for look in stream_events("look")] == sealed_looks
    assert len(sealed_looks) > 1


@pytest.mark.whole
def test_the_same_content_against_another_baseline_has_other_runs(folder):
    """A was kept, then B; A again has no second use of runs that chose it."""
    stream = start_stream()
    for gain in (5.0, 11.0, 5.0):
        write_trainer(folder, gain=gain)
        stream.attempt()
    record = stream_record()
    assert [proposal.word for proposal in record.proposals] == ["keep", "keep", "discard"]
    seeds = [record.proposal_seeds(number, 4) for number in (1, 2, 3)]
    seeds += [record.baseline_seeds(number, 4) for number in (0, 1, 2)]
    assert len({seed for few in seeds for seed in few}) == 24
    write_trainer(folder)
    again = start_stream("other")
    write_trainer(folder, gain=5.0)
    again.attempt()
    assert stream_record("other").proposal_seeds(1, 4) == seeds[0]


@pytest.mark.whole
def test_a_simplification_gives_no_second_chance(folder):
    """The measure is the same, and so is the answer."""
    stream = start_stream()
    write_trainer(folder, gain=-1.0)
    discarded = stream.attempt()
    assert discarded.word == "discard"
    write_trainer(folder, gain=0.001)
    assert stream.attempt(simplify=3.0).word == "keep"
    write_trainer(folder, gain=-1.0)
    assert stream.attempt().proposal == discarded.proposal


@pytest.mark.whole
def test_pairs_are_of_the_same_seeds_side_by_side(folder):
    stream = start_stream(pairs=True)
    write_trainer(folder, gain=4.0)
    answer = stream.attempt()
    assert answer.word == "keep"
    assert answer.gain == pytest.approx(4.0, abs=1e-9)  # the same draw in both of a pair
    plan = Store(folder / "runs").read_plan("idea.1")
    assert [run.cell.row for run in plan.runs()] == ["baseline", "proposal"] * answer.runs
    assert stream.log().runs == 12 + 2 * answer.runs


@pytest.mark.whole
def test_a_holdout_is_reported_at_a_keep_and_read_by_no_rule(folder):
    stream = start_stream(holdout=["other"])
    write_trainer(folder, gain=5.0)
    assert stream.attempt().holdout == {"other": (5.0, 0.0)}
    assert stream.log().answers[0].holdout == {"other": (5.0, 0.0)}


@pytest.mark.whole
def test_a_keep_whose_baseline_has_changed_is_stale(folder):
    stream = start_stream()
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


@pytest.mark.whole
def test_a_keep_while_a_proposal_is_composed_is_not_undone(folder):
    """Its settings are those over the old baseline."""
    stream, of_folder = start_stream(), ComposedCode.of_folder
    with pytest.MonkeyPatch.context() as patch:

        def overtaken(*arguments):
            composed = of_folder(*arguments)
            patch.undo()
            assert stream.attempt("trainer.rate=6").word == "keep"
            return composed

        patch.setattr(ComposedCode, "of_folder", overtaken)
        with pytest.raises(TryAgain):
            stream.attempt("trainer.mode=b")
    assert stream.log().proposals == 1
    assert stream.attempt("trainer.mode=b").against == 1
    assert stream_record().proposals[1].code.spec["trainer"]["rate"] == 6


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


@pytest.mark.whole
def test_a_sealed_look_can_not_be_edited(folder):
    stream = start_stream()
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
    start_stream()
    count = len(stream_events())
    start_stream()
    assert len(stream_events()) == count
    with refused(r"^idea:"):
        start_stream(margin=2.0)
    for wrong in ({"most": 5}, {"margin": -1.0}, {"level": 0.7}, {"metric": "loss"}):
        with refused(f"^{next(iter(wrong))}"):
            start_stream("other", **wrong)
    with refused(r"^stream:"):
        Stream("nothing")


@pytest.mark.whole
def test_no_keep_of_a_simplification_counts_as_a_gain(folder):
    stream = start_stream()
    write_trainer(folder, gain=0.001)
    simpler = stream.attempt(simplify=3.0)
    assert (simpler.word, simpler.kept_so_far, simpler.expected_false_keeps) == ("keep", 0, 0.0)
    write_trainer(folder, gain=5.0)
    gained = stream.attempt()
    assert (gained.word, gained.kept_so_far, gained.expected_false_keeps) == ("keep", 1, 0.01)
    log = stream.log()
    assert (log.kept, log.simplifications, log.simplified) == (2, 1, 1)
    assert log.expected_false_keeps == 0.01
    assert re.findall(r"\d+ simpl\w+", log.sentence) == ["1 simplification"]


@pytest.mark.whole
def test_what_to_do_next_has_the_words_of_the_proposal(folder):
    stream = start_stream(margin=0.1, most=4)
    answers = (stream.attempt(f"trainer.rate=1.{tenths:03}") for tenths in range(3, 20))
    undecided = next(answer for answer in answers if answer.reason == "runs")
    command = re.match("`(.*?)`", undecided.next)[1].split()
    words = command[command.index("idea") + 1 :]
    assert words == [*stream_record().proposals[undecided.proposal - 1].words, "--most", "8"]
    more = stream.attempt(words[0], most=int(words[-1]))
    assert (more.proposal, more.runs) == (undecided.proposal, 8)


@pytest.mark.whole
@pytest.mark.parametrize("most_choices", [StreamJudge.most_choices, (2, 4)])
def test_what_is_undecided_goes_on_while_there_are_more_runs_or_is_undone(
    folder, monkeypatch, most_choices
):
    monkeypatch.setattr(StreamJudge, "most_choices", most_choices)
    stream, code = start_stream(margin=0.1, most=4), (folder / "toy.py").read_bytes()
    for tenths in range(3, 20):
        write_trainer(folder, gain=1 + tenths / 1000)
        undecided = stream.attempt()
        if undecided.reason == "runs":
            break
    commands = [words.split() for words in re.findall("`ablate (.*?)`", undecided.next)]
    higher_limits = [n for n in most_choices if n > 4]
    assert [words[:3] for words in commands] == [
        *[["gate", "try", "idea"]] * bool(higher_limits),
        ["gate", "restore", "idea"],
    ]
    if higher_limits:
        assert commands[0][3:] == ["--most", str(higher_limits[0])]
    cli.app(commands[-1], standalone_mode=False)
    assert (folder / "toy.py").read_bytes() == code


@pytest.mark.whole
@pytest.mark.parametrize(("sealed_value", "value"), [(None, 3.0), (0.25, None), (0.25, 0.5)])
def test_another_simplify_for_the_same_content_is_refused(folder, sealed_value, value):
    stream = start_stream(margin=0.1, most=4)
    write_trainer(folder, gain=0.7)
    answer = stream.attempt(simplify=sealed_value)
    with refused(r"^simplify:") as raised:
        stream.attempt(simplify=value)
    assert ("0.25" in str(raised.value)) == (sealed_value is not None)
    assert stream.attempt(simplify=sealed_value) == answer


def test_what_to_do_next_has_the_simplify_of_the_proposal(folder):
    stream = start_stream()
    code = (folder / "toy.py").read_text()
    (folder / "toy.py").write_text(code.replace("run.log(1", "1 / 0; run.log(1"))
    with pytest.raises(Failure):
        stream.attempt(simplify=0.25)
    command = re.match("`(.*?)`", stream.log().answers[0].next)[1].split()
    assert command[command.index("idea") + 1 :] == ["--simplify", "0.25"]


@pytest.mark.whole
def test_to_undo_a_change_its_new_files_are_named(folder):
    """A file that lay there before, and is code only now, is the user's."""
    write_files(folder, old_py="")
    stream = start_stream()
    write_trainer(folder, gain=-9.0)
    code = (folder / "toy.py").read_text()
    write_files(folder, toy_py=f"import old, extra\n{code}", extra_py="")
    answer = stream.attempt()
    assert answer.word == "discard"
    assert re.findall(r"\w+\.py", answer.next) == ["extra.py"]
    write_trainer(folder, gain=-8.0)
    assert re.findall(r"\w+\.py", stream.attempt().next) == []


@pytest.mark.whole
def test_a_holdout_without_a_number_stops_no_keep(folder):
    code = (folder / "toy.py").read_text()
    (folder / "toy.py").write_text(code.replace("train_loss=1.0", "other=7.0"))
    stream = start_stream(holdout=["val_other"])
    write_trainer(folder, gain=5.0)
    assert stream.attempt().holdout == {"val_other": (None, 7.0)}
    assert StreamView(stream.log().tree).text
    store = Store(folder / "runs")
    assert verify_stream(store, StreamFile(store, "idea")).findings == []


def test_a_stop_while_the_code_is_read_ends_the_proposal(folder, monkeypatch):
    stream = start_stream()
    write_trainer(folder, gain=-9.0)
    stream.attempt()
    write_trainer(folder, gain=5.0)
    runs = folder / "runs" / "runs"
    before = {*runs.iterdir()}

    def read_and_stop(*arguments):
        Store(folder / "runs").stop_starting(None)
        return read_pinned(*arguments)

    monkeypatch.setattr("ablate.api.stream.read_pinned", read_and_stop)
    with pytest.raises(KeyboardInterrupt):
        stream.attempt()
    assert {*runs.iterdir()} == before


@pytest.mark.whole
def test_a_sweep_of_a_stream_goes_on_by_the_stream_alone(folder):
    stream = start_stream()
    write_trainer(folder, gain=5.0)
    stream.attempt()
    plan = Store(folder / "runs").read_plan("idea.1")
    assert plan.command == ("gate", "try", "idea")
    assert Plan.from_tree(json.loads(plan.to_bytes())) == plan
    with refused(r".*`ablate gate try idea`"):
        Sweep("idea.1").plan()
    with refused("idea.1: "):
        Sweep(*WORDS, name="idea.1").train()
    with refused(r"idea\.1"):
        start_stream("idea.1")


def test_a_stream_takes_no_name_of_a_sweep(folder):
    Sweep("trainer.rate=1,2", *WORDS, name="rates", seeds=1).train()
    with refused("rates: "):
        start_stream("rates")
    start_stream()
    with refused("idea: "):
        Sweep("trainer.rate=1,2", *WORDS, name="idea", seeds=1).train(replace=True)
    assert not Store(folder / "runs").plan_path("idea").exists()


def test_every_word_has_a_mark_that_can_be_told_in_grey():
    shapes = {(mark.marker, mark.is_filled) for mark in MARKS.values()}
    assert MARKS.keys() == {*EXIT_CODES, "open"}
    assert len(shapes) == len(MARKS)


@pytest.mark.whole
def test_a_figure_names_its_stream_what_chance_would_keep_and_what_was_kept(folder):
    stream = start_stream()
    for gain in (5.0, -9.0):
        write_trainer(folder, gain=gain)
        stream.attempt()
    log = stream.log()
    texts = re.findall("<!-- (.*?) -->", StreamView(log.tree).draw("svg").decode())
    words = " ".join(text for text in texts if not re.fullmatch(r"\W?\d+", text))
    assert f"Stream idea. {log.sentence}" in words
    assert (log.proposals, log.kept) == (2, 1)
    assert {"gain in score", "discard: 1"} <= {*texts}
    [kept] = [text for text in texts if text.startswith("keep: 1")]
    assert "95 %" in kept


def test_a_lock_that_another_process_holds_asks_to_try_again(folder, monkeypatch):
    stream = start_stream()
    write_trainer(folder, gain=5.0)
    monkeypatch.setattr(streams, "LOCK_WAIT_S", 0.0)
    with StreamFile(Store(folder / "runs"), "idea").appending(), pytest.raises(TryAgain):
        stream.attempt()


PROGRAM = """
command: python line.py {seed}
result: {lines: 'error=(?P<error>.+)'}
metrics: {error: {direction: less}}
code: [line.py]
data: [points.txt]
"""
LINE = """import random, sys
from pathlib import Path

points = float(Path("points.txt").read_text())
print(f"error={random.Random(int(sys.argv[1])).gauss(points, 1)}")
"""


@pytest.fixture
def program(folder):
    """A folder with a program as its trainer."""
    write_files(folder, line_py=LINE, conf__trainer__line_yaml=PROGRAM)
    (folder / "points.txt").write_text("9")
    return Stream.start("idea", "trainer=line", "launcher=inline")


@pytest.mark.parametrize("key", ["data", "command", "result"])
def test_what_a_program_is_measured_by_may_not_change(program, folder, key):
    yaml = folder / "conf" / "trainer" / "line.yaml"
    write_files(folder, line_py=f"{LINE}# another\n")
    if key == "data":
        (folder / "points.txt").write_text("1")
    elif key == "command":
        yaml.write_text(PROGRAM.replace("line.py {seed}", "line.py {seed} 1"))
    else:
        yaml.write_text(PROGRAM.replace("(?P<error>.+)", "(?P<error>.*)"))
    with refused(rf"^trainer.{key}"):
        program.attempt()
    assert program.log().proposals == 0


@pytest.mark.parametrize("word", ["data=mnist5k", "data.size=16", "eval.crop=0.5"])
def test_what_ablates_own_training_is_measured_by_may_not_change(folder, word):
    stream = Stream.start("idea", "data=digits", "launcher=inline")
    with refused(f"^{word.partition('=')[0].partition('.')[0]}:"):
        stream.attempt(word)


def test_a_script_that_is_no_code_would_be_trained_as_it_is_then(folder):
    write_files(folder, line_py=LINE, other_py=LINE)
    (folder / "points.txt").write_text("9")
    for command in ("other.py", str(folder / "line.py")):
        text = PROGRAM.replace("python line.py", f"python {command}")
        write_files(folder, conf__trainer__line_yaml=text)
        with refused(r"^trainer.command"):
            Stream.start("idea", "trainer=line", "launcher=inline")
