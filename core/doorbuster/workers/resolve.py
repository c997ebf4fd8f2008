"""Role ``resolve``: PENDING answers find their outcome, stale holds go back (4.3, 4.6)."""

from __future__ import annotations

from typing import Final

import msgspec

from doorbuster.model import Hold
from doorbuster.outcomes import Code
from doorbuster.runtime import SaleRuntime
from doorbuster.workers.role import Tools

__all__ = ["Resolve"]

_CHUNK: Final = 500
_OVERLAP_S: Final = 2.0  # a holder's clock, and its answer, may be that late


class Resolve:
    """Settles the in-memory queue, and sweeps holds no intent justifies."""

    name = "resolve"
    hurries = True

    def __init__(self, tools: Tools) -> None:
        """Work on the sales of ``tools.world``."""
        self._tools = tools
        self._next_sweep_s = 0.0
        self._swept: dict[tuple[int, int], float] = {}

    def run_once(self) -> bool:
        """Settle a chunk; sweep when it is time."""
        now_s = self._tools.clock.monotonic_s()
        swept = False
        if now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + self._tools.settings.hold_age_s / 2
            swept = self._tools.each_sale("sweep", self._sweep)
        return self._tools.settlements.run_once() or swept

    def _sweep(self, runtime: SaleRuntime) -> bool:
        row, sale = runtime.view.row, runtime.view.sale
        if row is None or not row.epoch:
            return False
        bound = self._tools.world.deductor(runtime.id, row.deduct)
        if bound is None or "holds" not in bound.hooks:
            return False
        now_s, age_s = self._tools.clock.monotonic_s(), self._tools.settings.hold_age_s
        # What was older than that at the last sweep is judged: an accepted one stays a hold.
        since_s = self._swept.get((row.sid, row.epoch), float("-inf")) - _OVERLAP_S
        holds: list[Hold] = [
            hold
            for hold in bound.hooks["holds"](sale, row.epoch, age_s)
            if now_s - hold.age_s >= since_s
        ]
        undone = False
        for start in range(0, len(holds), _CHUNK):
            items = [
                msgspec.structs.replace(hold.reservation, epoch=row.epoch)
                for hold in holds[start : start + _CHUNK]
            ]
            stored = self._tools.ledger.tombstone(
                sale, row.epoch, items, code=Code.BUSY, holds=True
            )
            undone |= stored is not None and any(found is None for found in stored)
        self._swept[row.sid, row.epoch] = now_s - age_s
        return undone

    def waiting(self) -> int:
        """Count what the in-memory queue holds."""
        return len(self._tools.settlements)

    def finish(self) -> None:
        """Nothing is held between two rounds."""
