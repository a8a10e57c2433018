"""What `launcher` may say, as data: the launchers, each with settings of its own, and the driver's.

None of it changes a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.shared.build import same_keys, settings_of
from ablate.shared.choices import Choice, Param
from ablate.shared.errors import UserError, unknown

LAUNCHERS: dict[str, Choice] = {
    "local": Choice(
        "one run a GPU, or a CPU core where there is none",
        "-",
        "ablate.running.launchers.local:Local",
        {
            "devices": Param(str, "auto", "auto: all GPUs; cpu; or GPUs by index or UUID: 0,2"),
            "runs_per_gpu": Param(int, 1, "runs that share a GPU", above=0),
        },
    ),
    "inline": Choice(
        "in this process, one after another",
        "-",
        "ablate.running.launchers.inline:Inline",
        {"devices": Param(str, "cpu", "cpu, or one GPU by index or UUID")},
    ),
}
DRIVER: dict[str, Param] = {  # whichever launcher it has
    "attempts": Param(int, 3, "deaths with no newer checkpoint before a run is failed", above=0),
    "hang_s": Param(float, 1800.0, "seconds without a sign of life that are a hang", above=0),
    "checkpoint_s": Param(float, 60.0, "seconds of training between checkpoints", above=0),
}


def launcher_params(name: str) -> dict[str, Param]:
    """All that may be set where that launcher is chosen."""
    return {**DRIVER, **LAUNCHERS[name].params}


def listed(value: Any) -> Any:
    """`devices` as text, "0,2", however a file or a command line says several, or an index."""
    values = value if isinstance(value, list) else [value]
    return value if any(type(v) not in (int, str) for v in values) else ",".join(map(str, values))


def launcher_settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The group's settings, typed, with the defaults of those that it does not say.

    Raises UserError for a launcher, or a setting, that there is not, and for one of another's.
    """
    name = tree.get("name")
    if name not in LAUNCHERS:
        raise unknown("launcher.name", name, LAUNCHERS)
    for key in tree:
        owners = [other for other, choice in LAUNCHERS.items() if key in choice.params]
        if owners and name not in owners:
            raise UserError(
                f"launcher.{key}: is a setting of launcher={', '.join(owners)}, and this is "
                f"launcher={name}; leave it out"
            )
    params = launcher_params(name)
    tree = {key: listed(value) if key == "devices" else value for key, value in tree.items()}
    same_keys("launcher", tree, ["name", *params], params)
    return {"name": name, **settings_of("launcher", params, tree)}
