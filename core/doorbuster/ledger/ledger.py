"""The ledger: the only place where a unit can come into being or change hands.

This facade binds the transactions of the modules beside it to one database, one environment
and one clock. Every method that writes is one transaction, idempotent by the identities and ids
it is given, and raises only the errors of :meth:`doorbuster.ledger.database.Database.transact`.
"""

from __future__ import annotations

from typing import Any

from doorbuster.alarms import Alarm
from doorbuster.context import SoldOutRead
from doorbuster.ledger import (
    audit,
    control,
    grants,
    invariants,
    reads,
)
from doorbuster.ledger.books.attempts import AttemptsBook
from doorbuster.ledger.books.orders import OrdersBook
from doorbuster.ledger.books.returns import ReturnsBook
from doorbuster.ledger.books.units import UnitsBook
from doorbuster.ledger.control import SaleRow
from doorbuster.model import Sale, Sku

__all__ = ["Ledger", "LedgerReads"]


class Ledger(AttemptsBook, UnitsBook, OrdersBook, ReturnsBook):
    """One environment's view of one ledger database. Safe for many threads."""

    def write_alarm(self, alarm: Alarm) -> None:
        """Keep an alarm as a row (a sink of :class:`doorbuster.alarms.Alarms`)."""
        self.database.transact(lambda connection: audit.write_alarm(connection, alarm), tries=1)

    def alarms(self, *, sale: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Read the newest alarms."""
        with self.database.read() as connection:
            return audit.read_alarms(connection, sale=sale, limit=limit)

    def audit(self, row: SaleRow, *, limit: int = 100) -> list[dict[str, Any]]:
        """Read the newest audit rows of a sale."""
        with self.database.read() as connection:
            return audit.read_audit(connection, row.sid, limit)

    def orders(
        self, sale: str, *, buyer: str | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Read orders of a sale, of every run, newest first."""
        with self.database.read() as connection:
            return reads.read_orders(connection, self.environment, sale, buyer, limit)

    def order(self, order_no: str) -> dict[str, Any] | None:
        """Read one order with its intent's state and its release, or ``None``."""
        with self.database.read() as connection:
            return reads.read_order(connection, self.environment, order_no)

    def report(self, row: SaleRow) -> invariants.Report:
        """Check I1-I7 of one sale against its rows, in one snapshot."""
        with self.database.read() as connection:
            return invariants.check(
                connection, row, now_ms=self.now_ms(), settle_max_s=self.settle_max_s
            )

    def view(self) -> LedgerReads:
        """What plugins see of this ledger."""
        return LedgerReads(self)


class LedgerReads:
    """Implements :class:`doorbuster.context.LedgerView`."""

    def __init__(self, ledger: Ledger) -> None:
        """Look at ``ledger``."""
        self._ledger = ledger
        self.creating = ledger.creating
        self.voiding = ledger.voiding

    def skus(self, sale: str) -> dict[str, Sku]:
        """The skus of a sale's current run, with their totals and prices."""
        return self._ledger.skus(self._ledger.require_sale(sale))

    def left(self, sale: Sale) -> dict[str, int]:
        """Units not yet consumed, by sku."""
        return {
            sku: found.unallocated + found.free for sku, found in self._ledger.left(sale).items()
        }

    def sold_out(self, sale: Sale) -> SoldOutRead:
        """Which skus have no unit left, read once (protocol.md 7.1)."""
        ledger = self._ledger
        sid = ledger.sid(sale)
        read_at_s = ledger._clock.monotonic_s()
        with ledger.database.read() as connection:  # one snapshot: units, epoch and version
            row = control.load(connection, sid)
            found = grants.left(connection, sid)
        return SoldOutRead(
            skus=frozenset(sku for sku, left in found.items() if left.sold_out),
            epoch=row.epoch,
            version=row.version,
            read_at_s=read_at_s,
        )
