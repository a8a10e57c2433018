"""`ablate watch`: who may read its page, what is answered, and what a browser makes of it.

The store is one that a sweep left; the server is a thread of this process.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import threading
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

import pytest
from conftest import Shell
from launcher_contract import until

from ablate.report.watch.answers import MOST_CURVES, POINTS, StoreAnswers, SweepAnswers
from ablate.report.watch.server import WatchServer
from ablate.store.ledger import Ledger
from ablate.store.store import Store


@contextlib.contextmanager
def serving(answers: SweepAnswers | StoreAnswers) -> Iterator[WatchServer]:
    with WatchServer(answers, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def answers_of(store: Store) -> SweepAnswers:
    with Ledger.reading(store) as ledger:
        return SweepAnswers(ledger.sealed_plan(store, ledger.sweeps()[0]), store)


@pytest.fixture
def server(golden_store):
    with serving(answers_of(golden_store)) as server:
        yield server


def ask(server, place: str = "", method: str = "GET", path: str | None = None, **headers: str):
    """(status, headers, body) of one request, by a client of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path or f"/{server.token}/{place}", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def state(server) -> dict:
    return json.loads(ask(server, "state")[2])


# --- Who may read it ----------------------------------------------------------------------------


def test_it_listens_on_the_loopback_alone_and_its_token_is_long(server):
    assert server.socket.getsockname() == ("127.0.0.1", server.server_port)
    assert server.url == f"http://127.0.0.1:{server.server_port}/{server.token}/"
    assert len(server.token) >= 32
    with WatchServer(server.answers, 0) as other:
        assert other.token != server.token


def test_without_its_token_nothing_is_answered(server):
    wrong = server.token[:-1] + ("a" if server.token[-1] != "a" else "b")
    for path in (
        *("/", "/state", "//state", "/x/state", f"/{wrong}/", f"/{wrong}/state", "*"),
        *(f"/{server.token}x/", f"/{server.token.upper()}/", f"/?{server.token}", "/%C3%A4/"),
    ):
        status, _, body = ask(server, path=path)
        assert (status, b"whole" in body) == (403, True), path
    assert ask(server)[0] == 200


def test_what_is_no_address_is_refused_without_a_word_in_the_terminal(server, capfd):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as line:
        host = f"Host: 127.0.0.1:{server.server_port}"
        line.sendall(f"GET http://[ HTTP/1.1\r\n{host}\r\nConnection: close\r\n\r\n".encode())
        assert b" 404 " in line.makefile("rb").readline()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("127.0.0.1:{port}", 200), ("localhost:{port}", 200), ("evil.example", 403)),
        *(("evil.example:{port}", 403), ("127.0.0.1", 403), ("127.0.0.1:1", 403)),
        *(("[::1]:{port}", 403), ("", 403)),
    ],
)
def test_this_machine_by_either_name_is_answered_and_no_other(server, host, status):
    """A name that somebody points at 127.0.0.1 (DNS rebinding)."""
    assert ask(server, "state", Host=host.format(port=server.server_port))[0] == status


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
def test_it_is_only_read(server, method):
    status, headers, _ = ask(server, "state", method)
    assert (status, headers["Allow"]) == (405, "GET")


def test_no_address_is_a_path(server, golden_store):
    (golden_store.root / "secret").write_text("secret")
    for place in (
        *("../secret", "..%2fsecret", "%2e%2e/secret", "/etc/passwd", "watch.html", "server.py"),
        *("state/", "state/..", "watch.js/../server.py", "log?run=../secret", "log?run=", "log"),
        *("curves?runs=../secret", "log?run=%2e%2e", f"log?run={'0' * 16}"),
    ):
        status, _, body = ask(server, place)
        assert (status, b"secret\n" in body) == (404, False), place
        assert b"passwd:" not in body


def test_a_page_may_load_nothing_from_elsewhere_and_stand_in_no_other(server):
    status, headers, body = ask(server)
    assert status == 200
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy.pop("default-src") == "'none'"
    assert policy.pop("img-src") == "data:"
    assert set(policy.values()) == {"'self'", "'none'"}
    assert policy["frame-ancestors"] == "'none'"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert b"//" not in body.replace(b"<!doctype", b"")


