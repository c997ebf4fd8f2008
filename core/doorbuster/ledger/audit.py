"""Who did what, when: audit rows, and alarms as rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from doorbuster.alarms import Alarm
from doorbuster.ledger import schema

__all__ = ["read_alarms", "read_audit", "write_alarm", "write_audit"]


def write_audit(
    connection: sa.Connection,
    sid: int | None,
    actor: str,
    action: str,
    detail: Mapping[str, Any],
    now_ms: int,
) -> None:
    """Write one audit row in the transaction of what it tells."""
    connection.execute(
        schema.audit.insert(),
        {
            "sid": sid,
            "actor": actor,
            "action": action,
            "detail": msgspec.json.encode(detail).decode(),
            "at_ms": now_ms,
        },
    )


def read_audit(connection: sa.Connection, sid: int, limit: int = 100) -> list[dict[str, Any]]:
    """Read the newest audit rows of a sale, newest first."""
    table = schema.audit
    rows = connection.execute(
        sa.select(table).where(table.c.sid == sid).order_by(table.c.id.desc()).limit(limit)
    )
    return [
        {
            "at_ms": row.at_ms,
            "actor": row.actor,
            "action": row.action,
            "detail": msgspec.json.decode(row.detail),
        }
        for row in rows
    ]


def write_alarm(connection: sa.Connection, alarm: Alarm) -> None:
    """Keep one alarm."""
    connection.execute(
        schema.alarms.insert(),
        {
            "name": alarm.name[:64],
            "severity": str(alarm.severity),
            "sale": alarm.sale,
            "detail": msgspec.json.encode(msgspec.to_builtins(alarm.detail)).decode(),
            "at_ms": alarm.at_ms,
        },
    )


def read_alarms(
    connection: sa.Connection, *, sale: str | None = None, limit: int = 100
) -> list[dict[str, Any]]:
    """Read the newest alarms, newest first, of one sale or of all."""
    table = schema.alarms
    query = sa.select(table).order_by(table.c.id.desc()).limit(limit)
    if sale is not None:
        query = query.where(table.c.sale == sale)
    return [
        {
            "at_ms": row.at_ms,
            "name": row.name,
            "severity": row.severity,
            "sale": row.sale,
            "detail": msgspec.json.decode(row.detail),
        }
        for row in connection.execute(query)
    ]
