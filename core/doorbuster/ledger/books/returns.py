"""The ways back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from doorbuster.ledger import (
    returns,
    schema,
)
from doorbuster.ledger.books.sales import SalesBook
from doorbuster.ledger.control import SaleRow
from doorbuster.ledger.returns import Job
from doorbuster.ledger.stored import Stored
from doorbuster.model import (
    IntentState,
)

__all__ = ["ReturnsBook"]


class ReturnsBook(SalesBook):
    """Returns of accepted units, and the queue of the compensation lane."""

    def begin_return(
        self,
        row: SaleRow,
        buyer: str,
        request_id: str,
        *,
        to: IntentState,
        reason: str,
        actor: str,
    ) -> Stored | None:
        """Compare and set an intent to RETURNING; ``None`` when another change won (4.4 a)."""
        return self.database.transact(
            lambda connection: returns.begin_return(
                connection,
                row.sid,
                buyer,
                request_id,
                to=to,
                reason=reason,
                actor=actor,
                now_ms=self.now_ms(),
            )
        )

    def jobs(self, sids: Sequence[int]) -> int:
        """Count jobs of the compensation lane of some sales."""
        table = schema.compensations
        with self.database.read() as connection:
            query = sa.select(sa.func.count()).where(table.c.sid.in_(list(sids)))
            return int(connection.execute(query).scalar_one())

    def claim_jobs(self, sales: Mapping[int, str], *, limit: int, lease_s: float) -> list[Job]:
        """Lease due jobs of the compensation lane."""
        with self.database.read() as connection:
            if not connection.execute(sa.select(schema.compensations.c.id).limit(1)).first():
                return []
        return self.database.transact(
            lambda connection: returns.claim_jobs(
                connection,
                limit=limit,
                now_ms=self.now_ms(),
                lease_ms=int(lease_s * 1000),
                sales=sales,
            )
        )

    def finish_return(self, job: Job) -> bool:
        """Give the units of a RETURNING intent back, once (4.4 c)."""
        return self.database.transact(
            lambda connection: returns.finish_return(connection, job, self.now_ms())
        )

    def forget_job(self, job: Job, *, backend_done: bool, epoch: int | None = None) -> bool:
        """Close a job of the lane; False when it stays, because ``epoch`` is over (4.4).

        ``epoch`` is the one whose backend was told; give it whenever there can be another.

        Raises:
            ContractError: the units of a return were not given back yet.
        """
        return self.database.transact(
            lambda connection: returns.forget_job(
                connection, job, backend_done=backend_done, epoch=epoch
            )
        )

    def retry_job(self, job: Job, *, after_s: float) -> None:
        """Let a job wait."""
        due_ms = self.now_ms() + int(after_s * 1000)
        self.database.transact(lambda connection: returns.retry_job(connection, job, due_ms=due_ms))
