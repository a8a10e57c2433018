"""Before anything trains: a set is decoded, and its bytes are those that were written."""

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
    """The set of a plain spec, checked where it is decoded, else decoded: once a drive.

    Raises UserError for a bad image and as `remarks` does, else what `ask` raises.
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
    """What must be known of a decoded set: images that are left out, or in two splits.

    Raises UserError where some are in two and `data.overlap` is "error".
    """
    meta = read_json(store / "cache" / data["fingerprint"] / decoded.META)
    found = {key: f"data={data['name']}: {text}" for key, text in words(facts(meta)).items()}
    if "overlap" in found and data.get("overlap") == "error":
        raise UserError(
            f"data.overlap: {found['overlap']}; take them out, or give data.overlap=say"
        )
    if "left_out" in found:
        lines = [line for split in decoded.SPLITS for line in meta["left_out"].get(split, ())]
        found["left_out"] += f": {named(list(dict.fromkeys(lines)))}"
    return [*found.values()]


def check(data: Mapping[str, Any], store: Path, say: Callable[[str], None]) -> None:
    """A decoded set that is not as it was written is said to be so, and is none from now on. What
    is half trained on a damaged one begins again."""
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
