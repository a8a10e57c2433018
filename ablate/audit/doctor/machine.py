"""Checks the machine: versions, devices, memory. Reads files and nvidia-smi, never loads torch.

Here, too, is what all checks of `ablate doctor` share: a finding, and its texts.

Used by `ablate doctor` (audit/doctor/__init__.py; `write_constraints` by cli/keeping.py, for
`--constraints`). A new check also needs its call in `run_checks` there.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

from ablate.run import RunSpec
from ablate.running import Slot, gpus, worker_environment
from ablate.shared import (
    EXTRAS,
    HostHardware,
    count_text,
    install_command,
    package_install_command,
    write_whole,
)
from ablate.version import __version__

Level = Literal["ok", "warning", "problem", "..."]
PROGRESS: Final = "..."  # the level of a line that says that a check has begun


@dataclass(frozen=True)
class Finding:
    """A line of the report.

    `check`: the name of the check. `text`: the fact, with the remedy of a warning or a problem.
    """

    level: Level
    check: str
    text: str


Findings = Iterator[Finding]


def size(number: float) -> str:
    """Return a number of bytes as text, such as "1.5 GB"."""
    from rich.filesize import decimal

    return decimal(int(number))


def some(names: Sequence[str], noun: str, limit: int = 3) -> str:
    """Return a number of things with the first names, such as "5 runs (a, b, c, ...)"."""
    suffix = ", ..." if len(names) > limit else ""
    return f"{count_text(len(names), noun)} ({', '.join(names[:limit])}{suffix})"


DISTRIBUTION = "ablate-sweep"
CHECKOUT = Path(__file__).resolve().parents[3]  # where this is no installed package


@dataclass(frozen=True)
class Requirements:
    """The declared version and requirements of ablate.

    `version`: with the checkout's folder if ablate isn't installed. `python`: the specifier of the
    supported versions, "" where nothing declares it. `packages`: the required packages, ()
    likewise.
    """

    version: str
    python: str
    packages: Sequence[str]

    @classmethod
    def load(cls) -> Requirements:
        """Read the installed distribution's metadata, else the checkout's pyproject.toml."""
        try:
            python = metadata.metadata(DISTRIBUTION)["Requires-Python"]
            version = metadata.version(DISTRIBUTION)
            return cls(version, python, metadata.requires(DISTRIBUTION) or ())
        except metadata.PackageNotFoundError:
            file = CHECKOUT / "pyproject.toml"
            project = tomllib.loads(file.read_text("utf-8"))["project"] if file.exists() else {}
            version = f"{__version__} (not installed, from {CHECKOUT})"
            packages = project.get("dependencies", ())
            return cls(version, project.get("requires-python", ""), packages)


def versions() -> Findings:
    """Compare the installed packages with the requirements of ablate."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    installed, amiss = {"python": platform.python_version()}, []
    required = Requirements.load()
    python_range = SpecifierSet(required.python)
    if not python_range.contains(installed["python"]):
        amiss.append(f"python {installed['python']} does not satisfy python{python_range}")
    for need in map(Requirement, required.packages):
        if need.marker is not None and not need.marker.evaluate():
            continue  # an extra's
        plain = f"{need.name}{need.specifier}"
        try:
            installed_version = metadata.version(need.name)
        except metadata.PackageNotFoundError:
            amiss.append(f"{need.name} is not installed: {package_install_command(plain)}")
            continue
        installed[need.name] = installed_version
        if not need.specifier.contains(installed_version, prereleases=True):
            amiss.append(
                f"{need.name} {installed_version} does not satisfy {plain}: pip install '{plain}'"
            )
    text = ", ".join(f"{name} {version}" for name, version in installed.items())
    yield Finding("ok", "versions", f"ablate {required.version}, {text}")
    for line in amiss:
        yield Finding("problem", "versions", line)


def extras() -> Findings:
    """Report the optional features that can't be used, since their package is not installed."""
    from packaging.requirements import Requirement

    for extra, (purpose, need) in EXTRAS.items():
        name = Requirement(need).name
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            text = f"{name} is not installed: {purpose} needs it; {install_command(extra)}"
            yield Finding("ok", "extras", text)


def write_constraints() -> Path:
    """Write a constraints file with which `pip install -c` leaves this environment as it is.

    Each installed package is pinned to its version, and each other one to the version with which
    ablate was tested. Returns the path of the file.
    """
    tried = _tried_versions()
    pins = dict(line.split("==") for line in tried.splitlines() if not line.startswith("#"))
    pins = {_normal(name): version for name, version in pins.items()}
    for package in metadata.distributions():
        pins[_normal(package.name)] = package.version
    pins.pop(DISTRIBUTION, None)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    file = Path(cache) / "ablate" / "constraints.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, "".join(f"{k}=={v}\n" for k, v in sorted(pins.items())).encode())
    return file


def _tried_versions() -> str:
    """Read the constraints with which ablate was tested: the distribution's, else the
    checkout's."""
    try:
        carried = [f for f in metadata.files(DISTRIBUTION) or () if f.name == "constraints.txt"]
        return carried[0].read_text("utf-8") if carried else ""
    except metadata.PackageNotFoundError:
        file = CHECKOUT / "constraints.txt"
        return file.read_text("utf-8") if file.exists() else ""


