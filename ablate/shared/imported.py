"""A run that was trained elsewhere: its plain tree is that of a trainer of the user's own, which
nobody here has.

Its id hashes the sheet's name, its place in the sheet and what its metrics mean, never a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablate.shared.own import TRAINER, name_of

IMPORTED = "imported "  # begins the trainer's name; one of the user's own is module:function
IMPORT = "imported"  # of the event of a result: where in which file it stands, and its numbers
_KEY = {"type": "str", "choices": None, "nullable": False}


def is_imported(tree: Mapping[str, Any]) -> bool:
    """Is it the plain tree of such a run?"""
    return TRAINER in tree and name_of(tree).startswith(IMPORTED)


def imported_tree(
    sheet: str, row: str, column: str, metrics: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The plain tree of the runs in this place of a sheet, but for the seed. `metrics`: each as
    `own.metric_said` gives it."""
    return {
        TRAINER: {"name": f"{IMPORTED}{sheet}", "row": row, "column": column},
        "keys": {"row": _KEY, "column": _KEY},
        "metrics": list(metrics),
        "code": {"files": {}, "packages": [], "folder": "", "fork_safe": False},
    }
