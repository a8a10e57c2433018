"""`ablate new trainer` on command lines of the shapes that READMEs of public projects have.

Each yaml plays its command back, with the words that were meant as placeholders, and the sweep that
it proposes can be planned.
"""

import shlex
from pathlib import Path

import pytest
import yaml
from support.programs import filled, number

# As typed, the command of the yaml, and the words of the first sweep.
FILE = Path(__file__).with_name("golden") / "readme_commands.txt"
BLOCKS = [block.strip().split("\n") for block in FILE.read_text().split("\n\n")]
COMMANDS = {typed.removeprefix("$ "): answers for typed, *answers in BLOCKS}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_readme_s_command_is_played_back(shell, command):
    out = shell("new", "trainer", command, "--as", "mine").out
    declared = yaml.safe_load(Path(shell.folder, "conf/trainer/mine.yaml").read_text())
    template, first_sweep = COMMANDS[command]
    assert declared["command"] == template
    typed = shlex.split(command)[len(declared.get("env", {})) :]
    assert [*map(number, filled(declared, typed))] == [*map(number, typed)]
    notes = [line for line in out.splitlines() if line.startswith("note: ")]
    has_seed = "{seed}" in template
    assert ("{seed}" in "".join(notes)) == (not has_seed)
    assert ("{folder}" in "".join(notes)) == ("{folder}" not in template)
    assert out.splitlines()[-1].endswith(f"trainer=mine {first_sweep}")


def test_lines_that_a_backslash_continues_are_one_command(shell):
    """As READMEs print them; the yaml stays a yaml."""
    shell("new", "trainer", "python train.py \\\n    --lr 0.1 \\\n    --seed 3\n")
    declared = yaml.safe_load(Path(shell.folder, "conf/trainer/train.yaml").read_text())
    assert declared["command"].split()[2:] == ["--lr", "{lr}", "--seed", "{seed}"]
    assert declared["keys"] == {"lr": 0.1}


@pytest.mark.whole
def test_the_sweep_that_is_proposed_can_be_planned(shell):
    shell.folder.joinpath("train.py").write_text("print('loss=1')")
    commands = ("python train.py --drop 0.0 --device 0", "python train.py --n 0 --v -1")
    for name, command in zip(("zero", "negative"), commands, strict=True):
        out = shell("new", "trainer", command, "--as", name).out
        shell(*shlex.split(out.splitlines()[-1].partition("ablate ")[2]))
