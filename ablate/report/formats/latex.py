"""Sets a table in LaTeX for a paper; needs booktabs only (`\\usepackage{booktabs}`)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from ablate.report.formats.grid import Grid, GridCell, GridLine, PrintedTable

SPECIAL = {
    "\\": r"$\backslash$",
    "{": r"\{",
    "}": r"\}",
    **{character: f"\\{character}" for character in "&%$#_"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    '"': "''",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "−": "$-$",
    "→": r"$\to$",
    "←": r"$\gets$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "∞": r"$\infty$",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "’": "'",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
    "µ": r"$\mu$",
}
# Letters that TeX has a name for; the others look like Latin ones.
GREEK = """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau
    upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"""


def _greek(letter: str) -> str:
    """Return the character with this TeX name; Unicode spells lambda "lamda"."""
    case = "SMALL" if letter.islower() else "CAPITAL"
    return unicodedata.lookup(f"GREEK {case} LETTER {letter.upper().replace('BD', 'D')}")


SPECIAL |= {_greek(letter): rf"$\{letter}$" for letter in GREEK.split()}


def latex(sheet: PrintedTable) -> str:
    """Set one float for each grid with its footnotes; common lines stand under the last."""
    lines = ["% \\usepackage{booktabs}"]
    for position, grid in enumerate(sheet.grids):
        last = position == len(sheet.grids) - 1
        first = f"{_sentence(sheet.title)} " if grid.title and not position else ""
        title = first + (grid.title or sheet.title) + (f" ({grid.note})" if grid.note else "")
        lines += [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape(_sentence(title))}}}",
            r"\footnotesize\setlength{\tabcolsep}{3pt}",
            *_tabular(grid),
            *_under(sheet, grid, last),
            r"\end{table}",
            "",
        ]
    return "\n".join(lines)


def _sentence(title: str) -> str:
    return title if title.endswith((".", "?", "!")) else f"{title}."


def _tabular(grid: Grid) -> Iterator[str]:
    yield rf"\begin{{tabular}}{{{''.join('r' if c.number else 'l' for c in grid.headings)}}}"
    yield r"\toprule"
    if grid.spans:
        heads = [rf"\multicolumn{{{n}}}{{c}}{{{escape(text)}}}" for text, n in grid.spans]
        yield " & ".join(heads) + r" \\"
        at = 1
        for text, size in grid.spans:
            if text:
                yield rf"\cmidrule(lr){{{at}-{at + size - 1}}}"
            at += size
    yield " & ".join(map(_cell, grid.headings)) + r" \\"
    yield r"\midrule"
    for line in grid.lines:
        yield _line(line)
    yield r"\bottomrule"
    yield r"\end{tabular}"


def _line(line: GridLine) -> str:
    if line.heading:
        first = line.cells[0]
        text = rf"\emph{{{escape(first.text)}}}{_marks(first.notes)}"
        return rf"\multicolumn{{{len(line.cells)}}}{{l}}{{{text}}} \\"
    return " & ".join(map(_cell, line.cells)) + r" \\"


def _cell(cell: GridCell) -> str:
    text = escape(cell.text)
    if cell.number:  # a sign, not a hyphen
        text = re.sub(r"(?<![\w.])-(?=\d)", "$-$", text)
    if text.startswith("["):  # behind a line's end it would be an option
        text = "{}" + text
    return (rf"\textbf{{{text}}}" if cell.bold else text) + _marks(cell.notes)


def _marks(notes: tuple[int, ...]) -> str:
    return rf"\textsuperscript{{{','.join(map(str, notes))}}}" if notes else ""


def _under(sheet: PrintedTable, grid: Grid, last: bool) -> Iterator[str]:
    cells = [*grid.headings, *(cell for line in grid.lines for cell in line.cells)]
    numbers = sorted({number for cell in cells for number in cell.notes})
    texts = [f"{_marks((i,))} {escape(sheet.footnotes[i - 1])}" for i in numbers]
    if last:
        texts = [*map(escape, (*sheet.notes, *sheet.caption)), *texts]
    if texts:
        yield r"\par\medskip\raggedright"
        yield " \\par\n".join(texts)


def escape(text: str) -> str:
    """Escape a text for plain pdflatex; characters outside Latin-1 are set by their number."""
    characters = (SPECIAL.get(character, character) for character in " ".join(text.split()))
    set_as = (text if len(text) > 1 or _is_set(text) else _numbered(text) for text in characters)
    return "".join(set_as).replace("--", "-{}-")  # else one dash


def _is_set(character: str) -> bool:
    """Can every LaTeX set it? ASCII, and Latin letters with an accent."""
    base = unicodedata.decomposition(character).partition(" ")[0]
    return character.isascii() or (bool(base) and not base.startswith("<") and ord(character) < 256)


def _numbered(character: str) -> str:
    return rf"\texttt{{U+{ord(character):04X}}}"
