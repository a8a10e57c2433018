"""Engines that are files: the commands of a `conf/launcher/NAME.yaml` place pilots on hosts.

Requests are rendered, and answers read, by pure functions and methods; `FileEngine` runs the
commands. The settings are in planning/launcher.py, the fields of a file in planning/engine.py.

Used by `ablate sweep` with the launcher of a cluster (named by `make_launcher`), by `--detach job`
(running/detach.py), by `ablate doctor` (running/site.py), and by pilots (launchers/pilot.py) for
the time that their job has left.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ablate.planning import EngineFile
from ablate.running.launchers.jobs import JobEnd
from ablate.running.launchers.pilots import PilotLauncher
from ablate.shared import Failure, UserError, make_folder
from ablate.store import STALE_S

PILOT = "ablate.running.launchers.pilot"  # the module whose main program is a pilot
PATIENCE_S = 20.0  # for an answer; a cluster whose controller is down gives none
SUBMIT_S = 600.0  # for a request; the first one of SkyPilot starts a controller of its own
ELSEWHERE_REMEDY = "start ablate on a host that can ask for jobs, such as a login node"
State = Literal["waiting", "running", "ended", "failed", "lost"]


def engine_launcher(settings: Mapping[str, Any], cache: Path) -> PilotLauncher:
    """Make the launcher of an engine. Raises UserError for a limit that leaves no time to train,
    and for a setting that the engine needs and that is empty."""
    root = cache.parent.absolute()
    return PilotLauncher(settings, cache, functools.partial(FileEngine, settings, root))


@dataclass(frozen=True)
class Request:
    """A request for jobs: the words of the command, and the script."""

    words: Sequence[str]
    script: str


class FileEngine:
    """The engine of a file: see `jobs.Engine`. The jobs of a store have its token in their name,
    whoever asked for them."""

    def __init__(self, settings: Mapping[str, Any], root: Path, token: str, look: str = "") -> None:
        """`look`: the name of jobs that only look (see `pilot.look`); "" for pilots."""
        self._settings, self._root, self._token, self._look = settings, root, token, look
        self._file = EngineFile.of(settings["engine"])
        self._place = f"launcher={settings['name']}"
        self._folder = root / "pilots" / "jobs"
        # SkyPilot knows a task by the end of its file's name.
        self._script = self._folder / f"script-{os.getpid()}.yaml"
        self._hosts = host_names(settings)
        self._states: dict[str, dict[str, State]] = {}  # the last answer of each host
        self._answered_at: dict[str, float] = {}  # when, in seconds of a monotonic clock
        self.silence = ""
        self._unreachable: set[str] = set()
        _check_limit(settings, self._file)
        self._check_missing()

    # --- Requests -------------------------------------------------------------------------------

    def submit(self, count: int, excluded_hosts: Collection[str]) -> list[str]:
        try:
            make_folder(self._folder)
        except OSError as error:
            raise Failure(f"{self._place}: {self._folder}: {error.strerror}") from error
        if self._file.array is not None:
            return self._submit(count, excluded_hosts)
        jobs: list[str] = []
        for _ in range(count):
            try:
                jobs += self._submit_somewhere(excluded_hosts)
            except Failure:
                if not jobs:
                    raise
                break  # the next request says why
        return jobs

    def _submit_somewhere(self, excluded_hosts: Collection[str]) -> list[str]:
        """Ask for a job, where there are hosts on one that has none of ours."""
        if not self._file.has_hosts:
            return self._submit(1, excluded_hosts)
        busy = {host for host, jobs in self._states.items() if any(map(is_there, jobs.values()))}
        hosts = [host for host in self._hosts if host not in {*excluded_hosts, *busy}]
        reasons = []
        for host in sorted(hosts, key=lambda host: host in self._unreachable):
            try:
                [job] = self._submit(1, excluded_hosts, host)
            except Failure as error:
                reasons.append(str(error))
                continue
            self._states[host] = {job: "waiting"}
            self._answered_at[host] = time.monotonic()
            return [job]
        if busy and not reasons:
            return []
        raise Failure(reasons[0] if reasons else f"{self._place}: launcher.hosts: none can be used")

    def _submit(self, count: int, excluded_hosts: Collection[str], host: str = "") -> list[str]:
        output = self._ask_for(
            self.request(count, excluded_hosts, host), request_settings(self._settings)
        )
        job = self._job_id(output)
        if count == 1:
            return [f"{host}:{job}" if host else job]
        array = self._file.array
        assert array is not None
        return [
            EngineFile.fill(array.id, {"job": job, "number": number}) for number in range(count)
        ]

    def request(self, count: int, excluded_hosts: Collection[str] = (), host: str = "") -> Request:
        """Return a request for `count` jobs, on none of the `excluded_hosts`, each with pilots."""
        file = self._file
        several = file.array if count > 1 else None
        values = self._values(host) | {
            "count": count,
            "final": count - 1,
            "label": file.label if several is None else several.label,
            "exclude": file.exclude_joined.join(
                EngineFile.fill(file.exclude, {"host": name}) for name in sorted(excluded_hosts)
            ),
        }
        options = {**file.options, **({} if several is None else several.options)}
        job = file.job if several is None else several.job
        values["options"] = option_words(file, filled(options, values) | self._site_options())
        values["pilot"] = shlex.join(self._pilot(EngineFile.fill(job, values), values))
        script = fill_lines(file.script, quoted(values, file.quote))
        return Request(EngineFile.words(file.submit, values), script)

    def submit_driver(self, command: Sequence[str], log: Path) -> str:
        """Submit a driver's command as a job that needs no GPU, and gets a signal before its limit,
        in time to stop its pilots' runs. Returns the job's id. Raises Failure where the program
        that asks for jobs is missing, or where it refuses."""
        driver = self._file.driver
        assert driver is not None
        site = {k: v for k, v in self._site_options().items() if not k.startswith(driver.training)}
        values = self._values() | {"count": 1, "final": 0, "label": "", "exclude": ""}
        values |= {"log": str(log)}
        values["options"] = option_words(self._file, filled(driver.options, values) | site)
        # `exec`: the signal is for the driver itself.
        lines = ["#!/bin/bash", f"cd {shlex.quote(os.getcwd())}", self._settings["setup"]]
        script = "\n".join([*lines, f"exec {shlex.join(command)}", ""])
        request = Request(EngineFile.words(self._file.submit, values), script)
        own_settings = request_settings(self._settings, for_training=False)
        return self._job_id(self._ask_for(request, own_settings, "--detach job"))

    def _ask_for(self, request: Request, settings: Sequence[str], place: str = "") -> str:
        """Run a request and return what it prints. `settings`: those behind it, which a user can
        change where it is refused; `place`: the setting that requested it, for messages."""
        program, place = self._file.program, place or self._place
        if self._file.uses("script"):
            self._write_script(request.script, place)
        try:
            completed = subprocess.run(
                request.words,
                input=request.script,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SUBMIT_S,
                check=False,
            )
        except OSError as error:
            raise Failure(f"{place}: {program}: {error.strerror}; {ELSEWHERE_REMEDY}") from error
        except subprocess.TimeoutExpired as error:
            raise Failure(
                f"{place}: {program}: nothing within {SUBMIT_S:g} seconds; try again later"
            ) from error
        finally:
            self._script.unlink(missing_ok=True)
        if completed.returncode == 0:
            return completed.stdout
        reason = refusal(self._file, completed.stderr or completed.stdout)
        reason = reason or f"ended with {completed.returncode}"
        request_text = f" (asked with {' '.join(settings)})" if settings else ""
        raise Failure(f"{place}: {program}: {reason}{request_text}; {self._remedy()}")

    def _write_script(self, script: str, place: str) -> None:
        """Write the script to a file that only this user can read: `launcher.setup` may have
        keys. Raises Failure where it can't be written."""
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        try:
            make_folder(self._folder)
            self._script.unlink(missing_ok=True)
            with open(os.open(self._script, flags, 0o600), "w") as file:
                file.write(script)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._script.unlink(missing_ok=True)
            raise Failure(f"{place}: {self._script}: {error.strerror}") from error

    def _remedy(self) -> str:
        remedy = "change the setting that it refuses, or try again later"
        if not self._file.takes_options:
            return remedy
        return f"launcher.{self._file.program}=OPTION=null leaves an option out; {remedy}"

    def _job_id(self, output: str) -> str:
        matches = [*re.finditer(self._file.id, output, re.MULTILINE)]
        if not matches:
            raise Failure(
                f"{self._place}: {self._file.program} printed no job that launcher.id reads: "
                f"{output.strip() or 'nothing'}"
            )
        return matches[-1]["job"]  # the site may print lines of its own before

    def _site_options(self) -> dict[str, Any]:
        """Return the options of launcher.PROGRAM. Raises UserError where quotes don't match."""
        key = self._file.program
        options = site_options(f"launcher.{key}", self._settings.get(key, ""))
        if self._file.option.startswith("--"):  # as people type them, and in Python
            return {k.removeprefix("--").replace("_", "-"): v for k, v in options.items()}
        return options

    def _values(self, host: str = "") -> dict[str, Any]:
        """Return the values of all places that are the same in every request."""
        settings = self._settings
        limit_s = seconds(settings.get("time", "")) or 0.0
        return {
            **settings,
            "name": f"ablate-{self._look or self._token}",
            "python": settings["python"] or sys.executable,
            "folder": os.getcwd(),
            "root": str(self._root),
            "logs": str(self._folder),
            "log": "",
            "script": str(self._script),
            "node_cpus": max(settings["gpus"], 1) * settings["cpus"],
            "seconds": int(limit_s),
            "minutes": math.ceil(limit_s / 60),
            "host": host,
        }

    def _pilot(self, job: str, values: Mapping[str, Any]) -> list[str]:
        """Return the command of a pilot.

        Everybody on a node can read it, so it lacks the private settings: `launcher.setup` and
        those of the engine, and the driver's command. That command, which runs record, reaches the
        pilot with its orders.
        """
        file = self._file
        private = {"setup", "origin", "engine", file.program, *file.settings}
        settings = {key: value for key, value in self._settings.items() if key not in private}
        tree = {
            "root": str(self._root),
            "settings": {**settings, "token": self._token},
            "job": job,
            "host": EngineFile.fill(file.host, values),
            "time_left": EngineFile.words(file.time_left, values),
            "look": self._look,
        }
        # -P: import no module from the working directory
        return [str(values["python"]), "-P", "-u", "-m", PILOT, json.dumps(tree)]

    def _check_missing(self) -> None:
        """Raise UserError for an empty setting of the engine that its commands can't be without."""
        values = self._values()
        for key in self._file.settings:
            if not values[key] and self._file.needs(key):
                raise UserError(f"launcher.{key}: missing; give launcher.{key}=VALUE")

    @property
    def takes_drivers(self) -> bool:
        """True if a driver can have a job of its own."""
        return self._file.driver is not None

    # --- Answers --------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise Failure where this host can't ask for jobs."""
        values = self._values()
        for command in (self._file.submit, self._file.states):
            program = shlex.split(command)[0].format_map(values)
            if shutil.which(program) is None:
                raise Failure(f"{self._place}: {program}: not found on PATH; {ELSEWHERE_REMEDY}")
        if self.states() is None:
            raise Failure(
                f"{self._place}: the cluster gives no answer{self.silence}; {ELSEWHERE_REMEDY}"
            )

    def states(self) -> Mapping[str, bool] | None:
        answers = self._answers()
        if answers is None:
            return None
        return {job: state == "running" for job, state in answers.items() if is_there(state)}

    def _answers(self) -> dict[str, State] | None:
        """Return the state of every job; None where nobody answers. The jobs of a host that does
        not answer are as they were, since it may only be out of reach; after STALE_S, when their
        pilots are given up, they are left out."""
        if not self._file.has_hosts:
            answer, reason = self._states_at("")
            self.silence = f" ({reason})" if reason else ""
            return answer
        with ThreadPoolExecutor(len(self._hosts)) as threads:
            answers = dict(zip(self._hosts, threads.map(self._states_at, self._hosts), strict=True))
        self._unreachable = {host for host, (answer, _) in answers.items() if answer is None}
        reasons = dict.fromkeys(reason for _, reason in answers.values() if reason)
        self.silence = f" ({'; '.join(reasons)})" if reasons else ""
        answered = {host: answer for host, (answer, _) in answers.items() if answer is not None}
        now = time.monotonic()
        self._states |= answered
        self._answered_at |= dict.fromkeys(answered, now)
        if not answered:
            return None
        return {
            job: state
            for host, jobs in self._states.items()
            for job, state in jobs.items()
            if now - self._answered_at[host] <= STALE_S
        }

    def _states_at(self, host: str) -> tuple[dict[str, State] | None, str]:
        """Return the state of every job of a host, and ""; None and the reason where it does not
        answer."""
        values = self._values(host)
        output, reason = answer_to(EngineFile.words(self._file.states, values), self._file.empty)
        if output is None:
            return None, reason
        prefix = f"{host}:" if host else ""
        states = read_states(self._file, output, str(values["name"]))
        return {f"{prefix}{job}": state for job, state in states}, ""

    def ended(self, job: str) -> JobEnd:
        for question in self._file.endings:
            output = output_of(EngineFile.words(question.command, self._of_job(job))) or ""
            endings = [*re.finditer(question.pattern, output, re.MULTILINE)]
            words = " ".join(endings[-1]["state"].split()) if endings else ""
            if words and not is_there(kind := meaning(self._file, words)):
                return JobEnd(words, kind)
        return JobEnd()

    def cancel(self, jobs: Collection[str]) -> None:
        if "{*jobs}" in self._file.cancel:
            output_of(self.cancel_words(*jobs))
            return
        for job in jobs:
            output_of(self.cancel_words(job))

    def cancel_words(self, *jobs: str) -> list[str]:
        """Return the command that cancels jobs, or one job where it takes no more."""
        values = (self._of_job(jobs[0]) if len(jobs) == 1 else self._values()) | {"jobs": jobs}
        return EngineFile.words(self._file.cancel, values)

    def _of_job(self, job: str) -> dict[str, Any]:
        """Return the values of places in a command on one job."""
        host, _, number = job.rpartition(":") if self._file.has_hosts else ("", "", job)
        return self._values(host) | {"job": number}

    def log(self, job: str) -> str:
        return EngineFile.fill(self._file.log, self._of_job(job))


