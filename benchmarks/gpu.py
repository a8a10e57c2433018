"""The first hour on a GPU: what only one can tell, part by part.

    python benchmarks/gpu.py [PART ...] [--out gpu-results] [--again] [--tiny]

Without names all parts run, in this order, each in a process of its own that ends after ten
minutes. A part's lines are printed as they come and kept in OUT/PART.json, with device, driver,
torch and date; a part that is there in full is skipped, but for --again, and a rehearsal is never
taken for the part. So a session that is cut off loses the part it was at. The first three take
about ten minutes. The figures decide:

steps: where B/16 with dropout takes more than 1.2 times the time without, its kernel is not used;
where a step is no faster than with its inputs in turn, they need no stream of their own; where a
deterministic Ti/4 step takes at most 1.05 of the time, `train.deterministic=auto` is true, untried.
agreement: where a line says FAR, runs on a GPU are wrong.
compiled: where Ti/4 in bf16 is 1.3 times as fast, `train.compile=true` pays on a GPU.
packing: where two runs of Ti/4 give less than 1.3 times the steps of one,
`launcher.runs_per_gpu=auto` is no default.
launches: where 5 us each are more than half of a Ti/4 step, steps are CUDA graphs. A wait a step is
that of an epoch's order: here an epoch is a step.
forecast: outside 0.85 to 1.15, `plan --on` assumes otherwise.

--tiny: a rehearsal on whatever is here, a minute on a CPU. A part says what it could not do.
Needs what `ablate` needs; timm for the part `speed`, which says where it is missing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gpu_steps import peak_rate, step_costs
from step import ours, small, theirs
from torch import Tensor, nn

from ablate.data.splits import Split
from ablate.planning.compose import resolve_run
from ablate.run import choices
from ablate.run.build import build_run
from ablate.run.run import Run
from ablate.run.rundir import RunDir
from ablate.running.gpus import find
from ablate.training.bfloat16 import round_weights
from ablate.training.calibrate import random_split
from ablate.training.device import device_of
from ablate.training.model.count import describe
from ablate.training.numerics import choose
from ablate.training.training import Training

LIMIT_S = 600
LATE = (124, 137, -signal.SIGKILL)  # exit codes of timeout(1) and of what it killed
HERE = Path(__file__).resolve().parent
GPU = torch.cuda.is_available()
CPU = torch.device("cpu")
DEVICE = device_of("cuda" if GPU else "cpu")
NO_GPU = "not done: there is no GPU here"
# Of a gradient, relative to the largest entry on a CPU in float32. fp32: sums of some thousand
# products in another order, through norms and two blocks; bf16 rounds each product to 2**-9.
BOUNDS = {"fp32": 1e-3, "bf16": 0.2}
# Architecture, side of the images, batch.
SPEED = [("mu/4", 32, 1024), ("Ti/4", 32, 512), ("S/16", 224, 256), ("B/16", 224, 128)]
TINY_SPEED = [("mu/4", 32, 4)]
ONE_MODEL = ["--only", "Ti/4, bf16"]  # of five, each of which compiles twice for a minute or more
# Architecture, precision and steps: about ten seconds of a run that has the GPU alone.
PACKED = [("Ti/4", "bf16", 250), ("mu/4", "fp32", 1500)]
TINY_PACKED = [("mu/4", "fp32", 10)]
SWEEP = ["recipe=quick", "data=digits", "model.arch=mu/4"]

Lines = Iterator[str]


# --- Parts --------------------------------------------------------------------------------------


def doctor(tiny: bool) -> Lines:
    """The machine and a resume to the same bits; the quick start and its table."""
    few = ["seeds=1", "train.steps=10"] if tiny else []
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield from ablate(folder, "doctor", *few[1:])
        except subprocess.CalledProcessError as error:
            yield f"doctor: exit code {error.returncode}; the quick start runs all the same"
        began = time.perf_counter()
        yield from ablate(folder, "sweep", "quickstart", *few, "--yes")
        yield f"quick start: {time.perf_counter() - began:.0f} s"


def steps(tiny: bool) -> Lines:
    """What a step costs: time, that of its inputs, host, images/s, MFU and memory."""
    yield from step_costs(DEVICE, tiny)
    if not GPU:
        yield f"of memory and MFU: {NO_GPU}"


def agreement(tiny: bool) -> Lines:
    """Gradients of every norm, stem and block, as runs compute them, against a CPU's in float32."""
    kinds = {"norm": choices.NORMS, "stem": choices.STEMS, "block": choices.BLOCKS}
    for kind, names in kinds.items():
        for name in [*names][: 2 if tiny else None]:
            words = ["recipe=quick", "model.arch=mu/4", "model.depth=2", "model.pool=gap"]
            words += ["data.size=32", "train.batch=8"]
            tree, _ = resolve_run([*words, f"{kind}={name}"], Path("runs"))
            run = build_run({**tree, "data": {**tree["data"], "channels": 3}})
            torch.manual_seed(0)
            split = random_split(run.data, run.train.batch, CPU)
            reference = begun(run, split, CPU, "fp32")
            generator = torch.Generator().manual_seed(0)
            for parameter in reference.model.parameters():
                nn.init.normal_(parameter, 0, 0.05, generator=generator)
            reference.model.fit([reference.inputs()[0]])
            state = reference.model.state_dict()
            state = {name: tensor.clone() for name, tensor in state.items()}
            wanted = gradients(reference)
            for precision, bound in BOUNDS.items():
                training = begun(run, split, DEVICE, precision)
                training.model.load_state_dict(state)
                error = float((gradients(training) - wanted).abs().max() / wanted.abs().max())
                far = "" if error <= bound else f"  FAR: over {bound:g}"
                yield f"{kind}={name} {precision}: {error:.1e}{far}"
    if not GPU:
        yield f"{NO_GPU}; this was a CPU against itself"


