"""The demo's crowd: the same attempts every time, with everything a real crowd does wrong."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Final

from doorbuster.cli.callers import Ask
from doorbuster.cli.demo_sale import DEMO_SKU
from doorbuster.model import Line

__all__ = ["workload"]

_SEED: Final = 20
_RECENT: Final = 512  # repeats are mostly of attempts just made, some still under way

# Shares of the crowd, out of 100; the rest asks for the first time.
_REPEATS: Final = 15
_OVER: Final = 12
_REUSED: Final = 2
_BAD: Final = 2

_BAD_ASKS: Final = (
    lambda buyer: Ask(buyer, "bad", [Line("no-such-sku", 1)]),
    lambda buyer: Ask(buyer, "bad", [Line(DEMO_SKU, 0)]),
    lambda buyer: Ask(buyer, "bad", [Line(DEMO_SKU, -1)]),
    lambda buyer: Ask(buyer, "bad", [Line(DEMO_SKU, "1e3")]),  # type: ignore[arg-type]  # a bad attempt on purpose
    lambda buyer: Ask(buyer, "bad", [Line(DEMO_SKU, True)]),
    lambda buyer: Ask(buyer, "bad", []),
    lambda buyer: Ask("not an id", "bad", [Line(DEMO_SKU, 1)]),
)


def workload(*, attempts: int, buyers: int, seed: int = _SEED) -> Iterator[Ask]:
    """Yield ``attempts`` attempts of up to ``buyers`` buyers, equal in every run.

    Most ask once for one unit. Some repeat an attempt (the same identity: served once), ask for
    more with a new request_id (over their limit), use an old request_id for another content, or
    send what is no attempt at all. Once every buyer has asked, first tries are second ones.
    """
    draw = random.Random(seed)
    recent: deque[Ask] = deque(maxlen=_RECENT)
    asked = 0
    for n in range(attempts):
        share = draw.randrange(100) if recent else 100
        if share < _REPEATS:
            yield draw.choice(recent)
        elif (share := share - _REPEATS) < _OVER:
            buyer = draw.choice(recent).buyer
            yield Ask(buyer, f"more-{n}", [Line(DEMO_SKU, 1)])
        elif (share := share - _OVER) < _REUSED:
            old = draw.choice(recent)
            yield Ask(old.buyer, old.request_id, [Line(DEMO_SKU, 2)])
        elif share - _REUSED < _BAD:
            yield draw.choice(_BAD_ASKS)(draw.choice(recent).buyer)
        else:
            round_, number = divmod(asked, buyers)
            asked += 1
            ask = Ask(f"buyer-{number}", f"r{round_ + 1}", [Line(DEMO_SKU, 1)])
            recent.append(ask)
            yield ask
