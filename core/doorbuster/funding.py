"""Units on their way to places: warm-up, top-up, transfer (protocol.md 5).

A router's places are ledger rows, so a gather is one transaction. A holder's places are in its
backend: each move is a funding row that the ledger plans and moves and the plugin debits and
credits, idempotent by the row's id at every step, so any worker goes on where one stopped.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from doorbuster.errors import ContractError
from doorbuster.ledger import UNALLOCATED, FundingRow, Ledger, SaleRow
from doorbuster.ledger.fundings import RESTOCK
from doorbuster.model import Funding, FundingState, Sale

__all__ = ["Hooks", "advance", "plan_restock", "refill_holder", "refill_router"]

Hooks = Mapping[str, Callable[..., Any]]
"""Bound hook methods of one plugin instance, by hook name."""


def refill_router(
    ledger: Ledger, sale: Sale, epoch: int, wants: Mapping[tuple[str, str], int]
) -> bool:
    """Gather for a router's dry places in one ledger transaction; True when units moved."""
    return ledger.gather(sale, epoch, wants) > 0


class _Gathers:
    """One open gather per (ledger, sale, sku): else units bounce between places (5.3)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[tuple[int, str, str], threading.Lock] = {}

    def of(self, key: tuple[int, str, str]) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(key, threading.Lock())


_gathers = _Gathers()
_GATHER_WAIT_S: Final = 1.0  # a gather is a few calls; past that its backend is in trouble


def refill_holder(
    ledger: Ledger, hooks: Hooks, sale: Sale, epoch: int, wants: Mapping[tuple[str, str], int]
) -> bool:
    """Top a holder's dry places up, from unallocated (the reserve too), then from the richest.

    True when some units reached a place. Nothing is retried here: what a fault leaves open is a
    funding row, and role ``topup`` goes on with it.
    """
    row = ledger.require_sale(sale.id)
    if row.epoch != epoch:
        return False
    moved = False
    for (place, sku), n in sorted(wants.items()):
        gather = _gathers.of((id(ledger), sale.id, sku))
        if not gather.acquire(blocking=False):
            # Another batch's gather is open: wait for it, then simply try the place again.
            if gather.acquire(timeout=_GATHER_WAIT_S):
                gather.release()
                moved = True
            continue
        try:
            moved |= _refill_one(ledger, hooks, row, place, sku, n)
        finally:
            gather.release()
    return moved


def _refill_one(ledger: Ledger, hooks: Hooks, row: SaleRow, place: str, sku: str, n: int) -> bool:
    free = ledger.free_units(row)
    if (place, sku) not in free:
        return False
    source = UNALLOCATED
    if not ledger.unallocated(row, sku):
        richest = max(
            ((units, donor) for (donor, s), units in free.items() if s == sku and donor != place),
            default=(0, ""),
        )
        if not richest[0] or "debit" not in hooks:
            return False
        source = richest[1]
        n = max(n, richest[0] // 2)
    funding_id = f"dry:{uuid.uuid4().hex}"
    ledger.plan_funding(row, funding_id, sku=sku, kind="dry", source=source, target=place, units=n)
    done = advance(ledger, hooks, row, [funding_id])
    return any(found.moved > 0 for found in done)


def advance(
    ledger: Ledger, hooks: Hooks, row: SaleRow, only: Sequence[str] | None = None
) -> list[FundingRow]:
    """Take open fundings of a sale one step after the other to their end.

    ``only`` restricts to some ids. A row of another epoch is cancelled or credited by the
    hand-over, not here. Answers the rows that moved on. A place that cannot be reached keeps no
    other place's units waiting.

    Raises:
        Exception: the last fault of a row, after every other row had its turn.
    """
    done: list[FundingRow] = []
    fault: Exception | None = None
    for funding in ledger.open_fundings(row):
        if funding.epoch != row.epoch or (only is not None and funding.id not in only):
            continue
        try:
            done.append(_step(ledger, hooks, row, funding))
        except Exception as error:  # noqa: BLE001 - raised below, when the others are done
            fault = error
    if fault is not None:
        raise fault
    return done


def _step(ledger: Ledger, hooks: Hooks, row: SaleRow, funding: FundingRow) -> FundingRow:
    if funding.state is FundingState.PLANNED:
        funding = ledger.move(funding.id, _debit(hooks, row, funding))
    if funding.state is FundingState.MOVED:
        _credit(hooks, row, funding)
        ledger.credited([funding.id])
    return funding


def plan_restock(ledger: Ledger, row: SaleRow, wanted: Mapping[str, int]) -> None:
    """Plan debits of a holder's places for a restock down (protocol.md 5.5), richest first.

    What open rows of the same kind will bring is not asked for twice.
    """
    under_way = [f for f in ledger.open_fundings(row) if f.kind == RESTOCK]
    free = ledger.free_units(row)
    for sku, n in sorted(wanted.items()):
        n -= sum(f.planned for f in under_way if f.sku == sku)
        places = sorted(((units, place) for (place, s), units in free.items() if s == sku))
        for units, place in reversed(places):
            take = min(units, n)
            if take <= 0:
                break
            ledger.plan_funding(
                row,
                f"restock:{uuid.uuid4().hex}",
                sku=sku,
                kind=RESTOCK,
                source=place,
                target=UNALLOCATED,
                units=take,
            )
            n -= take


def _debit(hooks: Hooks, row: SaleRow, funding: FundingRow) -> int | None:
    """Take units out of the source's backend; ``None`` where the source is a ledger row."""
    if funding.source == UNALLOCATED or "credit" not in hooks:  # a router has no hooks for it
        return None
    return _units_of(hooks["debit"]([_order(row, funding, funding.source, funding.planned)]))


def _credit(hooks: Hooks, row: SaleRow, funding: FundingRow) -> None:
    if "credit" in hooks:
        _units_of(hooks["credit"]([_order(row, funding, funding.target, funding.moved)]))


def _order(row: SaleRow, funding: FundingRow, place: str, units: int) -> Funding:
    return Funding(funding.id, row.sale, row.run, funding.epoch, funding.sku, place, units)


def _units_of(answers: Sequence[int]) -> int:
    if len(answers) != 1:
        raise ContractError(f"one funding was given, {len(answers)} answers came back")
    return answers[0]
