"""Write orders in the ledger's own database, in the transaction that marks intents CREATED.

The move RESERVED -> CREATED and the order row commit together (protocol.md 4.5), so an order
can neither be lost nor doubled, whatever crashes between. The ledger's migrations own the
table ``orders``; this module only names the columns it writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import sqlalchemy as sa

from doorbuster.plugin import (
    Context,
    Line,
    Persisted,
    PluginOptions,
    Reservation,
    Sku,
    canonical_lines,
    hookimpl,
)

__all__ = ["CANCELLED", "CREATED", "VOID", "Orders", "price_of"]

CREATED: Final = "CREATED"
"""State of an order that counts."""

CANCELLED: Final = "CANCELLED"
"""State of an order that was there and is no longer valid."""

VOID: Final = "VOID"
"""State of a tombstone: the order was never written and never will be."""

_ORDERS: Final = sa.table(
    "orders",
    sa.column("order_no"),
    sa.column("environment"),
    sa.column("sale"),
    sa.column("buyer"),
    sa.column("request_id"),
    sa.column("lines"),
    sa.column("amount_minor"),
    sa.column("currency"),
    sa.column("state"),
    sa.column("created_at_ms"),
)

_INSERT: Final = _ORDERS.insert()

_Prices: TypeAlias = Mapping[tuple[str, str], tuple[int | None, str | None]]
"""Amount and currency by (sale, canonical lines)."""


class Orders:
    """``orders``: one row per accepted attempt, unique by ``order_no``.

    How many rows a transaction takes, and how long it waits for them, are the worker's bounds
    (``workers.persist_rows``, ``workers.idle_ms``; S0-32), not options of this class.
    """

    def __init__(self, options: PluginOptions, context: Context) -> None:
        """Take no options; keep the ledger, the clock and the environment's name."""
        self._context = context

    @hookimpl
    def persist(self, reservations: Sequence[Reservation]) -> Sequence[Persisted]:
        """Insert the orders whose intents this transaction moved to CREATED.

        A plain insert is right: ``won`` was moved by compare-and-set in this very transaction,
        and a voided order's intent is RETURNING or beyond it, so it is never won. Answers are
        the transaction's: CREATED, EXISTS (moved before) or REFUSED (on its way back).

        Raises:
            UnavailableError: the database could not be reached; nothing was applied.
            UnknownOutcomeError: the commit's outcome is not known; calling again is safe.
        """
        if not reservations:
            return ()
        prices = self._prices(reservations)  # read before the transaction opens
        with self._context.ledger.creating(reservations) as creating:
            now_ms = self._context.clock.wall_ms()
            rows = [self._row(item, CREATED, now_ms, prices) for item in creating.won]
            creating.execute(_INSERT, rows)
        return creating.answers

    @hookimpl
    def void(self, reservation: Reservation) -> Persisted:
        """Make sure this order is not valid (protocol.md 4.4 b, 4.5); idempotent.

        EXISTS: it was there and is CANCELLED now. REFUSED: a VOID tombstone stands in its
        place. The core has moved the intent to RETURNING first, so no persist can be writing
        the same row meanwhile.

        Raises:
            UnavailableError: the database could not be reached; nothing was applied.
            UnknownOutcomeError: the commit's outcome is not known; calling again is safe.
        """
        prices = self._prices([reservation])
        row = self._row(reservation, VOID, self._context.clock.wall_ms(), prices)

        def statements(connection: sa.Connection) -> Persisted:
            return _void(connection, row)

        return self._context.ledger.voiding(reservation, statements)

    def _prices(self, reservations: Sequence[Reservation]) -> _Prices:
        """What each distinct content costs: a batch has many orders and few of those."""
        contents = {(item.attempt.sale, _text(item)): item.attempt.lines for item in reservations}
        skus = {sale: self._context.ledger.skus(sale) for sale in {sale for sale, _ in contents}}
        return {key: price_of(lines, skus[key[0]]) for key, lines in contents.items()}

    def _row(
        self, reservation: Reservation, state: str, now_ms: int, prices: _Prices
    ) -> Mapping[str, Any]:
        attempt = reservation.attempt
        lines = _text(reservation)
        amount_minor, currency = prices[attempt.sale, lines]
        return {
            "order_no": reservation.order_no,
            "environment": self._context.environment,
            "sale": attempt.sale,
            "buyer": attempt.buyer,
            "request_id": attempt.request_id,
            "lines": lines,
            "amount_minor": amount_minor,
            "currency": currency,
            "state": state,
            "created_at_ms": now_ms,
        }


def _text(reservation: Reservation) -> str:
    return reservation.attempt.fingerprint or canonical_lines(reservation.attempt.lines)


def price_of(lines: Sequence[Line], skus: Mapping[str, Sku]) -> tuple[int | None, str | None]:
    """Sum up what lines cost, in minor units of one currency.

    ``(None, None)`` when a line has no price, or the lines have several currencies.
    """
    found = [skus.get(line.sku) for line in lines]
    currencies = {sku.currency if sku is not None else None for sku in found}
    total = 0
    for line, sku in zip(lines, found, strict=True):
        if sku is None or sku.price_minor is None or len(currencies) > 1:
            return None, None
        total += line.quantity * sku.price_minor
    return total, currencies.pop()


def _void(connection: sa.Connection, tombstone: Mapping[str, Any]) -> Persisted:
    this = _ORDERS.c.order_no == tombstone["order_no"]
    state = connection.execute(sa.select(_ORDERS.c.state).where(this)).scalar_one_or_none()
    if state is None:
        connection.execute(_INSERT, [tombstone])
        return Persisted.REFUSED
    if state == VOID:
        return Persisted.REFUSED
    connection.execute(_ORDERS.update().where(this).values(state=CANCELLED))
    return Persisted.EXISTS
