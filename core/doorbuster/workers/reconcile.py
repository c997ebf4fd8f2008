"""Role ``reconcile``: the invariants, checked while the sale runs; drift is an alarm (S0-55)."""

from __future__ import annotations

from doorbuster.runtime import SaleRuntime
from doorbuster.workers.role import Tools

__all__ = ["Reconcile"]


class Reconcile:
    """Checks I1-I7 of every sale, one after the other, every ``reconcile_s``."""

    name = "reconcile"
    hurries = True

    def __init__(self, tools: Tools) -> None:
        """Work on the sales of ``tools.world``."""
        self._tools = tools
        self._next_s = tools.clock.monotonic_s() + tools.settings.reconcile_s

    def run_once(self) -> bool:
        """Check when it is time; never counts as work."""
        now_s = self._tools.clock.monotonic_s()
        if now_s >= self._next_s:
            self._next_s = now_s + self._tools.settings.reconcile_s
            self._tools.each_sale(self.name, self._check)
        return False

    def _check(self, runtime: SaleRuntime) -> bool:
        row = runtime.view.row
        if row is not None:
            report = self._tools.ledger.report(row)
            if not report.balanced:
                shown = list(report.violations[:5])
                self._tools.alarm(
                    "drift", "critical", runtime.id, drift=report.drift, violations=shown
                )
        return False

    def waiting(self) -> int:
        """Nothing ever waits for this role."""
        return 0

    def finish(self) -> None:
        """Nothing is held between two rounds."""
