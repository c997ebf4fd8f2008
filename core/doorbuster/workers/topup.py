"""Role ``topup``: units on their way to places, and units coming back (protocol.md 5.3, 5.5)."""

from __future__ import annotations

from doorbuster.funding import advance
from doorbuster.model import SaleState
from doorbuster.runtime import SaleRuntime
from doorbuster.wiring import Tier
from doorbuster.workers.role import Tools

__all__ = ["TopUp"]


class TopUp:
    """Goes on with every open funding, and plans rounds for places that ran low."""

    name = "topup"

    def __init__(self, tools: Tools) -> None:
        """Work on the sales of ``tools.world``."""
        self._tools = tools

    def run_once(self) -> bool:
        """One round over all sales; True when units moved."""
        moved = [self._sale(runtime) for runtime in self._tools.world.by_sid().values()]
        return any(moved)

    def _sale(self, runtime: SaleRuntime) -> bool:
        row, ledger = runtime.view.row, self._tools.ledger
        if row is None or row.state not in (SaleState.OPEN, SaleState.PAUSED):
            return False
        bound = self._tools.world.deductor(runtime.id, row.deduct)
        if bound is None:
            return False
        router = bound.tier is Tier.ROUTER
        if ledger.wanted(row):
            ledger.take_wanted(row, router=router)
        if ledger.spare(row):
            ledger.plan_rounds(row)
        moved = sum(found.moved for found in advance(ledger, bound.hooks, row))
        if moved:
            self._tools.world.tell(
                "units_returned", runtime.id, runtime.view.sale, sorted(runtime.view.sale.skus)
            )
        return bool(moved)

    def waiting(self) -> int:
        """Count open fundings."""
        rows = [runtime.view.row for runtime in self._tools.world.by_sid().values()]
        return sum(len(self._tools.ledger.open_fundings(row)) for row in rows if row is not None)

    def finish(self) -> None:
        """Nothing is held between two rounds."""
