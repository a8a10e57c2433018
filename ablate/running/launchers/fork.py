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
from collections.abc import Callable, Generator, Mapping
from typing import Any

from ablate.running.launchers import Progress
from ablate.shared.errors import Failure, NoRoom, UserError


class ForkServer:
    """One process that is started again where it died; what it forked lives on.

    `environment`: what its processes need in place before an interpreter starts. `died` is called
    when one is found dead.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, died: Callable[[], None] = lambda: None
    ) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.line: socket.socket | None = None  # to it, a packet a message; None: there is none
        self._environment, self._died = environment or {}, died

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.free()

    def open(self) -> socket.socket:
        """The line to it; one that does not run is started. It loads what it forks meanwhile."""
        if self.line is None:
            self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self.process = subprocess.Popen(
                    # -P: not what lies in this folder
                    [sys.executable, "-P", "-m", "ablate.running.launchers.server"],
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
    ) -> dict[str, Any]:
        """See Ask. A forked process answers, and ends when nobody listens any more.

        A server that dies before it forked that process is replaced once; it is not missed after.
        """
        for _ in range(2):
            # What libraries print goes to memory: a pipe would be full one day.
            with open(os.memfd_create("said"), "rb") as said:
                match self._asked(verb, question, said.fileno(), progress):
                    case {"answer": dict() as answer}:
                        return answer
                    case {"mistake": str() as line}:
                        raise UserError(line)
                    case {"full": str() as line, "needed": int() as needed}:
                        raise NoRoom(line, needed)
                    case {"failure": str() as line}:
                        raise Failure(line)
                    case None:
                        self.restart()
                    case _:  # it died over it
                        said.seek(0)
                        lines = said.read().decode(errors="replace").split("\n")
                        words = [line.strip() for line in lines if line.strip()]
                        raise Failure(f"worker {verb}: {(words or ['no word'])[-1]}")
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

    def _asked(
        self, verb: str, question: Mapping[str, Any], said: int, progress: Progress
    ) -> dict[str, Any] | None:
        """The last message of the process that answers; None: there was no such process."""
        last = None
        ours, theirs = socket.socketpair()
        with ours, contextlib.closing(_messages(ours)) as messages:
            with contextlib.suppress(OSError):  # a dead one; what it still said can be read
                with theirs:
                    self.tell({"ask": verb}, theirs.fileno(), said)
                ours.sendall(json.dumps(question).encode() + b"\n")
            for last in messages:
                if "total" in last:
                    progress(last["done"], last["total"])
        return last


def _messages(channel: socket.socket) -> Generator[dict[str, Any], None, None]:
    """A JSON object a line, until the other end is closed, by whichever death."""
    with channel.makefile("rb") as lines, contextlib.suppress(ConnectionError):
        for line in lines:
            if line.endswith(b"\n"):  # else it died on the way
                yield json.loads(line)
