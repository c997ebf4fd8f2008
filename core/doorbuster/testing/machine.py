"""Any order of events: state machines that compare a deduct plugin with a model in plain Python.

:class:`StockMachine` drives a holder's hooks, :class:`SaleMachine` a whole sale of any tier. The
suites run both; to run one alone, for as long as you like::

    run_state_machine_as_test(lambda: StockMachine(MyStock(options, context), MyProbe(...)))
"""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from doorbuster import loading
from doorbuster.errors import BackendError
from doorbuster.ledger import units
from doorbuster.model import Attempt, Line, PerBuyer, Reservation
from doorbuster.outcomes import Code, Compensated, Rejection
from doorbuster.testing.faults import Flaky
from doorbuster.testing.probes import StockProbe
from doorbuster.testing.suites.stock_desk import Desk, ask
from doorbuster.tiers import Bound

__all__ = ["StockMachine"]

_BUYERS: Final = st.sampled_from(["ann", "bob", "cid"])
_REQUESTS: Final = st.sampled_from(["r1", "r2", "r3", "r4"])
_LINES: Final = st.sampled_from(
    [(Line("gold"),), (Line("gold", 2),), (Line("silver"),), (Line("gold"), Line("silver", 2))]
)
_FAULTS: Final = st.sampled_from(["", "", "", "refuse", "vanish"])
_UNITS: Final = st.integers(1, 4)
_LIMIT: Final = 4  # units per buyer and sale

_Key = tuple[str, str]
_sales: Iterator[int] = itertools.count()


class _Record(msgspec.Struct):
    """What the model knows of one identity in one epoch."""

    state: str
    attempt: Attempt
    place: str
    order_no: str
    code: Code | None = None


