"""Makes the pictures that the pages show, in docs/pictures: `make pictures`, or
python tests/docs_pictures.py [--check]

- Terminals, as SVG: real commands on a pseudoterminal of 80 columns. A picture holds its text, too,
  by which `--check` (and a test) finds pictures that no longer show what the command prints.
- The live page and the report, as PNG: a browser. The live page watches a quick start that is
  trained for it, so its numbers and times differ from time to time.
- Figures are those of the bundles in docs/studies, which are drawn anew; those of probes that no
  bundle has, of a small sweep on digits, which is trained for them.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import html
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyte
import study_page
from browser import Browser
from conftest import ABLATE, REPOSITORY
from PIL import Image
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text
from screen import Screen, steady

from ablate.analysis import RunFiles, read_verdicts
from ablate.audit.bundle import Bundle
from ablate.report import draw_figures, measured_records, render_page
from ablate.store import load_records
from ablate.store.events import Look

PICTURES = REPOSITORY / "docs" / "pictures"
QUICK_START = REPOSITORY / "docs" / "studies" / "quickstart"
STUDY = study_page.PATCH_NORM.folder / study_page.ROWS
COLUMNS = 80
MOST_BYTES = 150_000
PYTE_COLOURS = {"brown": "yellow", "brightbrown": "bright_yellow"}  # else as rich has them
THEME = TerminalTheme(
    (30, 30, 38),
    (212, 212, 220),
    [
        *((30, 30, 38), (240, 100, 110), (120, 200, 120), (225, 190, 110)),
        *((110, 165, 245), (200, 140, 235), (95, 200, 210), (212, 212, 220)),
    ],
    [
        *((130, 130, 145), (255, 130, 140), (150, 225, 150), (245, 215, 140)),
        *((140, 190, 255), (220, 165, 250), (125, 225, 235), (255, 255, 255)),
    ],
)
# rich's own asks another host for a font.
SVG = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<desc></desc>
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
DESCRIPTION = re.compile(r"<desc>(.*?)</desc>", re.DOTALL)

# --- Terminals ----------------------------------------------------------------------------------


def screen_rows(screen: Screen) -> Iterator[Text]:
    """Yield the lines of a terminal with their colours, down to the last that is not empty."""
    for number in range(len(screen.lines())):
        row = screen.screen.buffer[number]
        line = Text(no_wrap=True)
        for style, cells in itertools.groupby(map(row.__getitem__, range(COLUMNS)), _rich_style):
            line.append("".join(cell.data for cell in cells), style)
        line.rstrip()
        yield line


def _rich_style(cell: pyte.screens.Char) -> Style:
    """Return the style of a letter; pyte has some colours by name, others by six digits."""
    colour = PYTE_COLOURS.get(cell.fg, cell.fg.replace("bright", "bright_"))
    if re.fullmatch(r"[\da-f]{6}", colour):
        colour = f"#{colour}"
    return Style(color=None if colour == "default" else colour, bold=cell.bold, italic=cell.italics)


def terminal(words: Iterable[str], rows: list[Text]) -> str:
    """Draw a terminal in which a command was typed."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    command = f"ablate {' '.join(words)}"
    lines = [Text(f"$ {command}", "bold"), *rows]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
    svg = console.export_svg(title="", theme=THEME, code_format=SVG, unique_id="terminal")
    text = html.escape("\n".join(line.plain for line in lines), quote=False)
    return svg.replace("<desc></desc>", f"<desc>{text}</desc>", 1)


def described(svg: str) -> list[str]:
    """Return the text of a terminal's picture, without times, and the widths of columns of them."""
    [text] = DESCRIPTION.findall(svg)
    text = re.sub(r"(?<=left: about ).*", "", re.sub("─+", "─", html.unescape(text)))
    return [" ".join(line.split()) for line in steady(text.split("\n"))]


def typed(*words: str, cwd: Path) -> str:
    """Type a command, wait for its end, and draw the terminal."""
    with Screen(ABLATE, *words, cwd=cwd, height=60, FORCE_COLOR="1") as screen:
        screen.end()
        return terminal(words, [*screen_rows(screen)])


