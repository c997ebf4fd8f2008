"""When a refused caller should come again: its own wait, stretched so that a crowd spreads."""

from __future__ import annotations

import random
from typing import Final

from doorbuster.plugin import Code, Rejection

__all__ = ["rate_limited"]

_FLOOR_S: Final = 0.1  # a crowd told to come back within a millisecond only knocks again
_CEILING_S: Final = 60.0  # a client that is told more than a minute rather gives up


def rate_limited(wait_s: float) -> Rejection:
    """Answer RATE_LIMITED with ``retry_after_ms`` between one and two times ``wait_s``.

    ``wait_s`` is when the caller would pass at the earliest, taken between 0.1 and 60 seconds.
    """
    wait_s = min(max(wait_s, _FLOOR_S), _CEILING_S)
    return Rejection(
        Code.RATE_LIMITED, retry_after_ms=round(wait_s * (1.0 + random.random()) * 1000)
    )
