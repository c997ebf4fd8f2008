"""One slot of the in-memory holder: stock, quotas and records under one lock.

Every method of :class:`Slot` is one atomic step that its caller runs under ``Slot.lock``, the
way a script runs alone in a server. The rules are protocol.md 3.1-3.3, 4.3, 4.7 and 5.2.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from doorbuster.plugin import (
    Attempt,
    Code,
    Compensated,
    Compensation,
    Control,
    Deducted,
    Funding,
    Hold,
    PerBuyer,
    Rejection,
    Reservation,
    Sale,
    canonical_lines,
)

__all__ = ["Slot", "Terms", "busy"]

_SEED: Final = "SEED"
_OPEN: Final = "OPEN"  # FROZEN belongs to journals: a holder is never frozen (protocol.md 6.1)

_HELD: Final = "HELD"
_RETURNED: Final = "RETURNED"
_ABORTED: Final = "ABORTED"

_SALE: Final = "*"  # the scope of a whole sale's quota; never a sku id


class _Record(msgspec.Struct, gc=False):
    """One identity in one epoch (protocol.md 3.2); order_no, lines, epoch: the reservation's."""

    state: str
    content: str
    reservation: Reservation
    at_s: float
    refusal: Rejection | None = None


class Terms(msgspec.Struct, frozen=True):
    """What every attempt of one batch at one slot is judged by. ``limits``: scope -> units."""

    epoch: int
    fence: Rejection | None
    now_s: float
    attempt_limit: int | None
    limits: Mapping[str, int]


