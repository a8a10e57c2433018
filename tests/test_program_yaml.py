"""`ablate new trainer "COMMAND"`: the yaml that it writes plays the command back, or there is none.

The commands are of the kinds that READMEs of public projects have. Each yaml is filled here by
Python's own `format` and `shlex`, not by ablate.
"""

import json
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from support.programs import filled, number

from ablate.planning.expand import plan_from_words
from ablate.planning.settings import value_at

PLAYED = {
    "python train.py": {},
    "python train.py --lr 0.1 --seed 0 --out out": {"lr": 0.1},
    "python train.py config/tiny.py --bias=False --learning_rate=1e-3 --seed=1337": {
        "bias": {"default": "False", "choices": ["False", "True"]},
        "learning_rate": 0.001,
    },
    "python3 main.py --epochs 14 --no-accel --save-model --seed 1": {
        "epochs": 14,
        "no_accel": {"flag": "--no-accel", "default": True},
        "save_model": {"flag": "--save-model", "default": True},
    },
    "uv run --with numpy python -m pkg.train lr=0.1": {"lr": 0.1},
    "uv run train.py --lr 0.1 --steps=100": {"lr": 0.1, "steps": 100},
    "conda run -n env python train.py --model vit_s --batch-size 64": {
        "model": "vit_s",
        "batch_size": 64,
    },
    "accelerate launch --num_processes 1 --cpu main.py fit --model.lr 1e-3 --seed_everything 0": {
        "lr": 0.001
    },
    "torchrun --standalone --nproc_per_node=2 train.py --data-path data/imagenet -j 4": {
        "data_path": "data/imagenet",
        "j": 4,
    },
    "torchrun --nproc-per-node 2 -m pkg.main --opt adamw": {"opt": "adamw"},
    "python train.py --betas 0.9 0.95 --warmup 10": {"betas": [0.9, 0.95], "warmup": 10},
    "python train.py --temperature -1.5 --ids 1 2 3": {"temperature": -1.5, "ids": [1, 2, 3]},
    "python train.py --optim.lr 0.1 --sched.lr 0.2": {"optim_lr": 0.1, "sched_lr": 0.2},
    "python train.py --lr .1 --wd 5e-2 --momentum=1.": {"lr": 0.1, "wd": 0.05, "momentum": 1.0},
    "python train.py --tag 007 --version 1_0": {"tag": "007", "version": "1_0"},
    "python train.py --fp16 true --amp yes --pin on": {
        "fp16": True,
        "amp": {"default": "yes", "choices": ["yes", "no"]},
        "pin": {"default": "on", "choices": ["on", "off"]},
    },
    "python train.py '--note=a {b} c' --text 'two words'": {
        "note": "a {b} c",
        "text": "two words",
    },
    "python train.py --name x --gpus 2": {"name_": "x", "gpus_": 2},
    "python train.py --lr 0.1 --lr 0.2": {"lr": 0.1, "lr_": 0.2},
    "python train.py --resume '' --lr 1": {"lr": 1},
    "python train.py -v --lr=1 -- data": {"v": {"flag": "-v", "default": True}, "lr": 1},
    "python train.py train --random_state 3 --data-seed 5": {},
    "python train.py --rng-seed=4 results/": {},
    "python train.py train run work": {},
    "bash run.sh 10 0.5": {"arg1": 10, "arg2": 0.5},
    "julia --project=. train.jl --lr 0.1": {"lr": 0.1},
    "Rscript fit.R --formula 'y ~ x'": {"formula": "y ~ x"},
    "./bin/fit --threads 4 --c=1": {"threads_": 4, "c": 1},
    "sh -c 'cd sub && ./fit > log'": {},
    "python -c 'print(1)'": {},
    "java -jar fit.jar lr=0.1": {"lr": 0.1},
    "python train.py --key=value=other --url http://a/b?c": {
        "key": "value=other",
        "url": "http://a/b?c",
    },
    "python train.py --schedule '[1, 2]' --dict '{\"a\": 1}'": {
        "schedule": "[1, 2]",
        "dict": '{"a": 1}',
    },
    "python train.py --date 2026-01-02 --none null --octal 0o7 --time 1:30": {
        "date": "2026-01-02",
        "none": "null",
        "octal": "0o7",
        "time": "1:30",
    },
    "python train.py --größe 3": {"größe": 3},
    "nice -n 5 python train.py --lr 1": {"lr": 1},
    "SEED=3 WANDB_MODE=offline python train.py --lr 1": {"lr": 1},
    "env SEED=3 python train.py": {},
    "python train.py --x-y_z 2": {"x_y_z": 2},
    "python train.py --lr 1e3 --big 100000000000000000000": {
        "lr": 1000.0,
        "big": 100000000000000000000,
    },
}


