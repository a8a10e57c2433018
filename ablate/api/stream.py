"""A stream of proposals: keep or discard, by rules that bound false keeps.

`Stream.attempt` opens a proposal, trains what its next look needs, seals the look, and goes on
until a word is there. Every step is decided by what is sealed and by results; so after a kill the
same call goes on, to the same word. Two processes may judge proposals at once: each is judged
against the baseline of its opening, and a keep for which that has changed is stale.

Used by `ablate gate` (cli/gate.py) and by Python. The rules are in analysis/stats/gate.py.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablate.analysis import StreamJudge
from ablate.api.errors import explained
from ablate.api.pins import Contents, check_pins, hash_pins, read_pinned
from ablate.api.stream_answers import GateAnswer, GateOptions, StreamLog
from ablate.api.stream_log import answer_of, log_of
from ablate.api.stream_runs import Collapsed, StreamRuns
from ablate.planning import ComposedCode
from ablate.run import OwnSpec, RunSpec, code_file_hash, code_sources
from ablate.shared import TryAgain, UserError, read_file, spelling, unknown_value
from ablate.store import CodeVersion, Store, StreamFile

Place = str | os.PathLike[str] | None


class Stream:
    """A stream that was started: `Stream("idea").attempt("trainer.lr=0.01", note="faster")`.

    Raises UserError where the store has none of this name.
    """

    @explained
    def __init__(self, name: str, *, store: Place = None) -> None:
        self._store = _store(store)
        self._file = StreamFile(self._store, name)
        if not self._file.exists():
            names = [file.name for file in StreamFile.of_store(self._store)]
            if not names:
                command = self._store.command("gate", "start", "NAME")
                raise UserError(
                    f"stream: none has been started in {self._store.root}; `{command}` starts one"
                )
            raise unknown_value("stream", name, names)
        self.name = name

    def __repr__(self) -> str:
        return f"<ablate.Stream {self.name!r}>"

    @staticmethod
    @explained
    def start(
        name: str, *words: str, rules: GateOptions | None = None, store: Place = None
    ) -> Stream:
        """Start a stream: the code in the working folder, with the settings of `words`, is its
        baseline. Nothing is trained. The same call again changes nothing.

        Raises UserError for a mistake in words or rules, and where another stream has the name.
        """
        options, place = rules or GateOptions(), _store(store)
        _check_options(options)
        place.refuse_bundle()
        file = StreamFile(place, name)
        composed = ComposedCode.of_folder(words, None, place.root)
        metric = StreamJudge.metric_of(composed.spec, options.metric, "metric")
        for holdout in options.holdout:
            StreamJudge.metric_of(composed.spec, holdout, "--holdout")
        pinned = read_pinned(options.pins, Path.cwd(), place.root)
        pins = hash_pins(pinned)
        code = _code_of(file, composed, pinned)
        sealed_rules = {
            "metric": metric.name,
            **{key: getattr(options, key) for key in ("margin", "most", "level", "pairs")},
            "holdout": list(options.holdout),
            "pins": pins,
        }
        with file.appending() as writer:
            if not file.exists():
                if place.plan_path(name).exists():  # `verify NAME` would check the stream alone
                    raise UserError(f"{name}: is the name of a sweep here; give the stream another")
                writer.append("start", rules=sealed_rules, code=dataclasses.asdict(code))
            record = file.record()
        same_rules = {**dataclasses.asdict(record.rules), "holdout": [*record.rules.holdout]}
        if record.start.id != code.id or same_rules != sealed_rules:
            raise UserError(
                f"{name}: is a stream already, with another baseline or other rules; go on with "
                f"`{place.command('gate', 'try', name)}`, or give another name"
            )
        return Stream(name, store=place.root)

    @explained
    def attempt(
        self, *words: str, note: str = "", simplify: float | None = None, most: int | None = None
    ) -> GateAnswer:
        """Judge the code in the working folder, with `words` over the baseline's, and return the
        answer; the missing runs are trained. The same content has the same answer.

        `note`: what the change is, for the log; `simplify`: keep it if it loses no more than this;
        `most`: runs at most (4, 8, 12, 20 or 30), also for one that was left undecided.

        Raises UserError for a mistake, for code that is the baseline's, and where it changes what
        is pinned; TryAgain where another proposal was kept meanwhile; Failure where a run fails,
        and the proposal stays open; KeyboardInterrupt where it was stopped. The same call goes on.
        """
        stop_mark = self._store.stop_mark()
        _check_most(most)
        _check_positive("--simplify", simplify)
        record = self._file.record()
        pinned = read_pinned([*record.rules.pins], Path.cwd(), self._store.root)
        check_pins(record.rules.pins, pinned)
        composed = ComposedCode.of_folder(words, record.baseline.declared, self._store.root)
        _check_measured(composed.spec, RunSpec.of(record.start.spec))
        code = _code_of(self._file, composed, pinned)
        work = StreamRuns(self._store, record, composed.launcher, stop_mark)
        if record.rules.pairs and record.first_pool is None:
            self._train_first_pairs(work)
        number = self._open(code, record.baseline.number, words, note, simplify, most)
        while not (record := self._file.record()).proposals[number - 1].word:
            self._judge(dataclasses.replace(work, record=record), number)
        return answer_of(self._store, record, number)

    @explained
    def log(self) -> StreamLog:
        """Return what became of all proposals. Nothing is trained."""
        return log_of(self._store, self._file.record())

    @explained
    def files(self, number: int) -> dict[str, bytes]:
        """Return the files of a kept code, by path: 0 is the first baseline, N the N-th
        proposal. Raises UserError for another number."""
        return self._file.copies.files(self._copy(number))

    @explained
    def restore(self, number: int, folder: str | os.PathLike[str]) -> list[str]:
        """Write the files of a kept code into a folder, over what is there; return their paths.
        `edited_files` says what would be lost. Raises UserError as `files` does, and for a folder
        within the store."""
        return self._file.copies.restore(self._copy(number), Path(folder))

    @explained
    def edited_files(self, number: int, folder: str | os.PathLike[str]) -> list[str]:
        """List the files of a kept code that have other bytes in a folder than in every code that
        the stream has a copy of: edits that `restore` would overwrite. Raises UserError as `files`
        does."""
        record, copies = self._file.record(), self._file.copies
        codes = [record.start, *(proposal.code for proposal in record.proposals)]
        kept_names = {code.copy for code in codes} & {*copies.names()}
        return copies.edited(self._copy(number), Path(folder), kept_names)

    def _copy(self, number: int) -> str:
        kept_codes = {code.number: code for code in self._file.record().kept_codes}
        if number not in kept_codes:
            place = f"{self.name}: code"
            raise unknown_value(place, number, kept_codes, "the number of a kept one:")
        if not (copy := kept_codes[number].copy):
            raise UserError(f"{self.name} {number}: has no files of its own, only settings")
        return copy

    # --- A proposal ---

    def _open(
        self,
        code: CodeVersion,
        against: int,
        words: Sequence[str],
        note: str,
        simplify: float | None,
        most: int | None,
    ) -> int:
        """Return the number of the proposal with this content, a new one where the stream has not
        judged it against what would be its measure now. Raises TryAgain where `against`, over whose
        settings it was composed, is the baseline no more: it would undo what was kept since;
        UserError where the proposal with this content has another `simplify`."""
        with self._file.appending() as writer:
            record = self._file.record()
            baseline = record.baseline
            if baseline.number != against:
                raise TryAgain(f"{self.name}: another proposal was kept meanwhile; try again")
            for proposal in reversed(record.proposals):
                if proposal.code.id != code.id or not record.is_answered(proposal):
                    continue
                _check_simplify(simplify, proposal.simplify, proposal.number)
                goes_on = proposal.word == "undecided" and (most or 0) > proposal.most
                if goes_on and proposal.looks[-1].reason == "runs":
                    writer.append("more", proposal=proposal.number, most=most)
                return proposal.number
            if code.id == baseline.id:
                raise UserError(
                    f"{self.name}: the code and settings are the baseline's; change them first"
                )
            writer.append(
                "open",
                code=dataclasses.asdict(
                    dataclasses.replace(code, number=len(record.proposals) + 1)
                ),
                against=against,
                measure=record.measure.number,
                note=note,
                words=[*words],
                simplify=simplify,
                most=most or record.rules.most,
                pool=[*record.pool],
            )
            return len(record.proposals) + 1

    def _train_first_pairs(self, work: StreamRuns) -> None:
        results = work.of_baseline(work.record.start, StreamJudge.paired_start)
        spread = StreamJudge(work.record).first_pool(results)
        with self._file.appending() as writer:
            if self._file.record().first_pool is None:
                writer.append("pairs", spread=spread, runs=len(results))

    def _judge(self, work: StreamRuns, number: int) -> None:
        """Train what the next look at a proposal needs, and seal the look."""
        judge, record = StreamJudge(work.record), work.record
        proposal = record.proposals[number - 1]
        measure = record.code(proposal.measure)
        proposal_results, baseline_results = list[dict[str, Any]](), list[dict[str, Any]]()
        try:
            while (
                lacking := judge.lacking(number, proposal_results, baseline_results)
            ) is not None:
                runs, baseline_runs = lacking
                if record.rules.pairs:
                    proposal_results, baseline_results = work.of_pairs(proposal.code, measure, runs)
                    continue
                if runs:
                    proposal_results = work.of_proposal(proposal.code, runs)
                baseline_runs_in_all = max(baseline_runs, record.baseline_runs(measure.number))
                baseline_results = work.of_baseline(measure, baseline_runs_in_all)
        except Collapsed as error:
            self._seal(number, judge.failed(error.runs, len(baseline_results), error.word))
            return
        self._seal(number, judge.look(number, proposal_results, baseline_results))

    def _seal(self, number: int, fields: dict[str, Any]) -> None:
        """Seal a look, unless another process has judged the same. A keep whose baseline has
        changed is stale."""
        with self._file.appending() as writer:
            record = self._file.record()
            proposal = record.proposals[number - 1]
            if not proposal.awaits(fields["runs"], fields["reason"]):
                return
            if fields["word"] == "keep" and record.baseline.number != proposal.against:
                fields["word"] = "stale"
            writer.append("look", proposal=number, **fields)


def _store(place: Place) -> Store:
    return Store(Path(place or Store.default_root()))


def _code_of(file: StreamFile, composed: ComposedCode, pinned: Contents) -> CodeVersion:
    """Return the code in the working folder, without a number yet, and keep a copy of its files and
    of the pinned ones, as they were read to be checked. Raises TryAgain for a file that is not the
    one that `composed` was made of, UserError for a program that no copy would be trained of."""
    origin, spec = Path.cwd(), composed.spec
    for script in composed.scripts_outside_code(origin):
        raise UserError(
            f"trainer.command: {script}: is not in its code, so an edit would reach runs that have "
            f"begun; name it in `code`, by its path in this folder"
        )
    contents = {name: read_file(path) for name, path in code_sources(spec, origin).items()}
    if contents:
        for files in pinned.values():
            contents |= files
    hashes = spec.tree["code"]["files"] if isinstance(spec, OwnSpec) else {}
    for name, file_hash in hashes.items():
        if code_file_hash(contents[name]) != file_hash:
            raise TryAgain(f"{name}: was edited while it was read; try again")
    return CodeVersion(
        number=0,
        id=hashlib.sha256(spec.identity.encode()).hexdigest()[:16],
        spec=dict(spec.tree),
        declared=composed.declared_tree,
        copy=file.copies.keep(contents, origin) if contents else "",
        origin=str(origin),
    )


def _check_measured(spec: RunSpec, start_spec: RunSpec) -> None:
    """Raise UserError where a proposal is not measured as the stream's first baseline is."""
    if spec.task_name != start_spec.task_name:
        raise UserError(
            f"metrics: this code is measured by {spec.task_name}, and the stream's baseline by "
            f"{start_spec.task_name}; a change of what is measured is another stream"
        )
    measures, start_measures = _measures(spec), _measures(start_spec)
    for place in {**start_measures, **measures}:
        if measures.get(place) != start_measures.get(place):
            raise UserError(
                f"{place}: differs from the stream's first baseline, and says what is measured; "
                f"undo that, or start another stream"
            )


