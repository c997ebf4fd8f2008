"""Role ``topup``: units on their way to places, and units coming back (protocol.md 5.3, 5.5)."""

from __future__ import annotations

from doorbuster.funding import advance, plan_restock
from doorbuster.ledger import Needs, SaleRow
from doorbuster.model import SaleState
from doorbuster.runtime import SaleRuntime
from doorbuster.sales import push_control
from doorbuster.tiers import Bound, Tier
from doorbuster.workers.role import Tools

__all__ = ["TopUp"]


class TopUp:
    """Goes on with every open funding, and plans rounds for places that ran low."""

    name = "topup"
    hurries = True

    def __init__(self, tools: Tools) -> None:
        """Work on the sales of ``tools.world``."""
        self._tools = tools
        self._pushed: dict[int, tuple[int, int]] = {}

    def run_once(self) -> bool:
        """One round over all sales; True when units moved."""
        return self._tools.each_sale(self.name, self._sale)

    def _sale(self, runtime: SaleRuntime) -> bool:
        row, ledger = runtime.view.row, self._tools.ledger
        if row is None or not row.epoch:
            return False
        bound = self._tools.world.deductor(runtime.id, row.deduct)
        if bound is None:
            return False
        self._push(bound, runtime, row)
        needs = ledger.needs(row)
        if row.state in (SaleState.OPEN, SaleState.PAUSED):
            self._plan(bound, row, needs)
        if not needs.wanted and not needs.spare and not needs.moving:
            return False
        moved = sum(found.moved for found in advance(ledger, bound.hooks, row))
        if moved:
            self._tools.world.tell(
                "units_returned", runtime.id, runtime.view.sale, sorted(runtime.view.sale.skus)
            )
        return bool(moved)

    def _plan(self, bound: Bound, row: SaleRow, needs: Needs) -> None:
        """Take what a restock down wants, then fund places that ran low."""
        ledger, router = self._tools.ledger, bound.tier is Tier.ROUTER
        if needs.wanted:
            wanted = ledger.take_wanted(row, router=router)
            if wanted and "debit" in bound.hooks:
                plan_restock(ledger, row, wanted)
        if needs.spare:
            ledger.plan_rounds(row)

    def _push(self, bound: Bound, runtime: SaleRuntime, row: SaleRow) -> None:
        """Push a newer control version until every place has it (protocol.md 6.6)."""
        version = (row.epoch, row.version)
        if self._pushed.get(row.sid) != version and push_control(
            bound, runtime.view.sale, row, self._tools.alarm
        ):
            self._pushed[row.sid] = version

    def waiting(self) -> int:
        """Count open fundings of current epochs; others belong to a hand-over."""
        rows = [runtime.view.row for runtime in self._tools.world.by_sid().values()]
        return sum(
            funding.epoch == row.epoch
            for row in rows
            if row is not None
            for funding in self._tools.ledger.open_fundings(row)
        )

    def finish(self) -> None:
        """Nothing is held between two rounds."""
