"""Writes numbers with their nouns, so that no sentence says "1 runs".

Used by every room that writes sentences. Nothing else forms a plural: a new place calls these.
"""

from __future__ import annotations

# Units that are words: those of metrics that ship, and of costs. A unit of the user's own stays as
# written.
PLURAL_UNITS = ("points", "nats", "grid units", "doublings", "epochs", "device-hours")
NO_UNIT = "units"  # the unit of a plain number, such as a ratio or a loss: no text needs it


def count_text(count: int, noun: str) -> str:
    """Write a count with its noun: (1, "run") -> "1 run", (1200, "run") -> "1,200 runs"."""
    ending = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def amount_text(number: str, unit: str) -> str:
    """Write a number, as it is printed, with its unit: "1 point", "1.0 points", "2 points"; of ""
    the unit alone.

    `unit`: of a metric, in its plural; "" or `NO_UNIT` for none.
    """
    if unit == NO_UNIT:
        return number
    is_single = number == "1" and unit in PLURAL_UNITS
    return f"{number} {unit.removesuffix('s') if is_single else unit}".strip()
