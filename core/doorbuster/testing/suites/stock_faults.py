"""Law 12: a backend that fails before or after the call (style of suites; protocol.md 4.6)."""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

from collections.abc import Callable

import pytest

from doorbuster.errors import BackendError, UnavailableError, UnknownOutcomeError
from doorbuster.outcomes import Code, Compensated
from doorbuster.testing.faults import Flaky
from doorbuster.testing.flow import SALE, Flow
from doorbuster.testing.probes import LedgerProbe
from doorbuster.testing.suites.base import declined
from doorbuster.testing.suites.stock_desk import Desk, ask
from doorbuster.testing.suites.stock_ground import ROUTER, Books, StockGround, finish, insist
from doorbuster.tiers import Bound, Tier

__all__ = ["FaultLaws"]

OpenDesk = Callable[..., Desk]
OpenSale = Callable[..., Flow]


class FaultLaws(StockGround):
    """Surely-not-applied changes nothing; maybe-applied is settled by identity, never guessed."""

    # ------------------------------------------------------------------ at the hooks
    def test_12_a_refused_call_changes_nothing(self, open_desk: OpenDesk, flaky: Flaky) -> None:
        """12. Refused before: ``UnavailableError``, the probe sees no change, later it goes on."""
        desk = open_desk(flaky=flaky, gold=5)
        hold = desk.hold(ask("ann"))
        before = desk.look()
        credit = desk.funding("gold", 2)
        calls: dict[str, Callable[[], object]] = {
            "deduct": lambda: desk.deduct(ask("bob")),
            "credit": lambda: desk.fund("credit", credit),
            "compensate": lambda: desk.undo(hold),
        }
        for hook, call in calls.items():
            flaky.refuse(hook)
            with pytest.raises(UnavailableError):
                call()
            assert desk.look() == before
        for call in calls.values():
            call()
        assert (desk.left(), desk.held()) == (5 * len(desk.places) + 2 - 1, 1)

    def test_12_a_vanished_hold_is_found_by_identity(
        self, open_desk: OpenDesk, flaky: Flaky
    ) -> None:
        """12. Vanished after: the hold is there, its replay answers it, and it is one hold."""
        desk = open_desk(flaky=flaky, gold=5)
        flaky.vanish("deduct")
        with pytest.raises(UnknownOutcomeError):
            desk.deduct(ask("ann"), ask("bob"))
        assert desk.held() == 2
        held = desk.deduct(ask("ann"), ask("bob"))
        assert desk.held() == 2
        flaky.vanish("compensate")
        with pytest.raises(UnknownOutcomeError):
            desk.undo(held[0])
        assert desk.undo(held[0]) is Compensated.ALREADY
        assert desk.held() == 1

    def test_12_a_vanished_move_is_made_once(
        self, bound: Bound, open_desk: OpenDesk, flaky: Flaky
    ) -> None:
        """12. A funding whose answer is lost is sent again by its id, and moves once (5.2)."""
        desk = open_desk(flaky=flaky, gold=5)
        units = 5 * len(desk.places)
        moves = {"credit": 3, "debit": -3} if "debit" in bound.hooks else {"credit": 3}
        for hook, change in moves.items():
            move = desk.funding("gold", 3)
            flaky.vanish(hook)
            with pytest.raises(UnknownOutcomeError):
                desk.fund(hook, move)
            assert desk.fund(hook, move) == [3]
            units += change
            assert desk.left() == units

    # ------------------------------------------------------------------ through a sale
    def test_12_a_sale_outlives_faults_of_deduct(
        self, bound: Bound, open_sale: OpenSale, flaky: Flaky
    ) -> None:
        """12. Refused before: BUSY, nothing is stored; what is accepted then stays accepted."""
        sale = open_sale(flaky=flaky, gold=5)
        flaky.refuse("deduct", 2)
        for _ in range(2):
            told = sale.buy("ann", request_id="r1")
            assert (told.code, told.final) == (Code.BUSY, False)
            assert told.retry_after_ms
        assert sale.rows("intents") == []
        assert sale.result("ann", "r1") is None
        first = sale.buy("ann", request_id="r1")
        assert first.code is Code.ACCEPTED
        flaky.vanish("deduct")
        told = sale.buy("ann", request_id="r1")
        assert told.code is (Code.BUSY if bound.tier is Tier.ROUTER else Code.PENDING)
        assert finish(sale) == 0
        for found in (sale.result("ann", "r1", told.receipt), sale.buy("ann", request_id="r1")):
            assert found is not None
            assert (found.code, found.order_no) == (Code.ACCEPTED, first.order_no)
        assert LedgerProbe(sale.ledger).sold(SALE) == {"gold": 1}
        assert sale.orders == 1

    def test_12_a_vanished_answer_is_settled(
        self, bound: Bound, books: Books, open_sale: OpenSale, flaky: Flaky
    ) -> None:
        """12. Vanished after deduct: PENDING; receipt or role reach the truth; no unit is lost."""
        sale = open_sale(flaky=flaky, gold=3)
        flaky.vanish("deduct", 2)
        told = [sale.buy(buyer, request_id="r1") for buyer in ("ann", "bob")]
        if bound.tier is Tier.ROUTER:
            assert [outcome.code for outcome in told] == [Code.BUSY] * 2, "it holds nothing"
            assert sale.rows("intents") == []
            assert insist(sale, "ann", "r1", quantity=3).code is Code.ACCEPTED
            return
        assert [outcome.code for outcome in told] == [Code.PENDING] * 2
        others = [sale.buy(f"b{n}", request_id="r1").code for n in range(4)]
        assert set(others) <= {Code.ACCEPTED, Code.BUSY}, "no word about stock while units are held"
        sold = others.count(Code.ACCEPTED)
        assert sold <= 2, "one unit is held at least"
        receipt = told[0].receipt
        early = sale.result("ann", "r1", receipt)
        assert early is not None
        assert early.code is Code.PENDING
        sale.advance(2)
        by_receipt = sale.result("ann", "r1", receipt)
        books.settle(sale)
        for buyer in ("ann", "bob"):
            found = sale.result(buyer, "r1")
            assert found is not None
            assert (found.code, found.final) == (Code.BUSY, True)
            assert sale.buy(buyer, request_id="r1").final
        assert by_receipt is not None
        assert (by_receipt.code, by_receipt.final) == (Code.BUSY, True)
        assert insist(sale, "ann", "r2", quantity=3 - sold).code is Code.ACCEPTED
        assert LedgerProbe(sale.ledger).sold(SALE) == {"gold": 3}

    def test_12_workers_go_on_after_faults(
        self, bound: Bound, open_sale: OpenSale, flaky: Flaky
    ) -> None:
        """12. Warm-up, gathers and returns meet faults at each step; all units sell, once."""
        if bound.tier is Tier.ROUTER:
            declined("is a router", ROUTER)
        sale = open_sale(flaky=flaky, gold=8, start=False)
        for hook in ("prepare", "credit", "open"):
            for fail in (flaky.refuse, flaky.vanish):
                fail(hook)
                with pytest.raises(BackendError):
                    sale.start()
        sale.start()
        lent = [(row["target"], row["sku"]) for row in sale.rows("fundings")]
        assert len(lent) == len(set(lent)), "each place is funded once, however often it starts"
        for hook in sorted({"credit", "debit", "compensate"} & bound.hooks.keys()):
            flaky.refuse(hook)
            flaky.vanish(hook)
        told = [insist(sale, f"b{n}", "r1").code for n in range(8)]
        assert finish(sale) == 0
        assert sale.give_back("b0", "r1")
        assert finish(sale) == 0
        for hook in ("credit", "compensate"):
            assert {(hook, "refuse"), (hook, "vanish")} <= set(flaky.faults)
        if not self.capabilities.may_strand:
            assert told == [Code.ACCEPTED] * 8
            assert insist(sale, "late", "r1").code is Code.ACCEPTED
            assert insist(sale, "last", "r1").code is Code.SOLD_OUT
