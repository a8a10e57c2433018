"""A word of the command line, `key=value`, as Hydra's grammar reads it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.planning.conf import MOST, first_line
from ablate.shared.errors import UserError


@dataclass(frozen=True)
class Word:
    """`key=value` as Hydra's grammar reads it; several values where it is a sweep (`a,b`)."""

    text: str
    key: str
    values: tuple[Any, ...]
    swept: bool = False
    glob: bool = False

    @property
    def value(self) -> Any:
        """The one value. Raises UserError where there are several."""
        if self.swept:
            raise UserError(
                f"{self.key}: expected one value, got {self.text.partition('=')[2]!r}; "
                f"a list is bracketed: {self.key}=[{','.join(map(show, self.values))}]"
            )
        return self.values[0]


def parse(text: str, groups: Mapping[str, Sequence[str]]) -> Word:
    """One word. `groups`: what `glob` expands to. Raises UserError where it can't be read."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Glob
    from hydra.errors import HydraException

    key, equals, value = text.partition("=")
    if text.startswith("~"):
        raise UserError(f"{text}: a key cannot be removed; give {key[1:]}=VALUE")
    if not equals or not key.strip("+ "):
        raise UserError(f"{text}: expected KEY=VALUE")
    try:
        override = OverridesParser.create().parse_override(text)
        parsed = override.value()
    except HydraException as error:
        if key == "data.path":  # a path that the grammar can't read is meant as it stands
            return Word(text, key, (value,))
        raise UserError(
            f"{key}: cannot read {value!r}: {first_line(error)}; "
            f"quote a text with special characters: {key}='...'"
        ) from error
    key = override.key_or_group
    if override.package is not None:
        raise UserError(f"{text}: expected KEY=VALUE, got a package ({override.package})")
    if not override.is_sweep_override():
        return Word(text, key, (plain(parsed, key),))
    if isinstance(parsed, Glob):
        if key not in groups:
            raise UserError(
                f"{key}: glob() lists the choices of a group, one of {', '.join(groups)}"
            )
        return Word(text, key, tuple(parsed.filter(list(groups[key]))), swept=True, glob=True)
    if override.is_interval_sweep():
        raise UserError(f"{key}: interval() has no values; list values with commas, or use range()")
    if getattr(parsed, "shuffle", False):
        raise UserError(f"{key}: shuffle() would change the sweep each time; leave shuffle() out")
    values = [plain(v, key) for v in itertools.islice(override.sweep_iterator(), MOST + 1)]
    if len(values) > MOST:
        raise UserError(f"{key}: {value} has more than {MOST:,} values")
    return Word(text, key, tuple(values), swept=True)


def plain(value: Any, key: str) -> Any:
    """A value as JSON has it. Raises UserError for settings where a value belongs."""
    if isinstance(value, Mapping):
        dotted = ", ".join(f"{key}.{name}" for name in value) or f"{key}.KEY"
        raise UserError(f"{key}: expected a value, got settings; write each key in full: {dotted}")
    if isinstance(value, list | tuple):
        return [plain(item, key) for item in value]
    value = getattr(value, "text", value)  # Hydra's quoted strings
    return "pre+post" if value == "pre_post" else value  # a shell-friendly spelling


def show(value: Any) -> str:
    """A value as it is written in labels and on command lines."""
    if isinstance(value, list):
        return f"[{','.join(map(show, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


LISTS = ("launcher.devices", "logger")  # several values of these are one list, brackets or not


def once(words: Iterable[Word]) -> dict[str, Any]:
    """key -> value of words of one value. Raises UserError for a key that is given twice."""
    settings: dict[str, Any] = {}
    for word in words:
        if word.key in settings:
            raise UserError(f"{word.key}: given twice")
        settings[word.key] = list(word.values) if word.key in LISTS and word.swept else word.value
    return settings


def split_launcher(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the launcher's settings, all others): where a run is trained is not what it is."""
    ours = {k: v for k, v in settings.items() if k.partition(".")[0] == "launcher"}
    return ours, {k: v for k, v in settings.items() if k not in ours}
