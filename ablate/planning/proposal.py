"""Plans of a stream of proposals: sweeps of one code or two, whose seeds are their own.

Used by api/stream.py. The words are those of `ablate sweep`, each with one value.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ablate.planning.cell import Cell, Column, Row
from ablate.planning.compose import Composer
from ablate.planning.declared import SWEEP_KEYS, Declared, declared_of
from ablate.planning.plan import Plan
from ablate.planning.settings import SettingsLayer, single_values, split_launcher
from ablate.planning.words import read_line
from ablate.run import OwnSpec, RunSpec, program_of, split_command
from ablate.shared import UserError


class ComposedCode(NamedTuple):
    """The code in the working folder with its settings: the spec of its runs, without seed, the
    declaration of its words, and the settings of the launcher."""

    spec: RunSpec
    declared: Declared
    launcher: dict[str, Any]

    @property
    def declared_tree(self) -> dict[str, Any]:
        """The declaration as plain values, which `plan` reads."""
        return dataclasses.asdict(self.declared)

    def scripts_outside_code(self, folder: Path) -> list[str]:
        """List the words of a program's command that are Python files in `folder` and not, by their
        path there, among the files of its code; also absolute paths, which no copy of the code
        changes."""
        if not isinstance(self.spec, OwnSpec) or not self.spec.is_command:
            return []
        declares, files = program_of(self.spec), self.spec.tree["code"]["files"]
        scripts = []
        for word in split_command(declares.command, "command"):
            path = Path(os.path.normpath(folder / (declares.cwd or "") / word))
            if word.endswith(".py") and path.is_file() and path.is_relative_to(folder):
                is_code = path.relative_to(folder).as_posix() in files
                if Path(word).is_absolute() or not is_code:
                    scripts.append(word)
        return scripts

    @staticmethod
    def of_folder(
        words: Sequence[str], baseline: Mapping[str, Any] | None, store: Path
    ) -> ComposedCode:
        """Compose the code in the working folder, with the baseline's words and, over them,
        `words`. `baseline`: the plain tree of the baseline's declaration, if it has one.

        Raises UserError for words of a sweep, such as `seeds=3`, for a word with several values,
        and for every mistake in a configuration.
        """
        composer = Composer(store)
        line = read_line(["", *words], composer.groups)
        for word in line.words:
            if word.key.partition(".")[0] in SWEEP_KEYS:
                raise UserError(f"{word.text}: belongs to a sweep; a stream chooses runs by itself")
        line = _declared(baseline or {}).with_words(*line.words)
        launcher, settings = split_launcher(single_values(line.words))
        spec = composer.run(composer.tree([SettingsLayer("", settings)])).spec
        return ComposedCode(spec.without_seed(spec), line, composer.launcher(launcher))

    @staticmethod
    def plan(
        name: str,
        title: str,
        specs: Mapping[str, RunSpec],
        seeds: Sequence[int],
        declared: Mapping[str, Any],
        stream: str,
    ) -> Plan:
        """Return the plan of a sweep of these codes, by their labels, the baseline first; each is a
        row. Runs of a seed follow one another. `declared`: the plain tree of its declaration;
        `stream`: the name of the stream that compares the codes."""
        cells = tuple(Cell(label, "", spec, spec.ids(seeds)) for label, spec in specs.items())
        return Plan(
            name=name,
            title=title,
            rows=tuple(Row(label, {}) for label in specs),
            columns=(Column("", {}),),
            cells=cells,
            baseline=cells[0].row,
            seeds=tuple(seeds),
            declared=_declared(declared),
            stream=stream,
        )


def _declared(tree: Mapping[str, Any]) -> Declared:
    declared = declared_of(tree) if tree else Declared()
    if not isinstance(declared, Declared):
        raise UserError("a stream's words: are those of a sheet, which nothing here trains")
    return declared