@pytest.mark.parametrize("command", PLAYED)
def test_the_yaml_plays_the_command_back(shell, command):
    shell.folder.joinpath("train.py").touch()
    out = shell("new", "trainer", command, "--as", "mine").out
    declared = yaml.safe_load(Path(shell.folder, "conf/trainer/mine.yaml").read_text())
    typed = shlex.split(command)
    typed = typed[typed[0] == "env" :]
    env = declared.get("env", {})
    assert [f"{key}=" for key in env] == [word[: word.index("=") + 1] for word in typed[: len(env)]]
    assert env.get("SEED", "{seed}") == "{seed}"
    typed = typed[len(env) :]
    assert [*map(number, filled(declared, typed))] == [*map(number, typed)]
    assert declared["keys"] == PLAYED[command]
    assert "trainer=mine" in out.splitlines()[-1].split()


def test_a_number_may_be_spelled_as_python_spells_it(shell):
    """5e-05, which YAML 1.1 takes for a text."""
    shell.folder.joinpath("train.py").touch()
    shell("new", "trainer", "python train.py --lr 5e-5 --seed 0")
    for word in ("5e-05", "1e-4", "0.0001"):
        out = shell("config", "trainer=train", f"trainer.lr={word}", "--format", "json").out
        assert json.loads(out)["configuration"]["trainer"]["lr"] == float(word)


@pytest.mark.parametrize(("command", "file"), [("./a.sh", "./a.sh"), ("python b/c.py 3", "b/c.py")])
def test_a_script_that_is_not_there_is_named(shell, command, file):
    """A slip of the pen, else, ends in a run that fails."""
    assert f"no file {file} " in shell("new", "trainer", command).out
    shell.folder.joinpath("b").mkdir(exist_ok=True)
    shell.folder.joinpath(file).touch()
    shell.folder.joinpath("conf/trainer").joinpath(f"{Path(file).stem}.yaml").unlink()
    assert "no file" not in shell("new", "trainer", command).out
    assert "no file" not in shell("new", "trainer", "some-program --lr 3").out


def test_seeds_and_folders_become_placeholders(shell):
    commands = {
        "python a.py --seed 0": "{seed}",
        "python b.py --random_state=3": "{seed}",
        "python c.py --seed_everything 0 --out-dir x": "{seed} {folder}",
        "python f.py fit --seed_everything 0 --trainer.default_root_dir=x": "{seed} {folder}",
        "python d.py --save_path=here 5 results": "{folder} {folder}",
        "python e.py --num-seeds 3 --outer 2 run": "",
    }
    for command, places in commands.items():
        shell("new", "trainer", command)
        name = command.split()[1].removesuffix(".py")
        declared = yaml.safe_load(Path(shell.folder, f"conf/trainer/{name}.yaml").read_text())
        words = shlex.split(declared["command"])
        ours = [word.rpartition("=")[2] for word in words if "{seed}" in word or "{folder}" in word]
        assert ours == places.split() or ours == places.split()[:1], command


