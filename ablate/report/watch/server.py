"""Serves the page of `watch`: on this machine alone, to whoever has the address with its token.

Every answer is made here or is one of a few files; no part of an address is ever a path. Another
site's page can't ask: it has no token, and a name that it points here is no Host that is answered.

Used by cli/looking.py, for `ablate watch`. A new script also needs its name in SCRIPTS, a new kind
of answer its entry in ANSWERS.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import sqlite3
from collections.abc import Callable
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ablate.report.formats.grid import REPORT_FOLDER
from ablate.report.watch.answers import StoreAnswers, SweepAnswers, UnknownRun, UnknownSweep
from ablate.shared import Failure, UserError

LOOPBACK = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
HTML, TEXT, JSON = "text/html", "text/plain", "application/json"


class WatchServer(ThreadingHTTPServer):
    """Listens on a port of the loopback, 0 for a free one. Raises OSError where the port is in use.
    TOKEN/ is the list of the store's sweeps, whose pages are TOKEN/NUMBER/."""

    daemon_threads = True

    def __init__(self, answers: StoreAnswers, port: int) -> None:
        super().__init__((LOOPBACK, port), _Request)
        self.answers = answers
        self.token = secrets.token_urlsafe(24)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        return tuple(f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost"))


class _Request(BaseHTTPRequestHandler):
    server: WatchServer
    answers: SweepAnswers  # of the sweep that is asked about
    protocol_version = "HTTP/1.1"  # the page asks every other second, by one connection
    server_version, sys_version = "ablate", ""
    timeout = 30  # seconds of silence

    def do_GET(self) -> None:
        if self.headers.get_all("Host", []) not in ([host] for host in self.server.hosts):
            return self._refuse(403, f"this page answers to {LOOPBACK} alone")
        try:
            address = urlsplit(self.path)
        except ValueError:  # no address, such as "http://["
            return self._refuse(404, "nothing is here")
        _, token, *place = address.path.split("/")[:5] if "/" in address.path else ("", "")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return self._refuse(403, "open the address that `ablate watch` printed, whole")
        query = {key: values[-1] for key, values in parse_qs(address.query).items()}
        try:
            if (answer := self._answer(place)) is None:
                return self._refuse(404, "nothing is here")
            answer(self, query)
        except ConnectionError:  # the reader has gone
            self.close_connection = True
        except (UnknownRun, UnknownSweep) as error:
            self._refuse(404, str(error))
        except (UserError, Failure, OSError, sqlite3.Error) as error:
            self._refuse(503, str(error))

    def _answer(self, place: list[str]) -> Answer | None:
        """Return the answer for the path `place` behind the token, None if there is none. Raises
        UnknownSweep."""
        if len(place) == 1:
            return LISTING.get(place[0])
        if len(place) != 2:
            return None
        number, name = place
        self.answers = self.server.answers.sweep_answers(number)
        return ANSWERS.get(name)

    def _not_allowed(self) -> None:
        self.close_connection = True  # its body is not read
        self._send(405, TEXT, b"this page is only read\n", Allow="GET")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _not_allowed

    # --- What is answered ---

    def sweeps(self, query: dict[str, str]) -> None:
        self._send(200, HTML, self.server.answers.page())

    def page(self, query: dict[str, str]) -> None:
        self._send(200, HTML, _file("watch.html"))

    def script(self, query: dict[str, str], name: str) -> None:
        self._send(200, "text/javascript", _file(name))

    def style(self, query: dict[str, str]) -> None:
        self._send(200, "text/css", (REPORT_FOLDER / "page.css").read_bytes() + _file("watch.css"))

    def state(self, query: dict[str, str]) -> None:
        self._send(200, JSON, self.answers.state())

    def runs(self, query: dict[str, str]) -> None:
        self._send_tagged(*self.answers.runs())

    def curves(self, query: dict[str, str]) -> None:
        cells, ids = (_split_list(query.get(key, "")) for key in ("cells", "runs"))
        if cells:
            self._send_tagged(*self.answers.cell_curves(cells, self._cached_tag))
        else:
            self._send_tagged(*self.answers.run_curves(ids, self._cached_tag))

    def table(self, query: dict[str, str]) -> None:
        runs_done, has_verdicts, body = self.answers.table()
        facts = {"X-Results": str(runs_done), "X-Verdicts": str(int(has_verdicts))}
        self._send(200, HTML, body, **facts)

    def log(self, query: dict[str, str]) -> None:
        self._send(200, TEXT, self.answers.log(query.get("run", "")))

    # --- How ---

    def _refuse(self, code: int, reason: str) -> None:
        self._send(code, TEXT, f"{reason}\n".encode())

    @property
    def _cached_tag(self) -> str:
        """The tag of the answer that the page has."""
        return self.headers.get("If-None-Match", "").strip('"')

    def _send_tagged(self, tag: str, body: bytes) -> None:
        """Send JSON, or nothing where the page has the answer with this tag."""
        is_new = tag != self._cached_tag
        self._send(200 if is_new else 304, JSON, body if is_new else b"", ETag=f'"{tag}"')

    def _send(self, code: int, type: str, body: bytes, **headers: str) -> None:
        with contextlib.suppress(ConnectionError):
            self.send_response(code)
            self.send_header("Content-Type", f"{type}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            for name, value in (HEADERS | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: standard error is the reader's own."""


def _file(name: str) -> bytes:
    return Path(__file__).with_name(name).read_bytes()


def _split_list(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


Answer = Callable[[_Request, dict[str, str]], None]
SCRIPTS = ("watch.js", "dom.js", "heatmap.js", "charts.js", "runs.js")
LISTING: dict[str, Answer] = {
    "": _Request.sweeps,
    "watch.css": _Request.style,
    "sweeps.js": functools.partial(_Request.script, name="sweeps.js"),
}
ANSWERS: dict[str, Answer] = {
    "": _Request.page,
    "watch.css": _Request.style,
    "state": _Request.state,
    "runs": _Request.runs,
    "curves": _Request.curves,
    "table": _Request.table,
    "log": _Request.log,
    **{name: functools.partial(_Request.script, name=name) for name in SCRIPTS},
}
