"""Fixtures that several files of tests share."""

import contextlib
import csv
import functools
import importlib
import io
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import typer.main
from browser import Browser, installed_axe
from nursery import Nursery

from ablate import cli
from ablate.audit.doctor import stored
from ablate.planning import compose, conf
from ablate.running.launchers import fork
from ablate.shared.errors import UserError
from ablate.shared.system import ENDING_SIGNALS
from ablate.store.store import Store

try:
    import torch
except ImportError:  # .ci/control_half.py
    torch = None

collect_ignore = ["null_gpu"]  # `make null-gpu`
pytest.register_assert_rewrite("support")  # its asserts say what they compared, as those of tests

MEMORY, ROOM = Path("/dev/shm"), 6 * 2**30  # bytes


def _temporary_files_in_memory() -> None:
    """Keep the files of tests in memory, if it has room and TMPDIR names no other place. The tool
    waits for the disk after each file that it writes, which doubles the time of the tests."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    if shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ["TMPDIR"] = str(MEMORY)  # of the processes that tests start, too
        tempfile.tempdir = None  # read from TMPDIR at the next use


_temporary_files_in_memory()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Skip a test whose fixtures train where there is no torch."""
    return (yield from _skipped_without_torch())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a test of the training half where there is no torch."""
    return (yield from _skipped_without_torch())


def _skipped_without_torch() -> Iterator[None]:
    """Skip what imports torch where there is none, as .ci/control_half.py has it."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if torch is None and error.name == "torch":
            pytest.skip("no torch")
        raise


# The same examples every time, however long a busy machine takes to make them.
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "same",
    derandomize=True,
    deadline=None,  # a busy machine may take longer over an example the first time than the second
    suppress_health_check=SLOW,
)
hypothesis.settings.load_profile("same")


@pytest.fixture(scope="session")
def oracle():
    """Imports a test-only package, or skips: `oracle("timm.models.vision_transformer")`.

    timm imports torchvision, whose wheel declares its operators in a compiled file that only loads
    beside the torch build it was made for. Elsewhere two declarations are all that it misses.
    """
    libraries = []

    def load(module: str):
        try:
            importlib.import_module("torchvision")
        except ImportError:
            pass
        except RuntimeError:
            libraries.append(torch.library.Library("torchvision", "DEF"))
            for name in ("nms", "qnms"):
                schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                libraries[0].define(name + schema)
        return pytest.importorskip(module)

    return load


@pytest.fixture(scope="session", autouse=True)
def machine():
    """The same on every machine: workers on the CPU, the store in the folder, no forced colours;
    processes find their modules compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where in the background
        unset = ("ABLATE_STORE", "FORCE_COLOR", "NO_COLOR", "COLUMNS", "PYTHONDONTWRITEBYTECODE")
        for name in unset:
            patch.delenv(name, raising=False)
        patch.setattr(compose, "compose_config", _composed_once(compose.compose_config))
        made = functools.cache(typer.main.get_command)  # which a process of its own makes once
        patch.setattr(typer.main, "get_command", made)
        patch.setattr(stored, "filesystem", _as_on_a_disk(stored.filesystem))
        yield
        NURSERY.close()


@pytest.fixture(autouse=True)
def seeded():
    """What draws without a seed of its own draws the same, whichever tests came before it."""
    random.seed(0)
    np.random.seed(0)
    if torch is not None:
        torch.default_generator.manual_seed(0)


def _as_on_a_disk(filesystem: Callable[..., str]) -> Callable[..., str]:
    """`filesystem`, with ext4 for memory: `doctor` warns of a store there, where those of tests
    are."""
    return lambda *words: "ext4" if (kind := filesystem(*words)) == "tmpfs" else kind


def _composed_once(compose_config: Callable[..., Any]) -> Callable[..., Any]:
    """`compose_config`, the most of planning, asked once for what its answer depends on: its words,
    the groups that the tables of choices make, and the files of a `conf` of the user's that are in
    the place of ours or that the words name; all of them where one has defaults of its own."""
    known: dict[str, bytes] = {}

    def composed(name: str, words: list[str]) -> Any:
        files = sorted(file for file in Path("conf").rglob("*") if file.is_file())
        own = [(str(file), file.read_bytes()) for file in files]
        if not any(b"defaults" in content for _, content in own):
            text = " ".join([name, *words])
            own = [
                (place, content)
                for place, content in own
                if Path(place).stem in text or (REPOSITORY / place).exists()
            ]
        key = repr((name, words, conf.generated(), own))
        if key not in known:
            known[key] = pickle.dumps(compose_config(name, words))
        return pickle.loads(known[key])

    return composed


# --- Commands -----------------------------------------------------------------------------------

NURSERY = Nursery()
REPOSITORY = Path(__file__).resolve().parent.parent
GOLDEN = REPOSITORY / "tests" / "golden"  # a store, and what tables and screens print
ABLATE = str(Path(sys.executable).with_name("ablate"))
DATA = Path(os.environ.get("ABLATE_DATA", REPOSITORY.parent / "shared" / "data"))


@dataclass
class Done:
    """A command that ended: its exit code and what it printed."""

    code: int
    out: str
    err: str


SEVERAL = """
import contextlib, io, json, sys, traceback
from ablate import cli