REFUSED = {
    "cd sub && bash run.sh --epochs 3": ("cd sub &&", "cwd: sub"),
    "bash run.sh --epochs 3 > log.txt": (">", "log.txt of a run"),
    "python train.py --lr 0.1 2>&1": (">&", "leave it out"),
    "python train.py < corpus.txt": ("<", "stdin: FILE"),
    "python train.py | tee log": ("|", "sh -c"),
    "python train.py; echo done": (";", "sh -c"),
    "python train.py --data $HOME/data": ("$HOME/data", "sh -c"),
    "python train.py --data $(pwd)": ("$(pwd)", "sh -c"),
    "CUDA_VISIBLE_DEVICES=0 python train.py": ("CUDA_VISIBLE_DEVICES=0", "leave it out"),
    "python train.py 'unclosed": ("unclosed", "quot"),
    "SEED=1 OTHER=2": ("new trainer", "such as"),
    "source env/bin/activate && python train.py": ("source env", "env/bin/python"),
    "conda activate new && python train.py": ("conda activate new &&", "conda run -n new"),
    "export A=offline; python train.py": ("export A=offline ;", "A=offline in front"),
    "python a.py && python b.py": ("&&", "sh -c"),
    "python a.py\npython b.py": ("several lines", "sh -c"),
    'python train.py --data "$HOME/data"': ("$HOME/data", "sh -c"),
    "python train.py --data ~/data": ("~/data", "write /"),
    "python train.py conf/trai*": ("conf/trai*", "quote it"),
    "python train.py --sched={warmup,cosine}": ("{warmup,cosine}", "quote it"),
    "python train.py '--dir=${now:%Y}'": ("${now:%Y}", "write the value"),
    "$ python train.py": ("$: ", "leave the prompt out"),
    "time python train.py": ("time: ", "leave it out"),
    "sbatch job.sh 0.1": ("sbatch: ", "launcher=slurm"),
    "python train.py  # on one GPU": ("# on one GPU", "leave it out"),
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_needs_a_shell_is_refused_with_the_way(shell, command):
    shell.folder.joinpath("conf").mkdir()
    shell.folder.joinpath("conf", "train.yaml").touch()  # which a pattern would match
    done = shell("new", "trainer", command, code=2)
    assert done.out == ""
    assert done.err.count("\n") == 1
    for words in REFUSED[command]:
        assert words in done.err
    assert not shell.folder.joinpath("conf", "trainer").exists()


MODULE = """
import json, os
import hydra
from hydra.core.hydra_config import HydraConfig
from pkg.size import scale


@hydra.main(version_base=None, config_path="configs", config_name="config")
def main(cfg):
    folder = HydraConfig.get().runtime.output_dir
    json.dump({"loss": scale(cfg.net.width)}, open(os.path.join(folder, "result.json"), "w"))


if __name__ == "__main__":
    main()
"""
PACKAGE = {
    "__init__.py": "",
    "train.py": MODULE,
    "size.py": "def scale(width):\n    return 3 * width\n",
    "configs/config.yaml": "defaults: [{net: narrow}, _self_]\nseed: 0\nlr: 1\n",
    "configs/net/narrow.yaml": "width: 2\n",
    "configs/net/wide.yaml": "width: 8\n",
}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("root", "is_folder"), [pytest.param("", False, marks=pytest.mark.slow), ("src", True)]
)
def test_a_hydra_application_that_is_started_as_a_module(shell, root, is_folder):
    """Its yaml has what that of a script has, and it is swept by the groups that it composes."""
    for name, text in PACKAGE.items():
        if is_folder and name == "train.py":
            name, text = "train/__main__.py", text.replace('"configs"', '"../configs"')
        path = shell.folder / root / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    variables = f"PYTHONPATH={root} " if root else ""
    command = f"{variables}{sys.executable} -m pkg.train lr=2 seed=3"
    out = shell("new", "trainer", command).out
    assert out.splitlines()[-1].endswith("trainer.net=narrow,wide")
    declared = yaml.safe_load(Path(shell.folder, "conf/trainer/train.yaml").read_text())
    assert shlex.split(declared["command"])[1:] == [
        *("-m", "pkg.train", "lr=2", "{overrides}", "seed={seed}", "hydra.run.dir={folder}")
    ]
    assert declared["keys"] == "hydra"
    package = f"{root}/pkg" if root else "pkg"
    assert f"{package}/configs/**/*.yaml" in declared["code"]
    shell("sweep", "trainer=train", "trainer.net=narrow,wide", "seeds=1", "launcher=inline")
    results = [
        json.loads(file.read_text()) for file in shell.folder.glob("runs/runs/*/result.json")
    ]
    assert sorted(result["test"]["loss"] for result in results) == [6, 24]


