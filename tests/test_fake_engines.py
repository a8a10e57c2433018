"""Files of engines that no test can have, against clients with these programs' real output: a sweep
to the same bytes, what is refused, a queue that never starts, a job that is taken away."""

import json
import re
import signal
from collections.abc import Iterator

import pytest
from conftest import REPOSITORY, Shell, wait_for
from fake_site import FakeSite, fake_site
from support.far_sweeps import check, train, train_here
from support.sites import FAKE_ENGINES, FarSweeps, ProcessSite

from ablate.audit.doctor import site as site_check

pytestmark = pytest.mark.whole

# engine -> a setting that its site refuses, and a word of the refusal
REFUSED = {
    "pbs": ("launcher.queue=nowhere", "Unknown"),
    "lsf": ("launcher.queue=nowhere", "nowhere:"),
    "kubernetes": ("launcher.namespace=nowhere", '"nowhere"'),
    "skypilot": ("launcher.accelerators=nothing:1", "ResourcesUnavailableError"),
}
stuck = pytest.mark.parametrize("fakes", [True], indirect=True)  # jobs wait for ever


@pytest.fixture(params=FAKE_ENGINES)
def engine(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> Shell:
    """The sweep, trained here."""
    return train_here(Shell(tmp_path_factory.mktemp("calm")))


@pytest.fixture
def fakes(request, tmp_path) -> Iterator[FakeSite]:
    with fake_site(tmp_path / "site", stuck=getattr(request, "param", False)) as site:
        yield site


@pytest.fixture
def sweep(shell, engine, fakes, calm) -> Iterator[FarSweeps]:
    sweeps = FarSweeps(shell, ProcessSite(engine, fakes), calm)
    yield sweeps
    sweeps.end()


@pytest.mark.parametrize(
    "engine",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != "pbs")) for name in FAKE_ENGINES],
    indirect=True,
)
def test_a_sweep_has_the_bytes_of_the_local_one(shell, sweep, calm):
    assert check(shell, sweep(sleep=0), calm) == [1, 1, 1, 1]
    wait_for(lambda: not sweep.jobs())  # pilots end by themselves


@pytest.mark.slow
@pytest.mark.parametrize("engine", FAKE_ENGINES, indirect=True)
def test_a_killed_pilot(shell, sweep, calm, engine, fakes):
    process = sweep()
    ProcessSite(engine, fakes).kill_pilot(train(shell)[0])
    assert 5 <= sum(check(shell, process, calm)) <= 6


def test_what_the_site_refuses_is_one_line_in_its_own_words(shell, sweep, engine, fakes):
    wrong, word = REFUSED[engine]
    done = shell.end(sweep(wrong))
    assert done.code == 1
    [line] = done.err.splitlines()
    assert line.startswith(f"ablate: launcher={engine}: ")
    assert word in line
    assert not fakes.jobs()


@stuck
def test_a_queue_that_never_starts_is_left_empty(shell, sweep):
    process = sweep()
    wait_for(sweep.jobs)
    assert "stopped s" in wait_for(lambda: shell("stop").out)
    assert shell.end(process).code == 128 + signal.SIGTERM
    assert not sweep.jobs()


@stuck
def test_doctor_names_a_queue_that_never_starts(shell, engine, fakes, monkeypatch):
    monkeypatch.setattr(site_check, "ASK_S", 0.1)
    monkeypatch.setattr(site_check, "PATIENCE_S", 0.5)
    words = (*ProcessSite(engine, fakes).words, "--format", "json")
    done = shell("doctor", *words, code=1, PATH=fakes.environment["PATH"])
    findings = json.loads(done.out)["findings"]
    [problem] = [finding for finding in findings if finding["level"] == "problem"]
    assert problem["check"] == "queue"
    assert "launcher.cpus=1" in problem["text"]
    [job] = fakes.jobs()
    assert job.was_cancelled


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
