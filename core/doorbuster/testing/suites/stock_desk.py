"""A holder's counterpart in the laws: calls its hooks as the core would, and keeps its own books.

The books are the whole of law 3: what the hooks answered is summed up here, what the backend
really holds is read by the probe, and the two must agree, place by place and sku by sku.
"""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from doorbuster.identity import canonical_lines
from doorbuster.ledger import units
from doorbuster.model import (
    Attempt,
    Batch,
    Compensation,
    Funding,
    Kind,
    Line,
    PerBuyer,
    Reservation,
    Sale,
    Sku,
)
from doorbuster.outcomes import Code, Compensated, Rejection, Unknown
from doorbuster.testing.probes import StockProbe
from doorbuster.tiers import Bound

__all__ = ["Desk", "ask", "batch_of", "codes", "other"]

_TOTAL: Final = 10_000  # what the sale says it has; a desk credits far less

_Key = tuple[int, str, str]  # epoch, place, sku


def ask(
    buyer: str = "ann",
    request_id: str = "r1",
    /,
    *,
    lines: Sequence[Line] | None = None,
    deadline_s: float | None = None,
    **need: int,
) -> Attempt:
    """An attempt without its sale: ``ask("ann", "r1", gold=2)``; one gold when none is named."""
    if lines is None:
        lines = [Line(sku, n) for sku, n in sorted((need or {"gold": 1}).items())]
    return Attempt(tuple(lines), buyer, request_id, deadline_s=deadline_s)


def other(attempt: Attempt, **changes: Any) -> Attempt:
    """The same attempt, but for ``changes``."""
    return msgspec.structs.replace(attempt, **changes)


def codes(answers: Sequence[Any]) -> list[Any]:
    """What deduct answered in short: ``"HELD"``, the code of a rejection, or UNKNOWN."""
    return [
        "HELD" if isinstance(a, Reservation) else a.code if isinstance(a, Rejection) else a
        for a in answers
    ]


def batch_of(buyers: Sequence[str]) -> Batch:
    """One gold for each of ``buyers``, in a sale that nobody prepared."""
    sale = Sale("fork", {"gold": Sku("gold", 10)})
    return Batch(sale, tuple(Attempt([Line("gold")], buyer, "r1") for buyer in buyers), "normal", 1)


