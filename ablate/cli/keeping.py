"""Commands that keep a store in order: data prepare."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import typer

from ablate.cli.words import RUNS, Debug, StoreDir


def prepare(
    name: Annotated[str, typer.Argument(help="A dataset: `ablate list data`.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="data.KEY=VALUE", help="Values to set.")
    ] = None,
    store: StoreDir = RUNS,
    debug: Debug = False,
) -> None:
    """Fetch and decode a dataset ahead of sweeps. Stopped, the same command goes on."""
    from ablate.config import resolve_data
    from ablate.launch.ask import ask
    from ablate.ledger import Store
    from ablate.report.live import view

    kept = Store(store)
    spec, notes = resolve_data(name, words or [], store)
    for note in notes:
        print(f"note: {note}")
    question = {"spec": spec, "cache": str(kept.cache)}
    try:
        found = ask("prepare", {**question, "look": True})
        if not found["whole"]:
            print(f"data={name}: {_images(found)}; {found['free']} are free", flush=True)
            if found["done"]:
                print(f"going on after {found['done']:,} images", flush=True)
            with view() as watching:
                found = ask("prepare", question, functools.partial(watching.reading, name))
    except KeyboardInterrupt:
        print("stopped; the same command goes on")
        raise typer.Exit(130) from None
    print(f"data={name} is there: {_images(found)}")


def _images(found: dict[str, Any]) -> str:
    """What the worker said of a dataset, for people."""
    if found["examples"] is None:
        return "not fetched yet, its size is not known"
    splits: dict[str, int] = found["examples"]
    counts = ", ".join(f"{split} {splits[split]:,}" for split in ("train", "validation", "test"))
    return f"{sum(splits.values()):,} images ({counts}), {found['size']} in {found['folder']}"