# --- What is answered ---------------------------------------------------------------------------


def test_the_state_curves_and_log_are_those_of_the_store(server, golden_store):
    found = state(server)
    assert found["head"] == f"{found['total']} of {found['total']} done"
    assert (found["over"], found["driver"]) == (True, "ended")
    run = found["newest"][0]
    folder = golden_store.rundir(run["run"])
    lines = folder.read_metrics()
    assert run["score"] == f"{100 * lines[-1]['val_top1']:.2f} %"
    place = f"curves?runs={run['run']}"
    status, headers, body = ask(server, place)
    [one] = json.loads(body)
    assert one["x"] == pytest.approx([line["epoch"] for line in lines], rel=1e-4)
    assert one["train_loss"] == pytest.approx([line["train_loss"] for line in lines], rel=1e-4)
    assert one["score"] == pytest.approx([100 * line["val_top1"] for line in lines], rel=1e-4)
    again = ask(server, place, **{"If-None-Match": headers["ETag"]})
    assert (status, again[0], again[2]) == (200, 304, b"")
    assert ask(server, f"log?run={run['run']}")[2].decode() in folder.log.read_text()


def test_long_curves_are_thinned_to_their_end_and_not_all_are_drawn(server, golden_store):
    ids = [run["run"] for run in state(server)["newest"]]
    long = golden_store.root / "long"
    long.write_text("".join(f'{{"step": {s}, "train_loss": {s}}}\n' for s in range(3217)))
    long.replace(golden_store.rundir(ids[0]).metrics)
    [curve] = json.loads(ask(server, f"curves?runs={ids[0]}")[2])
    assert len(curve["x"]) <= POINTS + 1
    assert (curve["by"], curve["x"][0], curve["x"][-1]) == ("step", 0, 3216)
    many = ",".join(ids[:1] * (MOST_CURVES + 5))
    assert len(json.loads(ask(server, f"curves?runs={many}")[2])) == MOST_CURVES


def test_to_watch_a_complete_sweep_is_a_peek_at_means(server, golden_store):
    with Ledger.reading(golden_store) as ledger:
        before = ledger.looks()
    state(server)
    body = ask(server, "table")[2].decode()
    assert '<th scope="row">pre</th>' in body
    assert "gain" in body
    assert not any(word in body for word in ("helps", "hurts", "can&#39;t tell", "<script"))
    assert "+3.89" in body
    assert "+3.89 [" not in body
    ask(server, "table")
    with Ledger.reading(golden_store) as ledger:
        [peek] = [look for look in ledger.looks() if look not in before]
    assert (peek["planned"], peek["columns"][""]["n"]) == ([3], 3)


SWEEP = ("sweep", "block.attn=pre,post", "model.depth=1", "train.steps=2", "launcher=inline")


def test_a_sweep_that_grew_is_followed_to_its_new_table(shell):
    shell(*SWEEP, "seeds=1", "--as", "nets", "--quiet")
    with serving(answers_of(Store(shell.folder / "runs"))) as server:
        assert state(server)["head"] == "2 of 2 done"
        before = ask(server, "table")
        shell(*SWEEP, "seeds=2", "--as", "nets", "--quiet")
        until(lambda: state(server)["head"] == "4 of 4 done")
        after = ask(server, "table")
    assert [headers["X-Results"] for _, headers, _ in (before, after)] == ["2", "4"]
    assert before[2] != after[2]


def test_without_a_name_the_sweeps_of_the_store_are_listed_each_with_its_page(golden_store):
    with serving(StoreAnswers(golden_store)) as server:
        status, headers, body = ask(server)
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        with Ledger.reading(golden_store) as ledger:
            [name] = ledger.sweeps()
        total = json.loads(ask(server, "0/state")[2])["total"]
        line = f'<a href="0/">{name}</a></th><td class="number">{total} of {total}</td>'
        assert line in body.decode()
        for place in ("0/", "0/watch.js", "0/watch.css", "0/table", "watch.css"):
            assert ask(server, place)[0] == 200, place
        for place in ("1/", "0", "state", "0/0/", "-1/", "../0/", "0/state/", "\u00b2/state"):
            path = quote(f"/{server.token}/{place}")
            assert ask(server, path=path)[0] == 404, place