def table(folder: Path) -> str:
    """Draw the table of the quick start."""
    shutil.copytree(QUICK_START, folder / "quickstart")
    return typed("table", "--from", "quickstart", cwd=folder)


def plan(folder: Path) -> str:
    """Draw the plan of the quick start; its times are those of this machine."""
    return typed("plan", "quickstart", cwd=folder)


PROGRAM = """
import time
from pathlib import Path


def main(settings, run):
    width, here = settings["width"], Path(__file__).parent
    for step in range(10, 60, 10):
        run.log(step, train_loss=2.0 - step / 40 - 0.1 * width, accuracy=0.5 + step / 200)
    while width == 4 and (here / "second").exists() and not (here / "go").exists():
        run.progress(50)
        time.sleep(0.05)
    if width == 4:
        (here / "second").touch()
    run.result(accuracy=0.7 + 0.05 * width + 0.01 * (run.seed % 3))
"""
DECLARED = """
name: widths:main
keys: {width: 1}
metrics:
  accuracy: {direction: more, unit: "%", range: [0, 1]}
fork_safe: true
"""
SWEEP = """
title: How wide?
base: {trainer: widths}
seeds: 3
variants:
  - narrow: {}
  - medium: {trainer.width: 2}
  - wide: {trainer.width: 4}
"""


