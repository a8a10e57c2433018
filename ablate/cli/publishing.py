"""Commands that make something to hand on: report, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ablate.cli.out import check_out, write_out
from ablate.cli.selection import Selection, planned
from ablate.shared.errors import UserError, unknown


def report(
    selection: Selection,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="File to write (default: NAME.html)."),
    ] = None,
) -> None:
    """Write a sweep as one HTML file: verdicts, gains, figures, every run and its provenance."""
    from ablate.analysis.reading import read
    from ablate.planning.tree import file_name
    from ablate.report.live import begin
    from ablate.report.page import FIGURES, render_page
    from ablate.report.plot import figures
    from ablate.store.ledger import Ledger
    from ablate.store.record import histories, load_records
    from ablate.store.store import Store

    if out is not None:
        check_out(out, ("html", "htm"))
    kept = Store(selection.store)
    with Ledger.reading(kept) as ledger:
        made = planned(kept, ledger, selection, read=True)
        begin(f"reading the runs of {made.name}")
        runs = load_records(made, kept, histories(made, ledger), probes=True)
    path = out or Path(f"{file_name(made.name)}.html")
    reading = read(
        made,
        kept,
        {record.run.id: record.result for record in runs},
        withheld={r.run.id: f"{r.label}: {r.withheld}" for r in runs if r.withheld},
    )
    drawn = figures(made, reading.table, kept.rundir, FIGURES)
    if write_out(path, render_page(made, reading.table, runs, reading.looks, drawn).encode()):
        print(f"wrote {path}")


def export(
    selection: Selection,
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="New folder, or an earlier export; with --weights a file."
        ),
    ],
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Leave out host, user, folders, commits and logs.")
    ] = False,
    with_diff: Annotated[
        bool, typer.Option("--with-diff", help="Include the diffs of uncommitted work.")
    ] = False,
    lean: Annotated[
        bool,
        typer.Option(
            "--lean", help="For a repository: of predictions only the class of each image."
        ),
    ] = False,
    weights: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Write the weights of this run instead of a sweep."),
    ] = None,
    names: Annotated[
        str, typer.Option(metavar="ablate|timm", help="Whose names the tensors of --weights have.")
    ] = "ablate",
) -> None:
    """Write a sweep as a folder from which a reviewer recomputes it: `ablate table --from DIR`."""
    from ablate.audit.export import check_folder
    from ablate.audit.export import export as write_bundle
    from ablate.report.live import begin
    from ablate.store.ledger import Ledger
    from ablate.store.record import histories
    from ablate.store.store import Store

    if anonymous and with_diff:
        raise UserError(
            "--with-diff: a diff may name its author; leave out --with-diff or --anonymous"
        )
    if weights is not None:
        _export_weights(selection, weights, names, folder)
        return
    check_folder(folder)
    kept = Store(selection.store)
    with Ledger.reading(kept) as ledger:
        if not selection.words and str(folder) in ledger.sweeps():
            raise UserError(
                f"{folder}: is a sweep; name a new folder, too: ablate export {folder} DIR"
            )
        made = planned(kept, ledger, selection, read=True)
        begin(f"checking the runs of {made.name}")
        told = histories(made, ledger)
    write_bundle(made, kept, told, folder, anonymous, with_diff, lean)
    print(f"wrote {folder}; `ablate table --from {folder}` makes its table again")


def _export_weights(selection: Selection, run: str, names: str, file: Path) -> None:
    from ablate.audit.weights import NAMES, export_weights
    from ablate.running.launchers.fork import ForkServer
    from ablate.store.find import find_run
    from ablate.store.ledger import Ledger
    from ablate.store.store import Store

    if selection.words:
        raise UserError(f"--weights: takes a run, so leave out {selection.words[0]}")
    chosen = next((name for name in NAMES if name == names), None)
    if chosen is None:
        raise unknown("--names", names, NAMES)
    kept = Store(selection.store)
    with Ledger.reading(kept) as ledger:
        found = find_run(kept, ledger, run)
    with ForkServer() as server:
        export_weights(kept, found, file, chosen, server.ask)
    print(f"wrote {file}; `from.weights={file} from.names={chosen}` starts runs from it")
