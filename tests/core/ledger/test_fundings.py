"""protocol.md 5 and 7: where units are, how they move, when everything is sold."""

from __future__ import annotations

import itertools

import pytest

from doorbuster.errors import ConfigError, ContractError
from doorbuster.ledger import UNALLOCATED, Short
from doorbuster.ledger.fundings import cancel
from doorbuster.ledger.grants import spread
from doorbuster.model import FundingState, IntentState
from doorbuster.outcomes import Code


def plan(one, units, source=UNALLOCATED, target="p0", kind="topup", funding_id="f1"):
    return one.ledger.plan_funding(
        one.row, funding_id, sku="black", kind=kind, source=source, target=target, units=units
    )


def stock(one):
    return one.sql("SELECT total, unallocated, wanted FROM stock ORDER BY sku")


def quantities(one):
    return [row[0] for row in one.sql("SELECT quantity FROM grants ORDER BY place, sku")]


# ------------------------------------------------------------------ 5.1, 5.4 grants
def test_f19_the_remainder_is_exact():
    """10,000 over 32 places: every unit is somewhere, no place has two more than another."""
    shares = spread(10_000, 32)
    assert sum(shares) == 10_000
    assert shares == [313] * 16 + [312] * 16
    assert spread(3, 5) == [1, 1, 1, 0, 0]


def test_f19_warm_up_gives_a_routers_places_every_unit(shop):
    """10,000 units in 32 segments; nothing is left over and nothing is made."""
    one = shop(skus={"black": 10_000}, places=32)
    assert sorted(quantities(one)) == [312] * 16 + [313] * 16
    assert stock(one) == [(10_000, 0, 0)]
    assert one.report().balanced


def test_5_1_warm_up_ten_times_is_warm_up_once(shop):
    """One grant per (sale, sku, epoch, place); fundings have fixed ids (Y5)."""
    one = shop(skus={"black": 10, "white": 5}, places=3)
    one.buy("ann")
    before = one.report()
    for _ in range(10):
        one.ledger.provision(one.row, 1, places=one.places, backend="backend", everything=True)
    assert one.report() == before
    assert one.count("grants") == 6
    assert one.ledger.places_of(one.sid, 1) == dict.fromkeys(["p0", "p1", "p2"], "backend")


def test_5_1_every_ledger_move_requires_its_grants_active(shop):
    """Else the row becomes CANCELLED and no unit moves."""
    one = shop(places=2)
    plan(one, 3, source="p0", target="p1")
    one.sql("UPDATE grants SET state = 'DRAINING' WHERE place = 'p1'")
    row = one.ledger.move("f1", None)
    assert (row.state, row.moved) == (FundingState.CANCELLED, 0)
    one.sql("UPDATE grants SET state = 'DRAINING' WHERE place = 'p0'")
    plan(one, 3, source="p0", target="p1", funding_id="f2")
    assert one.ledger.move("f2", 3).state is FundingState.CANCELLED
    assert quantities(one) == [5, 5]


def test_5_1_a_funding_row_is_resumable_at_every_step(shop):
    """PLANNED -> MOVED -> CREDITED, each once, by any worker."""
    one = shop(holds=True, skus={"black": 100})
    first = one.ledger.open_fundings(one.row)
    assert [row.state for row in first] == [FundingState.PLANNED]
    assert not plan(one, 99, funding_id=first[0].id)
    for _ in range(3):
        row = one.ledger.move(first[0].id, None)
        assert (row.state, row.moved) == (FundingState.MOVED, first[0].planned)
    assert one.ledger.open_fundings(one.row) == [row]
    for _ in range(3):
        one.ledger.credited([row.id])
    assert one.ledger.move(row.id, None).state is FundingState.CREDITED
    assert one.ledger.open_fundings(one.row) == []
    assert one.report().balanced
    with pytest.raises(ContractError, match="no funding"):
        one.ledger.move("never planned", None)


def test_5_1_only_a_planned_row_is_cancelled(shop):
    """What moved has to be credited."""
    one = shop(holds=True, skus={"black": 100})
    plan(one, 1)
    plan(one, 1, funding_id="f2")
    one.ledger.move("f2", None)
    with one.ledger.database.transaction() as connection:
        cancel(connection, "f1")
        cancel(connection, "f2")
    assert one.sql("SELECT state FROM fundings WHERE id LIKE 'f%' ORDER BY id") == [
        ("CANCELLED",),
        ("MOVED",),
    ]


