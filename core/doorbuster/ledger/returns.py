"""The ways back: undo of a hold, return of an accepted unit (protocol.md 4.3, 4.4).

Both leave a row in ``compensations``, the queue of the compensation lane, in the transaction
that decided them; any worker resumes it. Units come back exactly once: by the unique release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from doorbuster.errors import ContractError
from doorbuster.identity import parse_lines
from doorbuster.ledger import control, schema
from doorbuster.ledger.accept import Undo, queue_undo, undo_code
from doorbuster.ledger.audit import write_audit
from doorbuster.ledger.outbox import lease_over
from doorbuster.ledger.room import Fenced
from doorbuster.ledger.stored import Stored, identity_of, read_stored, units
from doorbuster.model import PER_SALE, Attempt, GrantState, IntentState, Kind, Reservation
from doorbuster.outcomes import Code

__all__ = [
    "RETURN_STATES",
    "Job",
    "begin_return",
    "claim_jobs",
    "finish_return",
    "forget_job",
    "retry_job",
    "tombstone",
]

RETURN_STATES: Final[Mapping[IntentState, tuple[IntentState, ...]]] = {
    IntentState.RELEASED: (IntentState.RESERVED,),
    IntentState.CANCELLED: (IntentState.CREATED,),
    IntentState.EXPIRED: (IntentState.CREATED,),
    IntentState.REFUNDED: (IntentState.PAID,),
}
"""End state of a return -> states it may start from (design: order states)."""


class Job(msgspec.Struct, frozen=True):
    """One row of the compensation lane."""

    id: int
    sid: int
    reservation: Reservation
    state: IntentState
    code: Code
    phantom: Mapping[str, int]
    returned_as: IntentState | None
    reason: str
    actor: str
    tries: int


def tombstone(
    connection: sa.Connection,
    sid: int,
    epoch: int,
    items: Sequence[Reservation],
    *,
    code: Code,
    holds: bool,
    batch: int,
    now_ms: int,
) -> list[Stored | None]:
    """Write intent(ABORTED, code) where none is; answer what was stored before, else ``None``.

    Where an intent won, nothing is undone unless the hold lies under another grant than it. A
    tombstone commits only while the epoch is the sale's, of kind H, and every grant of it is
    ACTIVE, read in this transaction: after the fence the fence itself is the proof (4.3).

    Raises:
        Fenced: the epoch is over; the transaction must roll back, and the answer is BUSY
            without ``final``.
    """
    keys = [identity_of(item.attempt) for item in items]
    stored = read_stored(connection, sid, keys)
    new = {key: item for key, item in zip(keys, items, strict=True) if key not in stored}
    if new:
        connection.execute(
            schema.intents.insert(),
            [
                {
                    "sid": sid,
                    "buyer": item.attempt.buyer,
                    "request_id": item.attempt.request_id,
                    "order_no": item.order_no,
                    "lines": item.attempt.fingerprint,
                    "epoch": epoch,
                    "place": item.place,
                    "state": IntentState.ABORTED,
                    "code": int(code),
                    "batch": batch,
                    "at_ms": now_ms,
                }
                for _, item in sorted(new.items(), key=lambda pair: pair[0])
            ],
        )
    if not _is_active(connection, sid, epoch):
        raise Fenced
    if holds:
        undo: list[Undo] = [(item, code, {}) for item in new.values()]
        undo += [
            (item, undo_code(row), {})
            for key, item in zip(keys, items, strict=True)
            if (row := stored.get(key)) is not None and not row.justifies(item.place, epoch)
        ]
        if undo:
            queue_undo(connection, sid, epoch, undo, now_ms)
    return [stored.get(key) for key in keys]


def _is_active(connection: sa.Connection, sid: int, epoch: int) -> bool:
    """Whether ``epoch`` is the sale's, of kind H, with all of its grants ACTIVE."""
    row = control.load(connection, sid)
    grants = schema.grants
    states = set(
        connection.execute(
            sa.select(grants.c.state).where(grants.c.sid == sid, grants.c.epoch == epoch).distinct()
        ).scalars()
    )
    return row.epoch == epoch and row.kind is Kind.H and states == {GrantState.ACTIVE}


