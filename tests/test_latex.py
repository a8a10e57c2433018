"""Tables in LaTeX: they compile in a paper of one column and of two, and no box is too full."""

import re
import shutil
import subprocess
import unicodedata

import numpy as np
import pytest
from conftest import REPOSITORY
from support.planted_sweeps import (
    golden,
    grouped_sweep,
    planted_sweep,
    whole,
)
from support.published_tables import against_table_3, published
from support.tables import finished, make_plan, notes_of, tabulate
from tex import compiled, has

from ablate.analysis.judging import Detail
from ablate.report.formats import LatexFloat, check_show, render_table
from ablate.report.formats.grid import Grid, GridCell, GridLine
from ablate.report.formats.latex import COLUMN, SPECIAL, TEXT, escape, fitted, lines_of, points
from ablate.shared.errors import UserError

AWKWARD = r"""a\b{c}&%$#_~^<>|"'`[x]--·×±−é«æα中"""

NARROW = ("gain", "verdict")


def awkward():
    plan = make_plan(["[base]", AWKWARD], ("x_1", r"\y"), families={AWKWARD: "50 % & more"})
    values = {"[base]": [90, 91, 92], AWKWARD: [93, 94.1, 94.9]}
    results = {r: finished(values[c.row][s] / 100) for c in plan.cells for s, r in c.ids.items()}
    return tabulate(plan, results)


def long():
    """Labels as sweeps by words have them, and four columns."""
    rows = ["plain ViT", "optim.weight_decay=0.05, norm=identity, block.attn=pre+post"]
    plan = make_plan(rows, [f"imagenet1k, model.arch=B/{size}" for size in (8, 16, 32, 64)])
    results = {r: finished(0.9 + 0.01 * s) for c in plan.cells for s, r in c.ids.items()}
    return tabulate(plan, results)


def parts():
    short = LatexFloat("tab:a", "Of 5 % & more")
    yield golden("latex")
    yield render_table(whole(), "latex", show=NARROW, floated=short, notes="short")
    yield render_table(whole(), "latex", show=check_show("accuracy,gain,pm,verdict"))
    yield render_table(whole(), "latex", transpose=True, notes="none")
    for table in (awkward(), long()):
        yield render_table(table, "latex", floated=LatexFloat("tab:b"))
        yield render_table(table, "latex", show=NARROW)
        yield render_table(table, "latex", transpose=True)
        yield render_table(table, "latex", wide=True)
    yield render_table(tabulate(*grouped_sweep()), "latex", show=("accuracy", "gain"))
    _, compared = against_table_3(REPOSITORY)
    for wide in (False, True):
        yield render_table(compared, "latex", show=("paper", "gain"), wide=wide)
    for name in ("T2R", "T3"):
        yield render_table(published(name), "latex", wide=True)
    yield escape(" ".join(SPECIAL))


@pytest.mark.whole
@pytest.mark.parametrize("paper", ["[onecolumn]{article}", "[twocolumn]{article}", "{IEEEtran}"])
def test_every_table_compiles_and_no_box_is_too_full(tmp_path, paper):
    if "IEEE" in paper and not has("IEEEtran.cls"):
        pytest.skip("needs IEEEtran: Debian's texlive-publishers")
    body = "\n\\clearpage\n".join(parts())
    packages = sorted(set(re.findall(r"^% (\\usepackage.*)$", body, re.M)))
    # T1 for the letters of one table.
    assert packages == [r"\usepackage[T1]{fontenc}", r"\usepackage{booktabs}"]
    head = rf"\documentclass{paper}{''.join(packages)}"
    log = compiled(tmp_path, rf"{head}\begin{{document}}{body}\end{{document}}")
    assert re.findall(r"Overfull \\hbox.*\n.*", log) == []
    assert (tmp_path / "document.pdf").stat().st_size > 10_000
    labels = re.findall(r"\\newlabel\{([^}]+)\}", (tmp_path / "document.aux").read_text())
    assert "tab:a" in labels
    assert "tab:a-2" in labels


