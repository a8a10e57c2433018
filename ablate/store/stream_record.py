"""A stream of proposals, folded from its sealed events: plain values that decide nothing.

A stream begins with a *baseline*. Each *proposal* is a change of the code or of its settings, and
is kept, discarded or left undecided by its *looks*; a kept one is the next baseline. Numbers name
codes: 0 is the code at the start, N the N-th proposal.

Used by store/streams.py, which reads and appends the events, by analysis/stream_looks.py, which
judges, and by report/stream.py. A new kind of event also needs its case in `folded`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

CLOSING_WORDS = ("keep", "discard", "undecided", "stale")
FAILED_RUNS = ("diverged", "collapsed")  # reasons of looks that no rule has judged
SEED_DIGITS = 7  # hexadecimal: seeds are below 2^28, which every generator takes


@dataclass(frozen=True)
class CodeVersion:
    """A code of a stream: what it is trained from.

    `spec`: the plain tree of its runs, without seed. `declared`: the plain tree of its words.
    `copy`: the name of the copy of its files in the store, "" where it has no files of its own.
    """

    number: int
    id: str  # a hash of everything that its training depends on, the seed aside
    spec: Mapping[str, Any]
    declared: Mapping[str, Any]
    copy: str
    origin: str  # the folder from which it was copied


@dataclass(frozen=True)
class StreamLook:
    """A sealed look at a proposal. Numbers are in units of the metric as printed, higher is better.

    `spreads`: of the look that ends a proposal, what it adds to the pool of earlier runs: sum of
    squares and degrees of freedom of its own runs ("proposal") and of the baseline's ("baseline").
    `holdout`: of a proposal that is kept, its mean and the baseline's of each metric that no rule
    reads; None where a run left no such number.
    """

    runs: int
    baseline_runs: int
    word: str  # goes on, or one of CLOSING_WORDS
    gain: float | None
    low: float | None
    high: float | None
    p: float
    reason: str
    spreads: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    holdout: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)

    @property
    def has_failed(self) -> bool:
        """True if a run diverged or collapsed, so that no rule has judged."""
        return self.reason in FAILED_RUNS


@dataclass(frozen=True)
class Proposal:
    """A proposal of a stream. `against`: the number of the baseline when it was opened; `measure`:
    that of the code whose runs it is compared with, the last one kept for a gain. `words`: the
    settings that were typed over the baseline's."""

    code: CodeVersion
    against: int
    measure: int
    note: str
    words: tuple[str, ...]
    simplify: float | None
    most: int
    pool: tuple[float, int]
    opened: float  # seconds since 1970
    looks: tuple[StreamLook, ...] = ()

    @property
    def number(self) -> int:
        return self.code.number

    @property
    def word(self) -> str:
        """The word that ended it; "" while it is open."""
        word = self.looks[-1].word if self.looks else ""
        return word if word in CLOSING_WORDS else ""

    def awaits(self, runs: int, reason: str) -> bool:
        """Return whether a look at so many runs is still to be sealed. Two processes that try one
        proposal take the same looks, and the second may find another word, since the baseline has
        more runs by then. A run that failed ends a proposal at any look."""
        is_sealed = runs in [look.runs for look in self.looks]
        return not self.word and (reason in FAILED_RUNS or not is_sealed)

    @property
    def has_gained(self) -> bool:
        """True if it was kept for a gain, not as a simplification."""
        return self.word == "keep" and self.simplify is None

    @property
    def trained(self) -> int:
        """The number of its runs that looks have seen."""
        return self.looks[-1].runs if self.looks else 0


