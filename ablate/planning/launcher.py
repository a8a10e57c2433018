"""The launchers as data, each with settings of its own, and the settings that all launchers share.

No setting of a launcher changes a result.

The launchers themselves are in running/launchers. Those of clusters are files of conf/launcher
(planning/engine.py), which say what becomes of a setting. `logger.py` uses `chosen_settings`, too.

Used by `planning/compose.py` and `running/launchers/__init__.py` for `ablate sweep`, and by
`report/listing.py` (`ablate list launchers`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from ablate.planning.engine import ENGINE_FIELDS, EngineFile
from ablate.run import (
    Choice,
    Param,
    check_keys,
    read_settings,
)
from ablate.shared import UserError, unknown_value

World = Literal["auto", 1, 2, 4, 8]  # devices of a run
GPU_PARAMS = {  # of the launchers that group GPUs
    "runs_per_gpu": Param(
        Literal["auto"] | int,
        "auto",
        "runs that share a GPU; auto: as many as keep it busy and fit (on a cluster: 1)",
        above=0,
    ),
    "gpus_per_run": Param(
        World,
        1,
        "GPUs of each run; deterministic runs give the bits of one GPU; auto: chosen for each "
        "column, so that the sweep ends soonest",
    ),
}
LAUNCHERS: dict[str, Choice] = {
    "local": Choice(
        "trains one run on each GPU; without a GPU, one on each CPU core",
        "-",
        "ablate.running.launchers.local:Local",
        {
            "devices": Param(str, "auto", "auto: all GPUs; cpu; or GPUs by index or UUID: 0,2"),
            **GPU_PARAMS,
            "cores_per_run": Param(
                World, 1, "on CPUs: ranks of each run; the bits are those of one; auto: by column"
            ),
        },
    ),
    "inline": Choice(
        "trains one run at a time, in the command's own process",
        "-",
        "ablate.running.launchers.local:Inline",
        {"devices": Param(str, "cpu", "cpu, or one GPU by index or UUID")},
    ),
}
ENGINE_PARAMS: dict[str, Param] = {  # of every launcher that is a file
    "jobs": Param(int, 1, "jobs at most at once", above=0),
    "nodes": Param(int, 1, "nodes of a job", above=0),
    "gpus": Param(int, 1, "GPUs of each node; 0: trains on CPUs", least=0),
    "cpus": Param(int, 4, "CPUs of each GPU, or of each node without", above=0),
    "time": Param(str, "4:00:00", "limit of a job: minutes, H:MM:SS, D-HH:MM; a run may be longer"),
    "setup": Param(str, "", "shell lines before ablate starts in a job"),
    "python": Param(str, "", "Python of the nodes; empty: at the path of this one"),
    "grace_s": Param(
        int, 90, "seconds for checkpoints, before the time limit or at preemption", above=0
    ),
    "devices": Param(str, "auto", "auto: the GPUs of the job; cpu"),
    **GPU_PARAMS,
    "cache": Param(str, "", "folder of the node: data is copied there once"),
}
# Settings of a job that a file may leave out: those whose places it has.
_PLACES_OF = {"nodes": ("nodes",), "time": ("time", "seconds", "minutes")}
DRIVER_KEYS: dict[str, Param] = {  # keys of every launcher
    "attempts": Param(int, 3, "deaths without a newer checkpoint that make a run failed", above=0),
    "hang_s": Param(
        float, 1800.0, "seconds without a sign of life before the driver kills a run", above=0
    ),
    "checkpoint_s": Param(float, 60.0, "seconds of training between checkpoints", above=0),
}


def launcher_params(name: str) -> dict[str, Param]:
    """Return every setting of a launcher of LAUNCHERS: its own and the shared ones."""
    return {**DRIVER_KEYS, **LAUNCHERS[name].params}


def engine_params(engine: EngineFile) -> dict[str, Param]:
    """Return the settings that a launcher of a file has of its own."""
    params = {
        key: param
        for key, param in ENGINE_PARAMS.items()
        if key not in _PLACES_OF or engine.uses(*_PLACES_OF[key])
    }
    params |= {key: Param(str, "", line) for key, line in engine.settings.items()}
    if engine.takes_options:
        line = f"other keys of {engine.program}, as in a=1 b; a=null leaves out one of ours"
        params[engine.program] = Param(str, "", line)
    return params


def launcher_choice(name: str, tree: Mapping[str, Any]) -> Choice:
    """Return a launcher with the settings of its own. `tree`: its section, which has their defaults
    where its file gives some. Raises UserError for a mistake in its file."""
    choice = LAUNCHERS.get(tree.get("name", name))
    if choice is not None:
        return choice
    engine = EngineFile.of({key: tree[key] for key in ENGINE_FIELDS if key in tree})
    params = {
        key: replace(param, default=tree.get(key, param.default))
        for key, param in engine_params(engine).items()
    }
    choice = Choice("", "-", "", params)
    engine.check_places(choice.params)
    return choice


def joined(value: Any) -> Any:
    """Return a whole number or a text, or a list of them, as one text: "10", "0,2".

    Other values are returned as they are.
    """
    values = value if isinstance(value, list) else [value]
    return value if any(type(v) not in (int, str) for v in values) else ",".join(map(str, values))


def launcher_settings(
    tree: Mapping[str, Any], launchers: Callable[[], Mapping[str, Choice]] = dict
) -> dict[str, Any]:
    """Return the launcher's name and every setting, checked, with defaults for absent keys. A
    launcher of a file also has `engine`, the content of the file.

    `launchers`: all launchers, which an error may need. Raises UserError for an unknown launcher or
    setting, for a setting of another launcher, and for a mistake in the file.
    """
    name = tree["name"]
    values = {key: value for key, value in tree.items() if key != "name"}
    table = {**LAUNCHERS, name: launcher_choice(name, values)}
    engine_tree = {key: values.pop(key) for key in ENGINE_FIELDS if key in values}
    own_keys = [*DRIVER_KEYS, *table[name].params]
    if not values.keys() <= {*own_keys}:
        table = {**launchers(), **table}
        elsewhere = {key for choice in table.values() for key in choice.params}
        keys_of_file = ENGINE_FIELDS if engine_tree else ()
        check_keys("launcher", values.keys() - elsewhere, [*own_keys, *keys_of_file])
    [settings] = chosen_settings("launcher", table, DRIVER_KEYS, [name], values).values()
    return {"name": name, **settings, **({"engine": engine_tree} if engine_tree else {})}


def chosen_settings(
    section: str,
    table: Mapping[str, Choice],
    shared: Mapping[str, Param],
    names: Sequence[Any],
    tree: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """Return the settings of each choice of a section by its name: its own and the shared ones.

    Raises UserError for an unknown choice or setting, and for a setting of another choice.
    """
    for name in names:
        if name not in table:
            raise unknown_value(section, name, table)
    tables = {name: {**shared, **table[name].params} for name in names}
    params_by_key = {key: param for params in tables.values() for key, param in params.items()}
    for key in tree:
        owners = [name for name, choice in table.items() if key in choice.params]
        if key not in params_by_key and owners:
            raise UserError(
                f"{section}.{key}: is a setting of {section}={', '.join(owners)}; give that, or "
                f"leave it out"
            )
    check_keys(section, tree, params_by_key)
    texts = {key for key, param in params_by_key.items() if param.type is str}
    tree = {key: joined(value) if key in texts else value for key, value in tree.items()}
    return {name: read_settings(section, params, tree) for name, params in tables.items()}


def launcher_line(settings: Mapping[str, Any]) -> str:
    """Return "local, runs_per_gpu=2": the name, and the settings that are not the defaults."""
    name = settings["name"]
    if name in LAUNCHERS:
        params = launcher_params(name)
    else:
        params = {**DRIVER_KEYS, **engine_params(EngineFile.of(settings["engine"]))}
    changed = [f"{k}={settings[k]}" for k, param in params.items() if settings[k] != param.default]
    return ", ".join([name, *changed])
