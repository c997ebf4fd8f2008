"""I1-I7 as executable checks of one sale's rows: what tests, ``reconcile`` and drills run.

A check reads what is there, in one snapshot, and trusts no counter that the transactions keep:
units are counted again from the intents. design.md 5 has the laws; each false one comes with a
sentence that says what a person has to look at. Sentences name order numbers, never buyers:
they end up in alarms and logs (X9).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from doorbuster.ledger import evidence, outbox, schema
from doorbuster.ledger.control import SaleRow
from doorbuster.ledger.evidence import End
from doorbuster.ledger.room import lowest
from doorbuster.model import PER_SALE, GrantState, IntentState, SaleState

__all__ = ["INVARIANTS", "Report", "check"]

INVARIANTS: Final = ("I1", "I2", "I3", "I4", "I5", "I6", "I7")
_MUST_BALANCE: Final = INVARIANTS[:6]  # I7 is about time: a backlog is late, not wrong
_TOLD_MAX: Final = 5  # sentences per kind of violation; the rest is a number

_ORDERED: Final = (IntentState.CREATED, IntentState.PAID)
_RETURNED: Final = (
    IntentState.RELEASED,
    IntentState.CANCELLED,
    IntentState.EXPIRED,
    IntentState.REFUNDED,
)


class Report(msgspec.Struct, frozen=True):
    """What the rows of one sale's run say.

    ``drift`` is units: what grants say is consumed against what live intents hold, summed over
    grants without sign, plus what is missing from or too much in the equation of I2.
    ``equation`` has one row per sku: sku, total, unallocated, suspense, free, consumed, accepted,
    wanted. ``grants`` has one row per grant: epoch, place, sku, backend, state, quantity,
    consumed, free, live. ``counts``: intents (by state), orders, releases, pending_batches,
    reserved, returning, undo_pending, dead_letters.
    """

    sale: str
    run: int
    epoch: int
    state: SaleState
    balanced: bool
    drift: int
    invariants: Mapping[str, bool]
    violations: Sequence[str]
    equation: Sequence[Mapping[str, Any]]
    grants: Sequence[Mapping[str, Any]]
    counts: Mapping[str, Any]


def check(connection: sa.Connection, row: SaleRow, *, now_ms: int, settle_max_s: float) -> Report:
    """Check one run of one sale in the snapshot that ``connection`` reads."""
    work = _Check(connection, row)
    work.units()
    ends = evidence.ends(connection, row.sid)
    work.orders(ends)
    work.releases(ends)
    work.quotas()
    work.waiting(now_ms - int(settle_max_s * 1000))
    invariants = {name: name not in work.broken for name in INVARIANTS}
    return Report(
        sale=row.sale,
        run=row.run,
        epoch=row.epoch,
        state=row.state,
        balanced=all(invariants[name] for name in _MUST_BALANCE) and not work.drift,
        drift=work.drift,
        invariants=invariants,
        violations=work.violations,
        equation=work.equation,
        grants=work.grants,
        counts=_counts(connection, row, ends),
    )


def _counts(connection: sa.Connection, row: SaleRow, ends: Sequence[End]) -> dict[str, Any]:
    states = evidence.states(ends)
    jobs = schema.compensations
    undo = jobs.c.returned_as.is_(None)
    return {
        "intents": states,
        "orders": sum(end.n for end in ends if end.has_order),
        "releases": evidence.tally(connection, schema.releases, row.sid),
        "pending_batches": outbox.pending(connection, [row.sid]),
        "reserved": states.get(IntentState.RESERVED, 0),
        "returning": states.get(IntentState.RETURNING, 0),
        "undo_pending": evidence.tally(connection, jobs, row.sid, undo),
        "dead_letters": evidence.tally(connection, schema.dead_letters, row.sid),
    }


class _Check:
    """One run of the checks: what is broken, and the sentences about it."""

    def __init__(self, connection: sa.Connection, row: SaleRow) -> None:
        self._connection = connection
        self._row = row
        self._skus: list[str] = []
        self.broken: set[str] = set()
        self.violations: list[str] = []
        self.drift = 0
        self.equation: list[dict[str, Any]] = []
        self.grants: list[dict[str, Any]] = []

    def _tell(self, law: str, sentence: str) -> None:
        self.broken.add(law)
        self.violations.append(f"{law}: {sentence}")

    def _tell_all(self, law: str, sentences: Sequence[str]) -> None:
        for sentence in sentences[:_TOLD_MAX]:
            self._tell(law, sentence)
        if len(sentences) > _TOLD_MAX:
            self._tell(law, f"and {len(sentences) - _TOLD_MAX} more like this")

    # -------------------------------------------------------------- I1, I2
    def units(self) -> None:
        """I1 accepted <= total; I2 every unit is in exactly one term, and no term is negative."""
        live = evidence.live_units(self._connection, self._row.sid)
        for grant in evidence.grant_rows(self._connection, self._row.sid):
            self._grant(grant, live.pop((grant.epoch, grant.place, grant.sku), 0))
        for (epoch, place, sku), n in sorted(live.items()):
            self.drift += n
            self.violations.append(
                f"drift: live intents hold {n} of {sku} at {place} in epoch {epoch}, "
                "where there is no grant"
            )
        for stock in evidence.stock_rows(self._connection, self._row.sid):
            self._skus.append(stock.sku)
            self._sku(stock, sum(n for (_, _, sku), n in live.items() if sku == stock.sku))

    def _grant(self, grant: sa.Row[Any], live: int) -> None:
        free = grant.quantity - grant.consumed
        where = f"grant {grant.place}/{grant.sku} of epoch {grant.epoch}"
        if free < 0 or grant.consumed < 0:
            self._tell("I2", f"{where} has quantity {grant.quantity}, consumed {grant.consumed}")
        if grant.consumed != live:
            self.drift += abs(grant.consumed - live)
            self.violations.append(
                f"drift: {where} says {grant.consumed} consumed, its live intents hold {live}"
            )
        self.grants.append(
            {
                "epoch": grant.epoch,
                "place": grant.place,
                "sku": grant.sku,
                "backend": grant.backend,
                "state": grant.state,
                "quantity": grant.quantity,
                "consumed": grant.consumed,
                "free": free,
                "live": live,
            }
        )

    def _sku(self, stock: sa.Row[Any], elsewhere: int) -> None:
        mine = [grant for grant in self.grants if grant["sku"] == stock.sku]
        free = sum(grant["free"] for grant in mine if grant["state"] != GrantState.CLOSED)
        consumed = sum(grant["consumed"] for grant in mine)
        accepted = sum(grant["live"] for grant in mine) + elsewhere
        if accepted > stock.total:
            self._tell("I1", f"{accepted} of {stock.sku} are accepted, the total is {stock.total}")
        for name in ("total", "unallocated", "suspense", "wanted"):
            if getattr(stock, name) < 0:
                self._tell("I2", f"{name} of {stock.sku} is {getattr(stock, name)}")
        found = stock.unallocated + stock.suspense + free + consumed
        if found != stock.total:
            self.drift += abs(found - stock.total)
            self._tell(
                "I2",
                f"{stock.sku}: unallocated {stock.unallocated} + suspense {stock.suspense} + "
                f"free {free} + consumed {consumed} = {found}, the total is {stock.total}",
            )
        self.equation.append(
            {
                "sku": stock.sku,
                "total": stock.total,
                "unallocated": stock.unallocated,
                "suspense": stock.suspense,
                "free": free,
                "consumed": consumed,
                "accepted": accepted,
                "wanted": stock.wanted,
            }
        )

    # -------------------------------------------------------------- I3, I4
    def orders(self, ends: Sequence[End]) -> None:
        """I3 one order or one release per accepted attempt; I4 one intent, one order_no, one order.

        RESERVED in an open batch and RETURNING are in progress.
        """
        for end in ends:
            problem = _order_problem(end)
            if problem:
                self._tell("I3", f"{end.n} {end.state} intents {problem}: {self._some(end)}")
            if end.order_matches is False:
                self._tell(
                    "I4",
                    f"{end.n} orders have another buyer, request or lines than the intent "
                    f"of their order_no: {self._some(end)}",
                )
        explained = sum(end.n for end in ends if end.order is not None)
        orphans = evidence.orphan_orders(self._connection, self._row, explained)
        self._tell_all("I3", [f"order {number} has no intent" for number in orphans])
        repeated = evidence.repeated_numbers(self._connection, self._row.sid)
        self._tell_all("I4", [f"two intents have the order_no {number}" for number in repeated])

    def _some(self, end: End) -> str:
        return ", ".join(evidence.sample(self._connection, self._row.sid, end))

    # -------------------------------------------------------------- I5
    def quotas(self) -> None:
        """I5 what a buyer has bought is what the buyer's live intents hold, within the limits."""
        limits, one_sku = self._row.limits_max, len(self._skus) == 1
        most = {PER_SALE: limits.sale} | {sku: limits.of_sku(sku) for sku in self._skus}
        if one_sku:
            most = {PER_SALE: lowest(limits, self._skus[0])}
        wrong: list[str] = []
        for buyer, said, held in evidence.balances(
            self._connection, self._row.sid, one_sku=one_sku
        ):
            if said == held and all(
                (limit := most.get(scope)) is None or n <= limit for scope, n in held.items()
            ):
                continue
            who = "a buyer"
            if len(wrong) < _TOLD_MAX:
                who = evidence.name_of(self._connection, self._row.sid, buyer)
            wrong += _quota_problems(who, said, held, most)
        self._tell_all("I5", wrong)

    # -------------------------------------------------------------- I6
    def releases(self, ends: Sequence[End]) -> None:
        """I6 a release is only of an intent in the same end state, with all of its lines."""
        for end in ends:
            if end.release is None:
                continue
            if end.release != end.state:
                self._tell(
                    "I6",
                    f"{end.n} {end.state} intents have a release as {end.release}: "
                    f"{self._some(end)}",
                )
            elif not end.release_matches:
                self._tell(
                    "I6",
                    f"{end.n} releases have other lines than their intent, or no reason "
                    f"or actor: {self._some(end)}",
                )
        explained = sum(end.n for end in ends if end.release is not None)
        orphans = evidence.orphan_releases(self._connection, self._row.sid, explained)
        if orphans:
            self._tell("I6", f"{orphans} releases have no intent")

    # -------------------------------------------------------------- I3, I7
    def waiting(self, before_ms: int) -> None:
        """I3 what is RESERVED will be persisted; I7 nothing waits since before ``before_ms``."""
        sid, jobs = self._row.sid, schema.compensations
        found = evidence.waiting(self._connection, sid, before_ms)
        if found.stuck:
            self._tell(
                "I3",
                f"{found.stuck} RESERVED intents are in no open batch: run a worker "
                "with role persist after reopening their outbox rows",
            )
        if found.late:
            self._tell(
                "I7", f"{found.late} RESERVED intents wait for persist: is a worker running?"
            )
        late = jobs.c.at_ms < before_ms
        undo = evidence.tally(self._connection, jobs, sid, late, jobs.c.returned_as.is_(None))
        if undo:
            self._tell("I7", f"{undo} holds wait to be given back: is role compensate running?")
        returning = sa.exists().where(
            schema.intents.c.sid == sid,
            schema.intents.c.buyer == jobs.c.buyer,
            schema.intents.c.request_id == jobs.c.request_id,
            schema.intents.c.state == IntentState.RETURNING,
        )
        slow = evidence.tally(
            self._connection, jobs, sid, late, jobs.c.returned_as.is_not(None), returning
        )
        if slow:
            self._tell("I7", f"{slow} returns are not finished: is role compensate running?")
        lost = evidence.lost_returns(self._connection, sid)
        self._tell_all("I7", [f"no job finishes the return of order {number}" for number in lost])


def _order_problem(end: End) -> str | None:
    """What is wrong with an intent's order, or ``None`` (protocol.md 4.4, 4.5).

    Orders that are kept elsewhere cannot be read here: CREATED is their plugin's word.
    """
    if end.state in _ORDERED and not end.has_order and not end.away:
        return "have no order"
    if end.state in _RETURNED and end.has_order:
        return "were returned and still have a valid order"
    if end.state in _RETURNED and end.release is None:
        return "have neither an order nor a release"
    if end.state is IntentState.ABORTED and end.has_order:
        return "have an order"
    return None


def _quota_problems(
    who: str,
    said: Mapping[str, int],
    held: Mapping[str, int],
    most: Mapping[str, int | None],
) -> list[str]:
    found: list[str] = []
    for scope in sorted({*said, *held}):
        bought, live = said.get(scope, 0), held.get(scope, 0)
        limit = most.get(scope)
        if bought != live:
            found.append(
                f"{who} has bought {bought} of {scope} by the quota, {live} by live intents"
            )
        if limit is not None and max(bought, live) > limit:
            found.append(f"{who} has {max(bought, live)} of {scope}, at most {limit}")
    return found