def test_a_sweep_that_is_not_there_yet_is_waited_for(shell):
    process, other = shell.start("watch", "nets"), Shell(shell.folder, number=100)
    out, err = (shell.folder / f"{shell.number}.{kind}" for kind in ("out", "err"))
    until(lambda: "no store at runs" in err.read_text())
    other(*SWEEP, "seeds=1", "--as", "nets", "--quiet")
    until(lambda: out.read_text().endswith("/\n"))
    process.send_signal(signal.SIGINT)
    assert shell.end(process).code == 130
    assert err.read_text().endswith("; waiting for it, until Ctrl-C\n")


def test_a_broken_store_is_said_and_the_server_lives(server, golden_store):
    golden_store.ledger.write_bytes(b"no database" * 1000)
    status, _, body = ask(server, "state")
    assert (status, b"database" in body) == (503, True)
    assert ask(server)[0] == 200


def test_the_command_says_its_address_and_ends_with_ctrl_c_without_a_word(golden_store):
    shell, other = Shell(golden_store.root.parent), Shell(golden_store.root.parent, number=100)
    process = shell.start("watch", "fixture")
    out = shell.folder / f"{shell.number}.out"
    until(lambda: out.read_text().endswith("/\n"))
    address = urlsplit(out.read_text().strip())
    connection = http.client.HTTPConnection(address.netloc, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", f"{address.path}state")
        assert json.loads(connection.getresponse().read())["over"]
        taken = other("watch", "--port", str(address.port), code=2)
        assert taken.err.startswith(f"ablate: --port {address.port}: Address already in use")
    process.send_signal(signal.SIGINT)
    done = shell.end(process)
    assert (done.code, done.err, done.out.count("\n")) == (130, "", 1)
    assert "--port" in other("watch", "--port", "70000", code=2).err


# --- In a browser -------------------------------------------------------------------------------


LINES = "[...document.querySelectorAll('#loss polyline')]"
POINTS_OF = "document.querySelector('#loss polyline[data-run=\"{}\"]').points.numberOfItems"


def test_curves_are_drawn_and_a_new_point_appears(server, golden_store, browser):
    *_, left = (run["run"] for run in state(server)["newest"])
    golden_store.rundir(left).result.unlink()  # it is not over: the page looks often
    with Ledger.driving(golden_store) as ledger:
        ledger.record(left, "interrupted")
    runs = [run["run"] for run in state(server)["newest"]]
    page = browser.open(server.url, 1400)
    page.until(f"{LINES}.length == {min(6, len(runs))}")
    before = page.until(POINTS_OF.format(runs[0]))
    assert before == len(golden_store.rundir(runs[0]).read_metrics())
    page.until("document.querySelector('#table th[scope=row]')?.textContent == 'pre'")
    assert page.evaluate("document.getElementById('log').textContent.length") > 40
    last = golden_store.rundir(runs[0]).read_metrics()[-1]
    with open(golden_store.rundir(runs[0]).metrics, "a") as file:
        file.write(
            json.dumps({**last, "step": last["step"] + 1, "epoch": last["epoch"] + 1}) + "\n"
        )
    page.until(f"{POINTS_OF.format(runs[0])} == {before + 1}")
    page.evaluate(f"document.querySelector('button[data-run=\"{runs[0]}\"]').click()")
    page.until(f"!{LINES}.some((line) => line.dataset.run == '{runs[0]}')")
    assert page.evaluate("document.getElementById('run').value") == runs[0]
    assert not browser.complaints
    page.close()


def test_labels_are_text_and_it_fits_a_phone(server, golden_store, browser):
    """A label that is HTML is shown as it is."""
    page = browser.open(server.url, 390, dark=True)
    page.until(f"{LINES}.length")
    page.evaluate("state.newest[0].label = '<img src=x onerror=alert(1)>'; showRuns(); 0")
    assert "<img" in page.evaluate("document.getElementById('newest').textContent")
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not browser.complaints
    page.close()


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_serious(server, browser, axe, dark):
    page = browser.open(server.url, 1280, dark=dark)
    page.until(f"{LINES}.length && document.querySelectorAll('#table table').length")
    assert page.violations(axe) == []
    page.close()
