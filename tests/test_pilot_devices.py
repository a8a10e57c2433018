"""The devices that a pilot takes on its host, whatever its engine lets it see."""

import json
from pathlib import Path
from typing import Any

import nvidia
import pytest
from launcher_contract import settings

from ablate.run.rundir import RunDir
from ablate.running.launchers import pilot
from ablate.running.launchers.local import Local
from ablate.store import write_proof


@pytest.fixture
def machine(tmp_path, monkeypatch) -> nvidia.Machine:
    """A host with four GPUs that are all seen, and work."""
    made = nvidia.Machine(tmp_path / "machine", *(nvidia.gpu(n) for n in range(4)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", made.path)
    monkeypatch.setattr(Local, "unfit", lambda launcher, slots: {})
    return made


def facts(root: Path, **own: Any) -> dict[str, Any]:
    """What a pilot finds on the host."""
    (root / "cache").mkdir(parents=True)
    (root / "pilots" / "jobs").mkdir(parents=True)
    write_proof(root, "token")
    given = {**settings("ssh", hosts=["desk"], **own), "token": "token"}
    pilot.look(root, given, "7", "desk", "facts")
    return json.loads((root / "pilots" / "jobs" / "facts.json").read_text())


@pytest.mark.parametrize(
    ("own", "places"),
    [
        ({"gpus": 1}, ["gpu:0"]),
        ({"gpus": 2, "gpus_per_run": 2}, ["gpu:0+1"]),
        ({"gpus": 2, "devices": "3,1,2"}, ["gpu:3", "gpu:1"]),
        ({"gpus": 8}, ["gpu:0", "gpu:1", "gpu:2", "gpu:3"]),
        ({"gpus": 0, "cpus": 1}, ["cpu"]),
    ],
)
def test_a_pilot_takes_as_many_gpus_as_its_job_asked_for(tmp_path, machine, own, places):
    seen = facts(tmp_path / "runs", **own)
    assert (seen["slots"], seen["remarks"]) == ([f"desk/{place}" for place in places], [])


def test_a_worker_knows_how_many_gpus_share_its_cores(tmp_path, machine, monkeypatch):
    for most_gpus, gpus in ((None, 4), (2, 2), (0, 1)):
        made = Local(settings("local"), tmp_path / "cache", most_gpus=most_gpus)
        requests: list[dict[str, Any]] = []
        monkeypatch.setattr(made._server, "tell", requests.append)
        made.start(RunDir(tmp_path / "run"), made.slots[0])
        assert requests[0]["options"]["gpus"] == gpus
