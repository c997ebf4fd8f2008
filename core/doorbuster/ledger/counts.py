"""Count what really happened, from rows alone: orders, units sold, buyers above their limit.

Reports compare these counts with what callers were told. They never read a total that accept
itself keeps (grants, quotas): a count that checks must not come from what it checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec
import sqlalchemy as sa

from doorbuster.identity import parse_lines
from doorbuster.ledger import control, schema
from doorbuster.ledger.control import Limits, SaleRow
from doorbuster.ledger.stored import units
from doorbuster.model import IntentState

__all__ = [
    "LIVE",
    "Unfinished",
    "breaches",
    "orders",
    "released",
    "runs",
    "sold",
    "totals",
    "unfinished",
]

LIVE: Final = (
    IntentState.RESERVED,
    IntentState.CREATED,
    IntentState.PAID,
    IntentState.RETURNING,
)
"""States of an intent whose units are sold: they come back with the release, not before."""

_VOID: Final = "VOID"  # an order row that says: never written, never will be (protocol.md 4.5)
_CHUNK: Final = 500  # order numbers per question


class Unfinished(msgspec.Struct, frozen=True):
    """Work of one run that is not done: open batches and jobs of the compensation lane."""

    environment: str
    sale: str
    run: int
    batches: int
    jobs: int


def runs(connection: sa.Connection, environment: str | None = None) -> list[SaleRow]:
    """Read every run of every sale, of one environment or of all, by environment, id and run."""
    table = schema.sales
    query = sa.select(table.c.sid).order_by(table.c.environment, table.c.sale, table.c.run)
    if environment is not None:
        query = query.where(table.c.environment == environment)
    return [control.load(connection, sid) for sid in connection.execute(query).scalars().all()]


def totals(connection: sa.Connection, row: SaleRow) -> dict[str, int]:
    """Read the total units of each sku of a run, as they are now."""
    table = schema.stock
    found = connection.execute(sa.select(table.c.sku, table.c.total).where(table.c.sid == row.sid))
    return {sku: total for sku, total in found}  # noqa: C416 - a Row is no tuple to mypy


def sold(connection: sa.Connection, row: SaleRow) -> dict[str, int]:
    """Sum the units of a run's live intents, by sku."""
    table = schema.intents
    query = (
        sa.select(table.c.lines, sa.func.count())
        .where(table.c.sid == row.sid, table.c.state.in_(LIVE))
        .group_by(table.c.lines)
    )
    sums: Counter[str] = Counter()
    for lines, n in connection.execute(query):
        for sku, quantity in units(parse_lines(lines)).items():
            sums[sku] += quantity * n
    return dict(sums)


def breaches(connection: sa.Connection, row: SaleRow) -> int:
    """Count buyers whose live units pass the highest limit in force so far in the run (I5)."""
    table, limits = schema.intents, row.limits_max
    if limits.sale is None and limits.attempt is None and limits.sku is None and not limits.skus:
        return 0
    found = connection.execute(
        sa.select(table.c.buyer, table.c.lines)
        .where(table.c.sid == row.sid, table.c.state.in_(LIVE))
        .order_by(table.c.buyer)
        .execution_options(yield_per=10_000)
    )
    return sum(
        _is_above(limits, [lines for _, lines in group])
        for _, group in groupby(found, key=lambda intent: intent.buyer)
    )


def _is_above(limits: Limits, texts: Sequence[str]) -> bool:
    sums: Counter[str] = Counter()
    largest = 0
    for text in texts:
        bought = units(parse_lines(text))
        sums.update(bought)
        largest = max(largest, sum(bought.values()))
    return (
        _over(sums.total(), limits.sale)
        or _over(largest, limits.attempt)
        or any(_over(n, limits.of_sku(sku)) for sku, n in sums.items())
    )


def _over(bought: int, limit: int | None) -> bool:
    return limit is not None and bought > limit


def orders(connection: sa.Connection, row: SaleRow) -> Iterator[tuple[str, str, str]]:
    """Read (buyer, request_id, order_no) of the orders of one run; not the VOID tombstones.

    An order names its sale but not its run, so those that an intent of another run explains
    are left out; what no intent explains at all is kept, for somebody has to see it. Where a
    persist plugin keeps the orders elsewhere, its word is the order: the intent is CREATED.
    """
    table, intents, sales = schema.orders, schema.intents, schema.sales
    elsewhere = (
        sa.select(intents.c.order_no)
        .join(sales, sales.c.sid == intents.c.sid)
        .where(
            sales.c.environment == row.environment,
            sales.c.sale == row.sale,
            sales.c.run != row.run,
        )
    )
    query = (
        sa.select(table.c.buyer, table.c.request_id, table.c.order_no)
        .where(
            table.c.environment == row.environment,
            table.c.sale == row.sale,
            table.c.state != _VOID,
            table.c.order_no.not_in(elsewhere),
        )
        .execution_options(yield_per=10_000)
    )
    yield from map(_three, connection.execute(query))
    away = sa.select(intents.c.buyer, intents.c.request_id, intents.c.order_no).where(
        intents.c.sid == row.sid,
        intents.c.away == 1,
        intents.c.state.in_((IntentState.CREATED, IntentState.PAID)),
        ~sa.exists().where(table.c.order_no == intents.c.order_no),
    )
    yield from map(_three, connection.execute(away))


def _three(row: sa.Row[str, str, str]) -> tuple[str, str, str]:
    buyer, request_id, order_no = row
    return buyer, request_id, order_no


def released(connection: sa.Connection, order_nos: Iterable[str]) -> set[str]:
    """Answer those of ``order_nos`` that have an audited release."""
    table, asked = schema.releases, list(order_nos)
    found: set[str] = set()
    for start in range(0, len(asked), _CHUNK):
        chunk = asked[start : start + _CHUNK]
        query = sa.select(table.c.order_no).where(table.c.order_no.in_(chunk))
        found.update(connection.execute(query).scalars())
    return found


def unfinished(connection: sa.Connection, environment: str) -> list[Unfinished]:
    """Read the work that is not done, of every run of an environment that has some."""
    outbox, lane = schema.outbox, schema.compensations
    batches = _per_sale(connection, outbox, outbox.c.done == 0)
    jobs = _per_sale(connection, lane)
    return [
        Unfinished(
            row.environment, row.sale, row.run, batches.get(row.sid, 0), jobs.get(row.sid, 0)
        )
        for row in runs(connection, environment)
        if row.sid in batches or row.sid in jobs
    ]


def _per_sale(
    connection: sa.Connection, table: sa.Table, *where: sa.ColumnElement[bool]
) -> dict[int, int]:
    query = sa.select(table.c.sid, sa.func.count()).where(*where).group_by(table.c.sid)
    return {sid: n for sid, n in connection.execute(query)}  # noqa: C416 - as above