def test_a_second_program_of_the_same_name_has_another(shell):
    shell("new", "trainer", "python train.py --lr 1")
    refused = shell("new", "trainer", "python other/train.py --lr 2", code=2).err
    assert "conf/trainer/train.yaml" in refused
    assert "--as" in refused
    shell("new", "trainer", "python other/train.py --lr 2", "--as", "other")
    assert shell.folder.joinpath("conf/trainer/other.yaml").exists()
    for kind, name in (("trainer", "a-b"), ("norm", "other")):
        assert "--as" in shell("new", kind, "mine", "--as", name, code=2).err


PROGRAM = """\
import os, sys
words = [*sys.argv[1:], os.environ["SEED"], os.path.basename(os.getcwd()), sys.stdin.read().strip()]
print("words=" + "|".join(words))
print(f"loss={len(words)}")
"""
DECLARED = """\
command: "{python} fit.py {{amp}} --betas {{*betas}} --bias={{bias}} {{rest}} --v {{version}}"
env: {{SEED: "{{seed}}"}}
cwd: sub
stdin: in.txt
code: [sub/fit.py]
keys:
  amp: {{flag: --amp}}
  betas: [0.9, 0.95]
  bias: {{default: "False", choices: ["False", "True"]}}
  rest: ""
  version: "1.0"
result: {{lines: 'loss=(?P<loss>\\S+)'}}
metrics: {{loss: {{direction: less}}}}
"""


@pytest.fixture
def program(shell):
    """A program in a folder below, that prints what it was given."""
    files = {
        "sub/fit.py": PROGRAM,
        "in.txt": "hello",
        "conf/trainer/fit.yaml": DECLARED.format(python=sys.executable),
    }
    for name, text in files.items():
        path = shell.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return shell


def printed(shell) -> set[str]:
    return {
        line.removeprefix("words=")
        for log in shell.folder.glob("runs/runs/*/log.txt")
        for line in log.read_text().splitlines()
        if line.startswith("words=")
    }


@pytest.mark.whole
def test_flags_lists_variables_and_spellings_reach_the_program(program):
    program(
        "sweep",
        "trainer=fit",
        "trainer.amp=off,on",
        "trainer.bias=False,True",
        "seeds=2",
        "--as",
        "first",
    )
    tail = "--v|1.0"
    assert printed(program) == {
        f"{amp}--betas|0.9|0.95|--bias={bias}|{tail}|{seed}|sub|hello"
        for amp in ("", "--amp|")
        for bias in ("False", "True")
        for seed in (0, 1)
    }
    # One word more without a value, one less with an empty one.
    program("sweep", "trainer=fit", "trainer.rest=x", "trainer.version=1.10,2e3", "seeds=1")
    words = {line.partition("--bias=False|")[2] for line in printed(program)}
    assert {"x|--v|1.10|0|sub|hello", "x|--v|2e3|0|sub|hello"} <= words


