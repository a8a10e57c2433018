"""Commands that make something to hand on: report, export.

Used by cli/__init__.py, which adds each command; the work is in api/publishing.py and
audit/export.py. A new option also needs docs/options.md, which tests/options_page.py writes; a new
command its place in `GROUPS` and its line in cli/help_texts.py `EXAMPLES`, too.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from ablate.cli.answers import print_json
from ablate.cli.options import argument, flag, option
from ablate.cli.printing import check_out, write_out
from ablate.cli.selection import ReadSelection, planned, reading
from ablate.report import announce
from ablate.shared import UserError, unknown_value


def report(
    selection: ReadSelection,
    out: Annotated[Path | None, option("FILE", "File to write (default: NAME.html).")] = None,
) -> None:
    """Write a sweep as one HTML file: verdicts, gains, figures, every run and its provenance."""
    from ablate.api import render_report
    from ablate.planning import output_name
    from ablate.store import run_histories

    if out is not None:
        check_out(out, ("html", "htm"))
    with selection.opened(is_look=True) as (store, ledger, plan):
        announce(f"reading the runs of {plan.name}")
        histories = run_histories(plan, ledger)
    path = out or Path(f"{output_name(plan.name)}.html")
    if write_out(path, render_report(plan, store, histories).encode()):
        print(f"wrote {path}")
    print_json({"sweep": plan.name, "file": str(path)})


def export(
    selection: ReadSelection,
    folder: Annotated[
        Path, argument("DIR", "New folder, or an earlier export; with --weights a file.")
    ],
    anonymous: Annotated[
        bool, flag("--anonymous", "Leave out host, user, folders, commits and logs.")
    ] = False,
    with_diff: Annotated[
        bool, flag("--with-diff", "Include the diffs of uncommitted work.")
    ] = False,
    lean: Annotated[
        bool,
        flag("--lean", "Keep only the predicted class of each image: small enough for git."),
    ] = False,
    weights: Annotated[
        str | None, option("RUN", "Write the weights of this run instead of a sweep.")
    ] = None,
    names: Annotated[
        str | None,
        option("ablate|timm", "Naming scheme of the tensors in --weights (default: ablate)."),
    ] = None,
) -> None:
    """Write a sweep as a folder from which a reviewer recomputes it: `ablate table --from DIR`."""
    from ablate.audit import check_folder
    from ablate.audit import export_bundle as write_bundle
    from ablate.store import run_histories

    if anonymous and with_diff:
        raise UserError(
            "--with-diff: a diff may name its author; leave out --with-diff or --anonymous"
        )
    if weights is not None:
        flags = {"--anonymous": anonymous, "--with-diff": with_diff, "--lean": lean}
        other_words = [*selection.words, *(flag for flag, is_given in flags.items() if is_given)]
        if other_words or selection.has_options or selection.contrasts:
            raise UserError(
                f"--weights: takes a run, so leave out {next(iter(other_words), 'the options')}"
            )
        _export_weights(selection.store, weights, names or "ablate", folder)
        return
    if names is not None:
        raise UserError("--names: needs --weights RUN")
    check_folder(folder)
    with reading(selection.store) as (store, ledger):
        if not selection.words and str(folder) in ledger.sweeps():
            raise UserError(
                f"{folder}: is a sweep; name a new folder, too: ablate export {folder} DIR"
            )
        plan = planned(store, ledger, selection, is_look=True)
        announce(f"checking the runs of {plan.name}")
        events = run_histories(plan, ledger)
    write_bundle(plan, store, events, folder, anonymous, with_diff, lean)
    command = shlex.join(["ablate", "table", "--from", str(folder)])
    print(f"wrote {folder}; `{command}` makes its table again")
    print_json({"sweep": plan.name, "folder": str(folder)})


def _export_weights(folder: Path, run: str, names: str, file: Path) -> None:
    from ablate.audit import WEIGHT_NAMES, export_weights
    from ablate.running import ForkServer
    from ablate.store import find_run

    naming = next((name for name in WEIGHT_NAMES if name == names), None)
    if naming is None:
        raise unknown_value("--names", names, WEIGHT_NAMES)
    with reading(folder) as (store, ledger):
        run_id = find_run(store, ledger, run)
    with ForkServer() as server:
        export_weights(store, run_id, file, naming, server.ask)
    print(f"wrote {file}; `from.weights={file} from.names={naming}` starts runs from it")
    print_json({"run": run_id, "file": str(file), "names": naming})
