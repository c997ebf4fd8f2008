"""The control row of a sale: run, epoch, state, window, limits and mode, with one version.

Config is only the early refusal; what is in force is here (protocol.md 6.6). Every change
raises ``version`` in the row and in the sale's grants in one transaction, and an accept names
the version it was decided under: so no accept passes a limit, a window or a pause that was
committed before it, whatever a node remembers (docs/decisions/0004).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import GenericAlias
from typing import Any, get_type_hints

import msgspec
import sqlalchemy as sa

from doorbuster.errors import ConfigError
from doorbuster.ledger import queries, schema
from doorbuster.ledger.audit import write_audit
from doorbuster.model import Kind, PerBuyer, Sale, SaleState, Sku
from doorbuster.outcomes import Code, Rejection

__all__ = [
    "Limits",
    "SaleRow",
    "change",
    "create",
    "find",
    "judge",
    "load",
    "load_all",
    "load_skus",
    "raise_version",
    "set_state",
]

_MODE_CLOSED = "closed"


class Limits(msgspec.Struct, frozen=True):
    """Buyer quotas in force: per sale, per attempt, and per sku (own or the sale's default)."""

    sale: int | None = None
    attempt: int | None = None
    sku: int | None = None
    skus: Mapping[str, int] = {}

    @classmethod
    def of(cls, per_buyer: PerBuyer, skus: Mapping[str, Sku]) -> Limits:
        """Take the limits of a configured sale."""
        own = {sku.id: sku.per_buyer for sku in skus.values() if sku.per_buyer is not None}
        return cls(per_buyer.sale, per_buyer.attempt, per_buyer.sku, own)

    def of_sku(self, sku: str) -> int | None:
        """The quota of one sku: its own, else the default."""
        return self.skus.get(sku, self.sku)

    def highest(self, other: Limits) -> Limits:
        """The higher of each; no limit is the highest (I5, protocol.md 4.2)."""
        return Limits(
            _highest(self.sale, other.sale),
            _highest(self.attempt, other.attempt),
            _highest(self.sku, other.sku),
            {
                sku: limit
                for sku in {*self.skus, *other.skus}
                if (limit := _highest(self.of_sku(sku), other.of_sku(sku))) is not None
            },
        )


def _highest(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)


class SaleRow(msgspec.Struct, frozen=True):
    """One row of ``sales``, typed. Times are ledger milliseconds."""

    sid: int
    environment: str
    sale: str
    run: int
    state: SaleState
    epoch: int
    kind: Kind
    deduct: str
    journal: str
    config_mode: str
    requested: str
    fuse: str | None
    effective: str
    version: int
    opens_at_ms: int | None
    closes_at_ms: int | None
    limits: Limits
    limits_max: Limits


_COLUMNS = [column for column in schema.sales.c if column.name != "created_at_ms"]
_LIMITS = msgspec.json.Decoder(Limits)
_ROW: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    GenericAlias(tuple, (*get_type_hints(SaleRow).values(),))
)


def _row(row: sa.Row[Any]) -> SaleRow:
    values = dict(row._mapping)
    values["state"] = SaleState(values["state"])
    values["kind"] = Kind(values["kind"])
    for name in ("limits", "limits_max"):
        values[name] = _LIMITS.decode(values[name])
    return SaleRow(**values)


def judge(row: SaleRow, now_ms: int) -> Rejection | None:
    """Judge state, mode and window before anything else; ``None`` lets attempts in.

    The core calls this before the first filter and again inside the accept transaction, so no
    list of gates can forget it (S0-62: each reason has its own code).
    """
    if row.state in (SaleState.CREATED, SaleState.WARMED):
        return Rejection(Code.NOT_STARTED, _starts_at(row))
    if row.state is SaleState.ENDED:
        return Rejection(Code.ENDED)
    if row.state is SaleState.PAUSED:
        return Rejection(Code.CLOSED, {"reason": "paused"})
    if row.effective == _MODE_CLOSED:
        return Rejection(Code.CLOSED, {"reason": "mode"})
    if row.opens_at_ms is not None and now_ms < row.opens_at_ms:
        return Rejection(Code.NOT_STARTED, _starts_at(row))
    if row.closes_at_ms is not None and now_ms >= row.closes_at_ms:
        return Rejection(Code.ENDED)
    return None


def _starts_at(row: SaleRow) -> dict[str, Any]:
    if row.opens_at_ms is None:
        return {}
    at = datetime.fromtimestamp(row.opens_at_ms / 1000, UTC)
    return {"starts_at": at.isoformat().replace("+00:00", "Z")}


def load(connection: sa.Connection, sid: int) -> SaleRow:
    """Read one row by its number (it exists: rows are never removed while open)."""
    sql = queries.load(connection.dialect.name)
    (text,) = queries.run(connection, sql["read_control"], (sid,)).fetchone()
    return SaleRow(*_ROW.decode(text))


def find(connection: sa.Connection, environment: str, sale: str) -> SaleRow | None:
    """Read the current run of a sale."""
    table = schema.sales
    found = connection.execute(
        sa.select(*_COLUMNS)
        .where(table.c.environment == environment, table.c.sale == sale)
        .order_by(table.c.run.desc())
        .limit(1)
    ).one_or_none()
    return None if found is None else _row(found)