def _normal(name: str) -> str:
    """Return a package's name in the normalized form of PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def devices(settings: Mapping[str, Any], slots: Sequence[Slot], spec: RunSpec) -> Findings:
    """Report GPUs, the CPU, and the slots that the launcher makes of them."""
    on_gpu = slots[0].device == "cuda"
    yield from _gpus(on_gpu)
    yield from _cpu(on_gpu, spec)
    names = ", ".join(slot.name for slot in slots[:8]) + (", ..." if len(slots) > 8 else "")
    text = f"launcher={settings['name']} trains {count_text(len(slots), 'run')} at once: {names}"
    if on_gpu and settings.get("runs_per_gpu") == "auto":
        text += "; more where they leave a GPU idle (launcher.runs_per_gpu=auto)"
    yield Finding("ok", "slots", text)
    if settings["name"] == "local":
        values = " ".join(f"{k}={v or '(none)'}" for k, v in worker_environment(slots).items())
        benefit = (
            "cuBLAS can be deterministic"
            if on_gpu
            else "one thread each, and malloc keeps freed memory (1.2-1.3 times as fast on a CPU)"
        )
        yield Finding("ok", "workers", f"start with {values}: {benefit}")


def _gpus(used: bool) -> Findings:
    torch = metadata.version("torch")
    if used and torch.endswith("+cpu"):
        yield Finding(
            "problem",
            "gpu",
            f"torch {torch} can't use the GPU; install a CUDA build of torch, or "
            f"give launcher.devices=cpu",
        )
    try:
        listed_gpus, stray = gpus.list_gpus()
        rows = gpus.rows("index", "name", "memory.total", "memory.free", "driver_version")
    except gpus.NoAnswer as error:
        if shutil.which(gpus.TOOL) is None and not used:
            yield Finding("ok", "gpu", f"no GPU ({error})")
        else:
            yield Finding(
                "warning", "gpu", f"{error}" + ("" if used else "; runs train on the CPU")
            )
        return
    if stray:
        yield Finding("warning", "gpu", stray)
    for index, name, total, free, driver in rows:
        text = f"{index}: {name}, {total} MiB, {free} MiB free, driver {driver}"
        slices = [gpu.index for gpu in listed_gpus if gpu.index.startswith(f"{index}:")]
        yield Finding("ok", "gpu", text + (f", slices {', '.join(slices)}" if slices else ""))
    if not listed_gpus:
        yield Finding("ok", "gpu", f"no GPU ({gpus.TOOL} lists no device)")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        yield Finding("ok", "gpu", f"CUDA_VISIBLE_DEVICES={visible} selects the GPUs to use")


Unfit = Callable[[Sequence[Slot]], Mapping[str, str]]


def kernels(slots: Sequence[Slot], unfit: Unfit) -> Findings:
    """Report which GPUs can compute, tested as each sweep tests them before its first run.

    `unfit`: the test, which maps the name of each slot that can't compute to the reason: see
    Launcher.
    """
    tried = {slot.place: slot for slot in slots if slot.device != "cpu"}
    if not tried:
        return
    reasons = unfit(list(tried.values()))
    for place, slot in tried.items():
        if slot.name in reasons:
            yield Finding("problem", "gpu", f"{place} is not used: {reasons[slot.name]}")
    if works := [place for place, slot in tried.items() if slot.name not in reasons]:
        yield Finding("ok", "gpu", f"compute: {', '.join(works)}")


FAST_BF16 = {"avx512_bf16", "amx_tile"}  # as /proc/cpuinfo calls what torch has kernels for


def _cpu(on_gpu: bool, spec: RunSpec) -> Findings:
    host = HostHardware.read()
    fast = FAST_BF16 & host.cpu_flags
    usable, core_count = len(os.sched_getaffinity(0)), os.cpu_count()
    text = f"{host.cpu_model}, {usable} of {core_count} cores usable"
    if not on_gpu:  # else no run computes here
        text += (
            f"; bf16 instructions ({', '.join(sorted(fast))}): train.precision=bf16 is fast"
            if fast
            else "; no bf16 instructions: train.precision=bf16 is slower than fp32"
        )
    precision = spec.tree.get("train", {}).get("precision")
    slow = not fast and not on_gpu and precision == "bf16"
    if slow:
        text += ", and this config asks for bf16; give train.precision=fp32"
    yield Finding("warning" if slow else "ok", "cpu", text)
    cores = host.allowed_cores
    if not on_gpu and cores < usable:
        yield Finding(
            "warning",
            "cpu",
            f"a control group allows {cores:.3g} of {usable} cores: workers "
            f"wait for each other; run `taskset -c 0-{max(1, int(cores)) - 1} ablate ...`",
        )


def memory() -> Findings:
    """Report the free memory of the machine, and the limit of a control group."""
    host = HostHardware.read()
    text = f"{size(host.available_bytes)} of {size(host.total_bytes)} free"
    if host.allowed_bytes < host.total_bytes:
        text += f"; a control group allows {size(host.allowed_bytes)}"
    yield Finding("ok", "memory", f"{text}; ablate does not use /dev/shm")
