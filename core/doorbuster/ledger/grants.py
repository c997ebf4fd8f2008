"""Grants: units the ledger has lent to the places of a backend (protocol.md 5).

One grant per (sale, sku, epoch, place). Units reach it, and leave it, only by fundings
(:mod:`doorbuster.ledger.fundings`); here is who gets how many, and where they are.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import sqlalchemy as sa

from doorbuster.ledger import queries, schema
from doorbuster.ledger.fundings import UNALLOCATED, credited, move, open_fundings, plan
from doorbuster.model import GrantState

__all__ = [
    "Left",
    "Needs",
    "collect",
    "free_units",
    "gather",
    "left",
    "needs",
    "plan_rounds",
    "provision",
    "spread",
]

_RESERVE_SHARE: Final = 0.05  # only for dry places (S0-58, protocol.md 5.3)
_ROUND_SHARE: Final = 0.25  # of what is unallocated, per round of funding (5.3)
_LOW_SHARE: Final = 0.20  # a place below this share of its last tranche is topped up (5.3)


class Left(msgspec.Struct, frozen=True):
    """One ledger read of a sku's units: unallocated, free in grants, and moves still open.

    ``free`` counts grants that are DRAINING too: a hand-over brings their units back, so while
    it runs nobody may say that everything is sold.
    """

    unallocated: int
    free: int
    open_fundings: int

    @property
    def sold_out(self) -> bool:
        """Every unit is consumed and none is under way (protocol.md 7.1, kind H)."""
        return not self.unallocated and not self.free and not self.open_fundings


class Needs(msgspec.Struct, frozen=True):
    """Whether a restock down wants units, some have no grant, and some are under way."""

    wanted: bool
    spare: bool
    moving: bool


def spread(total: int, n: int) -> list[int]:
    """Split ``total`` units over ``n`` places: exact, the remainder on the first ones (F19)."""
    share, rest = divmod(total, n)
    return [share + (1 if i < rest else 0) for i in range(n)]


def provision(
    connection: sa.Connection,
    sid: int,
    epoch: int,
    *,
    places: Sequence[str],
    backend: str,
    version: int,
    everything: bool,
    now_ms: int,
) -> None:
    """Make the grants of an epoch and plan their first fundings. Idempotent by id.

    ``everything``: a router's places get all units, moved and credited at once (5.4). A holder
    gets a first tranche; the reserve stays behind for dry places (5.3).
    """
    stock = connection.execute(
        sa.select(schema.stock).where(schema.stock.c.sid == sid).order_by(schema.stock.c.sku)
    ).all()
    have = {
        (row.place, row.sku)
        for row in connection.execute(
            sa.select(schema.grants).where(
                schema.grants.c.sid == sid, schema.grants.c.epoch == epoch
            )
        )
    }
    rows = [
        {
            "sid": sid,
            "epoch": epoch,
            "place": place,
            "sku": row.sku,
            "backend": backend,
            "quantity": 0,
            "consumed": 0,
            "state": GrantState.ACTIVE,
            "version": version,
        }
        for place in places
        for row in stock
        if (place, row.sku) not in have
    ]
    if rows:
        connection.execute(schema.grants.insert(), rows)
    for row in stock:
        amount = row.unallocated if everything else _round(row.unallocated, row.total, len(places))
        for place, n in zip(places, spread(amount, len(places)), strict=True):
            funding_id = f"warmup:{sid}:{epoch}:{row.sku}:{place}"
            if not n or not plan(
                connection,
                funding_id,
                sid=sid,
                epoch=epoch,
                sku=row.sku,
                kind="warmup",
                source=UNALLOCATED,
                target=place,
                units=n,
                now_ms=now_ms,
            ):
                continue
            if everything:
                move(connection, funding_id, None)
                credited(connection, [funding_id])


def _round(unallocated: int, total: int, places: int) -> int:
    """Units of one round of funding: a quarter, at least 1 each, never of the reserve (5.3)."""
    reserve = int(total * _RESERVE_SHARE)
    spendable = max(0, unallocated - reserve)
    return min(spendable, max(places, int(unallocated * _ROUND_SHARE)))


def left(connection: sa.Connection, sid: int) -> dict[str, Left]:
    """Read what is left per sku: the ledger's truth in one snapshot (protocol.md 7.1)."""
    sql = queries.load(connection.dialect.name)
    row = tuple[str, int, int, int]
    rows = queries.read_array(connection, sql["read_left"], (sid, sid, sid), row)
    return {sku: Left(*units) for sku, *units in rows}


def needs(connection: sa.Connection, sid: int) -> Needs:
    """Read whether there is anything to do for role ``topup``."""
    sql = queries.load(connection.dialect.name)
    found = queries.run(connection, sql["read_needs"], (sid, sid, sid)).fetchone()
    return Needs(*map(bool, found))


