"""Commands on what there is to choose from: list, config, and new, which adds to it.

Used by cli/__init__.py, which adds each command. A new option also needs docs/options.md, which
tests/options_page.py writes; a new command its place in `GROUPS` and its line in cli/help_texts.py
`EXAMPLES`, too.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any

import typer

from ablate.cli import options
from ablate.cli.answers import print_json
from ablate.cli.options import RUNS, Scale, StoreDir, TextFormat, YamlFormat, argument, option
from ablate.cli.selection import Selection, store_at
from ablate.report import announce
from ablate.run import PART_KINDS


def list_(
    kind: Annotated[
        str | None,
        argument(
            "KIND",
            "Kind to list: sweeps, norms, stems, data, ..., keys (default: all but keys).",
            options.kinds,
        ),
    ] = None,
    prefix: Annotated[str, argument("PREFIX", "List only names that begin with PREFIX.")] = "",
    format: TextFormat = "text",
) -> None:
    """List the choices for a sweep: name, description and source. `keys` explains every key."""
    from ablate.planning import list_sweeps
    from ablate.report import catalogue

    sweeps = ((name, title, str(path)) for name, title, path in list_sweeps())
    kinds = catalogue(kind, prefix, lambda: sweeps)
    if format == "json":
        print_json({listing.name: listing.tree() for listing in kinds})
    else:
        print("\n\n".join(listing.text() for listing in kinds))


def config(
    words: Annotated[
        list[str] | None,
        argument(
            "[NAME] KEY=VALUE",
            "Settings of a run, or a sweep, of which one cell.",
            options.words,
        ),
    ] = None,
    row: Annotated[str | None, option("LABEL", "Row of the sweep (default: its baseline).")] = None,
    column: Annotated[
        str | None, option("LABEL", "Column of the sweep (default: its first).")
    ] = None,
    scale: Scale = None,
    format: YamlFormat = "yaml",
    store: StoreDir = RUNS,
) -> None:
    """Show the whole configuration of one run, checked, and the id of the run."""
    from omegaconf import OmegaConf

    from ablate.planning import find_cell, first_run, resolve_run
    from ablate.run import as_read

    run: str | None
    has_name = "=" not in (words or ["="])[0]
    if has_name or any(option is not None for option in (row, column, scale)):
        plan, _ = Selection(words or [], scale, store=store).plan(allow_missing=True)
        tree, run, lines = first_run(plan, find_cell(plan, row, column))
    else:
        tree, run = resolve_run(words or [], store)
        lines = iter([f"run {run}"])
    tree = as_read(tree)
    if format == "json":
        print_json({"run": run, "configuration": tree})
        return
    for line in lines:
        print(f"# {line}")
    print(OmegaConf.to_yaml(OmegaConf.create(tree)), end="")


def new(
    kind: Annotated[
        str,
        argument(
            "KIND",
            ", ".join(kind.name for kind in PART_KINDS)
            + ", metric, trainer, sweep, recipe, skill or data.",
        ),
    ],
    name: Annotated[
        str | None,
        argument(
            "NAME",
            "Name of the file; of a trainer also the command of a program, in quotes; not of a "
            "skill.",
        ),
    ] = None,
    as_name: Annotated[
        str | None,
        option("NAME", "Name for the trainer of a command (default: its script's).", "--as"),
    ] = None,
) -> None:
    """Write a small working file of your own, and print the command that tries it."""
    from ablate.planning import write_template

    template = write_template(kind, name, as_name)
    for path in template.files:
        print(f"wrote {path}")
    for note in template.notes:
        print(f"note: {note}")
    print(f"try it: {template.command}")
    print_json({"files": [str(path) for path in template.files], "command": template.command})


# --- `ablate data prepare` ------------------------------------------------------------------------


def prepare(
    name: Annotated[str, argument("NAME", "Dataset (`ablate list data`).")],
    words: Annotated[
        list[str] | None, argument("data.KEY=VALUE", "Settings of the dataset.")
    ] = None,
    store: StoreDir = RUNS,
) -> None:
    """Fetch and decode a dataset before a sweep. After a stop the same command goes on."""
    from ablate.planning import resolve_data
    from ablate.report import progress_view
    from ablate.running import ForkServer, check_data, data_remarks

    place = store_at(store)
    spec, notes = resolve_data(name, words or [], store)
    for note in notes:
        print(f"note: {note}")
    question = {"data": spec["data"], "cache": str(place.cache)}
    announce(f"data={name}: looking for files")
    try:
        check_data(spec["data"], place.root, print)
        with ForkServer() as server:
            state = server.ask("prepare", {**question, "look": True})
            if not state["whole"]:
                print(f"data={name}: {_images(state)}; {state['free']} are free", flush=True)
                if state["done"]:
                    print(f"resuming after {state['done']:,} images", flush=True)
                with progress_view() as watching:
                    progress = functools.partial(watching.reading, name)
                    state = server.ask("prepare", question, progress)
    except KeyboardInterrupt:
        print("stopped; the same command goes on")
        raise typer.Exit(130) from None
    print(f"data={name} is decoded: {_images(state)}")
    remarks = list(data_remarks(spec["data"], place.root))
    for line in remarks:
        print(line)
    print_json({"data": name, "remarks": remarks, "notes": notes} | _decoded_tree(state))


def _decoded_tree(state: dict[str, Any]) -> dict[str, Any]:
    """Return the folder of a decoded dataset, and its images by split."""
    return {"folder": str(state["folder"]), "examples": state["examples"]}


def _images(state: dict[str, Any]) -> str:
    """Describe a dataset by the worker's answer."""
    if state["examples"] is None:
        return "not downloaded yet; the size is unknown"
    splits: dict[str, int] = state["examples"]
    counts = ", ".join(f"{split} {splits[split]:,}" for split in ("train", "validation", "test"))
    size = state["size"] or "of a size not known before they are downloaded,"
    return f"{sum(splits.values()):,} images ({counts}), {size} in {state['folder']}"
