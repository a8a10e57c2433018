"""What rot, a failing disk or a copy cut short makes of a file: the same for every test of it."""

import math
import random
from collections.abc import Callable
from pathlib import Path

PAGE = 4096


def truncated(content: bytes, moment: random.Random) -> bytes:
    return content[: moment.randrange(len(content))]


def flipped(content: bytes, moment: random.Random) -> bytes:
    """One bit or a few; half of the time in the first page, where the header is."""
    rotten = bytearray(content)
    end = moment.choice([min(PAGE, len(rotten)), len(rotten)])
    places = [moment.randrange(8 * end) for _ in range(moment.choice([1, 1, 2, 8]))]
    for place in set(places):
        rotten[place // 8] ^= 1 << place % 8
    return bytes(rotten)


def zeroed(content: bytes, moment: random.Random) -> bytes:
    first = PAGE * moment.randrange(math.ceil(len(content) / PAGE))
    page = content[first : first + PAGE]
    return content[:first] + bytes(len(page)) + content[first + PAGE :]


def deleted(content: bytes, moment: random.Random) -> None:
    return None


Damage = Callable[[bytes, random.Random], bytes | None]
DAMAGES: tuple[Damage, ...] = (truncated, flipped, zeroed, deleted)


def spoil(path: Path, damage: Damage, moment: random.Random) -> bool:
    """Do that to a file, of which other names may stay whole; was there anything to damage?"""
    whole = path.read_bytes()
    rotten = damage(whole, moment) if whole else None
    path.unlink()
    if rotten is not None:
        path.write_bytes(rotten)
    return rotten != whole
