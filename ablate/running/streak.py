"""When a sweep stops by itself: runs fail one after another, alike, at once, and not of their own.

Pure functions, beside `next_step` and `assign`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

IN_A_ROW = 3  # runs, of as many variants, that fail alike: the cause is none of theirs
AT_MOST = 30  # runs, of several variants, that fail alike in a row, whatever has worked before
AT_ONCE_S = 30.0  # a run that went on for longer, and made a step, has worked for a while

Variant = tuple[str, str]  # row, column


@dataclass(frozen=True)
class Ending:
    """How a run ended on a place. `how`: in which way it failed at once; "": it worked. `spared`:
    by a signal, as of a kernel that lacks memory, and it has attempts left."""

    run: str
    variant: Variant
    how: str
    spared: bool = False


def way(reason: str, error: str, seconds: float, stepped: bool) -> str:
    """`Ending.how` of a run without a result: why it left, and its error but for its numbers.
    `stepped`: it made a step."""
    if stepped and seconds >= AT_ONCE_S:
        return ""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", f"{reason}: {error}")


def alike(endings: Sequence[Ending]) -> list[Ending]:
    """The last of one place's endings, as far back as runs failed there at once in the same way."""
    last = endings[-1].how if endings else ""
    return [*itertools.takewhile(lambda ending: last and ending.how == last, reversed(endings))]


def stops(row: Sequence[Ending], variants: int, proven: Collection[Variant], works: bool) -> bool:
    """Do runs that failed alike in a row end the sweep? Not where their variants may be at fault.

    `row`: from `alike`. `variants`: how many the sweep has. `proven`: those that have a result.
    `works`: on that place something has worked in this drive; then a variant that never has may
    well be broken, and others go on, but for `AT_MOST`.
    """
    counted = [
        ending for ending in row if not ending.spared and (not works or ending.variant in proven)
    ]
    return any(
        len({ending.run for ending in of}) >= runs
        # one variant that fails with each of its seeds counts once
        and len({ending.variant for ending in of}) >= min(IN_A_ROW, variants)
        for of, runs in ((counted, IN_A_ROW), (row, AT_MOST))
    )


class Endings:
    """Those of a drive, by place."""

    def __init__(self) -> None:
        self._ended: dict[str, list[Ending]] = {}

    def add(
        self,
        place: str,
        ending: Ending,
        variants: Iterable[Variant],
        proven: Iterable[Variant],
        works: bool,
    ) -> int:
        """How many runs have failed alike in a row there, where that ends the sweep; else 0.
        `works`: a worker there has made a step; what ended counts, too. See `stops`."""
        ended = self._ended.setdefault(place, [])
        ended.append(ending)
        row = alike(ended)
        if len(row) < IN_A_ROW:
            return 0
        works = works or not all(ending.how for ending in ended)
        over = stops(row, len(set(variants)), set(proven), works)
        return len({ending.run for ending in row}) if over else 0
