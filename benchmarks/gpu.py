"""The first hour on a GPU: what only one can tell, part by part.

    python benchmarks/gpu.py [PART ...] [--out gpu-results] [--again] [--tiny]

Without names all parts run, in this order, each in a process of its own that ends after ten
minutes. A part's lines are printed as they come and kept in OUT/PART.json, with device, driver,
torch and date; a part that is there in full is skipped, but for --again, and a rehearsal is never
taken for the part. So a session that is cut off loses the part it was at. The figures decide:

compiled: where Ti/4 in bf16 is 1.3 times as fast, `train.compile=auto` compiles on a GPU.
speed: where deterministic steps take at most 1.05 of the time, `train.deterministic=auto` is true,
untried.
packing: where two runs give 1.3 times those of one, `launcher.runs_per_gpu=auto`, by memory, is the
default.
launches: where 5 us each are more than half of a Ti/4 step, steps are CUDA graphs.
forecast: outside 0.85 to 1.15, `plan --on` assumes otherwise.

--tiny: a rehearsal on whatever is here, a minute on a CPU. A part says what it could not do.
Needs what `ablate` needs; timm for the part `speed`, which says where it is missing.
"""

from __future__ import annotations

import argparse
import copy
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
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from step import ours, small, theirs
from torch import Tensor, nn

from ablate.planning.compose import resolve
from ablate.running.devices import PEAKS
from ablate.running.gpus import find
from ablate.running.work import launches_of_step
from ablate.shared import choices
from ablate.shared.build import build_run
from ablate.shared.rundir import RunDir
from ablate.shared.spec import Run
from ablate.training import model
from ablate.training.model.count import describe
from ablate.training.numerics import choose, device_of

LIMIT_S = 600
HERE = Path(__file__).resolve().parent
GPU = torch.cuda.is_available()
DEVICE = device_of("cuda" if GPU else "cpu")
NO_GPU = "not done: there is no GPU here"
# Of a gradient, relative to the largest entry on a CPU in float32. fp32: sums of some thousand
# products in another order, through norms and two blocks; bf16 rounds each product to 2**-9.
BOUNDS = {"fp32": 1e-3, "bf16": 0.2}
# Architecture, side of the images, batch.
SPEED = [("mu/4", 32, 1024), ("Ti/4", 32, 512), ("S/16", 224, 256), ("B/16", 224, 128)]
TINY_SPEED = [("mu/4", 32, 4)]
SWEEP = ["recipe=quick", "data=digits", "model.arch=mu/4"]

Lines = Iterator[str]


# --- Parts --------------------------------------------------------------------------------------


def doctor(tiny: bool) -> Lines:
    """The machine and a resume to the same bits; the quick start and its table."""
    few = ["seeds=1", "train.steps=10"] if tiny else []
    with tempfile.TemporaryDirectory() as folder:
        yield from ablate(folder, "doctor", *few[1:])
        began = time.perf_counter()
        yield from ablate(folder, "sweep", "quickstart", *few, "--yes")
        yield f"quick start: {time.perf_counter() - began:.0f} s"


def agreement(tiny: bool) -> Lines:
    """Every norm, stem and block: its gradients against a CPU's in float32."""
    kinds = {"norm": choices.NORMS, "stem": choices.STEMS, "block": choices.BLOCKS}
    for kind, names in kinds.items():
        for name in [*names][: 2 if tiny else None]:
            words = ["recipe=quick", "model.arch=mu/4", "model.depth=2"]
            words += ["model.pool=gap", "data.size=32"]
            tree, _ = resolve([*words, f"{kind}={name}"], Path("runs"))
            made = model.build(build_run({**tree, "data": {**tree["data"], "channels": 3}}))
            generator = torch.Generator().manual_seed(0)
            for parameter in made.parameters():
                nn.init.normal_(parameter, 0, 0.05, generator=generator)
            images = 2 * torch.rand(8, 32, 32, 3, generator=generator) - 1
            made.fit([images])
            wanted = gradients(made, images, torch.device("cpu"), "fp32")
            for precision, bound in BOUNDS.items():
                found = gradients(made, images, DEVICE, precision)
                error = float((found - wanted).abs().max() / wanted.abs().max())
                far = "" if error <= bound else f"  FAR: over {bound:g}"
                yield f"{kind}={name} {precision}: {error:.1e}{far}"
    if not GPU:
        yield f"{NO_GPU}; this was a CPU against itself"


