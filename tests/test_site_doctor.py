"""`ablate doctor launcher=NAME` on Slurm, Grid Engine and workstations by ssh: what can be used is
seen, and what is wrong is a line that says what to do."""

import json
from collections.abc import Iterator

import pytest
import workstations
from conftest import Shell
from support.daemons import short_folder
from support.sites import SITES, Site, SshSite, started_site
from workstations import Workstations

from ablate.audit.doctor import site as site_check

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", params=SITES)
def site(request) -> Iterator[Site]:
    with started_site(request.param) as made:
        yield made


def findings_of(shell: Shell, site: Site, *words: str, code: int = 0) -> list[dict[str, str]]:
    line = ("doctor", *site.words, *words, "--format", "json")
    done = shell.process(*line, code=code, **site.environment)
    return json.loads(done.out)["findings"]


def problems(findings: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(f["check"], f["text"]) for f in findings if f["level"] == "problem"]


def test_a_site_that_can_be_used_is_seen(shell, site):
    findings = findings_of(shell, site)
    amiss = [finding["text"] for finding in findings if finding["level"] != "ok"]
    assert [text for text in amiss if not text.startswith("tmpfs is memory")] == []  # of the tests
    checks = [finding["check"] for finding in findings]
    assert {"queue", "store", "devices", "python", "torch", "clock"} <= {*checks}
    assert checks.count("queue") == (2 if site.engine == "ssh" else 1)  # each host by itself
    assert not [*(shell.folder / "runs" / "pilots" / "jobs").glob("doctor-*")]


def test_a_python_without_ablate_or_that_is_missing_is_named(shell, site):
    for python in ("/usr/bin/python3", "/opt/none/python"):
        found = problems(findings_of(shell, site, f"launcher.python={python}", code=1))
        assert {check for check, _ in found} == {"python"}
        for _, text in found:
            assert python in text
            assert "launcher.python" in text


def test_a_queue_that_never_starts_is_named_and_left_empty(shell, site, monkeypatch):
    if site.engine == "ssh":
        pytest.skip("hosts have no queue")
    monkeypatch.setattr(site_check, "PATIENCE_S", 3)
    monkeypatch.setattr(site_check, "ASK_S", 0.5)
    with site.closed_queue():
        line = ("doctor", *site.words, "--format", "json")
        done = shell(*line, code=1, **site.environment)
        [(check, text)] = problems(json.loads(done.out)["findings"])
        assert check == "queue"
        assert "launcher.cpus=1" in text


@pytest.mark.skipif(bool(workstations.lacks()), reason=workstations.lacks() or "-")
def test_the_host_that_does_not_see_the_store_is_named_and_the_other_is_seen(shell):
    with short_folder() as base:
        hosts = Workstations(base, alone={"two": [shell.folder]})
        try:
            findings = findings_of(shell, SshSite(hosts), code=1)
        finally:
            hosts.end()
    [(_, text)] = problems(findings)
    assert "two" in text
    assert str(shell.folder) in text
    assert "one sees the store" in [f["text"] for f in findings]
