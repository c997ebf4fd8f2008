"""Change a live sale's total (protocol.md 5.5): up at once, down as units become free."""

from __future__ import annotations

import sqlalchemy as sa

from doorbuster.errors import ConfigError
from doorbuster.ledger import grants, schema
from doorbuster.ledger.audit import write_audit

__all__ = ["apply_restock", "take_wanted"]


def apply_restock(
    connection: sa.Connection,
    sid: int,
    sku: str,
    units: int,
    *,
    restock_id: str,
    actor: str,
    now_ms: int,
) -> bool:
    """Apply a restock row once by its id; False when it was applied before.

    Up adds to total and unallocated. Down is stored as ``wanted`` and taken step by step by
    :func:`take_wanted`; accepted units are never touched.

    Raises:
        ConfigError: more is taken away than the sale has.
    """
    table, stock = schema.restocks, schema.stock
    if connection.execute(
        sa.select(table.c.id).where(table.c.id == restock_id, table.c.sid == sid)
    ).first():
        return False
    row = connection.execute(sa.select(stock).where(stock.c.sid == sid, stock.c.sku == sku)).one()
    if row.total - row.wanted + units < 0:
        raise ConfigError(
            f"restock {sku} by {units}: the sale has {row.total - row.wanted} units; "
            "at most those can be taken away"
        )
    connection.execute(
        table.insert(),
        {
            "id": restock_id,
            "sid": sid,
            "sku": sku,
            "units": units,
            "actor": actor,
            "at_ms": now_ms,
        },
    )
    change = (
        {"total": stock.c.total + units, "unallocated": stock.c.unallocated + units}
        if units > 0
        else {"wanted": stock.c.wanted - units}
    )
    connection.execute(
        sa.update(stock).where(stock.c.sid == sid, stock.c.sku == sku).values(**change)
    )
    detail = {"id": restock_id, "sku": sku, "units": units}
    write_audit(connection, sid, actor, "sale.restock", detail, now_ms)
    return True


def take_wanted(
    connection: sa.Connection, sid: int, epoch: int, *, router: bool, now_ms: int
) -> dict[str, int]:
    """Take wanted units off the total as far as they are free; answer what is still wanted.

    From ``unallocated`` first; a router's free grants give theirs in the same transaction. A
    holder's places are debited by the funding role before their units come here.
    """
    stock = schema.stock
    still: dict[str, int] = {}
    for row in connection.execute(
        sa.select(stock).where(stock.c.sid == sid, stock.c.wanted > 0).order_by(stock.c.sku)
    ).all():
        if router and row.wanted > row.unallocated:
            grants.collect(connection, sid, epoch, row.sku, row.wanted - row.unallocated, now_ms)
        taken = connection.execute(
            sa.select(stock.c.unallocated).where(stock.c.sid == sid, stock.c.sku == row.sku)
        ).scalar_one()
        n = min(row.wanted, taken)
        connection.execute(
            sa.update(stock)
            .where(stock.c.sid == sid, stock.c.sku == row.sku, stock.c.unallocated >= n)
            .values(
                total=stock.c.total - n,
                unallocated=stock.c.unallocated - n,
                wanted=stock.c.wanted - n,
            )
        )
        if row.wanted > n:
            still[row.sku] = row.wanted - n
    return still