def launches(tiny: bool) -> Lines:
    """Kernels and waits of a step, beside those that `plan` counts."""
    if not GPU:
        yield NO_GPU
        return
    for arch, side, batch in SPEED[:2]:
        run = small(arch, side)
        compute_as_a_worker(run, "bf16")
        step = ours(run, DEVICE, "bf16", batch)
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        steps = 20
        with torch.profiler.profile(activities=[*torch.profiler.supported_activities()]) as profile:
            for _ in range(steps):
                step()
        names = Counter(event.name for event in profile.events())
        kernels = sum(n for name, n in names.items() if "LaunchKernel" in name) / steps
        waits = sum(n for name, n in names.items() if "Synchronize" in name) - 1  # the profiler's
        tree, _ = resolve([f"model.arch={arch}", f"data.size={side}", "recipe=quick"], Path("runs"))
        counted = launches_of_step(tree, describe(run)["launches"])
        line = f"{arch} bf16: {kernels:.0f} launches a step (plan: {counted:.0f})"
        yield f"{line}, {max(waits, 0) / steps:.2f} waits (tests: 0)"


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
    device = torch.cuda.get_device_name() if GPU else platform.machine()
    peaks = [peak for name, peak in PEAKS.items() if name in device.lower().replace(" ", "")]
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
            if peaks and precision in peaks[0].rates:
                line += f", {100 * work / mine / peaks[0].rates[precision]:.0f} % of the peak"
            if GPU:
                line += f", {memory['ours'] / 1e9:.1f} GB above what both hold"
            for name in [*steps][1:]:
                pairs = zip(seconds[name], seconds["ours"], strict=True)
                line += f", {name} {statistics.median(a / b for a, b in pairs):.2f} times our time"
            yield line
    if not GPU:
        yield f"of memory and share of the peak: {NO_GPU}"


def compiled(tiny: bool) -> Lines:
    """Compiled steps against eager ones: benchmarks/compiled.py."""
    if tiny:
        yield "not done: compiling takes minutes"
        return
    yield from output([sys.executable, str(HERE / "compiled.py"), "--batch", "512"])


def packing(tiny: bool) -> Lines:
    """Runs an hour with 1, 2, 4 and 8 runs on a GPU."""
    if not GPU:
        yield NO_GPU
        return
    first = 0.0
    for number in (1, 2, 4, 8):
        with tempfile.TemporaryDirectory() as folder:
            words = ["sweep", *SWEEP, "stem=none,dpn", f"seeds={1 if tiny else 8}", "--quiet"]
            words += ["launcher.devices=0", f"launcher.runs_per_gpu={number}", "--yes"]
            began = time.perf_counter()
            yield from ablate(folder, *words)
            took = time.perf_counter() - began
        first = first or took
        yield f"runs_per_gpu={number}: {took:.0f} s, {first / took:.2f} times the runs of one"


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
    for part in (doctor, agreement, launches, kill, speed, compiled, packing, forecast, several)
}


# --- What parts share ---------------------------------------------------------------------------


def compute_as_a_worker(run: Run, precision: str, deterministic: bool = False) -> None:
    """Set what a worker of this run would, in this precision."""
    train = replace(run.train, precision=precision, deterministic=deterministic)
    choose(replace(run, train=train), DEVICE).use()


def gradients(made: nn.Module, images: Tensor, device: torch.device, precision: str) -> Tensor:
    """All entries of a copy's gradients on a device, on the CPU in float32: (P,)."""
    placed = copy.deepcopy(made).to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        out = placed(images.to(device))
    out.float().square().mean().backward()
    entries = [p.grad.flatten() for p in placed.parameters() if p.grad is not None]
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
    """Of commands that start elsewhere: with this checkout."""
    return {**os.environ, "PYTHONPATH": str(HERE.parent)}


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
        ended = "after ten minutes" if error.returncode in (124, 137) else f"by {error.returncode}"
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
