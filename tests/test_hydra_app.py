"""Hydra applications as they are: what each run had is what the application itself says, in its own
environment, whatever composes it there: plugins, a ConfigStore, optional and interpolated defaults,
experiments."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from conftest import Shell
from support.programs import results

ENV_PYTHON = "env/bin/python"
APP = """
import json, os
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, List, Optional

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, OmegaConf

open("starts", "a").write("x")
print("loading the application")


class Mode(Enum):
    FAST = 1
    EXACT = 2


@dataclass
class MySQL:
    driver: str = "mysql"
    port: int = 3306


@dataclass
class Postgres:
    driver: str = "postgres"
    port: int = 5432
    timeout: Optional[float] = None


@dataclass
class Config:
    defaults: List[Any] = field(default_factory=lambda: [{"db": "mysql"}, "_self_"])
    db: Any = MISSING
    mode: Mode = Mode.FAST
    rate: float = 1e-3
    label: str = "${db.driver}-${mode}"
    data: str = "${oc.env:HOME}/data"
    seed: int = 0


store = ConfigStore.instance()
store.store(name="config", node=Config)
store.store(group="db", name="mysql", node=MySQL)
store.store(group="db", name="postgres", node=Postgres)


@hydra.main(version_base=None, config_name="config")
def main(cfg):
    folder = HydraConfig.get().runtime.output_dir
    tree = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    json.dump(tree, open(os.path.join(folder, "cfg.json"), "w"))
    json.dump({"loss": cfg.rate}, open(os.path.join(folder, "result.json"), "w"))


if __name__ == "__main__":
    main()
"""
FILES_APP = """
import json, os
import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

open("starts", "a").write("x")


@hydra.main(version_base=None, config_path="configs", config_name="config")
def main(cfg):
    folder = HydraConfig.get().runtime.output_dir
    json.dump(OmegaConf.to_container(cfg, resolve=True), open(f"{folder}/cfg.json", "w"))
    json.dump({"loss": cfg.width}, open(f"{folder}/result.json", "w"))


if __name__ == "__main__":
    main()
"""
# Hydra's own examples: patterns/configuring_experiments, and interpolated defaults that may lack
# their file.
CONFIGS = {
    "config": "defaults: [{server: apache}, {db: mysql}, "
    "{optional server_db: '${server}_${db}'}, _self_]\nwidth: 8\nseed: 0\n",
    "server/apache": "name: apache\nport: 80\n",
    "server/nginx": "name: nginx\nport: 81\n",
    "db/mysql": "name: mysql\n",
    "db/sqlite": "name: sqlite\n",
    "server_db/apache_sqlite": "path: here\n",
    "experiment/aplite": "# @package _global_\ndefaults: [{override /db: sqlite}]\nwidth: 16\n",
    "experiment/nglite": "# @package _global_\n"
    "defaults: [{override /db: sqlite}, {override /server: nginx}]\nserver: {port: 8080}\n",
}
COMMAND = "python app.py {overrides} seed={seed} hydra.run.dir={folder}"
INLINE = "launcher=inline"


@pytest.fixture
def shell(shell, monkeypatch) -> Shell:
    """In a folder with an application, where `python` is that of the environment."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (shell.folder / "app.py").write_text(APP)
    declare(shell)
    return shell


@pytest.fixture
def of_files(shell) -> Shell:
    (shell.folder / "app.py").write_text(FILES_APP)
    for name, text in CONFIGS.items():
        configure(shell, name, text)
    return shell


def configure(shell: Shell, name: str, text: str) -> None:
    path = shell.folder / "configs" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def declare(shell: Shell, **changes: object) -> None:
    yaml = {
        "command": COMMAND,
        "keys": "hydra",
        "result": {"file": "result.json"},
        "metrics": {"loss": {"direction": "less"}},
        "code": ["app.py"],
        **changes,
    }
    path = shell.folder / "conf" / "trainer" / "app.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(yaml))


