"""TensorBoard: a folder for each run, and in it one file of events.

An event is a step with all of its values, which the file has whole or not at all. A curve has no
times, so an event has the time at which the run began; thus the same page makes the same bytes.

Used by `ablate sweep logger=tensorboard`: named in planning/logger.py `LOGGERS`, run by
loggers/feed.py.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ablate.running.loggers.pages import Page, PageFiles, bring
from ablate.shared import make_folder


class TensorBoard(PageFiles):
    """A logger of TensorBoard: see `Logger`."""

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        super().__init__(folder / "tensorboard")

    def hand_on(self, page: Page) -> None:
        """See `Logger`."""
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder = self.of_run(page)
        path = folder / f"events.out.tfevents.{page.started:.0f}.ablate"
        earlier = [file for file in folder.glob("events.*.ablate") if file != path]
        if earlier and page.result is None and page.run.id in self.seals(page.sweep):
            return  # the run is trained again: its whole curve stays until it has ended again
        content = io.BytesIO()
        writer = RecordWriter(content)
        for event in _events(page):
            writer.write(event.SerializeToString(deterministic=True))
        make_folder(folder)
        for file in earlier:
            file.unlink(missing_ok=True)
        bring(path, content.getvalue(), page.result is not None)
        self.note_done(page)


def _events(page: Page) -> Iterator[Any]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.hparams import summary_v2 as hparams
    from tensorboard.plugins.text.metadata import create_summary_metadata

    def event(*values: Any, step: int = 0) -> Any:
        return Event(wall_time=page.started, step=step, summary=Summary(value=values))

    def scalars(step: int, line: Mapping[str, float]) -> Any:
        return event(*(Summary.Value(tag=tag, simple_value=line[tag]) for tag in line), step=step)

    plain = {
        key: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for key, value in {**page.configuration(), **page.facts()}.items()
        if value is not None
    }
    cells = {key: str(value).replace("|", "\\|") for key, value in plain.items()}
    table = "| | |\n|-|-|\n" + "".join(f"| {key} | {value} |\n" for key, value in cells.items())
    text = TensorProto(dtype=DT_STRING, string_val=[table.encode()])
    metadata = create_summary_metadata("configuration", "")
    cell = page.run.cell
    group = f"{page.sweep} {cell.row}@{cell.column}"  # the seeds of a cell are one group
    hyperparameters = hparams.hparams_pb(plain, trial_id=group, start_time_secs=page.started)
    yield Event(wall_time=page.started, file_version="brain.Event:2")
    yield Event(wall_time=page.started, summary=hyperparameters)
    yield event(Summary.Value(tag="configuration", tensor=text, metadata=metadata))
    for step, line in page.lines.items():
        yield scalars(step, line)
    if page.result is not None:
        yield scalars(max(page.lines, default=0), page.final())
