"""The keys of another Hydra application, as it composes them itself: `keys: hydra`.

Its command is started with Hydra's own `--cfg all` and `--help`, which print what a run would have
and run nothing. So its plugins, its ConfigStore and its interpreter are those of its runs. What it
composed is remembered in the store, until its files change.

Used by `planning/compose.py` for runs of such a trainer, and by `planning/program_yaml.py` for
`ablate new trainer "COMMAND"`.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate.planning.conf import hydra_errors
from ablate.planning.settings import leaves
from ablate.run import TRAINER, hydra_override
from ablate.shared import UserError, make_folder, read_sealed, unknown_value, write_sealed

CACHE_FOLDER = Path("cache", "hydra")  # in a store; a file for each composition
ANSWER_S = 300.0
GROUPS = "groups of the application:"  # before the groups in what `--help` prints
HELP = f"hydra.help.template='{GROUPS} $APP_CONFIG_GROUPS'"
KINDS = {bool: "bool", int: "int", float: "float", str: "str", list: "list"}
_FILLED = re.compile(r"[+~]*[A-Za-z_][\w./@-]*=.*\{.*")  # KEY={PLACE}, which a run alone has
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)\b.*", re.MULTILINE)


@dataclass(frozen=True)
class Composed:
    """The result of composing an application's configuration from overrides.

    choices: what each group is; values: by dotted key; derived: the keys of interpolations;
    missing: the keys that have no value yet; folders: where its files of configuration lie.
    """

    choices: Mapping[str, str]
    values: dict[str, Any]
    derived: Sequence[str]
    missing: Sequence[str]
    folders: Sequence[Path]


@dataclass(frozen=True)
class HydraApp:
    """A Hydra application, by the command that starts it.

    words: of the command, with placeholders; folder: where it starts; env: its variables; cache:
    the folder for what it composed, None to remember nothing; files: the hashes of its code.
    """

    words: Sequence[str]
    folder: Path
    env: Mapping[str, str]
    cache: Path | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def options(self) -> dict[str, list[str]]:
        """The options of each group, including groups that its list of defaults lacks. Raises as
        `compose`."""
        text = self._answer([HELP], ["--help"])["text"]
        lines = text.partition(GROUPS)[2].splitlines()
        pairs = (line.strip().partition(": ") for line in lines if ": " in line)
        return {group: options.split(", ") for group, _, options in pairs}

    def compose(self, overrides: Sequence[str]) -> Composed:
        """Return what the application composes from its command and these overrides.

        Raises UserError, one line, for what it refuses, and where it is no Hydra application.
        """
        tree = self._answer(overrides, ["--cfg", "all"])["config"]
        runtime = tree["hydra"]["runtime"]
        choices = {
            group: str(choice)
            for group, choice in runtime["choices"].items()
            if choice is not None and not group.startswith("hydra/")
        }
        values: dict[str, Any] = {}
        missing: list[str] = []
        derived: list[str] = []
        for key, value in leaves({key: part for key, part in tree.items() if key != "hydra"}):
            if key == "name" or value == {}:  # "name" is ours
                continue
            if value == "???":
                missing.append(key)
            elif "${" in repr(value):
                derived.append(key)
            else:
                values[key] = value
        return Composed(choices, values, derived, missing, _folders(tree))

    def _answer(self, overrides: Sequence[str], options: Sequence[str]) -> dict[str, Any]:
        """Return what the application printed for Hydra's options, `text` or a parsed `config`:
        remembered, or else asked for now."""
        words = [*self._filled(overrides), *options]
        location = f"{TRAINER}.keys: hydra: {shlex.join(words)}"
        path = None if self.cache is None else self.cache / f"{self._digest(words)}.json"
        answer = None if path is None else read_sealed(path)
        if answer is not None and answer["sources"] == _sources(answer["config"]):
            return answer
        text = self._printed(words, location)
        if "--help" in options:
            answer = {"text": text, "config": {}}
        else:
            answer = {"config": _parsed(text, location)}
        answer["sources"] = _sources(answer["config"])
        if path is not None:
            make_folder(path.parent)
            write_sealed(path, answer)
        return answer

    def _filled(self, overrides: Sequence[str]) -> list[str]:
        """Return the words of the command with overrides; of a run alone has no place here."""
        places: Mapping[str, str] = collections.defaultdict(lambda: "1")
        words: list[str] = []
        for word in self.words:
            if word == "{overrides}":
                words += overrides
            elif not _FILLED.fullmatch(word.replace("{{", "").replace("}}", "")):
                words.append(word.format_map(places))
        return words

    def _digest(self, words: Sequence[str]) -> str:
        """Return the name of a composition: a hash of the words, the variables, the code, and the
        time of the last change of its interpreter's packages."""
        program = shutil.which(words[0]) or words[0]
        packages = Path(program).parent.parent.glob("lib/python*/site-packages")
        installed = [[str(folder), folder.stat().st_mtime_ns] for folder in sorted(packages)]
        content = [words, program, installed, str(self.folder), self.env, self.files]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    def _printed(self, words: Sequence[str], location: str) -> str:
        environment = {**os.environ, **self.env, "PYTHONWARNINGS": "ignore"}
        environment.pop("HYDRA_FULL_ERROR", None)
        try:
            done = subprocess.run(
                words,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER_S,
            )
        except OSError as error:
            raise UserError(f"{TRAINER}.command: {words[0]}: {error.strerror}") from error
        except subprocess.TimeoutExpired:
            raise UserError(f"{location}: did not end within {ANSWER_S:g} s") from None
        if done.returncode:
            raise UserError(f"{location}: {_cause(done.stderr)}")
        return done.stdout