def configurations(shell: Shell) -> list[dict]:
    """What each run had, as it wrote it itself."""
    files = shell.folder.glob("runs/runs/*/scratch/cfg.json")
    return [json.loads(file.read_text()) for file in files]


def starts(shell: Shell) -> int:
    file = shell.folder / "starts"
    return len(file.read_text()) if file.exists() else 0


# --- What composes it ---------------------------------------------------------------------------


@pytest.mark.whole
def test_a_structured_application_is_swept_by_its_groups_and_keys(shell):
    words = ("trainer=app", "trainer.db=mysql,postgres", "trainer.mode=EXACT", "seeds=2", INLINE)
    shell("sweep", *words)
    had = {(tree["db"]["driver"], tree["seed"]): tree for tree in configurations(shell)}
    assert {*had} == {(driver, seed) for driver in ("mysql", "postgres") for seed in (0, 1)}
    assert had["postgres", 1]["db"] == {"driver": "postgres", "port": 5432, "timeout": None}
    assert {tree["mode"] for tree in had.values()} == {"EXACT"}
    assert had["mysql", 0]["label"] == "mysql-Mode.EXACT"
    for file in shell.folder.glob("runs/runs/*/run.json"):  # not what an environment decides
        assert "data" not in json.loads(file.read_text())["spec"]["trainer"]


@pytest.mark.whole
@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("trainer.db=mysql,postgre", "trainer.db: expected one of mysql, postgres, got 'postgre'"),
        ("trainer.db.prt=1,2", "'db.prt' (did you mean 'db.port'?)"),
        ("trainer.db.port=x,2", "Error merging override db.port=x: Value 'x' of type 'str'"),
        ("trainer.mode=EXACT,SLOW", "Invalid value 'SLOW', expected one of [FAST, EXACT]"),
    ],
)
def test_the_types_of_a_structured_application_are_checked_before_a_run(shell, word, line):
    said = shell("plan", "trainer=app", word, "seeds=1", code=2).err
    assert line in said
    assert len(said.splitlines()) == 1


@pytest.fixture
def env(shell) -> Path:
    """An environment of the application's own, with a plugin and a module that ours lacks."""
    folder = shell.folder / "env"
    venv = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)]
    subprocess.run(venv, check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib"))
    plugin = packages / "hydra_plugins" / "own_configs"
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").write_text(
        "from hydra.core.config_store import ConfigStore\n"
        "from hydra.core.config_search_path import ConfigSearchPath\n"
        "from hydra.plugins.search_path_plugin import SearchPathPlugin\n"
        "class Own(SearchPathPlugin):\n"
        "    def manipulate_search_path(self, search_path):\n"
        "        ConfigStore.instance().store(group='size', name='tiny', node={'width': 2})\n"
        "        ConfigStore.instance().store(group='size', name='huge', node={'width': 64})\n"
    )
    (packages / "only_here.py").write_text("VALUE = 1\n")
    configure(shell, "config", "defaults: [{size: tiny}, _self_]\nwidth: 8\nseed: 0\n")
    return folder


@pytest.mark.whole
@pytest.mark.parametrize("start", [ENV_PYTHON, pytest.param("./start.sh", marks=pytest.mark.slow)])
def test_an_application_with_an_environment_of_its_own(shell, env, start):
    (shell.folder / "app.py").write_text("import only_here\n" + FILES_APP)
    script = shell.folder / "start.sh"
    script.write_text(f'#!/bin/sh\nexec {shell.folder / ENV_PYTHON} "$@"\n')
    script.chmod(0o755)
    declare(shell, command=COMMAND.replace("python", start))
    shell("sweep", "trainer=app", "trainer.size=tiny,huge", "seeds=1", INLINE)
    assert sorted(tree["size"]["width"] for tree in configurations(shell)) == [2, 64]
    declare(shell)  # in ours
    said = shell("plan", "trainer=app", "trainer.size=tiny,huge", "seeds=1", code=2).err
    assert "named 'only_here'" in said