# --- Rendering and reading ------------------------------------------------------------------------


def fill_lines(template: str, values: Mapping[str, Any]) -> str:
    """Fill a script. A value of several lines is indented as the line of its place is."""
    lines = []
    for line in template.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines.append(EngineFile.fill(line, values).replace("\n", f"\n{indent}"))
    return "\n".join([*lines, ""])


def quoted(values: Mapping[str, Any], quote: str) -> dict[str, Any]:
    """Return values as a script takes them (see EngineFile.quote), except for those that are lines
    of a shell."""
    lines = ("setup", "pilot")
    return {
        key: _QUOTES[quote](value) if isinstance(value, str) and key not in lines else value
        for key, value in values.items()
    }


def _shell_word(text: str) -> str:
    return shlex.quote(text) if text else ""  # an empty one is left out


def _inside_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]  # YAML knows no surrogate pairs


_QUOTES = {"shell": _shell_word, "json": _inside_json}


def filled(options: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with the places in their values filled."""
    return {
        key: EngineFile.fill(value, values) if isinstance(value, str) else value
        for key, value in options.items()
    }


def option_words(file: EngineFile, options: Mapping[str, Any]) -> list[str]:
    """Return the words of options; null, false and empty ones are left out."""
    words: list[str] = []
    for key, value in options.items():
        if value is True:
            words += shlex.split(file.option.partition("{key}")[0] + key)
        elif value is not None and value is not False and value != "":
            words += [word.format(key=key, value=value) for word in shlex.split(file.option)]
    return words


def site_options(place: str, text: str) -> dict[str, Any]:
    """Read the options of launcher.PROGRAM, as in "gres=gpu:a100:1 gpus-per-node=null exclusive".
    `null` leaves an option out. Raises UserError where quotes don't match."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(
            f"{place}: {text}: {error}; give keys as in reservation=vit hint=compute_bound"
        ) from error
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        options[key] = (None if value == "null" else value) if equals else True
    return options


