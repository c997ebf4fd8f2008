"""protocol.md 1, 2 and 4.1: who decides, what an identity is, what the accept transaction does."""

from __future__ import annotations

import pytest

from doorbuster.errors import ContractError, UnknownSaleError
from doorbuster.ledger import UNALLOCATED, Limits, Short
from doorbuster.model import IntentState, Kind, PerBuyer, Reservation, Sale, SaleState
from doorbuster.outcomes import Code, Outcome


def codes(answers):
    return [getattr(answer, "code", answer) for answer in answers]


# ------------------------------------------------------------------ 1 who decides
@pytest.mark.parametrize("holds", [True, False])
def test_1_1_a_batch_of_another_epoch_writes_nothing(shop, holds):
    """A batch with another epoch is fenced: BUSY, not final, and no row, no tombstone either."""
    one = shop(holds=holds)
    for epoch in (0, 2):
        (answer,) = one.accept(one.item("ann"), epoch=epoch)
        assert answer.code is Code.BUSY
        assert not answer.final
    assert one.count("intents") == 0
    assert one.report().balanced


def test_1_1_a_batch_of_another_kind_writes_nothing(shop):
    """Kind belongs to the epoch: a journal's batch meets a sale of kind H."""
    one = shop()
    item = one.item("ann")
    (answer,) = one.ledger.accept(one.batch([item], kind=Kind.J), [item], holds=False).answers
    assert answer.code is Code.BUSY
    assert one.count("intents") == 0


def test_1_1_a_replay_in_a_stale_batch_is_answered_from_the_ledger(shop):
    """What is stored is the answer, whatever epoch asks."""
    one = shop()
    first = one.buy("ann")
    replay, other = one.accept(one.item("ann"), one.item("bob"), epoch=7)
    assert (replay.code, replay.order_no) == (Code.ACCEPTED, first.order_no)
    assert other.code is Code.BUSY


def test_1_the_ledger_refuses_what_a_holder_wrongly_admits(shop):
    """A wrong admit is refused by the ledger: nobody sells above the grant."""
    one = shop(skus={"black": 40}, holds=True)
    fund(one)
    free = one.free()["p0", "black"]
    answers = one.accept(*[one.item(f"b{n}") for n in range(free + 5)])
    assert codes(answers) == [Code.ACCEPTED] * free + [Code.BUSY] * 5
    assert one.free()["p0", "black"] == 0
    assert one.report().balanced


def fund(one):
    for row in one.ledger.open_fundings(one.row):
        one.ledger.move(row.id, None)
        one.ledger.credited([row.id])


# ------------------------------------------------------------------ 2 identity
def test_2_1_two_buyers_with_one_request_id_are_two_attempts(shop):
    """The identity holds the buyer: both are served."""
    one = shop()
    ann, bob = one.accept(one.item("ann", "same"), one.item("bob", "same"))
    assert ann.code is bob.code is Code.ACCEPTED
    assert ann.order_no != bob.order_no


def test_2_1_a_new_run_is_a_new_identity(shop):
    """Run is part of the identity, and two runs never sell at once."""
    one = shop()
    one.buy("ann")
    again = Sale(id="drop", skus=one.sale.skus, run=2)
    make = {"run": 2, "kind": Kind.H, "deduct": "x", "journal": "ledger", "actor": "test"}
    with pytest.raises(ValueError, match="run 1 is open; end it before run 2"):
        one.ledger.create_sale(again, **make)
    one.ledger.set_state(one.row, allowed=[SaleState.OPEN], to=SaleState.ENDED, actor="test")
    row = one.ledger.create_sale(again, **make)
    assert row.run == 2
    assert one.ledger.results(row, [("ann", "r1")]) == [None]
    with pytest.raises(UnknownSaleError):
        one.ledger.sid(Sale(id="drop", skus={}, run=3))


def test_2_1_a_query_needs_the_buyer(shop):
    """Another buyer's request_id says nothing."""
    one = shop()
    one.buy("ann")
    mine, other = one.ledger.results(one.row, [("ann", "r1"), ("bob", "r1")])
    assert mine.code is Code.ACCEPTED
    assert other is None
    assert one.ledger.results(one.row, []) == []


def test_2_2_the_stored_order_no_is_answered_after_a_key_change(shop):
    """Keys may rotate: a replay gets the number it was first told."""
    one = shop()
    first = one.buy("ann")
    other = Reservation(one.item("ann").attempt, "p0", "f" * 32, 1)
    (replay,) = one.accept(other)
    assert replay.order_no == first.order_no


