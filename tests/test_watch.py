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
from support.watched import ERROR, SIZES, watched_store

from ablate.report.text import duration
from ablate.report.watch.answers import MOST_CURVES, StoreAnswers
from ablate.report.watch.curves import POINTS
from ablate.report.watch.server import SCRIPTS, WatchServer
from ablate.store.events import result_detail
from ablate.store.ledger import Ledger
from ablate.store.store import Store


@contextlib.contextmanager
def serving(store: Store) -> Iterator[WatchServer]:
    """A server whose first sweep has an address."""
    answers = StoreAnswers(store)
    answers.page()
    with WatchServer(answers, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def server(golden_store):
    with serving(golden_store) as server:
        yield server


def ask(server, place: str = "", method: str = "GET", path: str | None = None, **headers: str):
    """(status, headers, body) of one request about the first sweep, by a client of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path or f"/{server.token}/0/{place}", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def state(server) -> dict:
    return json.loads(ask(server, "state")[2])


def runs_of(server) -> list[dict]:
    return json.loads(ask(server, "runs")[2])["runs"]


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


def test_the_state_runs_curves_and_log_are_those_of_the_store(server, golden_store):
    found = state(server)
    assert found["head"] == f"{found['total']} of {found['total']} done"
    assert (found["over"], found["complete"], found["driver"]) == (True, True, "ended")
    run = runs_of(server)[0]
    folder = golden_store.rundir(run["run"])
    lines = folder.read_metrics()
    assert run["score"] == pytest.approx(100 * lines[-1]["val_top1"], rel=1e-4)
    place = f"curves?runs={run['run']}"
    status, _, body = ask(server, place)
    [curves] = json.loads(body)
    scores = [100 * line["val_top1"] for line in lines]
    assert curves["loss"]["x"] == pytest.approx([line["epoch"] for line in lines], rel=1e-4)
    losses = [line["train_loss"] for line in lines]
    assert curves["loss"]["mean"] == pytest.approx(losses, rel=1e-4)
    assert curves["score"]["mean"] == pytest.approx(scores, rel=1e-4)
    for tagged in (place, "runs"):
        tag = ask(server, tagged)[1]["ETag"]
        again = ask(server, tagged, **{"If-None-Match": tag})
        assert (status, again[0], again[2]) == (200, 304, b""), tagged
    assert ask(server, f"log?run={run['run']}")[2].decode() in folder.log.read_text()


def test_a_cell_has_the_mean_and_the_range_of_its_seeds(server, golden_store):
    runs = [run for run in runs_of(server) if (run["row"], run["column"]) == (1, 0)]
    ends = [golden_store.rundir(run["run"]).read_metrics()[-1]["val_top1"] for run in runs]
    [curves] = json.loads(ask(server, "curves?cells=1.0")[2])
    score = curves["score"]
    assert (curves["n"], len(ends)) == (3, 3)
    assert score["mean"][-1] == pytest.approx(100 * sum(ends) / 3, rel=1e-4)
    assert [score[key][-1] for key in ("low", "high")] == pytest.approx(
        [100 * min(ends), 100 * max(ends)], rel=1e-4
    )
    for place in ("curves?cells=2.0", "curves?cells=1", "curves?cells=../1.0", "curves?cells=-1.0"):
        assert ask(server, place)[0] == 404, place


def test_long_curves_are_thinned_to_their_end_and_not_all_are_drawn(server, golden_store):
    ids = [run["run"] for run in runs_of(server)]
    long = golden_store.root / "long"
    long.write_text("".join(f'{{"step": {s}, "train_loss": {s}}}\n' for s in range(3217)))
    long.replace(golden_store.rundir(ids[0]).metrics)
    [curves] = json.loads(ask(server, f"curves?runs={ids[0]}")[2])
    x = curves["loss"]["x"]
    assert len(x) <= POINTS + 1
    assert (curves["by"], x[0], x[-1]) == ("step", 0, 3216)
    many = ",".join(ids[:1] * (MOST_CURVES + 5))
    assert len(json.loads(ask(server, f"curves?runs={many}")[2])) == MOST_CURVES


VERDICTS = ("helps", "hurts", "can&#39;t tell")


def looks_of(store: Store) -> list[dict]:
    with Ledger.reading(store) as ledger:
        return ledger.looks()


def test_an_unfinished_sweep_has_means_alone_and_that_is_a_peek(server, golden_store):
    before = looks_of(golden_store)
    last = runs_of(server)[-1]["run"]
    golden_store.rundir(last).result.unlink()
    with Ledger.driving(golden_store) as ledger:
        ledger.record(last, "interrupted")
    until(lambda: not state(server)["complete"])
    _, headers, body = ask(server, "table")
    text = body.decode()
    assert headers["X-Verdicts"] == "0"
    assert '<th scope="row">pre</th>' in text
    assert "no interval yet" in text
    assert "[-]" not in text
    assert text.count('<p class="warning">') == 1  # that it is unfinished
    assert text.index('<p class="warning">') < text.index('<div class="grids">')
    assert not any(word in text for word in (*VERDICTS, "<script"))
    ask(server, "table")
    [peek] = [look for look in looks_of(golden_store) if look not in before]
    assert peek["planned"] == [3]


def test_a_complete_sweep_has_verdicts_and_they_are_recorded_before_they_are_sent(
    server, golden_store
):
    clear_looks(golden_store)
    state(server)
    assert looks_of(golden_store) == []
    _, headers, body = ask(server, "table")
    text = body.decode()
    assert headers["X-Verdicts"] == "1"
    assert any(f'<span class="verdict">{word}</span>' in text for word in VERDICTS)
    assert "+3.89 [" not in text.replace('<span class="interval">', "") or "no interval" not in text
    [look] = looks_of(golden_store)
    assert (look.get("planned", []), look["columns"][""]["n"]) == ([], 3)


def clear_looks(store: Store) -> None:
    """Make the ledger again without the looks at it."""
    store.ledger.unlink()
    store.looks.unlink()
    for suffix in ("-wal", "-shm"):
        store.ledger.with_name(store.ledger.name + suffix).unlink(missing_ok=True)


SWEEP = ("sweep", "block.attn=pre,post", "model.depth=1", "train.steps=2", "launcher=inline")


def test_a_sweep_that_grew_is_followed_to_its_new_table(shell):
    shell(*SWEEP, "seeds=1", "--as", "nets", "--quiet")
    with serving(Store(shell.folder / "runs")) as server:
        assert state(server)["head"] == "2 of 2 done"
        before = ask(server, "table")
        shell(*SWEEP, "seeds=2", "--as", "nets", "--quiet")
        until(lambda: state(server)["head"] == "4 of 4 done")
        after = ask(server, "table")
    assert [headers["X-Results"] for _, headers, _ in (before, after)] == ["2", "4"]
    assert before[2] != after[2]


def test_without_a_name_the_sweeps_of_the_store_are_listed_each_with_its_page(golden_store):
    with serving(golden_store) as server:
        status, headers, body = ask(server, path=f"/{server.token}/")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        with Ledger.reading(golden_store) as ledger:
            [name] = ledger.sweeps()
        total = state(server)["total"]
        assert f'<a href="0/">{name}</a>' in body.decode()
        assert f'<td class="number">{total} of {total}</td>' in body.decode()
        scripts = [f"0/{script}" for script in SCRIPTS]
        for place in ("", "watch.css", "sweeps.js", "0/", "0/watch.css", "0/table", *scripts):
            assert ask(server, path=f"/{server.token}/{place}")[0] == 200, place
        for place in ("1/", "0", "state", "0/0/", "-1/", "../0/", "0/state/", "\u00b2/state"):
            path = quote(f"/{server.token}/{place}")
            assert ask(server, path=path)[0] == 404, place


@pytest.mark.whole
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
    content = golden_store.ledger.read_bytes()
    golden_store.ledger.write_bytes(b"no database" * 1000)
    for address in ("", "state"):
        status, _, body = ask(server, address)
        assert (status, b"database" in body) == (503, True)
    golden_store.ledger.write_bytes(content)
    assert ask(server)[0] == ask(server, "state")[0] == 200


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
DRAWN = f"{LINES}.length && document.querySelectorAll('#table table').length"
POINTS_OF = "document.querySelector('#loss polyline[data-run=\"{}\"]').points.numberOfItems"
LEGEND = "document.getElementById('legend').textContent"
LABELS = "[...document.querySelectorAll('#runs tbody th')].map((cell) => cell.textContent)"
VIEWS = [(width, dark) for width in (390, 1400) for dark in (False, True)]


def page_of(server, browser, width: int, dark: bool = False):
    page = browser.open(f"{server.url}0/", width, dark=dark)
    page.until(DRAWN)
    return page


@pytest.mark.whole
def test_a_click_shows_single_runs_and_a_new_point_appears(server, golden_store, browser):
    left = runs_of(server)[-1]["run"]
    result = golden_store.rundir(left).result.read_bytes()
    golden_store.rundir(left).result.unlink()  # it is not over: the page looks often
    with Ledger.driving(golden_store) as ledger:
        ledger.record(left, "interrupted")
    page = page_of(server, browser, 1400)
    assert page.evaluate(f"{LINES}.length") == 2  # the means of the variants
    page.evaluate("document.querySelector('#map [data-cell=\"1.0.\"]').click()")
    page.until(f"{LINES}.length == 3 && {LINES}.every((line) => line.dataset.run)")
    assert page.evaluate(f"{LABELS}.sort()") == ["post#0", "post#1", "post#2"]
    run = next(run["run"] for run in runs_of(server) if run["label"] == "post#0")
    lines = golden_store.rundir(run).read_metrics()
    assert page.evaluate(POINTS_OF.format(run)) == len(lines)
    last = {**lines[-1], "step": lines[-1]["step"] + 1, "epoch": lines[-1]["epoch"] + 1}
    with open(golden_store.rundir(run).metrics, "a") as file:
        file.write(json.dumps(last) + "\n")
    page.until(f"{POINTS_OF.format(run)} == {len(lines) + 1}")
    page.evaluate(f"document.querySelector('#runs [data-run=\"{run}\"]').click()")
    page.until("document.getElementById('h-log').textContent == 'Log of post#0'")
    page.until("document.getElementById('log').textContent.length > 40")
    page.until(f"{LEGEND}.includes('interrupted')")
    golden_store.rundir(left).result.write_bytes(result)
    with Ledger.driving(golden_store) as ledger:
        detail = result_detail(golden_store.rundir(left), json.loads(result))
        ledger.record(left, "finished", **detail)
    page.until(f"!{LEGEND}.includes('interrupted')")
    page.evaluate("document.getElementById('all-variants').click()")
    page.until(f"{LINES}.length == 2")
    assert not browser.complaints
    page.close()


LONGER = [
    pytest.param(96, marks=pytest.mark.slow),
    pytest.param(1000, marks=pytest.mark.faults),
]


@pytest.mark.whole
@pytest.mark.parametrize("runs", [4, *LONGER])
def test_a_sweep_of_any_size_fits_and_axe_finds_nothing_serious(tmp_path, browser, axe, runs):
    size = SIZES[runs]
    with watched_store(tmp_path / "runs", size) as store, serving(store) as server:
        for width, dark in VIEWS:
            page = page_of(server, browser, width, dark)
            where = f"{runs} runs, {width} px, {'dark' if dark else 'light'}"
            assert page.evaluate("document.documentElement.scrollWidth") <= width, where
            assert page.violations(axe) == [], where
            page.close()
    assert not browser.complaints


@pytest.mark.whole
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_serious_in_the_list_and_in_a_complete_sweep(server, browser, axe, dark):
    for url in (server.url, f"{server.url}0/"):
        page = browser.open(url, 390, dark=dark)
        page.until("document.querySelectorAll('th').length")
        if url != server.url:
            page.until("document.querySelectorAll('.verdict').length")
        assert page.violations(axe) == [], url
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.close()


@pytest.mark.whole
def test_the_numbers_of_the_page_are_those_of_the_runs(tmp_path, browser):
    size = SIZES[96]
    with watched_store(tmp_path / "runs", size) as store, serving(store) as server:
        # 52 runs of 60 s are to come, two are half done, and two slots share them.
        assert state(server)["left"] == duration((52 * 60 + 2 * 30) / 2)
        page = page_of(server, browser, 1400)
        head = page.evaluate("document.getElementById('head').textContent")
        assert head.startswith(state(server)["head"])
        assert state(server)["left"] in head
        runs = runs_of(server)
        cell = [run for run in runs if (run["row"], run["column"]) == (4, 2)]
        scores = [run["score"] for run in cell if run["status"] == "finished"]
        shown = page.evaluate("document.querySelector('#map [data-cell=\"4.2.\"]').textContent")
        failed = sum(run["status"] == "failed" for run in cell)
        assert shown == f"{sum(scores) / len(scores):.4g}{len(scores)}/{len(cell)} ✕{failed}"
        assert page.evaluate("document.getElementById('problems').textContent").count(ERROR) == 2
        assert page.evaluate("document.querySelectorAll('.verdict').length") == 0
        page.close()


@pytest.mark.whole
def test_runs_are_sorted_and_filtered(tmp_path, browser):
    with watched_store(tmp_path / "runs", SIZES[96]) as store, serving(store) as server:
        page = page_of(server, browser, 1400)
        scores = (
            "[...document.querySelectorAll('#runs tbody tr')].map((r) => +r.cells[2].textContent)"
        )
        page.evaluate("document.querySelector('#runs [data-key=score]').click()")
        best = page.evaluate(scores)[:40]
        assert best == sorted(best, reverse=True)
        page.evaluate("document.querySelector('#runs [data-key=score]').click()")
        worst = page.evaluate(scores)[:40]
        assert worst == sorted(worst)
        assert worst[0] < best[0]
        assert (
            page.evaluate("document.querySelector('[aria-sort=ascending]').textContent") == "score"
        )
        find = "const find = document.getElementById('find'); find.value = '{}'; find.oninput(); 0"
        page.evaluate("{ " + find.format("3@2 DECAY") + " }")
        assert page.evaluate(f"{LABELS}.sort()") == [f"decay 3@2#{seed}" for seed in range(4)]
        page.evaluate("{ " + find.format("") + " }")
        choose = "const s = document.getElementById('status'); s.value = 'failed'; s.onchange(); 0"
        page.evaluate("{ " + choose + " }")
        failed = sorted(run["label"] for run in runs_of(server) if run["status"] == "failed")
        assert page.evaluate(f"{LABELS}.sort()") == failed
        page.close()


LUMINANCE = """(colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).map((part) => part / 255);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; }"""


@pytest.mark.whole
@pytest.mark.parametrize("dark", [False, True])
def test_charts_are_as_dark_as_the_page(server, browser, dark):
    page = page_of(server, browser, 1400, dark)
    style = "getComputedStyle(document.querySelector('{}')).{}"
    chart = page.evaluate(f"({LUMINANCE})({style.format('.charts figure', 'backgroundColor')})")
    line = page.evaluate(f"({LUMINANCE})({style.format('#loss polyline', 'stroke')})")
    assert (chart < 0.2) == dark
    assert (line > 0.2) == dark  # the baseline is black on a light page
    page.close()


@pytest.mark.whole
def test_labels_are_text(server, browser):
    """A label that is HTML is shown as it is."""
    page = page_of(server, browser, 390, dark=True)
    page.evaluate(
        """Promise.all([import("./heatmap.js"), import("./runs.js")]).then(async ([map, runs]) => {
        const data = await (await fetch("runs")).json();
        const label = "<img src=x onerror=alert(1)>";
        data.rows[0].label = data.runs[0].label = data.columns[0] = label;
        map.drawMap(data, null, () => 0);
        runs.drawRuns(data, null, null, () => 0); })"""
    )
    for part in ("map", "runs"):
        assert "<img" in page.evaluate(f"document.getElementById('{part}').textContent")
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert not browser.complaints
    page.close()


@pytest.mark.whole
def test_verdicts_stand_first_once_a_sweep_is_complete(server, browser):
    page = page_of(server, browser, 1400)
    page.until("document.querySelectorAll('.verdict').length")
    assert page.evaluate("document.querySelector('main').firstElementChild.id") == "gains"
    page.close()
