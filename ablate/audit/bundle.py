"""A sweep as a folder that a reviewer recomputes from, without the store it was trained in.

`export` copies the raw files, and makes everything else in the bundle out of these copies; `Bundle`
reads it again, and `check` makes it again. The bundle is built beside its place and gets its name
when it is whole. An anonymous one has of each file what is known to name nobody, and no more.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import importlib.metadata
import io
import itertools
import json
import os
import platform
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.analysis.reading import read
from ablate.analysis.scores import Results
from ablate.audit.verify import Verified, remake
from ablate.planning.cell import Cell
from ablate.planning.plan import Plan
from ablate.report.formats import FORMATS, render
from ablate.report.formats.tidy import inert
from ablate.report.frames import curves_frame, runs_frame
from ablate.report.page import page
from ablate.report.plot import figures
from ablate.report.show import provenance
from ablate.shared import spec
from ablate.shared.errors import Failure, UserError, unknown
from ablate.shared.files import is_number, read_json, to_json
from ablate.shared.rundir import RunDir
from ablate.store.events import History, Look
from ablate.store.find import computed, driven, instance, sweeps
from ablate.store.ledger import FINAL, Ledger, Store, Unrecorded
from ablate.store.record import folded, histories, load_records
from ablate.version import __version__

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 3  # of a bundle; 2 had no manifest, 1 did not say of which analysis verdicts were read
SEALED = 3  # the first with a manifest
EXTENSIONS = {"latex": "tex"}  # of a table's format; else its name
COMPUTES = ("numpy", "scipy", "pandas", "pyarrow", "matplotlib")  # a table, a curve, a figure
NUMBERS = ("table.csv", "runs.csv", "curves.parquet")  # that every version makes alike

# What is left of an attempt and of an event in an anonymous bundle.
ATTEMPT = {
    *("at", "ended", "exit", "from_step", "seed", "fingerprint", "kernel", "digest", "device"),
    *("driver", "packages", "plugins", "python", "threads"),
}
ANONYMOUS = "anonymous"  # says such an env.json
EVENT = {"sweep", "step", "seconds", "device", "result_sha256", "rebuilt", "code"}
PLACES = {(section, key) for section, key in spec.NOT_IDENTITY if key in ("path", "folder")}
RAW = ("sweep.json", "specs", "predictions", "events.json", "looks.jsonl", "environment.json")
BINARY = (".npy", ".npz", ".parquet")

README = """\
{title}

The sweep {name} as ablate {version} exported it. ablate: pip install ablate-sweep

From the raw files alone, the table again (every result is made again from predictions/ and
metrics.jsonl, and checked against the hashes that were taken when it was trained):

    ablate table --from .
    ablate table --from . --format csv | cmp - table.csv

In Python: ablate.load(store=".") and ablate.load(store=".", curves=True) are pandas frames,
with trials=True those of runs.csv and curves.parquet.

Is every file as it was exported, and every table, figure and page what the raw files make?

    ablate verify .

That finds accidents and edits. It finds no forger who makes all of it again, hashes included.

report.html        all of it to read, in one file
table.*            the gains, in every format; table.csv has one exact number a line
runs.csv           a row a run: id, row, column, seed, settings, status, test metrics, cost; one
                   with a number under `trial` was a search's: it chose settings by `score`, on
                   validation; no table has it
curves.parquet     a row a run and evaluation: losses, accuracies, learning rate
figures/           what is drawn in the report

Raw files:
sweep.json         the plan: rows, columns, seeds, analysis, and every run's whole configuration
specs/ID/          of a run: run.json what was asked for, result.json what came of it, env.json
                   where and how each attempt ran, metrics.jsonl its curves, probe-*.npz what its
                   probes saw; log.txt where it failed (not in an anonymous bundle)
predictions/ID.npy per test example: {keeps}
events.json        what the ledger noted of each run
looks.jsonl        at which seeds, of which rows and analysis verdicts were read, these the last
diffs/             with --with-diff: what git had not committed when runs were trained
environment.json   versions that trained, and versions that made this bundle
manifest.json      the sha256 of every other file

The weights are not here: they stay in the store.
"""


class _BundledRun(RunDir):
    """A run's files as a bundle has them: predictions lie together."""

    def __init__(self, path: Path, predictions: Path) -> None:
        super().__init__(path)
        vars(self)["predictions"] = predictions

    def sealed_attempts(self, result: Mapping[str, Any] | None) -> tuple[list[dict[str, Any]], str]:
        """Of an anonymous bundle env.json is not what the run left: the manifest alone has it."""
        content = read_json(self.env)
        if isinstance(content, dict) and content.get(ANONYMOUS) is True:
            return self.read_attempts(), ""
        return super().sealed_attempts(result)


