"""Each invariant is planted with a violation by raw SQL: a check that cannot fail is a defect."""

from __future__ import annotations

import pytest

from doorbuster.ledger import Limits
from doorbuster.ledger.invariants import INVARIANTS
from doorbuster.model import IntentState, PerBuyer
from doorbuster.outcomes import Persisted


@pytest.fixture
def sold(shop):
    """A sale: ann has 2, bob's 1 was returned, cat's 1 is RESERVED, dan's 1 ABORTED."""
    one = shop(places=2, per_buyer=PerBuyer(sale=2))
    one.buy("ann", lines=2)
    one.buy("bob")
    one.persist()
    one.give_back("bob", to=IntentState.CANCELLED)
    one.buy("cat")
    one.ledger.tombstone(one.sale, 1, [one.item("dan")], code=-6, holds=False)
    assert one.report().balanced
    assert one.report().violations == []
    return one


def check(one, law, *words, drift=0):
    """Just ``law`` is broken, and a sentence says so."""
    report = one.report()
    assert [name for name in INVARIANTS if not report.invariants[name]] == [law]
    assert report.balanced is (law == "I7")
    assert report.drift == drift
    told = [text for text in report.violations if text.startswith(f"{law}: ")]
    assert any(all(word in text for word in words) for text in told), report.violations


def number(one, buyer):
    return one.item(buyer).order_no


def test_a_balanced_report_counts_everything(sold):
    """What a person and a machine read of a sale."""
    report = sold.report()
    assert (report.sale, report.run, report.epoch, report.state) == ("drop", 1, 1, "open")
    assert report.equation == [
        {
            "sku": "black",
            "total": 10,
            "unallocated": 1,
            "suspense": 0,
            "free": 6,
            "consumed": 3,
            "accepted": 3,
            "wanted": 0,
        }
    ]
    assert [row["live"] for row in report.grants] == [row["consumed"] for row in report.grants]
    assert report.counts == {
        "intents": {"ABORTED": 1, "CANCELLED": 1, "CREATED": 1, "RESERVED": 1},
        "orders": 1,
        "releases": 1,
        "pending_batches": 1,
        "reserved": 1,
        "returning": 0,
        "undo_pending": 0,
        "dead_letters": 0,
    }


def test_an_empty_sale_is_balanced(shop):
    """No row is no violation."""
    assert shop().report().balanced


# ------------------------------------------------------------------ I1, I2, drift
def test_i1_more_accepted_than_the_total(sold):
    """Oversold; the terms are planted so that I2 still adds up."""
    sold.sql("UPDATE stock SET total = 2, unallocated = -1")
    sold.sql("UPDATE grants SET quantity = consumed")
    report = sold.report()
    assert not report.invariants["I1"]
    assert "I1: 3 of black are accepted, the total is 2" in report.violations
    assert not report.balanced


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE stock SET unallocated = 2", ["= 11, the total is 10"]),
        ("UPDATE stock SET suspense = 1", ["= 11, the total is 10"]),
        ("UPDATE stock SET total = 11", ["= 10, the total is 11"]),
        ("UPDATE grants SET state = 'CLOSED' WHERE place = 'p1'", ["the total is 10"]),
    ],
)
def test_i2_a_unit_too_much_or_missing(sold, statement, words):
    """The equation of each sku, every term named."""
    sold.sql(statement)
    drift = sold.report().drift
    assert drift > 0
    check(sold, "I2", *words, drift=drift)


@pytest.mark.parametrize("name", ["unallocated", "suspense"])
def test_i2_no_term_is_negative(sold, name):
    """Also where the sum is right."""
    other = "suspense" if name == "unallocated" else "unallocated"
    sold.sql(f"UPDATE stock SET {name} = -1, {other} = 2")
    check(sold, "I2", f"{name} of black is -1")


def test_i2_wanted_is_never_negative(sold):
    """A restock down that took more than it wanted."""
    sold.sql("UPDATE stock SET wanted = -1")
    check(sold, "I2", "wanted of black is -1")


