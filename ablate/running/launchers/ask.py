"""Questions that only the training half can answer, JSON both ways.

`python -m ablate.training.worker VERB` answers: a process of its own, so that the control half
never loads torch.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

from ablate.shared.errors import Failure, UserError


class NoRoom(Failure):
    """The disk is full. `needed`: bytes that there would have to be; 0 where that is not known."""

    needed: int = 0


def ask(
    verb: str,
    question: dict[str, Any],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """The worker's answer. `progress(done, total)` is called as it reports.

    Raises UserError with the worker's line for the user's mistakes, NoRoom where the disk is full,
    Failure for anything else.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "ablate.training.worker", verb],  # -P: not what lies here
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    said: list[str] = []
    listener = threading.Thread(target=_listen, args=(process.stderr, progress, said))
    try:  # also of its start: a Ctrl-C there would leave a thread that waits for a worker's end
        listener.start()
        # Closed at once: the worker reads to the end. One that died early said why elsewhere.
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(question).encode())
        answer = process.stdout.read()
        code = process.wait()
    except BaseException:
        process.terminate()
        raise
    finally:
        if listener.ident is not None:
            listener.join()
        for pipe in (process.stdout, process.stderr):
            pipe.close()
    if code == 0:
        result: dict[str, Any] = json.loads(answer)
        return result
    if not answer:
        raise Failure(f"worker {verb}: {(said or ['no word'])[-1]}")
    told: dict[str, Any] = json.loads(answer)
    if code == 2:
        raise UserError(told["error"])
    full = NoRoom(told["error"])
    full.needed = told["needed"]
    raise full


def _listen(pipe: IO[bytes], progress: Callable[[int, int], None], said: list[str]) -> None:
    """Progress lines to `progress`; whatever else is printed is kept for the error message."""
    for line in pipe:
        text = line.decode(errors="replace").rstrip()
        try:
            report = json.loads(text)
            progress(report["done"], report["total"])
        except (ValueError, KeyError, TypeError):
            if text:
                said.append(text)
