"""Fundings: one row per move of units, with an id made before the first try (protocol.md 5.1).

PLANNED -> MOVED -> CREDITED, or CANCELLED. Any worker may resume a row; each step is a
compare-and-set, and every move needs its grants ACTIVE.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from doorbuster.errors import ContractError
from doorbuster.ledger import schema
from doorbuster.model import FundingState, GrantState

__all__ = [
    "OPEN",
    "RESTOCK",
    "UNALLOCATED",
    "FundingRow",
    "cancel",
    "credited",
    "move",
    "open_fundings",
    "plan",
    "take_off_total",
]

UNALLOCATED: Final = ""
"""The place of units that no grant has: source of a top-up, target of a restock down."""

RESTOCK: Final = "restock"
"""The kind of a funding that debits a place for a restock down (protocol.md 5.5)."""

OPEN: Final = (FundingState.PLANNED, FundingState.MOVED)
"""States in which a worker has to go on."""


class FundingRow(msgspec.Struct, frozen=True):
    """One move of units: from ``source`` to ``target`` (a place, or unallocated)."""

    id: str
    sid: int
    epoch: int
    sku: str
    kind: str
    source: str
    target: str
    planned: int
    moved: int
    state: FundingState
    at_ms: int


def plan(
    connection: sa.Connection,
    funding_id: str,
    *,
    sid: int,
    epoch: int,
    sku: str,
    kind: str,
    source: str,
    target: str,
    units: int,
    now_ms: int,
) -> bool:
    """Write a PLANNED row; False when the id is there already."""
    if connection.execute(
        sa.select(schema.fundings.c.id).where(schema.fundings.c.id == funding_id)
    ).first():
        return False
    connection.execute(
        schema.fundings.insert(),
        {
            "id": funding_id,
            "sid": sid,
            "epoch": epoch,
            "sku": sku,
            "kind": kind,
            "source": source,
            "target": target,
            "planned": units,
            "moved": 0,
            "state": FundingState.PLANNED,
            "at_ms": now_ms,
        },
    )
    return True


def move(connection: sa.Connection, funding_id: str, debited: int | None) -> FundingRow:
    """PLANNED -> MOVED in one transaction, or CANCELLED when a grant is not ACTIVE (5.1, 5.2).

    ``debited`` is what the source's backend really gave; ``None`` for a source without a
    debit of its own (unallocated, a segment): then at most its free units move. Of a real debit
    at most the grant's free units move too: the rest was a phantom. A row that is not PLANNED
    is answered as it is. What a restock down brings to ``unallocated`` leaves the total in the
    same transaction, as far as it is still wanted (5.5).
    """
    row = _funding(connection, funding_id)
    if row.state is not FundingState.PLANNED:
        return row
    wanted = row.planned if debited is None else debited
    n = min(wanted, _available(connection, row))
    if n <= 0 or not _is_active(connection, row):
        return _set(connection, row, FundingState.CANCELLED, 0)
    # Lock order: grants by place, then stock.
    changes = sorted([(row.source, -n), (row.target, n)])
    for place, change in changes:
        if place != UNALLOCATED:
            _add_quantity(connection, row, place, change)
    for place, change in changes:
        if place == UNALLOCATED:
            _add_unallocated(connection, row, change)
    if row.kind == RESTOCK:
        take_off_total(connection, row.sid, row.sku)
    done = FundingState.CREDITED if row.target == UNALLOCATED else FundingState.MOVED
    return _set(connection, row, done, n)


def credited(connection: sa.Connection, funding_ids: Iterable[str]) -> None:
    """MOVED -> CREDITED: the target's backend has taken the units up."""
    table = schema.fundings
    connection.execute(
        sa.update(table)
        .where(table.c.id.in_(list(funding_ids)), table.c.state == FundingState.MOVED)
        .values(state=FundingState.CREDITED)
    )


def cancel(connection: sa.Connection, funding_id: str) -> None:
    """PLANNED -> CANCELLED: nothing was taken anywhere."""
    table = schema.fundings
    connection.execute(
        sa.update(table)
        .where(table.c.id == funding_id, table.c.state == FundingState.PLANNED)
        .values(state=FundingState.CANCELLED)
    )