def test_2_3_the_same_identity_with_other_content_is_refused(shop):
    """KEY_REUSED, and nothing changes."""
    one = shop()
    one.buy("ann", lines=1)
    assert one.buy("ann", lines=2).code is Code.KEY_REUSED
    assert one.free()["p0", "black"] == 9
    assert one.report().balanced


# ------------------------------------------------------------------ 4.1 accept
def test_4_1_an_accept_is_intent_quota_grant_and_outbox_at_once(shop):
    """All four are one transaction."""
    one = shop(per_buyer=PerBuyer(sale=5))
    answer = one.buy("ann", lines=2)
    assert answer == Outcome(Code.ACCEPTED, order_no=one.item("ann").order_no)
    assert one.sql("SELECT state, lines, place FROM intents") == [("RESERVED", "black=2", "p0")]
    assert one.sql("SELECT buyer, scope, bought FROM quotas") == [("ann", "*", 2)]
    assert one.sql("SELECT quantity, consumed FROM grants") == [(10, 2)]
    assert one.sql("SELECT n, done FROM outbox") == [(1, 0)]
    assert one.report().balanced


def test_4_1_only_really_inserted_rows_count(shop):
    """A batch sent twice consumes once, and both are answered alike."""
    one = shop()
    items = [one.item(f"b{n}") for n in range(4)]
    first = one.accept(*items)
    second = one.accept(*items, one.item("new"))
    assert codes(second) == [Code.ACCEPTED] * 5
    assert [answer.order_no for answer in second[:4]] == [answer.order_no for answer in first]
    assert [answer.order_state for answer in second] == ["RESERVED"] * 4 + [None]
    assert one.free()["p0", "black"] == 5
    assert one.count("outbox") == 2
    assert one.report().balanced


def test_4_1_a_batch_of_replays_writes_no_outbox_row(shop):
    """Nothing fresh, nothing to persist."""
    one = shop()
    one.buy("ann")
    done = one.ledger.accept(one.batch([one.item("ann")]), [one.item("ann")], holds=False)
    assert (done.batch, list(done.fresh), done.undo) == (None, [], False)
    assert one.count("outbox") == 1


def test_4_1_aborted_is_never_accepted(shop):
    """A replay of a tombstone gets its code, final; also code 0, which is SOLD_OUT."""
    one = shop()
    for buyer, code in (("ann", Code.BUSY), ("bob", Code.SOLD_OUT)):
        assert one.ledger.tombstone(one.sale, 1, [one.item(buyer)], code=code, holds=False) == [
            None
        ]
        assert one.buy(buyer) == Outcome(code, final=True)
    assert one.count("intents", "state = 'RESERVED'") == 0


def test_4_1_a_buyers_second_attempt_in_a_batch_meets_the_limit(shop):
    """Later items see earlier ones; the refused row of a router is removed."""
    one = shop(per_buyer=PerBuyer(sku=2))
    answers = one.accept(*[one.item("ann", f"r{n}") for n in range(3)], one.item("bob"))
    assert codes(answers) == [Code.ACCEPTED, Code.ACCEPTED, Code.OVER_LIMIT, Code.ACCEPTED]
    assert answers[2].detail == {"limit": 2, "bought": 2}
    assert not answers[2].final
    assert one.count("intents") == 3
    assert one.report().balanced


def test_4_1_a_quota_refusal_lets_the_rest_of_the_batch_through(shop):
    """Refusals are decided inside the transaction, never by failing it."""
    one = shop(per_buyer=PerBuyer(sale=1))
    one.buy("ann")
    answers = one.accept(one.item("ann", "r2"), one.item("bob"), one.item("cat"))
    assert codes(answers) == [Code.OVER_LIMIT, Code.ACCEPTED, Code.ACCEPTED]


def test_4_1_limit_is_judged_before_stock(shop):
    """S0-14: who is over the limit hears that, not that units are short."""
    one = shop(skus={"black": 1}, per_buyer=PerBuyer(sale=1))
    one.buy("ann")
    assert one.buy("ann", "r2").code is Code.OVER_LIMIT
    assert one.buy("bob") == Short({"black": 1})


def test_4_1_a_short_attempt_leaves_nothing_and_others_pass(shop):
    """All lines or none; a smaller attempt behind it still fits."""
    one = shop(skus={"black": 3, "white": 1})
    answers = one.accept(
        one.item("ann", lines={"black": 1, "white": 2}),
        one.item("bob", lines={"black": 3, "white": 1}),
        one.item("cat", lines={"black": 1}),
    )
    assert answers[0] == Short({"white": 2})
    assert answers[1].code is Code.ACCEPTED
    assert answers[2] == Short({"black": 1})
    assert one.count("intents") == 1
    assert one.report().balanced


