"""Settings by dotted key.

They come as words of the command line, which Hydra's grammar reads; as layers, each with the place
where it was written; and as the plain tree of a run.

`model=NAME`: NAME is a size of the shipped model, and then another word for `model.arch`, or a
whole model. A whole model replaces the settings of the model in lower layers. Settings of the model
in its own layer or above are for the whole model: its own keys, and no norm, stem or block.

Used by `planning/compose.py`, `planning/words.py` and `planning/sweep_file.py`, for every command
that makes a plan.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
import sys
import urllib.parse
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ablate.planning.conf import MOST_VALUES, first_line
from ablate.run import (
    ARCHS,
    CHOICES,
    LENGTH_KEYS,
    TRAINER,
    hydra_override,
    is_whole_name,
    none_chosen,
    switched_off,
    unread_by,
)
from ablate.shared import UserError, unknown_value


@dataclass(frozen=True)
class Word:
    """A setting of a declaration, `key=value`; a sweep (`a,b`) has several values.

    `glob`: whether the values are those of Hydra's glob() at that time.
    """

    key: str
    values: tuple[Any, ...]
    swept: bool = False
    glob: bool = field(default=False, compare=False)

    @property
    def text(self) -> str:
        """The word as the command line takes it, in Hydra's grammar."""
        values = ",".join(map(_hydra_text, self.values))
        is_one = self.swept and len(self.values) == 1  # a sweep of one value has no comma
        return f"{self.key}=choice({values})" if is_one else f"{self.key}={values}"

    @property
    def value(self) -> Any:
        """The one value. Raises UserError where there are several."""
        if self.swept:
            raise UserError(
                f"{self.key}: expected one value, got {self.text.partition('=')[2]!r}; "
                f"choose one, such as {Word(self.key, self.values[:1]).text}{self.list_hint}"
            )
        return self.values[0]

    @property
    def list_hint(self) -> str:
        """The end of a remedy where the values may be meant as one list; "" elsewhere."""
        key = self.key.removeprefix("from.")
        if key not in LIST_KEYS and not key.startswith(f"{TRAINER}."):
            return ""
        return f"; a list is bracketed: {self.key}=[{','.join(map(value_text, self.values))}]"