def test_5_2_a_top_up_moves_at_most_what_is_unallocated(shop):
    """Unallocated - n, quantity + n, in one transaction; the amount is stored."""
    one = shop(holds=True, skus={"black": 100})
    plan(one, 1000)
    assert one.ledger.move("f1", None).moved == 100
    plan(one, 1, funding_id="f2")
    assert one.ledger.move("f2", None).state is FundingState.CANCELLED
    assert stock(one) == [(100, 0, 0)]
    assert one.report().balanced


def test_5_2_a_transfer_moves_exactly_what_was_debited_at_most_the_free_units(shop):
    """The rest of a debit was a phantom: it never was in the ledger."""
    one = shop(places=2)
    one.buy("ann", lines=3, place="p0")
    plan(one, 9, source="p0", target="p1")
    assert one.ledger.move("f1", 1).moved == 1
    plan(one, 9, source="p0", target="p1", funding_id="f2")
    assert one.ledger.move("f2", 9).moved == 1
    assert quantities(one) == [3, 7]
    plan(one, 9, source="p1", target="p0", funding_id="f3")
    assert one.ledger.move("f3", 0).state is FundingState.CANCELLED
    assert one.report().balanced


def test_5_3_a_holders_first_round_is_a_quarter_and_the_reserve_stays(shop):
    """20-25 % of unallocated, spread over the slots, at least one each."""
    one = shop(holds=True, skus={"black": 1000, "white": 8}, places=4)
    planned = {}
    for row in one.ledger.open_fundings(one.row):
        planned.setdefault(row.sku, []).append(row.planned)
    assert planned == {"black": [63, 63, 62, 62], "white": [1, 1, 1, 1]}


def test_5_3_a_place_that_ran_low_is_topped_up_from_all_but_the_reserve(shop):
    """Below 20 % of a tranche; one open funding per place; the last 5 % are not handed out."""
    one = shop(holds=True, skus={"black": 100}, places=2)
    run(one)
    assert one.ledger.plan_rounds(one.row) == []
    consume(one, "p0")
    (first,) = one.ledger.plan_rounds(one.row)
    assert one.ledger.plan_rounds(one.row) == []
    assert one.ledger.move(first, None).target == "p0"
    one.ledger.credited([first])
    for _ in range(40):
        consume(one, "p0")
        consume(one, "p1")
        one.ledger.plan_rounds(one.row)
        run(one)
    assert one.ledger.unallocated(one.row, "black") == 5
    assert one.ledger.plan_rounds(one.row) == []
    assert one.report().counts["reserved"] > 0
    assert one.report().balanced


def test_5_3_a_round_leaves_what_a_restock_down_wants(shop):
    """Units that are to leave the total are not lent out again."""
    one = shop(holds=True, skus={"black": 100})
    run(one)
    consume(one, "p0")
    one.ledger.restock(one.row, "black", -75, restock_id="r", actor="op")
    assert one.ledger.plan_rounds(one.row) == []


def test_5_3_a_sale_without_grants_plans_no_round(shop):
    """Nothing is warmed: nothing to fund."""
    one = shop(holds=True)
    one.sql("DELETE FROM grants")
    assert one.ledger.plan_rounds(one.row) == []


def run(one):
    for row in one.ledger.open_fundings(one.row):
        one.ledger.move(row.id, None)
        one.ledger.credited([row.id])


_ids = itertools.count()


def consume(one, place):
    free = one.free()[place, "black"]
    if free:
        assert one.buy(f"eater{next(_ids)}", lines=free, place=place).code is Code.ACCEPTED


def test_d10_five_units_over_ten_segments_sell_exactly_five(shop):
    """Home segment, then gather, then the ledger's truth."""
    one = shop(skus={"black": 5}, places=10)
    sold = 0
    for n in range(40):
        answer = one.buy(f"b{n}")
        if isinstance(answer, Short):
            one.ledger.gather(one.sale, 1, {(one.item(f"b{n}").place, "black"): 1})
            answer = one.buy(f"b{n}")
        sold += not isinstance(answer, Short)
    assert sold == 5
    assert one.ledger.view().sold_out(one.sale).skus == {"black"}
    assert one.report().balanced


