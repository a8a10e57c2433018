"""A command at a terminal, as a person sees it: a process on a pseudoterminal of a given size, and
the screen that an emulator of terminals (pyte) makes of what it sends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte

VARIES = (  # what differs from time to time, as patterns
    r"(?<=time left: ).*",
    r"(?<=left: about ).*(?= on)",
    r"(?<=\()(ended|not driven|driven by process \d+)(?=\))",
    r"(\d+ min )?\d+ s$",  # of a run that finished
    r" +(\d+ min )?\d+ s\b",  # in a column
    r" +\d+\.\dx",
)


def _on_one_core() -> None:
    """Give a sweep one slot on every machine."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class Screen:
    """A command whose terminal has `width` x `height` characters."""

    def __init__(
        self, *words: str, cwd: Path, width: int = 80, height: int = 24, **environment: str
    ) -> None:
        self.screen = pyte.HistoryScreen(width, height, history=10_000, ratio=0.5)
        self.sent = b""
        self._stream = pyte.ByteStream(self.screen)
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", height, width, 0, 0))
        unset = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
        inherited = {name: value for name, value in os.environ.items() if name not in unset}
        self.process = subprocess.Popen(
            words,
            cwd=cwd,
            **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
            env={**inherited, "TERM": "xterm-256color", **environment},
            start_new_session=True,
            preexec_fn=_on_one_core,
        )
        os.close(theirs)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *error: object) -> None:
        """End a command that is still there, as a closed window does."""
        with contextlib.suppress(OSError):  # closed by `end`
            os.close(self._ours)
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)

    def wait_for(self, seen: Callable[[list[str]], object], seconds: float = 120) -> list[str]:
        """Return what stands there, scrolled off or not, once `seen` holds of it and the drawing is
        whole: nothing has come for a moment."""
        deadline = time.monotonic() + seconds
        while not seen(self.lines()) or self._is_sending():
            assert time.monotonic() < deadline, "\n".join(["waited in vain", *self.lines()])
            if not self._read(1):
                assert seen(self.lines()), "\n".join(["ended", *self.lines()])
                break
        return self.lines()

    def _is_sending(self) -> bool:
        return bool(select.select([self._ours], [], [], 0.1)[0])

    def end(self, code: int = 0) -> list[str]:
        """Wait for the command's end and return what it left, with what scrolled off above."""
        while self._read(120):
            pass
        assert self.process.wait(60) == code, "\n".join(self.lines())
        return self.lines()

    def _read(self, seconds: float) -> bool:
        """Feed the emulator what comes within that time. False: the terminal is closed."""
        if select.select([self._ours], [], [], seconds)[0]:
            chunk = b""
            with contextlib.suppress(OSError):  # EIO: no process has its end open
                chunk = os.read(self._ours, 1 << 16)
            self.sent += chunk
            self._stream.feed(chunk)
            return bool(chunk)
        return True

    def lines(self) -> list[str]:
        """Return all lines from the first that scrolled off to the last that is not empty."""
        width = self.screen.columns
        above = ["".join(row[at].data for at in range(width)) for row in self.screen.history.top]
        return (
            "\n".join(text.rstrip() for text in (*above, *self.screen.display)).rstrip().split("\n")
        )

    @property
    def cursor_shown(self) -> bool:
        return not self.screen.cursor.hidden

    @property
    def colours(self) -> set[str]:
        """The colours of letters on the screen but the default."""
        cells = (cell for row in self.screen.buffer.values() for cell in row.values())
        return {cell.fg for cell in cells} - {"default"}


def steady(lines: list[str]) -> list[str]:
    """Replace times and who drives by marks, which in columns have the same width."""
    for pattern in VARIES:
        lines = [re.sub(pattern, _mark, line) for line in lines]
    return lines


def _mark(found: re.Match[str]) -> str:
    return "~".rjust(len(found[0])) if found[0].startswith(" ") else "~"
