"""Sets a table in LaTeX for a paper, fitted into its columns; needs the package booktabs.

Used by `__init__.py` here, for `ablate table --format latex` and bundles. Another text also needs
`python tests/test_formats.py`, which writes tests/golden/table.tex.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ablate.report.formats import latex_letters
from ablate.report.formats.grid import Grid, GridCell, GridLine, PrintedTable
from ablate.shared import UserError

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


END = r" \tabularnewline"  # behind \raggedright, `\\` is the end of a line of its paragraph


@dataclass(frozen=True)
class LatexFloat:
    """The options of a table's float: `label`; `caption`, in place of the title and of what was
    trained."""

    label: str | None = None
    caption: str | None = None

    def __post_init__(self) -> None:
        """Raise UserError for a label that LaTeX can't read."""
        if self.label is not None and not re.fullmatch(r"[\w:./+*@-]+", self.label, re.ASCII):
            raise UserError(
                f"--label: expected letters, digits and :./+*@_-, such as tab:gains, got "
                f"{self.label!r}"
            )

    def labels(self, position: int) -> list[str]:
        """Return the label command of the float at this position, [] without a label; from the
        second float on, its number follows the label: -2, -3."""
        if self.label is None:
            return []
        return [rf"\label{{{self.label}{f'-{position + 1}' if position else ''}}}"]


def latex(sheet: PrintedTable, floated: LatexFloat) -> str:
    """Set one float for each grid, or for each part of one that is too wide, with its notes; common
    lines follow the last. A float is as wide as a column where it fits into one."""
    lines: list[str] = []
    parts = [
        (grid, part, number) for grid in sheet.grids for number, part in enumerate(fitted(grid))
    ]
    for position, (grid, part, number) in enumerate(parts):
        prefix = f"{_sentence(sheet.heading)} " if grid.title else ""
        title = prefix + (grid.title or sheet.heading) + (f" ({grid.note})" if grid.note else "")
        star = "*" if part.room > COLUMN else ""
        lines += [
            rf"\begin{{table{star}}}",
            r"\centering",
            rf"\begin{{minipage}}{{{part.box:.1f}pt}}",
            r"\centering\sloppy",
            rf"\caption{{{escape(_sentence(title + ' (continued)' * bool(number)))}}}",
            *floated.labels(position),
            r"\par\smallskip\footnotesize\setlength{\tabcolsep}{3pt}",
            *_tabular(part),
            *_table_notes(sheet, part.grid, position == len(parts) - 1),
            r"\end{minipage}",
            rf"\end{{table{star}}}",
            "",
        ]
    packages = ["% \\usepackage{booktabs}"]
    if any(command in line for line in lines for command in latex_letters.T1_COMMANDS):
        packages.append("% \\usepackage[T1]{fontenc}")
    return "\n".join([*packages, *lines])


def _sentence(title: str) -> str:
    return title if title.endswith((".", "?", "!")) else f"{title}."


def _tabular(part: FittedGrid) -> Iterator[str]:
    grid = part.grid
    kinds = [
        ("r" if head.number else "l") if width is None else rf"p{{{width:.1f}pt}}"
        for head, width in zip(grid.headings, part.folded, strict=True)
    ]
    columns = "".join(kinds)
    if part.width <= COLUMN:  # notes of less are a tower
        yield rf"\begin{{tabular*}}{{{COLUMN:g}pt}}{{@{{\extracolsep{{\fill}}}}{columns}@{{}}}}"
    else:
        yield rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}"
    yield r"\toprule"
    if grid.spans:
        start, heads, rules = 0, [], []
        for text, count in grid.spans:
            folded = _folded(text, "c", part.across(start, count))
            heads.append(rf"\multicolumn{{{count}}}{{c}}{{{folded}}}")
            rules += [rf"\cmidrule(lr){{{start + 1}-{start + count}}}"] if text else []
            start += count
        yield " & ".join(heads) + END
        yield from rules
    sized_headings = zip(grid.headings, part.widths, strict=True)
    yield (
        " & ".join(
            _folded(head.text, "r" if head.number else "l", width, head.notes)
            for head, width in sized_headings
        )
        + END
    )
    yield r"\midrule"
    for line in grid.lines:
        yield _line(line, part)
    yield r"\bottomrule"
    yield rf"\end{{tabular{'*' if part.width <= COLUMN else ''}}}"


