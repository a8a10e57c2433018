"""Which places of a drive are given up, and when the sweep stops because runs fail there alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ablate.running.assign import LOSSES, Lost, blame
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

    def blame(self, run: str, place: str) -> None:
        """`run` lost its device there."""
        self.lost = blame(self.lost, run, place)
        if len(self.lost.get(place, ())) >= LOSSES:
            self.give_up(place, f"{LOSSES} runs lost their device there")

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
