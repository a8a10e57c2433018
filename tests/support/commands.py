"""Start and kill commands that one warm process forks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

# Each command is a process of its own, forked from one that has loaded what they load.
SERVER = """
import json, os, sys
import matplotlib.backends.backend_svg, pandas, pyarrow.parquet, rich.console, scipy.stats
from ablate import cli
from ablate.audit import bundle_check, export; from ablate.store import gc as collect
from ablate.report.plot import curves, gains

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        os.dup2(2, 1)
        sys.argv = ["ablate", *json.loads(line)]
        try:
            cli.main()
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(end.code or 0)
    print(pid, flush=True)
    sys.stdin.readline()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Server:
    """Runs commands in a folder; what they print is in its file `said`. `loads`: a statement that
    the warm process executes, too."""

    def __init__(self, folder: Path, loads: str = "") -> None:
        self.folder, self.said = folder, folder / "said"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with open(self.said, "wb") as said:
            words = [sys.executable, "-c", f"{loads}\n{SERVER}"]
            self.process = subprocess.Popen(words, cwd=folder, stderr=said, **pipes)

    def start(self, *words: str) -> int:
        """Start `ablate WORDS` and return its process id."""
        return self._ask(json.dumps(words))

    def end(self) -> int:
        """Wait for the command and return its exit code. Until then no other process has its id."""
        return self._ask("")

    def _ask(self, line: str) -> int:
        print(line, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def __call__(self, *words: str) -> float:
        """Run to the end, with exit code 0, and return the seconds that it took."""
        begun = time.monotonic()
        self.start(*words)
        assert self.end() == 0, self.said.read_text()[-3000:]
        return time.monotonic() - begun

    def killed(
        self, after: float, *words: str, seen: Path | None = None, codes: Collection[int] = (0,)
    ) -> bool:
        """Start a command and kill it after so many seconds, or as soon as the file `seen` exists,
        unless it has ended before, with one of the exit codes. Return whether it was killed."""
        pid, until = self.start(*words), time.monotonic() + after
        while time.monotonic() < until and not (seen and seen.exists()):
            time.sleep(0.0005)
        os.kill(pid, signal.SIGKILL)
        code = self.end()
        assert code in (*codes, -signal.SIGKILL)
        return code == -signal.SIGKILL
