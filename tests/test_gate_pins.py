"""Pins of a stream: what no proposal may change, by whatever statement."""

from __future__ import annotations

import pytest
from conftest import refused
from support.files import write_files
from support.streams import EVALUATION, start_stream, write_trainer

from ablate.api import GateOptions, Stream
from ablate.api.pins import check_pins, hash_pins, read_pinned


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The user's folder, in which this process works."""
    monkeypatch.chdir(tmp_path)
    write_trainer(tmp_path)
    return tmp_path


@pytest.mark.whole
def test_pinned_code_may_not_change(folder):
    stream = start_stream(
        pins=["evaluation.py:eval*", "evaluation.py:OFFSET", "conf/trainer/*.yaml"]
    )
    (folder / "evaluation.py").write_text(EVALUATION.replace("OFFSET = 0.0", "OFFSET = 9.0"))
    with refused(r"^evaluation.py:OFFSET"):
        stream.attempt()
    (folder / "evaluation.py").write_text(EVALUATION + "\n\nevaluate = lambda value: 9.0\n")
    with refused(r"^evaluation.py:evaluate"):
        stream.attempt()
    (folder / "evaluation.py").write_text("# a remark\n" + EVALUATION)
    assert stream.attempt().proposal == 1  # a remark changes nothing that is pinned
    with refused(r"nothing.py"):
        start_stream("other", pins=["nothing.py"])
    with refused(r"OFFSET, evaluate.*'evalute'.*'evaluate'"):
        start_stream("other", pins=["evaluation.py:evalute"])


MODEL = """
from math import *
from other import helper

THRESHOLD = 1


class Model:
    scale = 2

    def evaluate(self):
        threshold = 3
        return threshold
"""
REPLACEMENTS = {
    "an attribute": "Model.evaluate = len",
    "a loop": "for evaluate in [len]: pass",
    "a loop within": "if True:\n    for evaluate in [len]: pass",
    "a context": "with open('x') as evaluate: pass",
    "an exception": "try: pass\nexcept ValueError as evaluate: pass",
    "a pattern": "match [len]:\n    case [evaluate]: pass",
    "a star pattern": "match [len]:\n    case [*evaluate]: pass",
    "a walrus": "(evaluate := len)",
    "an import": "from os import path as evaluate",
    "a global": "def other():\n    global evaluate\n    evaluate = len",
    "a deletion": "del evaluate",
    "an item": "evaluate.table[0] = 1",
    "an assignment in the class": "class Model:\n    evaluate = len",
    "a class that inherits it": "class Easy:\n    pass\n\n\nclass Model(Easy):\n    pass",
}


def pins_of(folder, pattern, content):
    write_files(folder, model_py=content)
    return hash_pins(read_pinned([pattern], folder, folder / "runs"))


@pytest.mark.parametrize("how", REPLACEMENTS)
def test_whatever_binds_a_pinned_name_counts(tmp_path, how):
    content = MODEL.replace("from math import *\n", "") + "\n\ndef evaluate():\n    return 1\n"
    pattern = "model.py:*evaluate"
    pins = pins_of(tmp_path, pattern, content)
    write_files(tmp_path, model_py=f"{content}\n{REPLACEMENTS[how]}\n")
    with refused(r"^model.py:\S*evaluate"):
        check_pins(pins, read_pinned([pattern], tmp_path, tmp_path / "runs"))


WITHIN = """
LIMITS = [1]


class Model:
    def evaluate(self):
        return 1


def main():
    return 2
"""


@pytest.mark.parametrize("name", ["Model.evaluate", "Model", "LIMITS"])
@pytest.mark.parametrize(
    "change",
    [
        "def main(): {0} = 9",
        "def main(): del {0}",
        "def main():\n    if True:\n        for {0} in [9]: pass",
        "def main():\n    with open('x') as {0}: pass",
        "def main(): [0 for {0} in [9]]",
        "def main(given=lambda Model, LIMITS: 1): {0} = 9",
        "def main():\n    def inner(): {0} = 9\n    inner()",
        "def main():\n    class A: {0} = 9",
        "async def main(): {0} += 9",
        "class A:\n    {0} = 9",
        "class A:\n    def fit(self): {0} = 9",
        "class A:\n    global LIMITS, Model\n    LIMITS = Model = 9",
        "def main():\n    global LIMITS, Model\n    LIMITS = Model = {0} = 9",
        "def main():\n    class A:\n        global LIMITS, Model\n        LIMITS = Model = 9",
        "LIMITS = Model = 9",
        "from other import LIMITS, Model",
    ],
)
def test_an_assignment_within_a_function_or_class_changes_a_pinned_name(tmp_path, name, change):
    pins = pins_of(tmp_path, f"model.py:{name}", WITHIN)
    target = "LIMITS[0]" if name == "LIMITS" else "Model.evaluate"
    write_files(tmp_path, model_py=f"{WITHIN}\n{change.format(target)}\n")
    with refused(rf"^model.py:{name}"):
        check_pins(pins, read_pinned([f"model.py:{name}"], tmp_path, tmp_path / "runs"))


