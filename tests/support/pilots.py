"""Set up launchers of pilots."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from launcher_contract import BesideContract, settings, until

from ablate.run.rundir import RunDir
from ablate.running import attempts
from ablate.running.launchers.pilots import PilotLauncher
from ablate.store.store import Store

CPUS = settings("slurm", gpus=0, cpus=2)


def offer_slots(launcher: PilotLauncher) -> PilotLauncher:
    """Ask a launcher for slots and wait until it has some."""
    until(lambda: not launcher.poll(0.1) and not launcher.offer(1, ()) and launcher.slots)
    return launcher


class PilotContract(BesideContract):
    """Of launchers of pilots: they share a store with their driver, and each attempt has a folder.

    A subclass gives a fixture `launcher`, on the store of `store`.
    """

    numbers = itertools.count(1)

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, tmp_path_factory, cache) -> Store:
        root = tmp_path_factory.mktemp("shared")
        cache.mkdir(exist_ok=True)
        (root / "cache").symlink_to(cache)
        return Store(root)

    @pytest.fixture(autouse=True)
    def _root(self, store) -> None:
        self.store = store

    def prepared(self, root: Path, run: str, tree: dict[str, Any]) -> RunDir:
        """An attempt's own folder in the launcher's store, as new as the run."""
        number = next(self.numbers)
        created = attempts.attempt_folder(self.store, run, number)
        created.create(tree)
        attempts.appoint(self.store, run, number)
        return created

    def again(self, run: RunDir) -> RunDir:
        forked, number = attempts.fork(self.store, run.id, next(self.numbers))
        attempts.appoint(self.store, run.id, number)
        return forked
