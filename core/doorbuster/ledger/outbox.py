"""From accepted to created: workers lease committed batches and move intents forward.

The lease is only economy (S0-30, O4); correctness is the compare-and-set RESERVED -> CREATED
and the unique order_no. A batch is done when none of its intents is RESERVED (protocol.md 4.5),
or when those that are lie in a dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from doorbuster.errors import ContractError
from doorbuster.identity import parse_lines
from doorbuster.ledger import queries, schema
from doorbuster.model import Attempt, IntentState, Reservation, Sale
from doorbuster.outcomes import Persisted

__all__ = [
    "Claim",
    "CreatingTransaction",
    "claim",
    "dead_letter",
    "is_pending",
    "lease_over",
    "mark_created",
    "pending",
    "persist_of",
    "reservations_of",
    "reserved",
    "settle",
]


_RESERVED: Final = str(IntentState.RESERVED)
_CREATED: Final = str(IntentState.CREATED)
_LEASE_MAX_MS: Final = 60_000  # no process leases for longer, whatever its settings say


class Claim(msgspec.Struct, frozen=True):
    """A leased batch: its sale and how many intents it had."""

    batch: int
    sid: int
    n: int
    tries: int
    persist: str


def lease_over(until_ms: sa.Column[int], now_ms: int, lease_ms: int) -> sa.ColumnElement[bool]:
    """Whether a lease is over: its time has come, or it ends later than any given now would.

    The second is a clock that was set back (Y9); a lease is only economy, so two workers of one
    batch cost nothing but work.
    """
    return sa.or_(until_ms <= now_ms, until_ms > _latest(now_ms, lease_ms))


def _latest(now_ms: int, lease_ms: int) -> int:
    """The latest end of a lease that is given now."""
    return now_ms + max(lease_ms, _LEASE_MAX_MS)


def persist_of(connection: sa.Connection, sid: int, buyer: str, request_id: str) -> str | None:
    """The plugin that writes the order of an accepted attempt; ``None`` for no such attempt."""
    intents, table = schema.intents, schema.outbox
    found = connection.execute(
        sa.select(table.c.persist)
        .join(intents, intents.c.batch == table.c.batch)
        .where(intents.c.sid == sid, intents.c.buyer == buyer, intents.c.request_id == request_id)
    ).scalar_one_or_none()
    return None if found is None else str(found)


def claim(
    connection: sa.Connection,
    *,
    owner: str,
    rows: int,
    now_ms: int,
    lease_ms: int,
    sids: Sequence[int] | None = None,
) -> list[Claim]:
    """Lease open batches, oldest first, up to about ``rows`` intents, at least one batch.

    ``sids`` are the sales the caller can persist: it must not keep others' batches from those
    who can (another environment's, another node's config). ``None``: all.
    """
    sql = queries.load(connection.dialect.name)
    mine = None if sids is None else queries.array(list(sids))
    late_ms = _latest(now_ms, lease_ms)
    found = queries.run(
        connection, sql["open_batches"], (now_ms, late_ms, mine, mine, max(1, min(rows, 1000)))
    )
    claims: list[Claim] = []
    total = 0
    for batch, sid, n, tries, persist in found.fetchall():
        if claims and total + n > rows:
            break
        claims.append(Claim(batch, sid, n, tries, persist))
        total += n
    if claims:
        batches = queries.array([claim.batch for claim in claims])
        queries.run(connection, sql["lease_batches"], (now_ms + lease_ms, owner, batches))
    return claims


def reservations_of(
    connection: sa.Connection, batches: Sequence[int], sale: Sale
) -> list[Reservation]:
    """Read the RESERVED intents of one run's batches, oldest first, without dead letters."""
    sql = queries.load(connection.dialect.name)
    row = tuple[int, str, str, str, str, int, str]
    rows = queries.read_array(connection, sql["reserved_intents"], (queries.array(batches),), row)
    return [
        Reservation(
            Attempt(
                parse_lines(lines),
                buyer,
                request_id,
                sale.id,
                None,
                {},
                None,
                order_no,
                lines,
                sale.run,
            ),
            place,
            order_no,
            epoch,
            number,
        )
        for number, buyer, request_id, order_no, lines, epoch, place in rows
    ]


def reserved(connection: sa.Connection, batches: Sequence[int]) -> int:
    """Count intents of batches that are still RESERVED."""
    table = schema.intents
    return int(
        connection.execute(
            sa.select(sa.func.count()).where(
                table.c.batch.in_(list(batches)), table.c.state == IntentState.RESERVED
            )
        ).scalar_one()
    )


def settle(connection: sa.Connection, batches: Sequence[int]) -> int:
    """Close batches none of whose intents still waits; answer how many were closed."""
    if not batches:
        return 0
    sql = queries.load(connection.dialect.name)
    found = queries.run(connection, sql["settle_batches"], (queries.array(list(batches)),))
    return int(found.rowcount)


