"""The accept transaction (kind H): the one step that makes an attempt ACCEPTED.

Identity, buyer quota, units and outbox row are one transaction (protocol.md 4.1), in the fixed
lock order intents -> quotas -> grants -> rest. It reads under the lock, decides item by item in
order (so later attempts of a batch see earlier ones, and a buyer's second try meets the limit),
then writes through guards that must all hit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
import sqlalchemy as sa

from doorbuster.ledger import control, queries, schema
from doorbuster.ledger.room import Fenced, Room, Short
from doorbuster.ledger.stored import Stored, identity_of, outcome_of, read_stored, units
from doorbuster.model import IntentState, Kind, Reservation
from doorbuster.outcomes import Code, Outcome, Rejection

__all__ = [
    "STALE",
    "Accepted",
    "Answer",
    "Fenced",
    "Short",
    "Stored",
    "Undo",
    "accept",
    "answer_dry",
    "answer_from_stored",
    "outcome_of",
    "queue_undo",
    "read_stored",
    "units",
]

STALE: Final = Rejection(Code.BUSY, {"reason": "stale-epoch"}, retry_after_ms=200)
PHANTOM: Final = Rejection(Code.BUSY, {"reason": "phantom-hold"}, retry_after_ms=200)

_ACCEPTED: Final = Code.ACCEPTED  # a look-up in the enum's class costs as much as the answer

Answer: TypeAlias = Outcome | Short
Undo: TypeAlias = tuple[Reservation, Code, Mapping[str, int]]
"""A hold to give back: the hold, the code of its record, and its phantom units per sku."""

_Refusal: TypeAlias = tuple[int, Rejection, Mapping[str, int]]


class Accepted(msgspec.Struct, frozen=True):
    """Answers aligned with the reservations, and the committed batch of the fresh ones."""

    answers: Sequence[Answer]
    batch: int | None
    fresh: Sequence[int]
    """Positions newly accepted in this transaction."""
    undo: bool
    """Whether holds were left to give back (rows in ``compensations``)."""


def accept(
    connection: sa.Connection,
    sid: int,
    items: Sequence[Reservation],
    *,
    epoch: int,
    kind: Kind,
    skus: Sequence[str],
    holds: bool,
    batch: int,
    now_ms: int,
    lease: tuple[str, int] | None,
    persist: str,
) -> Accepted:
    """Accept ``items`` of one sale, whose identities are distinct, in one transaction.

    ``skus`` are the ledger's. ``holds``: the deduct plugin holds units, so refused rows become
    tombstones and their holds are queued for undo (4.3); else they are removed. ``lease``
    (owner, until) keeps the batch for the caller, who persists it inline. ``persist`` names the
    plugin that writes its orders. Lines are canonical.

    Raises:
        Fenced: the epoch is over; the transaction must roll back.
    """
    row = control.load(connection, sid)
    gate = control.judge(row, now_ms)
    if row.epoch != epoch or row.kind is not kind:
        return _refuse_new(connection, sid, items, STALE)
    if gate is not None and not holds:
        return _refuse_new(connection, sid, items, gate)
    known = _insert(connection, sid, items, epoch, batch, now_ms)
    fresh = [n for n in range(len(items)) if n not in known] if known else range(len(items))
    answers: list[Answer | None] = [None] * len(items)
    for n, found in known.items():
        answers[n] = outcome_of(found, items[n].attempt.fingerprint)
    room = Room(connection, row, skus, epoch)
    room.read([items[n] for n in fresh] if known else items)
    refusals: list[_Refusal] = []
    taken: list[int] = []
    for n in fresh:
        verdict = gate or room.decide(items[n])
        if verdict is None:
            taken.append(n)
            answers[n] = Outcome(_ACCEPTED, items[n].order_no)
            continue
        phantom: Mapping[str, int] = {}
        if isinstance(verdict, Short) and holds:  # it held what its grant does not have
            phantom = room.phantom(verdict, items[n].place)
            verdict = PHANTOM
        if isinstance(verdict, Short):
            answers[n], verdict = verdict, STALE  # a router's row is removed, its code unused
        else:
            answers[n] = _refused(verdict, final=holds)
        refusals.append((n, verdict, phantom))
    room.write()
    _remove(connection, items, refusals, holds=holds, batch=batch)
    undo = _undo(items, refusals, known, epoch) if holds else []
    if undo:
        queue_undo(connection, sid, epoch, undo, now_ms)
    if taken:
        owner, until = lease or (None, 0)
        sql = queries.load(connection.dialect.name)
        values = (batch, sid, len(taken), persist, until, owner, now_ms)
        queries.run(connection, sql["insert_outbox"], values)
    return Accepted(
        [answer for answer in answers if answer is not None],
        batch if taken else None,
        taken,
        undo=bool(undo),
    )


def answer_dry(
    connection: sa.Connection,
    sid: int,
    items: Sequence[Reservation],
    *,
    epoch: int,
    kind: Kind,
    skus: Sequence[str],
    now_ms: int,
) -> Accepted | None:
    """Answer a router's batch of which nothing can be taken, by one snapshot without a write.

    The same questions in the same order as :func:`accept`: replay, limit, stock. A snapshot may
    say no, for what is short then goes on to the ledger's truth; it never says yes: ``None``
    when an item could be taken, or the sale is not as the batch thinks, and accept decides.
    """
    row = control.load(connection, sid)
    if row.epoch != epoch or row.kind is not kind or control.judge(row, now_ms) is not None:
        return None
    stored = read_stored(connection, sid, [identity_of(item.attempt) for item in items])
    room = Room(connection, row, skus, epoch)
    room.read(items)
    answers: list[Answer] = []
    for item in items:
        known = stored.get(identity_of(item.attempt))
        if known is not None:
            answers.append(outcome_of(known, item.attempt.fingerprint))
            continue
        verdict = room.decide(item)
        if verdict is None:
            return None
        answers.append(verdict if isinstance(verdict, Short) else _refused(verdict, final=False))
    return Accepted(answers, None, (), undo=False)


def answer_from_stored(
    connection: sa.Connection, sid: int, items: Sequence[Reservation], refusal: Rejection
) -> list[Outcome]:
    """Answer replays from what is stored, and everything new with ``refusal`` (not final)."""
    stored = read_stored(connection, sid, [identity_of(item.attempt) for item in items])
    refused = _refused(refusal, final=False)
    return [
        outcome_of(found, item.attempt.fingerprint)
        if (found := stored.get(identity_of(item.attempt)))
        else refused
        for item in items
    ]


def _refuse_new(
    connection: sa.Connection, sid: int, items: Sequence[Reservation], refusal: Rejection
) -> Accepted:
    """Write nothing: a router holds nothing, and after a fence nothing may be written."""
    answers = answer_from_stored(connection, sid, items, refusal)
    return Accepted(answers, None, (), undo=False)


def _refused(rejection: Rejection, *, final: bool) -> Outcome:
    return Outcome(
        rejection.code,
        detail=rejection.detail,
        retry_after_ms=rejection.retry_after_ms,
        final=final,
    )


def _insert(
    connection: sa.Connection,
    sid: int,
    items: Sequence[Reservation],
    epoch: int,
    batch: int,
    now_ms: int,
) -> dict[int, Stored]:
    """Insert the identities that are new, sorted; answer the rows of those that were there."""
    keys = [identity_of(item.attempt) for item in items]
    rows = [
        (
            sid,
            buyer,
            request_id,
            item.order_no,
            item.attempt.fingerprint,
            epoch,
            item.place,
            batch,
            now_ms,
        )
        for (buyer, request_id), item in sorted(zip(keys, items, strict=True), key=_by_key)
    ]
    sql = queries.load(connection.dialect.name)
    if queries.insert_many(connection, sql["insert_intents"], rows) == len(items):
        return {}
    stored = read_stored(connection, sid, keys)
    return {n: found for n, key in enumerate(keys) if (found := stored[key]).batch != batch}


def _by_key(pair: tuple[tuple[str, str], Reservation]) -> tuple[str, str]:
    return pair[0]


def _remove(
    connection: sa.Connection,
    items: Sequence[Reservation],
    refusals: Sequence[_Refusal],
    *,
    holds: bool,
    batch: int,
) -> None:
    """Abort the refused rows (holders) or remove them (routers, which held nothing)."""
    sql = queries.load(connection.dialect.name)
    by_code: dict[int, list[tuple[str, str]]] = {}
    for n, verdict, _ in refusals:
        by_code.setdefault(int(verdict.code), []).append(identity_of(items[n].attempt))
    for code, keys in by_code.items():
        if holds:
            values = (code, batch, queries.array(keys))
            queries.run(connection, sql["abort_intents"], values)
        else:
            queries.run(connection, sql["drop_intents"], (batch, queries.array(keys)))


def _undo(
    items: Sequence[Reservation],
    refusals: Sequence[_Refusal],
    known: Mapping[int, Stored],
    epoch: int,
) -> list[Undo]:
    """Holds to give back: of refused rows, and those that no stored row justifies (4.3)."""
    refused: list[Undo] = [(items[n], verdict.code, phantom) for n, verdict, phantom in refusals]
    foreign: list[Undo] = [
        (items[n], undo_code(row), {})
        for n, row in known.items()
        if not row.justifies(items[n].place, epoch)
    ]
    return refused + foreign


def undo_code(row: Stored) -> Code:
    """The code that a hold's record gets when ``row`` does not justify it.

    ACCEPTED: the attempt lives under another grant, so the record must go on asking the ledger
    and only its units and quota go back.
    """
    if row.state is not IntentState.ABORTED:
        return Code.ACCEPTED
    return Code.BUSY if row.code is None else Code(row.code)


def queue_undo(
    connection: sa.Connection, sid: int, epoch: int, holds: Sequence[Undo], now_ms: int
) -> None:
    """Queue holds to be given back by the plugin that deducted, in this transaction.

    Once per (order_no, epoch): a job that still waits knows the hold's phantom, so it stays.
    """
    table = schema.compensations
    numbers = sorted({item.order_no for item, _, _ in holds})
    have = set(
        connection.execute(
            sa.select(table.c.order_no).where(
                table.c.sid == sid,
                table.c.state == IntentState.ABORTED,
                table.c.epoch == epoch,
                table.c.order_no.in_(numbers),
            )
        ).scalars()
    )
    rows = {
        item.order_no: {
            "sid": sid,
            "epoch": epoch,
            "place": item.place,
            "buyer": item.attempt.buyer,
            "request_id": item.attempt.request_id,
            "order_no": item.order_no,
            "lines": item.attempt.fingerprint,
            "state": IntentState.ABORTED,
            "code": int(code),
            "phantom": msgspec.json.encode(phantom).decode(),
            "leased_until_ms": 0,
            "tries": 0,
            "at_ms": now_ms,
        }
        for item, code, phantom in holds
        if item.order_no not in have
    }
    if rows:
        connection.execute(table.insert(), list(rows.values()))