@pytest.mark.parametrize(
    ("base", "options"),
    [({"trainer": "fit"}, {}), ({}, {"scale": "s"}), ({"trainer": "x"}, {"scale": "s"})],
)
def test_a_text_keeps_its_spelling_where_a_file_names_the_trainer(
    program, monkeypatch, base, options
):
    monkeypatch.chdir(program.folder)
    rows = [{"a": {}}, {"b": {"trainer.bias": "True"}}]
    scales = {"s": {"base": {"trainer": "fit"}}}
    sweep = {"base": base, "variants": rows, "seeds": 1, "scales": scales}
    Path("mine.yaml").write_text(json.dumps(sweep))
    words = ["./mine.yaml", "trainer.version=1.0,1.10,2e3"]
    plan, _ = plan_from_words(words, store=Path("runs"), **options)
    versions = [value_at(cell.spec.tree, "trainer.version") for cell in plan.cells]
    assert versions == ["1.0", "1.0", "1.10", "1.10", "2e3", "2e3"]


def test_what_a_program_starts_with_is_part_of_its_id(program):
    """Its variables, its folder and the word of a flag; and its input by its contents."""
    yaml_path = program.folder / "conf/trainer/fit.yaml"
    declared = yaml_path.read_text()

    def run_id() -> str:
        return json.loads(program("config", "trainer=fit", "--format", "json").out)["run"]

    first = run_id()
    changes = {
        "a variable": ("{SEED: ", "{EXTRA: x, SEED: "),
        "the folder": ("cwd: sub", "cwd: ."),
        "a flag's word": ("--amp", "--mixed"),
    }
    ids = [first]
    for old, new in changes.values():
        yaml_path.write_text(declared.replace(old, new))
        ids.append(run_id())
    yaml_path.write_text(declared)
    program.folder.joinpath("in.txt").write_text("other")
    ids.append(run_id())
    assert len({*ids}) == len(ids)
    program.folder.joinpath("in.txt").write_text("hello")
    assert run_id() == first


def test_code_may_be_a_folder(program):
    """All files in it, without what Python compiles."""
    yaml_path = program.folder / "conf/trainer/fit.yaml"
    folder = program.folder / "sub"
    folder.joinpath("more").mkdir()
    folder.joinpath("more", "a.txt").write_text("a")
    folder.joinpath("__pycache__").mkdir()
    folder.joinpath("__pycache__", "fit.pyc").write_text("b")
    yaml_path.write_text(yaml_path.read_text().replace("[sub/fit.py]", "[sub]"))
    done = program("config", "trainer=fit", "--format", "json")
    assert {*json.loads(done.out)["configuration"]["code"]["files"]} == {
        "sub/fit.py",
        "sub/more/a.txt",
    }


MISTAKES = {
    "amp: {flag: --amp, choices: [1]}": ("trainer.keys.amp.choices", "flag"),
    "amp: {flag: ''}": ("trainer.keys.amp.flag", "--amp"),
    "amp: {flag: --amp, default: maybe}": ("trainer.keys.amp.default", "maybe"),
}


@pytest.mark.parametrize("declaration", MISTAKES)
def test_a_mistake_in_a_flag_is_one_line(program, declaration):
    yaml_path = program.folder / "conf/trainer/fit.yaml"
    yaml_path.write_text(yaml_path.read_text().replace("amp: {flag: --amp}", declaration))
    error = program("plan", "trainer=fit", "seeds=1", code=2).err
    assert error.count("\n") == 1
    for words in MISTAKES[declaration]:
        assert words in error


def test_paths_stay_within_the_folder(program):
    yaml_path = program.folder / "conf/trainer/fit.yaml"
    declared = yaml_path.read_text()
    for key, path in (("cwd: sub", "cwd: ../sub"), ("stdin: in.txt", "stdin: /etc/hostname")):
        yaml_path.write_text(declared.replace(key, path))
        error = program("plan", "trainer=fit", "seeds=1", code=2).err
        assert f"trainer.{key.partition(':')[0]}" in error
        assert path.partition(": ")[2] in error
