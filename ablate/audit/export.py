"""Writes the bundle of a sweep, for `export`.

The raw files are copied, and every other file is made from these copies. The bundle is built under
a temporary name and renamed when it is whole. An anonymous bundle has only fields that are known to
name nobody.

`--weights` writes the weights of one finished run instead.

Used by `ablate export` (cli/publishing.py); `derived_files` also by `ablate verify DIR`
(audit/bundle_check.py). A new raw file also needs its name in `RAW` and its reader in
audit/bundle.py, any new file a line in bundle_readme.txt.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import os
import platform
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ablate.analysis import Results, RunFiles, measure_own, own_metrics, read_verdicts
from ablate.audit.bundle import ANONYMOUS, Bundle, placeless_own
from ablate.audit.copies import naming_full_disk
from ablate.audit.lean import PACKED, excerpt_of, note_thinned, pack, thin
from ablate.planning import Cell, Imported, Plan
from ablate.report import (
    FORMAT_ENDINGS,
    count_provenance,
    curves_frame,
    draw_figures,
    inert_cell,
    measured_records,
    render_page,
    render_table,
    runs_frame,
)
from ablate.run import (
    RunDir,
    RunSpec,
    local_files,
    source_file,
)
from ablate.running import Ask
from ablate.shared import (
    Failure,
    UserError,
    count_text,
    read_file,
    sha256_of,
    to_json,
    write_whole,
)
from ablate.store import History, Store, load_records
from ablate.version import FORMAT, __version__

if TYPE_CHECKING:
    import pandas as pd


COMPUTES = ("numpy", "scipy", "pandas", "pyarrow", "matplotlib")  # a table, a curve, a figure
# What is left of an attempt and of an event in an anonymous bundle.
ATTEMPT = {
    *("at", "ended", "exit", "from_step", "seed", "fingerprint", "kernel", "digest", "device"),
    *("driver", "packages", "plugins", "python", "threads"),
}
EVENT = {"sweep", "step", "seconds", "device", "result_sha256", "rebuilt", "code"}
RAW = (
    *("sweep.json", "specs", "predictions", "events.json", "looks.jsonl", "environment.json"),
    *("own.json", "code", PACKED),
)
BINARY = (".npy", ".npz", ".parquet")

README = Path(__file__).with_name("bundle_readme.txt")  # a template
PACKAGE = Path(__file__).parents[1]


def check_folder(folder: Path) -> None:
    """Raise UserError if no bundle may be written to the folder."""
    if folder.is_symlink() and not os.path.exists(folder):
        raise UserError(f"{folder}: is a link to nothing, or to itself; name another folder")
    folder = Path(os.path.realpath(folder))  # unlike Path.resolve it raises nothing for a loop
    if not folder.parent.is_dir():
        raise UserError(f"{folder.parent}: no such folder; make it first")
    earlier = Bundle(folder).is_bundle
    if not earlier and folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder}: exists and is no earlier export; name another folder")
    if earlier:
        _check_replaceable(Bundle(folder))


def _check_replaceable(bundle: Bundle) -> None:
    """Raise UserError where a folder has files that the export which made it did not write, or not
    so: replacing it would remove them."""
    try:
        edited_files = bundle.edited_files()
    except Failure as error:
        raise UserError(f"{error}; name another folder, or remove this one yourself") from error
    if edited_files:
        first_file, *further_files = edited_files
        count = f" and {count_text(len(further_files), 'more file')}" if further_files else ""
        raise UserError(
            f"{bundle.root}: has {first_file}{count}, added or edited after the export, which a "
            f"new one would remove; move what is yours away, or name another folder"
        )


def export_bundle(
    plan: Plan,
    store: Store,
    histories: Mapping[str, History],
    folder: Path,
    anonymous: bool = False,
    diffs: bool = False,
    lean: bool = False,
) -> None:
    """Write the bundle of a sweep. Its verdicts are a look, which the store records.

    `anonymous`: without host, user, folders, logs. `diffs`: with the changes that were not
    committed. `lean`: thinned, after everything was recomputed from the whole files. An earlier
    bundle is replaced. Raises UserError where `folder` holds anything else, and Failure where a
    run's files are not those that it left, where a file of an anonymous bundle would name a folder
    or a host, or where the disk is full.
    """
    check_folder(folder)
    earlier_plan = Bundle(folder).read_plan("") if Bundle(folder).is_bundle else None
    if earlier_plan is not None and earlier_plan.name != plan.name:
        raise UserError(f"{folder}: is an export of {earlier_plan.name}; name another folder")
    if not lean and any(store.rundir(run.id).thinned.exists() for run in plan.runs()):
        raise UserError(f"{plan.name}: has runs that came from a lean bundle; give --lean")
    folder = Path(os.path.realpath(folder))
    new_folder = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        with naming_full_disk(folder):
            new_folder.mkdir()
            bundle = Bundle(new_folder)
            _copy(bundle, plan, store, histories, anonymous, diffs)
            if lean:
                bundle.is_lean = True
                whole_plan, events = bundle.read_unsealed()
                bundle.recompute(whole_plan, events)
                thin(whole_plan, bundle.rundir)
            _fill(bundle, store)
            if anonymous:
                _check_nobody(bundle, plan, store)
            if lean:
                pack(new_folder)
            bundle.write_manifest()
            os.sync()  # thousands of files: all at once
            _replace(new_folder, folder)
    except BaseException:
        shutil.rmtree(new_folder, ignore_errors=True)
        raise
    for path in _leftovers(folder):
        shutil.rmtree(path, ignore_errors=True)


def _replace(new_folder: Path, folder: Path) -> None:
    if not folder.exists() or not any(folder.iterdir()):
        new_folder.rename(folder)
        return
    old_folder = new_folder.with_name(f"{new_folder.name}.old")
    folder.rename(old_folder)
    try:
        new_folder.rename(folder)
    except OSError:
        old_folder.rename(folder)
        raise
    shutil.rmtree(old_folder)


def _leftovers(folder: Path) -> list[Path]:
    """List the leftovers of killed exports to that folder."""
    ours = re.compile(rf"\.{re.escape(folder.name)}\.(\d+)(\.old)?")
    candidates = ((ours.fullmatch(path.name), path) for path in folder.parent.iterdir())
    return [path for match, path in candidates if match and not Path(f"/proc/{match[1]}").exists()]


def _fill(bundle: Bundle, store: Store) -> None:
    """Make every derived file of the bundle from the copied raw files."""
    plan, histories = bundle.read_unsealed()
    results = bundle.recompute(plan, histories)
    for name, content in derived_files(
        bundle, plan, histories, results, store, computing_versions()
    ).items():
        path = bundle.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


def computing_versions() -> dict[str, Any]:
    """Return the versions that would make a bundle now, in the form of environment.json."""
    versions = {name: importlib.metadata.version(name) for name in COMPUTES}
    made_with = {"python": platform.python_version(), **versions}
    return {"bundle": FORMAT, "ablate": __version__, "made_with": made_with}


def derived_files(
    bundle: Bundle,
    plan: Plan,
    histories: Mapping[str, History],
    results: Results,
    store: Store,
    makers: Mapping[str, Any],
) -> dict[str, bytes]:
    """Make the content of every derived file, by its place in the bundle.

    The look at the verdicts is recorded in `store`.
    """
    runs = measured_records(plan, bundle, load_records(plan, bundle, histories))
    files = RunFiles(bundle.metrics, bundle.probe, store.predictions)
    reading = read_verdicts(plan, store, results, files=files)
    table = reading.table
    figures = draw_figures(plan, table, bundle.rundir)
    texts = {
        **{
            f"table.{ending}": render_table(table, format, notes="full")
            for ending, format in FORMAT_ENDINGS.items()
        },
        **{f"figures/{name}.svg": svg for name, svg in figures.items()},
        "runs.csv": _csv(runs_frame(plan, runs, trials=True)),
        "README.txt": _readme(bundle, plan, table.heading, makers["ablate"]),
        "looks.jsonl": "".join(f"{json.dumps(x.event())}\n" for x in reading.looks),
    }
    if not bundle.is_lean:
        texts["report.html"] = render_page(plan, table, runs, reading.looks, figures)
    curves = io.BytesIO()
    curves_frame(plan, runs, trials=True).to_parquet(curves, index=False)
    told_of = {
        "sweep": plan.name,
        "withheld": reading.withheld,
        "trained_with": count_provenance(runs),
    }
    return {
        **{name: text.encode() for name, text in texts.items()},
        "curves.parquet": curves.getvalue(),
        "environment.json": to_json({**makers, **told_of}),
    }


def _readme(bundle: Bundle, plan: Plan, title: str, version: str) -> str:
    import jinja2

    excerpt = excerpt_of(plan, plan.task) if bundle.is_lean else None
    text = README.read_text("utf-8")
    template = jinja2.Template(text, trim_blocks=True, keep_trailing_newline=True)
    readme = template.render(
        title=title,
        plan=plan,
        version=version,
        keeps=excerpt.keeps if excerpt is not None else plan.task.keeps,
        lean=bundle.is_lean,
        own=own_metrics(plan),
    )
    return str(readme)


def _csv(frame: pd.DataFrame) -> str:
    words = frame.select_dtypes(exclude=["number", "bool"])
    safe = frame.assign(**{str(name): words[name].map(inert_cell) for name in words})
    return safe.to_csv(index=False, lineterminator="\n")


def _copy(
    bundle: Bundle,
    plan: Plan,
    store: Store,
    histories: Mapping[str, History],
    anonymous: bool,
    diffs: bool,
) -> None:
    """Copy the raw files of a sweep into the bundle."""
    _copy_own(bundle, plan, store)
    plan = placeless_own(plan)
    bundle.write_plan(_placeless(plan) if anonymous else plan)
    events = (
        {run: _nameless(history) for run, history in histories.items()} if anonymous else histories
    )
    bundle.events.write_text(json.dumps(events, indent=1))
    (bundle.root / "specs").mkdir()
    (bundle.root / "predictions").mkdir()
    for run in {run.id: run for run in plan.runs()}.values():  # rows may share a trial
        source, target = store.rundir(run.id), bundle.rundir(run.id)
        target.path.mkdir()
        # The result first: where it is there, nothing of the others changes any more.
        names = ("result", "run", "env", "metrics")
        for name in names:
            _copy_file(getattr(source, name), getattr(target, name))
        copies = {source.predictions: target.predictions}
        for dataset in run.cell.spec.also:
            name = dataset["name"]
            copies[source.predictions_on(name)] = target.predictions_on(name)
        for probe in run.cell.spec.probes:
            copies[source.probe(probe)] = target.probe(probe)
        whole_hashes = {}
        for file, copy in copies.items():
            _copy_file(file, copy)
            whole_hashes[copy.name] = source.whole_hash(file)
        if source.thinned.exists():
            note_thinned(target, whole_hashes)
        if anonymous:
            _forget_places(target)
            continue
        if not target.has_result():
            _copy_file(source.log, target.log)
        for attempt in target.read_attempts() if diffs else ():
            _copy_diff(attempt, store, bundle)


def _copy_own(bundle: Bundle, plan: Plan, store: Store) -> None:
    """Write the values of the user's own metrics, and copy the files of code that computed them.

    The values are computed from the predictions that the runs left.
    """
    if not own_metrics(plan):
        return
    results = store.results(plan.runs()).results
    bundle.own_metrics_file.write_bytes(
        to_json({n: measure_own(plan, results, store, n) for n in own_metrics(plan)})
    )
    for name in own_metrics(plan):
        declaration = plan.own[name]
        folder = Path(declaration["folder"] or "")
        file = source_file(folder, name) if declaration["folder"] else None
        for path in local_files(file, folder) if file is not None else ():
            target = bundle.code / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy_file(path, target)


def _copy_file(source: Path, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(source, target)


def _copy_diff(attempt: Mapping[str, Any], store: Store, bundle: Bundle) -> None:
    match attempt:
        case {"origin": {"git": {"diff": str(name)}}}:
            bundle.diffs.mkdir(exist_ok=True)
            _copy_file(store.diffs / Path(name).name, bundle.diffs / Path(name).name)


# --- Anonymous ------------------------------------------------------------------------------------


def _placeless(plan: Plan) -> Plan:
    """Remove the places of data, weights and plug-ins, which are no part of a run's id."""

    def blank(cell: Cell) -> Cell:
        specs = tuple(spec.without_places() for spec in cell.specs)
        return replace(cell, spec=cell.spec.without_places(), specs=specs)

    design = plan.design
    if isinstance(design, Imported):
        sources = tuple(source.placeless() for source in design.sources)
        design = replace(design, sources=sources)
    return replace(
        plan,
        design=design,
        declared=plan.declared.placeless(),
        cells=tuple(map(blank, plan.cells)),
        trials=tuple(replace(trial, cell=blank(trial.cell)) for trial in plan.trials),
        notes=(),
    )


