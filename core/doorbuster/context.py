"""What a plugin is given: its context, its options, and the contracts of what is in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, dataclass_transform

import msgspec

from doorbuster.clock import Clock
from doorbuster.model import Reservation, Sale, Sku
from doorbuster.outcomes import Persisted

__all__ = [
    "AlarmCall",
    "Context",
    "Creating",
    "LedgerView",
    "Metrics",
    "PluginOptions",
    "SoldOutRead",
]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class PluginOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of a plugin's nested ``Options``: frozen, typed, unknown keys are errors."""


class AlarmCall(Protocol):
    """``alarm(name, severity, sale, **detail)``; never raises."""

    def __call__(
        self, name: str, severity: str = "warning", sale: str | None = None, **detail: Any
    ) -> None:
        """Raise an alarm."""
        ...


class Metrics(Protocol):
    """In-process counters and windows. Label values must come from a bounded set (X17)."""

    def count(self, name: str, n: int = 1, **labels: str) -> None:
        """Add ``n`` to a counter."""
        ...

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Record one value (a latency in ms, a size)."""
        ...


class SoldOutRead(msgspec.Struct, frozen=True):
    """One ledger read for the sold-out mark (protocol.md 7.1).

    ``skus`` are those whose last unit is consumed; the mark's life runs from the moment before
    the read, ``read_at_s`` (monotonic seconds), and carries epoch and control version.
    """

    skus: frozenset[str]
    epoch: int
    version: int
    read_at_s: float


class Creating(Protocol):
    """An open transaction that moves intents RESERVED -> CREATED (protocol.md 4.5).

    ``won`` are the reservations it moved, in the order given; write just their orders through
    ``execute``. ``answers`` aligns with the reservations given.
    """

    @property
    def won(self) -> Sequence[Reservation]:
        """Reservations moved to CREATED by this transaction."""
        ...

    @property
    def answers(self) -> Sequence[Persisted]:
        """One answer per reservation given."""
        ...

    def execute(self, statement: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute a SQLAlchemy Core statement for ``rows`` in this transaction."""
        ...


class LedgerView(Protocol):
    """The ledger as a plugin sees it: reads, and for persist the creating transaction."""

    def skus(self, sale: str) -> Mapping[str, Sku]:
        """The skus of a sale's current run, with their totals and prices.

        Raises:
            UnknownSaleError: the sale is not in the ledger.
            UnavailableError: the ledger cannot be read now.
        """
        ...

    def left(self, sale: Sale) -> Mapping[str, int]:
        """Units not yet consumed, by sku."""
        ...

    def sold_out(self, sale: Sale) -> SoldOutRead:
        """Which skus have no unit left, by one read of the ledger's truth."""
        ...

    def creating(self, reservations: Sequence[Reservation]) -> AbstractContextManager[Creating]:
        """Open the transaction in which a persist plugin inserts its rows.

        Raises:
            UnavailableError: the database could not be reached; nothing was applied.
            UnknownOutcomeError: the commit's outcome is not known; run it again.
        """
        ...

    def voiding(
        self, reservation: Reservation, statements: Callable[[Any], Persisted]
    ) -> Persisted:
        """Run ``statements(connection)`` in one transaction, for ``void``."""
        ...


class Context(msgspec.Struct, frozen=True):
    """What a plugin instance is built with. ``state`` survives a rebuild on reload."""

    name: str
    environment: str
    clock: Clock
    alarm: AlarmCall
    metrics: Metrics
    log: Any
    ledger: LedgerView
    state: MutableMapping[str, Any]
    servers: Mapping[str, Any] = {}
    sale: str | None = None
