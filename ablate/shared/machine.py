"""The processor, the memory and the cores of this machine, and what the control group of this
process, such as a container's, allows of them. Reads files of Linux.

Used by workers for `train.micro_batch=auto` on a CPU (training/calibrate.py), by forecasts, whose
times are those of a processor (running/estimate.py), and by `ablate doctor`
(audit/doctor/machine.py, audit/doctor/resume_check.py).
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class HostHardware:
    """The model of the processor and its instruction sets, as /proc/cpuinfo calls them; bytes of
    memory, and cores. `allowed_`: by the control group, inf where it has no limit."""

    cpu_model: str
    cpu_flags: frozenset[str]
    total_bytes: float
    available_bytes: float  # which the kernel can give without swapping
    allowed_bytes: float
    allowed_cores: float

    @property
    def free_bytes(self) -> float:
        """The bytes that workers may take: at most the limit of the control group."""
        return min(self.available_bytes, self.allowed_bytes)

    @classmethod
    def read(cls) -> HostHardware:
        """Return them as they are now."""
        cpu, memory = _table("cpuinfo"), _table("meminfo")
        limits = _control_group("memory", "memory.max", "memory.limit_in_bytes")
        quotas = [text.split() for text in _control_group("cpu", "cpu.max", "")]
        cores = [int(allowed) / int(period) for allowed, period in quotas if allowed != "max"]
        return cls(
            cpu_model=cpu.get("model name") or platform.machine(),
            cpu_flags=frozenset(cpu.get("flags", "").split()),
            total_bytes=1024.0 * int(memory["MemTotal"].split()[0]),
            available_bytes=1024.0 * int(memory["MemAvailable"].split()[0]),
            allowed_bytes=min((float(text) for text in limits if text.isdigit()), default=math.inf),
            allowed_cores=min(cores, default=math.inf),
        )


def _table(name: str) -> dict[str, str]:
    """Return what a file of /proc says of each key: of the first core, in that of all cores."""
    table: dict[str, str] = {}
    for line in (PROC / name).read_text().splitlines():
        key, _, value = line.partition(":")
        table.setdefault(key.strip(), value.strip())
    return table


def _control_group(controller: str, name: str, old: str) -> Iterator[str]:
    """Yield the content of a file of our control group and of the visible groups above it; nothing
    where the kernel has no control groups.

    `name`: the file's name. `old`: its name where each controller has a hierarchy of its own; "" if
    the file is not read there.
    """
    lines: list[str] = []
    with suppress(OSError):
        lines = (PROC / "self" / "cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, file = GROUPS, name
        elif controller in controllers.split(",") and old:
            root, file = GROUPS / controller, old
        else:
            continue
        place = root / path.lstrip("/")
        for folder in (place, *place.parents):
            if folder.is_relative_to(root) and (folder / file).is_file():
                yield (folder / file).read_text().strip()
