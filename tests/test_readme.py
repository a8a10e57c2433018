"""The README is short, and its table the quick start's; its how-tos and those of docs/ work."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY
from pages import PAGES, README, blocks, commands

from ablate.planning import expand
from ablate.run import choices

TEXT = PAGES[README]
LAUNCHERS = "ablate/planning/launcher.py"
CHOICES, CLASSIFY = "ablate/run/choices.py", "ablate/run/metrics/classify.py"
TABLES = {  # where entries go: the file, and the line that a new one is put behind
    "NORMS": (CHOICES, "NORMS: dict[str, Choice] = {\n"),
    "STEMS": (CHOICES, "STEMS: dict[str, Choice] = {\n"),
    "PLACES": ("ablate/training/model/block.py", "PLACES = {\n"),
    "CLASSIFY": (
        CLASSIFY,
        '        Metric(*("loss", "test loss", "loss", "", "nats", 1.0, 4), math.log, sign=-1),\n',
    ),
    "score": (CLASSIFY, '        scores[name] = int((table["rank"] < rank).sum()) / number\n'),
    "LAUNCHERS": (LAUNCHERS, "LAUNCHERS: dict[str, Choice] = {\n"),
}


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 200


def test_the_table_is_that_of_the_quick_start():
    table = re.search(r"<!-- quickstart table -->(.*?)<!-- end -->", TEXT, re.DOTALL)[1]
    rows = re.findall(r"^\| ([^|*]+?) \| [\d.]+ \[", table, re.M)
    plan, _ = expand.plan_from_words(["quickstart"], store=Path("nowhere"))
    assert rows == [row.label for row in plan.rows]
    assert plan.title in table
    assert "UNFINISHED" not in table


def test_five_commands_are_shown_with_what_they_print():
    section = re.search(r"^## Five commands\n(.*?)^## ", TEXT, re.M | re.DOTALL)[1]
    plans, sweeps, states, tables, verifies = re.findall(
        r"```sh\nablate [^\n]*\n```\n```text\n(.*?)```", section, re.DOTALL
    )
    plan, _ = expand.plan_from_words(["quickstart"], store=Path("nowhere"))
    labels, number = [row.label for row in plan.rows], len(list(plan.runs()))
    assert f"{len(labels)} variants x {len(plan.seeds)} seeds = {number} runs" in plans
    assert f"{number} runs: " in states
    assert f"verified: {number} runs, " in verifies
    for text in (plans, sweeps, states, tables):
        assert any(label in text for label in labels)


ABLATE = (sys.executable, "-P", "-c", "from ablate.cli import main; main()")


def environment(sources):
    return {**os.environ, "PYTHONPATH": str(sources), "CUDA_VISIBLE_DEVICES": ""}


def rows(text: str) -> set[str]:
    """Labels of a Markdown table's rows with two finished runs."""
    return set(re.findall(r"^\| (.+?) \| [\d.]+ \[.* \| 2 \|", text, re.M))


def test_how_to_use_norms_of_ones_own(shell):
    """Those that `ablate new` writes, as the README has it, and those that a page shows."""
    assert ["new", "norm", "absnorm"] in commands(README)
    shell("new", "norm", "absnorm")
    names = []
    for page in (README, "docs/extending.md"):
        word = next(w for c in commands(page) for w in c if re.search(r"^norm=.*\w+:\w+", w))
        names.append(word.partition(",")[2])
    file = f"{names[-1].partition(':')[0]}.py"
    (shell.folder / file).write_text(blocks("file")[file])
    short = ["train.steps=3", "seeds=2", "launcher=inline"]
    norm = f"norm=layernorm,{','.join(names)}"
    done = shell("sweep", norm, "norm.power=2", *short, code=2)
    assert "norm.power: expected a key among" in done.err  # layernorm has none
    assert rows(shell("sweep", norm, *short).out) == {"layernorm", *names}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A copy of the sources in which every how-to of the pages was done."""
    home = tmp_path_factory.mktemp("followed") / "sources"
    for name in ("ablate", "conf", "sweeps"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, home / name, ignore=ignored)
    for name, text in blocks("file").items():
        if name.startswith("ablate"):
            assert not (home / name).exists(), f"{name}: the page makes it anew"
            (home / name).parent.mkdir(exist_ok=True)
            (home / name).write_text(text)
    for table, text in blocks("entry").items():
        file, line = TABLES[table]
        source = (home / file).read_text()
        assert source.count(line) == 1, f"{file} has no line {line!r}: the page says it has"
        (home / file).write_text(source.replace(line, line + text))
    for name, text in blocks("line").items():
        source, found = re.subn(rf"^{name} = .*\n", text, (home / CHOICES).read_text(), flags=re.M)
        assert found == 1
        (home / CHOICES).write_text(source)
    return home


@pytest.mark.whole
def test_how_to_add_a_norm_a_placement_a_stem_a_metric_and_a_task(shell, sources):
    words = ["norm=layernorm,mynorm", "stem=none,mystem", "block.attn=pre,all"]
    short = ("train.steps=12", "seeds=2", "launcher=inline")
    done = shell.several(
        ["sweep", *words, "--each", *short],
        ["table", "analysis.metric=top3", "--show", "accuracy,n,top1,top5"],
        ["verify"],
        ["sweep", "task=regress", "stem=none,mystem", *short],
        PYTHONPATH=str(sources),
    )
    assert [command.code for command in done] == [0] * 4, done
    swept, table, _, regressed = (command.out for command in done)
    assert {"base", "norm=mynorm", "stem=mystem", "block.attn=all"} <= rows(swept)
    assert len(list(shell.folder.glob("runs/runs/*/result.json"))) == 8 + 4
    assert "mynorm" not in choices.NORMS

    assert "| variant | top3 % | n | top1 % | top5 % |" in table
    means = re.findall(r"^\| [^|]+ \| ([\d.]+) \| 2 \| ([\d.]+) \| ([\d.]+) \|", table, re.M)
    assert len(means) == 4
    assert all(float(top1) < float(top3) < float(top5) for top3, top1, top5 in means)

    assert rows(regressed) == {"none", "mystem"}
    assert "| mae classes [95 % CI] |" in regressed


@pytest.mark.whole
def test_how_to_add_a_launcher_that_prints_commands(sources, tmp_path):
    """One of two commands is started by who reads them; a Ctrl-C gives up the other."""
    here = {"cwd": tmp_path, "env": environment(sources), "text": True}
    listed = subprocess.check_output([*ABLATE, "list", "launchers"], **here)
    assert re.search(r"^  print +prints the", listed, re.M)
    words = ("norm=layernorm,identity", "seeds=1", "train.steps=3")
    launcher = ("launcher=print", "launcher.at_once=2")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    lines, commands = [], []
    with subprocess.Popen([*ABLATE, "sweep", *words, *launcher], **here, **pipes) as driver:
        try:
            for line in driver.stdout:
                lines.append(line)
                if line.startswith("env "):
                    commands.append(line)
                    if len(commands) == 1:
                        subprocess.run(line, shell=True, check=True, **here)
                if line.startswith("finished: "):
                    driver.send_signal(signal.SIGINT)
        except BaseException:  # it would wait for commands that nobody starts
            driver.kill()
            raise
    assert driver.returncode == 130, "".join(lines)
    assert len(commands) == 2
    assert "stopped after 1 of 2; the same command goes on\n" in lines
    (result,) = tmp_path.glob("runs/runs/*/result.json")
    assert str(result.parent) in commands[0]
