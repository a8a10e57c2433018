"""Before anything trains: a set is decoded, and its bytes are those that were written."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ablate.running.launchers import Ask
from ablate.shared import decoded
from ablate.shared.errors import UserError
from ablate.shared.rundir import RunDir, read_json


def decode(spec: Mapping[str, Any], store: Path, watching: Any, ask: Ask) -> None:
    """The set of a plain spec, checked where it is decoded, else decoded: once a drive.

    Raises UserError for a bad image and as `overlap` does, else what `ask` raises.
    """
    data, cache = spec["data"], store / "cache"
    check(data, store, watching.say)
    new = not (cache / data["fingerprint"] / decoded.META).exists()
    if new:
        question = {"spec": {**spec, "seed": 0}, "cache": str(cache)}
        ask("prepare", question, functools.partial(watching.reading, data["name"]))
    if (line := overlap(data, store)) and new:
        watching.say(line)


def overlap(data: Mapping[str, Any], store: Path) -> str | None:
    """How many images of a decoded set are in two splits, in words; None: in one each.

    Raises UserError where there are some and `data.overlap` is "error".
    """
    meta = read_json(store / "cache" / data["fingerprint"] / decoded.META)
    counts = meta.get("overlap") if isinstance(meta, dict) else None
    if not counts:
        return None
    parts = [f"{n:,} of {meta['counts'][split]:,} {split} images" for split, n in counts.items()]
    text = f"data={data['name']}: {' and '.join(parts)} are in another split, too, pixel for pixel"
    if data.get("overlap") == "error":
        raise UserError(f"data.overlap: {text}; take them out, or give data.overlap=say")
    return text


def check(data: Mapping[str, Any], store: Path, say: Callable[[str], None]) -> None:
    """A decoded set that is not as it was written is said to be so, and is none from now on.

    What is half trained on a damaged one begins again: nobody knows since when it is damaged.
    """
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
        for path in (store / "runs").glob("*"):
            run = RunDir(path)
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                if run.read_spec()["data"]["fingerprint"] != fingerprint or run.has_result():
                    continue
                if run.lock.acquire():
                    run.drop_checkpoints()
                    run.lock.release()
