"""The manual as data: README.md, the pages of docs/, their commands, and the files that they show.

Commands are the `ablate ...` lines of ```sh blocks, files the blocks behind `<!-- file: PATH -->`,
entries of tables those behind `<!-- entry: TABLE -->`.
"""

from __future__ import annotations

import re
import shlex

from conftest import REPOSITORY
from docs_site import HOME as README
from docs_site import INDEX, listed_pages

STUDIES = "docs/studies/"  # whose commands need CIFAR-10; test_study.py reads their pages


def _text(page: str) -> str:
    return (REPOSITORY / page).read_text()


def _pages() -> dict[str, str]:
    """Path -> text: the README, the index, then the pages in the order of the index."""
    order = [page for page in listed_pages() if not page.startswith(STUDIES)]
    return {page: _text(page) for page in (README, INDEX, *order)}


PAGES = _pages()


def blocks(marker: str) -> dict[str, str]:
    """what the marker names -> the code block behind it, over all pages; none is shown twice."""
    pattern = rf"<!-- {marker}: (\S+) -->\n```\w+\n(.*?)```"
    found = [pair for text in PAGES.values() for pair in re.findall(pattern, text, re.DOTALL)]
    assert found
    assert len(dict(found)) == len(found)
    return dict(found)


def commands(page: str) -> list[list[str]]:
    """Every `ablate ...` line of a page's sh blocks, in order, as words; a `> FILE` is left out."""
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", PAGES[page], re.DOTALL)).splitlines()
    typed = (line.partition(" > ")[0] for line in lines if line.startswith("ablate "))
    return [shlex.split(line, comments=True)[1:] for line in typed]
