"""A program that trains, its declaration as a trainer, and what its runs left behind."""

from __future__ import annotations

import json
import random
import shlex
from pathlib import Path

# Its loss is a function of rate, seed and steps, which tests compute. It saves at every step.
TRAIN = """
import json, os, random, sys, time
from argparse import ArgumentParser

parser = ArgumentParser()
kinds = dict(lr=float, seed=int, steps=int, out=str, resume=str, act=str, pause=float)
for name, kind in kinds.items():
    parser.add_argument(f"--{name}", type=kind)
args = parser.parse_args()
step, loss = 0, 4.0
if args.resume:
    step, loss = json.load(open(args.resume))
    print("went on after step", step)
curve = open(f"{args.out}/log.csv", "a")
if not step:
    curve.write("step,train_loss,loss,note\\n")
while step < args.steps:
    draw = random.Random(f"{args.seed} {step}").random()
    loss = loss * (1 - args.lr) + draw / 10 - (args.act == "tanh")
    step += 1
    print(step, loss, file=curve, sep=",", end=f",{loss + 1},fine\\n", flush=True)
    json.dump([step, loss], open(f"{args.out}/new", "w"))
    os.replace(f"{args.out}/new", f"{args.out}/last.json")
    time.sleep(args.pause)
print("the loss is", loss)
json.dump(dict(loss=loss, n=7), open(f"{args.out}/result.json", "w"))
"""
COMMAND = (
    "python train.py --lr {lr} --act {act} --seed {seed} --steps {steps} --pause {pause} "
    "--out {folder}"
)
YAML = {
    "command": COMMAND,
    "keys": {
        **{"lr": 0.1, "steps": 3, "pause": 0.0},
        "act": {"default": "gelu", "choices": ["gelu", "tanh"]},
    },
    "result": {"file": "result.json"},
    "metrics": {"loss": {"direction": "less"}},
    "curves": {"file": "log.csv"},
    "code": ["train.py"],
}


def declare(folder: Path, *without: str, name: str = "toy", **changes: object) -> None:
    """Declare the program as a trainer: write conf/trainer/NAME.yaml, as JSON, which is YAML."""
    said = {key: value for key, value in {**YAML, **changes}.items() if key not in without}
    (folder / "conf" / "trainer").mkdir(parents=True, exist_ok=True)
    (folder / "conf" / "trainer" / f"{name}.yaml").write_text(json.dumps(said))


def expected_loss(lr: float, seed: int, steps: int = 3, act: str = "gelu") -> float:
    """Compute the loss that `TRAIN` comes to."""
    loss = 4.0
    for step in range(steps):
        draw = random.Random(f"{seed} {step}").random()
        loss = loss * (1 - lr) + draw / 10 - (act == "tanh")
    return loss


def results(folder: Path) -> dict[str, dict]:
    """Read the results of the store in `folder`/runs, by run."""
    found = sorted((folder / "runs" / "runs").glob("*/result.json"))
    return {path.parent.name: json.loads(path.read_text()) for path in found}


def attempts(folder: Path) -> list[dict]:
    """Read the attempts of all runs of the store in `folder`/runs."""
    found = sorted((folder / "runs" / "runs").glob("*/env.json"))
    return [each for path in found for each in json.loads(path.read_text())["attempts"]]


RESUMES = {"resume": "--resume {folder}/last.json"}


def filled(declared: dict, typed: list[str]) -> list[str]:
    """The words of the yaml's command with its defaults. The seed and the folder are those of the
    typed command."""
    values = {}
    for key, declaration in declared["keys"].items():
        value = declaration["default"] if isinstance(declaration, dict) else declaration
        if isinstance(declaration, dict) and "flag" in declaration:
            value = declaration["flag"]
        values[key] = str(value).lower() if isinstance(value, bool) else value
    words = []
    for place, word in enumerate(shlex.split(declared["command"])):
        if word.startswith("{*"):
            words += map(str, values[word[2:-1]])
        elif "{seed}" in word or "{folder}" in word:
            words.append(typed[len(words)])
            assert word.partition("{")[0] == words[-1][: len(word.partition("{")[0])], place
        else:
            words.append(word.format(**values))
    return words


def number(word: str) -> object:
    key, equals, value = word.rpartition("=")
    try:
        return key, equals, float(value)
    except ValueError:
        return word