def test_5_3_gather_takes_unallocated_first_then_the_richest(shop):
    """And a little more than was asked, so that the place does not ask at once again."""
    one = shop(skus={"black": 60}, places=3)
    one.buy("ann", lines=20, place="p0")
    one.buy("bob", lines=10, place="p1")
    one.ledger.restock(one.row, "black", 2, restock_id="r", actor="op")
    assert one.ledger.gather(one.sale, 1, {("p0", "black"): 3}) == 3
    assert one.free() == {("p0", "black"): 3, ("p1", "black"): 10, ("p2", "black"): 19}
    one.buy("cat", lines=3, place="p0")
    assert one.ledger.gather(one.sale, 1, {("p0", "black"): 1}) == 2
    assert one.free()["p2", "black"] == 17
    assert one.report().balanced


def test_5_3_gather_of_several_skus_fills_one_place_before_the_next(shop):
    """Sorted by place, then sku; what a place has already is not moved again."""
    one = shop(skus={"black": 4, "white": 4}, places=2)
    wants = {
        ("p1", "white"): 3,
        ("p1", "black"): 3,
        ("p0", "white"): 1,
        ("p9", "black"): 1,
    }
    assert one.ledger.gather(one.sale, 1, wants) == 2
    assert one.free()["p1", "black"] == one.free()["p1", "white"] == 3


def test_5_3_a_gather_that_cannot_move_writes_nothing(shop):
    """A sold-out sale asks for every batch: no row, no lock."""
    one = shop(skus={"black": 2}, places=2)
    one.buy("ann", place="p0")
    assert one.ledger.gather(one.sale, 1, {("p1", "black"): 2, ("p1", "grey"): 1}) == 0
    one.buy("bob", place="p1")
    rows = one.count("fundings")
    with one.ledger.database.transaction():
        pass
    assert one.ledger.gather(one.sale, 1, {("p0", "black"): 1}) == 0
    assert one.ledger.gather(one.sale, 1, {}) == 0
    assert one.count("fundings") == rows


def test_5_1_gather_after_the_fence_moves_nothing(shop):
    """DRAINING units belong to the hand-over."""
    one = shop(places=2)
    one.buy("ann", lines=5, place="p0")
    one.sql("UPDATE grants SET state = 'DRAINING'")
    assert one.ledger.gather(one.sale, 1, {("p0", "black"): 1}) == 0


# ------------------------------------------------------------------ 5.5 restock
def test_5_5_a_restock_is_applied_once(shop):
    """Up adds to total and unallocated, and voids older sold-out marks (L3)."""
    one = shop()
    version = one.row.version
    up = {"restock_id": "r1", "actor": "op"}
    assert one.ledger.restock(one.row, "black", 5, **up)
    assert not one.ledger.restock(one.row, "black", 5, **up)
    assert stock(one) == [(15, 5, 0)]
    assert one.row.version == version + 1
    assert one.buy("ann").code is Code.ACCEPTED
    assert one.report().balanced
    with pytest.raises(ConfigError, match="another change needs another id"):
        one.ledger.restock(one.row, "black", 6, **up)


@pytest.mark.parametrize(
    ("sku", "units", "message"),
    [
        ("blak", 1, "did you mean 'black'"),
        ("black", 0, "up or down"),
        ("black", 10**12, "up or down"),
        ("black", -11, "the sale has 10 units"),
    ],
)
def test_5_5_a_restock_that_cannot_be_is_refused(shop, sku, units, message):
    """With a sentence that says what is possible."""
    one = shop()
    with pytest.raises(ConfigError, match=message):
        one.ledger.restock(one.row, sku, units, restock_id="r", actor="op")
    assert one.count("restocks") == 0


