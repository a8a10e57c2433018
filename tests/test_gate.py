"""What others wrote (titles, versions, labels, file names, exceptions) is printed, never obeyed."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import sys
from pathlib import Path

import pyte
import pytest
from conftest import REPOSITORY, Shell
from rich.text import Text

from ablate.audit.bundle import Bundle
from ablate.planning.settings import output_name, sweep_file_name
from ablate.report.live import drawing_in_place
from ablate.report.text import Gate, gate_output, make_console

ODD = "\x1b[31mred\a\u202e\x9b\ntwo"
SHOWN = r"\x1b[31mred\x07\u202e\x9b\ntwo"

TRAINER = """
def main(settings, run):
    if settings["level"] == 9:
        raise ValueError("\\x1b[31mred\\a")
    run.result(score=0.5 + 0.01 * settings["level"] + 0.001 * run.seed)
"""
DECLARED = """
name: gauge:main
keys: {level: 0}
metrics:
  score: {direction: more, unit: "%", range: [0, 1]}
fork_safe: true
"""
SWEEP = ("sweep", "trainer=gauge", "seeds=2", "launcher=inline", "--as", "g")


@pytest.fixture
def gauge(tmp_path) -> Shell:
    (tmp_path / "conf" / "trainer").mkdir(parents=True)
    (tmp_path / "conf" / "trainer" / "gauge.yaml").write_text(DECLARED)
    (tmp_path / "gauge.py").write_text(TRAINER)
    return Shell(tmp_path)


def exported(gauge: Shell) -> Bundle:
    gauge(*SWEEP, "trainer.level=0,1")
    gauge("export", "g", "out")
    return Bundle(gauge.folder / "out")


def plain(text: str) -> str:
    assert text.replace("\n", "").isprintable(), text
    return text


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.whole
@pytest.mark.parametrize("format", ["rich", "md", "latex", "html", "csv", "tidy", "json"])
def test_a_strangers_bundle_is_printed_as_text(gauge, format):
    bundle = exported(gauge)
    edit(bundle.plan_path(""), title=ODD)
    edit(bundle.environment, ablate=ODD, made_with={ODD: ODD})
    bundle.write_manifest()
    table = plain(gauge("table", "--from", "out", "--format", format).out)
    if format in ("rich", "md", "html"):
        assert "two" in next(line for line in table.splitlines() if "31mred" in line)
    if format == "md":
        done = gauge("verify", "out", code=1)
        assert SHOWN in plain(done.out + done.err)
        done = gauge("merge", "out", "--store", "other")
        plain(done.out + done.err)
        told = gauge("table", "g", "--format", "latex", "--caption", ODD).out
        assert "31mred" in plain(told)


@pytest.mark.whole
def test_a_label_that_is_a_key_stays_as_it_is(gauge):
    """Where a program reads, it reads what is there."""
    bundle = exported(gauge)
    text = (
        bundle.plan_path("")
        .read_text()
        .replace('"label": "level=1"', f'"label": {json.dumps(ODD)}')
    )
    bundle.plan_path("").write_text(text.replace('"row": "level=1"', f'"row": {json.dumps(ODD)}'))
    bundle.write_manifest()
    tree = json.loads(gauge("table", "--from", "out", "--format", "json").out)
    assert ODD in {row["label"] for row in tree["rows"]}
    plain(gauge("table", "--from", "out").out)


def test_an_exception_of_own_code(gauge):
    done = gauge(*SWEEP, "trainer.level=0,9", code=1)
    assert r"ValueError: \x1b[31mred\x07" in plain(done.out)
    plain(done.err)
    for words in (("status", "g"), ("show", "level=9#0")):
        assert r"ValueError: \x1b[31mred\x07" in plain(gauge(*words).out)


@pytest.mark.parametrize("key", ["from.weights", "data.path", "eval.also"])
def test_the_name_of_a_file_is_one_line(shell, key):
    words = ("plan", "stem=none,dpn", "data=folder", f"'{key}={ODD}'")
    done = shell(*words, code=2)
    assert plain(done.err).count("\n") == 1
    assert r"\x1b[31m" in done.err


def test_a_name_that_is_half_a_character(shell):
    done = shell("report", "--out", "caf\udce9/x.html", code=2)
    assert done.err.count("\n") == 1


def test_a_console_colours_and_lets_no_other_escape_through():
    out = io.StringIO()
    make_console(file=out, force_terminal=True, color_system="standard").print(Text(ODD, "bold"))
    assert out.getvalue() == "\x1b[1m\\x1b[31mred\\u202e\\x9b\x1b[0m\n\x1b[1mtwo\x1b[0m\n"


def test_the_gate_is_the_stream_behind_it_in_all_else(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    with gate_output():
        assert isinstance(sys.stdout, Gate)
        assert sys.stdout.isatty()
        print("a\x1b[31m", end="\n")
        make_console(color_system="standard", width=9).print(Text("b", "bold"))
        csv.writer(sys.stdout, lineterminator="\n").writerow(["ü", "\x07"])
    assert sys.stdout is out
    assert out.getvalue() == "a\\x1b[31m\n\x1b[1mb\x1b[0m\nü,\\x07\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(width: int, sent: str) -> pyte.Screen:
    """The screen of a terminal of this width, which begins a line where a program ends one."""
    screen = pyte.Screen(width, 24)
    screen.set_mode(pyte.modes.LNM)
    pyte.Stream(screen).feed(sent)
    return screen


def test_what_is_printed_while_a_live_view_draws_is_text_above_it(monkeypatch):
    """The view's own colours and cursor movements are commands; those of strangers are letters."""
    out, err = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with gate_output(), drawing_in_place(transient=True) as drawing:
        drawing.update(Text("bar", "red"), refresh=True)
        print("a\x1b[31m")
        drawing.console.print(Text("b\x1b[2J"))
        print("c\x1b[2J", file=sys.stderr)  # which is no terminal
    assert err.getvalue() == "c\\x1b[2J\n"
    sent = out.getvalue()
    assert "\x1b[31mbar\x1b[0m" in sent
    assert "\x1b[2J" not in sent
    screen = shown(80, sent)
    assert [line.rstrip() for line in screen.display[:3]] == ["a\\x1b[31m", "b\\x1b[2J", ""]
    assert {cell.fg for row in screen.buffer.values() for cell in row.values()} == {"default"}
    assert sys.stdout is out


