"""Make two sweeps that one table shows side by side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from support.tables import BLOCKS, SPEC, make_plan, plant, tabulate


def sown(name, rows, seeds=3, **how):
    """Make a sweep of rows: label -> (stem, points above the first). Returns its plan and table."""
    plan = make_plan(list(rows), seeds=seeds, **how)
    data = {**SPEC["data"], "name": name}
    cells = tuple(
        replace(
            cell,
            spec={**SPEC, "data": data, "stem": {"name": rows[cell.row][0]}},
            ids={s: f"{name}:{run}" for s, run in cell.ids.items()},
        )
        for cell in plan.cells
    )
    plan = replace(plan, name=name, title=f"Of {name}", cells=cells)
    noise = np.random.default_rng(len(name)).normal(0, 0.1, (len(rows), seeds))
    gains = np.reshape([more for _, more in rows.values()], (-1, 1))
    scores = 80 + gains + np.resize(BLOCKS, seeds) + noise
    return plan, tabulate(plan, plant(plan, dict(zip(rows, scores, strict=True))))


A = {"base": ("none", 0), "dpn": ("dpn", 2), "pre": ("pre", -1), "alone": ("post", 1)}
B = {"plain": ("none", 0), "Dual": ("dpn", -3), "pre": ("rmsnorm", 1), "new": ("post_posemb", 0)}
