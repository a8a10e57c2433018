"""`ablate data prepare`: fetches and decodes a dataset before a sweep."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import typer

from ablate.cli.selection import RUNS, StoreDir


def prepare(
    name: Annotated[str, typer.Argument(help="Dataset (`ablate list data`).")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="data.KEY=VALUE", help="Settings of the dataset.")
    ] = None,
    store: StoreDir = RUNS,
) -> None:
    """Fetch and decode a dataset before a sweep. After a stop the same command goes on."""
    from ablate.planning.compose import resolve_data
    from ablate.report.live import begin, view
    from ablate.running.launchers.decode import check, remarks
    from ablate.running.launchers.fork import ForkServer
    from ablate.store.store import Store

    kept = Store(store)
    spec, notes = resolve_data(name, words or [], store)
    for note in notes:
        print(f"note: {note}")
    question = {"data": spec["data"], "cache": str(kept.cache)}
    begin(f"data={name}: looking for files")
    try:
        check(spec["data"], kept.root, print)
        with ForkServer() as server:
            found = server.ask("prepare", {**question, "look": True})
            if not found["whole"]:
                print(f"data={name}: {_images(found)}; {found['free']} are free", flush=True)
                if found["done"]:
                    print(f"resuming after {found['done']:,} images", flush=True)
                with view() as watching:
                    progress = functools.partial(watching.reading, name)
                    found = server.ask("prepare", question, progress)
    except KeyboardInterrupt:
        print("stopped; the same command goes on")
        raise typer.Exit(130) from None
    print(f"data={name} is decoded: {_images(found)}")
    for line in remarks(spec["data"], kept.root):
        print(line)


def _images(found: dict[str, Any]) -> str:
    """Describe a dataset by the worker's answer."""
    if found["examples"] is None:
        return "not downloaded yet; the size is unknown"
    splits: dict[str, int] = found["examples"]
    counts = ", ".join(f"{split} {splits[split]:,}" for split in ("train", "validation", "test"))
    size = found["size"] or "of a size not known before they are downloaded,"
    return f"{sum(splits.values()):,} images ({counts}), {size} in {found['folder']}"