BLOCKS = {
    "Latin-1 Supplement": range(0xA0, 0x100),
    "Latin Extended-A": range(0x100, 0x180),
    "Latin Extended-B": range(0x180, 0x250),
    "Latin Extended Additional": range(0x1E00, 0x1F00),
    "Greek and Coptic": range(0x370, 0x400),
    "superscripts and subscripts": range(0x2070, 0x20A0),
}
NO_SIGN = "\u031b\u0309\u0311"  # horn, hook above, inverted breve
LEFT_OUT = "ĦĸŦŧ" + "ẚẜẝẞẟỺỻỼỽỾỿ" + "ₔ" + "϶"  # which don't decompose, by block
ALIKE = dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΧο", "ABEZHIKMNOPTXo", strict=True))  # TeX sets Latin letters
ALIKE |= {"Δ": "∆", "Đ": "Ð", "ħ": "h", "ʼ": "’", "ƒ": ""}  # what the fonts call their glyphs


def letters(block: str) -> list[str]:
    """The characters that Unicode assigns in a block."""
    return [c for c in map(chr, BLOCKS[block]) if unicodedata.category(c)[0] != "C"]


def base(text: str) -> str:
    """The letters of a text without accents and spaces, with dots on i and j."""
    parts = unicodedata.normalize("NFKD", text.replace("ı", "i").replace("ȷ", "j"))
    return "".join(c for c in parts if not unicodedata.combining(c) and not c.isspace())


@pytest.mark.parametrize("block", [name for name in BLOCKS if name != "Latin Extended-B"])
def test_letters_are_set_as_themselves(block):
    """All that pdflatex's encodings have a sign for; modern Greek, but neither old nor Coptic."""
    for character in letters(block):
        no_sign = any(mark in unicodedata.normalize("NFD", character) for mark in NO_SIGN)
        old = block.startswith("Greek") and not "Ά" <= character <= "ώ"
        if not (no_sign or old or character in LEFT_OUT):
            assert "U+" not in escape(character), character


