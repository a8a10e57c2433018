"""An engine of one's own: a file of a few lines, by which processes of this host are jobs. A sweep
over it, and what `ablate doctor` says of a site before there is one."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Shell
from support.far_sweeps import CPU, OFTEN, ROWS, check, share_data, train, train_here

from ablate.audit.doctor import site

pytestmark = pytest.mark.whole

MINE = """\
# Trains in processes of this host.
submit: sh -c 'exec 3<&0; setsid bash <&3 >>"$1/jobs.log" 2>&1 & echo $!' - {logs}
job: "{PID}"
states: pgrep -af 'launchers[.]pilot .*{root}'
state: ^(?P<job>\\d+) (?P<state>\\S+)
empty: ^$
running: .*
cancel: kill {*jobs}
log: "{logs}/jobs.log"
"""


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> Shell:
    """The sweep, trained here."""
    return train_here(Shell(tmp_path_factory.mktemp("calm")))


def declare(shell: Shell, text: str = MINE) -> None:
    file = shell.folder / "conf" / "launcher" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)


@pytest.fixture
def sweep(shell, calm) -> Iterator[Callable[..., Any]]:
    started = []

    def begin(sleep: float = 0.0) -> Any:
        share_data(shell, calm)
        words = ("sweep", *ROWS, "seeds=2", *OFTEN, "launcher=mine", *CPU, "launcher.jobs=2")
        started.append(shell.start(*words, SLEEP=str(sleep)))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def test_a_sweep_over_an_engine_of_ten_lines_has_the_bytes_of_the_local_one(shell, sweep, calm):
    declare(shell)
    assert len(MINE.splitlines()) < 15
    assert check(shell, sweep(), calm) == [1, 1, 1, 1]


@pytest.mark.slow
def test_a_killed_pilot_of_it_is_replaced(shell, sweep, calm):
    declare(shell)
    process = sweep(sleep=0.06)
    os.kill(train(shell)[0]["pid"], signal.SIGKILL)
    assert 5 <= sum(check(shell, process, calm)) <= 6


# --- Before a sweep -------------------------------------------------------------------------------


def doctor(shell: Shell, text: str, *words: str, code: int = 0) -> dict[str, tuple[str, str]]:
    """check -> (level, text) of `ablate doctor launcher=mine`."""
    declare(shell, text)
    done = shell("doctor", "launcher=mine", *CPU, *words, "--format", "json", code=code)
    tree = json.loads(done.out)
    return {each["check"]: (each["level"], each["text"]) for each in tree["findings"]}


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(site, "ASK_S", 0.1)
    monkeypatch.setattr(site, "GONE_S", 1.0)


def test_a_site_that_can_be_used_is_seen_by_one_job(shell):
    findings = doctor(shell, MINE)
    assert {level for level, _ in findings.values()} == {"ok"}
    assert {"queue", "store", "devices", "python", "torch", "clock"} <= findings.keys()
    assert not [*(shell.folder / "runs" / "pilots" / "jobs").glob("doctor-*")]


def test_a_site_that_refuses_is_quoted(shell):
    refuses = MINE.replace("setsid bash", "echo no-account-for-you >&2; exit 3; setsid bash")
    level, text = doctor(shell, refuses, code=1)["submit"]
    assert level == "problem"
    assert "no-account-for-you" in text


def test_a_queue_that_never_starts_is_named_with_what_was_asked(shell, monkeypatch):
    monkeypatch.setattr(site, "PATIENCE_S", 0.5)
    starts = "setsid sleep 60 >/dev/null 2>&1 & echo $!; exit; bash"
    waits = MINE.replace("setsid bash", starts).replace("running: .*", "running: x")
    waits = waits.replace("pgrep -af 'launchers[.]pilot .*{root}'", "pgrep -af 'sleep 60'")
    level, text = doctor(shell, waits, code=1)["queue"]
    assert level == "problem"
    assert "launcher.cpus=1" in text


def test_a_job_that_cannot_see_the_store_says_so_in_a_line(shell):
    hides = "launcher.setup=mv runs/pilots/store.json runs/pilots/hidden"
    level, text = doctor(shell, MINE, hides, code=1)["store"]
    assert level == "problem"
    assert str(shell.folder / "runs") in text


def test_a_python_without_ablate_is_found(shell):
    level, text = doctor(shell, MINE, "launcher.python=/usr/bin/python3", code=1)["python"]
    assert level == "problem"
    assert "ablate" in text
    assert "jobs.log" in text


@pytest.mark.parametrize(
    ("end", "gone_s"), [(0, 60.0), (1, 0.0)], ids=["lists nothing", "gives no answer"]
)
def test_a_job_that_is_not_listed_yet_is_waited_for(shell, monkeypatch, end, gone_s):
    """It begins once the site was asked for it, and so never before the first answer."""
    monkeypatch.setattr(site, "GONE_S", gone_s)
    listing = f"sh -c 'touch runs/asked; exit {end}'"
    late = MINE.replace("pgrep -af 'launchers[.]pilot .*{root}'", listing)
    late = late.replace("empty: ^$\n", "")
    waits = "launcher.setup='until [ -e runs/asked ]; do sleep 0.1; done'"
    findings = doctor(shell, late, waits)
    assert {level for level, _ in findings.values()} == {"ok"}


def test_drivers_have_jobs_only_where_the_file_says_how(shell):
    declare(shell)
    words = ("sweep", "block.attn=pre,post", "model.depth=1", "--detach", "job", "--yes")
    for launcher, remedy in (("mine", "conf/launcher/mine.yaml"), ("local", "--detach here")):
        line = shell(*words, f"launcher={launcher}", code=2).err
        assert f"launcher={launcher} " in line
        assert remedy in line
