"""A persist plugin with a store of its own: the smallest one outside the ledger's database.

It stands for a team's order service. Orders are unique by ``order_no``; ``void`` leaves a
tombstone where no order is, and cancels the one that is there, for good (protocol.md 4.5).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from doorbuster.plugin import Context, Persisted, PluginOptions, Reservation, hookimpl

__all__ = ["MemoryOrder", "MemoryOrders"]

_CREATED: Final = "CREATED"
_CANCELLED: Final = "CANCELLED"
_VOID: Final = "VOID"


class MemoryOrder(msgspec.Struct, frozen=True):
    """One order or tombstone. ``state`` is CREATED, CANCELLED or VOID."""

    reservation: Reservation
    state: str


class _Store:
    """All orders by number; ``lock`` guards each look and the write that follows it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.orders: dict[str, MemoryOrder] = {}


class MemoryOrders:
    """Orders in ``context.state``, for tests."""

    def __init__(self, options: PluginOptions, context: Context) -> None:
        """Take no options; find the orders that an earlier instance of this name left."""
        self._store: _Store = context.state.setdefault("orders", _Store())

    @property
    def orders(self) -> Mapping[str, MemoryOrder]:
        """Every order and tombstone by its number, as they are now."""
        with self._store.lock:
            return dict(self._store.orders)

    def valid(self, order_no: str) -> int:
        """Count the valid orders of this number: 1, or 0 for none, a cancelled one, a tombstone."""
        found = self.orders.get(order_no)
        return int(found is not None and found.state == _CREATED)

    @hookimpl
    def persist(self, reservations: Sequence[Reservation]) -> Sequence[Persisted]:
        """Write each order unless its number is there: EXISTS, or REFUSED once it is void."""
        with self._store.lock:
            return [self._persist(item) for item in reservations]

    def _persist(self, item: Reservation) -> Persisted:
        found = self._store.orders.get(item.order_no)
        if found is None:
            self._store.orders[item.order_no] = MemoryOrder(item, _CREATED)
            return Persisted.CREATED
        return Persisted.EXISTS if found.state == _CREATED else Persisted.REFUSED

    @hookimpl
    def void(self, reservation: Reservation) -> Persisted:
        """Cancel the order, or leave a tombstone in its place; idempotent."""
        with self._store.lock:
            found = self._store.orders.get(reservation.order_no)
            if found is None:
                found = MemoryOrder(reservation, _VOID)
            elif found.state == _CREATED:
                found = MemoryOrder(found.reservation, _CANCELLED)
            self._store.orders[reservation.order_no] = found
            return Persisted.REFUSED if found.state == _VOID else Persisted.EXISTS