def is_pending(connection: sa.Connection, sids: Sequence[int] | None = None) -> bool:
    """Whether any batch is not done, of some sales or of all."""
    table = schema.outbox
    mine = sa.true() if sids is None else table.c.sid.in_(list(sids))
    query = sa.select(table.c.batch).where(table.c.done == 0, mine).limit(1)
    return connection.execute(query).first() is not None


def pending(connection: sa.Connection, sids: Sequence[int] | None = None) -> int:
    """Count batches that are not done, of some sales or of all."""
    table = schema.outbox
    query = sa.select(sa.func.count()).where(table.c.done == 0)
    if sids is not None:
        query = query.where(table.c.sid.in_(list(sids)))
    return int(connection.execute(query).scalar_one())


def mark_created(connection: sa.Connection, reservations: Sequence[Reservation]) -> None:
    """RESERVED -> CREATED after a persist plugin of its own answered (design: order states).

    An intent that is RETURNING meanwhile stays so: ``void`` wins (protocol.md 4.5). What is moved
    here is marked ``away``: its order is not in this database.
    """
    if reservations:
        sql = queries.load(connection.dialect.name)
        queries.run(connection, sql["create_away"], (_ids(reservations),))


def dead_letter(
    connection: sa.Connection, sid: int, item: Reservation, reason: str, now_ms: int
) -> bool:
    """Keep a REFUSED order for a person; the intent stays RESERVED. Once per order_no.

    False when nothing was written: it is kept already, or the intent is not RESERVED, because
    its return has won and the refusal was the void's.
    """
    table, intents = schema.dead_letters, schema.intents
    waits = connection.execute(
        sa.select(intents.c.id).where(
            intents.c.id == item.intent,
            intents.c.state == IntentState.RESERVED,
            ~sa.exists().where(table.c.order_no == item.order_no),
        )
    ).first()
    if waits is None:
        return False
    connection.execute(
        table.insert(),
        {
            "order_no": item.order_no,
            "sid": sid,
            "intent": item.intent,
            "reason": reason[:200],
            "at_ms": now_ms,
        },
    )
    return True


class CreatingTransaction:
    """Implements :class:`doorbuster.context.Creating` on one connection."""

    def __init__(self, connection: sa.Connection, reservations: Sequence[Reservation]) -> None:
        """Move what is RESERVED to CREATED; answer the rest from its state.

        Raises:
            ContractError: a reservation does not carry the number of its intent.
        """
        self._connection = connection
        sql = queries.load(connection.dialect.name)
        ids = _ids(reservations)
        before = dict(queries.read_array(connection, sql["intent_states"], (ids,), tuple[int, str]))
        lost = [item.order_no for item in reservations if item.intent not in before]
        if lost:
            raise ContractError(f"{len(lost)} reservations name no intent, the first: {lost[0]}")
        queries.run(connection, sql["create_intents"], (ids,))
        self.won: list[Reservation] = []
        self.answers: list[Persisted] = []
        for item in reservations:
            state = before[item.intent]
            self.answers.append(_answer(state))
            if state == _RESERVED:
                self.won.append(item)
                before[item.intent] = _CREATED  # a broker may deliver it twice in one batch

    def execute(self, statement: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute ``statement`` for ``rows``, which have the same keys; nothing for no rows.

        A plain insert goes in bulk, compiled once for all rows (twice as fast as Core's own).
        """
        if not rows:
            return
        connection = self._connection
        plain = _plain_insert(connection, statement, list(rows[0]))
        if plain is None:
            connection.execute(statement, list(rows))
        else:
            text, keys = plain
            queries.insert_many(connection, text, list(map(itemgetter(*keys), rows)))


def _plain_insert(
    connection: sa.Connection, statement: Any, keys: Sequence[str]
) -> tuple[str, list[str]] | None:
    """The text of an insert whose parameters are just ``keys`` as they are, and their order."""
    if not isinstance(statement, sa.Insert):
        return None
    dialect = connection.dialect
    compiled = statement.compile(connection, column_keys=keys)
    as_is = all(
        statement.table.c[key].type.dialect_impl(dialect).bind_processor(dialect) is None
        for key in keys
    )
    order = list(compiled.positiontup or ())
    same = set(order) == set(keys) and len(order) > 1  # of one key itemgetter makes no tuple
    return (str(compiled), order) if as_is and same else None


def _ids(reservations: Sequence[Reservation]) -> str:
    return queries.array(sorted(item.intent for item in reservations))


def _answer(state: str) -> Persisted:
    """RESERVED was moved now; an order was written before, or never will be (protocol.md 4.5)."""
    if state == IntentState.RESERVED:
        return Persisted.CREATED
    written = (IntentState.CREATED, IntentState.PAID)
    return Persisted.EXISTS if state in written else Persisted.REFUSED
