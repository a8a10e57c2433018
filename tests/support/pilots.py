"""Set up launchers of pilots."""

from __future__ import annotations

from launcher_contract import settings, until

from ablate.running.launchers.pilots import PilotLauncher

CPUS = settings("slurm", gpus=0, cpus=2)


def offer_slots(launcher: PilotLauncher) -> PilotLauncher:
    """Ask a launcher for slots and wait until it has some."""
    until(lambda: not launcher.poll(0.1) and not launcher.offer(1, ()) and launcher.slots)
    return launcher