def test_i2_a_grant_that_consumed_more_than_it_had(sold):
    """Negative free units hide in no sum."""
    sold.sql("UPDATE grants SET quantity = -1 WHERE place = 'p0'")
    report = sold.report()
    assert not report.invariants["I2"]
    assert any("grant p0/black of epoch 1 has quantity -1" in text for text in report.violations)


def test_drift_is_what_grants_say_against_what_intents_hold(sold):
    """Every invariant may hold and the sale still not be balanced."""
    sold.sql("UPDATE grants SET consumed = consumed + 1 WHERE place = 'p0'")
    sold.sql("UPDATE grants SET consumed = consumed - 1 WHERE place = 'p1'")
    report = sold.report()
    assert all(report.invariants.values())
    assert (report.drift, report.balanced) == (2, False)
    assert sum(text.startswith("drift: grant ") for text in report.violations) == 2


def test_drift_of_units_where_there_is_no_grant(sold):
    """Live intents in a place nobody funded count as sold units too (I1)."""
    sold.sql("UPDATE intents SET place = 'gone' WHERE buyer = 'ann'")
    report = sold.report()
    assert report.drift == 4
    assert "drift: live intents hold 2 of black at gone in epoch 1, where there is no grant" in (
        report.violations
    )
    assert report.equation[0]["accepted"] == 3


# ------------------------------------------------------------------ I3
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DELETE FROM orders WHERE buyer = 'ann'", ["1 CREATED intents have no order"]),
        ("DELETE FROM orders", ["1 CREATED intents have no order"]),
        ("UPDATE orders SET state = 'VOID' WHERE buyer = 'ann'", ["have no order"]),
        ("UPDATE orders SET state = 'CREATED' WHERE buyer = 'bob'", ["still have a valid order"]),
        ("DELETE FROM releases", ["1 CANCELLED intents have neither an order nor a release"]),
        ("UPDATE outbox SET done = 1", ["1 RESERVED intents are in no open batch"]),
        ("DELETE FROM outbox", ["1 RESERVED intents are in no open batch"]),
    ],
)
def test_i3_an_accepted_attempt_without_its_order_or_release(sold, statement, words):
    """Lost, revived, or never to be persisted."""
    sold.sql(statement)
    check(sold, "I3", *words)


def test_i3_sees_a_lost_order_beside_one_that_is_kept_elsewhere(sold):
    """The mark is an intent's: of one batch, one order may be elsewhere and another lost."""
    sold.accept(sold.item("eve"), sold.item("fay"))
    batches = [claim.batch for claim in sold.claim()]
    items = sold.ledger.reservations_of(batches, sold.sale)
    (eve,) = [item for item in items if item.attempt.buyer == "eve"]
    sold.ledger.settle_persisted(sold.sale, [eve], [Persisted.CREATED])
    sold.create([item for item in items if item is not eve])
    assert sold.report().balanced
    sold.sql("DELETE FROM orders WHERE buyer = 'fay'")
    check(sold, "I3", number(sold, "fay"))


def test_i3_a_paid_attempt_needs_its_order(sold):
    """As a created one does."""
    sold.sql("UPDATE intents SET state = 'PAID' WHERE state = 'CREATED'")
    assert sold.report().balanced
    sold.sql("DELETE FROM orders WHERE buyer = 'ann'")
    check(sold, "I3", "PAID", number(sold, "ann"))


def test_i3_an_order_that_no_intent_explains(sold):
    """Found among any number of orders; sentences are bounded."""
    for n in range(7):
        insert_order(sold, sold.item(f"ghost{n}"))
    check(sold, "I3", "has no intent")
    told = [text for text in sold.report().violations if text.startswith("I3: ")]
    assert len(told) == 6
    assert told[-1] == "I3: and 2 more like this"


