"""The launchers as data, each with settings of its own, and the settings that all launchers share.

No setting of a launcher changes a result.

The launchers themselves are in running/launchers; a setting that becomes an option of sbatch is
mapped by SITE in running/launchers/slurm_jobs.py. `logger.py` uses `chosen_settings`, too.

Used by `planning/compose.py` and `running/launchers/__init__.py` for `ablate sweep`, and by
`report/listing.py` (`ablate list launchers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

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
    "slurm": Choice(
        "trains on the nodes of a Slurm cluster, in jobs that take run after run",
        "-",
        "ablate.running.launchers.slurm:slurm",
        {
            "jobs": Param(int, 1, "jobs at most at once", above=0),
            "nodes": Param(int, 1, "nodes of a job", above=0),
            "gpus": Param(int, 1, "GPUs of each node; 0: trains on CPUs", least=0),
            "cpus": Param(int, 4, "CPUs of each GPU, or of each node without", above=0),
            "mem": Param(str, "", "memory of each node, as in 64G"),
            "time": Param(
                str, "4:00:00", "limit of a job, as sbatch takes it; a run may be longer"
            ),
            "partition": Param(str, "", "sbatch --partition"),
            "account": Param(str, "", "sbatch --account"),
            "qos": Param(str, "", "sbatch --qos"),
            "constraint": Param(str, "", "sbatch --constraint"),
            "sbatch": Param(
                str, "", "other keys of sbatch, as in reservation=vit hint=compute_bound"
            ),
            "setup": Param(str, "", "shell lines before ablate starts in a job"),
            "grace_s": Param(
                int, 90, "seconds for checkpoints, before the time limit or at preemption", above=0
            ),
            "devices": Param(str, "auto", "auto: the GPUs of the job; cpu"),
            **GPU_PARAMS,
            "cache": Param(str, "", "folder of the node: data is copied there once"),
        },
    ),
}
DRIVER_KEYS: dict[str, Param] = {  # keys of every launcher
    "attempts": Param(int, 3, "deaths without a newer checkpoint that make a run failed", above=0),
    "hang_s": Param(
        float, 1800.0, "seconds without a sign of life before the driver kills a run", above=0
    ),
    "checkpoint_s": Param(float, 60.0, "seconds of training between checkpoints", above=0),
}


def launcher_params(name: str) -> dict[str, Param]:
    """Return every setting of a launcher: its own and the shared ones."""
    return {**DRIVER_KEYS, **LAUNCHERS[name].params}


def joined(value: Any) -> Any:
    """Return a whole number or a text, or a list of them, as one text: "10", "0,2".

    Other values are returned as they are.
    """
    values = value if isinstance(value, list) else [value]
    return value if any(type(v) not in (int, str) for v in values) else ",".join(map(str, values))


def launcher_settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the launcher's name and every setting, checked, with defaults for absent keys.

    Raises UserError for an unknown launcher or setting, and for a setting of another launcher.
    """
    values = {key: value for key, value in tree.items() if key != "name"}
    [settings] = chosen_settings(
        "launcher", LAUNCHERS, DRIVER_KEYS, [tree.get("name")], values
    ).items()
    return {"name": settings[0], **settings[1]}


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
    params = launcher_params(settings["name"])
    changed = [f"{k}={settings[k]}" for k, param in params.items() if settings[k] != param.default]
    return ", ".join([settings["name"], *changed])