def _folded(text: str, side: str, width: float, notes: tuple[int, ...] = ()) -> str:
    """Set a heading in as many lines as the width of its column needs."""
    lines = lines_of(text, width - points(",".join(map(str, notes))))
    words = r" \\ ".join(_guarded(escape(line)) for line in lines) + _marks(notes)
    if len(lines) == 1:
        return words
    return rf"\begin{{tabular}}[b]{{@{{}}{side}@{{}}}}{words}\end{{tabular}}"


def _line(line: GridLine, part: FittedGrid) -> str:
    if line.heading:
        heading = line.cells[0]
        text = rf"\emph{{{escape(heading.text)}}}{_marks(heading.notes)}"
        wide = points(heading.text) > part.width
        kind = rf"@{{}}p{{{part.width:.1f}pt}}@{{}}" if wide else "@{}l"
        return rf"\multicolumn{{{len(line.cells)}}}{{{kind}}}{{{text}}}" + END
    cells = zip(line.cells, part.folded, strict=True)
    return " & ".join((r"\raggedright " if width else "") + _cell(c) for c, width in cells) + END


def _cell(cell: GridCell) -> str:
    text = escape(cell.text)
    if cell.number:
        text = _signed(text)
    text = _guarded(text)
    return (rf"\textbf{{{text}}}" if cell.bold else text) + _marks(cell.notes)


def _guarded(text: str) -> str:
    """Guard a text that begins with `[` or `*`, which LaTeX would read as a part of the line's end
    before it."""
    return "{}" + text if text.startswith(("[", "*")) else text


def _marks(notes: tuple[int, ...]) -> str:
    return rf"\textsuperscript{{{','.join(map(str, notes))}}}" if notes else ""


def _table_notes(sheet: PrintedTable, grid: Grid, is_last: bool) -> Iterator[str]:
    cells = [*grid.headings, *(cell for line in grid.lines for cell in line.cells)]
    numbers = sorted({number for cell in cells for number in cell.notes})
    items = [rf"\textsuperscript{{{i}}} {_prose(sheet.footnotes[i - 1])}\par" for i in numbers]
    if is_last:
        smoke = [sheet.headline] if sheet.is_smoke else []
        texts = filter(None, map(_without_commands, (*smoke, *sheet.notes, *sheet.caption)))
        items = [rf"{_prose(text)}\par" for text in texts] + items
    if items:
        yield r"\par\smallskip\raggedright"
        yield from items


OUTSIDE = r"(?=[^`]*(?:`[^`]*`[^`]*)*$)"  # of `code`: an even number of backticks follows


def _without_commands(text: str) -> str:
    """Return the text without its clauses on commands of ablate, which no reader of a paper
    types."""
    text = re.sub(r": run the same `ablate [^`]*`", "", text)  # the fact before it stays
    sentences = []
    for sentence in re.split(rf"(?<=[.?!]) {OUTSIDE}", text):
        clauses = [part for part in re.split(f"; {OUTSIDE}", sentence) if "`ablate " not in part]
        if clauses:
            shortened = "; ".join(clauses)
            sentences.append(shortened if shortened.endswith((".", "?", "!")) else f"{shortened}.")
    return " ".join(sentences)


def _prose(text: str) -> str:
    """Escape a sentence; commands in `backticks` are set as code, and numbers have signs."""
    words = []
    for n, part in enumerate(re.split(r"`([^`]+)`", text)):  # before quotes become backticks
        if n % 2:
            words.append(rf"\texttt{{{escape(part)}}}")
        else:
            spaces = (" " * part[:1].isspace(), " " * part[-1:].isspace())
            words.append(_signed(escape(part)).join(spaces) if part.strip() else part)
    return "".join(words)


def _signed(text: str) -> str:
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", text)  # a sign, not a hyphen


# Signs that TeX sets as another one together with the next: a dash, an inverted mark, a quote.
LIGATURE = re.compile("-(?=-)|[?!](?=`)|,(?=,)")