def free_units(connection: sa.Connection, sid: int, epoch: int) -> dict[tuple[str, str], int]:
    """Free units of each ACTIVE grant, by (place, sku)."""
    grants = schema.grants
    return {
        (row.place, row.sku): row.free
        for row in connection.execute(
            sa.select(
                grants.c.place, grants.c.sku, (grants.c.quantity - grants.c.consumed).label("free")
            )
            .where(
                grants.c.sid == sid,
                grants.c.epoch == epoch,
                grants.c.state == GrantState.ACTIVE,
            )
            .order_by(grants.c.place, grants.c.sku)
        )
    }


# ------------------------------------------------------------------ routers: ledger rows only
def gather(
    connection: sa.Connection,
    sid: int,
    epoch: int,
    wants: Mapping[tuple[str, str], int],
    now_ms: int,
) -> int:
    """Bring units to dry places of a router: one ledger transfer per donor (5.2, 5.3, D10).

    ``wants`` is units by (place, sku). Unallocated units (the reserve too) come first, then the
    richest places. A place gets a little more than it asked, so that it does not ask at once
    again. A place that has enough by now, or whose grant is not ACTIVE, gets nothing. Answers
    how many units moved; a call that moves nothing writes nothing.
    """
    free = free_units(connection, sid, epoch)
    spare = _unallocated(connection, sid)
    places = max(1, len({place for place, _ in free}))
    moved = 0
    for (place, sku), units in sorted(wants.items()):
        if free.get((place, sku), units) >= units:
            continue
        rich = sorted(
            ((n, donor) for (donor, s), n in free.items() if s == sku and donor != place and n),
            key=lambda pair: (-pair[0], pair[1]),
        )
        more = sum(n for n, _ in rich) // (4 * places)
        ask = max(units - free[place, sku], more)
        donors = [(spare.get(sku, 0), UNALLOCATED)]
        donors += rich
        for n, source in donors:
            take = min(ask, n)
            if not take:
                continue
            _move_now(connection, sid, epoch, sku, source, place, take, now_ms)
            ask -= take
            moved += take
            free[place, sku] += take
            if source == UNALLOCATED:
                spare[sku] -= take
            else:
                free[source, sku] -= take
    return moved


def collect(
    connection: sa.Connection, sid: int, epoch: int, sku: str, units: int, now_ms: int
) -> int:
    """Bring up to ``units`` free units of a router's places back to unallocated (5.5)."""
    got = 0
    for (place, s), n in free_units(connection, sid, epoch).items():
        take = min(n, units - got)
        if s == sku and take > 0:
            _move_now(connection, sid, epoch, sku, place, UNALLOCATED, take, now_ms)
            got += take
    return got


def _unallocated(connection: sa.Connection, sid: int) -> dict[str, int]:
    stock = schema.stock
    query = sa.select(stock.c.sku, stock.c.unallocated).where(stock.c.sid == sid)
    return {row.sku: row.unallocated for row in connection.execute(query)}


def _move_now(
    connection: sa.Connection,
    sid: int,
    epoch: int,
    sku: str,
    source: str,
    target: str,
    units: int,
    now_ms: int,
) -> None:
    """Plan, move and credit in one transaction: both ends are only ledger rows."""
    funding_id = f"gather:{uuid.uuid4().hex}"
    plan(
        connection,
        funding_id,
        sid=sid,
        epoch=epoch,
        sku=sku,
        kind="gather",
        source=source,
        target=target,
        units=units,
        now_ms=now_ms,
    )
    move(connection, funding_id, None)
    credited(connection, [funding_id])


# ------------------------------------------------------------------ holders: rounds of funding
def plan_rounds(connection: sa.Connection, sid: int, epoch: int, *, now_ms: int) -> list[str]:
    """Plan top-ups for places that ran low, from what is unallocated beyond the reserve (5.3).

    What a restock down still wants is not handed out.
    """
    busy = {(row.sku, row.target) for row in open_fundings(connection, sid)}
    free = free_units(connection, sid, epoch)
    places = sorted({place for place, _ in free})
    planned: list[str] = []
    for row in connection.execute(sa.select(schema.stock).where(schema.stock.c.sid == sid)).all():
        amount = _round(max(0, row.unallocated - row.wanted), row.total, len(places))
        if not amount or not places:
            continue
        tranche = max(1, amount // len(places))
        low = [
            place
            for place in places
            if free[place, row.sku] <= tranche * _LOW_SHARE and (row.sku, place) not in busy
        ]
        shares = spread(min(amount, tranche * len(low)), len(low)) if low else []
        for place, n in zip(low, shares, strict=True):
            funding_id = f"topup:{uuid.uuid4().hex}"
            if n and plan(
                connection,
                funding_id,
                sid=sid,
                epoch=epoch,
                sku=row.sku,
                kind="topup",
                source=UNALLOCATED,
                target=place,
                units=n,
                now_ms=now_ms,
            ):
                planned.append(funding_id)
    return planned