def test_5_5_down_takes_free_units_now_and_the_rest_as_they_come_back(shop):
    """Accepted units are never touched; ``wanted`` stays until it is met."""
    one = shop(places=2)
    one.buy("ann", lines=4, place="p0")
    one.buy("bob", lines=4, place="p1")
    one.ledger.restock(one.row, "black", -9, restock_id="r", actor="op")
    assert stock(one) == [(10, 0, 9)]
    assert one.ledger.take_wanted(one.row, router=True) == {"black": 7}
    assert stock(one) == [(8, 0, 7)]
    assert one.report().balanced
    one.give_back("bob")
    assert one.ledger.take_wanted(one.row, router=True) == {"black": 3}
    one.give_back("ann")
    assert one.ledger.take_wanted(one.row, router=True) == {}
    assert stock(one) == [(1, 1, 0)]
    assert one.ledger.take_wanted(one.row, router=True) == {}
    assert one.report().balanced
    with pytest.raises(ConfigError, match="the sale has 1 units"):
        one.ledger.restock(one.row, "black", -2, restock_id="r2", actor="op")


def test_5_5_down_takes_only_some_of_a_richer_place(shop):
    """No more is collected than is wanted."""
    one = shop(skus={"black": 10, "white": 3}, places=2)
    one.ledger.restock(one.row, "black", -6, restock_id="r", actor="op")
    assert one.ledger.take_wanted(one.row, router=True) == {}
    assert one.free()["p0", "black"] + one.free()["p1", "black"] == 4
    assert stock(one) == [(4, 0, 0), (3, 0, 0)]


def test_5_5_a_debit_for_a_restock_leaves_the_total_in_one_transaction(shop):
    """Up to ``wanted`` leaves the total, the rest goes to unallocated."""
    one = shop(holds=True, skus={"black": 100})
    plan(one, 100)
    one.ledger.move("f1", None)
    one.ledger.credited(["f1"])
    one.ledger.restock(one.row, "black", -30, restock_id="r", actor="op")
    assert one.ledger.take_wanted(one.row, router=False) == {"black": 30}
    plan(one, 30, source="p0", target=UNALLOCATED, kind="restock", funding_id="f2")
    assert one.ledger.move("f2", 40).state is FundingState.CREDITED
    assert stock(one) == [(70, 10, 0)]
    assert one.report().balanced


# ------------------------------------------------------------------ 7 sold out
def test_7_1_sold_out_is_one_read_of_the_ledgers_truth(shop):
    """Nothing unallocated, no open funding, every grant consumed; with epoch and version."""
    one = shop(skus={"black": 2, "white": 1}, places=2)
    one.buy("ann", lines={"black": 1}, place="p0")
    assert one.ledger.view().sold_out(one.sale).skus == frozenset()
    one.buy("bob", lines={"black": 1}, place="p1")
    read = one.ledger.view().sold_out(one.sale)
    assert (read.skus, read.epoch, read.version) == ({"black"}, 1, one.row.version)
    assert read.read_at_s == one.clock.monotonic_s()
    assert one.ledger.view().left(one.sale) == {"black": 0, "white": 1}


def test_7_1_nothing_is_sold_out_while_units_are_under_way(shop):
    """An open funding, a unit that came back, a fence: each says no."""
    one = shop(skus={"black": 1})
    one.buy("ann")
    assert one.ledger.left(one.sale)["black"].sold_out
    plan(one, 1)
    assert not one.ledger.left(one.sale)["black"].sold_out
    one.ledger.move("f1", None)
    one.give_back("ann", to=IntentState.RELEASED)
    assert one.ledger.left(one.sale)["black"].unallocated == 1
    one.ledger.gather(one.sale, 1, {("p0", "black"): 1})
    one.sql("UPDATE grants SET state = 'DRAINING'")
    assert not one.ledger.left(one.sale)["black"].sold_out
    one.sql("UPDATE grants SET state = 'CLOSED'")
    assert one.ledger.left(one.sale)["black"].sold_out


def test_7_2_too_few_for_the_quantity_leaves_the_rest_for_others(shop):
    """Short says what was missing; the ledger says what remains, and that is no mark."""
    one = shop(skus={"black": 3})
    assert one.buy("ann", lines=5) == Short({"black": 5})
    left = one.ledger.left(one.sale)["black"]
    assert (left.free, left.sold_out) == (3, False)
    assert one.buy("bob", lines=3).code is Code.ACCEPTED