def _nameless(history: History) -> list[Any]:
    return [
        (timestamp, kind, {key: value for key, value in detail.items() if key in EVENT})
        for timestamp, kind, detail in history
    ]


def _forget_places(folder: RunDir) -> None:
    """Remove folders from the copy of run.json, and all fields but ATTEMPT from env.json."""
    try:
        spec = RunSpec.of(folder.read_spec()).without_places()
    except (ValueError, LookupError, TypeError, AttributeError):  # a damaged run.json
        folder.run.unlink(missing_ok=True)
    else:
        folder.create(spec.tree)
    attempts = folder.read_attempts()
    if folder.env.exists():
        public_attempts = [
            {key: part for key, part in attempt.items() if key in ATTEMPT} for attempt in attempts
        ]
        folder.write_attempts(public_attempts, **{ANONYMOUS: True})


def _check_nobody(bundle: Bundle, plan: Plan, store: Store) -> None:
    """Raise Failure where a file names a folder or a host, say in a title or a row's label."""
    folders = {str(Path.home()), os.getcwd(), str(store.root.resolve())}
    hosts = {platform.node()}
    for run in plan.runs():
        folders.update(run.cell.spec.places)
        for attempt in store.rundir(run.id).read_attempts():
            hosts.add(str(attempt.get("host")))
            origin = attempt.get("origin")
            if isinstance(origin, dict):
                folders.add(str(origin.get("folder")))
                hosts.add(str(origin.get("host")))
    pattern = _words([*folders, *(host for host in hosts if not _is_word_of_ablate(host))])
    for name in bundle.names():
        if not name.endswith(BINARY):
            text = (bundle.root / name).read_text(errors="replace")
            if match := pattern.search(text):
                raise Failure(
                    f"--anonymous: {name} would name {match[0]!r}; change the title, label or "
                    f"name that has it, and sweep again"
                )


