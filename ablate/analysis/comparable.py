"""Tells whether a cell was trained as the published runs were: on their data, at their size, as
long, by their recipe. Only then values are subtracted."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from ablate.analysis.captions import names
from ablate.planning.cell import Cell, spec_parents
from ablate.shared.errors import UserError

# A regime in our words, on ImageNet-1k where they say no data: what values may be subtracted from.
RECIPES: dict[str, Mapping[str, Any]] = {
    "AugReg 93k steps bs4096": {"recipe": "augreg", "train.examples": 380_506_500},
    "better-plain-vit": {"recipe": "s16_plus"},
    "DeiT": {"recipe": "deit"},
    "300 ep": {"recipe": "dtn"},
    "VTAB-1k finetune from imagenet1k 2500 steps bs512": {"recipe": "vtab", "model.rep": True},
}
# What the published runs searched over values that aren't printed: no difference where ours did.
SEARCHED = {"VTAB-1k finetune from imagenet1k 2500 steps bs512": {"optim.lr"}}
RECIPES |= {
    f"train fraction {share}, linear decoder, 10 seeds": {
        **{"recipe": "segment", "data": "ade20k", "model.rep": True},
        "data.fraction": float(Fraction(share)),
    }
    for share in ("1/16", "1/8", "1/4", "1/2", "1")
}
# Theirs -> ours.
DATA = {"imagenet1k": "imagenet1k", "augmented-mnist": "mnist", "sun397": "sun397"}
DATA["imagenet21k->imagenet1k"] = "imagenet21k->imagenet1k"
DATA["ade20k"] = "imagenet1k->ade20k"
VTAB = "vtab-"  # begins the published names of its sets
DATA |= {
    f"{VTAB}{group}/{theirs}": f"imagenet1k->vtab_{ours}"
    for group, sets in {
        "natural": {
            **{"Caltech101": "caltech101", "CIFAR-100": "cifar100", "DTD": "dtd"},
            **{"Flowers102": "flowers102", "Pets": "pets", "Sun397": "sun397", "SVHN": "svhn"},
        },
        "specialized": {
            **{"Camelyon": "camelyon", "EuroSAT": "eurosat"},
            **{"Resisc45": "resisc45", "Retinopathy": "retinopathy"},
        },
        "structured": {
            **{"Clevr-Count": "clevr_count", "Clevr-Dist": "clevr_distance", "DMLab": "dmlab"},
            **{"dSpr-Loc": "dsprites_position", "dSpr-Ori": "dsprites_orientation"},
            "KITTI-Dist": "kitti",
            **{"sNORB-Azim": "smallnorb_azimuth", "sNORB-Elev": "smallnorb_elevation"},
        },
    }.items()
    for theirs, ours in sets.items()
}
MODEL = ("dropout", "drop_path", "head_bias", "rep", "input")  # what of it is a recipe's
MACHINES = {"train.micro_batch", "train.deterministic", "train.compile"}
MACHINES |= {"eval.every", "eval.batch"}


def tested_on(dataset: str) -> str:
    """Return our name of the data that published runs end on; theirs where we have none."""
    return DATA.get(dataset, dataset).rpartition("->")[2]


class Recipes:
    """Composes each of our recipes once."""

    def __init__(self, store: Path) -> None:
        from ablate.planning.compose import Composer

        self.composer = Composer(store)
        self.known: dict[tuple[str, str], Mapping[str, Any] | None] = {}

    def difference(self, cell: Cell, column: tuple[str, str, str]) -> str:
        """Name the differences from the published data, size, steps and recipe; "" for none."""
        _, dataset, regime = column
        on = [tree["data"]["name"] for tree in (cell.spec, *spec_parents(cell.spec))]
        ours = "->".join(dict.fromkeys(reversed(on)))  # pre-training first
        if DATA.get(dataset) != ours:
            return f"trained on {ours}, the published runs on {dataset}"
        if dataset.startswith(VTAB) and cell.spec["data"].get("order", "stored") == "keyed":
            return "ours 800/200 (data.order=keyed), the published runs have other images"
        if regime not in RECIPES:
            return f"the published training ({regime}) is no recipe of ours"
        arch = str(cell.spec["model"].get("arch") or cell.spec["model"]["name"])
        expected = self._of(regime, arch)
        words = " ".join(f"{key}={value}" for key, value in RECIPES[regime].items())
        if expected is None:
            return f"{words} has no {arch}"
        specs = cell.specs or (cell.spec,)
        chosen = {key for choice in cell.chosen for key in choice.params}
        left_out = MACHINES | (SEARCHED.get(regime, set()) & chosen)
        differing = [
            f"{section}.{key}"
            for section, settings in expected.items()
            for key, value in settings.items()
            if f"{section}.{key}" not in left_out
            and any(spec[section].get(key) != value for spec in specs)
        ]
        return f"{names(differing, 4)} not as in {words}" if differing else ""

    def _of(self, regime: str, arch: str) -> Mapping[str, Any] | None:
        """Compose the settings of a recipe; None for an architecture that it does not know."""
        from ablate.planning.layers import SettingsLayer
        from ablate.shared import spec

        if (regime, arch) not in self.known:
            settings = {"data": "imagenet1k", **RECIPES[regime], "model.arch": arch}
            try:
                tree = self.composer.tree([SettingsLayer("", settings)])
                run = spec.effective(spec.to_tree(self.composer.run(tree, seed=0)))
            except UserError:
                self.known[regime, arch] = None
            else:
                self.known[regime, arch] = {
                    **{section: run[section] for section in ("optim", "train", "augment", "eval")},
                    "model": {key: run["model"][key] for key in MODEL},
                    "data": {key: run["data"][key] for key in ("size", "fraction")},
                }
        return self.known[regime, arch]