@pytest.mark.whole
def test_experiments_that_the_defaults_lack_are_swept(of_files):
    of_files("sweep", "trainer=app", "trainer.experiment=aplite,nglite", "seeds=1", INLINE)
    had = {tree["server"]["name"]: tree for tree in configurations(of_files)}
    assert had["apache"]["width"] == 16
    assert had["apache"]["server_db"] == {"path": "here"}  # an interpolated, optional default
    assert had["nginx"]["server"]["port"] == 8080
    assert {tree["db"]["name"] for tree in had.values()} == {"sqlite"}
    assert "server_db" not in had["nginx"]


@pytest.mark.whole
def test_odd_keys_and_endless_numbers_refuse_no_application(of_files):
    """They stay in what its runs are known by. A number that JSON lacks is the text of the YAML."""
    configure(of_files, "data-module/a-1", "size: 1\n")
    odd = (
        "id2label: {0: cat, 1: dog}\noptimizer: {weight-decay: 0.1, an odd key: 2}\n"
        "clip: .inf\nbounds: [-.inf, .nan, 1]\n"
    )
    text = CONFIGS["config"].replace("[{server", "[{data-module: a-1}, {server")
    configure(of_files, "config", text + odd)
    expected = {
        "data-module": "a-1",
        "data-module.size": 1,
        "id2label.0": "cat",
        "id2label.1": "dog",
        "optimizer.weight-decay": 0.2,
        "optimizer.an odd key": 2,
        "clip": ".inf",
        "bounds": ["-.inf", ".nan", 1],
    }
    had = settings(of_files, "trainer.optimizer.weight-decay=0.2")
    assert {key: had.get(key) for key in expected} == expected
    of_files("sweep", "trainer=app", "trainer.clip=.inf,1", "seeds=1", INLINE)
    assert sorted(tree["clip"] for tree in configurations(of_files)) == [1, math.inf]


@pytest.mark.whole
def test_values_of_another_type_than_the_default_reach_the_application(of_files):
    """Where Hydra takes them: only a text in the place of a number is a mistake."""
    for layers in (18, 50):
        configure(of_files, f"depth/{layers}", f"layers: {layers}\n")
    text = CONFIGS["config"].replace("[{server", "[{depth: '18'}, {server")
    configure(of_files, "config", text + "dropout: 0\nlimit: 8\nprecision: 16-mixed\n")
    changes = {"dropout": 0.5, "limit": None, "precision": 32}
    words = ["trainer.dropout=0.5", "trainer.limit=null", "trainer.precision=32"]
    of_files("sweep", "trainer=app", *words, "trainer.depth=50", "seeds=1", INLINE)
    [tree] = configurations(of_files)
    assert {key: tree[key] for key in changes} == changes
    assert tree["depth"] == {"layers": 50}
    assert settings(of_files, "trainer.depth=18") == settings(of_files)
    zero = settings(of_files, "trainer.dropout=0.0")["dropout"]
    assert (zero, type(zero)) == (0, float)
    refused = of_files("config", "trainer=app", "trainer.limit=a", code=2).err
    assert refused.startswith("ablate: trainer.keys.limit")


@pytest.mark.whole
@pytest.mark.parametrize(
    "start",
    [
        "python app.py --config-name other",
        pytest.param("python -m package.app", marks=pytest.mark.slow),
        pytest.param("env python app.py", marks=pytest.mark.slow),
    ],
)
def test_other_ways_to_start_it(of_files, start):
    """What the command has, and its overrides, hold for each run."""
    (of_files.folder / "package").mkdir()
    configs = FILES_APP.replace('config_path="configs"', 'config_path="../configs"')
    (of_files.folder / "package" / "app.py").write_text(configs)
    configure(of_files, "other", CONFIGS["config"].replace("width: 8", "width: 5"))
    declare(of_files, command=COMMAND.replace("python app.py", f"{start} server=nginx"))
    of_files("sweep", "trainer=app", "trainer.db=mysql,sqlite", "seeds=1", INLINE)
    had = configurations(of_files)
    assert sorted(tree["db"]["name"] for tree in had) == ["mysql", "sqlite"]
    assert {tree["server"]["port"] for tree in had} == {81}
    assert {tree["width"] for tree in had} == {5 if "other" in start else 8}