@dataclass(frozen=True)
class StreamRules:
    """The rules that a stream declares at its start, for all of its proposals."""

    metric: str
    margin: float | None
    most: int
    level: float
    pairs: bool
    holdout: tuple[str, ...] = ()
    pins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamRecord:
    """A stream, folded from its events."""

    name: str
    rules: StreamRules
    start: CodeVersion
    proposals: tuple[Proposal, ...] = ()
    # Of a stream of pairs: what the baseline's runs with itself add to the pool.
    first_pool: tuple[float, int] | None = None
    first_runs: int = 0  # the number of these runs
    started: float = 0.0

    @property
    def baseline(self) -> CodeVersion:
        """The code that was kept last."""
        return self.kept_codes[-1]

    @property
    def measure(self) -> CodeVersion:
        """The code whose runs proposals are compared with: the last one kept for a gain, so that
        losses of simplifications can't add up."""
        gained = [proposal.code for proposal in self.proposals if proposal.has_gained]
        return gained[-1] if gained else self.start

    @property
    def pool(self) -> tuple[float, int]:
        """The spread of all runs whose proposal has ended: (sum of squares, degrees of freedom)."""
        squares, df = self.first_pool or (0.0, 0)
        for proposal in self.proposals:
            if not proposal.word:
                continue
            of_baseline = proposal.has_gained and not self.rules.pairs
            code = "baseline" if of_baseline else "proposal"
            added_squares, added_df = proposal.looks[-1].spreads.get(code, (0.0, 0))
            squares, df = squares + added_squares, df + added_df
        return squares, df

    def code(self, number: int) -> CodeVersion:
        return self.start if number == 0 else self.proposals[number - 1].code

    def is_answered(self, proposal: Proposal) -> bool:
        """Return whether the content of a proposal, tried now, has the answer of that proposal:
        while it is open, while it is the baseline, and while it would be compared with the same
        code again. A simplification changes the baseline alone."""
        if proposal.word in ("keep", "stale"):
            return proposal.number == self.baseline.number
        return not proposal.word or proposal.measure == self.measure.number

    def proposal_seeds(self, number: int, count: int) -> list[int]:
        """Return the seeds of a proposal's first runs: hashes of its code, of the baseline when it
        was opened, of the code that it is compared with, and of each run's position. So the same
        code against another baseline has other runs, and a stream of another name with the same
        kept codes has the same."""
        proposal = self.proposals[number - 1]
        places = f"{self._place(proposal.against)} {self._place(proposal.measure)}"
        return _seeds(f"proposal {proposal.code.id} {places}", count)

    def baseline_seeds(self, number: int, count: int) -> list[int]:
        """Return the seeds of a baseline's first runs, none of which a proposal has. A code that
        becomes the baseline again has others."""
        return _seeds(f"baseline {self._place(number)}", count)

    def _place(self, number: int) -> str:
        """Return the id of a kept code and its index among the kept ones. A proposal is kept only
        against the last kept code, so later ones have later indices."""
        return f"{self.code(number).id} {[code.number for code in self.kept_codes].index(number)}"

    def baseline_runs(self, measure: int) -> int:
        """Return the number of a baseline's runs that looks have asked for."""
        counts = [
            look.baseline_runs
            for proposal in self.proposals
            if proposal.measure == measure
            for look in proposal.looks
        ]
        return max(counts, default=0)

    @property
    def runs(self) -> int:
        """The number of runs that looks have seen, those of baselines among them."""
        trained = sum(proposal.trained for proposal in self.proposals)
        if self.rules.pairs:
            return 2 * trained + self.first_runs
        measures = {proposal.measure for proposal in self.proposals}
        return trained + sum(map(self.baseline_runs, measures))

    @property
    def needed_codes(self) -> list[CodeVersion]:
        """The codes that may be trained or asked for again: those of `kept_codes`, and those of
        proposals that are open, or that more runs may still decide."""
        going_on = [p.code for p in self.proposals if p.word in ("", "undecided")]
        return [*self.kept_codes, *going_on]

    @property
    def kept_codes(self) -> list[CodeVersion]:
        """The code at the start, and every kept one."""
        return [self.start, *(p.code for p in self.proposals if p.word == "keep")]


def _seeds(text: str, count: int) -> list[int]:
    hashes = [hashlib.sha256(f"{text} {position}".encode()) for position in range(count)]
    return [int(seed.hexdigest()[:SEED_DIGITS], 16) for seed in hashes]


def folded(name: str, events: Iterable[Mapping[str, Any]]) -> StreamRecord:
    """Fold the events of a stream, each a plain tree with its `kind` and the time `at`.

    Raises LookupError, TypeError or ValueError for events that no stream writes.
    """
    record: StreamRecord | None = None
    for event in events:
        match event["kind"]:
            case "start":
                record = _started(name, event)
            case "pairs":
                assert record is not None
                runs = int(event["runs"])
                record = replace(record, first_pool=_spread(event["spread"]), first_runs=runs)
            case "open":
                assert record is not None
                record = replace(record, proposals=(*record.proposals, _opened(event)))
            case "look":
                assert record is not None
                record = _with_proposal(record, event["proposal"], look=_look(event))
            case "more":
                assert record is not None
                record = _with_proposal(record, event["proposal"], most=int(event["most"]))
            case kind:
                raise ValueError(f"unknown event {kind!r}")
    if record is None:
        raise ValueError("has no start")
    return record


def _started(name: str, event: Mapping[str, Any]) -> StreamRecord:
    rules = event["rules"]
    return StreamRecord(
        name,
        StreamRules(**{**rules, "holdout": tuple(rules["holdout"])}),
        CodeVersion(**event["code"]),
        started=float(event["at"]),
    )


def _opened(event: Mapping[str, Any]) -> Proposal:
    return Proposal(
        CodeVersion(**event["code"]),
        **{key: event[key] for key in ("against", "measure", "note", "simplify", "most")},
        words=(*event["words"],),
        pool=_spread(event["pool"]),
        opened=float(event["at"]),
    )


def _look(event: Mapping[str, Any]) -> StreamLook:
    fields = {key: value for key, value in event.items() if key not in ("kind", "at", "proposal")}
    fields["spreads"] = {key: _spread(pair) for key, pair in fields.get("spreads", {}).items()}
    means = fields.get("holdout", {})
    fields["holdout"] = {
        name: (value, baseline_value) for name, (value, baseline_value) in means.items()
    }
    return StreamLook(**fields)


def _spread(pair: Any) -> tuple[float, int]:
    squares, df = pair
    return float(squares), int(df)


def _with_proposal(
    record: StreamRecord, number: int, look: StreamLook | None = None, most: int | None = None
) -> StreamRecord:
    """Return the record with one more look at a proposal, or with more runs for it at most."""
    proposals = list(record.proposals)
    proposal = proposals[number - 1]
    if look is not None:
        proposal = replace(proposal, looks=(*proposal.looks, look))
    if most is not None:
        # The look that left it undecided was its last; now it goes on, and a later one adds to the
        # pool.
        last_look = replace(proposal.looks[-1], word="goes on", reason="", spreads={})
        proposal = replace(proposal, most=most, looks=(*proposal.looks[:-1], last_look))
    proposals[number - 1] = proposal
    return replace(record, proposals=tuple(proposals))
