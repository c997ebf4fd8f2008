"""What the rows of one sale say, read for :mod:`doorbuster.ledger.invariants`.

Every reader here is one pass over a table, or a look-up by an index for what a pass found wrong.
A pass filters by ``sid + 0``, which no index serves: half a million rows are read in the order
they lie in, not one by one through an index (0.5 s against 1.3 s, measured).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

import sqlalchemy as sa

from doorbuster.identity import parse_lines
from doorbuster.ledger import schema
from doorbuster.ledger.control import SaleRow
from doorbuster.ledger.counts import LIVE
from doorbuster.ledger.stored import units
from doorbuster.model import PER_SALE, IntentState

__all__ = [
    "GONE_ORDERS",
    "End",
    "Waiting",
    "balances",
    "ends",
    "grant_rows",
    "live_units",
    "lost_returns",
    "name_of",
    "orphan_orders",
    "orphan_releases",
    "repeated_numbers",
    "sample",
    "states",
    "stock_rows",
    "tally",
    "waiting",
]

GONE_ORDERS: Final = ("VOID", "CANCELLED")
"""States of an order row that count as no order (protocol.md 4.5)."""

_Query: TypeAlias = Any  # a select of any columns: SQLAlchemy's type counts them
_SAMPLE: Final = 3  # order numbers that a sentence names
_intents, _orders, _releases = schema.intents, schema.orders, schema.releases

Balance = tuple[str, Mapping[str, int], Mapping[str, int]]
"""A buyer, the units each quota row says, the units the buyer's live intents hold; by scope."""


class End(NamedTuple):
    """How ``n`` intents ended up: their state, their order's, their release's.

    ``away``: the persist plugin keeps their orders outside this database, and answered for them.
    """

    state: IntentState
    order: str | None
    order_matches: bool | None
    release: str | None
    release_matches: bool | None
    away: bool
    n: int

    @property
    def has_order(self) -> bool:
        """Whether an order row counts."""
        return self.order is not None and self.order not in GONE_ORDERS


class Waiting(NamedTuple):
    """RESERVED intents without a dead letter: nobody will persist them; they wait too long."""

    stuck: int
    late: int


def _of(table: sa.Table, sid: int) -> sa.ColumnElement[bool]:
    """Rows of one sale, in the order they lie in (see above)."""
    return table.c.sid + 0 == sid


def stock_rows(connection: sa.Connection, sid: int) -> list[sa.Row[Any]]:
    """The sale's skus."""
    table = schema.stock
    query = sa.select(table).where(table.c.sid == sid).order_by(table.c.sku)
    return list(connection.execute(query).all())


def grant_rows(connection: sa.Connection, sid: int) -> list[sa.Row[Any]]:
    """The sale's grants, of every epoch."""
    table = schema.grants
    order = (table.c.epoch, table.c.place, table.c.sku)
    query = sa.select(table).where(table.c.sid == sid).order_by(*order)
    return list(connection.execute(query).all())


def live_units(connection: sa.Connection, sid: int) -> dict[tuple[int, str, str], int]:
    """Units of live intents by (epoch, place, sku)."""
    table = _intents
    sums: dict[tuple[int, str, str], int] = defaultdict(int)
    for epoch, place, lines, n in connection.execute(
        sa.select(table.c.epoch, table.c.place, table.c.lines, sa.func.count())
        .where(_of(table, sid), table.c.state.in_(LIVE))
        .group_by(table.c.epoch, table.c.place, table.c.lines)
    ):
        for sku, quantity in units(parse_lines(lines)).items():
            sums[epoch, place, sku] += quantity * n
    return dict(sums)


def ends(connection: sa.Connection, sid: int) -> list[End]:
    """Every intent with its order and its release, counted by how they fit together."""
    query = _with_ends(sa.func.count()).where(_of(_intents, sid)).group_by(*_END)
    found: list[End] = []
    for row in connection.execute(query):
        state, order, order_matches, release, release_matches, away, n = tuple(row)
        found.append(
            End(
                IntentState(state),
                order,
                None if order is None else bool(order_matches),
                release,
                None if release is None else bool(release_matches),
                bool(away),
                n,
            )
        )
    return found


_END: Final[Sequence[sa.ColumnElement[Any]]] = (
    _intents.c.state,
    _orders.c.state,
    sa.and_(
        _orders.c.buyer == _intents.c.buyer,
        _orders.c.request_id == _intents.c.request_id,
        _orders.c.lines == _intents.c.lines,
    ),
    _releases.c.state,
    sa.and_(
        _releases.c.lines == _intents.c.lines,
        _releases.c.reason != "",
        _releases.c.actor != "",
    ),
    _intents.c.away,
)


def _with_ends(last: sa.ColumnElement[Any]) -> _Query:
    return sa.select(*_END, last).select_from(
        _intents.outerjoin(_orders, _orders.c.order_no == _intents.c.order_no).outerjoin(
            _releases, _releases.c.order_no == _intents.c.order_no
        )
    )


def sample(connection: sa.Connection, sid: int, end: End) -> list[str]:
    """A few order numbers of ``end``."""
    wanted = (*end[:-2], int(end.away))
    query = _with_ends(_intents.c.order_no).where(
        _of(_intents, sid),
        *[column.is_not_distinct_from(value) for column, value in zip(_END, wanted, strict=True)],
    )
    return [row[-1] for row in connection.execute(query.limit(_SAMPLE))]


def repeated_numbers(connection: sa.Connection, sid: int) -> list[str]:
    """Order numbers that more than one intent has."""
    seen: set[str] = set()
    repeated: list[str] = []
    query = sa.select(_intents.c.order_no).where(_of(_intents, sid))
    for (number,) in _stream(connection, query):
        if number in seen:
            repeated.append(number)
        seen.add(number)
    return repeated


