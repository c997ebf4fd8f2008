"""What every role is given, and the shape of a role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from doorbuster.clock import Clock
from doorbuster.context import AlarmCall
from doorbuster.ledger import Ledger
from doorbuster.runtime import SaleRuntime
from doorbuster.settings import Workers
from doorbuster.settlement import Settlements
from doorbuster.world import World

__all__ = ["Role", "Tools"]


class Tools(msgspec.Struct, frozen=True):
    """Shared by all roles of one process. ``owner`` names this process in leases."""

    world: World
    ledger: Ledger
    settings: Workers
    settlements: Settlements
    clock: Clock
    alarm: AlarmCall
    owner: str

    def each_sale(self, role: str, work: Callable[[SaleRuntime], bool]) -> bool:
        """Do ``work`` for every sale of the ledger; True when some of it was done.

        A sale whose work fails, in whatever way, is an alarm and keeps no other from its turn.

        Raises:
            Exception: the last fault (SystemExit of a plugin too), when nothing was done: the
                runner backs off.
        """
        worked = False
        fault: Exception | SystemExit | None = None
        for runtime in self.world.by_sid().values():
            try:
                worked |= work(runtime)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - it stops no other's turn
                fault = error
                self.alarm(f"{role}-failed", "warning", runtime.id, error=repr(error))
        if fault is not None and not worked:
            raise fault
        return worked


class Role(Protocol):
    """One kind of background work. Instances keep only what a crash may lose."""

    name: str
    hurries: bool
    """Whether the next piece follows a piece of work at once; else the runner rests ``idle_ms``."""

    def run_once(self) -> bool:
        """Do one bounded piece of work; False when there was none.

        Raises:
            BackendError: the piece stays where it was; the runner backs off and tries again.
        """
        ...

    def waiting(self) -> int:
        """Count what this role still has to do, for ``--drain``."""
        ...

    def finish(self) -> None:
        """Hand in what is done before the process ends; a crash may skip it."""
        ...