def launches(tiny: bool) -> Lines:
    """Kernels and waits of a step, beside those that `plan` counts."""
    if not GPU:
        yield NO_GPU
        return
    for arch, side, batch in TINY_SPEED if tiny else SPEED[:2]:
        words = [sys.executable, str(HERE / "profiled.py"), arch, str(side), str(batch)]
        limit_s = 20 if tiny else 120
        try:
            yield from output(["timeout", "--kill-after=1", str(limit_s), *words])
        except subprocess.CalledProcessError as error:
            if error.returncode not in LATE:
                raise
            yield f"not done: torch's profiler did not end in {limit_s} s"
            return


def kill(tiny: bool) -> Lines:
    """A sweep whose processes are killed and that goes on: the bits of one that was left alone."""
    words = ["sweep", *SWEEP, "stem=none,dpn", "seeds=1", "--yes", "--quiet"]
    words += ["train.epochs=60", "launcher.checkpoint_s=0.2"]
    kept = {}
    with tempfile.TemporaryDirectory() as place:
        for name in ("calm", "killed"):
            folder = Path(place, name)
            folder.mkdir()
            if name == "killed":
                with open(folder / "log", "wb") as log:
                    driver = subprocess.Popen(
                        command(*words), cwd=folder, env=environment(), stdout=log, stderr=log
                    )
                while driver.poll() is None and not _has_checkpoint(folder):
                    time.sleep(0.02)
                killed = _kill_all_in(folder)
                if driver.wait() != -signal.SIGKILL:
                    raise RuntimeError("the sweep ended before anything could be killed")
                yield f"killed {killed} processes"
            yield from ablate(folder, *words)
            results = {path.parent.name: path for path in folder.glob("runs/runs/*/result.json")}
            read = {run: json.loads(path.read_text()) for run, path in results.items()}
            keys = ("metrics_sha256", "predictions_sha256", "test")
            kept[name] = {run: [result.get(key) for key in keys] for run, result in read.items()}
    same = kept["calm"] == kept["killed"] and len(kept["calm"]) == 2
    yield "the same bits" if same else f"OTHER bits: {kept}"


def speed(tiny: bool) -> Lines:
    """Steps a second, share of the peak and memory, beside timm's model at the same precision."""
    for arch, side, batch in TINY_SPEED if tiny else SPEED:
        run = small(arch, side)
        work = 6 * describe(run)["multiply_adds"] * batch  # forward and two times that backward
        for precision in ("fp32", "bf16"):
            steps = {"ours": ours(run, DEVICE, precision, batch)}
            steps["deterministic"] = steps["ours"]
            try:
                steps["timm"] = in_precision(theirs(run, DEVICE, batch), precision)
            except ImportError as error:
                yield f"timm is not compared: {error}"
            memory, seconds = {}, {name: list[float]() for name in steps}
            for turn in range(-3, 3 if tiny else 15):
                for name, step in steps.items():
                    compute_as_a_worker(run, precision, name == "deterministic")
                    took, memory[name] = timed(step, 1 if tiny else 10)
                    if turn >= 0:
                        seconds[name].append(took)
            mine = statistics.median(seconds["ours"])
            line = f"{arch} at {side} px, batch {batch}, {precision}: {1 / mine:.2f} steps/s"
            if (peak := peak_rate(DEVICE, precision)) is not None:
                line += f", {100 * work / mine / peak:.0f} % of the peak"
            if GPU:
                line += f", {memory['ours'] / 1e9:.1f} GB above what both hold"
            for name in [*steps][1:]:
                pairs = zip(seconds[name], seconds["ours"], strict=True)
                line += f", {name} {statistics.median(a / b for a, b in pairs):.2f} times our time"
            yield line
    if not GPU:
        yield f"of memory and share of the peak: {NO_GPU}"