def test_a_pdf_has_the_letters(tmp_path):
    if shutil.which("pdftotext") is None:
        pytest.skip("needs pdftotext: Debian's poppler-utils")
    shown = {c: escape(c) for name in BLOCKS for c in letters(name) if base(c)}
    shown = {c: text for c, text in shown.items() if "U+" not in text}
    assert len(shown) > 600
    body = "\n\n".join(f"x{ord(c):04X}z {text}" for c, text in shown.items())
    head = r"\documentclass{article}\usepackage{cmap}\usepackage[T1]{fontenc}"
    compiled(tmp_path, rf"{head}\begin{{document}}{body}\end{{document}}")
    command = ["pdftotext", "-raw", "document.pdf", "-"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    parts = re.split("x([0-9A-F]{4})z", done.stdout)
    read = {chr(int(code, 16)): text for code, text in zip(parts[1::2], parts[2::2], strict=True)}
    assert read.keys() == shown.keys()
    for character, text in read.items():
        for letter in base(character):
            assert ALIKE.get(letter, letter) in base(text), (character, text)


@pytest.mark.parametrize("label", ["*ours", "*", "[x]"])
def test_no_sign_of_a_label_belongs_to_the_line_before(tmp_path, label):
    """TeX reads a star or a bracket behind the end of a line as a part of that end."""
    if shutil.which("pdftotext") is None:
        pytest.skip("needs pdftotext: Debian's poppler-utils")
    plan = make_plan(["base", "a", label])
    results = {run: finished(0.9) for cell in plan.cells for run in cell.ids.values()}
    table = render_table(tabulate(plan, results), "latex", notes="none")
    head = r"\documentclass{article}\usepackage{booktabs,cmap}"
    compiled(tmp_path, rf"{head}\begin{{document}}{table}\end{{document}}")
    command = ["pdftotext", "-layout", "document.pdf", "-"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert label in [line.split()[0] for line in done.stdout.splitlines() if line.split()]


def test_the_head_names_the_encoding_that_letters_need():
    """T1 where a letter needs it, and only there."""
    booktabs, encoding = r"% \usepackage{booktabs}", r"% \usepackage[T1]{fontenc}"
    without = render_table(long(), "latex", floated=LatexFloat(caption="größer, Łódź 10⁻³"))
    assert without.splitlines()[0] == booktabs
    assert encoding not in without
    needed = render_table(long(), "latex", floated=LatexFloat(caption="Đà, ąę"))
    assert needed.splitlines()[:2] == [booktabs, encoding]


def test_accents_that_are_characters_of_their_own():
    assert escape("m\u0304") == r"\={m}"
    assert "U+" not in escape("i\u0307 m\u0304 n\u0308")


def test_no_text_is_wider_than_it_is_taken_for(tmp_path):
    """TeX measures: what is too narrow would overfill a box, what is far too wide a page."""
    numbers = ["+0.62 [+0.21, +1.03]", "-1.99 [-2.16, -1.83]", "58.62 ± 1.30", "22.1 M", "10.2 %"]
    words = ["same within 0.5", "can't tell; 1/3 diverged", "Dual PatchNorm", "RMSNorm in MLP/WQ"]
    keys = ["optim.weight_decay=0.05", "model.arch=S/16", "if columns were a sample", "mmWWfill"]
    texts = [*(t.replace("-", "−") for t in numbers), *words, *keys, "JFT 1.1M, 384"]
    symbols = ["λ → ∞ é µ ≤", "中文", "a “b” c’s…"]
    lines = (rf"\setbox0\hbox{{{escape(t)}}}\typeout{{wide \the\wd0}}" for t in texts + symbols)
    bold = (rf"\setbox0\hbox{{\textbf{{{escape(t)}}}}}\typeout{{wide \the\wd0}}" for t in texts)
    body = "\n".join([r"\footnotesize", *lines, *bold, "."])
    log = compiled(tmp_path, rf"\documentclass{{article}}\begin{{document}}{body}\end{{document}}")
    measured = [float(width) for width in re.findall(r"^wide ([\d.]+)pt", log, re.M)]
    taken = [*map(points, texts + symbols)] + [points(text, bold=True) for text in texts]
    ratios = np.array(taken) / measured
    said = [*texts, *symbols, *texts]
    assert ratios.min() >= 1, said[ratios.argmin()]
    assert ratios.max() < 1.3, said[ratios.argmax()]


def test_a_table_is_as_wide_as_a_column_else_as_the_page():
    narrow = render_table(whole(), "latex", show=NARROW)
    first = narrow[: narrow.index(r"\end{table}")]
    assert r"\begin{tabular*}{225pt}{@{\extracolsep{\fill}}l" in first
    assert r"\begin{table*}" not in narrow
    assert r"\begin{table*}" in golden("latex")  # intervals of two metrics
    assert narrow.splitlines()[0] == r"% \usepackage{booktabs}"


def grid(*texts):
    """Of one line; numbers but for the first."""
    cells = tuple(GridCell(text, number=bool(i)) for i, text in enumerate(texts))
    heads = tuple(GridCell(f"h{i}", number=bool(i)) for i in range(len(texts)))
    return Grid("", heads, (GridLine(cells), GridLine((cells[0], *heads[1:-1], GridCell("")))))


def test_what_is_too_wide_is_folded_then_split():
    as_it_is, *none = fitted(grid("plain", "+1.00"))
    assert (none, as_it_is.room, as_it_is.folded) == ([], COLUMN, (None, None))
    folded, *none = fitted(grid("a label of many words " * 4, "+1.00", "+2.00"))
    assert (none, folded.room) == ([], COLUMN)
    assert folded.folded[0] == folded.widths[0] < points("a label of many words " * 4)
    assert folded.width <= COLUMN
    split = [*fitted(grid("plain", *["58.62 [57.30, 59.94]"] * 9))]
    assert all(part.width <= TEXT for part in split)
    heads = [[head.text for head in part.grid.headings] for part in split]
    assert heads == [
        ["h0", *(f"h{i}" for i in some)] for some in ((1, 2, 3, 4), (5, 6, 7, 8), (9,))
    ]
    lines = lines_of("if columns were a sample", points("if columns"))
    assert lines == ["if columns", "were a", "sample"]


# --- What is told -------------------------------------------------------------------------------


def test_label_caption_and_notes():
    table = whole()
    plain = render_table(table, "latex", show=NARROW)
    assert r"\label" not in plain
    assert r"\caption{A planted sweep. Trained on digits, 1,197 images at 8 px" in plain
    [confound] = notes_of(table, "confound")
    assert rf"\textsuperscript{{2}} {escape(confound.text)}\par" in plain
    text = render_table(
        table, "latex", show=NARROW, floated=LatexFloat("tab:x", "Ours, 5 %"), notes="short"
    )
    floats = text.split(r"\end{table}")[:-1]
    assert r"\caption{Ours, 5 \%" in floats[0]
    for place, one in enumerate(floats):
        label = rf"\label{{tab:x{f'-{place + 1}' if place else ''}}}"
        assert one.count(r"\label") == one.count(label) == 1
        assert one.index(r"\caption") < one.index(label)
    assert "ablate table" not in text  # no reader of a paper types it
    exact = [note.text for note in table.notes if note.is_exact and note.kind == "caption"]
    assert exact
    for sentence in exact:
        assert escape(sentence) in plain
        assert escape(sentence) not in text
    [reading] = notes_of(table, "reading")
    assert escape(reading.text) in floats[-1]
    bare = render_table(table, "latex", show=NARROW, notes="none")
    assert r"\smallskip\raggedright" not in bare
    assert r"\textsuperscript" not in bare


def test_an_unfinished_table_says_so_under_any_caption():
    table = tabulate(*planted_sweep(complete=False))
    text = render_table(table, "latex", floated=LatexFloat(caption="Ours"), notes="none")
    assert r"\caption{Ours (unfinished)." in text
    short = render_table(table, "latex", notes="short")
    assert "UNFINISHED: 1 of 42 runs missing" in short


def test_wrong_labels_and_notes(ask, golden_store):
    with pytest.raises(UserError, match="--notes: expected one of full, short, none, got 'ful' "):
        render_table(whole(), "latex", notes="ful")
    for label in ("", "a b", "tab:{x}", "50%", r"\x"):
        with pytest.raises(UserError, match="--label: expected letters, digits and"):
            LatexFloat(label)
    words = ("table", "--label", "tab:t")
    code, text = ask(*words, "--format", "latex", "--notes", "none")
    assert (code, r"\label{tab:t}" in text) == (0, True)
    code, text = ask(*words)
    assert code == 2
    assert "--label: is of LaTeX; add --format latex, or leave --label out" in text
    code, text = ask("table", "--notes", "ful")
    assert code == 2
    assert "--notes: expected one of full, short, none, got 'ful'" in text


# --- Intervals as plus-minus --------------------------------------------------------------------


@pytest.mark.parametrize("format", ["md", "latex"])
def test_an_interval_is_written_by_its_half(format):
    table = whole()
    text = render_table(table, format, show=check_show("accuracy,gain,pm"))
    sign = r"$\pm$" if format == "latex" else "±"
    for entry in table.entries:
        accuracy, gain = entry.accuracy, entry.gain
        half = (accuracy.high - accuracy.low) / 2
        assert f"{accuracy.mean:.2f} {sign} {half:.2f}" in text
        assert accuracy.mean - accuracy.low == pytest.approx(half)  # symmetric
        if gain:
            half = (gain.high - gain.low) / 2
            minus = "$-$" if format == "latex" else "-"
            mean = f"{gain.mean:+.2f}".replace("-0.00", "+0.00").replace("-", minus)
            assert f"{mean} {sign} {half:.2f}" in text
            assert gain.mean - gain.low == pytest.approx(half)
    assert f"gain {sign} 95" in text
    assert "[+" not in text


def test_an_interval_that_is_cut_keeps_both_ends():
    plan = make_plan(["base", "other"])
    values = {"base": [0.90, 0.91, 0.92], "other": [0.98, 0.999, 1.0]}
    results = {r: finished(values[c.row][s]) for c in plan.cells for s, r in c.ids.items()}
    text = render_table(tabulate(plan, results), "md", show=("accuracy", "pm"))
    assert "| base | 91.00 ± 2.48 |" in text  # t(2 df) = 4.303, over the root of 3
    assert re.search(r"\| other \| 99.30 \[9\d.\d\d, 100.00\] \|", text)


def test_a_half_width_hides_no_verdict():
    """Rounded to +0.62 ± 0.62, a gain that is above 0 would look like one that may be 0."""
    plan = make_plan(["base", "other"], seeds=4)
    noise = [0.002915, -0.002915, 0.00196, -0.00196]
    values = {"base": [0.9] * 4, "other": [0.9 + 0.00459 + part for part in noise]}
    results = {r: finished(values[c.row][s]) for c in plan.cells for s, r in c.ids.items()}
    table = tabulate(plan, results)
    (gain,) = [entry.gain for entry in table.entries if entry.gain]
    assert 0 < gain.low < 0.005
    text = render_table(table, "md", show=("gain", "pm", "verdict"))
    assert f"{gain.mean:+.2f} [+0.00" in text
    assert "helps" in text
    assert "±" not in text.split("| other |")[1].splitlines()[0]


def test_one_form_of_an_interval():
    with pytest.raises(UserError, match="--show: ci and pm are two forms of one interval"):
        check_show("gain,ci,pm")
    with pytest.raises(UserError, match="--show: pm is the interval of another part"):
        check_show("pm")
    means = tabulate(*planted_sweep(), detail=Detail.MEANS)  # without intervals
    assert "± -" in render_table(means, "md", show=("gain", "pm"))
