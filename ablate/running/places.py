"""Which places of a drive are given up, and when the sweep stops because runs fail there alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ablate.running.assign import Lost, blame, gives_up
from ablate.running.streak import Ending, Endings, Variant


class PlaceHistory:
    """What happened on each place of a drive, so far."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.lost: Lost = {}  # place -> runs that lost their device there
        self.retired: dict[str, None] = {}  # given up
        self.stopped: str | None = None  # why the sweep shall stop
        self._endings = Endings()
        self._say = say

    def works(self, place: str) -> None:
        self.lost = {**self.lost, place: frozenset()}

    def blame(self, run: str, place: str, variants: Mapping[str, Variant]) -> None:
        """`run` lost its device there. `variants`: of every run of the sweep."""
        self.lost = blame(self.lost, run, place)
        lost = self.lost.get(place, frozenset())
        if gives_up(lost, variants):
            self.give_up(place, f"{len(lost)} runs lost their device there")

    def give_up(self, place: str, why: str) -> None:
        if place not in self.retired:
            self.retired[place] = None
            self._say(f"{place} is given up: {why}")

    def ended(
        self,
        place: str,
        ending: Ending,
        error: str,
        variants: Iterable[Variant],
        proven: Iterable[Variant],
        works: bool,
    ) -> None:
        """A run ended there; see `Endings.add`. `error`: why, in words."""
        row = self._endings.add(place, ending, variants, proven, works)
        if row:
            self.stopped = f"{row} runs in a row failed at once on {place}, all alike ({error})"