def _words(names: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of these names as whole words, without names too short to tell."""
    long = sorted(name for name in names if len(name) > 3 and name != "None")
    return re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in long) or "(?!)")


def _is_word_of_ablate(host: str) -> bool:
    """Return whether ablate's own files have the name of a host as a word, such as `digits`. Then
    bundles of any host may have it, so it gives nobody away."""
    pattern = _words([host])
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return any(pattern.search(path.read_text("utf-8", errors="replace")) for path in files)


Names = Literal["ablate", "timm"]
WEIGHT_NAMES: tuple[Names, ...] = get_args(Names)


def export_weights(store: Store, run: str, file: Path, names: Names, ask: Ask) -> None:
    """Write the weights of a run to `file` as safetensors, with our tensor names or timm's.

    With timm's names, the metadata say with which arguments timm's VisionTransformer is the run's
    model. Raises UserError for a run that has no weights, or whose model timm lacks, and Failure
    for weights that are not what the run left.
    """
    folder = store.rundir(run)
    result = folder.read_result() or {}
    if result.get("status") != "finished":
        raise UserError(f"--weights: {run} has not finished, so it has no weights")
    if "weights_sha256" not in result:
        raise UserError(
            f"--weights: {run} has none: it was imported, or a program of your own trained it"
        )
    if not folder.weights.exists() or sha256_of(folder.weights) != result["weights_sha256"]:
        raise Failure(f"{folder.weights}: missing, or edited since the run ended")
    if names == "ablate":
        with naming_full_disk(file):
            write_whole(file, read_file(folder.weights))
        return
    question = {"spec": folder.read_spec(), "weights": str(folder.weights), "file": str(file)}
    ask("timm", question)
