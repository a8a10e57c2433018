"""The driver's side of the fork server, a process that starts workers and answers questions.

The server loads torch once, so that the control half never does: starting an interpreter that
imports torch takes over a second, forking one takes milliseconds. It is not multiprocessing's,
which makes every child import the command's main module again, and joins children at exit: our
workers must outlive their driver.

Datasets are decoded and checked through it before anything trains.

Used by the launchers (launchers/local.py, launchers/pilots.py), and by `ablate data prepare`,
`doctor` and `export --weights` (cli/). The other end is launchers/server.py: a change of the
requests needs both; a new question also needs its answer in training/answers.py.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ablate.run import (
    META_FILE,
    SPLITS,
    RunSpec,
    decoded,
    decoding_facts,
    decoding_words,
    first_of_lines,
)
from ablate.running.launchers import Ask, Progress, Slot, Tree, silent
from ablate.shared import (
    Failure,
    NoRoom,
    UserError,
    read_json,
)

LONG_CHECK_BYTES = 4 << 30  # of a set of data, which take seconds to check
KERNEL_S = 120.0  # until a GPU that runs no kernel is taken for one that hangs; libraries load, too
NOTHING_ELSE = 'what does more than define belongs under `if __name__ == "__main__":`'


class ForkServer:
    """A process that forks workers, and is started again where it died; the workers that it forked
    live on.

    `environment`: variables that its processes need before an interpreter starts. `died` is called
    when the process is found dead. `tied`: workers are asked to stop when the process that started
    the server dies.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        died: Callable[[], None] = lambda: None,
        tied: bool = False,
    ) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.line: socket.socket | None = None  # to it, a packet a message; None: there is none
        self._environment, self._died = environment or {}, died
        self._words = ["tied"] if tied else []

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.free()

    def warm(self) -> None:
        """Let the server load torch, where it can be started. A failure is reported later, when it
        is used."""
        with contextlib.suppress(OSError):
            self.tell({"load": "torch"})

    def open(self) -> socket.socket:
        """Return the socket to the server; start the server if it does not run."""
        if self.line is None:
            self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self.process = subprocess.Popen(
                    # -P: not what lies in this folder
                    [sys.executable, "-P", "-m", "ablate.running.launchers.server", *self._words],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,  # the terminal's Ctrl-C is the driver's to handle
                    env={**os.environ, **self._environment},
                )
        return self.line

    def tell(self, request: Mapping[str, Any], *files: int) -> None:
        """Send a request, and open files that go with it. Raises OSError where the server is
        dead."""
        socket.send_fds(self.open(), [json.dumps(request).encode()], files)

    def hear(self) -> dict[str, Any]:
        """Wait for its next message. Raises OSError where the server is dead."""
        content = self.open().recv(1 << 16)
        if not content:
            raise BrokenPipeError
        message: dict[str, Any] = json.loads(content)
        return message

    def ask(
        self,
        verb: str,
        question: Tree,
        progress: Progress = silent,
        environment: Tree | None = None,
    ) -> dict[str, Any]:
        """Ask the training half a question: see Ask. A forked process answers, and ends when nobody
        listens any more; `environment` is its own.

        A server that dies before it forked that process is replaced once.
        """
        for _ in range(2):
            with self._put(verb, question, environment or {}) as exchange:
                match exchange.last_message(progress):
                    case {"answer": dict() as answer}:
                        return answer
                    case {"mistake": str() as line}:
                        raise UserError(line)
                    case {"full": str() as line, "needed": int() as bytes_needed}:
                        raise NoRoom(line, bytes_needed)
                    case {"failure": str() as line}:
                        raise Failure(line)
                    case {"importing": str() as module} if module:
                        raise UserError(f"{module}: its import ends the process; {NOTHING_ELSE}")
                    case None:
                        self.restart()
                    case _:  # it died over it
                        raise Failure(f"worker {verb}: {exchange.last_words()}")
        raise Failure(f"worker {verb}: the process that forks workers died, and another one, too")

    def unfit(self, slots: Sequence[Slot]) -> dict[str, str]:
        """Find the slots whose devices can't be used: see Launcher. Each GPU is tried once, however
        many groups it is in."""
        gpus = {slot.name: slot.visible.split(",") for slot in slots if slot.visible is not None}
        places = {
            gpu: {"CUDA_VISIBLE_DEVICES": gpu} for visible in gpus.values() for gpu in visible
        }
        if not places:
            return {}
        answers = self.ask_each("kernel", {"device": "cuda"}, places, KERNEL_S)
        reasons = {gpu: a if isinstance(a, str) else a["why"] for gpu, a in answers.items()}
        return {
            name: next(filter(None, map(reasons.get, visible)))
            for name, visible in gpus.items()
            if any(map(reasons.get, visible))
        }

    def ask_each(
        self, verb: str, question: Tree, environments: Mapping[str, Tree], within_s: float
    ) -> dict[str, dict[str, Any] | str]:
        """Ask the same question in each of these environments, at once. Returns by name the answer,
        or a line that says why there is none.

        `within_s` counts from the moment when the first process begins, since a server may load for
        long.
        """
        answers: dict[str, dict[str, Any] | str] = {}
        with contextlib.ExitStack() as stack:
            questions = {
                name: stack.enter_context(self._put(verb, question, environment))
                for name, environment in environments.items()
            }
            until = None
            for name, exchange in questions.items():
                if until is None:
                    with contextlib.suppress(ConnectionError):  # which is heard below
                        exchange.channel.recv(1, socket.MSG_PEEK)
                    until = time.monotonic() + within_s
                exchange.channel.settimeout(max(0.01, until - time.monotonic()))
                try:
                    match exchange.last_message():
                        case {"answer": dict() as answer}:
                            answers[name] = answer
                        case {"mistake": str() as line} | {"failure": str() as line}:
                            answers[name] = line
                        case _:
                            answers[name] = f"the process died over it ({exchange.last_words()})"
                except TimeoutError:
                    answers[name] = f"no answer in {within_s:g} s"
        return answers

    @contextlib.contextmanager
    def _put(self, verb: str, question: Tree, environment: Tree) -> Iterator[_Question]:
        """Send a question. The output of libraries goes to memory meanwhile: a pipe would fill
        up."""
        ours, theirs = socket.socketpair()
        with ours, open(os.memfd_create("output"), "rb") as output:
            with contextlib.suppress(OSError):  # a dead one; what it still said can be read
                with theirs:
                    request = {"ask": verb, "environment": {**environment}}
                    self.tell(request, theirs.fileno(), output.fileno())
                ours.sendall(json.dumps(question).encode() + b"\n")
            yield _Question(ours, output)

    def restart(self) -> None:
        """Give up a dead server, which can no longer report on its children; these live on."""
        self.free()
        self._died()

    def free(self, kill: bool = True) -> None:
        """End the server. It ends when its socket closes; `kill` ends it at once, as it may still
        be loading."""
        if self.line is not None:
            self.line.close()
        if self.process is not None:
            if kill:
                self.process.kill()
            self.process.wait()
        self.line = self.process = None


