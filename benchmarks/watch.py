"""What watching costs: the share of a core of `ablate watch` with one page open, beside that of
`ablate status --watch`, on a sweep of 1,000 runs while two are trained.

    python benchmarks/watch.py [SECONDS]      (default: 60 of each)

The page is asked for as its script asks: state, six curves and a log every other second, the table
when a run has ended. A run ends every ten seconds.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from driver import ABLATE, cpu_s

from ablate.planning.expand import plan_from_words
from ablate.planning.plan import Plan
from ablate.shared.files import to_json
from ablate.store.ledger import Ledger, result_detail
from ablate.store.store import Store

RUNS, DONE, EPOCHS = 1000, 500, 100
WORDS = ["stem=none,dpn", "block.attn=pre,post", "model.arch=mu/4", "data=digits", "recipe=quick"]
WORKER = """
import itertools, json, os, pathlib, sys, time
from ablate.run.rundir import RunDir
run = RunDir(pathlib.Path(sys.argv[1]))
assert run.lock.acquire()
run.lock.note(pid=os.getpid(), slot="cpu:0", phase="train", total=10**6, from_step=0,
              from_at=time.time())
for step in itertools.count(1):
    run.lock.note(step=step)
    if step % 4 == 0:
        with open(run.metrics, "a") as file:
            line = {"step": step, "epoch": step, "train_loss": 9 / step, "val_top1": 0.9}
            file.write(json.dumps(line) + "\\n")
    time.sleep(0.5)
"""


def planted(store: Store) -> Plan:
    """A driven sweep of which half is done."""
    made, _ = plan_from_words([*WORDS, f"seeds={RUNS // 4}"], store=store.root, name="many")
    runs = list(made.runs())
    assert len(runs) == RUNS
    with Ledger.driving(store) as ledger:
        ledger.announce(made)
        store.write_plan(made)
        ledger.plan(made)
        for number, run in enumerate(runs[:DONE]):
            end(store, ledger, run.id, number)
        for run in runs[-2:]:
            store.rundir(run.id).create(run.spec.tree)
            ledger.record(run.id, "started", step=0, slot="cpu:0")
    return made


def end(store: Store, ledger: Ledger, run: str, number: int) -> None:
    """Leave what a run leaves."""
    folder = store.rundir(run)
    folder.path.mkdir(parents=True, exist_ok=True)
    top1 = 0.9 + number * 7919 % 100 / 5000
    lines = [
        {"step": 10 * e, "epoch": e, "lr": 1e-3, "train_loss": 2 / (e + 1), "val_top1": top1}
        for e in range(EPOCHS)
    ]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder.log.write_text("a line of a log, as long as they are\n" * EPOCHS)
    test = {"n": 500, "loss": 0.3, "top1": top1, "top5": 0.99}
    result = {"status": "finished", "step": 1000, "collapsed": False, "test": test}
    folder.result.write_bytes(to_json({**result, "seconds": 1.0, "device": "cpu"}))
    ledger.record(run, "started", step=0, slot="cpu:0")
    ledger.record(run, "finished", **result_detail(folder, result))


@contextlib.contextmanager
def driven(store: Store, made: Plan) -> Iterator[None]:
    """Two workers, and a driver that records the end of a run every ten seconds."""
    runs, over = list(made.runs()), threading.Event()
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(store.rundir(run.id).path)])
        for run in runs[-2:]
    ]

    def drive() -> None:
        with Ledger.driving(store) as ledger:
            for number, run in enumerate(runs[DONE:-2], DONE):
                if over.wait(10):
                    return
                end(store, ledger, run.id, number)

    assert store.driver.acquire()
    store.driver.note(pid=os.getpid(), sweep=made.name)
    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for worker in workers:
            worker.kill()
            worker.wait()
        store.driver.release()


def share(pid: int, seconds: float) -> float:
    """Of a core, over so many seconds."""
    before, start = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - start)


def page_open(url: str, over: threading.Event) -> None:
    """Ask as the page does, by one connection."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc)
    tag, tabled = "", -1

    def ask(place: str, **headers: str) -> http.client.HTTPResponse:
        connection.request("GET", address.path + place, headers=headers)
        return connection.getresponse()

    while not over.wait(2):
        state = json.loads(ask("state").read())
        newest = [one["run"] for one in state["newest"]]
        answer = ask(f"curves?runs={','.join(newest[:6])}", **{"If-None-Match": tag})
        tag = answer.headers["ETag"]
        answer.read()
        ask(f"log?run={newest[0]}").read()
        if tabled != state["done"]:
            answer = ask("table")
            tabled = int(answer.headers["X-Results"])
            answer.read()


def watch(folder: Path, seconds: float) -> float:
    words = [ABLATE, "watch", "many"]
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    over = threading.Event()
    reader = threading.Thread(target=page_open, args=(process.stdout.readline().strip(), over))
    reader.start()
    time.sleep(15)  # it loads what it needs for its first table
    found = share(process.pid, seconds)
    over.set()
    reader.join()
    process.send_signal(signal.SIGINT)
    process.wait()
    return found


def status(folder: Path, seconds: float) -> float:
    """On a terminal of 120 columns."""
    pid, ours = pty.fork()
    if pid == 0:
        os.chdir(folder)
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "50"}
        os.execve(ABLATE, [ABLATE, "status", "--watch"], environment)

    def drain() -> None:
        with contextlib.suppress(OSError):
            while os.read(ours, 1 << 16):
                pass

    threading.Thread(target=drain, daemon=True).start()
    time.sleep(5)
    found = share(pid, seconds)
    os.kill(pid, signal.SIGINT)
    os.waitpid(pid, 0)
    return found


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    with tempfile.TemporaryDirectory() as place:
        store = Store(Path(place) / "runs")
        made = planted(store)
        with driven(store, made):
            page, terminal = watch(Path(place), seconds), status(Path(place), seconds)
    print(
        f"{RUNS:,} runs, 2 trained, one more done every 10 s: `watch` with one page open takes "
        f"{100 * page:.2f} % of a core (goal 1 %), {page / terminal:.2f} times `status --watch` "
        f"on a terminal ({100 * terminal:.2f} %)"
    )


if __name__ == "__main__":
    main()
