"""A stream of proposals for eyes: the answer in a line, the log as a table, and its figure.

Used by cli/gate.py, which gives the plain trees of api/stream_answers.py.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ablate.shared import amount_text, count_text

REASONS = {
    "gain": "",
    "small": "gains too little",
    "runs": "no look is left",
    "bits": "all of its runs are equal: the code ignores its seed",
    "constant": "all runs of the baseline are equal, too: seeds change nothing",
    "diverged": "a run diverged",
    "collapsed": "a run collapsed",
}


def gain_text(answer: Mapping[str, Any]) -> str:
    """Return a gain with its interval and unit, "" where there is none."""
    if answer["gain"] is None:
        return ""
    text = f"{answer['gain']:+.4g}"
    if answer["interval"] is not None:
        low, high = answer["interval"]
        text += f" [{low:+.4g}, {high:+.4g}]"
    return f"{text} {answer['unit']}".rstrip()


HEADINGS = ("n", "word", "runs", "gain", "note")


def _cells(answer: Mapping[str, Any]) -> tuple[str, ...]:
    word = answer["word"] or "open"
    remark = ""
    if word != "keep" and answer["reason"] != "small":  # which its gain says
        remark = REASONS.get(answer["reason"], "")
    holdout = [
        f"{key} {_mean_text(mean)} ({_mean_text(baseline_mean)})"
        for key, (mean, baseline_mean) in answer["holdout"].items()
    ]
    note = "; ".join(filter(None, [answer["note"], remark, *holdout]))
    return str(answer["proposal"]), word, str(answer["runs"]), gain_text(answer), note


def _mean_text(mean: float | None) -> str:
    return "none" if mean is None else f"{mean:.4g}"


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    table = [HEADINGS, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def _baseline_line(baseline: Mapping[str, Any], log: Mapping[str, Any]) -> str:
    number = baseline["number"]
    name = f"proposal {number}" if number else "the start"
    text = f"{baseline['mean']:.4g}"
    if baseline["low"] is not None:
        text += f" [{baseline['low']:.4g}, {baseline['high']:.4g}]"
    runs = count_text(baseline["runs"], "fresh run")
    return f"{log['metric']} of {name}: {text}, {runs}"


# --- The figure -----------------------------------------------------------------------------------

SIZE = (7.0, 3.2)  # inches
TITLE_LETTERS = 90  # of 9 points, in a line above the axes


@dataclass(frozen=True)
class Mark:
    """How an outcome is drawn. Markers differ, too, so that a figure can be read in grey."""

    marker: str
    colour: str
    size: float = 4.5
    is_filled: bool = False

    @property
    def style(self) -> dict[str, Any]:
        """The options for matplotlib's `plot`."""
        face = self.colour if self.is_filled else "white"
        marker = {"marker": self.marker, "markersize": self.size, "markerfacecolor": face}
        return {"color": self.colour, "linestyle": "none", **marker}


MARKS = {
    "keep": Mark("o", "#0072b2", 6.5, is_filled=True),
    "discard": Mark("x", "#777777"),
    "undecided": Mark("^", "#e69f00"),
    "stale": Mark("D", "#cc79a7", 4),
    "open": Mark("o", "#333333"),
}


@dataclass(frozen=True)
class StreamView:
    """The log of a stream, from its plain tree."""

    log: Mapping[str, Any]

    @staticmethod
    def answer_line(answer: Mapping[str, Any]) -> str:
        """Say in a line what a stream says of a proposal, from its plain tree."""
        parts = [gain_text(answer)]
        parts.append(f"{count_text(answer['runs'], 'run')} against {answer['baseline_runs']}")
        if reason := REASONS.get(answer["reason"], ""):
            parts.append(reason)
        facts = ", ".join(filter(None, parts))
        kept_count, expected = answer["kept_so_far"], answer["expected_false_keeps"]
        tally = f"{kept_count} kept so far, at most {expected:.2g} by chance"
        return f"{answer['word']} {answer['proposal']}: {facts}; {tally}; {answer['next']}"

    @property
    def text(self) -> str:
        """The log as lines of text."""
        log = self.log
        counts = [
            f"{log[key]} {key}" for key in ("kept", "discarded", "undecided", "stale", "open")
        ]
        outcome_counts = ", ".join(text for text in counts if not text.startswith("0 "))
        tally = f"{count_text(log['proposals'], 'proposal')}, {count_text(log['runs'], 'run')}"
        lines = [log["sentence"], f"{tally}: {outcome_counts}" if outcome_counts else tally]
        if log["spread"] is not None:
            lines.append(f"spread of one run: {log['spread']:.4g} {log['unit']}".rstrip())
        if log["answers"]:
            lines.append("")
            lines += _columns([_cells(answer) for answer in log["answers"]])
        if log["baselines"]:
            lines.append("")
            lines += [_baseline_line(baseline, log) for baseline in log["baselines"]]
        return "\n".join(lines)

    def draw(self, format: str) -> bytes:
        """Draw the stream as a file of this format: svg, pdf or png. Over the runs spent, it has
        each proposal's gain, those of kept ones with intervals."""
        import io

        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        log = self.log
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.subplots()
        axes.margins(y=0.15)
        axes.axhline(0, color="#666666", linewidth=0.8)
        spent, counts = 0, Counter[str]()
        for answer in log["answers"]:
            spent += answer["runs"]
            if answer["gain"] is None:
                continue
            word = answer["word"] or "open"
            mark = MARKS[word]
            counts[word] += 1
            if word == "keep" and answer["interval"] is not None:
                axes.vlines(spent, *answer["interval"], color=mark.colour, linewidth=1.5)
            axes.plot(spent, answer["gain"], **mark.style)
        for word, mark in MARKS.items():
            if counts[word]:
                intervals = ", with 95 % intervals" if word == "keep" else ""
                axes.plot([], [], **mark.style, label=f"{word}: {counts[word]}{intervals}")
        if counts:  # below the axes, where it covers no interval
            place: Any = "outside lower center"  # which matplotlib's types lack
            figure.legend(loc=place, ncols=len(counts), frameon=False, fontsize=8)
        axes.set_xlim(0, 1.03 * spent + 1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("runs of all proposals so far")
        unit = amount_text("", log["unit"])
        axes.set_ylabel(", ".join(filter(None, [f"gain in {log['metric']}", unit])))
        title = textwrap.fill(f"Stream {log['stream']}. {log['sentence']}", TITLE_LETTERS)
        axes.set_title(title, fontsize=9, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        content = io.BytesIO()
        figure.savefig(content, format=format, metadata={"Date": None} if format == "svg" else None)
        return content.getvalue()