class Bundle(Store):
    """A bundle is a store of one sweep, whose ledger is a file of events."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.events = root / "events.json"
        self.environment = root / "environment.json"
        self.manifest = root / "manifest.json"

    def rundir(self, run: str) -> RunDir:
        name = super().rundir(run).id
        return _BundledRun(self.root / "specs" / name, self.root / "predictions" / f"{name}.npy")

    def plan_path(self, name: str) -> Path:
        return self.root / "sweep.json"

    @property
    def format(self) -> int:
        """Its FORMAT; 0 of what is no bundle."""
        environment = read_json(self.environment)
        format = environment.get("bundle") if isinstance(environment, dict) else None
        return format if isinstance(format, int) else 0

    @property
    def is_sealed(self) -> bool:
        """Has it a manifest, or should it have one? Older formats had none."""
        return self.format >= SEALED or os.path.lexists(self.manifest)

    @property
    def is_one(self) -> bool:
        return self.format > 0

    def read(self) -> tuple[Plan, dict[str, History]]:
        """The plan, and every run's events. Raises UserError for what is no bundle, Failure where
        one of its own files is not as it was exported."""
        if not self.is_one:
            raise UserError(f"{self.root}: no bundle of `ablate export DIR`")
        if self.is_sealed:
            listed = self.read_manifest()
            for path in (self.environment, self.plan_path(""), self.events, self.looks):
                if listed.get(path.name) != _sha256(path):
                    raise Failure(
                        f"{path}: not as it was exported; `ablate verify {self.root}` says more"
                    )
        return self.read_unsealed()

    def read_manifest(self) -> dict[str, str]:
        """The hash of every file by its place in the bundle. Raises Failure where that lacks."""
        match read_json(self.manifest):
            case {"files": dict(files), "seal": seal} if seal == _seal(files):
                return files
            case {"files": dict(files), **others} if not others:  # of a version before
                return files
        raise Failure(f"{self.manifest}: missing, or not as it was exported")

    def write_manifest(self) -> None:
        files = {name: _sha256(self.root / name) for name in self.names()}
        self.manifest.write_bytes(to_json({"files": files, "seal": _seal(files)}))

    def names(self) -> list[str]:
        """The place of every file but the manifest; of a link, wherever it leads, too."""
        found = []
        for folder, folders, files in os.walk(self.root):
            links = [name for name in folders if Path(folder, name).is_symlink()]
            found += [Path(folder, name).relative_to(self.root) for name in [*files, *links]]
        return sorted(path.as_posix() for path in found if path.as_posix() != self.manifest.name)

    def read_unsealed(self) -> tuple[Plan, dict[str, History]]:
        """`read`, without the manifest."""
        plan = self.read_plan("")
        if plan is None:
            raise Failure(f"{self.plan_path('')}: missing or not whole")
        return computed(self, plan), self._told()

    def _told(self) -> dict[str, History]:
        events = read_json(self.events)
        try:
            told: dict[str, History] = {
                run: [(at, kind, detail) for at, kind, detail in events[run]] for run in events
            }
            for at, kind, detail in itertools.chain.from_iterable(told.values()):
                if not (is_number(at) and isinstance(kind, str) and isinstance(detail, dict)):
                    raise ValueError
            for history in told.values():
                folded(history)
            return told
        except (ValueError, LookupError, TypeError) as error:
            raise Failure(
                f"{self.events}: not whole, or not what `ablate export` writes"
            ) from error

    def seals(self) -> dict[str, str]:
        last = {run: history[-1] for run, history in self._told().items() if history}
        return {
            run: str(detail["result_sha256"])
            for run, (_, kind, detail) in last.items()
            if kind in FINAL and "result_sha256" in detail
        }

    def read_looks(self, sweep: str) -> list[Look]:
        return self.looks_view()

    def add_look(self, look: Look) -> None:
        """A bundle is never written: it has the look that its export was, and no other's words."""
        environment = read_json(self.environment)
        if self.format > 1 and look not in self.looks_view():
            raise Unrecorded(environment.get("withheld") or "the bundle carries other verdicts")

    def recompute(self, plan: Plan, told: Mapping[str, History]) -> Results:
        """Every result from the raw files. Raises Failure where these aren't what was exported."""
        results, findings = remake(plan, self, told)
        if findings:
            more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
            raise Failure(f"{findings[0]}{more}")
        return results


