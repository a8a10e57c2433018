"""Files of engines that no test can have, against clients with these programs' real output: a sweep
to the same bytes, what is refused, a queue that never starts, a job that is taken away."""

import re
from collections.abc import Iterator

import pytest
from conftest import REPOSITORY, Shell, wait_for
from fake_site import FakeSite, fake_site
from support.far_sweeps import check, train, train_here
from support.sites import FAKE_ENGINES, FarSweeps, ProcessSite

pytestmark = pytest.mark.whole


@pytest.fixture(params=FAKE_ENGINES)
def engine(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> Shell:
    """The sweep, trained here."""
    return train_here(Shell(tmp_path_factory.mktemp("calm")))


@pytest.fixture
def fakes(tmp_path) -> Iterator[FakeSite]:
    with fake_site(tmp_path / "site") as site:
        yield site


@pytest.fixture
def sweep(shell, engine, fakes, calm) -> Iterator[FarSweeps]:
    sweeps = FarSweeps(shell, ProcessSite(engine, fakes), calm)
    yield sweeps
    sweeps.end()


def test_a_sweep_has_the_bytes_of_the_local_one(shell, sweep, calm):
    assert check(shell, sweep(sleep=0), calm) == [1, 1, 1, 1]
    wait_for(lambda: not sweep.jobs())  # pilots end by themselves


def test_a_killed_pilot(shell, sweep, calm, engine, fakes):
    process = sweep()
    ProcessSite(engine, fakes).kill_pilot(train(shell)[0])
    assert 5 <= sum(check(shell, process, calm)) <= 6


def test_the_file_of_the_page_is_a_launcher_in_less_than_15_lines(shell):
    page = (REPOSITORY / "docs" / "clusters.md").read_text()
    [text] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert len(text.splitlines()) < 15
    file = shell.folder / "conf" / "launcher" / "ours.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    listing = shell("list", "launchers").out
    assert "our own queue" in listing
    assert "launcher.room=" in listing
