"""Draws the figures of a sweep in one style. matplotlib is loaded when a figure is drawn.

A figure shows the numbers of `analysis.tabulate` and of files in run folders, nothing else; the
same runs give the same bytes.

Used by api/publishing.py (`ablate plot`, `ablate report`) and audit/export.py. A new kind of figure
also needs its entry in FIGURE_KINDS, a function of its name in a file here, and its section with a
picture in docs/figures.md.
"""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.analysis import Table
from ablate.planning import Plan
from ablate.report.plot.form import FigureForm, Nothing, NotYet, RunDirs
from ablate.report.text import announce
from ablate.shared import unknown_value

if TYPE_CHECKING:
    from ablate.report.plot.style import Drawing


def _find_folder_for_matplotlib() -> None:
    """Give matplotlib a temporary folder where it can't write to its own, before it is loaded: it
    would do the same, and say so at length before whatever a command prints."""
    bases = (("XDG_CONFIG_HOME", ".config"), ("XDG_CACHE_HOME", ".cache"))
    folders = [Path(os.environ.get(name) or Path("~", home)) for name, home in bases]
    if "MPLCONFIGDIR" in os.environ or all(map(_is_writable, folders)):
        return
    folder = os.environ["MPLCONFIGDIR"] = tempfile.mkdtemp(prefix="ablate-matplotlib-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _is_writable(folder: Path) -> bool:
    """Return whether matplotlib can make a folder of its own in this one, which may not exist
    yet."""
    folder = Path(os.path.expanduser(folder), "matplotlib")
    ancestor = next(part for part in (folder, *folder.parents) if part.exists())
    return ancestor.is_dir() and os.access(ancestor, os.W_OK)


_find_folder_for_matplotlib()

__all__ = [
    "FIGURE_FORMATS",
    "FIGURE_KINDS",
    "FigureForm",
    "Nothing",
    "draw_figure",
    "figure",
    "draw_figures",
]


@dataclass(frozen=True)
class Kind:
    """A kind of figure: a line of help, its source, and the module whose function of the kind's
    name draws it. `gives_intervals`: of test scores, so that to draw it is a look."""

    line: str
    source: str
    module: str
    gives_intervals: bool = False


FIGURE_KINDS = {
    "gain": Kind(
        "the gain of every row in every column, with simultaneous intervals",
        "Dual PatchNorm (arXiv 2302.01327), Fig. 1",
        "gains",
        gives_intervals=True,
    ),
    "forest": Kind("gains, intervals and verdicts row by row", "-", "gains", True),
    "changes": Kind(
        "what each change of a design does, with simultaneous intervals",
        "-",
        "changes",
        gives_intervals=True,
    ),
    "pairs": Kind(
        "means with and without each pair of changes, and what the two do beyond their sum",
        "-",
        "changes",
        gives_intervals=True,
    ),
    "across": Kind(
        "the metric over a number that columns set: a panel a row, a line for each other setting",
        "after BatchNorm_in_Transformers_CV, Fig. 10",
        "across",
        gives_intervals=True,
    ),
    "curves": Kind(
        "training loss and validation accuracy by epoch, bands over seeds",
        "BatchNorm_in_Transformers_CV, Fig. 8-10",
        "curves",
    ),
    "tuning": Kind(
        "the expected best validation score of k trials; needs a sweep with `tune:`",
        "Dodge et al. 2019 (arXiv 1909.03004)",
        "curves",
    ),
    "gradnorm": Kind(
        "gradient norm by depth and by step; needs probe=[gradnorm]",
        "Dual PatchNorm, Fig. 2 and 4",
        "probes",
    ),
    "scales": Kind(
        "the scale of the norm before the patch embedding, as patches; needs probe=[scales]",
        "Dual PatchNorm, Fig. 3",
        "probes",
    ),
    "attention": Kind(
        "mean attention distance of every head by layer; needs probe=[attention]",
        "DTN (arXiv 2112.02624)",
        "probes",
    ),
    "tokens": Kind(
        "length of the token at each place by layer; needs probe=[tokens]",
        "after DTN (arXiv 2112.02624)",
        "probes",
    ),
}
FIGURE_FORMATS = ("svg", "pdf", "png")
PAGE = FigureForm()


@dataclass(frozen=True)
class DrawnFigure:
    """A file, and the text that it leaves to the caption of a paper: "" where it has its own."""

    content: bytes
    caption: str


def draw_figure(
    plan: Plan,
    table: Table,
    kind: str,
    rundir: RunDirs,
    format: str = "svg",
    form: FigureForm = PAGE,
    command: Callable[..., str] | None = None,
) -> DrawnFigure:
    """Draw one figure, with the table's short notes. `rundir`: a run's id -> its folder, as
    `Store.rundir`; `form`: style, size and rows; `command`: as `Store.command`, for the remedy of
    an error.

    Raises UserError for an unknown kind or format and for a size that is too small, Nothing where
    its data is missing.
    """
    if kind not in FIGURE_KINDS:
        raise unknown_value("plot", kind, FIGURE_KINDS)
    if format not in FIGURE_FORMATS:
        raise unknown_value("--format", format, FIGURE_FORMATS)
    from ablate.report.plot.style import styled

    with styled(f"{plan.name} {kind}", form.style):
        module = importlib.import_module(f"{__name__}.{FIGURE_KINDS[kind].module}")
        try:
            sheet: Drawing = getattr(module, kind)(plan, table.without_exact_notes(), rundir, form)
        except NotYet as error:
            if command is None:
                raise
            if not plan.design.trains:
                raise Nothing(f"{error}; an imported sheet brings only results") from error
            remedy = plan.repeat_command(command, error.probe)
            raise Nothing(f"{error}; run `{remedy}`") from error
        content = sheet.content(format)
        if format != "svg" and (letters := sheet.missing_letters()):
            announce(
                f"the font of figures, DejaVu Sans, lacks {letters}: {format.upper()} has boxes in "
                f"their place; SVG keeps them as text"
            )
        return DrawnFigure(content, sheet.caption)


def figure(plan: Plan, table: Table, kind: str, rundir: RunDirs) -> str:
    """Draw the SVG of one figure; raises as `draw_figure`."""
    return draw_figure(plan, table, kind, rundir).content.decode()


def draw_figures(
    plan: Plan, table: Table, rundir: RunDirs, kinds: Iterable[str] = tuple(FIGURE_KINDS)
) -> dict[str, str]:
    """Draw the SVG of every kind that has data, by its name."""
    figures = {}
    for kind in kinds:
        try:
            figures[kind] = figure(plan, table, kind, rundir)
        except Nothing:
            continue
    return figures