def request_settings(settings: Mapping[str, Any], for_training: bool = True) -> list[str]:
    """Return `launcher.KEY=VALUE` for the settings behind a request, except for empty ones."""
    file = EngineFile.of(settings["engine"])
    names = [*file.settings, "time", file.program]
    names += ["nodes", "gpus", "cpus"] if for_training else []
    return [shlex.quote(f"launcher.{key}={settings[key]}") for key in names if settings.get(key)]


def refusal(file: EngineFile, output: str) -> str:
    """Return a program's reasons in one line, from what it wrote; "" for none.

    Several errors are joined: the last is often general, and an earlier one has the value.
    """
    lines = output.strip().splitlines()
    prefix = f"{file.program}: "
    errors: list[str] = []
    if file.refusal:
        errors = [match["reason"] for match in re.finditer(file.refusal, output)]
    own_lines = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    return "; ".join(errors or own_lines or lines[-1:])


def read_states(file: EngineFile, output: str, name: str = "") -> Iterator[tuple[str, State]]:
    """Yield (job, its state) of what `states` prints. `name`: that of the store's jobs, where the
    pattern has a group of this name."""
    for match in re.finditer(file.state, output, re.MULTILINE):
        if match.groupdict().get("name", name) != name:
            continue
        yield match["job"], meaning(file, " ".join(match["state"].split()))


