"""Laws of units on their way (protocol.md 5): nothing comes into being, nothing is moved twice."""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

from typing import Final

import pytest

from doorbuster.errors import ConfigError
from doorbuster.ledger import UNALLOCATED, schema
from doorbuster.model import FundingState, GrantState
from doorbuster.outcomes import Code
from doorbuster.testing.suites.base import Race
from doorbuster.testing.suites.cuts import lost_commits
from doorbuster.testing.suites.ground import OpenSale
from doorbuster.testing.suites.ledger_ground import LedgerGround, Open

__all__ = ["UnitLaws"]

_CANCELLED: Final = FundingState.CANCELLED
_MOVED: Final = FundingState.MOVED


def _plan(one: OpenSale, name: str, source: str, target: str, units: int, sku: str = "gold") -> str:
    """Plan one move; its id is unique to the sale."""
    funding_id = f"{one.sale.id}:{name}"
    one.ledger.plan_funding(
        one.row, funding_id, sku=sku, kind="law", source=source, target=target, units=units
    )
    return funding_id


class UnitLaws(LedgerGround):
    """Provision, fundings, gathers and restocks."""

    def test_5_1_warm_up_gives_every_unit_out_once(self, shop: Open) -> None:
        """10,000 units over 32 places: none is lost, and warming up again changes nothing (F19)."""
        one = shop(skus={"gold": 10_000, "silver": 7}, places=32)
        before = one.everything()
        one.ledger.provision(one.row, 1, places=one.places, backend="backend", everything=True)
        assert one.everything() == before
        free = one.ledger.free_units(one.row)
        gold = [n for (_, sku), n in free.items() if sku == "gold"]
        silver = [n for (_, sku), n in free.items() if sku == "silver"]
        assert (sum(gold), max(gold) - min(gold)) == (10_000, 1)
        assert (sum(silver), max(silver)) == (7, 1)
        assert one.unallocated("gold") == one.unallocated("silver") == 0

    def test_5_3_a_holders_first_tranche_keeps_a_reserve(self, shop: Open) -> None:
        """Funded in rounds: at least one each, never all; the rest stays where all can have it."""
        one = shop(skus={"gold": 100}, places=4)
        one.buy("ann", quantity=25, place="p0")
        for name, units in (("a", 5), ("b", 20)):  # the reserve of 5, then 20 beyond it
            assert one.ledger.plan_rounds(one.row) == []
            funding = _plan(one, name, "p1", UNALLOCATED, units)
            one.ledger.move(funding, None)
            one.ledger.credited([funding])
        planned = one.ledger.plan_rounds(one.row)
        rows = [row for row in one.ledger.open_fundings(one.row) if row.id in planned]
        assert {row.target for row in rows} <= {"p0", "p1"}
        assert 1 <= sum(row.planned for row in rows) <= 20
        assert one.ledger.plan_rounds(one.row) == []  # what is planned is on its way

    def test_5_1_a_funding_moves_once_by_its_id(self, shop: Open) -> None:
        """Planned, moved and credited again and again: one move of what was first told."""
        one = shop(places=2)
        funding = _plan(one, "a", "p0", "p1", 2)
        assert not one.ledger.plan_funding(
            one.row, funding, sku="gold", kind="law", source="p1", target="p0", units=5
        )
        for debited in (2, 1, 2):
            row = one.ledger.move(funding, debited)
            assert (row.state, row.moved) == (_MOVED, 2)
        for _ in range(2):
            one.ledger.credited([funding])
        assert one.ledger.move(funding, 2).state is FundingState.CREDITED
        assert (one.free("p0"), one.free("p1")) == (3, 7)
        assert one.ledger.open_fundings(one.row) == []

    def test_5_2_at_most_the_free_units_of_its_source_move(self, shop: Open) -> None:
        """A debit of more than the grant has free was a phantom; nothing is moved below zero."""
        one = shop(places=2)
        one.buy("ann", quantity=4, place="p0")
        assert one.ledger.move(_plan(one, "a", "p0", "p1", 5), 5).moved == 1
        assert one.ledger.move(_plan(one, "b", "p0", "p1", 5), 5).state is _CANCELLED
        assert one.ledger.move(_plan(one, "c", UNALLOCATED, "p0", 5), None).state is _CANCELLED
        assert one.ledger.move(_plan(one, "d", "p1", "p0", 4), None).moved == 4
        assert (one.free("p0"), one.free("p1")) == (4, 2)

    def test_5_2_what_a_debit_really_took_is_what_moves(self, shop: Open) -> None:
        """The backend gave less than was planned, or nothing: that much, or CANCELLED."""
        one = shop(places=2)
        assert one.ledger.move(_plan(one, "a", "p0", "p1", 4), 3).moved == 3
        assert one.ledger.move(_plan(one, "b", "p0", "p1", 2), 0).state is _CANCELLED
        assert (one.free("p0"), one.free("p1")) == (2, 8)

    def test_5_1_no_unit_moves_after_the_fence(self, shop: Open) -> None:
        """Every move needs its grants ACTIVE: else CANCELLED, and no unit has changed hands."""
        one = shop(places=2)
        one.ledger.restock(one.row, "gold", 3, restock_id="up", actor="suite")
        ways = [("p0", "p1"), ("p0", UNALLOCATED), (UNALLOCATED, "p0")]
        ids = [_plan(one, f"f{n}", source, to, 2) for n, (source, to) in enumerate(ways)]
        one.fence()
        assert [one.ledger.move(funding, 2).state for funding in ids] == [_CANCELLED] * 3
        assert one.ledger.gather(one.sale, 1, {("p0", "gold"): 8}) == 0
        assert [row["quantity"] for row in one.rows(schema.grants)] == [5, 5]

    def test_5_2_an_unknown_commit_moves_once(self, shop: Open) -> None:
        """D8: a move whose COMMIT was applied and not heard of is the same move again."""
        one = shop(places=2)
        funding = _plan(one, "a", "p0", "p1", 2)
        with lost_commits(one.ledger.database, applied=True, times=2):
            assert one.ledger.move(funding, 2).moved == 2
        with lost_commits(one.ledger.database, applied=True):
            one.ledger.credited([funding])
        assert (one.free("p0"), one.free("p1")) == (3, 7)

    def test_5_3_a_dry_place_gathers_the_last_units(self, shop: Open) -> None:
        """D10: five units over ten places are five sales, to whichever buyers come first."""
        one = shop(skus={"gold": 5}, places=10)
        sold = 0
        for n in range(8):
            asked = one.ask(f"buyer{n}", place="p7")
            codes = one.codes(asked)
            if codes == [None] and one.ledger.gather(one.sale, 1, {("p7", "gold"): 1}):
                codes = one.codes(asked)
            sold += codes == [Code.ACCEPTED]
        assert sold == 5
        assert one.ledger.left(one.sale)["gold"].sold_out

    def test_5_3_gathers_at_once_move_each_unit_once(self, shop: Open, race: Race) -> None:
        """Threads that gather for their places: no unit is lost between them, or doubled."""
        one = shop(skus={"gold": 12}, places=4)
        race(lambda n: one.ledger.gather(one.sale, 1, {(f"p{n % 4}", "gold"): 7}), 8)
        assert sum(one.ledger.free_units(one.row).values()) + one.unallocated() == 12

    def test_5_5_a_restock_up_is_applied_once(self, shop: Open) -> None:
        """By its id, also when its COMMIT was not heard of: total and unallocated rise together."""
        one = shop()
        version = one.row.version
        with lost_commits(one.ledger.database, applied=True):
            one.ledger.restock(one.row, "gold", 5, restock_id="up", actor="suite")
        assert not one.ledger.restock(one.row, "gold", 5, restock_id="up", actor="suite")
        assert (one.ledger.skus(one.row)["gold"].units, one.unallocated()) == (15, 5)
        assert one.row.version > version  # sold-out marks taken before it are void (L3)
        with pytest.raises(ConfigError, match="another change"):
            one.ledger.restock(one.row, "gold", 6, restock_id="up", actor="suite")

    def test_5_5_a_restock_down_takes_only_free_units(self, shop: Open) -> None:
        """What is accepted stays; the rest leaves the total as it becomes free."""
        one = shop(skus={"gold": 6}, places=2)
        one.buy("ann", quantity=3, place="p0")
        one.buy("bob", quantity=2, place="p1")
        assert one.ledger.restock(one.row, "gold", -4, restock_id="down", actor="suite")
        assert one.ledger.take_wanted(one.row, router=True) == {"gold": 3}
        assert one.ledger.skus(one.row)["gold"].units == 5
        assert one.give_back("bob")
        assert one.ledger.take_wanted(one.row, router=True) == {"gold": 1}
        assert one.ledger.skus(one.row)["gold"].units == 3
        assert one.codes(one.ask("eve", place="p1")) == [None]
        with pytest.raises(ConfigError, match="at most"):
            one.ledger.restock(one.row, "gold", -3, restock_id="more", actor="suite")

    def test_7_1_sold_out_is_only_when_nothing_can_come_back(self, shop: Open) -> None:
        """Not while a place has units, a move is under way, or a hand-over may free some."""
        one = shop(skus={"gold": 2}, places=2)
        sold_out = one.ledger.view().sold_out
        one.buy("ann", place="p0")
        assert not sold_out(one.sale).skus
        one.buy("bob", place="p1")
        read = sold_out(one.sale)
        assert (read.skus, read.epoch, read.version) == (frozenset({"gold"}), 1, one.row.version)
        funding = _plan(one, "a", UNALLOCATED, "p0", 1)
        assert not sold_out(one.sale).skus
        one.ledger.move(funding, None)
        assert sold_out(one.sale).skus == {"gold"}
        assert one.give_back("bob")
        assert not sold_out(one.sale).skus

    def test_7_1_free_units_of_a_draining_grant_are_not_gone(self, shop: Open) -> None:
        """A hand-over brings them back: nobody may say that everything is sold meanwhile."""
        one = shop(skus={"gold": 2})
        one.buy("ann")
        one.fence(GrantState.DRAINING)
        assert one.ledger.left(one.sale)["gold"].free == 1
        assert not one.ledger.view().sold_out(one.sale).skus