class _Question(NamedTuple):
    """A question that was sent. `channel`: the socket to the process that answers; `output`: what
    it prints."""

    channel: socket.socket
    output: BinaryIO

    def last_message(self, progress: Progress = silent) -> dict[str, Any] | None:
        """Return the last JSON object, one a line, that came before the other end closed, whatever
        closed it; None where there was no such process."""
        newest: dict[str, Any] | None = None
        with self.channel.makefile("rb") as lines, contextlib.suppress(ConnectionError):
            for line in lines:
                if line.endswith(b"\n"):  # else it died on the way
                    newest = message = json.loads(line)
                    if "total" in message:
                        progress(message["done"], message["total"])
        return newest

    def last_words(self) -> str:
        """Return the last line that the process printed before it died."""
        self.output.seek(0)
        lines = self.output.read().decode(errors="replace").split("\n")
        return ([line.strip() for line in lines if line.strip()] or ["no word"])[-1]


def decode_data(specs: Iterable[RunSpec], store: Path, watching: Any, ask: Ask) -> None:
    """Check the decoded datasets of specs, or decode them: once a drive.

    Raises UserError for a bad image, for a set of `eval.also` whose classes are not those that are
    learnt, and as `data_remarks` does; else as `ask` does.
    """
    specs = list(specs)
    for data in {
        dataset["fingerprint"]: dataset for spec in specs for dataset in spec.datasets
    }.values():
        _decode(data, store, watching, ask)
    pairs = {}
    for spec in specs:
        for also in spec.also:
            data = spec.tree["data"]
            key = data["fingerprint"], also["fingerprint"]
            pairs[key] = data, also, "text" in spec.tree
    for training_set, also, texts in pairs.values():
        question = {
            "data": training_set,
            "other": also,
            "texts": texts,
            "cache": str(store / "cache"),
        }
        answer = ask("beside", question)
        if answer["line"]:
            watching.say(answer["line"])
        if answer["shared"] and "error" in (training_set.get("overlap"), also.get("overlap")):
            raise UserError(
                f"data.overlap: eval.also: {also['name']}: {answer['shared']:,} of its images are "
                f"training images of data={training_set['name']}; remove them, or give "
                f"data.overlap=say"
            )


def _decode(data: Mapping[str, Any], store: Path, watching: Any, ask: Ask) -> None:
    cache = store / "cache"
    check_data(data, store, watching.say)
    new = not (cache / data["fingerprint"] / META_FILE).exists()
    if new:
        question = {"data": data, "cache": str(cache)}
        ask("prepare", question, functools.partial(watching.reading, data["name"]))
    for line in data_remarks(data, store):
        if new:
            watching.say(line)


def data_remarks(data: Mapping[str, Any], store: Path) -> list[str]:
    """List remarks on a decoded dataset: images that are left out, or are in two splits.

    Raises UserError for images in two splits if `data.overlap` is "error".
    """
    meta = read_json(store / "cache" / data["fingerprint"] / META_FILE)
    lines = {
        key: f"data={data['name']}: {text}"
        for key, text in decoding_words(decoding_facts(meta)).items()
    }
    if "overlap" in lines and data.get("overlap") == "error":
        raise UserError(
            f"data.overlap: {lines['overlap']}; remove the images, or give data.overlap=say"
        )
    if "left_out" in lines:
        names = [name for split in SPLITS for name in meta["left_out"].get(split, ())]
        lines["left_out"] += f": {first_of_lines(list(dict.fromkeys(names)))}"
    return [*lines.values()]


def check_data(data: Mapping[str, Any], store: Path, say: Callable[[str], None]) -> None:
    """Check a decoded dataset against its hashes. A damaged one is discarded, and runs that are
    half trained on it start again."""
    fingerprint, cache = data["fingerprint"], store / "cache"
    home = cache / fingerprint
    if not home.is_dir():
        return
    if (size := decoded.size(home)) > LONG_CHECK_BYTES:
        say(f"data={data['name']}: checking its {size / 1e9:,.0f} GB")
    wrong = decoded.damage(home)
    if wrong is None:
        return
    say(f"data={data['name']}: {home}: {wrong}; decoding it again")
    decoded.begin_again(store / "runs", fingerprint)
    decoded.discard(cache, fingerprint)
