"""Signals that end a command, noted for whoever looks."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def noted(*numbers: signal.Signals) -> Iterator[list[int]]:
    """Those of the signals that came meanwhile; the handlers before are put back.

    What this process was started to ignore stays ignored: SIGHUP under `nohup`, SIGINT in the
    background of a script.
    """
    heard: list[int] = []
    listening = [s for s in numbers if signal.getsignal(s) is not signal.SIG_IGN]
    before = {s: signal.signal(s, lambda s, _: heard.append(s)) for s in listening}
    try:
        yield heard
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
