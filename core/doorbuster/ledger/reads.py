"""Orders as people read them, each with the state of its intent and its release."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from doorbuster.ledger import schema

__all__ = ["read_order", "read_orders"]


def read_orders(
    connection: sa.Connection, environment: str, sale: str, buyer: str | None, limit: int
) -> list[dict[str, Any]]:
    """Read orders of a sale, newest first; a buyer's are found through the buyer's intents."""
    table, intents = schema.orders, schema.intents
    query = (
        sa.select(table)
        .where(table.c.environment == environment, table.c.sale == sale)
        .order_by(table.c.id.desc())
        .limit(limit)
    )
    if buyer is not None:
        numbers = sa.select(intents.c.order_no).where(
            intents.c.sid.in_(_runs(connection, environment, sale)), intents.c.buyer == buyer
        )
        query = query.where(table.c.order_no.in_(numbers))
    return [dict(row._mapping) for row in connection.execute(query)]


def read_order(connection: sa.Connection, environment: str, order_no: str) -> dict[str, Any] | None:
    """Read one order with ``intent_state`` and ``release`` (each may be ``None``)."""
    table, intents, releases = schema.orders, schema.intents, schema.releases
    row = connection.execute(
        sa.select(table).where(table.c.environment == environment, table.c.order_no == order_no)
    ).one_or_none()
    if row is None:
        return None
    state = connection.execute(
        sa.select(intents.c.state).where(
            intents.c.sid.in_(_runs(connection, environment, row.sale)),
            intents.c.buyer == row.buyer,
            intents.c.request_id == row.request_id,
            intents.c.order_no == order_no,
        )
    ).scalar()
    release = connection.execute(
        sa.select(releases).where(releases.c.order_no == order_no)
    ).one_or_none()
    return dict(row._mapping) | {
        "intent_state": state,
        "release": None if release is None else dict(release._mapping),
    }


def _runs(connection: sa.Connection, environment: str, sale: str) -> list[int]:
    """The numbers of all runs of a sale."""
    table = schema.sales
    query = sa.select(table.c.sid).where(table.c.environment == environment, table.c.sale == sale)
    return list(connection.execute(query).scalars())
