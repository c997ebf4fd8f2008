"""What every role is given, and the shape of a role."""

from __future__ import annotations

from typing import Protocol

import msgspec

from doorbuster.clock import Clock
from doorbuster.context import AlarmCall
from doorbuster.ledger import Ledger
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


class Role(Protocol):
    """One kind of background work. Instances keep only what a crash may lose."""

    name: str

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