class StockMachine(RuleBasedStateMachine):
    """Deduct, replay, undo, return, fund, transfer, switch epoch and fault, in any order.

    The model is a dictionary of records and one of units; after each step the probe must see just
    those units, place by place, and each answer must be the one the model gives.
    """

    def __init__(self, plugin: Any, probe: StockProbe) -> None:
        """Drive ``plugin``, a holder, in a sale of its own; ``probe`` looks past it."""
        super().__init__()
        self.flaky = Flaky(plugin)
        hooks, _ = loading.find_hooks(loading.new_manager(), self.flaky, "stock", "stock")
        bound = Bound("stock", "stock", None, self.flaky, hooks, "closed")
        self.desk = Desk(bound, probe, f"model-{next(_sales)}", per_buyer=PerBuyer(sale=_LIMIT))
        self.records: dict[_Key, _Record] = {}
        self.left: Counter[tuple[str, str]] = Counter()
        self.homes: dict[str, str] = {}
        self.over: list[Reservation] = []

    @initialize(gold=_UNITS, silver=_UNITS)
    def warm_up(self, gold: int, silver: int) -> None:
        """Open epoch 1."""
        self._open(1, gold, silver)

    # ------------------------------------------------------------------ rules
    @rule(buyer=_BUYERS, request_id=_REQUESTS, lines=_LINES, fault=_FAULTS)
    def deduct(self, buyer: str, request_id: str, lines: tuple[Line, ...], fault: str) -> None:
        """A new attempt is judged; a known one is answered again, or KEY_REUSED."""
        attempt = self.desk.admit(ask(buyer, request_id, lines=lines))
        (answer,) = self._call("deduct", fault, lambda: self.desk.deduct(attempt))
        known = self.records.get((buyer, request_id))
        if known is not None:
            self._replayed(known, attempt, answer)
        else:
            self._judged(attempt, answer)

    @precondition(lambda self: self.records)
    @rule(data=st.data(), fault=_FAULTS)
    def replay(self, data: st.DataObject, fault: str) -> None:
        """The same attempt once more, in one batch with itself: the first answer, twice."""
        known = self._pick(data)
        twice = self._call("deduct", fault, lambda: self.desk.deduct(known.attempt, known.attempt))
        for answer in twice:
            self._replayed(known, known.attempt, answer)

    @precondition(lambda self: self.records)
    @rule(
        data=st.data(),
        code=st.sampled_from([Code.BUSY, Code.OVER_LIMIT, Code.SOLD_OUT]),
        phantom=st.booleans(),
        fault=_FAULTS,
    )
    def undo(self, data: st.DataObject, code: Code, phantom: bool, fault: str) -> None:
        """An undo gives a hold's units back once, less a phantom; a returned one is kept."""
        known = self._pick(data)
        lost = {"gold": 1} if phantom and units(known.attempt.lines).get("gold") else {}
        answer = self._call(
            "compensate", fault, lambda: self.desk.undo(self._hold(known), code, **lost)
        )
        if known.state == "HELD":
            self._ended(known, "ABORTED", fault, answer, code)
            for sku, n in units(known.attempt.lines).items():
                self.left[known.place, sku] += n - lost.get(sku, 0)
        else:
            kept = known.state == "RETURNED"
            assert answer is (Compensated.KEPT if kept else Compensated.ALREADY)

    @rule(buyer=_BUYERS, request_id=_REQUESTS, fault=_FAULTS)
    def undo_ahead(self, buyer: str, request_id: str, fault: str) -> None:
        """An undo that comes before its hold keeps the hold out (protocol.md 4.7)."""
        if (buyer, request_id) in self.records:
            return
        attempt = self.desk.admit(ask(buyer, request_id, gold=1))
        known = _Record("NONE", attempt, self.desk.places[0], attempt.order_no)
        answer = self._call(
            "compensate", fault, lambda: self.desk.undo(self._hold(known), Code.BUSY)
        )
        self._ended(known, "ABORTED", fault, answer, Code.BUSY)
        self.records[buyer, request_id] = known

    @precondition(lambda self: self.records)
    @rule(data=st.data(), fault=_FAULTS)
    def give_back(self, data: st.DataObject, fault: str) -> None:
        """A return lowers the limit once and leaves the stock to funding."""
        known = self._pick(data)
        answer = self._call("compensate", fault, lambda: self.desk.give_back(self._hold(known)))
        if known.state == "HELD":
            self._ended(known, "RETURNED", fault, answer)
        else:
            assert answer is Compensated.ALREADY

    @rule(data=st.data(), sku=st.sampled_from(["gold", "silver"]), n=_UNITS, fault=_FAULTS)
    def fund(self, data: st.DataObject, sku: str, n: int, fault: str) -> None:
        """A credit counts once per id, however often it is sent."""
        place = data.draw(st.sampled_from(self.desk.places))
        credit = self.desk.funding(sku, n, place)
        assert self._call("credit", fault, lambda: self.desk.fund("credit", credit)) == [n]
        assert self.desk.fund("credit", credit) == [n]
        self.left[place, sku] += n

    @precondition(lambda self: "debit" in self.desk.hooks)
    @rule(data=st.data(), n=_UNITS, fault=_FAULTS)
    def transfer(self, data: st.DataObject, n: int, fault: str) -> None:
        """A debit takes at most the free units, once; what it took is credited elsewhere."""
        source = data.draw(st.sampled_from(self.desk.places))
        target = data.draw(st.sampled_from(self.desk.places))
        debit = self.desk.funding("gold", n, source)
        took = min(n, self.left[source, "gold"])
        assert self._call("debit", fault, lambda: self.desk.fund("debit", debit)) == [took]
        assert self.desk.fund("debit", debit) == [took]
        assert self.desk.credit("gold", took, target) == took
        self.left[source, "gold"] -= took
        self.left[target, "gold"] += took

    @rule(gold=_UNITS, silver=_UNITS, retired=st.booleans())
    def switch_epoch(self, gold: int, silver: int, retired: bool) -> None:
        """A new epoch knows no record; the old one neither holds nor gives back any more."""
        self.over += [self._hold(r) for r in self.records.values() if r.state == "HELD"]
        old = self.desk.epoch
        self._open(old + 1, gold, silver)
        (late,) = self.desk.deduct(ask("ann", "late"), epoch=old)
        assert isinstance(late, Rejection)
        assert late.code is Code.BUSY
        if retired:
            self.desk.retire(old)

    @precondition(lambda self: self.over)
    @rule(data=st.data())
    def undo_late(self, data: st.DataObject) -> None:
        """What belongs to an epoch that is over is STALE_EPOCH, and changes nothing."""
        hold = data.draw(st.sampled_from(self.over))
        assert self.desk.undo(hold) is Compensated.STALE_EPOCH

    # ------------------------------------------------------------------ invariants
    @invariant()
    def conserved(self) -> None:
        """Law 3: the probe sees the model's units, and the desk's books agree."""
        if not self.desk.epoch:
            return
        sale, epoch = self.desk.sale, self.desk.epoch
        held: Counter[tuple[str, str]] = Counter()
        for known in self.records.values():
            for sku, n in units(known.attempt.lines).items() if known.state == "HELD" else ():
                held[known.place, sku] += n
        assert _solid(self.desk.probe.left(sale, epoch)) == _solid(self.left)
        assert _solid(self.desk.probe.held(sale, epoch)) == _solid(held)
        assert self.desk.conserved()

    # ------------------------------------------------------------------ the model
    def _open(self, epoch: int, gold: int, silver: int) -> None:
        self.desk.open(epoch, gold=gold, silver=silver)
        self.records.clear()
        self.homes.clear()
        self.left = Counter()
        for place in self.desk.places:
            self.left[place, "gold"], self.left[place, "silver"] = gold, silver

    def _call(self, hook: str, fault: str, call: Callable[[], Any]) -> Any:
        """Call under a fault, then once more as whoever settles it would; answer the last one."""
        if fault:
            getattr(self.flaky, fault)(hook)
            try:
                call()
            except BackendError:
                pass
            else:
                raise AssertionError(f"{hook} was made to {fault}")
        return call()

    def _pick(self, data: st.DataObject) -> _Record:
        return self.records[data.draw(st.sampled_from(sorted(self.records)))]

    def _hold(self, known: _Record) -> Reservation:
        return Reservation(known.attempt, known.place, known.order_no, self.desk.epoch)

    def _judged(self, attempt: Attempt, answer: Any) -> None:
        """Limit before stock; where the buyer's place is not known yet, any place may be it."""
        need = units(attempt.lines)
        mine = [r for r in self.records.values() if r.attempt.buyer == attempt.buyer]
        bought = sum(line.quantity for r in mine if r.state == "HELD" for line in r.attempt.lines)
        if bought + sum(need.values()) > _LIMIT:
            assert isinstance(answer, Rejection)
            assert answer.code is Code.OVER_LIMIT
            return
        place = answer.place if isinstance(answer, Reservation) else answer.detail["place"]
        assert self.homes.setdefault(attempt.buyer, place) == place, "a buyer has one place"
        if any(self.left[place, sku] < n for sku, n in need.items()):
            assert isinstance(answer, Rejection), "it held what is not there"
            assert answer.code is Code.SOLD_OUT
            return
        assert isinstance(answer, Reservation), answer
        for sku, n in need.items():
            self.left[place, sku] -= n
        key = (attempt.buyer, attempt.request_id)
        self.records[key] = _Record("HELD", attempt, place, answer.order_no)

    def _replayed(self, known: _Record, attempt: Attempt, answer: Any) -> None:
        if attempt.fingerprint != known.attempt.fingerprint:
            assert isinstance(answer, Rejection)
            assert answer.code is Code.KEY_REUSED
        elif known.state == "ABORTED":
            assert isinstance(answer, Rejection)
            assert (answer.code, answer.detail.get("final")) == (known.code, True)
        else:
            assert isinstance(answer, Reservation), answer
            assert (answer.order_no, answer.place) == (known.order_no, known.place)

    def _ended(
        self, known: _Record, state: str, fault: str, answer: Any, code: Code | None = None
    ) -> None:
        first = Compensated.ALREADY if fault == "vanish" else Compensated.DONE
        assert answer is first
        known.state, known.code = state, code


def _solid(found: Any) -> dict[tuple[str, str], int]:
    """Without zeros: a place with nothing of a sku may leave it out."""
    return {key: n for key, n in found.items() if n}
