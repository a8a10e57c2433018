"""Workstations by ssh that vanish, that come back, and that don't see the store."""

import shutil
from collections.abc import Iterator

import pytest
import workstations
from conftest import Shell, wait_for
from support.daemons import short_folder
from support.far_sweeps import check, train, train_here
from support.sites import FarSweeps, SshSite
from workstations import DESK, Workstations

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(workstations.lacks()), reason=workstations.lacks() or "-"),
]

NEEDS_SSHFS = pytest.mark.skipif(shutil.which("sshfs") is None, reason="needs sshfs")


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> Shell:
    """The sweep, trained here."""
    return train_here(Shell(tmp_path_factory.mktemp("calm")))


@pytest.fixture
def hosts(request, shell) -> Iterator[Workstations]:
    """Two; on those that the test names the folder of the sweep is an empty disk."""
    alone = {name: [shell.folder] for name in getattr(request, "param", ())}
    with short_folder() as base:
        made = Workstations(base, alone=alone)
        yield made
        made.end()


@pytest.fixture
def sweep(shell, hosts, calm) -> Iterator[FarSweeps]:
    sweeps = FarSweeps(shell, SshSite(hosts), calm)
    yield sweeps
    sweeps.end()


def test_the_runs_of_a_host_that_vanishes_go_on_elsewhere(shell, sweep, hosts, calm):
    process = sweep(sleep=0.15)
    lost = train(shell)[0]["host"]
    hosts.vanish(lost)
    assert 5 <= sum(check(shell, process, calm)) <= 6


@pytest.mark.slow
def test_the_one_job_of_a_host_that_vanishes_is_replaced_on_the_other(shell, sweep, hosts, calm):
    process = sweep("launcher.jobs=1", sleep=0.15)
    lost = train(shell, pilots=1)[0]["host"]
    hosts.vanish(lost)
    assert 5 <= sum(check(shell, process, calm)) <= 6


@pytest.mark.slow
def test_a_host_that_comes_back_is_used_again(shell, sweep, hosts, calm):
    process = sweep(sleep=0.3)
    for beat in train(shell):
        hosts.vanish(beat["host"])
    for name in hosts.names:
        hosts.start(name)
    train(shell, pilots=1)
    assert sum(check(shell, process, calm)) >= 5


@pytest.mark.parametrize("hosts", [("two",)], indirect=True)
def test_a_host_that_does_not_see_the_store_is_not_used(shell, sweep, hosts, calm):
    process = sweep(sleep=0)
    assert check(shell, process, calm) == [1, 1, 1, 1]
    pilots = (shell.folder / "runs" / "pilots").glob("*/beat.json")
    assert {path.parent.name.partition("-")[0] for path in pilots} == {"one"}
    told = "".join(path.read_text() for path in shell.folder.glob("*.out"))
    [line] = [line for line in told.splitlines() if line.startswith("launcher=ssh: ")]
    assert " two " in line
    assert str(shell.folder) in line


@pytest.mark.parametrize("hosts", [("one", "two")], indirect=True)
def test_where_no_host_sees_the_store_a_line_says_so(shell, sweep, hosts):
    done = shell.end(sweep(sleep=0))
    assert done.code == 1
    [line] = done.err.splitlines()
    assert str(shell.folder) in line


@NEEDS_SSHFS
@pytest.mark.parametrize("hosts", [("one", "two")], indirect=True)
def test_a_host_without_the_store_mounts_it(shell, sweep, hosts, calm):
    """Runs go on elsewhere from their checkpoints; mounts end with the pilots."""
    process = sweep(f"launcher.sshfs={DESK}", sleep=0.15)
    lost = train(shell)[0]["host"]
    hosts.vanish(lost)
    assert 5 <= sum(check(shell, process, calm)) <= 6
    [other] = {"one", "two"} - {lost}
    wait_for(lambda: "sshfs" not in hosts.output(other, "cat", "/proc/mounts"))


@pytest.mark.slow
@NEEDS_SSHFS
@pytest.mark.parametrize("hosts", [("one", "two")], indirect=True)
def test_a_connection_of_mounts_that_breaks_is_made_again(shell, sweep, hosts, calm):
    process = sweep(f"launcher.sshfs={DESK}", sleep=0.15)
    train(shell)
    hosts.kill_sshd(DESK)
    hosts.start_sshd(DESK)
    assert sum(check(shell, process, calm)) <= 6