class Slot:
    """One place: stock, quotas, records. Every method is one atomic step under ``lock``."""

    def __init__(self, place: str, skus: Sequence[str]) -> None:
        self.place = place
        self.lock = threading.Lock()
        self.state = _SEED
        self.control: Control | None = None
        self.left: dict[str, int] = dict.fromkeys(skus, 0)
        self.held: dict[str, int] = defaultdict(int)
        self.bought: dict[str, dict[str, int]] = defaultdict(dict)  # scope -> buyer -> units
        self.records: dict[tuple[str, str], _Record] = {}
        self.applied: dict[str, int] = {}

    def _fence(self) -> Rejection | None:
        """Refuse what is new while the slot is not open, or the sale is paused (6.6)."""
        if self.state != _OPEN:
            return busy("not-ready")
        if self.control is not None and self.control.paused:
            return Rejection(Code.CLOSED, {"reason": "paused"})
        return None

    def terms(self, sale: Sale, epoch: int, fence: Rejection | None, now_s: float) -> Terms:
        """Work out once by what all attempts of a batch are judged.

        Of the batch's limits and the pushed ones the smaller counts (protocol.md 6.6).
        """
        pushed = PerBuyer() if self.control is None else self.control.per_buyer
        limits = {_SALE: _smaller(sale.per_buyer.sale, pushed.sale)}
        for sku in self.left:
            limits[sku] = _smaller(*self._sku_limits(sku, sale))
        return Terms(
            epoch=epoch,
            fence=fence or self._fence(),
            now_s=now_s,
            attempt_limit=_smaller(sale.per_buyer.attempt, pushed.attempt),
            limits={scope: limit for scope, limit in limits.items() if limit is not None},
        )

    def deduct(self, attempt: Attempt, terms: Terms) -> Deducted:
        """Judge one attempt: replay, fence, deadline, limit, stock, write (protocol.md 3.3)."""
        key = (attempt.buyer, attempt.request_id)
        record = self.records.get(key)
        if record is not None:
            return self._replay(record, attempt)
        if terms.fence is not None:
            return terms.fence
        if attempt.deadline_s is not None and terms.now_s > attempt.deadline_s:
            return busy("expired")
        need = _units(attempt)
        refusal = self._over_limit(attempt.buyer, need, terms) or self._short(need)
        if refusal is not None:
            return refusal
        left, held = self.left, self.held
        for sku, n in need.items():
            left[sku] -= n
            held[sku] += n
        self._add_bought(attempt.buyer, need, 1)
        reservation = Reservation(attempt, self.place, attempt.order_no, terms.epoch)
        self.records[key] = _Record(_HELD, _content(attempt), reservation, terms.now_s)
        return reservation

    def _replay(self, record: _Record, attempt: Attempt) -> Deducted:
        """Answer a known identity: the ledger knows what became of a hold or a return."""
        if record.content != _content(attempt):
            return Rejection(Code.KEY_REUSED)
        if record.refusal is not None:
            return record.refusal
        first = record.reservation
        return Reservation(attempt, self.place, first.order_no, first.epoch)

    def _over_limit(self, buyer: str, need: Mapping[str, int], terms: Terms) -> Rejection | None:
        if terms.attempt_limit is None and not terms.limits:
            return None
        total = sum(need.values())
        if terms.attempt_limit is not None and total > terms.attempt_limit:
            return Rejection(Code.OVER_LIMIT, {"limit": terms.attempt_limit, "scope": "attempt"})
        for scope, limit in terms.limits.items():
            n = total if scope == _SALE else need.get(scope, 0)
            if n and (bought := self.bought[scope].get(buyer, 0)) + n > limit:
                return Rejection(Code.OVER_LIMIT, {"limit": limit, "bought": bought})
        return None

    def _short(self, need: Mapping[str, int]) -> Rejection | None:
        left = self.left
        for sku in need:
            if sku not in left:  # this slot never had it: not zero, not sold out
                return busy("not-ready")
        for sku, n in need.items():
            if left[sku] < n:
                return Rejection(Code.SOLD_OUT, {"place": self.place})
        return None

    def _sku_limits(self, sku: str, sale: Sale) -> tuple[int | None, int | None]:
        """The batch's and the pushed limit of one sku: its own, else the sale's default."""
        found = sale.skus.get(sku)
        own = None if found is None else found.per_buyer
        batch = sale.per_buyer.sku if own is None else own
        if self.control is None:
            return batch, None
        return batch, self.control.sku_limits.get(sku, self.control.per_buyer.sku)

    def open(self) -> None:
        """SEED -> OPEN; there is no way back."""
        self.state = _OPEN

    def holds(self, now_s: float, older_than_s: float) -> list[Hold]:
        """List HELD records of that age or more."""
        held = [record for record in self.records.values() if record.state == _HELD]
        ages = [(record.reservation, now_s - record.at_s) for record in held]
        return [Hold(reservation, age_s) for reservation, age_s in ages if age_s >= older_than_s]

    def _add_bought(self, buyer: str, need: Mapping[str, int], sign: int) -> None:
        total = 0
        for sku, n in need.items():
            total += n
            bought = self.bought[sku]
            bought[buyer] = bought.get(buyer, 0) + sign * n
        bought = self.bought[_SALE]
        bought[buyer] = bought.get(buyer, 0) + sign * total

    def compensate(self, item: Compensation, now_s: float) -> Compensated:
        """Write the end state once; give back quota and just the given units (4.7)."""
        attempt = item.reservation.attempt
        refusal = Rejection(item.code, {"final": True}) if item.state == _ABORTED else None
        key = (attempt.buyer, attempt.request_id)
        record = self.records.get(key)
        if record is None:  # the end state keeps a late deduct of it out; nothing to give back
            self.records[key] = _Record(
                item.state, _content(attempt), item.reservation, now_s, refusal
            )
            return Compensated.DONE
        if record.reservation.order_no != item.reservation.order_no:
            return Compensated.KEPT  # another run's order of the same buyer and request_id
        if record.state != _HELD:
            kept = record.state == _RETURNED and item.state == _ABORTED
            return Compensated.KEPT if kept else Compensated.ALREADY
        need = _units(record.reservation.attempt)
        for sku, n in item.units.items():
            self.left[sku] += n
        for sku, n in need.items():
            self.held[sku] -= n
        self._add_bought(attempt.buyer, need, -1)
        record.state, record.refusal = item.state, refusal
        return Compensated.DONE

    def move(self, funding: Funding, *, credit: bool) -> int:
        """Credit or debit once per id; answer what the id moved. Debits need an open slot."""
        if funding.id in self.applied:
            return self.applied[funding.id]
        if not credit and self.state != _OPEN:
            return 0
        left = self.left.get(funding.sku, 0)
        n = funding.quantity if credit else min(funding.quantity, left)
        self.left[funding.sku] = left + n if credit else left - n
        self.applied[funding.id] = n
        return n


def busy(reason: str) -> Rejection:
    """BUSY, to be tried again after 100-300 ms: spread, so that a crowd does not return as one."""
    return Rejection(Code.BUSY, {"reason": reason}, retry_after_ms=random.randint(100, 300))


def _content(attempt: Attempt) -> str:
    return attempt.fingerprint or canonical_lines(attempt.lines)


def _units(attempt: Attempt) -> Mapping[str, int]:
    """Sum lines per sku before any check (D2)."""
    if len(attempt.lines) == 1:
        return {attempt.lines[0].sku: attempt.lines[0].quantity}
    sums: dict[str, int] = defaultdict(int)
    for line in attempt.lines:
        sums[line.sku] += line.quantity
    return sums


def _smaller(a: int | None, b: int | None) -> int | None:
    """The smaller limit; none is no limit."""
    return min((n for n in (a, b) if n is not None), default=None)
