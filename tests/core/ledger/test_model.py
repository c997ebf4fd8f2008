"""Any sequence of moves keeps I1-I6 and answers as a model of a few lines does."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from doorbuster.ledger import Limits, Short
from doorbuster.model import IntentState, SaleState
from doorbuster.outcomes import Code

pytestmark = pytest.mark.slow

BUYERS = ["ann", "bob", "cat", "dan"]
SKUS = ["black", "white"]
requests = st.sampled_from(["r1", "r2", "r3"])
buyers = st.sampled_from(BUYERS)
lines = st.dictionaries(st.sampled_from(SKUS), st.integers(1, 3), min_size=1)


def machine(shop_class):
    """The state machine over shops of ``shop_class`` (conftest is not importable)."""

    class LedgerMachine(RuleBasedStateMachine):
        """Accept, persist, return, restock, gather, pause, limits, beside a tiny model."""

        @initialize(places=st.integers(1, 4), stock=st.integers(0, 12), skus=st.integers(1, 2))
        def open(self, places, stock, skus):
            self.folder = tempfile.TemporaryDirectory()
            self.skus = SKUS[:skus]
            self.shop = shop_class(
                Path(self.folder.name) / "ledger.db",
                skus=dict.fromkeys(self.skus, stock),
                places=places,
            )
            self.total = dict.fromkeys(self.skus, stock)
            self.limit = None
            self.paused = False
            self.lines, self.live, self.gone = {}, {}, {}
            self.restocks = 0

        def teardown(self):
            if hasattr(self, "shop"):
                self.shop.ledger.close()
                self.folder.cleanup()

        def held(self, buyer):
            return sum(sum(need.values()) for (who, _), need in self.live.items() if who == buyer)

        def sold(self, sku):
            return sum(need.get(sku, 0) for need in self.live.values())

        @rule(asks=st.lists(st.tuples(buyers, requests, lines), min_size=1, max_size=6))
        def accept(self, asks):
            asked = {}
            for buyer, request, need in asks:
                need = {sku: n for sku, n in need.items() if sku in self.skus}
                if need:
                    asked.setdefault((buyer, request), need)
            if not asked:
                return
            items = [
                self.shop.item(buyer, request, need) for (buyer, request), need in asked.items()
            ]
            for (key, need), item, answer in zip(
                asked.items(), items, self.shop.accept(*items), strict=True
            ):
                self.check(key, need, item, answer)

        def check(self, key, need, item, answer):
            if key in self.lines:
                same = self.lines[key] == need
                assert answer.code is (Code.ACCEPTED if same else Code.KEY_REUSED)
                if same:
                    assert answer.order_no == item.order_no
                return
            if self.paused:
                assert answer.code is Code.CLOSED
                return
            if self.limit is not None and self.held(key[0]) + sum(need.values()) > self.limit:
                assert answer.code is Code.OVER_LIMIT
                return
            if isinstance(answer, Short):
                return
            assert answer.code is Code.ACCEPTED
            self.lines[key] = self.live[key] = need
            assert all(self.sold(sku) <= self.total[sku] for sku in need)

        @rule()
        def persist(self):
            self.shop.persist()
            assert self.shop.persist() == 0

        @rule(data=st.data())
        def give_back(self, data):
            if not self.lines:
                return
            buyer, request = data.draw(st.sampled_from(sorted(self.lines)))
            state = self.shop.ledger.results(self.shop.row, [(buyer, request)])[0].order_state
            to = data.draw(st.sampled_from(["RELEASED", "CANCELLED", "EXPIRED", "REFUNDED"]))
            fits = (state, to) in {
                ("RESERVED", "RELEASED"),
                ("CREATED", "CANCELLED"),
                ("CREATED", "EXPIRED"),
            }
            assert self.shop.give_back(buyer, request, IntentState(to)) is fits
            if fits:
                del self.live[buyer, request]

        @rule(sku=st.sampled_from(SKUS), units=st.integers(-4, 6).filter(bool))
        def restock(self, sku, units):
            if sku not in self.skus:
                return
            ledger, row = self.shop.ledger, self.shop.row
            wanted = {one["sku"]: one["wanted"] for one in self.shop.report().equation}
            if self.total[sku] - wanted[sku] + units < 0:
                return
            self.restocks += 1
            name = f"r{self.restocks}"
            assert ledger.restock(row, sku, units, restock_id=name, actor="op")
            assert not ledger.restock(row, sku, units, restock_id=name, actor="op")
            self.total[sku] += max(units, 0)

        @rule()
        def take_wanted(self):
            before = {one["sku"]: one["wanted"] for one in self.shop.report().equation}
            still = self.shop.ledger.take_wanted(self.shop.row, router=True)
            for sku in self.skus:
                self.total[sku] -= before[sku] - still.get(sku, 0)
                free = self.shop.ledger.left(self.shop.sale)[sku]
                assert not still.get(sku) or not free.free + free.unallocated

        @rule(sku=st.sampled_from(SKUS), place=st.integers(0, 3), units=st.integers(1, 5))
        def gather(self, sku, place, units):
            before = self.shop.ledger.left(self.shop.sale)
            place = f"p{place % len(self.shop.places)}"
            self.shop.ledger.gather(self.shop.sale, 1, {(place, sku): units})
            after = self.shop.ledger.left(self.shop.sale)
            if sku not in self.skus:
                assert after == before
                return
            there = before[sku].free + before[sku].unallocated
            assert after[sku].free + after[sku].unallocated == there
            assert self.shop.free()[place, sku] >= min(units, there)

        @rule(limit=st.none() | st.integers(1, 6))
        def limits(self, limit):
            self.shop.ledger.change_control(
                self.shop.row, actor="op", action="limits", limits=Limits(sale=limit)
            )
            self.limit = limit

        @rule()
        def pause_or_resume(self):
            states = [SaleState.OPEN, SaleState.PAUSED]
            now, then = reversed(states) if self.paused else states
            self.shop.ledger.set_state(self.shop.row, allowed=[now], to=then, actor="op")
            self.paused = not self.paused

        @invariant()
        def the_ledger_agrees(self):
            if not hasattr(self, "shop"):
                return
            report = self.shop.report()
            assert report.balanced, report.violations
            for one in report.equation:
                assert one["total"] == self.total[one["sku"]]
                assert one["accepted"] == self.sold(one["sku"])

    return LedgerMachine


def test_8_any_sequence_of_moves_keeps_every_unit(shop):
    """I1-I6 after each step, and the totals and live units of the model."""
    case = machine(type(shop())).TestCase
    case.settings = settings(
        max_examples=15,
        stateful_step_count=20,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    case().runTest()
