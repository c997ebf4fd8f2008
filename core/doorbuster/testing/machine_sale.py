"""The state machine of a whole sale; see :mod:`doorbuster.testing.machine`."""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

from typing import Any, Final

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from doorbuster.outcomes import Code, Outcome
from doorbuster.testing.faults import Flaky
from doorbuster.testing.flow import SALE, Flow
from doorbuster.testing.probes import LedgerProbe
from doorbuster.testing.suites.stock_ground import finish

__all__ = ["SaleMachine"]

_BUYERS: Final = st.sampled_from(["ann", "bob", "cid"])  # few, so that replays and limits come
_REQUESTS: Final = st.sampled_from(["r1", "r2", "r3"])
_LIMIT: Final = 3
_TRIES: Final = 6
_Key = tuple[str, str]


class _Order(msgspec.Struct):
    """What the model knows of an accepted attempt, or of one that ended for good."""

    quantity: int
    order_no: str | None
    state: str  # SOLD, COMING (on its way back), BACK, DEAD (aborted)


class SaleMachine(RuleBasedStateMachine):
    """Buy, replay, give back, restock, drain and fault, in any order, for any tier.

    The model knows the total, who has how many, and what may be answered; after each step the
    ledger's rows must add up, and after each drain the backend's with them.
    """

    def __init__(self, sale: Flow, flaky: Flaky, *, holds: bool, debits: bool) -> None:
        """Drive ``sale``, whose deduct is ``flaky``; it is created again for each example.

        ``holds``: the plugin is no router. ``debits``: units can leave its places.
        """
        super().__init__()
        self.sale = sale
        self.flaky = flaky
        self.holds = holds
        self.debits = debits
        self.total = int(next(iter(sale.engine.settings.sales[SALE].skus.values())).units)
        self.orders: dict[_Key, _Order] = {}
        self.ledger = LedgerProbe(sale.ledger)
        flaky.heal()
        assert finish(sale) == 0
        sale.engine.sales.end(SALE, actor="model")
        sale.engine.sales.create(SALE, actor="model", again=True)
        sale.start()

    # ------------------------------------------------------------------ rules
    @rule(buyer=_BUYERS, request_id=_REQUESTS, quantity=st.integers(1, 3))
    def buy(self, buyer: str, request_id: str, quantity: int) -> None:
        """A new attempt is judged by limit, then by units; a known one is answered again."""
        known = self.orders.get((buyer, request_id))
        outcome = self.sale.buy(buyer, quantity=quantity, request_id=request_id)
        for _ in range(_TRIES):  # BUSY: units on their way, a worker brings them
            if outcome.code is not Code.BUSY or outcome.final:
                break
            self.drain()
            outcome = self.sale.buy(buyer, quantity=quantity, request_id=request_id)
        if known is not None:
            self._replayed(known, quantity, outcome)
        else:
            self._judged(buyer, request_id, quantity, outcome)

    @precondition(lambda self: self.orders)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        """The same attempt again, twice in one batch, and what the ledger says of it."""
        key = self._pick(data)
        known = self.orders[key]
        self._replayed(known, known.quantity, self._buy(key))
        found = self.sale.result(*key)
        assert found is not None
        self._replayed(known, known.quantity, found)

    @precondition(lambda self: self.orders)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """An order that was written begins its return once."""
        key = self._pick(data)
        known = self.orders[key]
        self.drain()
        begun = self.sale.give_back(*key)
        assert begun == (known.state == "SOLD")
        if begun:
            known.state = "COMING"

    @rule(units=st.integers(1, 3))
    def restock_up(self, units: int) -> None:
        """The total rises."""
        self.sale.engine.sales.restock(SALE, "gold", units, actor="model")
        self.total += units

    @precondition(lambda self: self.debits or not self.holds)
    @rule(units=st.integers(1, 2))
    def restock_down(self, units: int) -> None:
        """The total falls by free units, once the workers found them."""
        self.drain()
        if units <= self.total - self._sold():
            self.sale.engine.sales.restock(SALE, "gold", -units, actor="model")
            self.total -= units
            self.drain()

    @rule()
    def drain(self) -> None:
        """Workers finish: what was on its way back is free, and every order is written."""
        assert finish(self.sale) == 0
        for known in self.orders.values():
            if known.state == "COMING":
                known.state = "BACK"
        assert self.sale.left() == {"gold": self.total - self._sold()}

    @rule(buyer=_BUYERS, request_id=_REQUESTS, fault=st.sampled_from(["refuse", "vanish"]))
    def fault(self, buyer: str, request_id: str, fault: str) -> None:
        """An attempt meets a fault of deduct: BUSY, or PENDING until it is settled."""
        key = (buyer, request_id)
        known = self.orders.get(key)
        getattr(self.flaky, fault)("deduct")
        outcome = self._buy(key)
        if fault == "refuse" or not self.holds:
            assert (outcome.code, outcome.final) == (Code.BUSY, False)
            return
        assert outcome.code is Code.PENDING
        self.drain()
        settled = self.sale.result(*key, outcome.receipt)
        assert settled is not None
        if known is None:
            assert (settled.code, settled.final) == (Code.BUSY, True)
            self.orders[key] = _Order(1, None, "DEAD")
        else:
            self._replayed(known, known.quantity, settled)

    @precondition(lambda self: self.holds)
    @rule(
        hook=st.sampled_from(["credit", "debit", "compensate"]),
        fault=st.sampled_from(["refuse", "vanish"]),
    )
    def fault_of_a_worker(self, hook: str, fault: str) -> None:
        """The next call of a worker's hook fails, whenever it comes."""
        if hook in self.flaky.hooks:
            getattr(self.flaky, fault)(hook)

    # ------------------------------------------------------------------ invariants
    @invariant()
    def adds_up(self) -> None:
        """Law 3 in the ledger's rows, read raw; and no more is sold than there is."""
        assert not self.ledger.wrong(SALE)
        sold = self.ledger.sold(SALE).get("gold", 0)
        assert sold == self._sold() <= self.total

    # ------------------------------------------------------------------ the model
    def _sold(self) -> int:
        return sum(o.quantity for o in self.orders.values() if o.state in ("SOLD", "COMING"))

    def _pick(self, data: st.DataObject) -> _Key:
        return data.draw(st.sampled_from(sorted(self.orders)))

    def _buy(self, key: _Key) -> Outcome:
        known = self.orders.get(key)
        quantity = 1 if known is None else known.quantity
        return self.sale.buy(key[0], quantity=quantity, request_id=key[1])

    def _judged(self, buyer: str, request_id: str, quantity: int, outcome: Outcome) -> None:
        mine = [o for (who, _), o in self.orders.items() if who == buyer]
        # The unit of a return lowers the limit once it is back; the drain says when.
        bought = sum(o.quantity for o in mine if o.state in ("SOLD", "COMING"))
        if bought + quantity > _LIMIT:
            assert outcome.code is Code.OVER_LIMIT, outcome
        elif quantity > self.total - self._sold():
            assert outcome.code is Code.SOLD_OUT, outcome
        else:
            assert outcome.code is Code.ACCEPTED, outcome
            order = _Order(quantity, outcome.order_no, "SOLD")
            self.orders[buyer, request_id] = order

    def _replayed(self, known: _Order, quantity: int, outcome: Any) -> None:
        if quantity != known.quantity:
            assert outcome.code is Code.KEY_REUSED, outcome
        elif known.state == "DEAD":
            assert (outcome.code, outcome.final) == (Code.BUSY, True), outcome
        else:
            assert (outcome.code, outcome.order_no) == (Code.ACCEPTED, known.order_no), outcome
            if known.state == "BACK":
                assert outcome.order_state == "CANCELLED"
