"""pdflatex, for tests of what goes into papers."""

import shutil
import subprocess
from pathlib import Path

import pytest


def has(file: str) -> bool:
    """Has the TeX at hand this file?"""
    found = shutil.which("kpsewhich")
    return bool(found) and subprocess.run([found, file], capture_output=True).returncode == 0


def compiled(folder: Path, document: str) -> str:
    """The log of pdflatex, in the folder that has what the document includes."""
    if shutil.which("pdflatex") is None:
        pytest.skip("needs pdflatex: Debian's texlive-latex-recommended")
    (folder / "document.tex").write_text(document)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "document.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    return (folder / "document.log").read_text(errors="replace")
