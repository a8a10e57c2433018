"""What a result is: the keys that a worker writes into result.json, and of what type each is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from ablate.shared.files import is_shallow
from ablate.shared.metrics import TASKS
from ablate.shared.schema import fits

FINAL = ("finished", "diverged", "pruned")  # results: a retry would give the same bits


_SCORES = Mapping[str, float | None]
_SHARES = Mapping[Literal["train", "validation", "test"], tuple[int, int]]  # images, of how many
_NUMBERS = (
    *("step", "seconds", "train_loss", "prior_loss", "micro_batch", "threads", "parameters"),
    *("multiply_adds", "peak_bytes", "images_per_s", "utilisation", "ranks"),
)
_TEXTS = (
    *("metrics_sha256", "predictions_sha256", "weights_sha256", "env_sha256", "start_sha256"),
    *("tokens_sha256", "kernel", "digest", "fingerprint", "device", "torch", "execution"),
)
_RESULT: dict[str, Any] = {
    **dict.fromkeys(_NUMBERS, float),
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(("collapsed", "deterministic", "tf32", "cudnn_benchmark"), bool),
    **dict.fromkeys(("test", "validation", "train"), _SCORES),
    **dict.fromkeys(("plugins", "probes_sha256"), Mapping[str, str | None]),
    **dict.fromkeys(("left_out", "overlap"), _SHARES),
    "also": Mapping[str, Mapping[str, Any]],
    "declared": tuple[str, ...],
}
# Of each set in `also` what the result says of the own one, too.
_ALSO: dict[str, Any] = {
    **{"test": _SCORES, "predictions_sha256": str, "data_sha256": str},
    **dict.fromkeys(("left_out", "shared"), _SHARES | None),
}
# What a test set's scores have in every finished run, by its task, which a result does not say.
_MEASURED = [{"n", *(m.key for m in task.metrics if not m.needs)} for task in TASKS.values()]


def parse_result(content: bytes) -> tuple[dict[str, Any] | None, str]:
    """The result that a file's bytes are, and ""; or None, and why they are none that a worker
    writes."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError) as error:
        return None, f"is no JSON ({error})"
    if not isinstance(tree, dict) or tree.get("status") not in FINAL:
        return None, f"has no status: expected one of {', '.join(FINAL)}"
    for key, value in tree.items():
        held = fits(value, _RESULT[key] | None) if key in _RESULT else is_shallow(value)
        also = (value or {}).values() if key == "also" and held else ()
        if not held or not all(fits(one.get(k), t) for one in also for k, t in _ALSO.items()):
            return None, f"{key}: {value!r:.60} is none that a result can hold"
    return tree, ""


def is_scored(result: Mapping[str, Any]) -> bool:
    """Has it what tables and searches read of it?"""
    if result["status"] != "finished":
        return True
    test = result.get("test") or {}
    if declared := result.get("declared"):  # by a trainer of the user's own
        return all(test.get(name) is not None for name in declared)
    return any(all(test.get(name) is not None for name in names) for names in _MEASURED)