done = []
for sys.argv[1:] in json.load(sys.stdin):
    code, out, err = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
    done.append({"code": code, "out": out.getvalue(), "err": err.getvalue()})
print()
print(json.dumps(done))
"""


@dataclass
class Shell:
    """`ablate` in a folder of its own, as a user has it: in this process, which has torch and the
    rest loaded, or, by `start` and `process`, in one of its own, where processes, signals and
    start-up are the point. Output goes to files: a pipe would stay open as long as a worker lives.
    """

    folder: Path
    number: int = 0

    def start(self, *words: str, **environment: str) -> subprocess.Popen:
        with self._files() as (out, err):
            line, there = [ABLATE, *map(str, words)], {**os.environ, **environment}
            files = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            return subprocess.Popen(line, cwd=self.folder, env=there, **files)

    def end(self, process: subprocess.Popen, timeout: float = 240) -> Done:
        number = self.number
        return self._done(number, process.wait(timeout))

    def _done(self, number: int, code: int) -> Done:
        texts = [(self.folder / f"{number}.{kind}").read_text() for kind in ("out", "err")]
        return Done(code, *texts)

    def process(self, *words: str, code: int = 0, **environment: str) -> Done:
        """Run to the end in a process of its own; the exit code must be `code`."""
        return _expected(code, self.end(self.start(*words, **environment)))

    def several(self, *lines: Sequence[str], **environment: str) -> list[Done]:
        """Commands one after the other in one process of their own: most of each is to start it."""
        ended = subprocess.run(
            [sys.executable, "-P", "-c", SEVERAL],
            input=json.dumps(lines),
            cwd=self.folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return [Done(**done) for done in json.loads(ended.stdout.splitlines()[-1])]

    def __call__(self, *words: str, code: int = 0, **environment: str) -> Done:
        """Run to the end; the exit code must be `code`."""
        with self._files() as files, _as_started(self.folder, files, environment):
            ended = _main(list(map(str, words)))
        return _expected(code, self._done(self.number, ended))

    def facts(self, *words: str) -> list[dict[str, str]]:
        """The lines of `ablate table WORDS --format tidy`."""
        return records(self("table", *words, "--format", "tidy").out)

    @contextlib.contextmanager
    def _files(self) -> Iterator[list]:
        self.number += 1
        with contextlib.ExitStack() as stack:
            yield [
                stack.enter_context(open(self.folder / f"{self.number}.{kind}", "wb"))
                for kind in ("out", "err")
            ]


def records(text: str) -> list[dict[str, str]]:
    """The lines of a CSV."""
    return [*csv.DictReader(io.StringIO(text))]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def wait_for(condition: Callable[[], Any], seconds: float = 180.0) -> Any:
    """What it says as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value


def forget(folder: Path, names: Iterable[str] | None = None) -> None:
    """The modules that were loaded from a folder."""
    for name in [*(sys.modules if names is None else names)]:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(f"{folder}/"):
            del sys.modules[name]


def refused(line: str) -> Any:
    """What is done in here must end in a UserError with that line, a regular expression."""
    return pytest.raises(UserError, match=line)


def _expected(code: int, done: Done) -> Done:
    assert done.code == code, f"exit code {done.code}\n{done.out}\n{done.err}"
    return done


def _main(words: list[str]) -> int:
    """`ablate WORDS` as the interpreter runs it: the exit code."""
    sys.argv[1:] = words
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


