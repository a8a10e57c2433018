"""The places of sweep files, the file that a word names, and its YAML.

Used by `planning/expand.py` and `planning/words.py`, for every command that names a sweep, and by
`cli/options.py`, which completes names.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablate.planning.conf import check_resolvers, check_yaml, shipped_folder
from ablate.shared import UserError, did_you_mean

MOST_BYTES = 2**20  # of a file in the user's folder that may be a sweep file; a larger one is data


def sweep_files() -> dict[str, Path]:
    """Return name -> file of every sweep: in `./sweeps`, then in this folder, then shipped ones.

    The first file of a name wins.
    """
    files: dict[str, Path] = {}
    for path in (*_yaml(Path("sweeps")), *filter(_is_sweep, _yaml(Path()))):
        files.setdefault(path.stem, path)
    for path in _yaml(shipped_folder("sweeps")):
        files.setdefault(path.stem, path)
    return dict(sorted(files.items()))


def _yaml(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.yaml"))


def _is_sweep(path: Path) -> bool:
    """Return whether a file has `variants:` or `changes:` at its left edge.

    A folder has YAML files of other programs, too.
    """
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            return False
        return (
            re.search(rb"^[\"']?(variants|changes)[\"']?\s*:", path.read_bytes(), re.MULTILINE)
            is not None
        )
    except OSError:
        return False


def find_sweep_file(name: str) -> Path:
    """Return the file of NAME, or of a path that ends in .yaml.

    For a mere file name, `./sweeps` is searched, too. Raises UserError where there is none.
    """
    files, path = sweep_files(), Path(name)
    if name.endswith(".yaml"):
        for place in (path, Path("sweeps", path)):
            if place.is_file() and (place == path or path.name == name):
                return place
        namesake = files.get(path.stem)
        command = shlex.join(["ablate", "sweep", path.stem])
        hint = f"; `{command}` is {namesake}" if namesake is not None else ""
        raise UserError(f"{name}: no such sweep file{hint}")
    if name not in files:
        if (file := Path(f"{name}.yaml")).is_file():
            if path.name == name:
                return file  # reading it will raise that it is no sweep file
            raise UserError(f"no sweep named {name!r}; to name a file, give its ending: {file}")
        raise UserError(
            f"no sweep named {name!r} (looked in ./sweeps, in this folder and among the shipped "
            f"ones){did_you_mean(name, files)}; the sweeps are {', '.join(files)}"
        )
    return files[name]


def check_sweep_name(name: str, is_new: bool, file: str | None = None) -> None:
    """Raise UserError for a name that `--as` can't give.

    It can't be empty, nor have characters that a terminal obeys instead of showing them. A new
    sweep's name can't begin with a dash, since commands would take it for an option, and can't be
    that of a sweep file other than its own, `file`: `ablate sweep NAME` would not go on with it.
    """
    if not (name.strip() and name.isprintable()):
        raise UserError(f"--as: expected a name, got {name!r}")
    if is_new and name.startswith("-"):
        raise UserError(f"--as: {name}: begins with a dash, as options do; give another name")
    namesake = sweep_files().get(name) if is_new else None
    if namesake is None or (file is not None and find_sweep_file(file).samefile(namesake)):
        return
    raise UserError(
        f"{name}: is the name of another sweep, {place_of(namesake)}, which `ablate sweep {name}` "
        f"trains; give another name with --as NAME"
    )


def place_of(path: Path) -> str:
    """Return how messages name a sweep file."""
    return f"sweeps/{path.name}" if path.parent == shipped_folder("sweeps") else str(path)


def hidden_notes(name: str) -> Iterator[str]:
    """Yield a note where `./sweeps` hides another sweep file of the name in this folder."""
    inner, outer = Path("sweeps", f"{name}.yaml"), Path(f"{name}.yaml")
    if inner.is_file() and _is_sweep(outer) and inner.read_bytes() != outer.read_bytes():
        command = shlex.join(["ablate", "sweep", f"./{outer}"])
        yield f"{name} is {inner}; the other file of this name is `{command}`"


def read_yaml(path: Path) -> tuple[str, Any]:
    """Return (how errors name the file, what its YAML says). Raises UserError where it is no YAML,
    or can't be read."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    place = place_of(path)
    check_yaml(path, place)
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        problem = getattr(error, "problem", None) or error
        message = f"{' '.join(str(problem).split())}{_slip(path, mark)}"
        raise UserError(f"{place}:{line} not YAML: {message}") from error
    except (OmegaConfBaseException, OSError, ValueError) as error:
        raise UserError(f"{place}: can't be read: {' '.join(str(error).split())}") from error
    check_resolvers(content, place)
    return place, content


def _slip(path: Path, mark: Any) -> str:
    """Return how to mend a colon at `mark` that YAML did not expect; "" for other mistakes."""
    from ablate.planning.declaration import colon

    lines = path.read_text(errors="replace").splitlines()
    if mark is None or mark.line >= len(lines) or lines[mark.line][mark.column :][:1] != ":":
        return ""
    if ": " in lines[mark.line][: mark.column]:
        return "; put a text that has a colon in quotes"
    number = next((n for n in range(mark.line, 0, -1) if lines[n - 1].strip()), 0)
    return f"{slip} of line {number}" if number and (slip := colon(lines[number - 1])) else ""
