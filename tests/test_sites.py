"""A sweep on a real Grid Engine, and on workstations by ssh: whatever dies meanwhile, nothing is
lost, doubled or changed.

Both are this host's own: see `grid_engine` and `workstations`.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from conftest import Shell, wait_for
from support.far_sweeps import SELDOM, beats, check, train, train_here
from support.sites import FarSweeps, Site, started_site

pytestmark = pytest.mark.cluster
KILLS = int(os.environ.get("ABLATE_TEST_KILLS", "4"))  # at random, on each site


@pytest.fixture(scope="module", params=("sge", "ssh"))
def site(request) -> Iterator[Site]:
    with started_site(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> Shell:
    """The sweep, trained here."""
    return train_here(Shell(tmp_path_factory.mktemp("calm")))


@pytest.fixture
def sweep(shell, site, calm) -> Iterator[FarSweeps]:
    """Starts the sweep, of four runs; in the end its jobs are gone."""
    sweeps = FarSweeps(shell, site, calm)
    yield sweeps
    sweeps.end()


def test_a_sweep_has_the_bytes_of_the_local_one(shell, sweep, calm, site):
    assert check(shell, sweep(sleep=0), calm) == [1, 1, 1, 1]
    wait_for(lambda: not sweep.jobs())  # pilots end by themselves


def test_a_killed_pilot(shell, sweep, calm, site):
    process = sweep()
    site.kill_pilot(train(shell)[0])
    assert 5 <= sum(check(shell, process, calm)) <= 6


def test_a_pilot_that_is_cancelled_by_hand(shell, sweep, calm, site):
    process = sweep()
    site.cancel(train(shell)[0]["job"])
    assert 5 <= sum(check(shell, process, calm)) <= 6


@pytest.mark.slow
def test_a_killed_daemon_costs_no_run(shell, sweep, calm, site):
    process = sweep(sleep=0.15)
    site.kill_daemon(train(shell)[0])
    assert check(shell, process, calm) == [1, 1, 1, 1]


def test_a_killed_driver_is_followed_by_one_that_adopts(shell, sweep, calm):
    process = sweep()
    train(shell)
    process.kill()
    process.wait()
    assert check(shell, sweep(), calm) == [1, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.timeout(600 + 100 * KILLS)
def test_kills_at_random(shell, sweep, calm, site, capsys):
    """Of pilots, of the engine's daemon, of the driver, while runs train."""
    chance = random.Random(KILLS)
    sleep = 0.025 * KILLS  # the sweep outlasts the kills
    process, killed = sweep(sleep=sleep), []
    while len(killed) < KILLS and process.poll() is None:
        time.sleep(chance.uniform(0.5, 4))
        training = beats(shell)
        if not training:
            continue
        what = chance.choice(("pilot", "pilot", "daemon", "driver"))
        if what == "pilot":
            site.kill_pilot(chance.choice(training))
        elif what == "daemon":
            site.kill_daemon(chance.choice(training))
        else:
            process.kill()
            process.wait()
            process = sweep(sleep=sleep)
        killed.append(what)
    starts = check(shell, process, calm, timeout=100 * KILLS)
    with capsys.disabled():
        print(f"\n{site.engine}: killed {dict(Counter(killed))}; starts of each run: {starts}")
    assert len(killed) == KILLS


def test_stop_leaves_checkpoints_and_no_job(shell, sweep, calm, site):
    process = sweep(sleep=1, limits=SELDOM)
    train(shell)
    assert "stopped s" in shell("stop").out
    assert shell.end(process).code == 128 + signal.SIGTERM
    assert len(list((shell.folder / "runs" / "runs").glob("*/checkpoint-*"))) >= 2
    wait_for(lambda: not sweep.jobs())
    check(shell, sweep(sleep=0), calm)


def test_a_queue_that_never_starts_is_left_empty(shell, sweep, site):
    """A job that waits is seen as one, and goes when the sweep is stopped."""
    if site.engine != "sge":
        pytest.skip("hosts have no queue")
    with site.closed_queue():
        process = sweep()
        wait_for(sweep.jobs)
        assert "stopped s" in wait_for(lambda: shell("stop").out)
        assert shell.end(process).code == 128 + signal.SIGTERM
        wait_for(lambda: not sweep.jobs())


def test_what_the_site_refuses_is_one_line_in_its_own_words(shell, sweep, site):
    wrong = {"sge": "launcher.queue=nowhere", "ssh": "launcher.hosts=[nowhere]"}[site.engine]
    done = shell.end(sweep(wrong))
    assert done.code == 1
    [line] = done.err.splitlines()
    assert line.startswith(f"ablate: launcher={site.engine}: ")
    assert {"sge": '"nowhere"', "ssh": "no answer"}[site.engine] in line