def status(folder: Path) -> str:
    """Draw the status of a sweep of a small program, while a run of its widest variant waits."""
    for name, text in {
        "widths.py": PROGRAM,
        "conf/trainer/widths.yaml": DECLARED,
        "sweeps/widths.yaml": SWEEP,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with Screen(ABLATE, "sweep", "widths", cwd=folder, height=20) as driving:
        driving.wait_for(lambda lines: any("wide#1 " in line and " 50 " in line for line in lines))
        words = ("status", "widths", "--watch")
        with Screen(ABLATE, *words, cwd=folder, FORCE_COLOR="1") as watching:
            watching.wait_for(lambda lines: any("wide#1 " in line for line in lines))
            picture = terminal(words, [*screen_rows(watching)])
            (folder / "go").touch()
            watching.end()
        driving.end()
        return picture


TERMINALS: dict[str, Callable[[Path], str]] = {"table": table, "plan": plan, "status": status}


def draw_terminals(names: Iterable[str] = tuple(TERMINALS)) -> Iterator[tuple[Path, str]]:
    """Yield the place and the content of each picture of a terminal."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            yield PICTURES / f"{name}.svg", TERMINALS[name](Path(folder))


def outdated(names: Iterable[str] = tuple(TERMINALS)) -> list[str]:
    """Return the pictures of terminals that no longer show what their commands print."""
    return [
        path.relative_to(REPOSITORY).as_posix()
        for path, svg in draw_terminals(names)
        if not is_shown(path, svg)
    ]


def is_shown(path: Path, svg: str) -> bool:
    """Return whether a committed picture has the text of a terminal's picture of today."""
    return path.exists() and described(path.read_text()) == described(svg)


# --- Figures ------------------------------------------------------------------------------------

PROBED = (
    *("stem=none,dpn", "model.patch=2,4", "--across", "model.patch"),
    *("data=digits", "recipe=quick", "probe=[scales,tokens]", "seeds=2", "--as", "probed"),
)


def draw_probed(folder: Path) -> None:
    """Train a small sweep, and draw the figures of probes that no bundle has."""
    environment = {**os.environ, "ABLATE_STORE": str(folder / "runs")}
    kinds = ("scales", "tokens")
    plots = (("plot", "probed", kind, "--out", str(PICTURES / f"{kind}.svg")) for kind in kinds)
    for words in (("sweep", *PROBED), *plots):
        subprocess.run([ABLATE, *words], cwd=folder, env=environment, check=True)


# --- Pages in a browser -------------------------------------------------------------------------


class _Unrecorded(Bundle):
    """A bundle that records no look: its table is read for a picture."""

    def add_look(self, look: Look) -> None:
        pass


def write_report(file: Path) -> None:
    """Write the report of the study."""
    bundle = _Unrecorded(STUDY)
    plan, histories = bundle.read_unsealed()
    results = bundle.recompute(plan, histories)
    runs = measured_records(plan, bundle, load_records(plan, bundle, histories))
    files = RunFiles(bundle.metrics, bundle.probe, bundle.predictions)
    reading = read_verdicts(plan, bundle, results, files=files)
    figures = draw_figures(plan, reading.table, bundle.rundir)
    file.write_text(render_page(plan, reading.table, runs, reading.looks, figures))


def shoot(browser: Browser, url: str, file: Path, ready: str, dark: bool = False) -> None:
    """Write the first screen of a page as a PNG of few colours.

    Raises ValueError where it is too large for a repository.
    """
    page = browser.open(url, width=1200, height=1000, dark=dark)
    page.until(ready)
    time.sleep(2)  # until charts are drawn
    shot = page.call("Page.captureScreenshot", format="png")["data"]
    page.close()
    with Image.open(io.BytesIO(base64.b64decode(shot))) as image:
        image.convert("RGB").quantize(128).save(file, optimize=True)
    if file.stat().st_size > MOST_BYTES:
        raise ValueError(f"{file.name}: {file.stat().st_size} bytes; at most {MOST_BYTES}")


@contextlib.contextmanager
def running(*words: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a command, and end it."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([ABLATE, *words], cwd=cwd, **pipes) as process:
        try:
            yield process
        finally:
            process.terminate()


def finished(folder: Path) -> int:
    """Return how many runs of the quick start have finished."""
    words = [ABLATE, "status", "quickstart", "--format", "json"]
    run = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    return json.loads(run.stdout)["states"].get("finished", 0) if run.returncode == 0 else 0


def shoot_live_page(browser: Browser, folder: Path) -> None:
    """Train a quick start, and picture its live page halfway and at the end."""
    with running("sweep", "quickstart", cwd=folder) as sweep:
        while not finished(folder):  # until then there may be no sweep to watch
            time.sleep(1)
        with running("watch", "quickstart", cwd=folder) as watch:
            assert watch.stdout is not None
            url = watch.stdout.readline().strip()
            while finished(folder) < 20:
                time.sleep(1)
            ready = "document.body.innerText.includes('patch whitening')"
            shoot(browser, url, PICTURES / "live.png", ready)
            shoot(browser, url, PICTURES / "live-dark.png", ready, dark=True)
            sweep.communicate()
            shoot(browser, url, PICTURES / "live-finished.png", ready)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the pictures of the pages.")
    parser.add_argument("--check", action="store_true", help="name outdated pictures instead")
    parser.add_argument("--only", choices=("terminals", "pages", "figures"), help="make these")
    options = parser.parse_args()
    if options.check:
        if old := outdated():
            sys.exit(f"outdated: {', '.join(old)}; type `make pictures`")
        return
    if options.only in (None, "pages") and shutil.which("chromium") is None:
        sys.exit("make pictures: no chromium here, for the pages; type `apt-get install chromium`")
    PICTURES.mkdir(exist_ok=True)
    if options.only in (None, "figures"):
        study_page.reprint(QUICK_START)
        for study in study_page.STUDIES:
            for part in study.parts:
                study_page.reprint(study.folder / part)
        with tempfile.TemporaryDirectory() as name:
            draw_probed(Path(name))
    if options.only in (None, "terminals"):
        for path, svg in draw_terminals():
            if not is_shown(path, svg):  # else only times would change
                path.write_text(svg)
    if options.only in (None, "pages"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            browser = Browser(folder / "chromium")
            try:
                write_report(folder / "report.html")
                url = (folder / "report.html").as_uri()
                shoot(browser, url, PICTURES / "report.png", "!!document.querySelector('table')")
                shoot_live_page(browser, folder)
            finally:
                browser.close()


if __name__ == "__main__":
    main()
