"""The spec of a run: what its seeds, its parents and its places mean for the tree and the id."""

import json

import pytest
import tiny
from support.plans import small_plan
from support.runs import GOLDEN_RUN

from ablate.planning.plan import Plan
from ablate.run.spec import OwnSpec, RunSpec, ShippedSpec

METRIC = {
    **{"key": "score", "name": "score", "direction": "more", "unit": "", "decimals": 3},
    **{"range": [0, 1], "chance": None},
}
OWN = {
    "trainer": {"name": "toy:main", "lr": 0.1},
    "keys": {},
    "metrics": [METRIC],
    "code": {"fork_safe": True, "files": {"toy.py": "f00d"}, "packages": {}, "folder": "/home/me"},
}


@pytest.fixture
def cell() -> RunSpec:
    """The spec of a tiny cell without a parent."""
    tree = dict(tiny.run().spec.tree)
    del tree["seed"]
    return RunSpec.of(tree)


def child_of(parent: RunSpec, cell: RunSpec) -> RunSpec:
    return RunSpec.of({**cell.tree, "parent": parent.tree})


def test_a_tree_decides_who_trains_it():
    assert type(RunSpec.of(GOLDEN_RUN)) is ShippedSpec
    assert type(RunSpec.of(OWN)) is OwnSpec
    assert RunSpec.of(GOLDEN_RUN) == RunSpec.of(json.loads(json.dumps(GOLDEN_RUN)))


def test_a_plan_is_read_with_specs():
    plan = small_plan()
    again = Plan.from_tree(json.loads(plan.to_bytes()))
    assert [cell.spec for cell in again.cells] == [cell.spec for cell in plan.cells]
    assert again.to_bytes() == plan.to_bytes()


def test_a_parent_has_the_seed_of_its_child_unless_it_has_one_of_its_own(cell):
    """Grandparents alike; without a seed, the cell is as before."""
    line = child_of(child_of(cell, cell), cell)
    pinned = child_of(RunSpec.of({**child_of(cell, cell).tree, "seed": 7}), cell)
    for spec, seeds in ((line, [3, 3, 3]), (pinned, [3, 7, 7])):
        run = spec.with_seed(3)
        assert [each.tree["seed"] for each in (run, *run.ancestors())] == seeds
        assert run.without_seed(spec) == spec
        assert spec.ids([3]) == {3: run.id}
    assert line.with_parent_seed(7).with_seed(3) == pinned.with_seed(3)
    assert pinned.with_parent_seed(9) == pinned
    assert cell.with_parent_seed(9) == cell
    assert len({cell.with_seed(3).id, line.with_seed(3).id, pinned.with_seed(3).id}) == 3


def test_places_are_those_of_all_sections_and_parents_and_no_part_of_the_id(cell):
    data = {**cell.tree["data"], "path": "/images"}
    also = [{**cell.tree["data"], "name": "dark", "path": "/dark"}]
    tree = {
        **{**cell.tree, "seed": 3, "data": data, "eval": {**cell.tree["eval"], "also": also}},
        "norm": {"name": "norms:Mine", "folder": "/norms", "version": "1", "eps": 1e-6},
        "own_probes": {"folder": "/probes", "versions": {"probes:Mine": "1"}},
        "weights": {"path": "/weights", "sha256": "f00d", "names": "timm"},
        "parent": {**cell.tree, "data": {**data, "path": "/parents"}, "seed": 3},
    }
    tree["augment"] = {**tree["augment"], "extra_folder": {"views:Mine": "/views", "torch": None}}
    spec = RunSpec.of(tree)
    named = ["/dark", "/images", "/norms", "/parents", "/probes", "/views", "/weights"]
    assert sorted(spec.places) == named
    nowhere = spec.without_places()
    assert nowhere.places == []
    assert nowhere.id == spec.id
    assert nowhere.tree.keys() == spec.tree.keys()
    assert nowhere.tree["norm"] == {**tree["norm"], "folder": None}
    assert not any(f'"{place}"' in json.dumps(nowhere.tree) for place in named)
    assert sorted(spec.places) == named  # it is as before


def test_the_folder_of_a_trainer_is_no_part_of_the_id():
    spec = RunSpec.of({**OWN, "seed": 0})
    assert spec.places == ["/home/me"]
    assert spec.without_places().places == []
    assert spec.without_places().id == spec.id
    assert RunSpec.of({**OWN, "seed": 0, "trainer": {**OWN["trainer"], "lr": 0.2}}).id != spec.id


def test_a_trainer_of_ones_own_names_no_data_and_no_parts():
    spec = RunSpec.of(OWN)
    nothing = (spec.datasets, spec.also, spec.own_parts, spec.probes, [*spec.ancestors()])
    assert nothing == ([], [], [], [], [])
    assert (spec.classes, spec.guesses, spec.whole_model, spec.trains) == (0, 0, None, True)
    answers = (spec.is_command, spec.is_imported, spec.marks_examples("score"))
    assert answers == (False, False, False)