def test_4_1_quotas_count_per_sku_per_sale_and_per_attempt(shop):
    """Each scope refuses on its own, and a refusal adds to none."""
    one = shop(skus={"black": 9, "white": 9}, per_buyer=PerBuyer(sku=2, sale=3, attempt=3))
    assert one.buy("ann", "r1", {"black": 2, "white": 2}).detail == {
        "limit": 3,
        "scope": "attempt",
    }
    assert one.buy("ann", "r2", {"black": 3}).detail == {"limit": 2, "bought": 0}
    assert one.buy("ann", "r3", {"black": 2}).code is Code.ACCEPTED
    assert one.buy("ann", "r4", {"black": 1}).detail == {"limit": 2, "bought": 2}
    assert one.buy("ann", "r4", {"black": 1}).detail == {"limit": 2, "bought": 2}
    assert one.buy("ann", "r5", {"white": 1}).code is Code.ACCEPTED
    assert one.buy("ann", "r6", {"white": 1}).detail == {"limit": 3, "bought": 3}
    assert one.sql("SELECT scope, bought FROM quotas ORDER BY scope") == [
        ("*", 3),
        ("black", 2),
        ("white", 1),
    ]
    assert one.report().balanced


def test_4_1_a_sale_of_one_sku_keeps_one_quota_row(shop):
    """The smaller of the sku's and the sale's limit holds, counted once."""
    one = shop(per_buyer=PerBuyer(sku=3, sale=2))
    assert one.buy("ann", lines=3).detail == {"limit": 2, "bought": 0}
    assert one.buy("ann", lines=2).code is Code.ACCEPTED
    assert one.count("quotas") == 1


def test_4_1_the_ledgers_skus_decide_not_configs(shop):
    """A sku that config added later is INVALID, and the quota scopes stay what they were."""
    one = shop(per_buyer=PerBuyer(sale=1))
    one.buy("ann")
    one.sale = Sale(id="drop", skus={**one.sale.skus, "white": one.sale.skus["black"]})
    assert one.buy("ann", "r2").code is Code.OVER_LIMIT
    unknown = one.buy("bob", lines={"white": 1})
    assert (unknown.code, unknown.detail) == (Code.INVALID, {"reason": "unknown-sku"})
    assert one.report().balanced


def test_4_1_a_place_without_a_grant_is_busy_never_sold_out(shop):
    """A router that names a place of another epoch gets no unit and tells no lie."""
    one = shop()
    answer = one.buy("ann", place="elsewhere")
    assert (answer.code, answer.detail) == (Code.BUSY, {"reason": "no-grant"})
    assert one.count("intents") == 0


def test_4_1_the_outbox_row_can_be_leased_to_the_accepting_process(shop):
    """Delivery INLINE: nobody else claims the batch before the lease is over."""
    one = shop()
    item, until = one.item("ann"), one.ledger.now_ms() + 1000
    one.ledger.accept(one.batch([item]), [item], holds=False, lease=("me", until))
    assert one.ledger.claim(owner="w", rows=10, lease_s=30) == []
    one.clock.advance(1)
    assert len(one.ledger.claim(owner="w", rows=10, lease_s=30)) == 1


def test_4_1_a_guard_that_fails_under_the_lock_rolls_everything_back(shop):
    """The guards are the last net: a grant under another version takes nothing."""
    one = shop()
    one.sql("UPDATE grants SET version = 99")
    with pytest.raises(ContractError, match="1 guards"):
        one.buy("ann")
    assert one.count("intents") == one.count("quotas") == one.count("outbox") == 0


# ------------------------------------------------------------------ 6.6 control values
def test_6_6_a_change_of_limits_holds_from_its_commit(shop):
    """Also a lowered one, for buyers who are above it already; I5 keeps the highest."""
    one = shop(per_buyer=PerBuyer(sale=3))
    one.buy("ann", lines=2)
    row = one.ledger.change_control(one.row, actor="op", action="limits", limits=Limits(sale=1))
    assert (row.version, row.limits.sale, row.limits_max.sale) == (3, 1, 3)
    assert one.buy("ann", "r2").code is Code.OVER_LIMIT
    assert one.buy("bob").code is Code.ACCEPTED
    assert one.report().balanced


