"""Sets a table as an HTML fragment: headings with a scope, no scripts, no links. Template:
table.html."""

from __future__ import annotations

import functools
import html as escapes
import re
from pathlib import Path
from typing import Any

from ablate.report.formats.grid import PrintedTable

HERE = Path(__file__).parents[1]


@functools.cache
def template(name: str) -> Any:
    """One of the templates of reports, by its path in their folder."""
    import jinja2
    import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["prose"] = lambda text: markupsafe.Markup(prose(text))
    environment.filters["text"] = lambda text: markupsafe.Markup(_escape(text))
    return environment.get_template(name)


def html(sheet: PrintedTable) -> str:
    return str(template("formats/table.html").render(sheet=sheet))


def prose(text: str) -> str:
    """Escape a sentence; commands in `backticks` are code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _escape(text))


def _escape(text: str) -> str:
    return escapes.escape(text, quote=False)