def check_folder(folder: Path) -> None:
    """May a bundle be written there? Raises UserError."""
    folder = folder.resolve()
    if not folder.parent.is_dir():
        raise UserError(f"{folder.parent}: no such folder")
    earlier = Bundle(folder).is_one
    if not earlier and folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder}: is there already, and no earlier export; name another folder")


def export(
    plan: Plan,
    store: Store,
    told: Mapping[str, History],
    folder: Path,
    anonymous: bool = False,
    diffs: bool = False,
) -> None:
    """Write the bundle of a sweep. Its verdicts are a look, which the store keeps.

    `anonymous`: without host, user, folders, logs; `diffs`: with what was not committed. An earlier
    bundle is replaced. Raises UserError where `folder` holds anything else, and Failure where a
    run's files are not those that it left, where a file of an anonymous bundle would name a folder
    or a host, or the disk is full.
    """
    check_folder(folder)
    folder = folder.resolve()
    made = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        made.mkdir()
        bundle = Bundle(made)
        _copy(bundle, plan, store, told, anonymous, diffs)
        _fill(bundle, store)
        if anonymous:
            _check_nobody(bundle, plan, store)
        bundle.write_manifest()
        os.sync()  # thousands of files: all at once
        _replace(made, folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    for path in _leftovers(folder):
        shutil.rmtree(path, ignore_errors=True)


def _replace(made: Path, folder: Path) -> None:
    if not folder.exists() or not any(folder.iterdir()):
        made.rename(folder)
        return
    aside = made.with_name(f"{made.name}.old")
    folder.rename(aside)
    try:
        made.rename(folder)
    except OSError:
        aside.rename(folder)
        raise
    shutil.rmtree(aside)


def _leftovers(folder: Path) -> list[Path]:
    """What exports to that folder left when they were killed."""
    ours = re.compile(rf"\.{re.escape(folder.name)}\.(\d+)(\.old)?")
    found = ((ours.fullmatch(path.name), path) for path in folder.parent.iterdir())
    return [path for match, path in found if match and not Path(f"/proc/{match[1]}").exists()]


def _fill(bundle: Bundle, store: Store) -> None:
    """All else, made of the copies."""
    plan, told = bundle.read_unsealed()
    results = bundle.recompute(plan, told)
    for name, content in _derived(bundle, plan, told, results, store, _makers()).items():
        path = bundle.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


def _makers() -> dict[str, Any]:
    """What makes a bundle here and now, as its environment.json says it."""
    versions = {name: importlib.metadata.version(name) for name in COMPUTES}
    made_with = {"python": platform.python_version(), **versions}
    return {"bundle": FORMAT, "ablate": __version__, "made_with": made_with}


def _derived(
    bundle: Bundle,
    plan: Plan,
    told: Mapping[str, History],
    results: Results,
    store: Store,
    makers: Mapping[str, Any],
) -> dict[str, bytes]:
    """Every file that is made of the raw ones, by its place. The look is recorded in `store`."""
    runs = load_records(plan, bundle, told)
    reading = read(plan, store, results, curves=lambda run: bundle.rundir(run).read_metrics())
    table = reading.table
    drawn = figures(plan, table, bundle.rundir)
    title, version = plan.title or plan.name, makers["ablate"]
    texts = {
        **{
            f"table.{EXTENSIONS.get(format, format)}": render(table, format)
            for format in FORMATS
            if format != "rich"
        },
        **{f"figures/{name}.svg": svg for name, svg in drawn.items()},
        "runs.csv": _csv(runs_frame(plan, runs, trials=True)),
        "report.html": page(plan, table, runs, reading.looks, drawn),
        "README.txt": README.format(
            title=title, name=plan.name, version=version, keeps=plan.task.keeps
        ),
        "looks.jsonl": "".join(f"{json.dumps(x.event(plan.name))}\n" for x in reading.looks),
    }
    curves = io.BytesIO()
    curves_frame(plan, runs, trials=True).to_parquet(curves, index=False)
    told_of = {"sweep": plan.name, "withheld": reading.withheld, "trained_with": provenance(runs)}
    return {
        **{name: text.encode() for name, text in texts.items()},
        "curves.parquet": curves.getvalue(),
        "environment.json": to_json({**makers, **told_of}),
    }


def _csv(frame: pd.DataFrame) -> str:
    words = frame.select_dtypes(exclude=["number", "bool"])
    safe = frame.assign(**{str(name): words[name].map(inert) for name in words})
    return safe.to_csv(index=False, lineterminator="\n")


def _copy(
    bundle: Bundle,
    plan: Plan,
    store: Store,
    told: Mapping[str, History],
    anonymous: bool,
    diffs: bool,
) -> None:
    """The raw files."""
    bundle.write_plan(_placeless(plan) if anonymous else plan)
    events = {run: _nameless(history) for run, history in told.items()} if anonymous else told
    bundle.events.write_text(json.dumps(events, indent=1))
    (bundle.root / "specs").mkdir()
    (bundle.root / "predictions").mkdir()
    for run in plan.runs():
        source, target = store.rundir(run.id), bundle.rundir(run.id)
        target.path.mkdir()
        # The result first: where it is there, nothing of the others changes any more.
        names = ("result", "run", "env", "metrics", "predictions")
        for name in names:
            _copy_file(getattr(source, name), getattr(target, name))
        for probe in run.cell.spec.get("probe", ()):
            _copy_file(source.probe(probe), target.probe(probe))
        if anonymous:
            _forget_places(target)
            continue
        if not target.has_result():
            _copy_file(source.log, target.log)
        for attempt in target.read_attempts() if diffs else ():
            _copy_diff(attempt, store, bundle)


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
    """Without where data and plug-ins lie, which is no part of a run's id."""

    def blank(cell: Cell) -> Cell:
        specs = tuple(_unplaced(tree) for tree in cell.specs)
        return replace(cell, spec=_unplaced(cell.spec), specs=specs)

    words = [word for word in plan.words if not re.match(r"\W*(data\.path|launcher)\b", word)]
    return replace(
        plan,
        words=tuple(Path(word).name if word.endswith(".yaml") else word for word in words),
        cells=tuple(map(blank, plan.cells)),
        trials=tuple(replace(trial, cell=blank(trial.cell)) for trial in plan.trials),
        notes=(),
    )


def _unplaced(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {
        section: {key: None if (section, key) in PLACES else part for key, part in value.items()}
        if isinstance(value, Mapping)
        else value
        for section, value in tree.items()
    }


def _nameless(history: History) -> list[Any]:
    return [
        (at, kind, {key: value for key, value in detail.items() if key in EVENT})
        for at, kind, detail in history
    ]


def _forget_places(folder: RunDir) -> None:
    """In a run's copies: run.json without places, env.json without all that is not in ATTEMPT."""
    content = read_json(folder.run)
    if isinstance(content, dict) and isinstance(content.get("spec"), dict):
        folder.run.write_bytes(to_json({**content, "spec": _unplaced(content["spec"])}))
    else:
        folder.run.unlink(missing_ok=True)
    attempts = folder.read_attempts()
    folder.env.unlink(missing_ok=True)
    if attempts:
        left = [{key: part for key, part in one.items() if key in ATTEMPT} for one in attempts]
        folder.write_attempts(left, **{ANONYMOUS: True})


def _check_nobody(bundle: Bundle, plan: Plan, store: Store) -> None:
    """Raises Failure where a file names a folder or a host: in a title, say, or a row's label."""
    names = {str(Path.home()), os.getcwd(), str(store.root.resolve()), platform.node()}
    for run in plan.runs():
        for section, key in PLACES:
            names.add(str(run.cell.spec.get(section, {}).get(key)))
        for attempt in store.rundir(run.id).read_attempts():
            origin = attempt.get("origin")
            if isinstance(origin, dict):
                names |= {str(origin.get("folder")), str(origin.get("host"))}
    long = sorted(name for name in names if len(name) > 3 and name != "None")
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in long) or "(?!)")
    for name in bundle.names():
        if not name.endswith(BINARY):
            text = (bundle.root / name).read_text(errors="replace")
            if match := pattern.search(text):
                raise Failure(f"--anonymous: {name} would say {match[0]!r}; sweep it otherwise")


