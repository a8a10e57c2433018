"""The loggers as data, each with settings of its own, and the words `logger` and `notify`.

These words choose loggers and notifications. A sweep's plan never has them: they change no result,
and a command to notify somebody may hold a token.

Used by `cli/selection.py` and `running/loggers/feed.py` for `ablate sweep`, and by
`report/listing.py` (`ablate list loggers`). A new logger also needs its class in
`running/loggers/`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ablate.planning.launcher import chosen_settings
from ablate.planning.settings import parse_word, single_values
from ablate.run import Choice, Param
from ablate.shared import UserError, install_command

LOGGERS: dict[str, Choice] = {
    "tensorboard": Choice(
        "writes scalars, hyperparameters and the configuration, for `tensorboard --logdir`",
        f"tensorboard: {install_command('tensorboard')}",
        "ablate.running.loggers.tensorboard:TensorBoard",
    ),
    "wandb": Choice(
        "writes a W&B run for each run that has ended, in the group of the sweep's name",
        f"wandb: {install_command('wandb')}",
        "ablate.running.loggers.wandb:WandB",
        {
            "project": Param(str, "ablate", "W&B project"),
            "entity": Param(str, "", "W&B user or team; empty: the default of the login"),
            "mode": Param(
                Literal["auto", "online", "offline"],
                "auto",
                "auto: as WANDB_MODE says, else online with a login, and offline without one",
            ),
        },
    ),
    "trackio": Choice(
        "writes a Trackio run for each run that has ended, in the group of the sweep's name",
        # Not by our constraints: their Pillow is newer than Trackio accepts.
        "trackio: pip install 'trackio>=0.43'",
        "ablate.running.loggers.wandb:Trackio",
        {"project": Param(str, "ablate", "Trackio project")},
    ),
    "mlflow": Choice(
        "writes an MLflow run for each run, in an experiment of the sweep's name",
        f"mlflow-skinny: {install_command('mlflow')}",
        "ablate.running.loggers.mlflow:MLflow",
        {"uri": Param(str, "", "tracking URI; empty: mlflow.db in logger.folder")},
    ),
    "jsonl": Choice(
        "writes a file of JSON lines for each run", "-", "ablate.running.loggers.jsonl:JsonLines"
    ),
}
SHARED_LOGGER_KEYS: dict[str, Param] = {  # keys of every logger
    "folder": Param(str, "", "folder that loggers write into; empty: logs, in the store")
}


@dataclass(frozen=True)
class LoggerSettings:
    """The loggers of a sweep, and its shell command for notifications.

    `loggers`: their settings, by name. `notify`: "" where nobody is notified.
    """

    loggers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notify: str = ""


def split_logger_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words into those of the plan and the words `logger...=` and `notify=`."""
    ours = [word for word in words if re.match(r"\+*(logger(\.[^=]*)?|notify)=", word)]
    return [word for word in words if word not in ours], ours


def read_logger_words(words: Sequence[str]) -> LoggerSettings:
    """Read the words `logger...=` and `notify=`.

    Raises UserError for an unknown logger or setting, for a setting of another logger, and for a
    word that comes twice.
    """
    notices = [word.partition("=")[2] for word in words if _notifies(word)]
    if len(notices) > 1:
        raise UserError("notify: given twice")
    if notices and not notices[0].strip():
        raise UserError("notify: expected a shell command, got nothing")
    settings = single_values(parse_word(word, {}) for word in words if not _notifies(word))
    names = settings.pop("logger", [])
    names = names if isinstance(names, list) else [names]
    tree = {key.removeprefix("logger."): value for key, value in settings.items()}
    if tree and not names:
        raise UserError(
            f"logger.{next(iter(tree))}: of which logger? give logger={next(iter(LOGGERS))}"
        )
    return LoggerSettings(
        chosen_settings("logger", LOGGERS, SHARED_LOGGER_KEYS, names, tree), "".join(notices)
    )


def _notifies(word: str) -> bool:
    return word.lstrip("+").startswith("notify=")
