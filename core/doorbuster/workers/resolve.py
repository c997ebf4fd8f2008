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


class Resolve:
    """Settles the in-memory queue, and sweeps holds no intent justifies."""

    name = "resolve"

    def __init__(self, tools: Tools) -> None:
        """Work on the sales of ``tools.world``."""
        self._tools = tools
        self._next_sweep_s = 0.0

    def run_once(self) -> bool:
        """Settle a chunk; sweep when it is time."""
        settled = self._tools.settlements.run_once()
        now_s = self._tools.clock.monotonic_s()
        if now_s < self._next_sweep_s:
            return settled
        self._next_sweep_s = now_s + self._tools.settings.hold_age_s / 2
        swept = [self._sweep(runtime) for runtime in self._tools.world.by_sid().values()]
        return settled or any(swept)

    def _sweep(self, runtime: SaleRuntime) -> bool:
        row, sale = runtime.view.row, runtime.view.sale
        if row is None or not row.epoch:
            return False
        bound = self._tools.world.deductor(runtime.id, row.deduct)
        if bound is None or "holds" not in bound.hooks:
            return False
        holds: list[Hold] = list(
            bound.hooks["holds"](sale, row.epoch, self._tools.settings.hold_age_s)
        )
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
        return undone

    def waiting(self) -> int:
        """Count what the in-memory queue holds."""
        return len(self._tools.settlements)

    def finish(self) -> None:
        """Nothing is held between two rounds."""
