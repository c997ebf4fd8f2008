"""protocol.md 4.3, 4.6, 6.1: tombstones, holds given back, and the fence as proof."""

from __future__ import annotations

import pytest

from doorbuster.model import IntentState, PerBuyer, SaleState
from doorbuster.outcomes import Code


@pytest.fixture
def held(shop):
    """A holder's sale: every unit of "black" is in place p0 or p1."""

    def make(**options):
        one = shop(holds=True, **options)
        one.sql("UPDATE grants SET quantity = 10")
        one.sql("UPDATE stock SET total = 10 * ?, unallocated = 0", len(one.places))
        one.sql("DELETE FROM fundings")
        return one

    return make


def jobs(one):
    """Undo jobs as (order_no, place, epoch, code, phantom)."""
    return [
        (
            job.reservation.order_no,
            job.reservation.place,
            job.reservation.epoch,
            job.code,
            job.phantom,
        )
        for job in one.ledger.claim_jobs({one.sid: "drop"}, limit=99, lease_s=0)
        if job.state is IntentState.ABORTED
    ]


def fence(one):
    one.sql("UPDATE grants SET state = 'DRAINING'")


# ------------------------------------------------------------------ refused in accept
def test_4_3_a_refused_hold_becomes_a_tombstone_and_an_undo(held):
    """In the accept transaction itself; the answer is final."""
    one = held(per_buyer=PerBuyer(sale=1))
    ok, refused = one.accept(one.item("ann"), one.item("ann", "r2"))
    assert ok.code is Code.ACCEPTED
    assert (refused.code, refused.final) == (Code.OVER_LIMIT, True)
    assert one.buy("ann", "r2").code is Code.OVER_LIMIT
    assert jobs(one) == [(one.item("ann", "r2").order_no, "p0", 1, Code.OVER_LIMIT, {})]
    assert one.report().balanced


def test_4_3_a_paused_sale_gives_holds_back(held):
    """The gate's refusal is a tombstone too: the hold must not stay."""
    one = held()
    one.ledger.set_state(one.row, allowed=[SaleState.OPEN], to=SaleState.PAUSED, actor="op")
    answer = one.buy("ann")
    assert (answer.code, answer.final) == (Code.CLOSED, True)
    assert [job[3] for job in jobs(one)] == [Code.CLOSED]


def test_4_3_only_what_the_grant_never_had_is_a_phantom(held):
    """Quantity - free of the short sku is not given back; the rest is."""
    one = held()
    one.buy("ann", lines=8)
    answer = one.buy("bob", lines=5)
    assert (answer.code, answer.final) == (Code.BUSY, True)
    assert jobs(one) == [(one.item("bob").order_no, "p0", 1, Code.BUSY, {"black": 3})]


def test_4_3_a_hold_under_another_grant_is_given_back_at_once(held):
    """The identity is stored in p0; the hold in p1 is not justified by it.

    Its code is ACCEPTED: the record must go on asking the ledger, only its units come back.
    """
    one = held(places=2)
    one.buy("ann", place="p0")
    replay = one.buy("ann", place="p1")
    assert replay.code is Code.ACCEPTED
    assert jobs(one) == [(one.item("ann").order_no, "p1", 1, Code.ACCEPTED, {})]
    assert one.report().balanced


def test_4_3_a_replay_of_an_aborted_hold_is_given_back_with_its_code(held):
    """ABORTED justifies nothing."""
    one = held()
    one.ledger.tombstone(one.sale, 1, [one.item("ann")], code=Code.ENDED, holds=False)
    assert one.buy("ann").code is Code.ENDED
    assert [job[3] for job in jobs(one)] == [Code.ENDED]


def test_4_3_a_justified_hold_stays(held):
    """The same hold accepted twice; the same hold after its order was returned."""
    one = held()
    one.buy("ann")
    one.buy("ann")
    assert jobs(one) == []
    one.persist()
    assert one.give_back("ann", to=IntentState.CANCELLED)
    assert one.buy("ann").order_state == "CANCELLED"
    assert jobs(one) == []


def test_4_3_a_waiting_undo_is_not_queued_twice(held):
    """Once per (order_no, epoch): the first job knows the phantom."""
    one = held()
    one.buy("ann", lines=12)
    one.buy("ann", lines=12)
    one.ledger.tombstone(one.sale, 1, [one.item("ann", lines=12)], code=Code.BUSY, holds=True)
    assert [job[4] for job in jobs(one)] == [{"black": 2}]