def escape(text: str) -> str:
    """Escape a text for plain pdflatex; characters outside Latin-1 are set by their number. A long
    word may be broken behind its signs."""
    return " ".join(r"\allowbreak{}".join(map(_escaped, pieces(word))) for word in text.split())


def _escaped(text: str) -> str:
    return LIGATURE.sub(r"\g<0>{}", "".join(map(_set_as, _with_marks(text))))


def _with_marks(text: str) -> list[str]:
    """Split a text into characters, each with the combining marks behind it."""
    return re.findall(r".[\u0300-\u036f]*", unicodedata.normalize("NFC", text), re.DOTALL)


def _set_as(character: str) -> str:
    """Spell a character, which may have combining marks behind it."""
    if character in SPECIAL:
        return SPECIAL[character]
    if len(character) == 1 and is_set(character):
        return character
    spelling = latex_letters.spell(character, SPECIAL)
    return "".join(map(_numbered, character)) if spelling is None else spelling


def _numbered(character: str) -> str:
    return rf"\texttt{{U+{ord(character):04X}}}"


# Points that every common class has: letter or A4 paper, letters of 10 points. A column of a
# two-column article is the narrowest of two columns, that of a one-column article of one.
COLUMN, TEXT = 225.0, 340.0
GAP = 6.0  # between two columns: twice \tabcolsep
LEAST_WIDTH = 30.0  # points that a column of words may be folded to

# Points of characters in Computer Modern, the widest of common faces, of 8 points (\\footnotesize).
_CLASSES = {
    2.5: "ijl.,:;'!|`[]·’",
    3.4: "frst()I- ",
    4.3: "acegz0123456789_$~^\\J–“”",
    6.7: "wABCDEFGHKLNOPRTUVXYZ+=<>−×±≤≥≈µ",
    9.0: "mMWQ%#&@→←∞—",
    12.0: "…",
}
_POINTS = {character: size for size, some in _CLASSES.items() for character in some}
_LETTER, _GREEK, _NUMBERED = 4.8, 7.0, 30.0  # the last: set as U+4E2D
_BOLD, _MARK = 1.18, 3.8
LONG = 16  # characters of a word that may be broken
_BREAKS = re.compile(r"[^=./,_:@+-]*[=./,_:@+-]|[^=./,_:@+-]+")


def is_set(character: str) -> bool:
    """Return whether every LaTeX can set the text: ASCII, and Latin letters with an accent."""
    base = unicodedata.decomposition(character).partition(" ")[0]
    return character.isascii() or (bool(base) and not base.startswith("<") and ord(character) < 256)


def pieces(word: str) -> list[str]:
    """Return the parts of a word between which a line may end: in a long word after its signs, and
    at characters that LaTeX sets by their number."""
    segments: list[str] = []
    for part in _BREAKS.findall(word) if len(word) > LONG else [word]:
        runs = itertools.groupby(part, lambda c: _size(c) == _NUMBERED)
        for alone, run in ((alone, "".join(some)) for alone, some in runs):
            segments += [*run] if alone else [run]
    return segments


def points(text: str, bold: bool = False) -> float:
    """The width of a line in \\footnotesize, rather too large than too small."""
    return sum(map(_size, text)) * (_BOLD if bold else 1)


def _size(character: str) -> float:
    if (size := _POINTS.get(character)) is not None:
        return size
    if unicodedata.name(character, "").startswith("GREEK"):
        return _GREEK
    if unicodedata.combining(character):
        return 0.0
    is_settable = is_set(character) or latex_letters.spell(character, SPECIAL) is not None
    return _LETTER if is_settable else _NUMBERED


def _marks_width(cell: GridCell) -> float:
    return _MARK * len(",".join(map(str, cell.notes)))


def _cell_width(cell: GridCell) -> float:
    text = cell.text.replace("-", "−") if cell.number else cell.text
    return points(text, cell.bold) + _marks_width(cell)


def _longest(text: str, bold: bool = False) -> float:
    widths = (points(piece, bold) for word in text.split() for piece in pieces(word))
    return max(widths, default=0.0)


