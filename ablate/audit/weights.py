"""The weights of a finished run as a file for others."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from ablate.running.launchers import Ask
from ablate.shared.errors import Failure, UserError
from ablate.shared.files import read_file, sha256_of, write_whole
from ablate.store.store import Store

Names = Literal["ablate", "timm"]
NAMES: tuple[Names, ...] = get_args(Names)


def export_weights(store: Store, run: str, file: Path, names: Names, ask: Ask) -> None:
    """Write the weights of a run to `file`, in safetensors, its tensors under our names or timm's.

    With timm's its metadata say with which arguments VisionTransformer is the run's model. Raises
    UserError for a run that has none, or whose model timm has not; Failure for weights that are not
    what the run left.
    """
    folder = store.rundir(run)
    result = folder.read_result() or {}
    if result.get("status") != "finished":
        raise UserError(f"--weights: {run} has not finished, so it has no weights")
    if not folder.weights.exists() or sha256_of(folder.weights) != result["weights_sha256"]:
        raise Failure(f"{folder.weights}: missing, or edited since the run ended")
    if names == "ablate":
        write_whole(file, read_file(folder.weights))
        return
    question = {"spec": folder.read_spec(), "weights": str(folder.weights), "file": str(file)}
    ask("timm", question)
