"""pdflatex, for tests of what goes into papers."""

import shutil
import subprocess
from pathlib import Path

import pytest

# What we use of threeparttable, for a TeX without it (Debian has it in texlive-latex-extra): a box
# as wide as the line, a caption and a list.
STANDS_IN = r"""
\ProvidesPackage{threeparttable}
\newenvironment{threeparttable}{\begin{minipage}{\linewidth}\centering}{\end{minipage}}
\newenvironment{tablenotes}[1][]{\begin{list}{}{\leftmargin0pt\labelwidth0pt\labelsep2pt
  \def\makelabel##1{\textsuperscript{##1}}}}{\end{list}}
"""


def has(file: str) -> bool:
    """Has the TeX at hand this file?"""
    found = shutil.which("kpsewhich")
    return bool(found) and subprocess.run([found, file], capture_output=True).returncode == 0


def compiled(folder: Path, document: str) -> str:
    """The log of pdflatex, in the folder that has what the document includes."""
    if shutil.which("pdflatex") is None:
        pytest.skip("needs pdflatex: Debian's texlive-latex-recommended")
    if not has("threeparttable.sty"):
        (folder / "threeparttable.sty").write_text(STANDS_IN)
    (folder / "document.tex").write_text(document)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "document.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    return (folder / "document.log").read_text(errors="replace")