# --- Checked --------------------------------------------------------------------------------------


def check(bundle: Bundle) -> Verified:
    """Is every file as the manifest says, and every derived one what the raw files make?

    Nothing is written. Of an older version's bundle, without a manifest, only numbers are made
    again; of one that other versions made, what these may write otherwise is a note.
    """
    found = Verified()
    wrong = dict(_unlike(bundle, found))
    found.findings += [f"{name}: {what}" for name, what in wrong.items()]
    if strange := [name for name in bundle.names() if not _is_regular(bundle.root / name)]:
        found.findings.append(f"{_list(strange)}: no regular file, so nothing was made again")
        return found
    try:
        plan, told = bundle.read_unsealed()
        if told.keys() != {run.id for run in plan.runs()}:
            found.findings.append(f"{bundle.events.name}: has other runs than the plan")
        results, findings = remake(plan, bundle, told)
        found.findings += findings
        found.runs = len(results)
        if findings or any(name.partition("/")[0] in RAW for name in wrong):
            found.notes.append("no table, figure or page was made again: the raw files come first")
            return found
        environment = read_json(bundle.environment)
        makers = {key: environment[key] for key in ("bundle", "ablate", "made_with")}
        made = _derived(bundle, plan, told, results, bundle, makers)
    except Exception as error:  # whatever comes of reading what somebody else wrote
        first = str(error).partition("\n")[0]
        found.findings.append(
            f"{bundle.root}: can't be made again ({type(error).__name__}: {first})"
        )
        return found
    found.numbers = (
        sum(line[-2] != "" for line in csv.reader(io.StringIO(made["table.csv"].decode()))) - 1
    )
    differ = [
        name for name in made if name not in wrong and not _same(bundle.root / name, made[name])
    ]
    here = _makers()
    alike = makers == here
    words = [name for name in differ if not (alike or name in NUMBERS)]
    if words:
        found.notes.append(
            f"{_list(words)}: other bytes here, where {_versions(here)} would make them; "
            f"the bundle is of {_versions(makers)}"
        )
    found.findings += [
        f"{name}: is not what the raw files make" for name in differ if name not in words
    ]
    if alike:
        extra = _made_names(bundle) - made.keys()
        found.findings += [
            f"{name}: nothing makes it" for name in sorted(extra) if name not in wrong
        ]
    return found


