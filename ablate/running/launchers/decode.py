"""Decodes and checks datasets before anything trains."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ablate.running.launchers import Ask
from ablate.shared import decoded
from ablate.shared.decoded import facts, named, words
from ablate.shared.errors import UserError
from ablate.shared.files import read_json
from ablate.shared.spec import also_of, datasets_of


def decode(specs: Iterable[Mapping[str, Any]], store: Path, watching: Any, ask: Ask) -> None:
    """Check the decoded datasets of plain specs, or decode them: once a drive.

    Raises UserError for a bad image, for classes that are not those that are learnt, and as
    `remarks` does, else as `ask` does.
    """
    specs = list(specs)
    for data in {one["fingerprint"]: one for spec in specs for one in datasets_of(spec)}.values():
        _decode(data, store, watching, ask)
    pairs = {
        (spec["data"]["fingerprint"], other["fingerprint"]): (spec["data"], other, "text" in spec)
        for spec in specs
        for other in also_of(spec)
    }
    for own, other, texts in pairs.values():
        about = {"data": own, "other": other, "texts": texts, "cache": str(store / "cache")}
        answer = ask("beside", about)
        if answer["line"]:
            watching.say(answer["line"])
        if answer["shared"] and "error" in (own.get("overlap"), other.get("overlap")):
            raise UserError(
                f"data.overlap: eval.also: {other['name']}: {answer['shared']:,} of its images are "
                f"training images of data={own['name']}; remove them, or give data.overlap=say"
            )


def _decode(data: Mapping[str, Any], store: Path, watching: Any, ask: Ask) -> None:
    cache = store / "cache"
    check(data, store, watching.say)
    new = not (cache / data["fingerprint"] / decoded.META).exists()
    if new:
        question = {"data": data, "cache": str(cache)}
        ask("prepare", question, functools.partial(watching.reading, data["name"]))
    for line in remarks(data, store):
        if new:
            watching.say(line)


def remarks(data: Mapping[str, Any], store: Path) -> list[str]:
    """List remarks on a decoded dataset: images that are left out, or are in two splits.

    Raises UserError for images in two splits if `data.overlap` is "error".
    """
    meta = read_json(store / "cache" / data["fingerprint"] / decoded.META)
    lines = {key: f"data={data['name']}: {text}" for key, text in words(facts(meta)).items()}
    if "overlap" in lines and data.get("overlap") == "error":
        raise UserError(
            f"data.overlap: {lines['overlap']}; remove the images, or give data.overlap=say"
        )
    if "left_out" in lines:
        names = [name for split in decoded.SPLITS for name in meta["left_out"].get(split, ())]
        lines["left_out"] += f": {named(list(dict.fromkeys(names)))}"
    return [*lines.values()]


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
    decoded.begin_again(store / "runs", fingerprint)
    decoded.discard(cache, fingerprint)
