"""A site whose engine no test can have. Its jobs are processes of this host; its clients, which are
in `fake_queues` and `fake_clouds`, print what the documentation of the real ones shows.
"""

from __future__ import annotations

import contextlib
import getopt
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLIENTS = {
    "fake_queues": ("qsub", "qstat", "qselect", "qdel", "bsub", "bjobs", "bkill"),
    "fake_clouds": ("kubectl", "sky"),
}
SITE = "FAKE_SITE"  # the folder of a site's jobs, as its clients know it
CLEAN = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
# The first process of a job. It notes how its script ended, as an engine does.
RUN = 'cd "$1"; shift; "$@"; echo $? > "$NOTE.part"; mv "$NOTE.part" "$NOTE"'


class FakeSite:
    """A site of one engine. `base`: an empty folder; `queues`: those that it has; `stuck`: its jobs
    wait for ever."""

    def __init__(self, base: Path, stuck: bool = False) -> None:
        self.base = base
        programs = base / "bin"
        for folder in (programs, base / "jobs", base / "home"):
            folder.mkdir(parents=True)
        if stuck:
            (base / "stuck").touch()
        for module, names in CLIENTS.items():
            file = Path(__file__).resolve().with_name(f"{module}.py")
            for name in names:
                program = programs / name
                words = shlex.join([sys.executable, str(file), name])
                program.write_text(f'#!/bin/sh\n{SITE}={base} exec {words} "$@"\n')
                program.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}

    def jobs(self) -> list[Job]:
        return jobs_of(self.base)

    def end(self) -> None:
        for job in self.jobs():
            job.kill()


@dataclass(frozen=True)
class Job:
    """A job of a site: a folder named by its number."""

    folder: Path

    @property
    def number(self) -> int:
        return int(self.folder.name)

    @property
    def facts(self) -> dict[str, Any]:
        return json.loads((self.folder / "facts.json").read_text())

    @property
    def code(self) -> int | None:
        """How it ended; None until then."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / "exit").read_text())
        return None

    @property
    def pid(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / "pid").read_text())
        return None

    @property
    def waits(self) -> bool:
        return self.pid is None and self.code is None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it, as an engine does: all of its processes."""
        if self.code is None:
            if self.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, number)
            (self.folder / "exit").write_text(str(128 + number))
            (self.folder / "cancelled").touch()

    def output(self) -> str:
        """What it printed where the engine kept it."""
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    @property
    def was_cancelled(self) -> bool:
        return (self.folder / "cancelled").exists()


def jobs_of(base: Path) -> list[Job]:
    folders = sorted((base / "jobs").iterdir(), key=lambda folder: int(folder.name))
    return [Job(folder) for folder in folders if (folder / "facts.json").exists()]


def start_job(
    base: Path,
    facts: dict[str, Any],
    command: Sequence[str],
    where: Path,
    environment: dict[str, str],
    log: str | None,
) -> Job:
    """Start a job, or leave it in the queue of a site where nothing starts."""
    number = len(jobs_of(base)) + 1
    folder = base / "jobs" / str(number)
    folder.mkdir()
    facts = {**facts, "submitted": time.time()}
    (folder / "facts.json").write_text(json.dumps(facts))
    job = Job(folder)
    if not (base / "stuck").exists():
        home = str(base / "home")
        with open(log or folder / "log", "ab") as file:
            process = subprocess.Popen(
                ["bash", "-c", RUN, "-", str(where), *command],
                env={**environment, "HOME": home, "NOTE": str(folder / "exit")},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        (folder / "pid").write_text(str(process.pid))
    return job


def keep_script(base: Path, text: str) -> str:
    """Keep a script, as engines do: its file may go as soon as it is submitted."""
    path = base / f"script-{len(jobs_of(base)) + 1}"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def fail(line: str, code: int) -> int:
    print(line, file=sys.stderr)
    return code


def split_options(words: list[str], short: str, long: Sequence[str] = ()) -> tuple[dict, list[str]]:
    pairs, rest = getopt.gnu_getopt(words, short, list(long))
    options: dict[str, Any] = {}
    for key, value in pairs:
        options.setdefault(key, []).append(value)
    return options, rest


@contextlib.contextmanager
def fake_site(base: Path, stuck: bool = False) -> Iterator[FakeSite]:
    """A site whose jobs are gone in the end."""
    site = FakeSite(base, stuck)
    try:
        yield site
    finally:
        site.end()


def run_client(programs: Sequence[Callable[[Path, list[str]], int]]) -> int:
    """Run the program that the command line names; its exit code."""
    name, *words = sys.argv[1:]
    by_name = {program.__name__: program for program in programs}
    try:
        return by_name[name](Path(os.environ[SITE]), words)
    except getopt.GetoptError as error:
        return fail(f"{name}: {error.msg}", 2)
