"""The fork server as its driver has it: started at the first word to it, told, heard, asked.

It has torch loaded, so that the control half never does: starting an interpreter that imports torch
takes over a second, forking one takes milliseconds. The server is ours and not multiprocessing's:
that one makes every child import the command's main module again, and joins children at exit,
whereas our workers shall outlive their driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, BinaryIO

from ablate.running.launchers import Progress
from ablate.shared.errors import Failure, NoRoom, UserError

NOTHING_ELSE = 'what does more than define belongs under `if __name__ == "__main__":`'


class ForkServer:
    """One process that is started again where it died; what it forked lives on.

    `environment`: what its processes need in place before an interpreter starts. `died` is called
    when one is found dead. `tied`: workers are asked to stop when whoever started it dies.
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
        """Have it load what it forks, where it can be started; one that can't is told of later."""
        with contextlib.suppress(OSError):
            self.open()

    def open(self) -> socket.socket:
        """The line to it; one that does not run is started. It loads what it forks meanwhile."""
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
        """A request, and open files that go with it. Raises OSError where the server is dead."""
        socket.send_fds(self.open(), [json.dumps(request).encode()], files)

    def hear(self) -> dict[str, Any]:
        """Its next message, waited for. Raises OSError where the server is dead."""
        content = self.open().recv(1 << 16)
        if not content:
            raise BrokenPipeError
        message: dict[str, Any] = json.loads(content)
        return message

    def ask(
        self,
        verb: str,
        question: Mapping[str, Any],
        progress: Progress = lambda done, total: None,
        environment: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """See Ask. A forked process answers, and ends when nobody listens any more; `environment`
        is its own.

        A server that dies before it forked that process is replaced once; it is not missed after.
        """
        for _ in range(2):
            # What libraries print goes to memory: a pipe would be full one day.
            with (
                open(os.memfd_create("said"), "rb") as said,
                self._put(verb, question, said.fileno(), environment or {}) as channel,
            ):
                match _last(channel, progress):
                    case {"answer": dict() as answer}:
                        return answer
                    case {"mistake": str() as line}:
                        raise UserError(line)
                    case {"full": str() as line, "needed": int() as needed}:
                        raise NoRoom(line, needed)
                    case {"failure": str() as line}:
                        raise Failure(line)
                    case {"importing": str() as what} if what:
                        raise UserError(f"{what}: its import ends the process; {NOTHING_ELSE}")
                    case None:
                        self.restart()
                    case _:  # it died over it
                        raise Failure(f"worker {verb}: {_last_words(said)}")
        raise Failure(f"worker {verb}: the process that forks workers died, and another one, too")

    def restart(self) -> None:
        """After its death: it can no longer tell of its children, which live on."""
        self.free()
        self._died()

    def free(self, kill: bool = True) -> None:
        """It ends when the line does, or at once: it may still be loading."""
        if self.line is not None:
            self.line.close()
        if self.process is not None:
            if kill:
                self.process.kill()
            self.process.wait()
        self.line = self.process = None

    def ask_each(
        self,
        verb: str,
        question: Mapping[str, Any],
        environments: Mapping[str, Mapping[str, str]],
        within_s: float,
    ) -> dict[str, dict[str, Any] | str]:
        """Ask the same in each of these environments, at once: by name the answer, or why there is
        none. Time counts from when the first is at it, since a server may load for long."""
        answers: dict[str, dict[str, Any] | str] = {}
        with contextlib.ExitStack() as stack:
            asked = {}
            for name, environment in environments.items():
                said = stack.enter_context(open(os.memfd_create("said"), "rb"))
                put = self._put(verb, question, said.fileno(), environment)
                asked[name] = stack.enter_context(put), said
            over = None
            for name, (channel, said) in asked.items():
                if over is None:
                    with contextlib.suppress(ConnectionError):  # which is heard below
                        channel.recv(1, socket.MSG_PEEK)
                    over = time.monotonic() + within_s
                channel.settimeout(max(0.01, over - time.monotonic()))
                try:
                    match _last(channel):
                        case {"answer": dict() as answer}:
                            answers[name] = answer
                        case {"mistake": str() as line} | {"failure": str() as line}:
                            answers[name] = line
                        case _:
                            answers[name] = f"the process died over it ({_last_words(said)})"
                except TimeoutError:
                    answers[name] = f"no answer in {within_s:g} s"
        return answers

    def _put(
        self, verb: str, question: Mapping[str, Any], said: int, environment: Mapping[str, str]
    ) -> socket.socket:
        """A question; what is said of it comes from this socket."""
        ours, theirs = socket.socketpair()
        with contextlib.suppress(OSError):  # a dead one; what it still said can be read
            with theirs:
                self.tell({"ask": verb, "environment": {**environment}}, theirs.fileno(), said)
            ours.sendall(json.dumps(question).encode() + b"\n")
        return ours


def _last(
    channel: socket.socket, progress: Progress = lambda done, total: None
) -> dict[str, Any] | None:
    """The last message of the process that answers; None: there was no such process."""
    last = None
    with contextlib.closing(_messages(channel)) as messages:
        for last in messages:
            if "total" in last:
                progress(last["done"], last["total"])
    return last


def _last_words(said: BinaryIO) -> str:
    """Of a process that died."""
    said.seek(0)
    lines = said.read().decode(errors="replace").split("\n")
    return ([line.strip() for line in lines if line.strip()] or ["no word"])[-1]


def _messages(channel: socket.socket) -> Generator[dict[str, Any], None, None]:
    """A JSON object a line, until the other end is closed, by whichever death."""
    with channel.makefile("rb") as lines, contextlib.suppress(ConnectionError):
        for line in lines:
            if line.endswith(b"\n"):  # else it died on the way
                yield json.loads(line)
