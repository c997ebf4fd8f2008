"""Routers: say where an attempt is served; the ledger decides replay, quota and stock.

A router holds nothing, so it needs no compensate, and whatever it answers can neither oversell
nor leak: the accept transaction is the one atomic step (protocol.md 4.1, 5.4). Its places only
spread the units over rows. A buyer's home is fixed by a stable hash (F6), so that all units of
an attempt lie in one place; a dry home is filled by the core's ledger transfers, never by
sending the buyer elsewhere (D10, protocol.md 5.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from doorbuster.plugin import (
    Batch,
    Context,
    Deducted,
    PluginOptions,
    Reservation,
    Sale,
    hookimpl,
    stable_hash,
)

__all__ = ["AtomicStock", "SegmentedStock"]

WHOLE: Final = "all"
"""The one place of :class:`AtomicStock`."""


class _Router:
    """One or more places; the home of a buyer is ``stable_hash(buyer) % len(places)``."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = tuple(places)

    @hookimpl
    def places(self, sale: Sale) -> Sequence[str]:
        """Name the places that warm-up funds: one grant per sku each (protocol.md 5.4)."""
        return self._places

    @hookimpl
    def deduct(self, batch: Batch) -> Sequence[Deducted]:
        """Hold nothing; answer each attempt's home place."""
        places, n, epoch = self._places, len(self._places), batch.epoch
        if n == 1:  # nobody has to be hashed
            home = places[0]
            return [Reservation(a, home, a.order_no, epoch) for a in batch.attempts]
        return [
            Reservation(a, places[stable_hash(a.buyer) % n], a.order_no, epoch)
            for a in batch.attempts
        ]


class AtomicStock(_Router):
    """``db-atomic``: the whole sku is one place, one conditional update per batch."""

    def __init__(self, options: PluginOptions, context: Context) -> None:
        """Take no options and keep nothing but the place's name."""
        super().__init__((WHOLE,))


class SegmentedStock(_Router):
    """``db-segments``: N places, ``s0`` to ``s(N-1)``, for databases that lock rows."""

    class Options(PluginOptions):
        """Settings under ``[plugins.db-segments]``."""

        segments: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
        """Places (rows per sku), 1 to 1000, default 10: enough that accept lanes seldom meet on
        a row; above 1000 each place holds too little and the last units need many gathers."""

    def __init__(self, options: Options, context: Context) -> None:
        """Name the places once."""
        super().__init__([f"s{n}" for n in range(options.segments)])