def test_i3_an_order_of_an_aborted_attempt(sold):
    """ABORTED is never an order."""
    insert_order(sold, sold.item("dan"))
    check(sold, "I3", "1 ABORTED intents have an order", number(sold, "dan"))


def test_i3_orders_of_another_run_are_explained_by_it(sold):
    """Runs share the orders table; each is checked alone."""
    sold.sql(
        "INSERT INTO sales SELECT 99, environment, sale, 0, state, epoch, kind, deduct, journal, "
        "config_mode, requested, fuse, effective, version, opens_at_ms, closes_at_ms, limits, "
        "limits_max, created_at_ms FROM sales"
    )
    sold.sql(
        "INSERT INTO intents SELECT 99, 99, buyer, request_id, 'old', lines, epoch, place, state, "
        "code, batch, away, at_ms FROM intents WHERE buyer = 'ann'"
    )
    insert_order(sold, sold.item("ann"), order_no="old")
    assert sold.report().balanced


def insert_order(one, item, **other):
    row = one.order(item, **other)
    names = ", ".join(row)
    marks = ", ".join("?" * len(row))
    one.sql(f"INSERT INTO orders ({names}) VALUES ({marks})", *row.values())


def test_i3_what_is_in_progress_is_no_violation(sold):
    """RESERVED in an open batch, RESERVED in a dead letter, RETURNING with its job."""
    sold.ledger.begin_return(
        sold.row, "ann", "r1", to=IntentState.CANCELLED, reason="late", actor="op"
    )
    sold.sql(
        "INSERT INTO dead_letters SELECT order_no, sid, id, 'why', 0 FROM intents "
        "WHERE state = 'RESERVED'"
    )
    sold.sql("UPDATE outbox SET done = 1")
    report = sold.report()
    assert report.balanced
    assert report.violations == []


# ------------------------------------------------------------------ I4
def test_i4_two_intents_with_one_order_no(sold):
    """An order number is one identity's."""
    sold.sql("UPDATE intents SET order_no = ? WHERE buyer = 'dan'", number(sold, "cat"))
    check(sold, "I4", f"two intents have the order_no {number(sold, 'cat')}")


@pytest.mark.parametrize("column", ["buyer", "request_id", "lines"])
def test_i4_an_order_that_is_not_its_intents(sold, column):
    """Same number, other content."""
    sold.sql(f"UPDATE orders SET {column} = 'x=1' WHERE buyer = 'ann'")
    check(sold, "I4", "1 orders have another buyer, request or lines")


# ------------------------------------------------------------------ I5
def test_i5_a_buyer_above_the_highest_limit_so_far(sold):
    """Counted from live intents; a lowered limit is no violation, a passed one is."""
    sold.ledger.change_control(sold.row, actor="op", action="limits", limits=Limits(sale=1))
    assert sold.report().balanced
    sold.sql("UPDATE sales SET limits_max = limits")
    check(sold, "I5", f"the buyer of order {number(sold, 'ann')} has 2 of *, at most 1")
    assert not any("ann" in text for text in sold.report().violations)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE quotas SET bought = 1 WHERE buyer = 'ann'", ["bought 1 of *", "2 by live"]),
        ("UPDATE quotas SET bought = 1 WHERE buyer = 'bob'", ["bought 1 of *", "0 by live"]),
        ("DELETE FROM quotas WHERE buyer = 'cat'", ["bought 0 of *", "1 by live"]),
        (
            "INSERT INTO quotas SELECT sid, 'zoe', scope, 1 FROM quotas LIMIT 1",
            ["a buyer without an intent"],
        ),
        ("INSERT INTO quotas SELECT sid, 'ann', 'black', 2 FROM quotas LIMIT 1", ["of black"]),
    ],
)
def test_i5_a_quota_that_intents_do_not_explain(sold, statement, words):
    """Too low, too high, missing, of nobody, of a scope the sale does not keep."""
    sold.sql(statement)
    check(sold, "I5", *words)


