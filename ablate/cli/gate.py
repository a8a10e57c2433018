"""Keep or discard a stream of changes: gate start, try, log, show, restore.

Used by cli/__init__.py, which adds each command; the work is in api/stream.py. A new option also
needs docs/options.md, which tests/options_page.py writes.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from ablate.cli.answers import print_json
from ablate.cli.options import (
    RUNS,
    StoreDir,
    TextFormat,
    argument,
    flag,
    number,
    option,
    whole_number,
)
from ablate.cli.printing import ask_for, check_out, write_out

StreamName = Annotated[str, argument("NAME", "Name of the stream.")]
Words = Annotated[list[str] | None, argument("KEY=VALUE", "Settings, each with one value.")]
Code = Annotated[int, argument("N", "0: the code at the start; N: that of the N-th proposal.")]


@dataclass(frozen=True)
class StartOptions:
    """The rules that a stream declares at its start. The fields are options."""

    metric: Annotated[
        str | None,
        option("KEY", "Metric to judge by; val_KEY: on validation (default: the trainer's first)."),
    ] = None
    margin: Annotated[
        float | None,
        option(
            "UNITS",
            "Gain that matters: discard what gains less than half of it (default: 1.5 spreads).",
            parser=number,
        ),
    ] = None
    most: Annotated[
        int, option("N", "Most runs of a proposal: 4, 8, 12, 20 or 30.", parser=whole_number)
    ] = 12
    level: Annotated[
        float,
        option("P", "Highest chance to keep a change that gains nothing.", parser=number),
    ] = 0.01
    pairs: Annotated[
        bool,
        flag("--pairs", "Run proposal and baseline side by side on the same seeds; costs twice."),
    ] = False
    pin: Annotated[
        list[str],
        option("FILE[:NAME]", "File or function that no proposal may change; can be repeated."),
    ] = field(default_factory=list)
    holdout: Annotated[
        list[str],
        option("METRIC", "Metric that no rule reads, reported at each keep; can be repeated."),
    ] = field(default_factory=list)


def start(
    name: StreamName,
    words: Words = None,
    options: StartOptions = StartOptions(),
    format: TextFormat = "text",
    store: StoreDir = RUNS,
) -> None:
    """Start a stream: the code here is its first baseline. Nothing is trained yet."""
    from ablate.api import GateOptions, Stream

    rules = GateOptions(
        metric=options.metric,
        margin=options.margin,
        most=options.most,
        level=options.level,
        pairs=options.pairs,
        pins=tuple(options.pin),
        holdout=tuple(options.holdout),
    )
    record = Stream.start(name, *(words or ()), rules=rules, store=store).log()
    if format == "json":
        print_json(record.tree)
    else:
        print(f"{name}: started, judged by {record.metric}; change the code, then try it")


def try_(
    name: StreamName,
    words: Words = None,
    note: Annotated[str, option("TEXT", "What the change is, for the log.")] = "",
    simplify: Annotated[
        float | None,
        option("UNITS", "Keep the change if it loses no more than this.", parser=number),
    ] = None,
    most: Annotated[
        int | None,
        option(
            "N",
            "Most runs: 4, 8, 12, 20 or 30. With more, an undecided change goes on.",
            parser=whole_number,
        ),
    ] = None,
    format: TextFormat = "text",
    store: StoreDir = RUNS,
) -> None:
    """Judge the code here against the baseline. Exits with 0 only if the change is kept.

    Exit codes: 0 keep, 3 discard, 4 undecided, 5 stale, 1 failure, 2 mistake, 75 try again.

    After a kill, the same command goes on.
    """
    from ablate.api import Stream
    from ablate.report import StreamView

    stream = Stream(name, store=store)
    try:
        answer = stream.attempt(*(words or ()), note=note, simplify=simplify, most=most)
    except KeyboardInterrupt as error:
        print(f"{name}: {error}", file=sys.stderr)
        number = getattr(error, "signal_number", signal.SIGINT)
        raise typer.Exit(128 + number) from None
    if format == "json":
        print_json(answer.tree)
    else:
        print(StreamView.answer_line(answer.tree))
    assert answer.exit_code is not None  # it was judged, and only a keep may end with 0
    raise typer.Exit(answer.exit_code)


def log(
    name: StreamName,
    out: Annotated[
        Path | None, option("FILE", "Also draw the stream: a .svg, .pdf or .png.")
    ] = None,
    format: TextFormat = "text",
    store: StoreDir = RUNS,
) -> None:
    """Show the outcome of every proposal, and how many keeps to expect from chance at most."""
    from ablate.api import Stream
    from ablate.report import FIGURE_FORMATS, StreamView

    tree = Stream(name, store=store).log().tree
    if out is not None:
        figure_format = check_out(out, FIGURE_FORMATS)
        write_out(out, StreamView(tree).draw(figure_format))
    if format == "json":
        print_json(tree)
    else:
        print(StreamView(tree).text)


def show(name: StreamName, number: Code, store: StoreDir = RUNS) -> None:
    """Print the files of a kept version of the code, each below its name."""
    from ablate.api import Stream

    files = Stream(name, store=store).files(number)
    texts = {path: content.decode(errors="replace") for path, content in files.items()}
    for path, text in texts.items():
        print(f"==> {path} <==")
        print(text)
    print_json({"stream": name, "number": number, "texts": texts})


def restore(
    name: StreamName,
    number: Code,
    folder: Annotated[Path, argument("DIR", "Folder to write the files into.")],
    yes: Annotated[bool, flag("--yes", "Overwrite edits without asking.")] = False,
    store: StoreDir = RUNS,
) -> None:
    """Write the files of a code that was kept into a folder, over what is there. Asks before it
    overwrites edits that the stream has no copy of."""
    from ablate.api import Stream

    stream = Stream(name, store=store)
    if edited := stream.edited_files(number, folder):
        names = ", ".join(str(folder / path) for path in edited)
        ask_for(f"{names}: edited, and no proposal has these edits", f"Overwrite {names}?", yes)
    files = [str(folder / path) for path in stream.restore(number, folder)]
    print("\n".join(files))
    print_json({"stream": name, "number": number, "files": files})