def compiled(tiny: bool) -> Lines:
    """Compiled steps of Ti/4 in bf16 against eager ones: benchmarks/compiled.py."""
    if tiny:
        yield "not done: compiling takes minutes"
        return
    yield from output([sys.executable, str(HERE / "compiled.py"), "--batch", "512", *ONE_MODEL])


def packing(tiny: bool) -> Lines:
    """Steps a second of 1, 2, 4 and 8 runs on a GPU, and what starting them takes."""
    if not GPU:
        yield NO_GPU
        return
    for arch, precision, length in TINY_PACKED if tiny else PACKED:
        alone = 0.0
        for number in (1, 2) if tiny else (1, 2, 4, 8):
            words = ["recipe=quick", "data=mnist5k", f"model.arch={arch}", "train.batch=512"]
            words += [f"train.precision={precision}", f"train.steps={length}"]
            words += ["eval.every=1000000", "stem=none,dpn", f"seeds={max(1, number // 2)}"]
            words += ["launcher.devices=0", f"launcher.runs_per_gpu={number}", "--quiet", "--yes"]
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                yield from ablate(folder, "sweep", *words)
                wall = time.perf_counter() - began
                files = [*Path(folder).glob("runs/runs/*/result.json")]
                took = statistics.mean(json.loads(file.read_text())["seconds"] for file in files)
            wall *= number / len(files)  # one run at a time has two turns
            rate = number * length / took
            alone = alone or rate
            yield (
                f"{arch} {precision}, runs_per_gpu={number}: {rate:.0f} steps/s, "
                f"{rate / alone:.2f} times those of one; {wall - took:.0f} s beside the training"
            )