def meaning(file: EngineFile, state: str) -> State:
    """Return what an engine's word for a state means."""
    kinds: tuple[State, ...] = ("running", "ended", "lost", "failed")
    for kind in kinds:
        pattern = getattr(file, kind)
        if pattern and re.fullmatch(pattern, state):
            return kind
    return "waiting"


def is_there(state: State) -> bool:
    """Return whether a job of this state has not ended."""
    return state in ("waiting", "running")


def _check_limit(settings: Mapping[str, Any], file: EngineFile) -> None:
    """Raise UserError for a limit that leaves no time to train, and for one that can't be given to
    the engine in its unit. An engine that takes the text as it is, such as Slurm, may know more
    forms."""
    limit, grace_s = settings.get("time", ""), settings["grace_s"]
    limit_s = seconds(limit)
    if limit and limit_s is None and file.uses("seconds", "minutes"):
        raise UserError(f"launcher.time: expected minutes, H:MM:SS or D-HH:MM, got {limit}")
    if limit_s is not None and limit_s <= grace_s:
        raise UserError(
            f"launcher.time: {limit} is not more than launcher.grace_s={grace_s}, which "
            f"is kept for checkpoints"
        )


def host_names(settings: Mapping[str, Any]) -> list[str]:
    """Return the hosts of launcher.hosts; none for engines that choose hosts themselves."""
    return re.findall(r"[^\s,]+", settings.get("hosts", ""))