def begin_return(
    connection: sa.Connection,
    sid: int,
    buyer: str,
    request_id: str,
    *,
    to: IntentState,
    reason: str,
    actor: str,
    now_ms: int,
) -> Stored | None:
    """Compare and set the intent to RETURNING and queue the rest; ``None`` when it lost.

    Answers the row as it was before. Against persist and pay: one row, one winner (Y2).
    """
    before = read_stored(connection, sid, [(buyer, request_id)]).get((buyer, request_id))
    if before is None or before.state not in RETURN_STATES[to]:
        return None
    table = schema.intents
    hit = connection.execute(
        sa.update(table)
        .where(table.c.id == before.id, table.c.state == before.state)
        .values(state=IntentState.RETURNING)
    ).rowcount
    if hit != 1:
        return None
    connection.execute(
        schema.compensations.insert(),
        {
            "sid": sid,
            "epoch": before.epoch,
            "place": before.place,
            "buyer": buyer,
            "request_id": request_id,
            "order_no": before.order_no,
            "lines": before.lines,
            "state": "RETURNED",
            "code": int(Code.ACCEPTED),
            "phantom": "{}",
            "returned_as": to,
            "reason": reason[:200],
            "actor": actor,
            "leased_until_ms": 0,
            "tries": 0,
            "at_ms": now_ms,
        },
    )
    return before


def finish_return(connection: sa.Connection, job: Job, now_ms: int) -> bool:
    """Give the units back in one transaction, for any state of the grant (protocol.md 4.4 c).

    Final state, release row, quota minus, grant minus, ``unallocated`` plus; a dead letter of
    the order is answered by this. False when another worker has done it.
    """
    assert job.returned_as is not None  # noqa: S101 - a RETURNED job always names its end state
    table, item = schema.intents, job.reservation
    hit = connection.execute(
        sa.update(table)
        .where(
            table.c.sid == job.sid,
            table.c.buyer == item.attempt.buyer,
            table.c.request_id == item.attempt.request_id,
            table.c.state == IntentState.RETURNING,
        )
        .values(state=job.returned_as)
    ).rowcount
    if hit != 1:
        return False
    need = units(item.attempt.lines)
    _lower_quota(connection, job.sid, item.attempt.buyer, need)
    grants, stock = schema.grants, schema.stock
    for sku, n in sorted(need.items()):
        _must_hit(
            connection.execute(
                sa.update(grants)
                .where(
                    grants.c.sid == job.sid,
                    grants.c.epoch == item.epoch,
                    grants.c.place == item.place,
                    grants.c.sku == sku,
                )
                .values(quantity=grants.c.quantity - n, consumed=grants.c.consumed - n)
            ),
            f"grant {item.place}/{sku}",
        )
    for sku, n in sorted(need.items()):
        _must_hit(
            connection.execute(
                sa.update(stock)
                .where(stock.c.sid == job.sid, stock.c.sku == sku)
                .values(unallocated=stock.c.unallocated + n)
            ),
            f"stock {sku}",
        )
    connection.execute(
        schema.releases.insert(),
        {
            "order_no": item.order_no,
            "sid": job.sid,
            "lines": item.attempt.fingerprint,
            "state": job.returned_as,
            "reason": job.reason,
            "actor": job.actor,
            "at_ms": now_ms,
            "backend_done": 0,
        },
    )
    letters = schema.dead_letters
    connection.execute(sa.delete(letters).where(letters.c.order_no == item.order_no))
    detail = {"order_no": item.order_no, "reason": job.reason, "lines": item.attempt.fingerprint}
    action = f"order.{job.returned_as.lower()}"
    write_audit(connection, job.sid, job.actor, action, detail, now_ms)
    return True


