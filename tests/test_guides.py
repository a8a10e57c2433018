"""The tutorials, how-to pages and concepts do what they say: each is typed in an empty folder, and
prints what the page shows. They train for some minutes, so they run with the tour."""

import guides
import pytest
from pages import PAGES

GUIDES = [page for page in PAGES if page.startswith(guides.FOLDERS)]


@pytest.mark.tour
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", GUIDES)
def test_a_page_prints_what_it_shows(page, tmp_path):
    missing = {
        tuple(step.typed): step.missing()
        for step in guides.typed(PAGES[page], tmp_path)
        if step.missing()
    }
    assert missing == {}


def test_numbers_may_differ_and_words_may_not():
    step = guides.Step(printed=" base   91.3 %  [90, 92]\nleft: 3 s on 2 slots, a minute\n")
    step.shown = ["base 4.5 % [+1.00, 2]", "left: 10 s on 8 ...", "..."]
    assert step.missing() == []
    step.shown = ["base 4.5 % [+1.00, 2] helps", "right: 10 ..."]
    assert step.missing() == step.shown


def test_an_edit_is_applied_where_its_old_lines_are():
    assert guides.edited("a\nb\n", " a\n-b\n+c\n") == "a\nc\n"
    with pytest.raises(AssertionError):
        guides.edited("a\nb\n", "-c\n+d\n")
