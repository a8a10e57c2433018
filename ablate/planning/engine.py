"""An engine as data: how a cluster is asked for jobs, as `conf/launcher/NAME.yaml` says it.

A job is a *pilot*: a command that starts on a host which sees the store. The file has the commands
that ask for a job, list jobs and end them, patterns that read what these print, and what the words
for a job's state mean. So a launcher of one's own is a file of a few lines:

    # Trains on the hosts of our own queue.
    submit: enqueue --title {name} [--room {room}]   # the script on its standard input
    job: "{QUEUE_JOB}"                               # its id, by a variable that the job has
    states: enqueue --list {name}
    state: '(?P<job>\\d+) (?P<state>\\w+)'             # one match a job
    running: active
    ended: done
    failed: crashed
    cancel: enqueue --end {*jobs}
    settings: {room: "the room of the hosts; empty: any"}

A command is split into words as a shell does, without a shell. `{place}` in a word is filled, with
the setting of that name or with one of PLACES; `{*place}` becomes a word for each element; what
stands in `[...]` around a place is left out where the place is empty or 0; `{{` and `}}` are
braces. Places in capitals, in `job`, `host` and `time_left`, are variables of the job's
environment.

Used by `planning/launcher.py`, which makes settings of it, and by running/launchers/engine.py,
which carries it out: a new field needs both.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, Literal

from ablate.run import read_section
from ablate.shared import UserError, unknown_value

PLACES = {
    "name": "the name of the store's jobs; only these have it",
    "script": "a file with the script, for programs that don't read it from standard input; it is "
    "removed when `submit` has ended",
    "options": "the words of `options` and of launcher.PROGRAM",
    "pilot": "the command of a pilot, in `script`",
    "setup": "launcher.setup, in `script`",
    "python": "the Python of nodes",
    "folder": "the folder in which ablate was started",
    "root": "the store",
    "logs": "a folder of the store for what jobs print",
    "log": "the log of a driver's job",
    "label": "`label`, of this request",
    "count": "the number of jobs in a request",
    "final": "that number less 1",
    "exclude": "hosts that are not to be used: `exclude` for each, joined",
    "node_cpus": "CPUs of a node: cpus for each of its GPUs",
    "seconds": "the limit of a job in seconds, 0 without",
    "minutes": "the same in minutes, rounded up",
    "host": "the host of this request or job, where there are `hosts`",
    "job": "the id of a job",
    "jobs": "the ids of jobs",
    "number": "the place of a job in a request, from 0",
}
_SCRIPT = """\
#!/bin/bash
cd {folder}
{setup}
exec {pilot}
"""
_OPTIONAL = re.compile(r"\[([^\[\]]*\{\*?\w+\}[^\[\]]*)\]")


@dataclass(frozen=True)
class Question:
    """A command, and the pattern that reads what it prints."""

    command: str
    pattern: str


@dataclass(frozen=True)
class Several:
    """The differences of a request for several equal jobs at once.

    options: in addition; label, job: as in EngineFile; id: of each, from the request's `{job}` and
    the `{number}` of the job in it.
    """

    options: Mapping[str, Any]
    id: str
    job: str
    label: str = ""


@dataclass(frozen=True)
class DriverJob:
    """The job of `--detach job`. options: its own; training: beginnings of those keys of
    launcher.PROGRAM that only training needs."""

    options: Mapping[str, Any]
    training: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineFile:
    """The content of a `conf/launcher/NAME.yaml`.

    Requests. submit: the command that asks for a job; script: its standard input; quote: how values
    stand in the script: `shell` makes each a word, `json` escapes what may not stand between double
    quotes of JSON or YAML, which the script has; options: become `{*options}`, each in the form
    `option`, and null, false and empty ones are left out; id: reads the job's id from what `submit`
    prints (group `job`; `^` and `$` are those of a line, and the last match counts); array: a
    request for several; exclude, exclude_joined: a host that is not to be used, and what stands
    between two; refusal: reads the reason from what `submit` prints where it fails (group
    `reason`); driver: the job of a driver.

    On the node. job: the job's id, as `id` and `state` read it; host: the node's name, by default
    its own; time_left: a command that prints the time until the job's limit, by default the limit
    itself at the start.

    Answers. states: lists the jobs of `{name}`; state: one match a job, groups `job` and `state`,
    and `name` where other jobs are listed, too; empty: what `states` prints, whatever its exit
    code, where there are none; running, ended,
    failed, lost: patterns of whole states. Any other state is waiting, and the first that fits
    counts. A job that failed has taken its runs down with it; one that is lost was taken away, by
    hand or with its host. endings: asked in turn how a job ended that `states` no longer lists
    (group `state`). log: where a job's output is, for people.

    settings: launcher.KEY of the engine's own: a line of help each; texts, "" by default. With
    `hosts` among them, a command that has `{host}` is meant for one of these: ids then are
    HOST:ID, and `{job}` is ID. Any other key of the file is the default of a setting.
    """

    submit: str
    job: str
    states: str
    state: str
    cancel: str
    script: str = _SCRIPT
    quote: Literal["shell", "json"] = "shell"
    id: str = r"^(?P<job>\S+)$"
    options: Mapping[str, Any] = field(default_factory=dict)
    option: str = "--{key}={value}"
    label: str = ""
    array: Several | None = None
    exclude: str = "{host}"
    exclude_joined: str = ","
    refusal: str = ""
    driver: DriverJob | None = None
    host: str = ""
    time_left: str = ""
    empty: str = ""
    running: str = ""
    ended: str = ""
    failed: str = ""
    lost: str = ""
    endings: tuple[Question, ...] = ()
    log: str = "{logs}"
    settings: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(tree: Mapping[str, Any]) -> EngineFile:
        """Read the keys of a file. Raises UserError, one line."""
        engine: EngineFile = read_section(EngineFile, tree, "launcher")
        engine._check_syntax()
        return engine

    @staticmethod
    def fill(template: str, values: Mapping[str, Any]) -> str:
        """Return a template with its places filled. What `[...]` has around an empty place is left
        out. Places in capitals stay."""
        return _optional(template, values).format_map(_Places(values))

    @staticmethod
    def words(command: str, values: Mapping[str, Any]) -> list[str]:
        """Return the words of a command with their places filled."""
        words: list[str] = []
        for word in shlex.split(_optional(command, values)):
            if word.startswith("{*") and word.endswith("}"):
                words += values[word[2:-1]]
            else:
                words.append(word.format_map(_Places(values)))
        return words

    @property
    def program(self) -> str:
        """The name of the program that asks for jobs."""
        return self.submit.split()[0].rpartition("/")[2]

    @property
    def takes_options(self) -> bool:
        """True if launcher.PROGRAM adds options to a request."""
        return "{*options}" in self.submit

    @property
    def has_hosts(self) -> bool:
        """True if jobs are asked for at each of several hosts."""
        return "hosts" in self.settings

    def uses(self, *places: str) -> bool:
        """Return whether a template of a request has one of these places."""
        return not {*places}.isdisjoint(
            place for _, text in self._templates() for place in _places(text)
        )

    def needs(self, place: str) -> bool:
        """Return whether a command or the script has this place outside `[...]`; for `hosts`, that
        of one of them."""
        place = "host" if place == "hosts" else place
        texts = (self.submit, self.states, self.cancel, self.script)
        return any(place in _places(_OPTIONAL.sub("", text)) for text in texts)

    def _templates(self) -> Iterator[tuple[str, str]]:
        """Yield (key, text) of all that is filled."""
        for key in ("submit", "job", "states", "cancel", "script", "label", "host", "time_left"):
            yield key, getattr(self, key)
        yield from (("exclude", self.exclude), ("log", self.log))
        tables = {"options": self.options}
        if self.array is not None:
            tables["array.options"] = self.array.options
            yield from (
                ("array.id", self.array.id),
                ("array.job", self.array.job),
                ("array.label", self.array.label),
            )
        if self.driver is not None:
            tables["driver.options"] = self.driver.options
        for table, options in tables.items():
            yield from ((f"{table}.{key}", str(value)) for key, value in options.items())
        for number, question in enumerate(self.endings):
            yield f"endings[{number}].command", question.command

    def _patterns(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Yield (key, pattern, the groups that it must have)."""
        yield "id", self.id, ("job",)
        yield "state", self.state, ("job", "state")
        yield "refusal", self.refusal, ("reason",)
        for key in ("empty", "running", "ended", "failed", "lost"):
            yield key, getattr(self, key), ()
        for number, question in enumerate(self.endings):
            yield f"endings[{number}].pattern", question.pattern, ("state",)

    def check_places(self, names: Mapping[str, Any]) -> None:
        """Raise UserError for a place that nothing fills. `names`: the settings."""
        for key, text in self._templates():
            for place in _places(text):
                if place not in names and place not in PLACES and not place.isupper():
                    raise unknown_value(f"launcher.{key}: {{{place}}}", place, [*names, *PLACES])

    def _check_syntax(self) -> None:
        """Raise UserError for braces that are no place, a command that can't be split, and a
        pattern that is none."""
        for key, text in self._templates():
            try:
                _places(text)
                if key in ("submit", "states", "cancel", "time_left") or key.endswith("command"):
                    shlex.split(text)
            except ValueError as error:
                raise UserError(f"launcher.{key}: {text}: {error}") from error
        for key, pattern, groups in self._patterns():
            try:
                compiled = re.compile(pattern)
            except re.error as error:
                raise UserError(f"launcher.{key}: {pattern}: {error}") from error
            for group in groups:
                if pattern and group not in compiled.groupindex:
                    raise UserError(
                        f"launcher.{key}: {pattern}: has no group {group}; write (?P<{group}>...)"
                    )
        if not self.submit.split():
            raise UserError("launcher.submit: expected a command, got nothing")


ENGINE_FIELDS = tuple(item.name for item in dataclasses.fields(EngineFile))


class _Places(dict[str, Any]):
    """Values by place; a place in capitals is filled on the node."""

    def __missing__(self, place: str) -> str:
        if place.isupper():
            return f"{{{place}}}"
        raise KeyError(place)


def _optional(template: str, values: Mapping[str, Any]) -> str:
    def part(match: re.Match[str]) -> str:
        return match[1] if all(values.get(place) for place in _places(match[1])) else ""

    return _OPTIONAL.sub(part, template)


def _places(template: str) -> list[str]:
    """List the places of a template. Raises ValueError for braces that are none."""
    names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    places = [name.removeprefix("*") for name in names]
    if strange := [name for name in places if not name.isidentifier()]:
        raise ValueError(
            f"{{{strange[0]}}}: expected a place such as {{name}}; write {{{{ and }}}}"
        )
    return places