def open_fundings(connection: sa.Connection, sid: int) -> list[FundingRow]:
    """Read the rows that a worker has to go on with, oldest first."""
    table = schema.fundings
    rows = connection.execute(
        sa.select(table)
        .where(table.c.sid == sid, table.c.state.in_(OPEN))
        .order_by(table.c.at_ms, table.c.id)
    )
    return [_typed(row) for row in rows]


def take_off_total(connection: sa.Connection, sid: int, sku: str) -> int:
    """Take wanted units that are unallocated off the total; answer how many are still wanted."""
    stock = schema.stock
    this = sa.and_(stock.c.sid == sid, stock.c.sku == sku)
    row = connection.execute(sa.select(stock).where(this)).one()
    n = min(row.wanted, row.unallocated)
    if n:
        connection.execute(
            sa.update(stock)
            .where(this)
            .values(
                total=stock.c.total - n,
                unallocated=stock.c.unallocated - n,
                wanted=stock.c.wanted - n,
            )
        )
    return int(row.wanted - n)


# ------------------------------------------------------------------ one row at a time
def _typed(row: sa.Row[Any]) -> FundingRow:
    values = dict(row._mapping)
    values["state"] = FundingState(values["state"])
    return FundingRow(**values)


def _funding(connection: sa.Connection, funding_id: str) -> FundingRow:
    table = schema.fundings
    found = connection.execute(sa.select(table).where(table.c.id == funding_id)).one_or_none()
    if found is None:
        raise ContractError(f"no funding {funding_id!r} was planned")
    return _typed(found)


def _set(connection: sa.Connection, row: FundingRow, state: FundingState, moved: int) -> FundingRow:
    table = schema.fundings
    hit = connection.execute(
        sa.update(table)
        .where(table.c.id == row.id, table.c.state == row.state)
        .values(state=state, moved=moved)
    ).rowcount
    _must_hit(hit, f"funding {row.id}")
    return msgspec.structs.replace(row, state=state, moved=moved)


def _must_hit(hit: int, what: str) -> None:
    """A guard under the write lock that misses is a defect: the transaction rolls back."""
    if hit != 1:
        raise ContractError(f"{what} changed under the write lock, or is not there")


def _available(connection: sa.Connection, row: FundingRow) -> int:
    """Units the source can give now: unallocated, or free units of its ACTIVE grant."""
    if row.source == UNALLOCATED:
        stock = schema.stock
        query = sa.select(stock.c.unallocated).where(stock.c.sid == row.sid, stock.c.sku == row.sku)
    else:
        grants = schema.grants
        query = sa.select(grants.c.quantity - grants.c.consumed).where(
            _grant(row, row.source), grants.c.state == GrantState.ACTIVE
        )
    return int(connection.execute(query).scalar() or 0)


def _grant(row: FundingRow, place: str) -> sa.ColumnElement[bool]:
    grants = schema.grants
    return sa.and_(
        grants.c.sid == row.sid,
        grants.c.epoch == row.epoch,
        grants.c.place == place,
        grants.c.sku == row.sku,
    )


def _is_active(connection: sa.Connection, row: FundingRow) -> bool:
    """Whether every grant of the move is ACTIVE (5.1)."""
    grants = schema.grants
    return all(
        connection.execute(sa.select(grants.c.state).where(_grant(row, place))).scalar()
        == GrantState.ACTIVE
        for place in {row.source, row.target} - {UNALLOCATED}
    )


def _add_quantity(connection: sa.Connection, row: FundingRow, place: str, n: int) -> None:
    grants = schema.grants
    hit = connection.execute(
        sa.update(grants)
        .where(
            _grant(row, place),
            grants.c.state == GrantState.ACTIVE,
            grants.c.quantity + n >= grants.c.consumed,
        )
        .values(quantity=grants.c.quantity + n)
    ).rowcount
    _must_hit(hit, f"grant {place}/{row.sku}")


def _add_unallocated(connection: sa.Connection, row: FundingRow, n: int) -> None:
    stock = schema.stock
    hit = connection.execute(
        sa.update(stock)
        .where(stock.c.sid == row.sid, stock.c.sku == row.sku, stock.c.unallocated + n >= 0)
        .values(unallocated=stock.c.unallocated + n)
    ).rowcount
    _must_hit(hit, f"stock of {row.sku}")
