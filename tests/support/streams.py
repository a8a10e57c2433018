"""A stream of proposals whose trainer takes no time: a score that is a number in its file plus a
draw of the seed's, so that every gain is known."""

from __future__ import annotations

import json
from pathlib import Path

from ablate.api import GateOptions, Stream
from ablate.store import Store, StreamFile, StreamRecord
from support.files import write_files

TRAINER = """
import random
from evaluation import evaluate

GAIN = {gain}
SPREAD = {spread}


def main(settings, run):
    draw = random.Random({seed}).gauss(0, 1)
    run.log(1, train_loss=1.0)
    run.result(score=evaluate(GAIN + settings["rate"] + SPREAD * draw), other=GAIN)
"""
EVALUATION = """
OFFSET = 0.0


def evaluate(value):
    return value + OFFSET
"""
YAML = """
name: toy:main
keys: {rate: 0.0, mode: {default: a, choices: [a, b]}}
metrics:
  score: {direction: more, range: [null, null], decimals: 3}
  other: {direction: more, range: [null, null]}
fork_safe: true
"""
WORDS = ("trainer=toy", "launcher=inline")


def write_trainer(folder: Path, gain: float = 0.0, spread: float = 1.0, seed: str = "run.seed"):
    """Write the code of a proposal into a folder."""
    content = TRAINER.format(gain=gain, spread=spread, seed=seed)
    write_files(folder, toy_py=content, evaluation_py=EVALUATION, conf__trainer__toy_yaml=YAML)


def start_stream(name: str = "idea", **options: object) -> Stream:
    """Start a stream of the code in the working folder."""
    return Stream.start(name, *WORDS, rules=GateOptions(**options))


def stream_events(kind: str | None = None) -> list[dict]:
    """The events of the stream in the working folder's store, or those of one kind."""
    content = Path("runs/streams/idea.jsonl").read_text()
    lines = [json.loads(line) for line in content.splitlines()]
    return [line for line in lines if kind in (None, line["kind"])]


def stream_record(name: str = "idea") -> StreamRecord:
    return StreamFile(Store(Path("runs")), name).record()