def parse_word(text: str, groups: Mapping[str, Sequence[str]]) -> Word:
    """Read one word. `groups`: the choices of each group, to which `glob` expands.

    Raises UserError where it can't be read.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Glob, Sweep
    from hydra.errors import HydraException

    key, equals, value = text.partition("=")
    if text.startswith("~"):
        raise UserError(f"{text}: a key cannot be removed; give {key[1:]}=VALUE")
    if not equals or not key.strip("+ "):
        raise UserError(f"{text}: expected KEY=VALUE")
    if ".+" in key:
        raise UserError(f"{text}: a key has no +; give {key.replace('.+', '.')}={value}")
    try:
        override = OverridesParser.create().parse_override(text)
        parsed = override.value()
    except HydraException as error:
        if bare(key) == "data.path":  # a path that the grammar can't read is meant as it stands
            return Word(key, (value,))
        raise UserError(
            f"{key}: cannot read {value!r}: {first_line(error)}; "
            f"quote a text with special characters, in a shell twice: \"{key}='{value}'\""
        ) from error
    key = override.key_or_group
    if override.package is not None:
        raise UserError(f"{text}: expected KEY=VALUE, got a package ({override.package})")
    if not override.is_sweep_override():
        if isinstance(parsed, list) and any(isinstance(item, Sweep | Glob) for item in parsed):
            raise UserError(f"{key}: a list can't have {value[1:-1]} in it; leave out the brackets")
        return _with_path(Word(key, (plain(parsed, key),)), text)
    if isinstance(parsed, Glob):
        if not groups:
            raise UserError(f"{key}: glob() can't be used here; write the value")
        if key not in groups:
            raise UserError(
                f"{key}: glob() lists the choices of a group, one of {', '.join(groups)}"
            )
        return _swept(key, value, parsed.filter(list(groups[key])), glob=True)
    if override.is_interval_sweep():
        raise UserError(f"{key}: interval() has no values; list values with commas, or use range()")
    if getattr(parsed, "shuffle", False):
        raise UserError(f"{key}: shuffle() would change the sweep each time; leave shuffle() out")
    try:
        items = [*itertools.islice(override.sweep_iterator(), MOST_VALUES + 1)]
    except (HydraException, ValueError) as error:  # of range()
        raise UserError(
            f"{key}: cannot read {value!r}: {first_line(error)}; give a step other than 0"
        ) from error
    if len(items) > MOST_VALUES:
        raise UserError(f"{key}: {value} has more than {MOST_VALUES:,} values")
    return _with_path(_swept(key, value, [plain(item, key) for item in items]), text)


def _swept(key: str, text: str, values: Iterable[Any], glob: bool = False) -> Word:
    """Return the word of `text`, whose values are these. Raises UserError where there are none."""
    word = Word(key, tuple(values), swept=True, glob=glob)
    if not word.values:
        raise UserError(f"{key}: {text} has no values; give a range or a pattern that has some")
    return word


def _with_path(word: Word, text: str) -> Word:
    """Return the word; where it is a path, as it is spelled, for a folder may be called 2024."""
    if bare(word.key) != "data.path":
        return word
    pairs = zip(word.values, with_spelling(word, text).values, strict=True)
    values = tuple(value if value is None else path for value, path in pairs)
    return dataclasses.replace(word, values=values)


def with_spelling(word: Word, text: str) -> Word:
    """Return the word with its values as they are spelled in `text`, KEY=VALUE: for a key whose
    value is a text, `False` and `1.10` are no truth value and no number. Words with quotes,
    brackets or functions, such as range(), stay as they are."""
    value_words = text.partition("=")[2]
    pieces = [piece.strip() for piece in value_words.split(",")]
    if re.search(r"[\[\](){}'\"]", value_words) or len(pieces) != len(word.values):
        return word
    values = tuple(
        piece if isinstance(value, bool | int | float | None) else value
        for piece, value in zip(pieces, word.values, strict=True)
    )
    return dataclasses.replace(word, values=values)


def bare(key: str) -> str:
    """Return the key without `from.` prefixes: `data.path` for `from.from.data.path`."""
    return re.sub(r"^(from\.)+", "", key)


def plain(value: Any, key: str) -> Any:
    """Return a value as JSON has it. Raises UserError for settings where a value belongs.

    `optim.lr_mult={}` is null: no path has a factor.
    """
    if is_empty_factors(value, key):
        return None
    if isinstance(value, Mapping):
        dotted = ", ".join(f"{key}.{name}" for name in value) or f"{key}.KEY"
        raise UserError(f"{key}: expected a value, got settings; write each key in full: {dotted}")
    if isinstance(value, list | tuple):
        return [plain(item, key) for item in value]
    value = getattr(value, "text", value)  # Hydra's quoted strings
    return "pre+post" if value == "pre_post" else value  # a shell-friendly spelling


def is_empty_factors(value: Any, key: str) -> bool:
    """Return whether a value is the `{}` of `optim.lr_mult`, a parent's included."""
    return value == {} and f"{bare(key)}." == LR_FACTORS


def value_text(value: Any) -> str:
    """Return a value as it is written in labels and on command lines."""
    if isinstance(value, list):
        return f"[{','.join(map(value_text, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


# Texts that Hydra's grammar reads as they stand; it reads words such as "null" as other values.
_BARE = re.compile(r"(\.{0,2}/|[A-Za-z_])[\w/.@%+:-]*|\d+(\.\d+)?[kM]", re.ASCII)
_SPACED = re.compile(r"[\w/.@%+:-]+( [\w/.@%+:-]+)+", re.ASCII)  # bare words with spaces between
_VALUE_WORDS = ("true", "false", "null", "nan", "inf")


def _hydra_text(value: Any) -> str:
    """Return a value as Hydra's grammar reads it back."""
    if isinstance(value, list):
        return f"[{','.join(map(_hydra_text, value))}]"
    if isinstance(value, str) and _BARE.fullmatch(value) and value.lower() not in _VALUE_WORDS:
        return value
    if isinstance(value, str) and _SPACED.fullmatch(value):
        return f'"{value}"'  # a shell's quotes around it are single ones
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return hydra_override("", value).removeprefix("=")


LISTS = ("launcher.devices", "logger")  # several values of these are one list, brackets or not
# Keys whose value may be a list, which is bracketed; so may be that of any key of a trainer.
LIST_KEYS = (
    *("analysis.looks", "augment.extra", "data.corruptions", "eval.also", "probe", "seeds"),
    "text.prompts",
)


