"""The keys of another Hydra application, as it composes them itself: `keys: hydra`.

Its command is started with `--help`, which runs nothing, and with a template of ours that prints
all that was composed. So its plugins, its ConfigStore and its interpreter are those of its runs.
What it composed is remembered in the store, until what decides it changes: its files of
configuration, its code, the variables that these name, PATH, PYTHONPATH, or the packages of its
interpreter.

Used by `planning/compose.py` for runs of such a trainer, and by `planning/program_yaml.py` for
`ablate new trainer "COMMAND"`.
"""

from __future__ import annotations

import ast
import collections
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate.planning.conf import hydra_errors
from ablate.planning.settings import leaves, value_text
from ablate.run import TRAINER, code_file_hash, hydra_override
from ablate.shared import (
    UserError,
    make_folder,
    read_file,
    read_sealed,
    short_error,
    system,
    unknown_value,
    write_sealed,
)

CACHE_FOLDER = Path("cache", "hydra")  # in a store; a file for each composition
ANSWER_S = 300.0
MARK = "<of the application>"  # before and after each part of its help
HELP_PARTS = (
    "${hydra.runtime.choices}",
    "${hydra.runtime.config_sources}",
    "$APP_CONFIG_GROUPS",
    "$CONFIG",
)
HELP = (f"hydra.help.template='{MARK.join(['', *HELP_PARTS, ''])}'", "--help")
KINDS = {bool: "bool", int: "int", float: "float", str: "str", list: "list"}
# (type of a default, type of a value): defaults that a value of another type may replace.
OTHER_TYPES = ((int, float), (str, int), (str, float))
# Numbers that no JSON holds, as YAML spells them.
NOT_FINITE = {"Infinity": ".inf", "-Infinity": "-.inf", "NaN": ".nan"}
# Variables that decide which program a word is, and which modules it imports.
SEARCH_VARIABLES = ("PATH", "PYTHONPATH")
INSTALLED = ("hydra.", "hydra_plugins.")  # packages of configuration next to an interpreter
_FILLED = re.compile(r"[+~]*([A-Za-z_][\w./@-]*)=.*\{.*")  # KEY={PLACE}: only a run can fill it
_VARIABLE = re.compile(rb"\$\{\s*(?:oc\.)?env\s*:\s*(\w+)")
_CHAINED = "\nThe above exception was the direct cause of the following exception:\n"
_OF_HYDRA = re.compile(r"(?:hydra|omegaconf)\.[\w.]+: ")  # the name of an exception
_TEMPLATE = re.compile(r'string\.py", line \d+, in substitute')
_YAML_PLACE = re.compile(r"^ +(in \".*\", line \d+)", re.MULTILINE)


@dataclass(frozen=True)
class Composed:
    """The result of composing an application's configuration from overrides.

    choices: what each group is; options: of each group, also of those that its list of defaults
    lacks; values: by dotted key; derived: the keys of interpolations; missing: the keys that have
    no value yet; folders: where its files of configuration lie.
    """

    choices: Mapping[str, str]
    options: Mapping[str, Sequence[str]]
    values: dict[str, Any]
    derived: Sequence[str]
    missing: Sequence[str]
    folders: Sequence[Path]