@dataclass(frozen=True)
class FittedGrid:
    """A grid and its widths in points. `folded`: of each column the width of its paragraphs, None
    where its cells are single lines."""

    grid: Grid
    widths: tuple[float, ...]
    folded: tuple[float | None, ...]
    room: float

    @property
    def width(self) -> float:
        return sum(self.widths) + GAP * (len(self.widths) - 1)

    @property
    def box(self) -> float:
        """The width in points of the caption, the grid and the notes."""
        return max(COLUMN, self.width)

    def across(self, start: int, count: int) -> float:
        """Return the width in points of `count` columns from the one at `start`."""
        return sum(self.widths[start : start + count]) + GAP * (count - 1)


def fitted(grid: Grid) -> Iterator[FittedGrid]:
    """Fit a grid into a column of a paper, else into its text, else in parts; each part repeats the
    first column."""
    for room in (COLUMN, TEXT):
        if fitted_grid := _fit(grid, range(len(grid.headings)), room):
            yield fitted_grid
            return
    indices = [0]
    for i in range(1, len(grid.headings)):
        if len(indices) > 1 and _fit(grid, [*indices, i], TEXT) is None:
            yield _part(grid, indices)
            indices = [0]
        indices.append(i)
    yield _part(grid, indices)


def _part(grid: Grid, indices: Sequence[int]) -> FittedGrid:
    room = TEXT
    while (fitted_grid := _fit(grid, indices, room)) is None:  # a word that is wider than a page
        room *= 1.1
    return fitted_grid


def _fit(grid: Grid, indices: Sequence[int], room: float) -> FittedGrid | None:
    """Return the grid of these columns in `room` points: as it is, else with its headings folded,
    else with columns of words folded, too; None where it is too wide even so."""
    grid = grid.part(indices)
    lines = [line.cells for line in grid.lines if not line.heading]
    columns = [[cells[i] for cells in lines] for i in range(len(indices))]
    body = [max(map(_cell_width, cells), default=0.0) for cells in columns]
    natural: list[float] = []
    for measure in (points, _longest):
        heads = (measure(head.text) + _marks_width(head) for head in grid.headings)
        widths = [max(pair) for pair in zip(body, heads, strict=True)]
        start = 0
        for text, count in grid.spans:
            lacking = measure(text) - sum(widths[start : start + count]) - GAP * (count - 1)
            widths[start + count - 1] += max(0.0, lacking)
            start += count
        natural = natural or widths
        spare = room - sum(widths) - GAP * (len(widths) - 1)
        if spare >= 0:
            for i, width in enumerate(natural):  # of the headings, as many as there is room for
                extra = min(spare, max(0.0, width - widths[i]))
                widths[i] += extra
                spare -= extra
            return FittedGrid(grid, tuple(widths), (None,) * len(widths), room)
    words = [i for i, head in enumerate(grid.headings) if not head.number]
    least_widths = {i: _least_width(grid.headings[i], columns[i]) for i in words}
    spare = (
        room
        - GAP * (len(widths) - 1)
        - sum(width for i, width in enumerate(widths) if i not in words)
    )
    if sum(least_widths.values()) > spare:
        return None
    folded: list[float | None] = [None] * len(widths)
    # What needs little gets it whole.
    queue = sorted(words, key=lambda i: widths[i] - least_widths[i])
    while queue:
        i, *queue = queue
        share = (spare - least_widths[i] - sum(least_widths[j] for j in queue)) / (len(queue) + 1)
        if least_widths[i] + share < widths[i]:
            widths[i] = folded[i] = least_widths[i] + share
        spare -= widths[i]
    return FittedGrid(grid, tuple(widths), tuple(folded), room)


def _least_width(head: GridCell, cells: Sequence[GridCell]) -> float:
    """Return the width of a column of words in which each part of a word has room."""
    return max(
        LEAST_WIDTH,
        *(_longest(cell.text, cell.bold) + _marks_width(cell) for cell in (head, *cells)),
    )


def lines_of(text: str, width: float) -> list[str]:
    """Fold a heading to lines of so many points."""
    lines: list[str] = []
    for word in text.split():
        parts = pieces(word) if points(word) > width else [word]
        for i, part in enumerate(parts):
            joined = f"{lines[-1]}{'' if i else ' '}{part}" if lines else ""
            if joined and points(joined) <= width:
                lines[-1] = joined
            else:
                lines.append(part)
    return lines or [""]