def orphan_orders(connection: sa.Connection, row: SaleRow, explained: int) -> list[str]:
    """Orders of the sale that no intent of any run explains; VOID ones too.

    ``explained`` is how many this run's intents explain: when that is all, none is looked up.
    """
    mine = sa.and_(_orders.c.environment == row.environment, _orders.c.sale == row.sale)
    total = connection.execute(
        sa.select(sa.func.count()).select_from(_orders).where(mine)
    ).scalar_one()
    if total == explained:
        return []
    runs = sa.select(schema.sales.c.sid).where(
        schema.sales.c.environment == row.environment, schema.sales.c.sale == row.sale
    )
    intent = sa.exists().where(
        _intents.c.sid.in_(runs),
        _intents.c.buyer == _orders.c.buyer,
        _intents.c.request_id == _orders.c.request_id,
        _intents.c.order_no == _orders.c.order_no,
    )
    return list(connection.execute(sa.select(_orders.c.order_no).where(mine, ~intent)).scalars())


def orphan_releases(connection: sa.Connection, sid: int, explained: int) -> int:
    """How many releases of the sale have no intent."""
    return tally(connection, _releases, sid) - explained


def tally(
    connection: sa.Connection, table: sa.Table, sid: int, *where: sa.ColumnElement[bool]
) -> int:
    """Count rows of one sale."""
    query = sa.select(sa.func.count()).select_from(table).where(table.c.sid == sid, *where)
    return int(connection.execute(query).scalar_one())


def states(found: Sequence[End]) -> dict[str, int]:
    """How many intents are in each state."""
    sums: dict[str, int] = defaultdict(int)
    for end in found:
        sums[str(end.state)] += end.n
    return dict(sorted(sums.items()))


# ------------------------------------------------------------------ buyers
def balances(connection: sa.Connection, sid: int, *, one_sku: bool) -> Iterator[Balance]:
    """Each buyer's quota rows and live units, by two ordered streams side by side.

    ``one_sku``: such a sale keeps only the scope ``*``, which serves the sku too.
    """
    quotas = schema.quotas
    per_scope: dict[str, tuple[tuple[str, int], ...]] = {}
    held = _stream(
        connection,
        sa.select(_intents.c.buyer, _intents.c.lines)
        .where(_of(_intents, sid), _intents.c.state.in_(LIVE))
        .order_by(_intents.c.buyer),
    )
    said = _stream(
        connection,
        sa.select(quotas.c.buyer, quotas.c.scope, quotas.c.bought)
        .where(quotas.c.sid == sid)
        .order_by(quotas.c.buyer),
    )
    live: Any = next(held, None)
    row: Any = next(said, None)
    while live or row:
        buyer = live[0] if live and (not row or live[0] < row[0]) else row[0]
        bought: dict[str, int] = {}
        while row and row[0] == buyer:
            bought[row[1]] = row[2]
            row = next(said, None)
        sums: dict[str, int] = {}
        while live and live[0] == buyer:
            text = live[1]
            if text not in per_scope:
                per_scope[text] = _scopes(text, one_sku=one_sku)
            for scope, n in per_scope[text]:
                sums[scope] = sums.get(scope, 0) + n
            live = next(held, None)
        yield buyer, bought, sums


def name_of(connection: sa.Connection, sid: int, buyer: str) -> str:
    """How a sentence names a buyer: by one of the buyer's orders."""
    query = sa.select(_intents.c.order_no).where(_intents.c.sid == sid, _intents.c.buyer == buyer)
    number = connection.execute(query.order_by(_intents.c.request_id).limit(1)).scalar()
    return "a buyer without an intent" if number is None else f"the buyer of order {number}"


def _stream(connection: sa.Connection, query: _Query) -> Iterator[Any]:
    """Rows as the driver gives them, one by one: a third of the time of Core's own (measured).

    The caller has read through ``connection`` before, so the snapshot is open.
    """
    cursor: Any = connection.connection.cursor()
    cursor.execute(str(query.compile(connection, compile_kwargs={"literal_binds": True})))
    return cast("Iterator[Any]", cursor)


def _scopes(lines: str, *, one_sku: bool) -> tuple[tuple[str, int], ...]:
    need = units(parse_lines(lines))
    total = (PER_SALE, sum(need.values()))
    return (total,) if one_sku else (total, *need.items())


# ------------------------------------------------------------------ what waits
def waiting(connection: sa.Connection, sid: int, before_ms: int) -> Waiting:
    """RESERVED intents without a dead letter: in no open batch, or older than ``before_ms``."""
    outbox, letters = schema.outbox, schema.dead_letters
    is_stuck = sa.func.coalesce(outbox.c.done, 1) == 1
    query = (
        sa.select(
            sa.func.coalesce(sa.func.sum(sa.case((is_stuck, 1), else_=0)), 0),
            sa.func.coalesce(sa.func.sum(sa.case((_intents.c.at_ms < before_ms, 1), else_=0)), 0),
        )
        .select_from(_intents.outerjoin(outbox, outbox.c.batch == _intents.c.batch))
        .where(
            _of(_intents, sid),
            _intents.c.state == IntentState.RESERVED,
            ~sa.exists().where(letters.c.order_no == _intents.c.order_no),
        )
    )
    return Waiting(*connection.execute(query).one())


def lost_returns(connection: sa.Connection, sid: int) -> list[str]:
    """RETURNING intents that no job of the compensation lane will finish."""
    jobs = schema.compensations
    query = sa.select(_intents.c.order_no).where(
        _of(_intents, sid),
        _intents.c.state == IntentState.RETURNING,
        ~sa.exists().where(jobs.c.order_no == _intents.c.order_no, jobs.c.returned_as.is_not(None)),
    )
    return list(connection.execute(query).scalars())
