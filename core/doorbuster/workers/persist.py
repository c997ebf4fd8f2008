"""Role ``persist``: committed batches become orders (delivery CLAIM, and what INLINE left)."""

from __future__ import annotations

from typing import Final

from doorbuster.fulfilment import fulfil_batches
from doorbuster.ledger import Claim
from doorbuster.workers.role import Tools

__all__ = ["Persist"]

_TRIES_ALARM: Final = 5  # leases of one batch before a person should look


class Persist:
    """Leases batches, gives their intents to persist, closes them with the next lease."""

    name = "persist"

    def __init__(self, tools: Tools) -> None:
        """Work on the sales of ``tools.world``."""
        self._tools = tools
        self._claims: list[Claim] = []
        self._settled: list[int] = []

    def run_once(self) -> bool:
        """Persist one lease's worth; a fault keeps the lease and tries it again."""
        tools = self._tools
        if not self._claims:
            settled, self._settled = self._settled, []
            try:
                self._claims = tools.ledger.claim(
                    owner=tools.owner,
                    rows=tools.settings.persist_rows,
                    lease_s=tools.settings.lease_s,
                    settled=settled,
                )
            except BaseException:
                self._settled = settled + self._settled
                raise
        if not self._claims:
            return False
        runtimes = tools.world.by_sid()
        for sid in sorted({claim.sid for claim in self._claims}):
            mine = [claim for claim in self._claims if claim.sid == sid]
            batches = [claim.batch for claim in mine]
            runtime = runtimes.get(sid)
            if runtime is None:
                tools.alarm("sale-not-configured", "warning", None, sid=sid, batches=len(batches))
            else:
                if max(claim.tries for claim in mine) >= _TRIES_ALARM:
                    tools.alarm("batch-keeps-failing", "warning", runtime.id, batches=len(batches))
                persist = tools.world.pipeline(runtime).persist
                fulfil_batches(tools.ledger, tools.alarm, runtime.view.sale, persist, batches)
                self._settled.extend(batches)
            self._claims = [claim for claim in self._claims if claim.sid != sid]
        return True

    def waiting(self) -> int:
        """Count open batches of the sales this process knows."""
        return self._tools.ledger.pending(list(self._tools.world.by_sid()))

    def finish(self) -> None:
        """Close what is persisted, so that nobody waits for its lease."""
        if self._settled:
            self._tools.ledger.settle(self._settled)
            self._settled = []
