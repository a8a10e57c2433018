"""How large the house is: python benchmarks/house.py [FOLDER of another checkout]

Lines of code by room (no blanks, comments, docstrings), files and functions that a sweep of two
rows runs, files with one importer, file names in use twice, `Any` in signatures, and in how many
files a feature is asked for. With another checkout both are printed side by side.
"""

from __future__ import annotations

import ast
import collections
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

WORDS = ["sweep", "stem=none,dpn", "seeds=1", "train.steps=4", "launcher=inline"]
FEATURES = {
    "looks": r"\b(?:plan|made|one|whole|before|sweep|declared)\.until\b(?! import)|\.grows\b",
    "one search or parent": r"\bone_search\b|\bone_parent\b|\bONE_SEARCH\b|\bONE_PARENT\b",
    "own trainer": r"\bisinstance\([^()]*, OwnSpec\)",
    "flags of tasks": r"(?<!design)(?<!spec)\.(?:reads_text|trains)\b"
    r"|\btask ==|\.task_name [!=]=",
}
TRACER = """
import atexit, collections, os, sys, threading
root = os.environ["HOUSE"] + "/ablate/"
seen = set()
def trace(frame, event, arg):
    code = frame.f_code
    if code.co_filename.startswith(root) and code.co_flags & 1 and code.co_name[0] != "<":
        seen.add((code.co_filename[len(root):], code.co_qualname))
def write():
    with open(f"{os.environ['HOUSE_OUT']}/{os.getpid()}", "a") as out:
        out.writelines(f"{file} {name}\\n" for file, name in seen)
sys.setprofile(trace); threading.setprofile(trace); atexit.register(write)
end = os._exit
def leave(code):
    write(); end(code)
os._exit = leave
"""


def code_lines(text: str) -> int:
    """Lines without blanks, comments and docstrings."""
    lines = sum(1 for line in text.splitlines() if line.strip() and line.strip()[0] != "#")
    owners = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, owners) and (doc := ast.get_docstring(node, clean=False)):
            lines -= doc.count("\n") + 1
    return lines


def measure(checkout: Path) -> dict[str, str]:
    """Every number of a checkout, by its name."""
    texts = {
        path.relative_to(checkout / "ablate").as_posix(): path.read_text()
        for path in sorted((checkout / "ablate").rglob("*.py"))
    }
    trees = {name: ast.parse(text) for name, text in texts.items()}
    found: dict[str, str] = {}
    rooms: collections.Counter[str] = collections.Counter()
    for name, text in texts.items():
        rooms[name.split("/")[0] if "/" in name else "(top)"] += code_lines(text)
    found["lines of code"] = f"{sum(rooms.values()):,}"
    found |= {f"  {room}": f"{lines:,}" for room, lines in sorted(rooms.items())}
    found["files"] = f"{len(texts)}"
    importers: collections.Counter[str] = collections.Counter()
    for tree in trees.values():
        modules = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ablate"):
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                modules |= {node.module, *names}
            elif isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
        importers.update(modules)
    modules = [f"ablate/{name}"[:-3].replace("/", ".").removesuffix(".__init__") for name in texts]
    found["files with one importer"] = str(sum(importers[module] == 1 for module in modules))
    names = collections.Counter(Path(name).name for name in texts)
    twice = [
        name for name, n in names.items() if n > 1 and name not in ("__init__.py", "__main__.py")
    ]
    found["file names in use twice"] = str(len(twice))
    signatures = [
        node
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    some = sum(
        any(
            isinstance(part, ast.Name) and part.id == "Any"
            for hint in hints(node)
            for part in ast.walk(hint)
        )
        for node in signatures
    )
    found["signatures with Any"] = f"{some:,} of {len(signatures):,}"
    for feature, pattern in FEATURES.items():
        counts = [n for text in texts.values() if (n := len(re.findall(pattern, text)))]
        found[f"{feature}: asked"] = f"{sum(counts)} times in {len(counts)} files"
    files, functions = executed(checkout)
    found["a sweep of two rows runs"] = f"{functions:,} functions of {files} files"
    return found


def hints(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    """The annotations of a signature."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [extra for extra in (arguments.vararg, arguments.kwarg) if extra]
    return [hint for hint in (*(one.annotation for one in every), function.returns) if hint]


def executed(checkout: Path) -> tuple[int, int]:
    """The files and functions that `ablate sweep` of two rows runs, in all of its processes."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(TRACER)
        (out := Path(folder) / "out").mkdir()
        environment = os.environ | {
            "PYTHONPATH": f"{folder}:{checkout}",
            "HOUSE": str(checkout),
            "HOUSE_OUT": str(out),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "ablate", *WORDS, "--store", f"{folder}/runs"]
        subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True)
        seen = {line for path in out.iterdir() for line in path.read_text().splitlines()}
    return len({line.split()[0] for line in seen}), len(seen)


def main() -> None:
    here = Path(__file__).resolve().parent.parent
    checkouts = [*(Path(folder).resolve() for folder in sys.argv[1:]), here]
    measured = [measure(checkout) for checkout in checkouts]
    for name in dict.fromkeys(name for numbers in measured for name in numbers):
        print(f"{name:28}", *(f"{numbers.get(name, '-'):>32}" for numbers in measured))


if __name__ == "__main__":
    main()