class Desk:
    """One sale of a holder, epoch by epoch, and what its hooks said. Safe for many threads."""

    def __init__(
        self,
        bound: Bound,
        probe: StockProbe,
        sale_id: str,
        *,
        skus: Sequence[str] = ("gold", "silver"),
        per_buyer: PerBuyer | None = None,
        own_limits: Mapping[str, int] | None = None,
        run: int = 1,
    ) -> None:
        """Prepare nothing yet; ``own_limits`` are per-buyer limits of single skus."""
        own = own_limits or {}
        self.bound = bound
        self.hooks: Mapping[str, Callable[..., Any]] = bound.hooks
        self.probe = probe
        self.sale = Sale(
            sale_id,
            {sku: Sku(sku, _TOTAL, own.get(sku)) for sku in skus},
            per_buyer=per_buyer or PerBuyer(),
            run=run,
        )
        self.places = tuple(bound.places(self.sale))
        self.epoch = 0
        self._lock = threading.Lock()
        self._epochs: set[int] = set()
        self._moves: dict[tuple[int, str], tuple[_Key, int]] = {}
        self._held: dict[tuple[int, str], Reservation] = {}
        self._seen: set[tuple[int, str]] = set()
        self._out: dict[_Key, int] = defaultdict(int)
        self._ids = 0

    # ------------------------------------------------------------------ epochs
    def prepare(self, epoch: int) -> None:
        """Make the places of ``epoch``; its number is the desk's from now on."""
        assert self.hooks["prepare"](self.sale, epoch)
        self._epochs.add(epoch)
        self.epoch = epoch

    def open(self, epoch: int = 1, **units_: int) -> Desk:
        """Prepare ``epoch``, credit each place these units (10 gold), and open it."""
        self.prepare(epoch)
        for sku, n in (units_ or {"gold": 10}).items():
            self.credit(sku, n)
        assert self.hooks["open"](self.sale, epoch)
        return self

    def retire(self, epoch: int) -> None:
        """Forget an epoch; what it held is no concern any more."""
        assert self.hooks["retire"](self.sale, epoch)
        self._epochs.discard(epoch)

    # ------------------------------------------------------------------ fundings
    def funding(self, sku: str, n: int, place: str = "", id: str | None = None) -> Funding:  # noqa: A002 - the field's name
        """A funding of ``n`` units of this epoch, at the first place; a new id unless given."""
        with self._lock:
            self._ids += 1
            number = self._ids
        sale = self.sale
        place = place or self.places[0]
        found = id or f"{sale.id}:{sale.run}:{self.epoch}:f{number}"
        return Funding(found, sale.id, sale.run, self.epoch, sku, place, n)

    def credit(self, sku: str, n: int, place: str = "") -> int:
        """Put ``n`` units into one place, or into every one; answers the sum of units."""
        places = [place] if place else self.places
        return sum(self.fund("credit", *(self.funding(sku, n, p) for p in places)))

    def debit(self, sku: str, n: int, place: str = "") -> int:
        """Take up to ``n`` units out of one place (the first); answers what it took."""
        return sum(self.fund("debit", self.funding(sku, n, place)))

    def fund(self, hook: str, *fundings: Funding) -> list[int]:
        """Credit or debit; the books count each id of an epoch once."""
        answers = list(self.hooks[hook](list(fundings)))
        assert len(answers) == len(fundings)
        sign = 1 if hook == "credit" else -1
        with self._lock:
            for funding, n in zip(fundings, answers, strict=True):
                key = (funding.epoch, funding.place, funding.sku)
                self._moves.setdefault((funding.epoch, funding.id), (key, sign * n))
        return answers

    # ------------------------------------------------------------------ attempts
    def admit(self, attempt: Attempt) -> Attempt:
        """Fill what the core fills: sale, run, order_no, fingerprint."""
        text = f"{self.sale.id}|{self.sale.run}|{attempt.buyer}|{attempt.request_id}"
        return msgspec.structs.replace(
            attempt,
            sale=self.sale.id,
            run=self.sale.run,
            order_no=attempt.order_no or hashlib.sha256(text.encode()).hexdigest()[:32],
            fingerprint=canonical_lines(attempt.lines),
        )

    def deduct(self, *attempts: Attempt, epoch: int | None = None, kind: Kind = Kind.H) -> Any:
        """Send one batch; answers align, reservations are filled as the core fills them."""
        epoch = self.epoch if epoch is None else epoch
        asked = tuple(self.admit(attempt) for attempt in attempts)
        answers = self.hooks["deduct"](Batch(self.sale, asked, "normal", epoch, kind))
        assert len(answers) == len(asked), "one answer per attempt"
        done = [
            self._note(answer, attempt, epoch)
            for answer, attempt in zip(answers, asked, strict=True)
        ]
        assert all(isinstance(answer, (Reservation, Rejection, Unknown)) for answer in done)
        return done

    def hold(self, attempt: Attempt) -> Reservation:
        """Deduct one attempt, which must be held."""
        (answer,) = self.deduct(attempt)
        assert isinstance(answer, Reservation), answer
        return answer

    def code(self, attempt: Attempt, **fields: Any) -> Any:
        """What one attempt is answered, in short."""
        return codes(self.deduct(attempt, **fields))[0]

    def _note(self, answer: Any, attempt: Attempt, epoch: int) -> Any:
        if not isinstance(answer, Reservation):
            return answer
        assert answer.attempt is attempt or answer.attempt == attempt, "of this very attempt"
        assert answer.place in self.places, "a place is one of those named"
        answer = Reservation(
            answer.attempt,
            answer.place,
            answer.order_no or attempt.order_no,
            answer.epoch or epoch,
        )
        key = (answer.epoch, answer.order_no)
        with self._lock:
            if key not in self._seen:
                self._seen.add(key)
                self._held[key] = answer
        return answer

    # ------------------------------------------------------------------ ways back
    def undo(self, hold: Reservation, code: Code = Code.SOLD_OUT, **phantom: int) -> Any:
        """Abort a hold; ``phantom`` units by sku are not given back (protocol.md 4.3)."""
        need = units(hold.attempt.lines)
        given = {sku: n - phantom.get(sku, 0) for sku, n in need.items()}
        real = {sku: n for sku, n in given.items() if n}
        return self.compensate(Compensation(hold, "ABORTED", code, real))

    def give_back(self, hold: Reservation, **given: int) -> Any:
        """Mark an accepted attempt returned; its units come back as funding (4.4)."""
        return self.compensate(Compensation(hold, "RETURNED", Code.ACCEPTED, given))

    def compensate(self, item: Compensation) -> Any:
        """Send one compensation; answers what the plugin did."""
        (answer,) = self.hooks["compensate"]([item])
        if answer in (Compensated.DONE, Compensated.ALREADY):
            self._end(item)
        return answer

    def _end(self, item: Compensation) -> None:
        key = (item.reservation.epoch, item.reservation.order_no)
        with self._lock:
            self._seen.add(key)
            hold = self._held.pop(key, None)
            if hold is None:
                return
            for sku, n in units(hold.attempt.lines).items():
                self._out[hold.epoch, hold.place, sku] += n - item.units.get(sku, 0)

    # ------------------------------------------------------------------ looks
    def left(self, sku: str = "gold") -> int:
        """Units of ``sku`` that the backend has left in this epoch, over all places."""
        return _sum(self.probe.left(self.sale, self.epoch), sku)

    def held(self, sku: str = "gold") -> int:
        """Units of ``sku`` that the backend holds in this epoch, over all places."""
        return _sum(self.probe.held(self.sale, self.epoch), sku)

    def look(self) -> list[tuple[Any, ...]]:
        """All that the probe sees of every epoch of this desk: to compare before and after."""
        return [
            (epoch, place, sku, n, self.probe.held(self.sale, epoch).get((place, sku), 0))
            for epoch in sorted(self._epochs)
            for (place, sku), n in sorted(self.probe.left(self.sale, epoch).items())
        ]

    def conserved(self) -> bool:
        """Law 3: what is left and held is what the books say, in every epoch and place."""
        with self._lock:
            held: dict[_Key, int] = defaultdict(int)
            left: dict[_Key, int] = defaultdict(int)
            for hold in self._held.values():
                for sku, n in units(hold.attempt.lines).items():
                    held[hold.epoch, hold.place, sku] += n
            for key, n in self._moves.values():
                left[key] += n
            for key in {*held, *self._out}:
                left[key] -= held[key] + self._out[key]
        for epoch in self._epochs:
            seen_left = self.probe.left(self.sale, epoch)
            seen_held = self.probe.held(self.sale, epoch)
            for place in self.places:
                for sku in self.sale.skus:
                    seen = (seen_left.get((place, sku), 0), seen_held.get((place, sku), 0))
                    kept = (left[epoch, place, sku], held[epoch, place, sku])
                    assert seen == kept, (
                        f"epoch {epoch}, {place}/{sku}: (left, held) is {seen}, "
                        f"what was credited, debited, held and given back makes {kept}"
                    )
                    assert min(seen) >= 0, f"epoch {epoch}, {place}/{sku}: {seen}"
        return True


def _sum(found: Mapping[tuple[str, str], int], sku: str) -> int:
    return sum(n for (_, name), n in found.items() if name == sku)
