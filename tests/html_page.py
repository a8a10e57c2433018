"""A page of HTML as its reader has it."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """A page as a reader has it: tags, the text of every id'd section, tables as rows of texts."""

    LINKS = ("href", "xlink:href", "src", "data")
    VOID = ("meta", "link", "br", "hr", "img", "input")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.heads: list[dict[str, str | None]] = []  # their attributes
        self.links: list[str] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.values: list[list[list[float]]] = []  # exact, of a table's cells
        self.feed(html)
        assert self.open == []
        self.tables = [[[tidy(cell) for cell in row] for row in table] for table in self.tables]

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        named = dict(attributes)
        assert not [name for name in named if name.startswith("on")]
        self.links += [named[name] or "" for name in self.LINKS if name in named]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
            self.values.append([])
        elif tag == "tr":
            self.tables[-1].append([])
            self.values[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            if tag == "th":
                self.heads.append(named)
        elif tag == "data":
            self.values[-1][-1].append(float(named["value"]))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.texts.append(data)
        if ("td" in self.open or "th" in self.open) and "sup" not in self.open:
            self.tables[-1][-1][-1] += data

    @property
    def text(self) -> str:
        return tidy("".join(self.texts))


def tidy(text: str) -> str:
    return " ".join(text.split())
