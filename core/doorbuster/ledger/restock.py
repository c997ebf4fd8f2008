"""Change a live sale's total (protocol.md 5.5): up at once, down as units become free."""

from __future__ import annotations

import sqlalchemy as sa

from doorbuster.errors import ConfigError, nearest
from doorbuster.ledger import control, grants, schema
from doorbuster.ledger.audit import write_audit
from doorbuster.ledger.fundings import take_off_total
from doorbuster.model import QUANTITY_MAX

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

    Up adds to total and unallocated, and raises the control version, so that sold-out marks
    taken before it are void (L3). Down is stored as ``wanted`` and taken step by step by
    :func:`take_wanted`; accepted units are never touched.

    Raises:
        ConfigError: no such sku, no units, more is taken away than the sale has, or the id was
            used for another change.
    """
    table, stock = schema.restocks, schema.stock
    before = connection.execute(
        sa.select(table).where(table.c.id == restock_id, table.c.sid == sid)
    ).one_or_none()
    if before is not None:
        if (before.sku, before.units) == (sku, units):
            return False
        raise ConfigError(
            f"restock {restock_id!r} was {before.sku} by {before.units}; "
            "another change needs another id"
        )
    _check(connection, sid, sku, units)
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
    if units > 0:
        control.raise_version(connection, sid)
    return True


def _check(connection: sa.Connection, sid: int, sku: str, units: int) -> None:
    stock = schema.stock
    rows = {row.sku: row for row in connection.execute(sa.select(stock).where(stock.c.sid == sid))}
    if sku not in rows:
        known = ", ".join(sorted(rows))
        raise ConfigError(f"restock: no sku {sku!r}{nearest(sku, rows)}; known: {known}")
    if not 1 <= abs(units) <= QUANTITY_MAX:
        raise ConfigError(f"restock {sku} by {units}: expected 1..{QUANTITY_MAX}, up or down")
    have = rows[sku].total - rows[sku].wanted
    if have + units < 0:
        raise ConfigError(
            f"restock {sku} by {units}: the sale has {have} units; at most those can be taken away"
        )


def take_wanted(
    connection: sa.Connection, sid: int, epoch: int, *, router: bool, now_ms: int
) -> dict[str, int]:
    """Take wanted units off the total as far as they are free; answer what is still wanted.

    From ``unallocated`` first; a router's free grants give theirs in the same transaction. A
    holder's places are debited by fundings of kind ``restock``, whose move does the same (5.5).
    """
    stock = schema.stock
    still: dict[str, int] = {}
    for row in connection.execute(
        sa.select(stock).where(stock.c.sid == sid, stock.c.wanted > 0).order_by(stock.c.sku)
    ).all():
        if router and row.wanted > row.unallocated:
            grants.collect(connection, sid, epoch, row.sku, row.wanted - row.unallocated, now_ms)
        wanted = take_off_total(connection, sid, row.sku)
        if wanted:
            still[row.sku] = wanted
    return still
