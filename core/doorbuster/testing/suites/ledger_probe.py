"""The ledger's sums done again, by a reader that shares no line with the ledger.

Only names of tables and columns are used, through SQLAlchemy, so it reads any database the
ledger runs on. What it checks is protocol.md 8: every unit is in just one term.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from doorbuster.ledger import Ledger

__all__ = ["wrong_sums"]

_HOLDING: Final = ("RESERVED", "CREATED", "PAID", "RETURNING")
_GONE: Final = ("RELEASED", "CANCELLED", "EXPIRED", "REFUNDED")
_COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "stock": ("sku", "total", "unallocated", "suspense", "wanted"),
    "grants": ("epoch", "place", "sku", "quantity", "consumed", "state"),
    "intents": ("buyer", "request_id", "order_no", "lines", "epoch", "place", "state", "batch"),
    "quotas": ("buyer", "scope", "bought"),
    "outbox": ("batch", "n", "done"),
    "releases": ("order_no", "state"),
    "fundings": ("id", "planned", "moved", "state"),
}

_Rows = Mapping[str, Sequence[Any]]


def _query(name: str, columns: Sequence[str]) -> Any:
    table = sa.table(name, sa.column("sid"), *(sa.column(word) for word in columns))
    return sa.select(*(table.c[word] for word in columns)).where(table.c.sid == sa.bindparam("of"))


_QUERIES: Final[Mapping[str, Any]] = {
    name: _query(name, columns) for name, columns in _COLUMNS.items()
}


def wrong_sums(ledger: Ledger, sid: int) -> list[str]:
    """Say what does not add up in one run of a sale, a sentence each; nothing when all does."""
    rows = _read(ledger, sid)
    return [*_units(rows), *_buyers(rows), *_orders(rows), *_batches(rows)]


def _read(ledger: Ledger, sid: int) -> _Rows:
    with ledger.database.read() as connection:
        return {
            name: connection.execute(query, {"of": sid}).all() for name, query in _QUERIES.items()
        }


def _need(lines: str) -> Counter[str]:
    """Units by sku of ``black=2,white=1@team``."""
    need: Counter[str] = Counter()
    for part in lines.split(","):
        sku, amount = part.split("@")[0].split("=")
        need[sku] += int(amount)
    return need


def _units(rows: _Rows) -> list[str]:
    live: Counter[tuple[int, str, str]] = Counter()
    for intent in rows["intents"]:
        if intent.state in _HOLDING:
            for sku, n in _need(intent.lines).items():
                live[intent.epoch, intent.place, sku] += n
    told = []
    free: Counter[str] = Counter()
    consumed: Counter[str] = Counter()
    for grant in rows["grants"]:
        held = live.pop((grant.epoch, grant.place, grant.sku), 0)
        if not 0 <= grant.consumed == held <= grant.quantity:
            told.append(f"{grant}: its intents hold {held}")
        consumed[grant.sku] += grant.consumed
        if grant.state != "CLOSED":
            free[grant.sku] += grant.quantity - grant.consumed
    told += [f"intents hold {n} of no grant at {where}" for where, n in live.items()]
    for stock in rows["stock"]:
        terms = (stock.unallocated, stock.suspense, free[stock.sku], consumed[stock.sku])
        if sum(terms) != stock.total or min(*terms, stock.wanted) < 0:
            told.append(f"{stock.sku}: {' + '.join(map(str, terms))} is not {stock.total}")
    return told + [f"{row}: moved more" for row in rows["fundings"] if row.moved > row.planned]


def _buyers(rows: _Rows) -> list[str]:
    scoped = len(rows["stock"]) > 1  # the sale's scope serves a single sku too
    held: Counter[tuple[str, str]] = Counter()
    for intent in rows["intents"]:
        if intent.state in _HOLDING:
            need = _need(intent.lines)
            held[intent.buyer, "*"] += need.total()
            if scoped:
                held.update({(intent.buyer, sku): n for sku, n in need.items()})
    said = Counter({(row.buyer, row.scope): row.bought for row in rows["quotas"]})
    keys = {*held, *said}
    return [
        f"{key}: quota {said[key]}, intents {held[key]}" for key in keys if said[key] != held[key]
    ]


def _orders(rows: _Rows) -> list[str]:
    numbers = Counter(intent.order_no for intent in rows["intents"])
    told = [f"{n} intents have the number {number}" for number, n in numbers.items() if n > 1]
    ended = {intent.order_no: intent.state for intent in rows["intents"] if intent.state in _GONE}
    released = {row.order_no: row.state for row in rows["releases"]}
    if ended != released:
        told.append(f"returned intents {ended} are not the releases {released}")
    return told


def _batches(rows: _Rows) -> list[str]:
    """Every accepted intent has its batch's row, which counts just them."""
    accepted = Counter(row.batch for row in rows["intents"] if row.state in (*_HOLDING, *_GONE))
    outbox = {row.batch: row.n for row in rows["outbox"]}
    return [] if accepted == outbox else [f"outbox {outbox}, accepted intents {dict(accepted)}"]