# ------------------------------------------------------------------ tombstones
def test_4_3_a_tombstone_wins_where_nothing_is_stored(held):
    """Commit intent(ABORTED) first; a late accept finds it."""
    one = held()
    item = one.item("ann")
    assert one.ledger.tombstone(one.sale, 1, [item], code=Code.BUSY, holds=True) == [None]
    assert one.sql("SELECT state, code FROM intents") == [("ABORTED", -6)]
    assert len(jobs(one)) == 1
    late = one.buy("ann")
    assert (late.code, late.final) == (Code.BUSY, True)
    assert one.report().balanced


def test_4_3_a_tombstone_loses_to_an_accept(held):
    """Then nothing is undone, also when the hold's place is not known (a lost reply)."""
    one = held(places=2)
    one.buy("ann", place="p1")
    lost = one.item("ann", place="")
    (stored,) = one.ledger.tombstone(one.sale, 1, [lost], code=Code.BUSY, holds=True)
    assert stored.state is IntentState.RESERVED
    assert jobs(one) == []
    foreign = one.item("ann", place="p0")
    one.ledger.tombstone(one.sale, 1, [foreign], code=Code.BUSY, holds=True)
    assert [job[1] for job in jobs(one)] == ["p0"]


def test_4_3_settling_one_identity_twice_in_a_call_is_once(held):
    """Equal identities of one call are one tombstone and one undo."""
    one = held()
    items = [one.item("ann"), one.item("bob"), one.item("ann")]
    assert one.ledger.tombstone(one.sale, 1, items, code=Code.BUSY, holds=True) == [None] * 3
    assert one.count("intents") == 2
    assert len(jobs(one)) == 2


def test_6_1_no_tombstone_after_the_fence(held):
    """The fence itself is the proof: nothing is written, the caller answers BUSY, not final."""
    one = held()
    fence(one)
    assert one.ledger.tombstone(one.sale, 1, [one.item("ann")], code=Code.BUSY, holds=True) is None
    assert one.count("intents") == one.count("compensations") == 0


@pytest.mark.parametrize("epoch", [0, 2])
def test_6_1_no_tombstone_in_an_epoch_that_is_not_the_sales(held, epoch):
    """Also where that epoch has no grant at all."""
    one = held()
    items = [one.item("ann")]
    assert one.ledger.tombstone(one.sale, epoch, items, code=Code.BUSY, holds=True) is None
    assert one.count("intents") == 0


def test_6_1_no_tombstone_in_an_epoch_that_is_only_prepared(held):
    """Its grants are ACTIVE already, but the sale has not got there."""
    one = held()
    one.sql(
        "INSERT INTO grants SELECT sid, 2, place, sku, backend, 0, 0, state, version FROM grants"
    )
    items = [one.item("ann")]
    assert one.ledger.tombstone(one.sale, 2, items, code=Code.BUSY, holds=True) is None
    assert one.count("intents") == 0


def test_1_1_the_sweeper_and_undo_touch_only_kind_h(held):
    """A journal's entry is settled by its slot, never by a tombstone."""
    one = held()
    one.sql("UPDATE sales SET kind = 'J'")
    items = [one.item("ann")]
    assert one.ledger.tombstone(one.sale, 1, items, code=Code.BUSY, holds=True) is None


def test_6_1_no_accept_after_the_fence(held):
    """Accepts of a DRAINING epoch write nothing; what is stored is still answered."""
    one = held()
    first = one.buy("ann")
    fence(one)
    replay, other = one.accept(one.item("ann"), one.item("bob"))
    assert (replay.code, replay.order_no) == (Code.ACCEPTED, first.order_no)
    assert (other.code, other.final) == (Code.BUSY, False)
    assert one.count("intents") == 1
    assert jobs(one) == []
    assert one.report().balanced


# ------------------------------------------------------------------ the lane's queue
def test_4_3_an_undo_job_is_leased_retried_and_forgotten(held):
    """Any worker resumes a job; a job that is done is gone."""
    one = held(per_buyer=PerBuyer(sale=1))
    one.buy("ann", lines=2)
    sales = {one.sid: "drop"}
    assert one.ledger.claim_jobs({one.sid + 1: "x"}, limit=9, lease_s=5) == []
    (job,) = one.ledger.claim_jobs(sales, limit=9, lease_s=5)
    assert one.ledger.claim_jobs(sales, limit=9, lease_s=5) == []
    one.clock.advance(5)
    (again,) = one.ledger.claim_jobs(sales, limit=9, lease_s=5)
    assert (again.id, again.tries) == (job.id, 1)
    one.ledger.retry_job(again, after_s=1)
    one.clock.advance(1)
    assert len(one.ledger.claim_jobs(sales, limit=9, lease_s=5)) == 1
    assert one.ledger.forget_job(again, backend_done=True)
    assert one.ledger.jobs([one.sid]) == 0
    assert one.ledger.claim_jobs(sales, limit=9, lease_s=5) == []
