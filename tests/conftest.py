"""Fixtures that several files of tests share."""

import importlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from ablate import cli


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
    """The same on every machine: workers on the CPU, the store in the folder, no forced colours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where in the background
        for name in ("ABLATE_STORE", "FORCE_COLOR", "NO_COLOR", "COLUMNS"):
            patch.delenv(name, raising=False)
        yield


# --- Real processes -----------------------------------------------------------------------------

REPOSITORY = Path(__file__).resolve().parent.parent
ABLATE = str(Path(sys.executable).with_name("ablate"))
DATA = Path(os.environ.get("ABLATE_DATA", REPOSITORY.parent / "shared" / "data"))


@dataclass
class Done:
    """A command that ended: its exit code and what it printed."""

    code: int
    out: str
    err: str


@dataclass
class Shell:
    """`ablate` in a folder of its own, as a user has it. Output goes to files: a pipe would stay
    open as long as a worker lives."""

    folder: Path
    number: int = 0

    def start(self, *words: str, **environment: str) -> subprocess.Popen:
        self.number += 1
        files = [self.folder / f"{self.number}.{kind}" for kind in ("out", "err")]
        with open(files[0], "wb") as out, open(files[1], "wb") as err:
            return subprocess.Popen(
                [ABLATE, *map(str, words)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **environment},
            )

    def end(self, process: subprocess.Popen, timeout: float = 240) -> Done:
        number = self.number
        code = process.wait(timeout)
        texts = [(self.folder / f"{number}.{kind}").read_text() for kind in ("out", "err")]
        return Done(code, *texts)

    def __call__(self, *words: str, code: int = 0, **environment: str) -> Done:
        """Run to the end; the exit code must be `code`."""
        done = self.end(self.start(*words, **environment))
        assert done.code == code, f"exit code {done.code}\n{done.out}\n{done.err}"
        return done


@pytest.fixture
def shell(tmp_path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def ask(monkeypatch, capfd):
    """`ablate WORDS` in this process: its exit code and all that it printed."""

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
def data_folder():
    """`data_folder("cifar10")`: the folder of a real dataset, or a skip that says what lacks."""

    def find(name: str) -> Path:
        if not (DATA / name).is_dir():
            pytest.skip(f"needs real data: {DATA / name} is not there (set ABLATE_DATA)")
        return DATA / name

    return find


LONG = ("test_kill", "test_tune")


def pytest_collection_modifyitems(items):
    """The longest files first: two processes share the files, and neither shall end alone."""
    items.sort(key=lambda item: item.path.stem not in LONG)


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
