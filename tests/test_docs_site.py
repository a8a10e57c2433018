"""The documentation site: it shows what GitHub shows, it is strict, and a browser can read and
search it at the width of a phone and of a desk, in the light and in the dark."""

import functools
import http.server
import re
import threading
from collections import Counter
from html.parser import HTMLParser
from types import SimpleNamespace

import docs_site
import pytest
from conftest import REPOSITORY
from markdown_it import MarkdownIt

PAGES = [docs_site.HOME, docs_site.INDEX, *docs_site.listed_pages()]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return docs_site.build(tmp_path_factory.mktemp("docs"))


def built(page: str) -> str:
    """Return the place of a page of the repository in the site."""
    return re.sub(r"README\.md$", "index.md", page).removesuffix("md") + "html"


# --- What it shows ------------------------------------------------------------------------------


class Shown(HTMLParser):
    """What a reader sees of HTML: its text without spaces, and how often each element stands."""

    COUNTED = ("li", "ul", "ol", "table", "tr", "td", "pre", "h1", "h2", "h3", "h4", "em", "img")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.counts[tag] += tag in self.COUNTED

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        """The text; a star may make a word bold in one and not in the other."""
        return re.sub(r"[\s¶*]+", "", "".join(self.words))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_github_shows(site, page):
    """GitHub's Markdown is that of another parser, which is the oracle."""
    [article] = re.findall(r"<article.*?</article>", (site / built(page)).read_text(), re.DOTALL)
    ours, theirs = Shown(article), Shown(GITHUB.render((REPOSITORY / page).read_text()))
    assert ours.counts == theirs.counts
    assert ours.text == theirs.text


GITHUB = MarkdownIt("gfm-like", {"linkify": False})


def test_the_navigation_has_every_page_in_its_group(site):
    home = (site / "index.html").read_text()
    for group, pages in docs_site.groups().items():
        assert pages, group
        assert f">{group}<" in re.sub(r"\s+", "", home)
        for page in pages.values():
            assert re.search(rf'href="(\./)?{re.escape(built(page))}"', home), page
    assert [*docs_site.groups()] == ["Tutorials", "How-to", "Concepts", "Reference"]


# --- It is strict -------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A repository of three pages that is right."""
    texts = {
        "README.md": "# Home\n\n[All](docs/README.md), [code](code.py), [a](docs/how-to/a.md#it)\n",
        "docs/README.md": "# All pages\n\n## How-to\n\n| page |\n|---|\n| [A](how-to/a.md) |\n",
        "docs/how-to/a.md": "# A\n\n## It\n\n![A picture](a.svg)\n",
        "docs/how-to/a.svg": "<svg xmlns='http://www.w3.org/2000/svg'/>\n",
        "code.py": "",
    }
    repository = tmp_path / "repository"
    for name in (docs_site.SETTINGS, docs_site.STYLE):
        texts[name] = (REPOSITORY / name).read_text()
    for name, text in texts.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    monkeypatch.setattr(docs_site, "REPOSITORY", repository)

    def change(page: str, old: str, new: str) -> None:
        text = (repository / page).read_text()
        assert old in text
        (repository / page).write_text(text.replace(old, new))

    return SimpleNamespace(
        folder=repository, change=change, build=lambda: docs_site.build(tmp_path / "built")
    )


def test_a_small_site_is_built_with_what_its_pages_link_to(small):
    site = small.build()
    for name in ("index.html", "docs/index.html", "docs/how-to/a.html", "code.py"):
        assert (site / name).is_file()


@pytest.mark.parametrize(
    ("page", "old", "new", "said"),
    [
        ("README.md", "a.md#it", "a.md#that", "that"),
        ("README.md", "docs/how-to/a.md", "docs/how-to/b.md", "README.md: docs/how-to/b.md"),
        ("README.md", "code.py", "../code.py", "README.md: ../code.py"),
        ("docs/how-to/a.md", "a.svg", "b.svg", "docs/how-to/a.md: b.svg"),
        ("docs/how-to/a.md", "a.svg", "https://example.org/a.svg", "docs/how-to/a.html: loads"),
        ("docs/README.md", "| [A](how-to/a.md) |", "", "docs/README.md: lacks docs/how-to/a.md"),
        ("docs/README.md", "how-to/a.md", "how-to/gone.md", "lacks docs/how-to/a.md"),
    ],
)
def test_a_mistake_in_a_page_fails_the_build(small, page, old, new, said):
    small.change(page, old, new)
    with pytest.raises(docs_site.BrokenSite) as failure:
        small.build()
    assert said in str(failure.value)


def test_a_page_of_a_new_folder_must_be_listed(small):
    (small.folder / "docs" / "concepts").mkdir()
    (small.folder / "docs" / "concepts" / "new.md").write_text("# New\n")
    with pytest.raises(docs_site.BrokenSite) as failure:
        small.build()
    assert "lacks docs/concepts/new.md; add" in str(failure.value)
    small.change("docs/README.md", "| [A]", "| [New](concepts/new.md) |\n| [A]")
    assert (small.build() / "docs" / "concepts" / "new.html").is_file()


# --- In a browser -------------------------------------------------------------------------------


class SilentHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, format, *values):
        pass


@pytest.fixture(scope="module")
def address(site):
    """The address of the site, served from this machine."""
    handler = functools.partial(SilentHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


TOO_WIDE = """[...document.querySelectorAll('article *')].filter(element => {
  const box = element.getBoundingClientRect();
  if (!box.width || box.right <= innerWidth + 1) return false;
  for (let above = element.parentElement; above; above = above.parentElement)
    if (getComputedStyle(above).overflowX != 'visible') return false;
  return true;
}).map(element => element.outerHTML.slice(0, 80))"""


@pytest.mark.whole
@pytest.mark.parametrize("page", ["README.md", "docs/statistics.md", "docs/json.md"])
def test_wide_tables_and_terminals_scroll_within_themselves(browser, address, page):
    for width in (390, 1400):
        tab = browser.open(f"{address}/{built(page)}", width)
        tab.until("!!document.querySelector('.md-typeset__table')")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.evaluate(TOO_WIDE) == []
        tab.close()


@pytest.mark.whole
def test_it_is_light_in_the_light_and_dark_in_the_dark(browser, address):
    background = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3)"
    brightness = {}
    for dark in (False, True):
        tab = browser.open(f"{address}/index.html", 1400, dark=dark)
        brightness[dark] = max(map(int, tab.evaluate(background)))
        tab.close()
    assert brightness[False] > 230
    assert brightness[True] < 40


DIALOG = """[...document.body.querySelectorAll('*')]
  .map(element => element.shadowRoot?.querySelector('dialog[open]')).find(dialog => dialog)"""

CLICK = """if (Date.now() > (window.next ?? 0)) {  // a second click would close it
  window.next = Date.now() + 5000;
  document.querySelector('.md-search__button')?.click();
}"""


@pytest.mark.whole
def test_the_search_finds_a_page(browser, address):
    tab = browser.open(f"{address}/index.html", 1400)
    tab.until(f"{CLICK}; !!({DIALOG})")
    tab.evaluate(f"({DIALOG}).querySelector('input').focus()")
    tab.call("Input.insertText", text="Shapley")
    tab.until(f"({DIALOG}).querySelectorAll('[role=option]').length")
    shown = tab.evaluate(f"[...({DIALOG}).querySelectorAll('a')].map(a => a.pathname).join()")
    assert "/docs/designs.html" in shown.split(",")
    tab.close()