def _cause(text: str) -> str:
    """Return why an application ended: the last exception of a traceback, or else the first lines
    of Hydra's message, without the hint below it."""
    if "Traceback (most recent call last)" in text and (errors := _ERROR.findall(text)):
        return str(errors[-1])
    lines = [line.rstrip(" .") for line in text.splitlines() if line.strip()]
    message = [line for line in lines if "HYDRA_FULL_ERROR" not in line and line[0] != " "]
    return ": ".join(message[:2]) or "it ended with an error, and printed nothing"


def _parsed(text: str, location: str) -> dict[str, Any]:
    """Return the plain tree of a printed configuration, interpolations unresolved. Hydra's own
    section is its first; what the program prints as it is loaded stands before."""
    from omegaconf import OmegaConf

    begin = re.search(r"^hydra:$", text, re.MULTILINE)
    if begin is None:
        raise UserError(
            f"{location}: printed no configuration of Hydra; `keys: hydra` is for a program with "
            f"@hydra.main, any other has keys: {{KEY: DEFAULT}}"
        )
    with hydra_errors(location):
        tree = OmegaConf.to_container(OmegaConf.create(text[begin.start() :]), resolve=False)
    plain: dict[str, Any] = json.loads(json.dumps(tree, default=str))
    return plain


def _folders(config: Mapping[str, Any]) -> list[Path]:
    """Return the folders of files that a configuration was composed from."""
    if not config:
        return []
    sources = config["hydra"]["runtime"]["config_sources"]
    return [Path(source["path"]) for source in sources if source["schema"] == "file"]


def _sources(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the hash of the files in each folder that a configuration was composed from."""
    hashes = {}
    for folder in _folders(config):
        content = hashlib.sha256()
        for file in sorted(folder.rglob("*.y*ml")):
            content.update(f"{file}\0".encode() + file.read_bytes() + b"\0")
        hashes[str(folder)] = content.hexdigest()
    return hashes


def keys_of(app: HydraApp, run_settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the declaration of each key of an application, and the overrides of a run.

    A declaration is as a yaml's `keys` has it, with the key's value as default; the overrides are
    the words that give the application what it would not have by itself.

    run_settings: what is set in a run, by group or dotted key. Raises UserError, one line, for a
    key that the application does not have, and for a value that it refuses.
    """
    default = app.compose([])
    group_choices = {key: value for key, value in run_settings.items() if key in app.options}
    for key, value in group_choices.items():
        if value not in app.options[key]:
            raise unknown_value(f"{TRAINER}.{key}", value, app.options[key])
    groups = []
    for key, value in group_choices.items():
        if key not in default.choices:
            groups.append(f"+{key}={value}")
        elif default.choices[key] != value:
            groups.append(f"{key}={value}")
    composed = app.compose(groups)
    settings = {key: value for key, value in run_settings.items() if key not in group_choices}
    keys = [*composed.values, *composed.derived, *composed.missing]
    for key in settings:
        if key not in keys:
            all_keys = [*app.options, *keys]
            raise unknown_value(f"{TRAINER}.{key}", key, all_keys, "a key among")
    for key in composed.missing:
        if key not in settings:
            raise UserError(f"{TRAINER}.{key}: missing; give {TRAINER}.{key}=VALUE")
    changed_values = {
        key: value
        for key, value in settings.items()
        if key not in composed.values or composed.values[key] != value
    }
    overrides = groups + [hydra_override(key, value) for key, value in changed_values.items()]
    if changed_values:
        app.compose(overrides)
    declares: dict[str, Any] = {}
    for key, choice in composed.choices.items():
        # An optional default from an interpolation may name a file that does not exist.
        if choice in app.options.get(key, ()):
            declares[key] = {"default": choice, "choices": app.options[key]}
    for key, value in (composed.values | changed_values).items():
        default_value = composed.values.get(key)
        kind = KINDS.get(type(value if default_value is None else default_value), "str")
        declares[key] = {"default": value, "type": kind, "nullable": default_value is None}
    return declares, overrides
