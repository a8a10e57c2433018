"""Tasks and metrics as data: every task by its name, and the metrics that each declares.

Both halves import this package. A task is an entry here, or a module of `ablate_tasks`, and the
class that it names; a run gives the name of its task in `spec.Run.task`. Nothing else in the
package knows a metric by its name.

Used by plans (planning/), tables (analysis/, report/) and workers (training/), which find the task
of a run here. A new task also needs a file here and its class in training/task/.
"""

from __future__ import annotations

from ablate.run import parts
from ablate.run.metrics.classify import CLASSIFY
from ablate.run.metrics.contrastive import CONTRASTIVE
from ablate.run.metrics.fewshot import FEWSHOT
from ablate.run.metrics.knn import KNN
from ablate.run.metrics.metric import Metric, TaskChoice, threshold
from ablate.run.metrics.segment import SEGMENT

__all__ = [
    "DEFAULT_TASK",
    "TASKS",
    "Metric",
    "TaskChoice",
    "tasks_for_labels",
    "stepping_task",
    "threshold",
]

DEFAULT_TASK = "classify"  # the task of every run that says none
TASKS: dict[str, TaskChoice] = {
    DEFAULT_TASK: CLASSIFY,
    "fewshot": FEWSHOT,
    "knn": KNN,
    "segment": SEGMENT,
    "contrastive": CONTRASTIVE,
}
parts.extend(TASKS, "ablate_tasks", TaskChoice)


def tasks_for_labels(labels: str) -> list[str]:
    """List the tasks that learn from data with this value of `data.labels`."""
    return [name for name, task in TASKS.items() if task.labels == labels]