# --- What is remembered -------------------------------------------------------------------------


@pytest.mark.whole
def test_the_application_is_asked_again_only_where_its_files_changed(of_files):
    words = ("plan", "trainer=app", "trainer.width=8,9", "seeds=1")
    assert "2 runs" in of_files(*words).out
    once = starts(of_files)
    assert once == 2  # its defaults, and the row that has another value
    of_files(*words)
    assert starts(of_files) == once
    configure(of_files, "config", CONFIGS["config"] + "depth: 2\n")
    of_files("plan", "trainer=app", "trainer.depth=2,3", "seeds=1")
    with open(of_files.folder / "app.py", "a") as file:
        file.write("# edited\n")
    asked = starts(of_files)
    of_files(*words)
    assert starts(of_files) == asked + once


@pytest.mark.whole
def test_a_file_of_what_was_composed_that_rotted_is_composed_again(of_files):
    words = ("plan", "trainer=app", "trainer.width=8,9", "seeds=1")
    of_files(*words)
    once = starts(of_files)
    for file in of_files.folder.glob("runs/cache/hydra/*.json"):
        file.write_text(file.read_text().replace("8", "7"))
    assert "2 runs" in of_files(*words).out
    assert starts(of_files) == 2 * once


@pytest.mark.whole
def test_reading_results_starts_no_application(of_files):
    of_files("sweep", "trainer=app", "trainer.width=8,9", "seeds=1", INLINE)
    once = starts(of_files)
    with open(of_files.folder / "app.py", "a") as file:
        file.write("# edited\n")  # what was composed of it no longer holds
    for command in ("table", "status", "verify"):
        of_files(command)
    assert starts(of_files) == once
    assert len(results(of_files.folder)) == 2


def settings(shell: Shell, *words: str) -> dict:
    """What a run would have."""
    out = shell("config", "trainer=app", *words, "--format", "json").out
    return json.loads(out)["configuration"]["trainer"]


@pytest.mark.whole
def test_new_options_of_a_group_are_seen(of_files):
    """Though no file that was there changed."""
    assert settings(of_files)["db"] == "mysql"
    configure(of_files, "db/postgres", "name: postgres\n")
    assert settings(of_files, "trainer.db=postgres")["db"] == "postgres"
    (of_files.folder / "configs/db/postgres.yaml").unlink()
    refused = of_files("plan", "trainer=app", "trainer.db=postgres,mysql", "seeds=1", code=2)
    assert "one of mysql, sqlite" in refused.err


EDITS_ITSELF = """
path = os.path.join(os.path.dirname(__file__), "configs", "config.yaml")
text = open(path).read()
import atexit
if "width: 8" in text:
    atexit.register(lambda: open(path, "w").write(text.replace("width: 8", "width: 5")))
"""


@pytest.mark.whole
def test_an_edit_while_it_is_loaded_is_seen_the_next_time(of_files):
    """The file is written behind the composition, as by an editor at the wrong moment."""
    (of_files.folder / "app.py").write_text(FILES_APP.replace("\n\n\n@", EDITS_ITSELF + "\n\n@", 1))
    assert settings(of_files)["width"] == 8
    assert settings(of_files)["width"] == 5
    once = starts(of_files)
    settings(of_files)
    assert starts(of_files) == once