def load_all(connection: sa.Connection, environment: str) -> list[SaleRow]:
    """Read the current run of every sale of an environment, by sale id."""
    table = schema.sales
    rows = connection.execute(
        sa.select(*_COLUMNS).where(table.c.environment == environment).order_by(table.c.run)
    )
    newest = {row.sale: _row(row) for row in rows}
    return [newest[sale] for sale in sorted(newest)]


def load_skus(connection: sa.Connection, row: SaleRow) -> dict[str, Sku]:
    """Read the skus of a sale; ``units`` is the ledger's total now."""
    table = schema.stock
    rows = connection.execute(sa.select(table).where(table.c.sid == row.sid).order_by(table.c.sku))
    return {
        r.sku: Sku(r.sku, r.total, row.limits.skus.get(r.sku), r.price_minor, r.currency)
        for r in rows
    }


def create(
    connection: sa.Connection,
    sale: Sale,
    *,
    run: int,
    kind: Kind,
    deduct: str,
    journal: str,
    actor: str,
    now_ms: int,
) -> SaleRow:
    """Write a new run with all its units unallocated; the row that is there already wins.

    Idempotent: the same (environment, sale, run) twice is once, and nothing is overwritten.

    Raises:
        ConfigError: an earlier run of the sale is not ended; two runs must not sell at once.
    """
    found = find(connection, sale.environment, sale.id)
    if found is not None and found.run >= run:
        return found
    if found is not None and found.state is not SaleState.ENDED:
        raise ConfigError(
            f"sale {sale.id}: run {found.run} is {found.state}; end it before run {run} is created"
        )
    limits = msgspec.json.encode(Limits.of(sale.per_buyer, sale.skus)).decode()
    sid = connection.execute(
        schema.sales.insert().returning(schema.sales.c.sid),
        {
            "environment": sale.environment,
            "sale": sale.id,
            "run": run,
            "state": SaleState.CREATED,
            "epoch": schema.EPOCH_NONE,
            "kind": kind,
            "deduct": deduct,
            "journal": journal,
            "config_mode": sale.mode,
            "requested": sale.mode,
            "fuse": None,
            "effective": sale.mode,
            "version": 1,
            "opens_at_ms": sale.opens_at_ms,
            "closes_at_ms": sale.closes_at_ms,
            "limits": limits,
            "limits_max": limits,
            "created_at_ms": now_ms,
        },
    ).scalar_one()
    connection.execute(
        schema.stock.insert(),
        [
            {
                "sid": sid,
                "sku": sku.id,
                "total": sku.units,
                "unallocated": sku.units,
                "suspense": 0,
                "wanted": 0,
                "price_minor": sku.price_minor,
                "currency": sku.currency,
            }
            for sku in sale.skus.values()
        ],
    )
    write_audit(connection, sid, actor, "sale.create", {"run": run, "mode": sale.mode}, now_ms)
    return load(connection, sid)


def set_state(
    connection: sa.Connection,
    sid: int,
    *,
    allowed: Sequence[SaleState],
    to: SaleState,
    actor: str,
    now_ms: int,
    epoch: int | None = None,
) -> SaleRow | None:
    """Compare and set the sale's state (and its first epoch); ``None`` when it was another.

    Raises the version, so that no accept decided under the old state can still commit.
    """
    table = schema.sales
    values: dict[str, Any] = {"state": to} | ({} if epoch is None else {"epoch": epoch})
    changed = connection.execute(
        sa.update(table)
        .where(table.c.sid == sid, table.c.state.in_([str(state) for state in allowed]))
        .values(values)
    ).rowcount
    if not changed:
        return None
    write_audit(connection, sid, actor, "sale.state", {"to": str(to)}, now_ms)
    raise_version(connection, sid)
    return load(connection, sid)


def change(
    connection: sa.Connection,
    sid: int,
    *,
    actor: str,
    action: str,
    now_ms: int,
    **values: Any,
) -> SaleRow:
    """Change control values (limits, window, requested, fuse, effective, config_mode).

    New ``limits`` also raise ``limits_max``, the highest in force so far in this run.
    """
    before = load(connection, sid)
    detail = {name: msgspec.to_builtins(value) for name, value in values.items()}
    if "limits" in values:
        limits: Limits = values["limits"]
        values["limits"] = msgspec.json.encode(limits).decode()
        values["limits_max"] = msgspec.json.encode(before.limits_max.highest(limits)).decode()
    connection.execute(sa.update(schema.sales).where(schema.sales.c.sid == sid).values(**values))
    write_audit(connection, sid, actor, action, detail, now_ms)
    raise_version(connection, sid)
    return load(connection, sid)


def raise_version(connection: sa.Connection, sid: int) -> None:
    """Raise the version in the control row and in the sale's grants (docs/decisions/0004)."""
    sales, grants = schema.sales, schema.grants
    connection.execute(
        sa.update(sales).where(sales.c.sid == sid).values(version=sales.c.version + 1)
    )
    version = sa.select(sales.c.version).where(sales.c.sid == sid).scalar_subquery()
    connection.execute(sa.update(grants).where(grants.c.sid == sid).values(version=version))
