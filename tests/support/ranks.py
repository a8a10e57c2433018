"""Train on several ranks, and read what their runs came to."""

from __future__ import annotations

import json
from pathlib import Path

import nvidia
from conftest import Shell

from ablate.run.rundir import RunDir

PLACES = {"seconds", "images_per_s", "peak_bytes", "utilisation", "env_sha256", "ranks"}
QUICK = ("data=digits", "recipe=quick", "model.depth=2", "train.steps=6", "seeds=1")


def results_by_run(shell: Shell) -> dict[str, tuple]:
    """Read each run's result, except for times and places, and its predictions file."""
    found = {}
    for folder in (shell.folder / "runs" / "runs").iterdir():
        same = json.loads((folder / "result.json").read_text())
        same = json.dumps({key: value for key, value in same.items() if key not in PLACES})
        found[folder.name] = same, (folder / "predictions.npy").read_bytes()
    return found


def predictions(found: dict[str, tuple]) -> dict[str, bytes]:
    """Take the predictions files out of what `results_by_run` read."""
    return {run: table for run, (_, table) in found.items()}


def train_on_ranks(ranks: int, folder: Path, *words: str) -> dict[str, tuple]:
    """Run a sweep in `folder`/RANKS, each run on so many ranks, and read its results."""
    shell = Shell(folder / str(ranks))
    shell.folder.mkdir(parents=True)
    shell("sweep", *words, f"launcher.cores_per_run={ranks}", "--quiet", "--yes")
    for env in (shell.folder / "runs" / "runs").glob("*/result.json"):
        assert json.loads(env.read_text())["ranks"] == ranks
    return results_by_run(shell)


# The GPUs of one run on two ranks, as CUDA_VISIBLE_DEVICES names them.
GROUP = ",".join(nvidia.gpu(n)["uuid"] for n in (0, 1))


def children(shell: Shell) -> list[int]:
    """List the process ids of the ranks beyond the first of a run that has a checkpoint."""
    runs = shell.folder / "runs"
    for folder in (*runs.glob("runs/*"), *runs.glob("attempts/*/*")):
        notes = RunDir(folder).lock.notes()
        if RunDir(folder).checkpoints() and notes.ranks and RunDir(folder).lock.is_held():
            return [int(pid) for pid in notes.ranks.split()]
    return []
