"""Questions to git about the folder that we are in."""

from __future__ import annotations

import os
import subprocess

LIMIT_S = 10.0  # a question that takes longer is given up


def ask(*words: str, cwd: str | os.PathLike[str] | None = None) -> bytes | None:
    """Return git's answer; None outside a repository, without git, or past the limit."""
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # we only look
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
