"""The two designs of a sweep answer the same questions, so that nobody asks which one it is."""

import ast
import inspect

import pytest
from conftest import REPOSITORY

from ablate.planning.design import Fixed, Looks, design_of
from ablate.shared.errors import UserError


def questions(design: type) -> dict[str, object]:
    """What a design answers, by name: the parameters of a method, None of a value."""
    answers = {name: getattr(design(), name) for name in dir(design()) if name[0] != "_"}
    return {
        n: [*inspect.signature(a).parameters] if callable(a) else None for n, a in answers.items()
    }


def test_both_designs_answer_the_same_questions():
    own = {"place", "first_seed"}  # of a declaration
    fixed, looks = questions(Fixed), questions(Looks)
    assert fixed == {name: said for name, said in looks.items() if name not in own}


@pytest.mark.whole
def test_few_files_name_a_kind_of_design():
    """A table, a message or a command that named one would have to be told of the next."""
    named = {
        path.relative_to(REPOSITORY / "ablate").as_posix()
        for path in (REPOSITORY / "ablate").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and {"Fixed", "Looks"} & {alias.name for alias in node.names}
    }
    assert named <= {"planning/declaration.py", "planning/plan.py", "planning/sweep_file.py"}


@pytest.mark.parametrize(
    ("design", "words", "reach"),
    [
        (Fixed(), "seeds=3", [0, 1, 2]),
        (Looks((5, 9)), "looks at 5, 9 seeds", [*range(9)]),
        (Looks((5, 9), first_seed=7), "looks at 5, 9 seeds from 7 on", [*range(7, 16)]),
    ],
)
def test_a_design_is_read_from_what_it_writes(design, words, reach):
    assert design_of(design.tree()) == design
    assert design.drive_text((0, 1, 2)) == words
    assert [*design.reach((0, 1, 2))] == reach


def test_until_replaces_the_looks_of_a_file_and_keeps_its_margin():
    said = Looks((5, 8), {"margin": 2.0})
    assert said.extended(12) == Looks((5, 8, 12), {"margin": 2.0}, "--until")
    assert Fixed().extended(9).seed_counts == (5, 9)
    with pytest.raises(UserError, match="expected at least 7 seeds, got 6"):
        Fixed().extended(6)
