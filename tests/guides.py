"""Tutorials, how-to pages and concepts, typed: each page in an empty folder of its own, in order.

- A block behind `<!-- file: PATH -->` is written to that file.
- A ```diff block behind `<!-- edit: PATH -->` is applied to it.
- The lines of a ```sh block are typed, by bash. A block behind `<!-- needs: ... -->` needs what a
  test does not have, such as GPUs, and is left out.
- A ```text block behind them, and what stands between `<!-- output -->` and `<!-- end -->`, is what
  they print. Numbers may differ, since processors round differently.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FOLDERS = ("docs/tutorials/", "docs/how-to/", "docs/concepts/")
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
BLOCK = re.compile(
    r"(?:<!-- (?P<marker>file|edit|needs): (?P<value>.+?) -->\n)?"
    r"```(?P<language>\w+)\n(?P<text>.*?)```"
    r"|<!-- output -->\n(?P<output>.*?)<!-- end -->",
    re.DOTALL,
)
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?<![.,])")


@dataclass
class Step:
    """What was typed between two edits or outputs of a page, and what it printed."""

    typed: list[str] = field(default_factory=list)
    printed: str = ""
    shown: list[str] = field(default_factory=list)

    def missing(self) -> list[str]:
        """Return the lines that the page shows and the commands did not print."""
        printed = {without_numbers(line) for line in self.printed.splitlines()}
        whole = "\n".join(sorted(printed))
        return [line for line in self.shown if not _is_in(without_numbers(line), printed, whole)]


def _is_in(line: str, printed: set[str], whole: str) -> bool:
    """Return whether the line was printed; an end in "..." stands for the rest of a line."""
    if line.endswith("..."):
        return line.removesuffix("...").strip() in whole
    return not line or line in printed


def without_numbers(line: str) -> str:
    """Return the line with # for each number, in single spaces, without rules of tables."""
    return " ".join(NUMBER.sub("#", re.sub(r"[-─]{3,}:?", "", line)).split())


def edited(text: str, diff: str) -> str:
    """Return the text after a diff whose lines begin with " ", "-" or "+"; the old lines must be
    there once."""
    lines = [line for line in diff.splitlines() if line]
    old = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
    new = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
    assert text.count(old) == 1, (old, text)
    return text.replace(old, new)


def typed(page: str, folder: Path) -> Iterator[Step]:
    """Type a page in a folder. Yield each step once all that it shows is known.

    A line that fails raises AssertionError, unless it ends in `# exit code N`.
    """
    step = Step()
    for block in BLOCK.finditer(page):
        marker, value, text = block["marker"], block["value"], block["text"]
        if block["output"] is not None or (block["language"] == "text" and marker is None):
            step.shown += (block["output"] or text).splitlines()
        elif marker == "file":
            (folder / value).parent.mkdir(parents=True, exist_ok=True)
            (folder / value).write_text(text)
        elif marker == "edit":
            (folder / value).write_text(edited((folder / value).read_text(), text))
        elif block["language"] == "sh" and marker != "needs":
            if step.shown:
                yield step
                step = Step()
            for line in text.splitlines():
                step.typed.append(line)
                step.printed += _printed(line, folder)
    yield step


def _printed(line: str, folder: Path) -> str:
    """Return what one line prints."""
    done = subprocess.run(
        ["bash", "-ec", line],
        cwd=folder,
        env={**os.environ, "PATH": PATH, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    code = re.search(r"# exit code (\d+)$", line)
    assert done.returncode == (int(code[1]) if code else 0), (line, done.stdout)
    return done.stdout


if __name__ == "__main__":  # python tests/guides.py PAGE FOLDER: prints what the page should show
    for one in typed(Path(sys.argv[1]).read_text(), Path(sys.argv[2])):
        print("".join(f"$ {line}\n" for line in one.typed), one.printed, sep="")
        print("".join(f"!! MISSING: {line}\n" for line in one.missing()), end="", flush=True)
