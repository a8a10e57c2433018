"""Builds the documentation site into build/docs/site: `make docs`, or python tests/docs_site.py

Zensical makes the pages, strictly: a broken link or anchor between pages fails. Its source is a
copy of a part of the repository: README.md, the pages of docs/, and each file that a page links to,
at their own places, so that every relative link leads to the same file as in the repository.
docs/README.md is the list of all pages; its sections are the groups of the navigation.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDER = REPOSITORY / "build" / "docs"
HOME, INDEX = "README.md", "docs/README.md"
SETTINGS, STYLE = "docs/zensical.toml", "docs/site.css"
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")


class BrokenSite(Exception):
    """The pages are not fit for a site; the message names the place and the remedy."""


# --- Pages --------------------------------------------------------------------------------------


def groups() -> dict[str, dict[str, str]]:
    """Return the pages of the index: section -> title -> path from the repository's root."""
    index = (REPOSITORY / INDEX).read_text()
    sections = re.split(r"^## (.+)\n", index, flags=re.MULTILINE)[1:]
    return {
        section: {
            title: f"docs/{path}"
            for title, path in re.findall(r"^\| \[([^]]+)\]\(([\w/.-]+\.md)\) \|", text, re.M)
        }
        for section, text in zip(sections[::2], sections[1::2], strict=True)
    }


def listed_pages() -> list[str]:
    """Return the paths of the pages in the order of the index."""
    return [path for pages in groups().values() for path in pages.values()]


def written_pages() -> set[str]:
    """Return the paths of all pages of docs/ but the index; the tables of bundles are no pages."""
    pages = (REPOSITORY / "docs").rglob("*.md")
    paths = {page for page in pages if not (page.parent / "manifest.json").exists()}
    return {page.relative_to(REPOSITORY).as_posix() for page in paths} - {INDEX}


def check_index() -> None:
    """Raise BrokenSite unless the index lists each page exactly once."""
    listed = listed_pages()
    for page in sorted(written_pages() - {*listed}):
        raise BrokenSite(f"{INDEX}: lacks {page}; add a row for it to the table of its group")
    for page in listed:
        if listed.count(page) > 1:
            raise BrokenSite(f"{INDEX}: lists {page} twice; leave one row")
        if not (REPOSITORY / page).is_file():
            raise BrokenSite(f"{INDEX}: {page} does not exist; remove its row or write the page")


# --- The source of the generator ----------------------------------------------------------------


def linked_files(page: str) -> Iterator[Path]:
    """Yield the files and folders that a page links to, other pages included."""
    text = CODE_BLOCK.sub("", (REPOSITORY / page).read_text())
    for target in LINK.findall(text):
        address = urlsplit(target)
        if address.scheme or not address.path:
            continue
        path = ((REPOSITORY / page).parent / unquote(address.path)).resolve()
        if not path.is_relative_to(REPOSITORY) or not path.exists():
            raise BrokenSite(f"{page}: {target} is no file of the repository; mend the link")
        yield path


def for_generator(text: str) -> str:
    """Return a page as the generator must have it to show what GitHub shows: it would print the
    backslash of `a\\|b` in a table."""

    def without_backslashes(row: re.Match[str]) -> str:
        return CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0])

    return ROW.sub(without_backslashes, text)


def copy_source(source: Path) -> None:
    """Copy the pages, and what they link to, to a new folder."""
    pages = [HOME, INDEX, *listed_pages()]
    linked = {path for page in pages for path in linked_files(page)}
    for path in sorted({*linked, *(REPOSITORY / page for page in pages), REPOSITORY / STYLE}):
        copy = source / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            copy_folder(path, copy)
        elif path.suffix == ".md":
            copy.write_text(for_generator(path.read_text()))
        else:
            shutil.copyfile(path, copy)


def copy_folder(folder: Path, copy: Path) -> None:
    """Copy the files of a folder that a page links to, with a page that lists them: a server of
    files may list none."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    copy.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copyfile(file, copy / file.name)
    title = folder.relative_to(REPOSITORY).as_posix()
    rows = "".join(f'<li><a href="{file.name}">{file.name}</a></li>\n' for file in files)
    (copy / "index.html").write_text(
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n'
        f"<h1>{title}</h1>\n<ul>\n{rows}</ul>\n</html>\n"
    )


def settings() -> str:
    """Return the generator's settings with the navigation."""

    def entry(title: str, value: str) -> str:
        return f"{{ {json.dumps(title)} = {value} }}"

    sections = [
        entry(title, f"[{', '.join(entry(*page_value(page)) for page in pages.items())}]")
        for title, pages in groups().items()
    ]
    ends = [entry("Home", json.dumps(HOME)), *sections, entry("All pages", json.dumps(INDEX))]
    text = (REPOSITORY / SETTINGS).read_text()
    return text.replace("[project]\n", f"[project]\nnav = [{', '.join(ends)}]\n", 1)


def page_value(page: tuple[str, str]) -> tuple[str, str]:
    """Return a page's title, and its path as TOML."""
    title, path = page
    return title, json.dumps(path)


# --- The site -----------------------------------------------------------------------------------


LOADING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """A page of the site: its links, the ids that links can lead to, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        attribute = LOADING.get(tag)
        if attribute in values:
            self.loaded.append(values[attribute])
        elif tag == "a" and "href" in values:
            self.links.append(values["href"])


def check_site(site: Path) -> None:
    """Raise BrokenSite if a page loads something from another host, or a link of a page leads to no
    file, or to no place in its page.

    The generator checks the links between pages, not those to other files and pictures.
    """
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # whose links are from the root of a server
        name = path.relative_to(site).as_posix()
        for target in page.loaded:
            if urlsplit(target).netloc:
                raise BrokenSite(f"{name}: loads {target} from another host; change {SETTINGS}")
        for target in (*page.links, *page.loaded):
            address = urlsplit(target)
            if address.scheme or address.netloc:
                continue
            place = (path.parent / unquote(address.path)).resolve() if address.path else path
            place = place / "index.html" if place.is_dir() else place
            if not place.is_file():
                raise BrokenSite(f"{name}: {target} leads to no file; mend the link")
            anchor = unquote(address.fragment)
            if anchor and place in pages and anchor not in pages[place].ids:
                raise BrokenSite(f"{name}: {target} leads to no heading; mend the link")


def build(folder: Path) -> Path:
    """Build the site in a folder, which is made anew; return the site's folder.

    Raises BrokenSite where a page is not listed, a link is broken, or the generator warns.
    """
    check_index()
    shutil.rmtree(folder, ignore_errors=True)
    copy_source(folder / "source")
    (folder / "zensical.toml").write_text(settings())
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    run = subprocess.run(
        command,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if run.returncode:
        output = re.sub(r"\x1b\[[\d;]*m", "", run.stdout).partition("Traceback")[0].strip()
        raise BrokenSite(f"{output}\nzensical build --strict failed; mend the places above")
    check_site(folder / "site")
    return folder / "site"


if __name__ == "__main__":
    try:
        print(f"wrote {build(FOLDER) / 'index.html'}")
    except BrokenSite as error:
        sys.exit(f"make docs: {error}")
