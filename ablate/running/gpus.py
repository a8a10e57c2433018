"""The GPUs of this machine, as NVIDIA's `nvidia-smi` reports them; torch is not loaded.

Used by the launchers (launchers/local.py, launchers/pilots.py), by `ablate doctor`
(audit/doctor/machine.py) and `ablate status --watch` (report/status.py). A new question to
nvidia-smi also needs an answer in tests/nvidia.py, which stands in for it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from ablate.shared import UserError, system, unknown_value

TOOL = "nvidia-smi"
PATIENCE_S = 30.0  # it takes a second a GPU where no daemon holds the driver; a lost GPU hangs it
NODES = Path("/dev")
NO_DEVICES = "No devices were found"


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a slice of one (MIG), which is a device to CUDA.

    `index`: nvidia-smi's, in the order of PCI; "0:1" is slice 1 of GPU 0. `uuid`: the name that
    CUDA_VISIBLE_DEVICES takes. `board`: the UUID of the GPU that a slice belongs to, else its own.
    """

    index: str
    uuid: str
    model: str
    board: str


class NoAnswer(Exception):
    """An error for a tool that is missing, or fails, with a line that says why. `output`: all that
    it printed."""

    def __init__(self, reason: str, output: str = "") -> None:
        super().__init__(reason)
        self.output = output