@pytest.mark.parametrize(
    "lines",
    [
        "def main():\n    LIMITS = [2]\n    LIMITS[0] = 9",
        "def main(Model, *LIMITS): Model.evaluate = LIMITS[0] = 9",
        "def main():\n    import other as Model\n    Model.evaluate = 9",
        "def main(LIMITS):\n    def inner(): LIMITS[0] = 9",
        "def main(LIMITS):\n    def inner():\n        nonlocal LIMITS\n        LIMITS[0] = 9",
        "def main(self): self.evaluate = print(LIMITS[0])",
        "Other.evaluate = LIMITS[0]",
    ],
)
@pytest.mark.parametrize("name", ["Model.evaluate", "Model", "LIMITS"])
def test_what_is_in_a_local_variable_is_not_pinned(tmp_path, name, lines):
    pins = pins_of(tmp_path, f"model.py:{name}", WITHIN)
    assert pins_of(tmp_path, f"model.py:{name}", f"{WITHIN}\n{lines}\n") == pins


@pytest.mark.parametrize(
    "line",
    [
        "def other():\n    evaluate = len",
        "[evaluate for evaluate in [1]]",
        "lambda evaluate: 1",
        "print(evaluate)",
    ],
)
def test_a_local_name_is_no_pinned_one(tmp_path, line):
    content = "def evaluate():\n    return 1\n"
    pins = pins_of(tmp_path, "model.py:evaluate", content)
    assert pins_of(tmp_path, "model.py:evaluate", f"{content}{line}\n") == pins
    names = pins_of(tmp_path, "model.py:*", f"{content}{line}\n")["model.py:*"]
    assert {*names} <= {"model.py:evaluate", "model.py:other"}


VERSIONED = """
def evaluate(values, *, width=3):
    \'\'\'Return a line.
        It is indented.\'\'\'
    print(f"{values!r:>{width}}" f"", {**values}, "\\U0001fae8")
    return lambda: None
"""


def test_a_pin_has_the_same_hash_in_every_version_of_python(tmp_path):
    """The hash is what Python 3.11, 3.12 and 3.13 each gave. Their `ast.dump` differs in empty
    fields and in the f-string, their `repr` in the character."""
    pins = pins_of(tmp_path, "model.py:evaluate", VERSIONED)
    assert pins["model.py:evaluate"]["model.py:evaluate"] == (
        "0747e538f91baf2fae92bca3af11f1ada03f8c43353656e43964451865a5fd78"
    )


@pytest.mark.parametrize(
    "pin",
    [
        *(":evaluate", "", ".", "./", ".:evaluate", "../model.py", "/model.py"),
        *("**.py:evaluate", "**", "**:evaluate", "*/**", "a**/model.py"),
    ],
)
def test_a_pin_without_a_file_is_refused_in_a_line(folder, pin):
    with refused("^pin"):
        start_stream(pins=[pin])


def test_the_command_speaks_of_its_option(folder, ask):
    code, text = ask("gate", "start", "idea", "trainer=toy", "--pin", "none.py", "--format", "json")
    assert code == 2
    assert '"place": "--pin none.py"' in text
    with refused("^pin=none.py"):
        start_stream(pins=["none.py"])


def test_a_star_import_is_no_pinned_code(folder):
    (folder / "evaluation.py").write_text(f"from math import *\n{EVALUATION}")
    with refused(r"^evaluation.py"):
        start_stream(pins=["evaluation.py:evaluate"])
    (folder / "evaluation.py").write_text(EVALUATION)
    stream = start_stream(pins=["evaluation.py:evaluate"])
    (folder / "evaluation.py").write_text(f"{EVALUATION}from math import *\n")
    with refused(r"^evaluation.py"):
        stream.attempt()


@pytest.mark.whole
def test_a_pattern_of_pinned_files_misses_the_copies_in_the_store(folder):
    """The store keeps copies of the pinned files from the start on."""
    stream = start_stream(pins=["**/evaluation.py"])
    copies = [*folder.glob("runs/**/evaluation.py")]
    assert copies
    for name in ("__pycache__", ".git"):
        (folder / name).mkdir()
        (folder / name / "evaluation.py").touch()
    write_trainer(folder, gain=1.0)
    assert stream.attempt().proposal == 1
    with refused("runs.*evaluation.py"):
        start_stream("other", pins=[copies[0].relative_to(folder).as_posix()])


PROGRAM = """
command: python line.py {seed}
result: {lines: 'error=(?P<error>.+)'}
metrics: {error: {direction: less}}
code: [line.py]
"""
LINE = """
import random, sys
from judge import judged

print(f"error={judged(random.Random(int(sys.argv[1])).gauss(0, 1))}")
"""


@pytest.mark.whole
def test_pinned_files_are_copied_with_the_code(folder):
    """`code` misses the evaluation; an edit of it reaches no run that is trained later."""
    write_files(folder, line_py=LINE, judge_py="def judged(x): return x + 9\n")
    write_files(folder, conf__trainer__line_yaml=PROGRAM)
    stream = Stream.start(
        "idea", "trainer=line", "launcher=inline", rules=GateOptions(pins=["judge.py"])
    )
    assert {*stream.files(0)} == {"line.py", "judge.py"}
    write_files(folder, line_py=f"{LINE}# again\n")
    judge, judging = Stream._judge, []

    def edited(self, work, number):
        if not judging:
            write_files(folder, judge_py="def judged(x): return x\n")
        judging.append(number)
        judge(self, work, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stream, "_judge", edited)
        stream.attempt()
    assert abs(stream.log().answers[0].gain) < 5
    assert stream.log().baselines[0].mean > 5