def forecast(tiny: bool) -> Lines:
    """The seconds of a run that `plan` tells, against those that it took."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*SWEEP, "stem=none,dpn", "seeds=1", f"train.epochs={2 if tiny else 100}"]
        cells = json.loads("\n".join(output(command("plan", *words, "--format", "json"), folder)))
        told = statistics.mean(cell["seconds"] for cell in cells["variants"])
        yield from ablate(folder, "sweep", *words, "--yes", "--quiet")
        files = Path(folder).glob("runs/runs/*/result.json")
        took = statistics.mean(json.loads(file.read_text())["seconds"] for file in files)
    yield f"plan {told:.1f} s, truth {took:.1f} s: plan / truth {told / took:.2f}"


def several(tiny: bool) -> Lines:
    """The same sweep on 1, 2, 4 and 8 GPUs, one run on each; then each run on all of them: bits."""
    here = len(find("auto", os.environ.get("CUDA_VISIBLE_DEVICES")).gpus) if GPU else 0
    if here < 2:
        yield f"not done: {here} GPUs here"
        return
    for number in (n for n in (1, 2, 4, 8) if n <= here):
        devices = ",".join(map(str, range(number)))
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            words = ["stem=none,dpn", f"seeds={1 if tiny else 8}", f"launcher.devices={devices}"]
            yield from ablate(folder, "sweep", *SWEEP, *words, "--yes", "--quiet")
            yield f"{number} GPUs: {time.perf_counter() - began:.0f} s"
    alone = None
    for number in (n for n in (1, 2, 4, 8) if n <= here):
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            words = ["stem=none,dpn", "seeds=1", f"launcher.gpus_per_run={number}"]
            words += ["train.micro_batch=8", "train.deterministic=true"]
            yield from ablate(folder, "sweep", *SWEEP, *words, "--yes", "--quiet")
            took = time.perf_counter() - began
            files = sorted(Path(folder).glob("runs/runs/*/predictions.npy"))
            bits = [path.read_bytes() for path in files]
            alone = alone or bits
            same = "the bits of one" if bits == alone else "OTHER BITS than one"
            yield f"{number} GPUs a run: {took:.0f} s, {same}"


PARTS: dict[str, Callable[[bool], Lines]] = {
    part.__name__: part
    for part in (
        *(doctor, steps, agreement, compiled, packing),
        *(launches, kill, speed, forecast, several),
    )
}


# --- What parts share ---------------------------------------------------------------------------


def compute_as_a_worker(run: Run, precision: str, deterministic: bool = False) -> None:
    """Set what a worker of this run would, in this precision."""
    train = replace(run.train, precision=precision, deterministic=deterministic)
    choose(replace(run, train=train), DEVICE).use()


def begun(run: Run, split: Split, device: torch.device, precision: str) -> Training:
    """Begin a training on a device, with the kernels and the arithmetic of a worker there."""
    strict = replace(run, train=replace(run.train, precision=precision, deterministic=True))
    choose(strict, device).use()
    training = Training(strict, split.to(device), device)
    training.micro_batch = run.train.batch
    return training


def gradients(training: Training) -> Tensor:
    """All entries of the gradients that its next step would take, on the CPU in float32: (P,)."""
    images, target = training.inputs()
    weights = round_weights(training.rounded, training.dtype)
    training.task.backward(training, images, target, weights)
    entries = [p.grad.flatten() for p in training.model.parameters() if p.grad is not None]
    return torch.cat(entries).float().cpu()


def in_precision(step: Callable[[], None], precision: str) -> Callable[[], None]:
    def under_autocast() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=precision == "bf16"):
            step()

    return under_autocast


def timed(step: Callable[[], None], steps: int) -> tuple[float, int]:
    """Seconds of a step, and the most bytes that it took beyond what was held before."""
    held = 0
    if GPU:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    if not GPU:
        return (time.perf_counter() - began) / steps, 0
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps, torch.cuda.max_memory_allocated() - held


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "ablate", *words]


def environment() -> dict[str, str]:
    """The environment of commands that start elsewhere: this checkout before all else."""
    paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def output(words: list[str], folder: str | Path = ".") -> Lines:
    """The lines that a process prints. Raises CalledProcessError for any exit code but 0."""
    with subprocess.Popen(
        words, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield line.rstrip()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)


def ablate(folder: str | Path, *words: str) -> Lines:
    return output(command(*words), folder)


def _has_checkpoint(folder: Path) -> bool:
    return any(RunDir(path).newest_step() for path in folder.glob("runs/runs/*"))


def _kill_all_in(folder: Path) -> int:
    """Send SIGKILL to every process that works in a folder; how many there were."""
    killed = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") == str(folder.resolve()):
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
        except OSError:  # it has ended, or is another user's
            continue
    return killed


# --- The hour -----------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    driver = None
    if GPU:
        words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
        driver = said.partition("\n")[0] or None
    return {
        "device": torch.cuda.get_device_name() if GPU else f"CPU ({platform.machine()})",
        "gpus": torch.cuda.device_count(),
        "driver": driver,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def run(part: str, out: Path, tiny: bool) -> bool:
    """Run a part in a process of its own and keep its lines; whether it came to its end."""
    began, lines, ended = time.perf_counter(), list[str](), "in full"
    words = [sys.executable, "-u", __file__, part, "--here", *["--tiny"] * tiny]
    limit = ["timeout", "--kill-after=10", str(LIMIT_S)]
    try:
        for line in output([*limit, *words]):
            lines.append(line)
            print(f"  {line}", flush=True)
    except subprocess.CalledProcessError as error:
        late = error.returncode in LATE
        ended = "after ten minutes" if late else f"by {error.returncode}"
        print(f"  ended {ended}", flush=True)
    seconds = round(time.perf_counter() - began, 1)
    said = {"part": part, "ended": ended, "seconds": seconds, "tiny": tiny, "lines": lines}
    new = out / f".{part}.json"
    new.write_text(json.dumps({**said, **machine()}, indent=1) + "\n")
    os.replace(new, out / f"{part}.json")
    return ended == "in full"


def is_whole(file: Path, tiny: bool) -> bool:
    """Did this part come to its end before? A rehearsal counts for rehearsals alone."""
    if not file.exists():
        return False
    said = json.loads(file.read_text())
    return said["ended"] == "in full" and said["tiny"] <= tiny


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--again", action="store_true", help="parts that are there already, too")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal, on a CPU, too")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if unknown := {*asked.parts} - {*PARTS}:
        parser.error(f"{', '.join(sorted(unknown))}: no part; expected of {', '.join(PARTS)}")
    if asked.here:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # or deterministic products are refused
        torch.set_num_threads(1)
        for line in PARTS[asked.parts[0]](asked.tiny):
            print(line)
        return 0
    asked.out.mkdir(parents=True, exist_ok=True)
    print(", ".join(f"{key} {value}" for key, value in machine().items()), flush=True)
    whole = True
    for part in asked.parts or PARTS:
        print(f"{part}: {PARTS[part].__doc__}", flush=True)
        if not asked.again and is_whole(asked.out / f"{part}.json", asked.tiny):
            print(f"  skipped: {asked.out / part}.json is there; --again runs it anew")
            continue
        whole &= run(part, asked.out, asked.tiny)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
