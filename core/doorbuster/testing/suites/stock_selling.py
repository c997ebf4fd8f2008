"""Laws through a whole sale: any tier, the ledger decides (laws 1, 2, 4-11, 13)."""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from doorbuster.model import Attempt, Line
from doorbuster.outcomes import Code, Outcome
from doorbuster.testing.flow import SALE, Flow
from doorbuster.testing.kit import Kit
from doorbuster.testing.probes import LedgerProbe
from doorbuster.testing.suites.base import Race, declined
from doorbuster.testing.suites.stock_desk import ask, batch_of
from doorbuster.testing.suites.stock_ground import ROUTER, Books, StockGround, finish, insist, names
from doorbuster.tiers import Bound, Tier

__all__ = ["SaleLaws"]

OpenSale = Callable[..., Flow]
_THREADS = 4


class SaleLaws(StockGround):
    """What buyers of a sale see, whatever plugin deducts (protocol.md 4.1-4.4, 7)."""

    def test_01_deduct_of_an_empty_batch_is_empty(self, bound: Bound, kit: Kit) -> None:
        """1. Of any tier: an empty batch is answered empty, whatever there is or is not yet."""
        assert list(bound.hooks["deduct"](batch_of([]))) == []
        assert kit.alarms == []

    def test_02_a_sale_answers_in_order(self, open_sale: OpenSale) -> None:
        """1, 2. An empty batch answers empty; a mixed one answers attempt by attempt."""
        sale = open_sale(gold=4, silver=1, per_buyer={"sku": 3})
        before = _rows(sale)
        assert sale.batch() == []
        assert _rows(sale) == before
        batch = [
            ask("ann", "r1", gold=2),
            ask("bob", "r1", nothing=1),
            ask("cid", "r1", gold=3, silver=2),
            ask("ann", "r2", gold=2),
            ask("dan", "r1", gold=1, silver=1),
            ask("ann", "r1", gold=2),
            ask("ann", "r1", gold=1),
        ]
        assert names(sale.batch(*batch)) == [
            "ACCEPTED",
            "INVALID",
            "SOLD_OUT",
            "OVER_LIMIT",
            "ACCEPTED",
            "ACCEPTED",
            "KEY_REUSED",
        ]
        results = [sale.result(attempt.buyer, attempt.request_id) for attempt in batch]
        assert [r.name if r else None for r in results] == [
            "ACCEPTED",
            None,
            None,
            *_found(sale, "ann", "r2"),
            "ACCEPTED",
            "ACCEPTED",
            "ACCEPTED",
        ]
        assert LedgerProbe(sale.ledger).sold(SALE) == {"gold": 3, "silver": 1}

    def test_04_a_sale_never_oversells(self, open_sale: OpenSale, race: Race) -> None:
        """4. Threads with batches against 20 units: 20 accepted, and the rest is sold out."""
        sale = open_sale(gold=20)

        def work(n: int) -> list[Outcome]:
            batches = [[ask(f"b{n}-{k}-{m}") for m in range(4)] for k in range(2)]
            return [answer for batch in batches for answer in sale.batch(*batch)]

        first = [answer for part in race(work, _THREADS) for answer in part]
        told = Counter(names(first))
        assert told.keys() <= {"ACCEPTED", "SOLD_OUT", "BUSY"}, "BUSY: units on their way"
        late = Counter(insist(sale, f"late{n}", "r1").name for n in range(20 - told["ACCEPTED"]))
        sold = told["ACCEPTED"] + late["ACCEPTED"]
        assert sold == LedgerProbe(sale.ledger).sold(SALE)["gold"]
        assert len({outcome.order_no for outcome in first}) == told["ACCEPTED"] + 1
        if not self.capabilities.may_strand:
            assert sold == 20
            assert insist(sale, "last", "r1").code is Code.SOLD_OUT

    def test_05_an_identity_is_accepted_once(self, open_sale: OpenSale, race: Race) -> None:
        """5, 6. One attempt from many threads is one order; other content is KEY_REUSED."""
        sale = open_sale(gold=20)
        outcomes = race(lambda n: sale.batch(ask("ann"), ask("ann")), _THREADS)
        first = outcomes[0][0]
        told = {(outcome.code, outcome.order_no) for pair in outcomes for outcome in pair}
        assert told == {(Code.ACCEPTED, first.order_no)}
        finish(sale)
        assert sale.buy("ann", request_id="r1").order_no == first.order_no
        assert sale.buy("ann", quantity=2, request_id="r1").code is Code.KEY_REUSED
        assert sale.buy("bob", request_id="r1").code is Code.ACCEPTED
        assert LedgerProbe(sale.ledger).sold(SALE) == {"gold": 2}
        assert sale.orders == 1, "bob's waits for a worker"

    def test_07_a_sale_splits_no_quantity(self, open_sale: OpenSale) -> None:
        """7. SOLD_OUT says how many remain, splits nothing and closes nothing (7.2)."""
        sale = open_sale(gold=3, silver=1)
        many = insist(sale, "ann", "r1", quantity=4)
        assert (many.code, many.detail["remaining"]) == (Code.SOLD_OUT, 3)
        both = [Line("gold", 1), Line("silver", 2)]
        assert insist(sale, "ann", "r2", lines=both).code is Code.SOLD_OUT
        assert LedgerProbe(sale.ledger).sold(SALE) == {}
        if not self.capabilities.may_strand:
            both = [Line("gold", 3), Line("silver", 1)]
            assert insist(sale, "ann", "r1", lines=both).code is Code.ACCEPTED
            assert insist(sale, "bob", "r1").code is Code.SOLD_OUT

    def test_08_a_returned_unit_is_sold_once_again(self, open_sale: OpenSale) -> None:
        """8. A return gives the unit and the limit back, once, after SOLD_OUT too (4.4)."""
        sale = open_sale(gold=2, per_buyer=1)
        for buyer in ("ann", "bob"):
            assert insist(sale, buyer, "r1").code is Code.ACCEPTED
        assert insist(sale, "cid", "r1").code is Code.SOLD_OUT
        finish(sale)
        assert sale.give_back("ann", "r1")
        assert not sale.give_back("ann", "r1"), "it is on its way back"
        assert sale.buy("ann", request_id="r2").code in (Code.OVER_LIMIT, Code.SOLD_OUT)
        assert finish(sale) == finish(sale) == 0
        assert not sale.give_back("ann", "r1"), "it came back"
        assert sale.left() == {"gold": 1}
        assert insist(sale, "ann", "r3").code is Code.ACCEPTED
        assert insist(sale, "ann", "r4").code is Code.OVER_LIMIT
        assert insist(sale, "cid", "r2").code is Code.SOLD_OUT

    def test_09_a_replay_after_return_names_the_state(self, open_sale: OpenSale) -> None:
        """9. A returned attempt gets its first answer and its order's state, never a new unit."""
        sale = open_sale(gold=5)
        first = insist(sale, "ann", "r1")
        finish(sale)
        sale.give_back("ann", "r1")
        finish(sale)
        again = sale.buy("ann", request_id="r1")
        assert (again.code, again.order_no) == (Code.ACCEPTED, first.order_no)
        assert again.order_state == "CANCELLED"
        assert sale.result("ann", "r1") == again
        assert LedgerProbe(sale.ledger).sold(SALE) == {}

    def test_09_what_the_ledger_refuses_goes_back(
        self, bound: Bound, books: Books, open_sale: OpenSale
    ) -> None:
        """9, 4.3. A hold the ledger refuses is undone, and its attempt replays the refusal."""
        sale = open_sale(gold=3, per_buyer=3)
        ledger = LedgerProbe(sale.ledger)
        sid, final = ledger.sid(SALE), bound.tier is not Tier.ROUTER
        ledger.write(
            "INSERT INTO quotas (sid, buyer, scope, bought) VALUES (:sid, 'ann', '*', 1)", sid=sid
        )
        for _ in range(2):
            told = sale.buy("ann", quantity=3, request_id="r1")
            assert (told.code, told.final) == (Code.OVER_LIMIT, final)
        stored = sale.result("ann", "r1")
        assert (stored.code if stored else None) == (Code.OVER_LIMIT if final else None)
        finish(sale)  # without a sweep: the refusal itself queued the undo
        assert books.held(sale) == 0
        ledger.write("DELETE FROM quotas WHERE sid = :sid AND buyer = 'ann'", sid=sid)
        told = sale.buy("ann", quantity=3, request_id="r1")
        assert told.code is (Code.OVER_LIMIT if final else Code.ACCEPTED)
        if final:
            assert insist(sale, "ann", "r2", quantity=3).code is Code.ACCEPTED
        assert ledger.sold(SALE) == {"gold": 3}

    def test_08_a_phantom_is_never_sold(self, books: Books, open_sale: OpenSale) -> None:
        """4.3, 8. A unit that a place has and the ledger has not lent it: found, and not sold."""
        if books.probe is None:
            declined("is a router", ROUTER)
        sale = open_sale(gold=4)
        ledger = LedgerProbe(sale.ledger)
        place = next(grant.place for grant in ledger.grants(SALE) if grant.quantity)
        at = {"sid": ledger.sid(SALE), "place": place}
        ledger.write(
            "UPDATE grants SET quantity = quantity - 1 WHERE sid = :sid AND place = :place", **at
        )
        ledger.write("UPDATE stock SET unallocated = unallocated + 1 WHERE sid = :sid", **at)
        found = False
        for n in range(60):
            outcome = sale.buy(f"b{n}", request_id="r1")
            found = found or (outcome.code is Code.BUSY and outcome.final)
            finish(sale)
            if found and ledger.sold(SALE).get("gold") == 4:
                break
        assert found, "no buyer's home is the place with the phantom"
        assert ledger.sold(SALE) == {"gold": 4}

    def test_10_the_limit_holds(self, open_sale: OpenSale, race: Race) -> None:
        """10. Parallel attempts of one buyer never pass the limit, which is told before stock."""
        sale = open_sale(gold=4, silver=4, per_buyer={"sku": 1, "sale": 2, "attempt": 2})
        assert sale.buy("bob", "gold", 3).code is Code.OVER_LIMIT
        told = Counter(
            code
            for part in race(lambda n: names(sale.batch(*_tries(n))), _THREADS)
            for code in part
        )
        assert told.keys() <= {"ACCEPTED", "OVER_LIMIT", "BUSY"}
        for sku in ("gold", "silver"):
            insist(sale, "ann", f"late-{sku}", sku=sku)
        assert LedgerProbe(sale.ledger).sold(SALE) == {"gold": 1, "silver": 1}
        for n in range(3):
            assert insist(sale, f"b{n}", "r1", sku="gold").code is Code.ACCEPTED
        assert insist(sale, "cid", "r1", sku="gold").code is Code.SOLD_OUT
        assert insist(sale, "ann", "last", sku="gold").code is Code.OVER_LIMIT

    def test_11_a_sale_commits_nothing_after_a_fence(
        self, bound: Bound, books: Books, open_sale: OpenSale
    ) -> None:
        """11. After a fence nothing of the old epoch commits: BUSY, not final (4.3, 6.1)."""
        sale = open_sale(gold=5)
        ledger = LedgerProbe(sale.ledger)
        sid = ledger.sid(SALE)
        for number, (fence, mend) in enumerate(
            [
                ("sales SET epoch = 2", "sales SET epoch = 1"),
                ("grants SET state = 'DRAINING'", "grants SET state = 'ACTIVE'"),
            ]
        ):
            ledger.write(f"UPDATE {fence} WHERE sid = :sid", sid=sid)
            told = sale.buy("ann", request_id=f"r{number}")
            assert (told.code, told.final) == (Code.BUSY, False)
            assert sale.rows("intents") == []
            assert sale.result("ann", f"r{number}") is None
            ledger.write(f"UPDATE {mend} WHERE sid = :sid", sid=sid)
        books.settle(sale)
        if bound.tier is Tier.ROUTER or "holds" in bound.hooks:  # else two units leaked
            assert insist(sale, "bob", "r1", quantity=5).code is Code.ACCEPTED

    def test_13_start_twice_is_start_once(
        self, bound: Bound, books: Books, open_sale: OpenSale
    ) -> None:
        """13. Start, restock by one id and close, each done twice, are done once (5.5)."""
        sale = open_sale(gold=10)
        insist(sale, "ann", "r1")
        before = _rows(sale)
        sale.start()
        assert _rows(sale) == before
        for units in (5, 5, -3):  # the second by the same id is the first
            sale.engine.sales.restock(SALE, "gold", units, actor="law", restock_id=f"by{units}")
        finish(sale)
        if bound.tier is Tier.ROUTER or "debit" in bound.hooks:
            assert sale.left() == {"gold": 10 - 1 + 5 - 3}
        books.check()
        books.sales.remove(sale)  # the ledger is closed with the engine
        for _ in range(2):
            sale.engine.close()
            getattr(books.bound.instance, "close", bool)()


def _tries(n: int) -> list[Attempt]:
    return [ask("ann", f"r{n}-{sku}", lines=[Line(sku)]) for sku in ("gold", "silver")]


def _found(sale: Flow, buyer: str, request_id: str) -> list[str | None]:
    """The name of a result, whichever tier: a holder's own refusal stores nothing."""
    result = sale.result(buyer, request_id)
    assert result is None or result.final
    return [result.name if result else None]


def _rows(sale: Flow) -> dict[str, Any]:
    tables = ("sales", "stock", "grants", "fundings", "intents", "quotas", "outbox")
    return {table: sale.rows(table) for table in tables}
