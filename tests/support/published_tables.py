"""Make sweeps that have the layout and the values of published tables."""

from __future__ import annotations

import csv
from dataclasses import replace

from ablate.analysis import paper
from ablate.planning.cell import Column, ColumnGroup
from support.plans import with_sections
from support.tables import finished, make_plan, note, tabulate

# The headings of the published tables, group by group.
LAID_OUT = {
    "T2R": {"": ["220k, 224", "220k, 384", "1.1M, 224", "1.1M, 384"]},
    "T3": {
        "Natural": ["Caltech101", "CIFAR-100", "DTD", "Flowers102", "Pets", "Sun397", "SVHN"],
        "Specialized": ["Camelyon", "EuroSAT", "Resisc45", "Retinopathy"],
        "Structured": [
            *("Clevr-Count", "Clevr-Dist", "DMLab", "dSpr-Loc", "dSpr-Ori", "KITTI-Dist"),
            *("sNORB-Azim", "sNORB-Elev"),
        ],
    },
    "T4": {"": ["220k", "1.1M"]},
    "T5": {"": ["1/16", "1/8", "1/4", "1/2", "1"]},
}
with open(paper.FILE, newline="") as file:
    PRINTED = [*csv.DictReader(file)]
THEIRS = {  # our sets, in the order of the published columns
    **{"Natural": "caltech101 cifar100 dtd flowers102 pets sun397 svhn"},
    **{"Specialized": "camelyon eurosat resisc45 retinopathy"},
    "Structured": "clevr_count clevr_distance dmlab dsprites_position dsprites_orientation kitti "
    "smallnorb_azimuth smallnorb_elevation",
}


def published(name, **settings):
    """Make the table of a sweep with the values of a published table as results, one run a cell,
    and that table's remarks as footnotes."""
    printed = [row for row in PRINTED if row["table"] == name]
    headings = [heading for group in LAID_OUT[name].values() for heading in group]
    archs = dict.fromkeys(row["arch"] for row in printed)
    columns = {f"{heading}, {arch}": arch for arch in archs for heading in headings}
    plan = make_plan(["base", "dpn"], tuple(columns), seeds=1, **settings)
    groups = [ColumnGroup(g, {h: h for h in of}) for g, of in LAID_OUT[name].items() if g]
    plan = replace(
        plan,
        columns=tuple(Column(label, {"model.arch": arch}) for label, arch in columns.items()),
        groups=tuple(groups),
    )
    results, remarks = {}, []
    for row in ("base", "dpn"):
        cells = [cell for cell in plan.cells if cell.row == row]
        theirs = [number for number in printed if number["variant"] == row]
        for cell, number in zip(cells, theirs, strict=True):
            results[cell.ids[0]] = finished(float(number["value"]) / 100)
            if number["note"]:
                remarks.append(note("footnote", number["note"], (row, cell.column)))
    table = tabulate(plan, results)
    return replace(table, notes=(*table.notes, *remarks))


# ViT-Base: Dosovitskiy et al. 2021 (arXiv 2010.11929), Table 1.
BASE = {"width": 768, "depth": 12, "heads": 12, "mlp_ratio": 4.0}


def planted(ours, table, **mapped):
    """Make a plan that maps to a published table. `ours`: label -> (arch, data)."""
    plan = make_plan(["vit", "dpn"], tuple(ours))
    cells = []
    for cell in plan.cells:
        arch, data = ours[cell.column]
        data = {**cell.spec.tree["data"], "name": data, "order": "keyed"}
        parent = {"data": {"name": "imagenet1k"}, "train": {"steps": 9}}
        model = {"arch": arch}
        if arch.startswith("B/"):
            model |= {**BASE, "patch": int(arch.removeprefix("B/"))}
        cells.append(with_sections(cell, data=data, model=model, parent=parent))
    return replace(
        plan,
        cells=tuple(cells),
        columns=tuple(Column(c, {"model.arch": arch}) for c, (arch, _) in ours.items()),
        paper={"table": table, "rows": {"vit": "base", "dpn": "dpn"}, **mapped},
    )


def against_table_3(store):
    """Return the published figures and the table of a sweep of 38 columns on Table 3's data."""
    ours = " ".join(THEIRS.values()).split()
    columns = {f"{d}, {a}": (a, f"vtab_{d}") for a in ("B/32", "B/16") for d in ours}
    plan = planted(columns, "T3")
    found = paper.published_figures(plan, store)
    results = {
        run: finished(0.6 + (0.01 + 0.0001 * seed) * (cell.row == "dpn"))
        for cell in plan.cells
        for seed, run in cell.ids.items()
    }
    return found, tabulate(plan, results, paper=found)
