"""Words that sentences share: lists, levels of confidence, numbers.

Used by the other files of this folder, and through the room's door by report/ and audit/.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def first_few(rows: Sequence[str], limit: int = 8) -> str:
    """List labels, of many the first few."""
    remainder = f" and {len(rows) - limit} more" if len(rows) > limit else ""
    return ", ".join(rows[:limit]) + remainder


def capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


def prefixed(heading: str, text: str) -> str:
    """Put the heading of a column before a text, if it has one."""
    return f"{heading}: {text}" if heading else text


def confidence_level(alpha: float) -> str:
    return f"{100 * (1 - alpha):.4g} %"


def significant(number: float) -> str:
    """Write a number with two significant digits: "1.1", "0.045", "12"."""
    number = float(f"{number:.2g}")
    digits = 1 - math.floor(math.log10(abs(number))) if number else 0
    return f"{number:.{max(digits, 0)}f}"


def seed_names(seeds: Sequence[int]) -> str:
    """Name seeds: "seed 1", "seeds 0, 2"."""
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def setting_text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "-" if value is None else str(value)


def join_words(words: Sequence[str]) -> str:
    """Join words: "a, b and c"."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
