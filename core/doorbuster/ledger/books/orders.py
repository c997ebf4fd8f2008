"""From accepted to created."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from doorbuster.ledger import (
    outbox,
)
from doorbuster.ledger.books.sales import SalesBook
from doorbuster.ledger.outbox import Claim, CreatingTransaction
from doorbuster.model import (
    Reservation,
    Sale,
)
from doorbuster.outcomes import Persisted

__all__ = ["OrdersBook"]


class OrdersBook(SalesBook):
    """Leases of committed batches, and the transaction that creates orders."""

    def pending(self, sids: Sequence[int]) -> int:
        """Count open batches of some sales."""
        with self.database.read() as connection:
            return outbox.pending(connection, sids)

    def claim(
        self,
        *,
        owner: str,
        rows: int,
        lease_s: float,
        settled: Sequence[int] = (),
        sids: Sequence[int] | None = None,
    ) -> list[Claim]:
        """Close ``settled`` batches and lease new ones, in one transaction (one fsync).

        ``sids`` are the sales the caller can persist; ``None``: every sale of the database.
        """
        with self.database.read() as connection:
            if not settled and not outbox.is_pending(connection, sids):
                return []

        def work(connection: sa.Connection) -> list[Claim]:
            outbox.settle(connection, settled)
            return outbox.claim(
                connection,
                owner=owner,
                rows=rows,
                now_ms=self.now_ms(),
                lease_ms=int(lease_s * 1000),
                sids=sids,
            )

        return self.database.transact(work)

    def persist_of(self, sid: int, buyer: str, request_id: str) -> str | None:
        """The plugin that writes an accepted attempt's order; ``None`` for no such attempt."""
        with self.database.read() as connection:
            return outbox.persist_of(connection, sid, buyer, request_id)

    def settle(self, batches: Sequence[int]) -> int:
        """Close batches whose intents have all moved on; answer how many."""
        return self.database.transact(lambda connection: outbox.settle(connection, batches))

    def reservations_of(self, batches: Sequence[int], sale: Sale) -> list[Reservation]:
        """Read the RESERVED intents of one sale's batches, oldest first; no dead letters."""
        with self.database.read() as connection:
            return outbox.reservations_of(connection, batches, sale)

    def reserved(self, batches: Sequence[int]) -> int:
        """Count the intents of batches that are still RESERVED, dead letters too."""
        with self.database.read() as connection:
            return outbox.reserved(connection, batches)

    def settle_persisted(
        self, sale: Sale, reservations: Sequence[Reservation], answers: Sequence[Persisted]
    ) -> list[Reservation]:
        """Move what a persist plugin created on to CREATED; REFUSED becomes a dead letter.

        Answers the new dead letters. A refusal of an intent that is no longer RESERVED is none:
        its return has won, and the void refused it.
        """
        sid = self.sid(sale)
        pairs = list(zip(reservations, answers, strict=True))
        created = [item for item, answer in pairs if answer is not Persisted.REFUSED]
        refused = [item for item, answer in pairs if answer is Persisted.REFUSED]

        def work(connection: sa.Connection) -> list[Reservation]:
            outbox.mark_created(connection, created)
            now_ms = self.now_ms()
            return [
                item
                for item in refused
                if outbox.dead_letter(connection, sid, item, "persist refused", now_ms)
            ]

        return self.database.transact(work)

    @contextmanager
    def creating(self, reservations: Sequence[Reservation]) -> Iterator[CreatingTransaction]:
        """Open the transaction in which a persist plugin inserts its rows (protocol.md 4.5)."""
        with self.database.transaction() as connection:
            yield CreatingTransaction(connection, reservations)

    def voiding(
        self, reservation: Reservation, statements: Callable[[Any], Persisted]
    ) -> Persisted:
        """Run a persist plugin's ``void`` statements in one transaction."""
        return self.database.transact(statements)