def single_values(words: Iterable[Word]) -> dict[str, Any]:
    """Return key -> value of words that have one value each.

    A word of LISTS may have several, which are one list. Raises UserError for a key that is given
    twice.
    """
    settings: dict[str, Any] = {}
    for word in words:
        if word.key in settings:
            raise UserError(f"{word.key}: given twice")
        settings[word.key] = list(word.values) if word.key in LISTS and word.swept else word.value
    return settings


def split_launcher(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split settings into the launcher's and all others.

    Where a run is trained is no part of what it is.
    """
    ours = {k: v for k, v in settings.items() if k.partition(".")[0] == "launcher"}
    return ours, {k: v for k, v in settings.items() if k not in ours}


class SettingsLayer(NamedTuple):
    """Settings (`recipe: quick, optim.lr: 0.1`) and where they were written.

    The place of the command line is "".
    """

    place: str
    settings: Mapping[str, Any]


Layers = Sequence[SettingsLayer]  # the later over the earlier


INPUT = "model.input"  # how images are shown: a key of every model


def with_one_model(layers: Layers) -> Layers:
    """Return the layers with one model: `model` stays in them only for a whole model.

    Raises UserError for settings given with a whole model that are not its own.
    """
    indices = [n for n, layer in enumerate(layers) if "model" in layer.settings]
    if not indices:
        return layers
    index = indices[-1]
    name = layers[index].settings["model"]
    if not is_whole_name(name):
        return [_of_shipped(layer) for layer in layers]
    none_chosen((key for layer in layers[index:] for key in layer.settings), name)
    below = [SettingsLayer(place, _without_model(settings)) for place, settings in layers[:index]]
    return [*below, *layers[index:]]


def _of_shipped(layer: SettingsLayer) -> SettingsLayer:
    """Return the layer with `model=S/16` as `model.arch=S/16`.

    A whole model, which a higher layer replaces, falls with its settings.
    """
    settings = dict(layer.settings)
    if "model" not in settings:
        return layer
    name = settings.pop("model")
    if is_whole_name(name):
        other_settings = {
            k: v for k, v in settings.items() if not k.startswith("model.") or k == INPUT
        }
        return SettingsLayer(layer.place, other_settings)
    if not isinstance(name, str) or ("/" not in name and name not in ARCHS):
        raise UserError(
            f"model: expected a size such as S/16, timm:NAME or module:Class, got {name!r}"
        )
    if "model.arch" in settings:
        raise UserError(f"model.arch: is said by model={name}; leave it out")
    return SettingsLayer(layer.place, {**settings, "model.arch": name})


def _without_model(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in settings.items()
        if key == INPUT or key.partition(".")[0] not in ("model", *CHOICES)
    }


def put_whole_model(tree: dict[str, Any], name: str) -> None:
    """Put the whole model `name` into a composed tree, in place of the shipped one.

    Raises UserError where the recipe depends on the size of the shipped one.
    """
    if "by_arch" in tree:
        raise unknown_value("model", name, tree["by_arch"], "for this recipe one of")
    tree["model"] = {"name": name, "input": tree["model"].get("input") or "range"}
    for kind in CHOICES:
        tree.pop(kind, None)


def by_arch(tree: dict[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Remove `by_arch` from the tree, and return a recipe's settings for the run's architecture.

    Raises UserError where the recipe has none for it.
    """
    rows = tree.pop("by_arch")
    arch = str(values.get("model.arch", tree["model"]["arch"]))
    if not isinstance(rows, Mapping) or not all(isinstance(r, Mapping) for r in rows.values()):
        raise UserError("by_arch: expected SIZE/PATCH: {key: value, ...}, one per line")
    if arch not in rows:
        raise unknown_value("model.arch", arch, rows, "for this recipe one of")
    settings: Mapping[str, Any] = rows[arch]
    return settings


def drop_overridden_caveats(tree: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Make a recipe's `inferred` and `not_followed` lists of text.

    An item may be {key: line}: its line is left out where `values`, the settings over the recipe,
    have the key, or the length that it gives in another unit.
    """
    for name in ("inferred", "not_followed"):
        if not isinstance(items := tree.get(name), list):
            continue
        lines: list[Any] = []
        for item in items:
            if not isinstance(item, Mapping):
                lines.append(item)
                continue
            for key, line in item.items():
                if values.keys().isdisjoint({key, *same_length(key)}):
                    lines.append(line)
        tree[name] = lines


def same_length(key: str) -> tuple[str, ...]:
    """Return the keys that set the same length as `key` does, in this or another unit."""
    return next((keys for keys in LENGTH_KEYS if key in keys), ())


def no_length_in_vain(tree: Mapping[str, Any], height: Mapping[str, int]) -> None:
    """Raise UserError for a length that has no effect because of another one.

    It is allowed where the other was given over it: in a higher layer (`height`).
    """
    for keys in LENGTH_KEYS:
        lengths = [key for key in keys if value_at(tree, key) is not None]
        for key in lengths[1:]:
            first_key = lengths[0]
            if key in height and height[key] >= height.get(first_key, -1):
                both = height[key] == height.get(first_key)
                remedy = "give one of them" if both else f"leave it out, or add {first_key}=null"
                raise UserError(
                    f"{key}: {value_text(value_at(tree, key))} has no effect with "
                    f"{first_key}={value_text(value_at(tree, first_key))}; {remedy}"
                )


def no_key_in_vain(
    tree: Mapping[str, Any], height: Mapping[str, int], typed: Collection[str]
) -> None:
    """Raise UserError for a key that has no effect.

    That is a key that the optimiser doesn't read, unless the optimiser was given over it; and a
    typed key that says more of something that is off, unless that was given with or over the key.
    The base of a file may have such a key for some of its rows.
    """
    if not isinstance(tree.get("optim"), Mapping):
        return
    for key, switches in switched_off(tree).items():
        if key in typed and height[key] > max(height.get(switch, -1) for switch in switches):
            raise UserError(
                f"{key}: {value_text(value_at(tree, key))} has no effect without "
                f"{' or '.join(switches)}; leave it out"
            )
    name = str(tree["optim"].get("name", "adamw"))
    for key in (f"optim.{key}" for key in unread_by(name)):
        if height.get(key, -1) >= height.get("optim.name", 0):
            raise UserError(
                f"{key}: {value_text(value_at(tree, key))} has no effect with "
                f"optim.name={name}; leave it out"
            )


def value_at(tree: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key; None where there is none.

    The last part may contain dots: a path of `optim.lr_mult`.
    """
    part, _, rest = key.partition(".")
    if key in tree or not isinstance(below := tree.get(part), Mapping):
        return tree.get(key)
    return value_at(below, rest)


LR_FACTORS = "optim.lr_mult."  # the prefix of keys that end in a path of parameters


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; what lies on the way is copied, since composed trees are shared.

    A path of `optim.lr_mult` is one key in it: a path and one below it may each have a factor.
    Raises UserError where a value lies on the way.
    """
    *parents, leaf = key.split(".")
    if key.startswith(LR_FACTORS):
        parents, leaf = LR_FACTORS.split(".")[:-1], key.removeprefix(LR_FACTORS)
        factors = value_at(tree, ".".join(parents))
        if factors is None or isinstance(factors, Mapping):
            value, leaf = {**dict(leaves(factors or {})), leaf: value}, parents.pop()
    section = tree
    for n, parent in enumerate(parents):
        below = section.get(parent, {})
        if not isinstance(below, dict):
            raise UserError(f"{key}: {'.'.join(parents[: n + 1])} is a value, not a section")
        section[parent] = dict(below)
        section = section[parent]
    section[leaf] = value


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of everything that is no section, and of empty sections."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def output_name(name: str) -> str:
    """Return a sweep's name as the file name of what is written for readers.

    It is that of `sweep_file_name`, but letters stay as they are where the file system takes them.
    """
    letters = "".join(c if c.isalnum() else urllib.parse.quote(c, safe="+=@, ") for c in name)
    try:
        fits = len(letters.encode(sys.getfilesystemencoding())) <= 200 and letters.strip(".")
    except UnicodeEncodeError:
        fits = ""
    return letters if fits else sweep_file_name(name)


def sweep_file_name(name: str) -> str:
    """Return a sweep's name as a file name that can't leave its folder, nor be too long for one."""
    quoted = urllib.parse.quote(name, safe="+=@, ")
    if quoted in (".", "..", ""):
        quoted = quoted.replace(".", "%2E") or "%"
    if len(quoted) > 200:
        quoted = f"{quoted[:180]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return quoted
