"""Where a drive comes from: its command, folder, host, and what git says of that folder."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

from ablate.shared import git
from ablate.shared.files import make_folder, write_whole

DIFF_BYTES = 1_000_000  # of a diff are kept
_SECRET = re.compile(r"\+*notify=")  # a word that may hold a token


def origin(diffs: Path) -> dict[str, Any]:
    """What every run of this drive notes of it, as JSON: command, folder, host, git.

    `git` is None outside a repository, or without git; else the commit, whether files that it
    tracks differ from it (`dirty`), and if so `diff`, the name of the file in the store that says
    how. Files that git doesn't track are no part of that: plug-ins have digests of their own.
    """
    return {
        "command": [Path(sys.argv[0]).name, *(w for w in sys.argv[1:] if not _SECRET.match(w))],
        "folder": os.getcwd(),
        "host": platform.node(),
        "git": _repository(diffs),
    }


def _repository(diffs: Path) -> dict[str, Any] | None:
    commit = git.ask("rev-parse", "HEAD")
    if commit is None:
        return None
    diff = git.ask("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")
    return {
        "commit": commit.decode().strip(),
        "dirty": None if diff is None else bool(diff),
        "diff": _keep(diff, diffs) if diff else None,
    }


def _keep(diff: bytes, diffs: Path) -> str:
    """Write the diff once, named by its content; a long one is cut, as its last line says."""
    path = diffs / f"{hashlib.sha256(diff).hexdigest()[:16]}.diff"
    if len(diff) > DIFF_BYTES:
        diff = diff[:DIFF_BYTES] + f"\n# cut: {DIFF_BYTES:,} of {len(diff):,} bytes\n".encode()
    if not path.exists():
        make_folder(diffs)
        write_whole(path, diff)
    return f"{diffs.name}/{path.name}"