def seconds(limit: str) -> float | None:
    """Parse a limit, or a time left: minutes, MINUTES:SECONDS, H:MM:SS, D-HH and longer. Returns
    None for other texts, such as no limit."""
    days, dash, clock = limit.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in (*parts, days or "0")) or len(parts) > 3:
        return None
    numbers = [float(part) for part in parts]
    if not dash and len(parts) < 3:
        numbers.insert(0, 0.0)  # no hours
    numbers += [0.0] * (3 - len(numbers))
    hours, minutes, secs = numbers
    return ((float(days or 0) * 24 + hours) * 60 + minutes) * 60 + secs


def output_of(words: Sequence[str]) -> str | None:
    """Return what a command prints; None where it fails: see `answer_to`."""
    return answer_to(words)[0]


def answer_to(words: Sequence[str], empty: str = "") -> tuple[str | None, str]:
    """Return (what a command prints, ""), or (None, the reason in one line) where it fails, is not
    there, or takes longer than PATIENCE_S; the reason is "" where the command gives none. `empty`:
    a pattern of an output that says that there is nothing, and may come with any exit code."""
    try:
        completed = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            check=False,
        )
    except OSError as error:
        return None, f"{words[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return None, f"{words[0]}: nothing within {PATIENCE_S:g} seconds"
    if empty and re.search(empty, completed.stdout + completed.stderr):
        return "", ""
    if completed.returncode == 0:
        return completed.stdout, ""
    return None, "".join(completed.stderr.strip().splitlines()[-1:])
