"""Accepting attempts, and answering for them."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from doorbuster.errors import UnavailableError
from doorbuster.ledger import (
    returns,
    schema,
)
from doorbuster.ledger.accept import STALE, Accepted, accept, answer_dry, answer_from_stored
from doorbuster.ledger.books.sales import SalesBook
from doorbuster.ledger.control import SaleRow
from doorbuster.ledger.database import new_batch_id
from doorbuster.ledger.room import Fenced, Short
from doorbuster.ledger.stored import Stored, outcome_of, read_stored
from doorbuster.model import (
    Batch,
    Reservation,
    Sale,
)
from doorbuster.outcomes import Code, Outcome

__all__ = ["AttemptsBook"]


class _NothingWritten(Exception):  # noqa: N818 - not a fault: it carries "roll back, all is said"
    """A router's batch without a new unit sold: its rows are removed again, so nothing stays."""

    def __init__(self, found: Accepted) -> None:
        super().__init__()
        self.found = found


class AttemptsBook(SalesBook):
    """The accept transaction, its answers, and tombstones."""

    def accept(
        self,
        batch: Batch,
        items: Sequence[Reservation],
        *,
        holds: bool,
        lease: tuple[str, int] | None = None,
        persist: str = "orders",
    ) -> Accepted:
        """Run the accept transaction (protocol.md 4.1) for distinct identities of one sale.

        A lock time-out or an unknown commit is run again as a new try.

        Raises:
            UnavailableError: nothing was applied.
            UnknownOutcomeError: it may be applied; settle by identity.
        """
        sid = self.sid(batch.sale)
        skus = self._skus_of(sid)
        if sid in self._dry and not holds:
            unsold = self._answer_dry(sid, batch, items, skus)
            if unsold is not None:
                return unsold
            self._dry.discard(sid)

        def work(connection: sa.Connection) -> Accepted:
            found = accept(
                connection,
                sid,
                items,
                epoch=batch.epoch,
                kind=batch.kind,
                skus=skus,
                holds=holds,
                batch=new_batch_id(self._clock),
                now_ms=self.now_ms(),
                lease=lease,
                persist=persist,
            )
            if found.batch is None and not holds:
                raise _NothingWritten(found)  # a sold-out sale must not pay an fsync per batch
            return found

        try:
            return self.database.transact(work)
        except _NothingWritten as nothing:
            if any(isinstance(answer, Short) for answer in nothing.found.answers):
                self._dry.add(sid)  # a hint only: the next batch looks before it writes
            return nothing.found
        except Fenced:
            with self.database.read() as connection:
                answers = answer_from_stored(connection, sid, items, STALE)
            return Accepted(answers, None, (), undo=False)

    def _answer_dry(
        self, sid: int, batch: Batch, items: Sequence[Reservation], skus: Sequence[str]
    ) -> Accepted | None:
        """A sold-out sale costs a snapshot, not a turn at the write lock (L14)."""
        try:
            with self.database.read() as connection:
                return answer_dry(
                    connection,
                    sid,
                    items,
                    epoch=batch.epoch,
                    kind=batch.kind,
                    skus=skus,
                    now_ms=self.now_ms(),
                )
        except (Fenced, UnavailableError):
            return None

    def _skus_of(self, sid: int) -> tuple[str, ...]:
        """The skus of a run, sorted: fixed when it was created, whatever config says now."""
        found = self._skus.get(sid)
        if found is None:
            table = schema.stock
            query = sa.select(table.c.sku).where(table.c.sid == sid).order_by(table.c.sku)
            with self.database.read() as connection:
                found = tuple(connection.execute(query).scalars())
            with self._lock:
                self._skus[sid] = found
        return found

    def results(self, row: SaleRow, identities: Sequence[tuple[str, str]]) -> list[Outcome | None]:
        """Answer (buyer, request_id) pairs from what is stored; ``None`` for the unknown."""
        with self.database.read() as connection:
            stored = read_stored(connection, row.sid, identities)
        return [
            outcome_of(found, None) if (found := stored.get(key)) else None for key in identities
        ]

    def tombstone(
        self, sale: Sale, epoch: int, items: Sequence[Reservation], *, code: Code, holds: bool
    ) -> list[Stored | None] | None:
        """Settle identities (protocol.md 4.3): ABORTED where none is stored.

        Answers what was stored before (``None``: the tombstone won), or ``None`` for all when
        the epoch is fenced and nothing was written.
        """
        sid = self.sid(sale)
        try:
            return self.database.transact(
                lambda connection: returns.tombstone(
                    connection,
                    sid,
                    epoch,
                    items,
                    code=code,
                    holds=holds,
                    batch=new_batch_id(self._clock),
                    now_ms=self.now_ms(),
                )
            )
        except Fenced:
            return None