@contextlib.contextmanager
def _as_started(folder: Path, files: list, environment: Mapping[str, str]) -> Iterator[None]:
    """This process as a new one would be in that folder; afterwards as it was."""
    loaded, threads, handlers = set(sys.modules), torch.get_num_threads(), {}
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        stack.enter_context(warnings.catch_warnings())
        warnings.resetwarnings()
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
        patch.chdir(folder)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(fork, "subprocess", NURSERY)
        patch.setattr(sys, "argv", [ABLATE])
        patch.setattr(sys, "path", [str(Path(ABLATE).parent), *sys.path[1:]])
        for number in ENDING_SIGNALS:
            handlers[number] = signal.getsignal(number)
        null = stack.enter_context(open(os.devnull, "rb"))
        sys.stdout.flush()
        sys.stderr.flush()
        streams = (("stdin", null, "r"), ("stdout", files[0], "w"), ("stderr", files[1], "w"))
        for number, (name, file, mode) in enumerate(streams):
            kept = os.dup(number)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, number)
            os.dup2(file.fileno(), number)
            opened = stack.enter_context(open(number, mode, encoding="utf-8", closefd=False))
            patch.setattr(sys, name, opened)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(False)
            forget(folder, set(sys.modules) - loaded)  # classes of the user's own


@pytest.fixture
def shell(tmp_path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def store(tmp_path) -> Store:
    """A store that is not there yet."""
    return Store(tmp_path / "runs")


@pytest.fixture
def users(tmp_path, monkeypatch):
    """`users({"own.py": text})`: a folder of the user's with these files, in which this process
    works; what is loaded from it is forgotten after."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    yield write
    forget(tmp_path)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """An empty folder in which this process works."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def golden_store(here) -> Store:
    """Six finished runs of the sweep `fixture`, in ./runs."""
    return Store(shutil.copytree(GOLDEN / "store", here / "runs"))


@pytest.fixture
def one_thread():
    """Computes with one thread: the order of sums is then the same on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """Makes a folder for decoded data that the tests of a module share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def axe(tmp_path_factory) -> Path:
    return installed_axe(tmp_path_factory.mktemp("npm"))


@pytest.fixture
def ask(monkeypatch, capfd):
    """`ablate WORDS` in this process: its exit code and all that it printed."""
    monkeypatch.setattr(fork, "subprocess", NURSERY)

    def ask(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["ablate", *words])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        return code, "".join(capfd.readouterr())

    return ask


@pytest.fixture
def run(ask, here):
    """`run(words)`: what `ablate WORDS` prints in an empty folder; `code`: how it ends."""

    def run(*words, code=0):
        ended, text = ask(*map(str, words))
        assert ended == code, text
        return text

    return run


@pytest.fixture
def data_folder():
    """`data_folder("cifar10")`: the folder of a real dataset, or a skip that says what lacks."""

    def find(name: str) -> Path:
        if not (DATA / name).is_dir():
            pytest.skip(f"needs real data: {DATA / name} is not there (set ABLATE_DATA)")
        return DATA / name

    return find


# The longest first, by CPU seconds: two processes share the files, and neither shall end alone.
LONG = (
    *("test_ranks", "test_cli", "test_command", "test_trainer", "test_tune", "test_export"),
    *("test_middle_scale", "test_extending", "test_changes", "test_resume", "test_merge"),
    *("test_contract", "test_show", "test_training", "test_sweeps", "test_seeding", "test_sweep"),
    *("test_vit", "test_parents", "test_kept_seeds", "test_docs", "test_looks", "test_effects"),
    *("test_prepare", "test_plot", "test_contrastive", "test_launches", "test_launch"),
    *("test_model", "test_config", "test_readme", "test_fewshot", "test_edited", "test_report"),
    # of faults, for `make faults`
    *("test_kill", "test_damage", "test_repair", "test_pilots_lost", "test_rot", "test_faults"),
)


def pytest_collection_modifyitems(config, items):
    """What starts a cluster of its own runs only where `-m` names it."""
    if "cluster" not in config.option.markexpr:
        apart = {item for item in items if item.get_closest_marker("cluster")}
        config.hook.pytest_deselected(items=list(apart))
        items[:] = [item for item in items if item not in apart]
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


def pytest_sessionfinish(session):
    """Where ABLATE_REQUIRE_DATA is set nothing may be skipped for want of data or an oracle."""
    if os.environ.get("ABLATE_REQUIRE_DATA") and _missing and session.exitstatus == 0:
        print("\nskipped, and ABLATE_REQUIRE_DATA is set:", *sorted(set(_missing)), sep="\n  ")
        session.exitstatus = 1


_missing: list[str] = []


def pytest_runtest_logreport(report):
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if "real data" in reason or "could not import" in reason or "ABLATE_DATA" in reason:
            _missing.append(reason)
