"""kill -9 of `ablate gate try` at any moment, and typed again: the same looks, the same words, no
run twice; and two proposals at once. Real processes, real signals."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
from support.commands import Server
from support.streams import WORDS, write_trainer

from ablate.audit import verify_stream
from ablate.store import Store, StreamFile

pytestmark = pytest.mark.faults

LOADS = "import torch, hydra, ablate.training.worker, ablate.api.stream, ablate.running"
TRY = ("gate", "try", "idea", "--note", "an idea")
# gain, seed; the words that these get: keep, discard, undecided, keep, discard
PROPOSALS = [
    (5.0, "run.seed"),
    (4.9, "run.seed"),
    (9.0, "7"),
    (10.0, "run.seed"),
    (3.0, "run.seed"),
]


def tried(server: Server) -> int:
    server.start(*TRY)
    return server.end()


def begin(folder: Path) -> Server:
    """Start a stream in a folder."""
    server = Server(folder, LOADS)
    write_trainer(folder)
    server("gate", "start", "idea", *WORDS)
    return server


def sealed(folder: Path) -> list[dict[str, object]]:
    """The events of the stream, without times and places."""
    lines = (folder / "runs" / "streams" / "idea.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    for event in events:
        del event["at"], event["seal"]
        for key in ("origin", "spec"):
            event.get("code", {}).pop(key, None)
    return events


def trained(folder: Path) -> set[str]:
    return {path.parent.name for path in (folder / "runs" / "runs").glob("*/result.json")}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_says_the_same(tmp_path, kills):
    moment = random.Random(kills)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    codes: dict[Path, list[int]] = {whole: [], broken: []}
    for folder in (whole, broken):
        folder.mkdir()
    with begin(whole).process, begin(broken).process:
        pass
    took, hits = [], 0
    server = Server(whole, LOADS)
    with server.process:
        for gain, seed in PROPOSALS:
            write_trainer(whole, gain=gain, seed=seed)
            begun = time.monotonic()
            codes[whole].append(tried(server))
            took.append(time.monotonic() - begun)
    server = Server(broken, LOADS)
    with server.process:
        for (gain, seed), seconds in zip(PROPOSALS, took, strict=True):
            write_trainer(broken, gain=gain, seed=seed)
            each = max(1, kills // len(PROPOSALS))
            for _ in range(each):  # what is trained stays: with more kills, each has less time
                after = moment.uniform(0, 2 * seconds / max(2, each / 2))
                hits += server.killed(after, *TRY, codes=(0, 3, 4))
            codes[broken].append(tried(server))
    print(f"{hits} of {kills} kills met a running command")
    assert hits
    assert codes[broken] == codes[whole]
    assert {0, 3, 4} == set(codes[whole])
    assert sealed(broken) == sealed(whole)
    assert trained(broken) == trained(whole)
    store = Store(broken / "runs")
    assert verify_stream(store, StreamFile(store, "idea")).findings == []


@pytest.mark.timeout(600)
def test_of_two_proposals_at_once_one_is_kept(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        write_trainer(folder)
    store = str(tmp_path / "runs")
    servers = [Server(first, LOADS), Server(second, LOADS)]
    with servers[0].process, servers[1].process:
        servers[0]("gate", "start", "idea", *WORDS, "--store", store)
        for number, folder in enumerate((first, second)):
            write_trainer(folder, gain=8.0 + number / 100)
        for server in servers:
            server.start("gate", "try", "idea", "--store", store)
        codes = [server.end() for server in servers]
        for place, server in enumerate(servers):
            if codes[place] == 75:  # the other was kept while this one was composed
                server.start("gate", "try", "idea", "--store", store)
                codes[place] = server.end()
    record = StreamFile(Store(Path(store)), "idea").record()
    keeps = [proposal.against for proposal in record.proposals if proposal.word == "keep"]
    assert len(keeps) == len(set(keeps)) == codes.count(0)
    assert len(record.proposals) == 2
    assert set(codes) <= {0, 3, 5}
    assert verify_stream(Store(Path(store)), StreamFile(Store(Path(store)), "idea")).findings == []


STOPPED = """
from pathlib import Path
from time import sleep


def main(settings, run):
    Path({begun!r}).touch()
    while not run.should_stop():
        sleep(0.01)
    run.result(score=1.0, other=1.0)
"""


@pytest.mark.timeout(120)
def test_a_signal_that_stops_it_is_the_exit_code(tmp_path):
    begun = tmp_path / "begun"
    server = begin(tmp_path)
    with server.process:
        (tmp_path / "toy.py").write_text(STOPPED.format(begun=str(begun)))
        process = psutil.Process(server.start(*TRY))
        while not begun.exists():
            assert process.status() != psutil.STATUS_ZOMBIE, server.said.read_text()
            time.sleep(0.01)
        process.terminate()
        assert server.end() == 128 + signal.SIGTERM
    assert StreamFile(Store(tmp_path / "runs"), "idea").record().proposals[0].word == ""