def output_of(*arguments: str) -> str:
    """Return what the tool prints. Raises NoAnswer where it is missing, fails or hangs."""
    path = shutil.which(TOOL)
    if path is None:
        raise NoAnswer(f"there is no {TOOL}")
    try:
        tool = system.run_in_session([path, *arguments], PATIENCE_S, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{TOOL} gave no answer in {PATIENCE_S:g} s") from None
    if tool.returncode != 0:
        reason = f"{TOOL}: {_first_line(tool.stdout)} (exit code {tool.returncode})"
        raise NoAnswer(reason, tool.stdout)
    return tool.stdout


def _first_line(output: str) -> str:
    return next((line.strip() for line in output.splitlines() if line.strip()), "no word")


def list_gpus() -> tuple[list[Gpu], str]:
    """Return all GPUs, a GPU with slices as its slices, and the first other line that was printed,
    "" for none.

    Raises NoAnswer where the tool lists no GPU without saying that there is none.
    """
    reason = ""
    try:
        output = output_of("-L")
    except NoAnswer as error:
        output, reason = error.output, str(error)
    gpus: list[Gpu] = []
    index = model = board = strays = ""
    for line in output.splitlines():
        if gpu_match := re.match(r"GPU (\d+): (.*) \(UUID: (GPU-[^)\s]+)\)", line):
            index, model, board = gpu_match[1], gpu_match[2], gpu_match[3]
            gpus.append(Gpu(index, board, model, board))
        elif part := re.match(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)", line):
            gpus = [gpu for gpu in gpus if gpu.uuid != board]
            gpus.append(Gpu(f"{index}:{part[2]}", part[3], f"{model} MIG {part[1]}", board))
        else:
            strays += f"{line}\n"
    if not gpus and NO_DEVICES not in output:
        raise NoAnswer(reason or f"{TOOL} -L: {_first_line(output)}")
    if not strays.strip() or not gpus:
        return gpus, ""
    return gpus, f"{TOOL}: {_first_line(strays)}"


# --- Which of them are used -----------------------------------------------------------------------


@dataclass(frozen=True)
class GpuSet:
    """The GPUs that are used, none for the CPU, and remarks on irregularities."""

    gpus: tuple[Gpu, ...] = ()
    remarks: tuple[str, ...] = ()


def find(devices: str, outer: str | None) -> GpuSet:
    """Choose the GPUs to use. `devices`: `launcher.devices`, auto | cpu | indices and UUIDs.
    `outer`: CUDA_VISIBLE_DEVICES of this process, None where it is unset.

    Raises UserError for a GPU that doesn't exist or is hidden by CUDA_VISIBLE_DEVICES.
    """
    names = [name.strip() for name in devices.split(",")]
    if names == ["cpu"] or (names == ["auto"] and outer is not None and not _visible(outer)):
        return GpuSet()
    try:
        gpus, stray = list_gpus()
    except NoAnswer as error:
        return _without_answer(names, outer, str(error))
    remarks = [stray] if stray else []
    usable = gpus if outer is None else _as_cuda(outer, gpus)
    if names == ["auto"]:
        if outer is not None and not usable:
            remarks.append(f"CUDA_VISIBLE_DEVICES={outer} names no GPU of {TOOL} -L: {ON_CPU}")
        return GpuSet(tuple(usable), tuple(remarks))
    selection: dict[Gpu, None] = {}
    for name in names:
        matches = _matching(name, usable)
        if not matches:
            if _matching(name, gpus):
                raise _hidden(name, outer)
            choices = [gpu.index for gpu in usable]
            if len(names) == 1:
                choices = ["auto", "cpu", *choices]
            raise unknown_value("launcher.devices", name, choices)
        selection |= dict.fromkeys(matches)
    return GpuSet(tuple(selection), tuple(remarks))


ON_CPU = "runs train on the CPU; launcher.devices=cpu accepts that"


def _without_answer(names: list[str], outer: str | None, reason: str) -> GpuSet:
    """Choose GPUs where the tool gives no answer. Names that the user gave are used, since CUDA may
    know them."""
    if names == ["auto"] and outer is None:
        nodes = sorted(str(node) for node in NODES.glob("nvidia[0-9]*"))
        if not nodes and shutil.which(TOOL) is None:
            return GpuSet()
        if not nodes:
            return GpuSet(remarks=(f"{reason}: {ON_CPU}",))
        verb = "is" if len(nodes) == 1 else "are"
        finding = f"{reason}, but {', '.join(nodes)} {verb} there"
        return GpuSet(remarks=(f"{finding}: {ON_CPU}, launcher.devices=0 uses the first GPU",))
    visible = names if outer is None else _visible(outer)
    if names == ["auto"]:
        names = visible
    for name in names:
        if name not in visible:
            raise _hidden(name, outer)
        if not re.fullmatch(r"\d+|(GPU|MIG)-.+", name):
            raise UserError(f"launcher.devices: expected auto, cpu, indices or UUIDs, got {name!r}")
    return GpuSet(tuple(Gpu(name, name, "", name) for name in dict.fromkeys(names)))


def _hidden(name: str, outer: str | None) -> UserError:
    return UserError(f"launcher.devices: {name} is hidden by CUDA_VISIBLE_DEVICES={outer}")


def _visible(outer: str) -> list[str]:
    """List the names up to the first invalid one, from which on CUDA sees no device."""
    names = []
    for name in outer.replace(" ", "").split(","):
        if name in ("", "-1"):
            break
        names.append(name)
    return names


def _as_cuda(outer: str, candidates: Iterable[Gpu]) -> list[Gpu]:
    """Choose the GPUs that CUDA sees: those up to the first unknown name, and of a GPU with slices
    only the first slice."""
    gpus = []
    for name in _visible(outer):
        matches = _matching(name, candidates)
        if not matches:
            break
        gpus.append(matches[0])
    return gpus


def _matching(name: str, gpus: Iterable[Gpu]) -> list[Gpu]:
    """Return the GPUs of an index or a UUID, which may be abbreviated as for CUDA: all slices of a
    GPU that has slices."""
    if not name.startswith(("GPU-", "MIG-")):
        return [gpu for gpu in gpus if name in (gpu.index, gpu.index.partition(":")[0])]
    matches = [gpu for gpu in gpus if gpu.uuid.startswith(name)]
    if matches:
        return matches if len(matches) == 1 else []
    slices = [gpu for gpu in gpus if gpu.board.startswith(name)]
    boards = {gpu.board for gpu in slices}
    return slices if len(boards) == 1 else []


# --- What they do now -----------------------------------------------------------------------------

BUSY_MIB = 1024  # in use without a listed process, as from outside a container


def busy(gpus: Iterable[Gpu], ours: Collection[int]) -> list[str]:
    """List a line for each GPU that others use: the processes that are not in `ours`, nor in a
    session that one of these leads, and the memory. Raises NoAnswer."""
    boards = {gpu.board: gpu.index.partition(":")[0] for gpu in gpus}
    if not boards:
        return []
    processes: dict[str, list[str]] = {}
    for board, pid in rows("gpu_uuid", "pid", entity="compute-apps"):
        processes.setdefault(board, []).append(pid)
    lines = []
    for board, used, total in rows("uuid", "memory.used", "memory.total"):
        pids = processes.get(board, [])
        foreign_pids = [pid for pid in pids if not _belongs(pid, ours)]
        is_hidden_use = not pids and used.isdigit() and int(used) >= BUSY_MIB
        has_ended = used == "0"  # a process that the tool still lists
        if board in boards and not has_ended and (foreign_pids or is_hidden_use):
            memory = f"{used} of {total} MiB" if used.isdigit() else "memory unknown"
            users = f" by process {', '.join(foreign_pids)}" if foreign_pids else ""
            lines.append(f"gpu:{boards[board]} is in use{users} ({memory})")
    return lines


def _belongs(pid: str, ours: Collection[int]) -> bool:
    """Return whether a process is one of `ours`, or in a session that one of these leads."""
    if not pid.isdigit():  # hidden from us
        return False
    if int(pid) in ours:
        return True
    try:
        return os.getsid(int(pid)) in ours
    except OSError:  # it has ended, or is outside our container
        return False


def figures(indices: Collection[str]) -> list[str]:
    """List a line for each GPU: its use, memory and power, as far as the tool reports them. Raises
    NoAnswer."""
    keys = "index", "utilization.gpu", "memory.used", "memory.total", "power.draw"
    lines = []
    for index, share, used, total, watts in rows(*keys):
        parts = []
        if _is_number(share):
            parts.append(f"{share} % busy")
        if _is_number(used) and _is_number(total):
            used_gib, total_gib = float(used) / 1024, float(total) / 1024
            parts.append(f"{used_gib:.1f} of {total_gib:.1f} GiB")
        if _is_number(watts):
            parts.append(f"{float(watts):.0f} W")
        if index in indices and parts:
            lines.append(f"gpu:{index}: {', '.join(parts)}")
    return lines


def rows(*keys: str, entity: str = "gpu") -> list[list[str]]:
    """Query the values `keys` of each GPU, or compute process, by the names of
    `nvidia-smi --help-query-gpu`. A value that it doesn't have is "[N/A]" or another such text.
    Raises NoAnswer."""
    output = output_of(f"--query-{entity}={','.join(keys)}", "--format=csv,noheader,nounits")
    table = []
    for line in output.splitlines():
        row = [part.strip() for part in line.split(",")]
        if len(row) == len(keys):
            table.append(row)
    return table


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None
