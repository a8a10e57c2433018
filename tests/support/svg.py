"""Read the marks and the texts of an SVG."""

from __future__ import annotations

from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def marks(svg: str) -> list[tuple[str, ElementTree.Element]]:
    """List the marks in order: (the text shown when pointed at, the group) of each."""
    groups = ElementTree.fromstring(svg).iter(f"{SVG}g")
    return [(title.text, g) for g in groups if (title := g.find(f"{SVG}title")) is not None]


def texts(svg: str) -> list[str]:
    """List the texts in order."""
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
