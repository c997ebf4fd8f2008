"""Role ``persist``: committed batches become orders (delivery CLAIM, and what INLINE left)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from doorbuster.fulfilment import fulfil_batches
from doorbuster.ledger import Claim
from doorbuster.workers.role import Tools

__all__ = ["Persist"]

_TRIES_ALARM: Final = 5  # leases of one batch before a person should look
_TRIES_PER_LEASE: Final = 4


class _Leased(msgspec.Struct, frozen=True):
    """A claimed batch, and when (monotonic seconds) another worker may claim it."""

    claim: Claim
    until_s: float


class Persist:
    """Leases batches, gives their intents to persist, closes them with the next lease."""

    name = "persist"
    hurries = False

    def __init__(self, tools: Tools) -> None:
        """Work on the sales of ``tools.world``."""
        self._tools = tools
        self._settled: list[int] = []
        self._failed: list[_Leased] = []
        self._again_s = 0.0
        self._looked = False

    def run_once(self) -> bool:
        """Persist one lease's worth, each sale by itself.

        A sale that fails is tried again within its lease, and keeps no other sale waiting; when
        the lease is over, whoever claims its batches next tries.

        Raises:
            Exception: the last fault (SystemExit of a plugin too), when no batch was persisted:
                the runner backs off.
        """
        if not self._looked:
            self._look()
        work = [*self._due(), *self._claim()]
        worked = False
        fault: Exception | SystemExit | None = None
        for sid, name in sorted({(leased.claim.sid, leased.claim.persist) for leased in work}):
            mine = [one for one in work if (one.claim.sid, one.claim.persist) == (sid, name)]
            try:
                worked |= self._persist(sid, name, [leased.claim for leased in mine])
            except (Exception, SystemExit) as error:  # noqa: BLE001 - it stops no other's turn
                fault = error
                self._failed.extend(mine)
                pause_s = self._tools.settings.lease_s / _TRIES_PER_LEASE
                self._again_s = self._tools.clock.monotonic_s() + pause_s
        if fault is not None and not worked:
            raise fault
        return worked

    def _look(self) -> None:
        """Say once which sales of the ledger wait for a process that has them in its config."""
        tools = self._tools
        for row in tools.ledger.sales():
            if row.sale not in tools.world.runtimes and (n := tools.ledger.pending([row.sid])):
                tools.alarm("sale-not-configured", "warning", row.sale, batches=n)
        self._looked = True

    def _due(self) -> list[_Leased]:
        now_s = self._tools.clock.monotonic_s()
        if now_s < self._again_s:
            return []
        due, self._failed = self._failed, []
        return [leased for leased in due if now_s < leased.until_s]

    def _claim(self) -> list[_Leased]:
        tools = self._tools
        until_s = tools.clock.monotonic_s() + tools.settings.lease_s
        settled, self._settled = self._settled, []
        rows = tools.settings.persist_rows
        try:
            claims = tools.ledger.claim(
                owner=tools.owner,
                rows=rows,
                lease_s=tools.settings.lease_s,
                settled=settled,
                sids=list(tools.world.by_sid()),
            )
        except BaseException:
            self._settled = settled
            raise
        # A lease has two commits: a small one that follows at once pays more for them than for its
        # orders, and keeps accept from the write lock (40 % of its rate at 64 callers, measured).
        self.hurries = 2 * sum(claim.n for claim in claims) >= rows
        return [_Leased(claim, until_s) for claim in claims]

    def _persist(self, sid: int, name: str, claims: Sequence[Claim]) -> bool:
        """Give batches to the plugin they were accepted for, whatever the mode's word is now."""
        tools, batches = self._tools, [claim.batch for claim in claims]
        runtime = tools.world.by_sid()[sid]
        if max(claim.tries for claim in claims) >= _TRIES_ALARM:
            tools.alarm("batch-keeps-failing", "warning", runtime.id, batches=len(batches))
        persist = tools.world.wiring.bound(runtime.id, name).hooks["persist"]
        fulfil_batches(tools.ledger, tools.alarm, runtime.view.sale, persist, batches)
        self._settled.extend(batches)
        return True

    def waiting(self) -> int:
        """Count open batches of the sales this process knows."""
        return self._tools.ledger.pending(list(self._tools.world.by_sid()))

    def finish(self) -> None:
        """Close what is persisted, so that nobody waits for its lease."""
        if self._settled:
            self._tools.ledger.settle(self._settled)
            self._settled = []