def _lower_quota(connection: sa.Connection, sid: int, buyer: str, need: Mapping[str, int]) -> None:
    """Lower every scope that the accept raised: the sale's, and each sku's where it has several."""
    quotas, stock = schema.quotas, schema.stock
    skus = connection.execute(
        sa.select(sa.func.count()).select_from(stock).where(stock.c.sid == sid)
    ).scalar_one()
    per_sku = sorted(need.items()) if skus > 1 else []
    for scope, n in [(PER_SALE, sum(need.values())), *per_sku]:
        hit = connection.execute(
            sa.update(quotas)
            .where(quotas.c.sid == sid, quotas.c.buyer == buyer, quotas.c.scope == scope)
            .values(bought=quotas.c.bought - n)
        )
        _must_hit(hit, f"quota of {scope}")


def _must_hit(result: sa.CursorResult[Any], what: str) -> None:
    if result.rowcount != 1:
        raise ContractError(f"{what} is not there to take units back")


# ------------------------------------------------------------------ the lane's queue
def claim_jobs(
    connection: sa.Connection,
    *,
    limit: int,
    now_ms: int,
    lease_ms: int,
    sales: Mapping[int, str],
) -> list[Job]:
    """Lease due jobs of the compensation lane, oldest first."""
    table = schema.compensations
    rows = connection.execute(
        sa.select(table)
        .where(lease_over(table.c.leased_until_ms, now_ms, lease_ms), table.c.sid.in_(list(sales)))
        .order_by(table.c.id)
        .limit(limit)
    ).all()
    if rows:
        connection.execute(
            sa.update(table)
            .where(table.c.id.in_([row.id for row in rows]))
            .values(leased_until_ms=now_ms + lease_ms, tries=table.c.tries + 1)
        )
    runs = schema.sales
    found = connection.execute(
        sa.select(runs.c.sid, runs.c.run).where(runs.c.sid.in_(sorted({row.sid for row in rows})))
    )
    run = {sid: number for sid, number in found}  # noqa: C416 - a Row is no tuple to mypy
    return [_job(row, sales[row.sid], run[row.sid]) for row in rows]


def _job(row: sa.Row[Any], sale: str, run: int) -> Job:
    attempt = Attempt(
        lines=parse_lines(row.lines),
        buyer=row.buyer,
        request_id=row.request_id,
        sale=sale,
        order_no=row.order_no,
        fingerprint=row.lines,
        run=run,
    )
    return Job(
        id=row.id,
        sid=row.sid,
        reservation=Reservation(attempt, row.place, row.order_no, row.epoch),
        state=IntentState.ABORTED if row.state == IntentState.ABORTED else IntentState.RETURNING,
        code=Code(row.code),
        phantom=msgspec.json.decode(row.phantom, type=dict[str, int]),
        returned_as=None if row.returned_as is None else IntentState(row.returned_as),
        reason=row.reason or "",
        actor=row.actor or "",
        tries=row.tries,
    )


def retry_job(connection: sa.Connection, job: Job, *, due_ms: int) -> None:
    """Let a job wait until ``due_ms`` (ledger time)."""
    table = schema.compensations
    connection.execute(sa.update(table).where(table.c.id == job.id).values(leased_until_ms=due_ms))


def forget_job(
    connection: sa.Connection, job: Job, *, backend_done: bool, epoch: int | None = None
) -> bool:
    """The backend has the end state (or is gone): the job is over. True when it is.

    ``epoch`` is the one whose backend was told; when it is no longer the sale's, ``backend_done``
    is not set and the job stays, due at once, for the backend of the new epoch (protocol.md 4.4).

    Raises:
        ContractError: the units of a return were not given back yet; its job must not be lost.
    """
    table, releases = schema.compensations, schema.releases
    if job.returned_as is not None:
        this = releases.c.order_no == job.reservation.order_no
        if connection.execute(sa.select(releases.c.order_no).where(this)).first() is None:
            raise ContractError(f"return of {job.reservation.order_no} is not finished")
        if backend_done:
            if epoch is not None and control.load(connection, job.sid).epoch != epoch:
                retry_job(connection, job, due_ms=0)
                return False
            connection.execute(sa.update(releases).where(this).values(backend_done=1))
    connection.execute(sa.delete(table).where(table.c.id == job.id))
    return True