def test_a_window_that_is_made_narrower(monkeypatch):
    """A terminal breaks the lines of the drawing anew: all of these are erased, and no others. Text
    that was sent to a narrow terminal stands there as a wide one's after it was made narrower."""
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    width = 40
    monkeypatch.setattr(os, "get_terminal_size", lambda *file: os.terminal_size((width, 24)))
    with gate_output(), drawing_in_place(transient=True) as drawing:
        print("one")
        drawing.update(Text("\n".join(["=" * 30, "+" * 20, "-" * 30])), refresh=True)
        width = 25
        print("two")
        drawing.update(Text("*" * 25), refresh=True)
        lines = [line.rstrip() for line in shown(25, out.getvalue()).display]
        assert lines[:4] == ["one", "two", "*" * 25, ""]
    lines = [line.rstrip() for line in shown(25, out.getvalue()).display]
    assert lines[:3] == ["one", "two", ""]


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("utf-8", "1 ± 2 ¹² … Größe"),
        ("latin-1", "1 ± 2 [12] ... Größe"),
        ("ascii", r"1 +- 2 [12] ... Gr\xf6\xdfe"),
    ],
)
def test_what_a_stream_lacks_is_spelled(monkeypatch, encoding, expected):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    monkeypatch.setattr(sys, "stdout", out)
    with gate_output():
        print("1 ± 2 ¹² … Größe")
        make_console(width=80).print(Text("1 ± 2 ¹² … Größe"))
    out.flush()
    assert out.buffer.getvalue().decode(encoding) == f"{expected}\n{expected}\n"


@pytest.mark.whole
@pytest.mark.parametrize("command", [("table",), ("table", "--format", "rich"), ("status",)])
def test_commands_at_an_ascii_terminal(gauge, command):
    """A sweep's name has letters that ASCII lacks, and so has the frame of a table."""
    gauge(*SWEEP[:-1], "Größe", "trainer.level=0,9", code=1)
    done = gauge.process(*command, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert r"Gr\xf6\xdfe" in done.out
    assert done.out.isascii()


@pytest.mark.whole
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_digit_and_no_mark_is_lost_where_a_spelling_is_longer(gauge, encoding):
    """Rich would cut a cell that became longer after it was laid out."""
    bundle = REPOSITORY / "docs" / "studies" / "placements" / "study_placements_patch_8"
    words = ("--format", "rich", "--show", "accuracy,gain,pm")
    environment = {"PYTHONIOENCODING": encoding, "COLUMNS": "120"}
    text = gauge.process("table", "--from", bundle, *words, **environment).out
    spread = "±" if encoding == "utf-8" else r"\+-"
    assert len(re.findall(rf"\d\d\.\d\d {spread} \d\.\d\d", text)) == 12
    marks = "[¹²³]" if encoding == "utf-8" else r"\[[123]\]"
    assert len(re.findall(rf"\d{marks}", text)) == 11


def test_files_for_readers_keep_the_letters_of_a_name():
    assert output_name("Größe +x=1") == "Größe +x=1"
    for name in ("a/b", "..", "x" * 300, "ß" * 150):
        assert output_name(name) == sweep_file_name(name) != name


def test_commands_in_advice_can_be_pasted(gauge):
    """The folder has a space."""
    gauge(*SWEEP, "trainer.level=0,1")
    told = gauge("export", "g", "my bundle").out
    command = shlex.split(re.search("`(.*)`", told)[1])
    assert command == ["ablate", "table", "--from", "my bundle"]
    gauge(*command[1:])


@pytest.mark.whole
def test_a_home_that_cannot_be_written_to_is_no_matter_of_figures(gauge):
    gauge(*SWEEP, "trainer.level=0,1")
    home = gauge.folder / "home"
    home.touch()  # a file: no folder can be made in it, not even by root
    done = gauge.process(
        "plot", "g", "forest", HOME=str(home), XDG_CONFIG_HOME="", XDG_CACHE_HOME=""
    )
    assert (done.out, done.err) == ("g-forest.svg\n", "drawing forest of g\n")