@pytest.mark.whole
def test_what_decides_a_composition_besides_its_files(of_files, monkeypatch):
    """A variable that a default names, and the modules and programs that are found first."""
    text = "defaults: [{server: apache}, {db: '${oc.env:DB}'}, _self_]\nwidth: 8\nseed: 0\n"
    configure(of_files, "config", text)
    for variable, value in (("DB", "mysql"), ("DB", "sqlite"), ("DB", "mysql")):
        monkeypatch.setenv(variable, value)
        assert settings(of_files)["db"] == value
    once = starts(of_files)
    assert once == 3
    monkeypatch.setenv("OTHER", "x")  # is no part of it
    settings(of_files)
    assert starts(of_files) == once
    (of_files.folder / "first").mkdir()
    (of_files.folder / "first" / "hydra.py").write_text("raise ValueError('another hydra')")
    monkeypatch.setenv("PYTHONPATH", str(of_files.folder / "first"))
    assert "ValueError: another hydra" in of_files("config", "trainer=app", code=2).err
    monkeypatch.delenv("PYTHONPATH")
    python = of_files.folder / "first" / "python"
    python.write_text("#!/bin/sh\nexit 7\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{python.parent}:{os.environ['PATH']}")
    assert "it printed nothing" in of_files("config", "trainer=app", code=2).err


@pytest.mark.whole
def test_a_package_of_configuration_is_read_anew(of_files):
    """It may lie anywhere, so that nobody sees its edits."""
    package = of_files.folder / "shared_configs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "config.yaml").write_text("width: 3\n")
    app = FILES_APP.replace('config_path="configs"', 'config_path="pkg://shared_configs"')
    (of_files.folder / "app.py").write_text(app)
    declare(of_files, command=COMMAND.replace(" seed={seed}", ""))
    of_files.folder.joinpath("env").mkdir()
    assert settings(of_files)["width"] == 3
    (package / "config.yaml").write_text("width: 4\n")
    assert settings(of_files)["width"] == 4


@pytest.mark.whole
def test_a_configuration_next_to_the_script(of_files):
    """Its folder is the one that everything lies in: runs, environments, links to nowhere."""
    app = FILES_APP.replace('config_path="configs"', 'config_path="."')
    (of_files.folder / "app.py").write_text(app)
    (of_files.folder / "config.yaml").write_text("width: 3\nseed: 0\n")
    (of_files.folder / "dangling.yaml").symlink_to("nowhere.yaml")
    settings(of_files)  # Python writes its cache into the folder
    settings(of_files)
    once = starts(of_files)
    for ours in ("runs/x/scratch/a.yaml", "env/lib/b.yaml", "env/pyvenv.cfg", ".hydra/c.yaml"):
        (of_files.folder / ours).parent.mkdir(parents=True, exist_ok=True)
        (of_files.folder / ours).touch()
    assert settings(of_files)["width"] == 3
    assert starts(of_files) == once
    (of_files.folder / "config.yaml").write_text("width: 4\nseed: 0\n")
    assert settings(of_files)["width"] == 4


# --- What it prints, and how it fails -----------------------------------------------------------


@pytest.mark.whole
def test_what_else_the_program_prints_is_no_configuration(of_files):
    noise = FILES_APP.replace("import hydra\n", "import hydra\nprint('hydra:\\n  x: 1\\nlr: 2')\n")
    (of_files.folder / "app.py").write_text(noise + "    print('elapsed: 3.5')\n    print('- x')\n")
    assert {"elapsed", "lr"}.isdisjoint(settings(of_files))
    assert settings(of_files)["width"] == 8


@pytest.mark.whole
def test_a_text_of_several_lines_stays_in_the_configuration(of_files):
    """It becomes no word of the command, unlike one that is typed."""
    configure(of_files, "config", CONFIGS["config"] + "note: |\n  one\n  two\n")
    assert settings(of_files)["note"] == "one\ntwo\n"
    error = of_files("config", "trainer=app", "trainer.note='a\nb'", code=2).err
    assert "trainer.note" in error
    assert error.count("\n") == 1