def _measures(spec: RunSpec) -> dict[str, Any]:
    """Return the settings that say what is measured, by their place: on which data, and how."""
    if not isinstance(spec, OwnSpec):
        sections = json.loads(spec.identity)
        return {section: sections.get(section) for section in ("data", "eval")}
    if not spec.is_command:
        return {}
    code = spec.tree["code"]
    return {
        "trainer.command": spec.trainer,
        "trainer.data": code["data"],
        "trainer.result": code["program"]["result"],
    }


def _check_options(options: GateOptions) -> None:
    _check_most(options.most)
    _check_positive("--margin", options.margin)
    if not 0 < options.level <= 0.5:
        raise UserError(f"--level: expected a number above 0 and up to 0.5, got {options.level:g}")


def _check_most(most: int | None) -> None:
    if most is not None and most not in StreamJudge.most_choices:
        raise unknown_value("--most", most, StreamJudge.most_choices)


def _check_simplify(value: float | None, sealed_value: float | None, number: int) -> None:
    """Raise UserError where a proposal was opened with another `--simplify` than is typed now."""
    if value == sealed_value:
        return
    was, remedy = "without it", "leave it out"
    if sealed_value is not None:
        was, remedy = f"with {spelling(sealed_value)}", "type that"
    raise UserError(
        f"--simplify: proposal {number} has this content and was tried {was}; {remedy}, or propose "
        f"another change"
    )


def _check_positive(option: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise UserError(f"{option}: expected a number above 0, got {value:g}")
