"""The pictures of the pages: each is shown somewhere, in words, too; those of terminals show what
the commands print today; the bundle behind the first one verifies."""

import re

import docs_pictures
import docs_site
import pytest
from conftest import REPOSITORY

from ablate.report.plot import FIGURE_KINDS

pytestmark = pytest.mark.whole

PAGES = (docs_site.HOME, docs_site.INDEX, *docs_site.listed_pages())
IMAGE = re.compile(r"!\[([^]]*)\]\(([^)]+)\)")


def images() -> dict[str, str]:
    """Return the pictures of all pages: place in the repository -> what it shows, in words."""
    return {
        (REPOSITORY / page)
        .parent.joinpath(place)
        .resolve()
        .relative_to(REPOSITORY)
        .as_posix(): text
        for page in PAGES
        for text, place in IMAGE.findall((REPOSITORY / page).read_text())
    }


def test_each_picture_is_small_shown_and_described_in_words():
    shown = images()
    for path in docs_pictures.PICTURES.iterdir():
        assert len(shown[path.relative_to(REPOSITORY).as_posix()].split()) > 4, path.name
        assert path.stat().st_size <= docs_pictures.MOST_BYTES, path.name
    assert all(shown.values())


def test_each_kind_of_figure_is_shown():
    page = (REPOSITORY / "docs" / "figures.md").read_text()
    shown = {place.rpartition("/")[2].removesuffix(".svg") for _, place in IMAGE.findall(page)}
    assert shown == {*re.findall(r"^## `(\w+)`", page, re.MULTILINE)}
    assert shown == FIGURE_KINDS.keys()


def test_a_picture_of_a_terminal_asks_no_other_host():
    for name in docs_pictures.TERMINALS:
        svg = (docs_pictures.PICTURES / f"{name}.svg").read_text()
        assert {*re.findall(r"https?://[^\s\"')]+", svg)} == {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("name", docs_pictures.TERMINALS)
def test_a_picture_of_a_terminal_shows_what_its_command_prints(name):
    assert docs_pictures.outdated([name]) == [], "make pictures"


def test_a_picture_with_another_number_is_outdated():
    svg = (docs_pictures.PICTURES / "table.svg").read_text()
    assert "+1.87" in docs_pictures.described(svg)[3]
    assert not docs_pictures.is_shown(
        docs_pictures.PICTURES / "table.svg", svg.replace("+1.87", "+1.88")
    )


def test_the_bundle_of_the_quick_start_verifies(ask):
    code, text = ask("verify", str(docs_pictures.QUICK_START))
    assert (code, "nothing wrong" in text) == (0, True), text