@pytest.mark.whole
def test_a_key_that_the_command_fills_is_neither_missing_nor_a_setting(of_files):
    configure(of_files, "config", CONFIGS["config"].replace("seed: 0", "seed: ???\nlr: ???"))
    had = settings(of_files, "trainer.lr=1")
    assert (had["lr"], "seed" in had) == (1, False)
    assert "trainer.lr: missing" in of_files("config", "trainer=app", code=2).err
    error = of_files("config", "trainer=app", "trainer.seed=3", "trainer.lr=1", code=2).err
    assert "trainer.seed" in error
    assert "seed={seed}" in error


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named"),
        ("raise SystemExit('no data in /data')", "no data in /data"),
        ("raise KeyError('x') from ValueError('y')", "KeyError: 'x': ValueError: y"),
    ],
)
def test_why_an_application_does_not_start(of_files, line, cause):
    (of_files.folder / "app.py").write_text(f"{line}\n{FILES_APP}")
    error = of_files("config", "trainer=app", code=2).err
    assert cause in error
    assert error.count("\n") == 1


@pytest.mark.whole
def test_a_cause_within_the_configuration(of_files):
    """Hydra wraps it, and says by default only the outer half."""
    configure(of_files, "server/nginx", "name: [nginx\n")
    error = of_files("config", "trainer=app", "trainer.server=nginx", code=2).err
    assert "nginx.yaml" in error
    assert "HYDRA_FULL_ERROR" not in error


def test_an_application_that_takes_too_long_ends_with_all_that_it_started(of_files, monkeypatch):
    monkeypatch.setattr("ablate.planning.hydra_app.ANSWER_S", 1.0)
    starter = (
        "import subprocess\nopen('child', 'w').write(str(subprocess.Popen(['sleep', '60']).pid))"
    )
    wait = "import time\ntime.sleep(60)"
    (of_files.folder / "app.py").write_text(f"{starter}\n{wait}\n{FILES_APP}")
    error = of_files("config", "trainer=app", code=2).err
    assert "1 s" in error
    child = int((of_files.folder / "child").read_text())
    deadline = time.monotonic() + 10
    while is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_folder_that_is_not_there_is_named(of_files):
    declare(of_files, cwd="nosuch")
    error = of_files("config", "trainer=app", code=2).err
    assert error.startswith("ablate: trainer.cwd: ")
    assert "nosuch" in error


@pytest.mark.whole
def test_a_dollar_in_the_path_of_an_application_is_named(of_files):
    """Hydra fills its help by string.Template, which takes it for a variable."""
    folder = of_files.folder / "a$b"
    folder.mkdir()
    for name in ("app.py", "configs", "conf"):
        (of_files.folder / name).rename(folder / name)
    error = Shell(folder)("config", "trainer=app", code=2).err
    assert str(folder) in error
    assert "rename" in error
    assert error.count("\n") == 1


def test_the_folders_of_its_configuration_are_walked_once(of_files, monkeypatch):
    walked = []
    walk = os.walk

    def counting(folder, **options):
        walked.append(str(folder))
        return walk(folder, **options)

    monkeypatch.setattr(os, "walk", counting)
    of_files("config", "trainer=app")
    assert walked.count(str(of_files.folder / "configs")) == 1


@pytest.mark.whole
def test_the_seed_is_a_key_of_the_application_s_own(of_files):
    """Also where it lies deeper: a key of ours beside it would leave every run with one seed."""
    shutil.rmtree(of_files.folder / "conf")
    places = {
        ("seed: 0", ""): ["seed={seed}"],
        ("training: {seed: 3, steps: 1}", ""): ["training.seed={seed}"],
        ("training: {seed: 3}", " training.seed=42"): ["training.seed={seed}"],
        ("steps: 1", " +rng.seed=42"): ["+rng.seed={seed}"],
        ("steps: 1", ""): [],
    }
    for number, ((config, words), seeds) in enumerate(places.items()):
        configure(of_files, "config", config)
        out = of_files("new", "trainer", f"python app.py{words}", "--as", f"t{number}").out
        yaml_path = of_files.folder / "conf" / "trainer" / f"t{number}.yaml"
        [command] = [
            line for line in yaml_path.read_text().splitlines() if line.startswith("command: ")
        ]
        assert [word for word in command.split() if "seed" in word] == seeds
        assert ("{seed}" in out) == (not seeds)
    assert "-m: " in of_files("new", "trainer", "python app.py -m steps=1,2", code=2).err
