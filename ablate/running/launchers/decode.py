"""Decodes and checks a dataset before anything trains."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ablate.running.launchers import Ask
from ablate.shared import decoded
from ablate.shared.decoded import facts, named, words
from ablate.shared.errors import UserError
from ablate.shared.files import read_json
from ablate.shared.spec import seeded


def decode(spec: Mapping[str, Any], store: Path, watching: Any, ask: Ask) -> None:
    """Check the decoded dataset of a plain spec, or decode it: once a drive.

    Raises UserError for a bad image and as `remarks` does, else as `ask` does.
    """
    data, cache = spec["data"], store / "cache"
    check(data, store, watching.say)
    new = not (cache / data["fingerprint"] / decoded.META).exists()
    if new:
        question = {"spec": seeded(spec, 0), "cache": str(cache)}
        ask("prepare", question, functools.partial(watching.reading, data["name"]))
    for line in remarks(data, store):
        if new:
            watching.say(line)


def remarks(data: Mapping[str, Any], store: Path) -> list[str]:
    """List remarks on a decoded dataset: images that are left out, or are in two splits.

    Raises UserError for images in two splits if `data.overlap` is "error".
    """
    meta = read_json(store / "cache" / data["fingerprint"] / decoded.META)
    found = {key: f"data={data['name']}: {text}" for key, text in words(facts(meta)).items()}
    if "overlap" in found and data.get("overlap") == "error":
        raise UserError(
            f"data.overlap: {found['overlap']}; remove the images, or give data.overlap=say"
        )
    if "left_out" in found:
        lines = [line for split in decoded.SPLITS for line in meta["left_out"].get(split, ())]
        found["left_out"] += f": {named(list(dict.fromkeys(lines)))}"
    return [*found.values()]


def check(data: Mapping[str, Any], store: Path, say: Callable[[str], None]) -> None:
    """Check a decoded dataset against its hashes. A damaged one is discarded, and runs that are
    half trained on it begin again."""
    fingerprint, cache = data["fingerprint"], store / "cache"
    home = cache / fingerprint
    if not home.is_dir():
        return
    if (size := decoded.size(home)) > decoded.LARGE:
        say(f"data={data['name']}: checking its {size / 1e9:,.0f} GB")
    wrong = decoded.damage(home)
    if wrong is None:
        return
    say(f"data={data['name']}: {home}: {wrong}; decoding it again")
    decoded.discard(cache, fingerprint)
    if wrong != decoded.OLDER:
        decoded.begin_again(store / "runs", fingerprint)
