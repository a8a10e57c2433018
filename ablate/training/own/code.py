"""The user's own files, imported as they were when the run was planned, or not at all."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ablate.shared.errors import UserError
from ablate.shared.own import hashed


class Code(importlib.abc.MetaPathFinder):
    """Imports modules from one folder: what is run are the bytes that were hashed.

    `files`: the hash of each file by its path there, as the run's id has it. Another file of the
    folder is imported, too, since no reading of a text finds what `importlib` is given; it is told.
    """

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self.folder, self.files = folder, files
        self.unforeseen: dict[str, str] = {}  # files that were not planned -> hash

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Of a module whose file lies in the folder; of any other None."""
        if name.partition(".")[0] == "ablate":  # whose sources may lie there, too
            return None
        places = [str(self.folder)] if path is None else path
        spec = importlib.machinery.PathFinder.find_spec(name, places)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None
        inside = self.place_of(spec.origin)
        if inside is None:
            return None
        spec.loader = _Checked(name, spec.origin, self)
        return spec

    def place_of(self, file: str) -> str | None:
        """A file's path in the folder; None where it is not the user's own."""
        whole = Path(file)
        if not whole.is_relative_to(self.folder) or "site-packages" in whole.parts:
            return None
        return whole.relative_to(self.folder).as_posix()

    def check(self, file: str, content: bytes) -> None:
        """Raises UserError for a file that was edited since the run was planned."""
        place, found = self.place_of(file), hashed(content)
        assert place is not None
        if place not in self.files:
            self.unforeseen[place] = found
        elif self.files[place] != found:
            raise UserError(
                f"{place} was edited after this run was planned; the same `ablate sweep` plans "
                f"new runs with what it is now"
            )

    @property
    def digest(self) -> str:
        """Of all files that are the run's code: those that were planned, and what was loaded
        beside them."""
        whole = {**self.files, **self.unforeseen}
        return hashed(json.dumps(whole, sort_keys=True).encode())

    @contextmanager
    def importing(self, name: str) -> Iterator[Callable[..., Any]]:
        """The function `module:function`, while the folder's modules can be imported. They are
        forgotten after it: the next run in this process imports its own."""
        module, _, function = name.partition(":")
        self._forget()
        sys.meta_path.insert(0, self)
        # Last, for what a trainer spawns by itself: there this finder is missing.
        sys.path.append(str(self.folder))
        try:
            yield getattr(importlib.import_module(module), function)
        finally:
            sys.meta_path.remove(self)
            sys.path.remove(str(self.folder))
            self._forget()

    def _forget(self) -> None:
        files = {str(self.folder / place) for place in (*self.files, *self.unforeseen)}
        for name, module in list(sys.modules.items()):
            if name != "__main__" and getattr(module, "__file__", None) in files:
                del sys.modules[name]


class _Checked(importlib.machinery.SourceFileLoader):
    """Runs the source that it has hashed: never a .pyc, nor what is written in between."""

    def __init__(self, name: str, path: str, code: Code) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        content = Path(self.path).read_bytes()
        self._code.check(self.path, content)
        made: CodeType = compile(content, self.path, "exec", dont_inherit=True)
        return made