@dataclass(frozen=True)
class HydraApp:
    """A Hydra application, by the command that starts it.

    words: of the command, with placeholders; folder: where it starts; env: its variables; store:
    the one that remembers what it composed, None to remember it in this value alone; files: the
    hashes of its code, by paths in the folder that the user works in.
    """

    words: Sequence[str]
    folder: Path
    env: Mapping[str, str]
    store: Path | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    _answers: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _hashes: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @functools.cached_property
    def filled_keys(self) -> dict[str, str]:
        """The keys that the command fills in from what only a run has, and its word for each."""
        matches = [(_place_match(word), word) for word in self.words]
        return {match[1]: word for match, word in matches if match}

    def compose(self, overrides: Sequence[str]) -> Composed:
        """Return what the application composes from its command and these overrides.

        Raises UserError, one line, for what it refuses, and where it is no Hydra application.
        """
        answer = self._answer(overrides)
        choices = {
            group: str(choice)
            for group, choice in answer["choices"].items()
            if choice is not None and not group.startswith("hydra/")
        }
        values: dict[str, Any] = {}
        missing: list[str] = []
        derived: list[str] = []
        for key, value in leaves(answer["config"]):
            if key == "name" or key in self.filled_keys or value == {}:  # "name" is ours
                continue
            if value == "???":
                missing.append(key)
            elif "${" in repr(value):
                derived.append(key)
            else:
                values[key] = value
        folders = [Path(folder) for folder in answer["folders"]]
        return Composed(choices, answer["options"], values, derived, missing, folders)

    def _answer(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Return what the application composes from these overrides, as its help has it:
        remembered, or else asked for now.

        choices and options: of the groups; config: the plain tree, interpolations unresolved;
        folders: those of its files; sources: the hash of these files.
        """
        words = self._filled(overrides)
        digest = self._digest(words)
        if digest not in self._answers:
            path = None if self.store is None else self.store / CACHE_FOLDER / f"{digest}.json"
            answer = None if path is None else read_sealed(path)
            if answer is None or answer["sources"] != self._known_sources(answer["folders"]):
                answer = self._ask(words, path)
            self._answers[digest] = answer
        stored: dict[str, Any] = self._answers[digest]
        return stored

    def _ask(self, words: Sequence[str], path: Path | None) -> dict[str, Any]:
        """Start the application, and return its answer, which is written to `path` unless an edit
        while it was loaded may have come too late for it."""
        location = f"{TRAINER}.keys: hydra: {shlex.join([*words, HELP[-1]])}"
        began_ns = time.time_ns()
        answer, sources = _parsed(self._printed([*words, *HELP], location), location)
        answer["folders"] = [source["path"] for source in sources if source["schema"] == "file"]
        files = _config_files(answer["folders"], self.store)
        answer["sources"] = self._sources(files)
        places = {*files, *(file.parent for file in files), *map(Path, answer["folders"])}
        if path is not None and _is_of_files(sources) and self._is_unchanged(places, began_ns):
            make_folder(path.parent)
            write_sealed(path, answer)
        return answer

    def _known_sources(self, folders: Sequence[str]) -> str:
        """Return the hash as `_sources` does, computed once for all compositions of a plan."""
        key = os.pathsep.join(folders)
        if key not in self._hashes:
            self._hashes[key] = self._sources(_config_files(folders, self.store))
        return self._hashes[key]

    def _sources(self, files: Sequence[Path]) -> str:
        """Return the hash of these files of configuration, and of the variables that they and the
        code name."""
        content, variables = hashlib.sha256(), set(self._variables)
        for file in files:
            text = file.read_bytes()
            variables.update(_VARIABLE.findall(text))
            content.update(f"{file}\0{len(text)}\0".encode() + text)
        environment = {**os.environ, **self.env}
        for name in sorted(variable.decode() for variable in variables):
            content.update(f"{name}\0{environment.get(name)}\0".encode())
        return content.hexdigest()

    @functools.cached_property
    def _variables(self) -> set[bytes]:
        """The variables that its command and its code name in interpolations."""
        command = " ".join(self._filled([])).encode()  # {{ }} are braces by then
        texts = [command, *(read_file(Path(name)) for name in self.files)]
        return {name for text in texts for name in _VARIABLE.findall(text)}

    def _is_unchanged(self, places: Collection[Path], began_ns: int) -> bool:
        """Return whether code and configuration, whose files and folders these are, are what they
        were when the application began. A file that was added changed its folder."""
        try:
            stats = [place.stat() for place in places]
            code = {name: code_file_hash(read_file(Path(name))) for name in self.files}
        except OSError:
            return False
        # A file that was renamed or copied to here may keep an old time of its last edit.
        changes_ns = [max(stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats]
        return all(change_ns < began_ns for change_ns in changes_ns) and code == self.files

    def _filled(self, overrides: Sequence[str]) -> list[str]:
        """Return the words of the command with these overrides, without those that only a run can
        fill (seed, folder)."""
        places: Mapping[str, str] = collections.defaultdict(lambda: "1")
        words: list[str] = []
        for word in self.words:
            if word == "{overrides}":
                words += overrides
            elif not _place_match(word):
                words.append(word.format_map(places))
        return words

    def _digest(self, words: Sequence[str]) -> str:
        """Return the name of a composition: a hash of the words, the variables, the code, and the
        time of the last change of its interpreter's packages."""
        environment = {**os.environ, **self.env}
        word = words[0]
        if os.sep in word:
            word = os.path.join(self.folder, word)
        program = shutil.which(word, path=environment.get("PATH")) or word
        packages = Path(program).parent.parent.glob("lib/python*/site-packages")
        installed = [[str(folder), folder.stat().st_mtime_ns] for folder in sorted(packages)]
        search = [environment.get(name) for name in SEARCH_VARIABLES]
        content = [words, program, installed, search, str(self.folder), self.env, self.files]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    def _printed(self, words: Sequence[str], location: str) -> str:
        quiet = {"PYTHONWARNINGS": "ignore", "HYDRA_FULL_ERROR": "1"}
        environment = {**os.environ, **self.env, **quiet}
        try:
            process = system.run_in_session(words, ANSWER_S, cwd=self.folder, env=environment)
        except OSError as error:
            raise UserError(f"{TRAINER}.command: {words[0]}: {error.strerror}") from error
        except subprocess.TimeoutExpired:
            raise UserError(
                f"{location}: did not end within {ANSWER_S:g} s, and was killed; move what takes "
                f"long behind @hydra.main, or declare keys: {{KEY: DEFAULT}}"
            ) from None
        if process.returncode:
            if _TEMPLATE.search(process.stderr):  # Hydra fills its help by string.Template
                raise UserError(
                    f"{location}: the path of its configuration has a $, which Hydra can't print; "
                    f"rename that folder (the application starts in {self.folder})"
                )
            raise UserError(f"{location}: {_cause(process.stderr)}")
        return process.stdout


def _place_match(word: str) -> re.Match[str] | None:
    """Match a word of a command that only a run can fill, such as seed={seed}."""
    return _FILLED.fullmatch(word.replace("{{", "").replace("}}", ""))


def _cause(text: str) -> str:
    """Return why an application ended: the exception of its traceback, and those that caused it."""
    causes = []
    for part in reversed(text.split(_CHAINED)):
        lines = [line for line in part.splitlines() if line.strip() and not line.startswith(" ")]
        causes.append(_OF_HYDRA.sub("", system.failure_cause(lines), count=1).rstrip(" ."))
        if "yaml." in causes[-1] and (place := _YAML_PLACE.search(part)):
            causes[-1] += f" {place[1]}"
    return short_error(": ".join(causes))


def _parsed(text: str, location: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the parts of a printed help: the groups' `choices` and `options` and the `config`, and
    the sources of the configuration.

    What the program prints as it is loaded, or behind its function, stands outside of the marks.
    """
    from omegaconf import OmegaConf

    parts = text.split(MARK)
    if len(parts) != len(HELP_PARTS) + 2:
        raise UserError(
            f"{location}: printed no configuration of Hydra; `keys: hydra` is for a program with "
            f"@hydra.main, any other has keys: {{KEY: DEFAULT}}"
        )
    choices_text, sources_text, groups_text, config_text = parts[1:-1]
    options = {}
    for line in groups_text.splitlines():
        group, _, names = line.strip().partition(": ")
        if names:
            options[group] = names.split(", ")
    with hydra_errors(f"{location}: its configuration can't be read"):
        tree = OmegaConf.to_container(OmegaConf.create(config_text), resolve=False)
    config = json.loads(json.dumps(tree, default=str), parse_constant=NOT_FINITE.__getitem__)
    answer = {"choices": ast.literal_eval(choices_text), "options": options, "config": config}
    return answer, ast.literal_eval(sources_text)


def _is_of_files(sources: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a configuration was composed from files in folders, from the program itself
    and from what is installed; a package may lie anywhere."""
    return all(
        source["schema"] in ("file", "structured")
        or not source["path"]
        or (source["schema"] == "pkg" and source["path"].startswith(INSTALLED))
        for source in sources
    )


def _config_files(folders: Sequence[str], store: Path | None) -> list[Path]:
    """List the files of configuration below some folders, in order. What lies in the store, in a
    virtual environment or in a hidden folder, as `.hydra` of other runs, is none."""
    files: list[Path] = []
    folders_seen: set[str] = {os.path.realpath(store)} if store is not None else set()
    for folder in folders:
        for place, folder_names, names in os.walk(folder, followlinks=True):
            real_place = os.path.realpath(place)
            if real_place in folders_seen or "pyvenv.cfg" in names:
                folder_names.clear()
                continue
            folders_seen.add(real_place)
            folder_names[:] = [name for name in folder_names if not name.startswith(".")]
            files += [Path(place, name) for name in names if name.endswith((".yaml", ".yml"))]
    return sorted(file for file in files if file.is_file())


def keys_of(app: HydraApp, run_settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the declaration of each key of an application, and the overrides of a run.

    A declaration is as a yaml's `keys` has it, with the key's value as default; the overrides are
    the words that give the application what it would not have by itself.

    run_settings: what is set in a run, by group or dotted key. Raises UserError, one line, for a
    key that the application does not have, and for a value that it refuses.
    """
    default = app.compose([])
    group_choices = {  # 18 is the option "18"
        key: value_text(value) for key, value in run_settings.items() if key in default.options
    }
    for key, value in group_choices.items():
        if value not in default.options[key]:
            raise unknown_value(f"{TRAINER}.{key}", value, default.options[key])
    groups = []
    for key, value in group_choices.items():
        if key not in default.choices:
            groups.append(hydra_override(f"+{key}", value))
        elif default.choices[key] != value:
            groups.append(hydra_override(key, value))
    composed = app.compose(groups)
    settings = {key: value for key, value in run_settings.items() if key not in group_choices}
    keys = [*composed.values, *composed.derived, *composed.missing]
    for key in settings:
        if key in app.filled_keys:
            word = app.filled_keys[key]
            raise UserError(f"{TRAINER}.{key}: is filled in by the command, {word}; leave it out")
        if key not in keys:
            all_keys = [*default.options, *keys]
            raise unknown_value(f"{TRAINER}.{key}", key, all_keys, "a key among")
    for key in composed.missing:
        if key not in settings:
            raise UserError(f"{TRAINER}.{key}: missing; give {TRAINER}.{key}=VALUE")
    changed_values = {
        key: value
        for key, value in settings.items()
        if key not in composed.values
        or composed.values[key] != value
        or _is_of_other_type(value, composed.values[key])
    }
    overrides = groups + [hydra_override(key, value) for key, value in changed_values.items()]
    if changed_values:
        app.compose(overrides)
    declares: dict[str, Any] = {}
    for key, choice in composed.choices.items():
        # An optional default from an interpolation may name a file that does not exist.
        if choice in default.options.get(key, ()):
            declares[key] = {"default": choice, "choices": default.options[key]}
    for key, value in (composed.values | changed_values).items():
        default_value = composed.values.get(key)
        is_own = default_value is None or _is_of_other_type(value, default_value)
        declares[key] = {
            "default": value,
            "type": KINDS.get(type(value if is_own else default_value), "str"),
            "nullable": default_value is None or value is None,
        }
    return declares, overrides


def _is_of_other_type(value: Any, default_value: Any) -> bool:
    """Return whether a value has another type than the default that it replaces, and keeps it."""
    return (type(default_value), type(value)) in OTHER_TYPES
