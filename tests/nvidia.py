"""A machine with GPUs, for tests: an `nvidia-smi` that tells of them, and a stand-in for CUDA.

Workers of the stand-in compute on the CPU. They are processes like any other: what is tried is how
GPUs are found, tried out, handed to workers and given up.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

# As nvidia-smi prints it; `-L` and queries are all that is asked.
TOOL = """#!{python} -SE
import json, sys, time
from pathlib import Path

state = json.loads(Path({state!r}).read_text())
Path({log!r}).open("a").write(" ".join(sys.argv[1:]) + "\\n")
if "hang" in state:
    time.sleep(state["hang"])
if "says" in state:
    print(state["says"])
elif sys.argv[1:] == ["-L"]:
    for gpu in state["gpus"]:
        print(f"GPU {{gpu['index']}}: {{gpu['name']}} (UUID: {{gpu['uuid']}})")
        for n, (profile, uuid) in enumerate(gpu.get("slices", ())):
            print(f"  MIG {{profile:<12}}Device {{n:>2}}: (UUID: {{uuid}})")
    print(state.get("strays", ""))
else:
    query, = [a for a in sys.argv[1:] if a.startswith("--query-")]
    assert "--format=csv,noheader,nounits" in sys.argv
    of, _, keys = query.partition("=")
    for entry in state["apps" if of == "--query-compute-apps" else "gpus"]:
        print(", ".join(str(entry.get(key, "[N/A]")) for key in keys.split(",")))
sys.exit(state.get("code", 0))
"""

# A worker that was told to use "cuda" computes on the CPU, unless its GPU is said to be broken.
STAND_IN = """
import importlib.util, json, os, sys
from pathlib import Path

HERE = Path(__file__).parent
owners = []

def touch(what):
    import torch
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    with open(HERE / "touched", "a") as file:
        file.write(f"{what} {gpu} {os.environ['CUDA_DEVICE_ORDER']}\\n")
    fault = json.loads((HERE / "faults").read_text()).get(f"{what} {gpu}")
    if fault == "hang":
        import time
        time.sleep(1000)
    if fault == "exclusive":  # as CUDA's compute mode: one process at a time
        import fcntl
        owner = open(HERE / f"owner of {gpu}", "a")
        owners.append(owner)
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fault = "CUDA error: all CUDA-capable devices are busy or unavailable"
        else:
            return
    if fault == "crash":
        os.abort()
    if fault:
        raise torch.AcceleratorError(fault)

def worker_patched(worker):
    from ablate.training import answers, faults
    train, describe = worker._train, answers.ANSWERS["describe"]

    def _train(rundir, attempt, options, stopping):
        if options["device"] == "cuda":
            touch("run")
        return train(rundir, attempt, {**options, "device": "cpu", "threads": 1}, stopping)

    def kernel(question, progress):
        try:
            touch("kernel")
        except Exception as error:
            return {"why": faults.line(error)}
        return {"why": None}

    worker._train = _train
    answers.ANSWERS["kernel"] = kernel
    answers.ANSWERS["describe"] = lambda q, progress: describe({**q, "device": "cpu"}, progress)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "ablate.training.worker":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), worker_patched(module))
        return spec

sys.meta_path.insert(0, Finder())
"""


def gpu(index: int, *slices: str, **more: Any) -> dict[str, Any]:
    """A GPU as the tool tells of it; `slices`: profiles of its MIG devices."""
    return {
        "index": index,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": f"GPU-{index}0000000-aaaa-bbbb-cccc-00000000000{index}",
        "slices": [
            (profile, f"MIG-{index}{n}000000-aaaa-bbbb-cccc-00000000000{n}")
            for n, profile in enumerate(slices)
        ],
        **{"memory.used": 4, "memory.total": 81559, "memory.free": 81555},
        **{"utilization.gpu": 0, "power.draw": 70.12, "driver_version": "550.54.15"},
        **more,
    }


EIGHT = [*map(gpu, range(6)), gpu(6, "3g.40gb", "3g.40gb"), gpu(7, "1g.10gb", "1g.10gb")]


class Machine:
    """Its GPUs, and what goes wrong with them, changed at any time."""

    def __init__(self, folder: Path, *gpus: dict[str, Any]) -> None:
        folder.mkdir()
        self.folder = folder
        state, log, tool = folder / "state", folder / "asked", folder / "nvidia-smi"
        tool.write_text(TOOL.format(python=sys.executable, state=str(state), log=str(log)))
        tool.chmod(0o755)
        log.touch()
        (folder / "sitecustomize.py").write_text(STAND_IN)
        self.has([*gpus])
        self.breaks({})

    def has(self, gpus: list[dict[str, Any]], **state: Any) -> None:
        """What the tool tells. `apps`: rows of compute processes; `says`, `code`, `hang`: it fails;
        `strays`: another line."""
        (self.folder / "state").write_text(json.dumps({"gpus": gpus, "apps": [], **state}))

    def breaks(self, faults: dict[str, str]) -> None:
        """{"kernel UUID" or "run UUID": message of the AcceleratorError that it raises}; "hang" and
        "crash" are what they say; "exclusive": one process at a time gets the GPU."""
        (self.folder / "faults").write_text(json.dumps(faults))

    def asked(self) -> list[str]:
        """Each time that the tool was called."""
        return (self.folder / "asked").read_text().splitlines()

    def touched(self) -> list[tuple[str, str, str]]:
        """(kernel | run, CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER) of every process with a GPU."""
        lines = (self.folder / "touched").read_text().splitlines()
        return [tuple(line.split(" ")) for line in lines]  # type: ignore[misc]

    @property
    def path(self) -> str:
        """PATH with the tool."""
        return f"{self.folder}{os.pathsep}{os.environ['PATH']}"

    @property
    def stand_in(self) -> dict[str, str]:
        """What a command has in its environment that shall take the stand-in for CUDA."""
        paths = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PATH": self.path, "PYTHONPATH": os.pathsep.join(paths)}
