"""The crowd of a bench: distinct buyers with random names, each asking once for one unit.

Random names are the worst case of an index, and what a real crowd looks like; counted-up ones
would all fall on one page.
"""

from __future__ import annotations

import random
from typing import Final

from doorbuster.model import Attempt, Line

__all__ = ["SKU", "attempts_of"]

SKU: Final = "gold"


def attempts_of(n: int, *, seed: int) -> list[Attempt]:
    """``n`` attempts of ``n`` buyers; another seed, other buyers."""
    rnd = random.Random(seed)
    return [
        Attempt([Line(SKU, 1)], f"{rnd.getrandbits(64):016x}", f"{rnd.getrandbits(64):016x}")
        for _ in range(n)
    ]
