"""Where `--out` points: a file, or a pipe or device that what is made is written to."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from ablate.shared.errors import UserError, unknown


def check_out(path: Path, formats: Sequence[str]) -> str:
    """The format that the file's ending names; the first for what is no file, such as /dev/stdout.

    Raises UserError for another ending, for a folder, and where no file can be.
    """
    if _is_stream(path):
        return formats[0]
    real = Path(os.path.realpath(path))
    if real.is_dir() or not real.parent.is_dir():
        raise UserError(f"--out: {path}: name a file in a folder that exists")
    format = real.suffix.removeprefix(".").lower()
    if format not in formats:
        raise unknown(f"--out: {path}", format, formats, "a file that ends in one of")
    return format


def write_out(path: Path, content: bytes) -> bool:
    """Write a file whole, behind a link to it; into what is no file write through. Was it a file?

    Nothing but a file may be replaced by a rename: the name of a device is everybody's.
    """
    from ablate.shared.files import write_whole

    if _is_stream(path):
        with open(path, "wb") as stream:
            stream.write(content)
        return False
    write_whole(Path(os.path.realpath(path)), content)
    return True


def _is_stream(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
