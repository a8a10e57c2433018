"""What a trainer saves, as bytes and back: nested dicts, lists and tuples of tensors, arrays,
numbers, texts, bytes and None; and what two folders of a run have in common. Nothing is pickled.

A state is a tree of JSON, whose leaves name arrays of bytes beside it. So neither torch nor a type
of numpy's is needed to write a file, and bits come back as they were.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ablate.shared.errors import UserError
from ablate.shared.rundir import RunDir
from ablate.training import sealed_file

Arrays = dict[str, np.ndarray]  # uint8 (bytes,)
KIND = "~"  # the key that says that an object is no dict of the user's


def encode(state: Any) -> tuple[str, Arrays]:
    """(JSON, the bytes that it names). Raises UserError for what can't be saved, by its place."""
    arrays: Arrays = {}
    return json.dumps(_encoded(state, "state", arrays)), arrays


def decode(text: str, arrays: Mapping[str, np.ndarray]) -> Any:
    """The state; tensors are on the CPU."""
    return _decoded(json.loads(text), arrays)


def _encoded(value: Any, place: str, arrays: Arrays) -> Any:
    torch = sys.modules.get("torch")
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {KIND: "float", "is": value.hex()}
    if isinstance(value, Mapping):
        pairs = value.items()
        return {KIND: "dict", "is": [list(_pair(k, v, place, arrays)) for k, v in pairs]}
    if isinstance(value, list | tuple):
        parts = [_encoded(part, f"{place}[{n}]", arrays) for n, part in enumerate(value)]
        return parts if isinstance(value, list) else {KIND: "tuple", "is": parts}
    name = str(len(arrays))
    if isinstance(value, bytes | bytearray):
        arrays[name] = np.frombuffer(bytes(value), np.uint8)
        return {KIND: "bytes", "at": name}
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        kept = np.ascontiguousarray(value)
        arrays[name] = kept.reshape(-1).view(np.uint8)
        of = {"dtype": kept.dtype.str, "shape": list(np.shape(value)), "at": name}
        return {KIND: "scalar" if isinstance(value, np.generic) else "array", **of}
    if torch is not None and isinstance(value, torch.Tensor) and not value.is_sparse:
        kept = value.detach().cpu().contiguous()
        arrays[name] = kept.reshape(-1).view(torch.uint8).numpy()
        of = {"dtype": str(kept.dtype).removeprefix("torch."), "shape": list(kept.shape)}
        return {KIND: "tensor", **of, "at": name}
    raise UserError(
        f"run.save: {place}: a {type(value).__name__} can't be saved; give tensors, arrays, "
        f"numbers, texts, bytes, None, and dicts, lists and tuples of them"
    )


def _pair(key: Any, value: Any, place: str, arrays: Arrays) -> Iterator[Any]:
    yield _encoded(key, f"{place}: key {key!r}", arrays)
    yield _encoded(value, f"{place}[{key!r}]", arrays)


def _decoded(tree: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(tree, list):
        return [_decoded(part, arrays) for part in tree]
    if not isinstance(tree, dict):
        return tree
    match tree[KIND]:
        case "float":
            return float.fromhex(tree["is"])
        case "dict":
            return {_decoded(key, arrays): _decoded(part, arrays) for key, part in tree["is"]}
        case "tuple":
            return tuple(_decoded(part, arrays) for part in tree["is"])
        case "bytes":
            return arrays[tree["at"]].tobytes()
        case "tensor":
            import torch

            dtype, content = getattr(torch, tree["dtype"]), arrays[tree["at"]].copy()
            if not content.size:
                return torch.empty(tree["shape"], dtype=dtype)
            return torch.from_numpy(content).view(dtype).reshape(tree["shape"])
        case "array" | "scalar":
            raw = arrays[tree["at"]].copy().view(np.dtype(tree["dtype"])).reshape(tree["shape"])
            return raw if tree[KIND] == "array" else raw[()]
    raise ValueError(tree[KIND])


# --- Two folders of a run -------------------------------------------------------------------------

TIMES = ("seconds", "peak_bytes", "env_sha256")  # of a result: no two runs have the same


def compare(one: Path, other: Path) -> dict[str, Any]:
    """What two folders of a run have in common, by every bit: {"parts": how many there are,
    "differing": the names of those that differ}; of the newest saved states, or of the results
    where both have ended, and of the metrics."""
    sides = [_parts(RunDir(folder)) for folder in (one, other)]
    names = [*dict.fromkeys([*sides[0], *sides[1]])]
    differing = [name for name in names if sides[0].get(name) != sides[1].get(name)]
    return {"parts": len(names), "differing": differing}


def _parts(folder: RunDir) -> dict[str, Any]:
    metrics = {"metrics.jsonl": folder.metrics_content()}
    if (result := folder.read_result()) is not None:
        return {**{k: v for k, v in result.items() if k not in TIMES}, **metrics}
    [(_, newest), *_] = folder.checkpoints()
    arrays, told = sealed_file.read_arrays(newest)
    parts: dict[str, Any] = {}
    _walk(json.loads(told["state"]), "state", arrays, parts)
    return {**parts, **metrics}


def _walk(tree: Any, place: str, arrays: Any, parts: dict[str, Any]) -> None:
    """Every leaf of a state by its place, an array by its bytes."""
    if isinstance(tree, list):
        for n, part in enumerate(tree):
            _walk(part, f"{place}[{n}]", arrays, parts)
    elif isinstance(tree, dict) and isinstance(tree.get("is"), list):
        for n, part in enumerate(tree["is"]):
            if tree[KIND] == "dict":
                key = part[0]
                _walk(part[1], f"{place}[{key!r}]", arrays, parts)
            else:
                _walk(part, f"{place}[{n}]", arrays, parts)
    else:
        told = json.dumps(tree)
        has = isinstance(tree, dict) and "at" in tree
        parts[place] = (told, arrays[tree["at"]].tobytes() if has else b"")