def test_i5_sentences_are_bounded(sold):
    """And only the first ones cost a look-up."""
    sold.sql("UPDATE stock SET total = 99, unallocated = unallocated + 89")
    sold.ledger.gather(sold.sale, 1, {("p0", "black"): 40, ("p1", "black"): 40})
    for n in range(8):
        sold.buy(f"b{n}")
    sold.sql("DELETE FROM quotas")
    told = [text for text in sold.report().violations if text.startswith("I5: ")]
    assert len(told) == 6
    assert told[-1] == "I5: and 5 more like this"


def test_i5_of_a_sale_with_several_skus_is_per_sku_too(shop):
    """Each scope on its own."""
    one = shop(skus={"black": 5, "white": 5}, per_buyer=PerBuyer(sku=2))
    one.buy("ann", "r1", {"black": 2, "white": 1})
    one.buy("ann", "r2", {"white": 1})
    assert one.report().balanced
    one.sql("UPDATE quotas SET bought = 1 WHERE scope = 'white'")
    check(one, "I5", "bought 1 of white", "2 by live intents")


# ------------------------------------------------------------------ I6
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE releases SET state = 'EXPIRED'", ["1 CANCELLED intents", "as EXPIRED"]),
        ("UPDATE releases SET lines = 'black=9'", ["other lines"]),
        ("UPDATE releases SET reason = ''", ["no reason"]),
        ("UPDATE releases SET actor = ''", ["no reason or actor"]),
    ],
)
def test_i6_a_release_that_does_not_fit_its_intent(sold, statement, words):
    """Another end state, other units, or nobody who answers for it."""
    sold.sql(statement)
    check(sold, "I6", *words)


def test_i6_never_a_release_while_paid(sold):
    """The buyer has paid: the unit is not sellable."""
    release = "INSERT INTO releases SELECT ?, sid, 'black=2', 'REFUNDED', 'w', 'a', 0, 0 FROM sales"
    sold.sql(release, number(sold, "ann"))
    sold.sql("UPDATE intents SET state = 'PAID' WHERE buyer = 'ann'")
    check(sold, "I6", "1 PAID intents have a release as REFUNDED")


def test_i6_a_release_of_nothing(sold):
    """Units cannot come back from where none went."""
    sold.sql(
        "INSERT INTO releases SELECT 'x', sid, 'black=1', 'RELEASED', 'w', 'a', 0, 0 FROM sales"
    )
    check(sold, "I6", "1 releases have no intent")


# ------------------------------------------------------------------ I7
def test_i7_an_order_that_waits_too_long(sold):
    """The backlog is late, not wrong: the sale is balanced."""
    sold.clock.advance(30)
    assert sold.report().invariants["I7"]
    sold.clock.advance(0.001)
    check(sold, "I7", "1 RESERVED intents wait")
    sold.persist()
    assert sold.report().invariants["I7"]


def test_i7_a_hold_that_waits_too_long_to_be_given_back(sold):
    """Undo jobs too."""
    sold.persist()
    sold.ledger.tombstone(sold.sale, 1, [sold.item("eve")], code=-6, holds=True)
    sold.clock.advance(31)
    check(sold, "I7", "1 holds wait to be given back")
    assert sold.report().counts["undo_pending"] == 1


def test_i7_a_return_that_waits_too_long(sold):
    """From the moment it began, not from the accept."""
    sold.persist()
    sold.clock.advance(31)
    sold.ledger.begin_return(
        sold.row, "ann", "r1", to=IntentState.CANCELLED, reason="late", actor="op"
    )
    assert sold.report().invariants["I7"]
    sold.clock.advance(31)
    check(sold, "I7", "1 returns are not finished")


def test_i7_a_return_that_nobody_will_finish(sold):
    """RETURNING without a job is found at once."""
    sold.sql("UPDATE intents SET state = 'RETURNING' WHERE buyer = 'ann'")
    check(sold, "I7", f"no job finishes the return of order {number(sold, 'ann')}")
