"""What a result is: the keys that a worker writes into result.json, and of what type each is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ablate.shared.files import is_number, is_shallow, is_text
from ablate.shared.metrics import TASKS

FINAL = ("finished", "diverged", "pruned")  # results: a retry would give the same bits


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _some(one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Names, each with such a value or null."""
    return lambda value: (
        isinstance(value, dict) and all(v is None or one(v) for v in value.values())
    )


def _is_shares(value: Any) -> bool:
    """{split: [images, of how many]}"""
    return isinstance(value, dict) and all(
        split in ("train", "validation", "test")
        and isinstance(share, list)
        and [type(number) for number in share] == [int, int]
        for split, share in value.items()
    )


def _is_also(value: Any) -> bool:
    """{name of a set: what it was tested with, as the result says of the own set}"""
    return isinstance(value, dict) and all(
        isinstance(one, dict)
        and _some(is_number)(one.get("test"))
        and is_text(one.get("predictions_sha256"))
        and is_text(one.get("data_sha256"))
        and all(_is_shares(one.get(key, {})) for key in ("left_out", "shared"))
        for one in value.values()
    )


_NUMBERS = (
    *("step", "seconds", "train_loss", "prior_loss", "micro_batch", "threads", "parameters"),
    *("multiply_adds", "peak_bytes", "images_per_s", "utilisation"),
)
_TEXTS = (
    *("metrics_sha256", "predictions_sha256", "weights_sha256", "env_sha256", "start_sha256"),
    *("tokens_sha256", "kernel", "digest", "fingerprint", "device", "torch", "execution"),
)
_RESULT: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_NUMBERS, is_number),
    **dict.fromkeys(_TEXTS, is_text),
    **dict.fromkeys(("collapsed", "deterministic", "tf32", "cudnn_benchmark"), _is_bool),
    **dict.fromkeys(("test", "validation", "train"), _some(is_number)),
    **{"plugins": _some(is_text), "probes_sha256": _some(is_text)},
    **dict.fromkeys(("left_out", "overlap"), _is_shares),
    "also": _is_also,
    "declared": lambda value: isinstance(value, list) and all(map(is_text, value)),
}
# What a test set's scores have in every finished run, by its task, which a result does not say.
_SCORES = [{"n", *(m.key for m in task.metrics if not m.needs)} for task in TASKS.values()]


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
        if value is not None and not _RESULT.get(key, is_shallow)(value):
            return None, f"{key}: {value!r:.60} is none that a result can hold"
    return tree, ""


def is_scored(result: Mapping[str, Any]) -> bool:
    """Has it what tables and searches read of it?"""
    if result["status"] != "finished":
        return True
    test = result.get("test") or {}
    if declared := result.get("declared"):  # by a trainer of the user's own
        return all(test.get(name) is not None for name in declared)
    return any(all(test.get(name) is not None for name in names) for names in _SCORES)