def _unlike(bundle: Bundle, found: Verified) -> Iterator[tuple[str, str]]:
    """(file, what is wrong with it), by the manifest."""
    if not bundle.is_sealed and bundle.is_one:
        found.notes.append(
            f"the bundle has format {bundle.format}, without a manifest: whether events.json, "
            f"env.json and figures are as they were exported can't be said"
        )
        return
    try:
        listed = bundle.read_manifest()
    except Failure:
        yield bundle.manifest.name, "missing, or not as it was exported"
        return
    names = bundle.names()
    for name in sorted(listed.keys() - set(names)):
        yield name, "missing"
    for name in names:
        if name not in listed:
            yield name, "not in the manifest: it was added later"
        elif _sha256(bundle.root / name) != listed[name]:
            yield name, "not as it was exported"


def _made_names(bundle: Bundle) -> set[str]:
    """The places of derived files, there or not, that nothing else is made of."""
    tables = {f"table.{EXTENSIONS.get(format, format)}" for format in FORMATS if format != "rich"}
    figures = {name for name in bundle.names() if name.startswith("figures/")}
    return tables | figures | {"runs.csv", "curves.parquet", "report.html", "README.txt"}


def _same(path: Path, made: bytes) -> bool:
    """Are the bytes the same, or of a parquet file the values?"""
    if not path.is_file():
        return False
    said = path.read_bytes()
    if said == made or path.suffix != ".parquet":
        return said == made
    import pandas as pd

    try:
        return pd.read_parquet(io.BytesIO(said)).equals(pd.read_parquet(io.BytesIO(made)))
    except Exception:  # whatever pyarrow says of bytes that are not its own
        return False


def _versions(makers: Mapping[str, Any]) -> str:
    others = (f"{name} {version}" for name, version in makers["made_with"].items())
    return ", ".join([f"ablate {makers['ablate']} (format {makers['bundle']})", *others])


def _list(names: Collection[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join([*names][:most]) + more


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _seal(files: Mapping[str, Any]) -> str:
    """Of a manifest."""
    return hashlib.sha256(to_json(files)).hexdigest()


def _sha256(path: Path) -> str | None:
    """None of what is no regular file."""
    if not _is_regular(path):
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def opened(root: Path, name: str | None) -> tuple[Plan, Store, Mapping[str, History]]:
    """A sweep of a store, the last driven one for None, or the one of a bundle."""
    bundle = Bundle(root)
    if bundle.is_one:
        plan, told = bundle.read()
        if name not in (None, plan.name):
            raise unknown("sweep", name, [plan.name], f"that of {root}:")
        return plan, bundle, told
    store = Store(root)
    with Ledger.reading(store) as ledger:
        known = sweeps(store, ledger)
        plan = driven(store, ledger, known, (instance(name, known) or name) if name else known[0])
        return computed(store, plan), store, histories(plan, ledger)