def test_6_6_no_limit_is_the_highest():
    """Per value: the higher one, and none beats any number."""
    low, high = Limits(1, 2, None, {"black": 2}), Limits(3, None, 5, {"white": 1})
    assert low.highest(high) == Limits(3, None, None, {"black": 5})
    assert Limits(sku=1).highest(Limits(sku=4, skus={"black": 2})) == Limits(
        sku=4, skus={"black": 2}
    )


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (SaleState.WARMED, Code.NOT_STARTED),
        (SaleState.PAUSED, Code.CLOSED),
        (SaleState.ENDED, Code.ENDED),
    ],
)
def test_6_6_the_accept_transaction_judges_the_state_itself(shop, state, code):
    """A node that has not heard of it yet still sells nothing; replays are answered."""
    one = shop()
    one.buy("ann")
    one.ledger.set_state(one.row, allowed=[SaleState.OPEN], to=state, actor="op")
    replay, other = one.accept(one.item("ann"), one.item("bob"))
    assert replay.code is Code.ACCEPTED
    assert other.code is code
    assert one.count("intents") == 1


def test_6_6_resume_never_changes_a_grants_state(shop):
    """Pause and resume are the control row's; set_state is a compare-and-set."""
    one = shop()
    pause = {"allowed": [SaleState.OPEN], "to": SaleState.PAUSED, "actor": "op"}
    assert one.ledger.set_state(one.row, **pause).state is SaleState.PAUSED
    assert one.ledger.set_state(one.row, **pause) is None
    one.ledger.set_state(one.row, allowed=[SaleState.PAUSED], to=SaleState.OPEN, actor="op")
    assert one.sql("SELECT state FROM grants") == [("ACTIVE",)]
    assert one.buy("ann").code is Code.ACCEPTED


def test_6_6_mode_closed_and_the_window_are_judged_by_ledger_time(shop):
    """No list of gates can forget them (S0-62)."""
    now = 1_700_000_000_000
    one = shop(opens_at_ms=now + 1000, closes_at_ms=now + 2000)
    early = one.buy("ann")
    assert (early.code, early.detail) == (
        Code.NOT_STARTED,
        {"starts_at": "2023-11-14T22:13:21Z"},
    )
    one.clock.advance(1)
    assert one.buy("ann").code is Code.ACCEPTED
    one.ledger.change_control(one.row, actor="op", action="mode", effective="closed")
    assert one.buy("bob").code is Code.CLOSED
    one.ledger.change_control(one.row, actor="op", action="mode", effective="normal")
    one.clock.advance(1)
    assert one.buy("bob").code is Code.ENDED


def test_6_6_a_created_sale_without_a_window_has_no_start(shop):
    """NOT_STARTED without a time to tell."""
    one = shop(state=SaleState.WARMED)
    assert one.buy("ann") == Outcome(Code.NOT_STARTED)


def test_8_no_sequence_of_refusals_moves_a_unit(shop):
    """U + free + C = total: refusals leave each term as it was."""
    one = shop(per_buyer=PerBuyer(sale=1))
    one.buy("ann")
    before = one.report().equation
    one.buy("ann", "r2")
    one.buy("ann", lines=5)
    one.buy("bob", lines=10)
    one.buy("bob", place="nowhere")
    assert one.report().equation == before
    assert one.report().balanced
    assert one.sql("SELECT state FROM intents") == [(IntentState.RESERVED,)]


def test_a_sold_out_sale_is_refused_by_a_look_and_sells_again_at_once(shop):
    """What is dry is answered without the write lock: replay, limit, then stock.

    A unit that comes back ends that with the next batch.
    """
    one = shop(skus={"black": 2}, per_buyer=PerBuyer(sale=2))
    assert [answer.code for answer in one.accept(one.item("ann"), one.item("bob"))] == [1, 1]
    one.persist()
    first = one.accept(one.item("cat"))
    assert isinstance(first[0], Short)
    with one.ledger.database._write_lock():  # nobody could write now
        found = one.accept(
            one.item("cat"),
            one.item("ann"),
            one.item("bob", "r1", 2),
            one.item("ann", "r2", 2),
        )
    assert isinstance(found[0], Short)
    assert (found[1].code, found[1].order_state) == (Code.ACCEPTED, "CREATED")
    assert found[2].code is Code.KEY_REUSED
    assert (found[3].code, found[3].detail["bought"]) == (Code.OVER_LIMIT, 1)
    assert one.give_back("ann", to=IntentState.CANCELLED)
    one.ledger.plan_funding(
        one.row, "f1", sku="black", kind="dry", source=UNALLOCATED, target="p0", units=1
    )
    one.ledger.move("f1", None)
    assert one.accept(one.item("cat"))[0].code is Code.ACCEPTED
    assert one.report().balanced
