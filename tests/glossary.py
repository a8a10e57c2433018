"""The second half of docs/glossary.md: the nouns of the code, each with the first sentence of its
owner's docstring. The first half is written by hand.

`python tests/glossary.py` writes the table; tests/test_docs.py compares.
"""

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "glossary.md"
OWNERS = {
    "Sweep": "ablate/planning/declaration.py Sweep",
    "Row": "ablate/planning/cell.py Row",
    "Column": "ablate/planning/cell.py Column",
    "Cell": "ablate/planning/cell.py Cell",
    "Plan": "ablate/planning/plan.py Plan",
    "Trial": "ablate/planning/cell.py Trial",
    "Design": "ablate/planning/design.py Looks",
    "Analysis": "ablate/planning/analysis_keys.py Analysis",
    "Run": "ablate/run/run.py Run",
    "Param": "ablate/run/schema.py Param",
    "Metric": "ablate/run/metrics/metric.py Metric",
    "Fingerprint": "ablate/run/fingerprint.py data_fingerprint",
    "RunDir": "ablate/run/rundir.py RunDir",
    "Store": "ablate/store/store.py Store",
    "Ledger": "ablate/store/ledger.py Ledger",
    "Look": "ablate/store/looks.py InterimLook",
    "Launcher": "ablate/running/launchers/__init__.py Launcher",
    "Fault": "ablate/training/faults.py Fault",
    "Pilot": "ablate/store/pilots.py PilotDir",
    "Slot": "ablate/running/launchers/__init__.py Slot",
    "Training": "ablate/training/training.py Training",
    "Feed": "ablate/data/batches.py Feed",
    "Task": "ablate/training/task/__init__.py Task",
    "Estimate": "ablate/analysis/stats/estimate.py Estimate",
    "Verdict": "ablate/analysis/stats/gains.py verdict",
}
TABLE = "| noun | meaning | owner |\n|---|---|---|\n"


def meaning(file: str, name: str) -> str:
    """The first sentence of a docstring, on one line."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    body = ast.parse((REPOSITORY / file).read_text()).body
    owners = [node for node in body if isinstance(node, kinds) and node.name == name]
    assert owners, f"{file} has no {name}"
    text = " ".join((ast.get_docstring(owners[-1]) or "").split())
    return re.split(r"(?<=[^.])\.(?= |$)", text)[0]


def page() -> str:
    """Return the page with the table of this code."""
    rows = []
    for noun, owner in OWNERS.items():
        file, name = owner.split()
        rows.append(f"| {noun} | {meaning(file, name)} | [`{file}`](../{file}) `{name}` |\n")
    by_hand, _, _ = PAGE.read_text().partition(TABLE)
    return by_hand + TABLE + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
