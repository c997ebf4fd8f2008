"""protocol.md 4.4, 4.5, 9: from accepted to created, and the ways back."""

from __future__ import annotations

import sqlite3

import pytest

from doorbuster.errors import ContractError, UnavailableError
from doorbuster.ledger.schema import orders
from doorbuster.model import IntentState, PerBuyer, Reservation
from doorbuster.outcomes import Code, Persisted

BACK = [
    (IntentState.RESERVED, IntentState.RELEASED),
    (IntentState.CREATED, IntentState.CANCELLED),
    (IntentState.CREATED, IntentState.EXPIRED),
    (IntentState.PAID, IntentState.REFUNDED),
]


def in_state(one, state, lines=2):
    """One accepted attempt of ann's whose intent is in ``state``."""
    one.buy("ann", lines=lines)
    if state is not IntentState.RESERVED:
        one.persist()
    one.sql("UPDATE intents SET state = ?", str(state))


def begin(one, to):
    return one.ledger.begin_return(
        one.row, "ann", "r1", to=to, reason="changed their mind", actor="op"
    )


def waiting(one):
    """What workers would persist now."""
    batches = [row[0] for row in one.sql("SELECT batch FROM outbox")]
    return one.ledger.reservations_of(batches, one.sale)


# ------------------------------------------------------------------ 4.4 return
@pytest.mark.parametrize(("state", "to"), BACK)
def test_4_4_units_come_back_once_with_release_quota_and_audit(shop, state, to):
    """Final state, release, quota, grant and unallocated change together (Y3: units, not rows)."""
    one = shop(per_buyer=PerBuyer(sale=2), places=2)
    in_state(one, state)
    before = begin(one, to)
    assert before.state is state
    assert begin(one, to) is None
    assert one.report().counts["returning"] == 1
    assert one.finish()
    assert not one.finish()
    assert one.sql("SELECT state FROM intents") == [(to,)]
    assert one.sql("SELECT state, reason, actor, lines, backend_done FROM releases") == [
        (to, "changed their mind", "op", "black=2", 1)
    ]
    assert one.sql("SELECT bought FROM quotas") == [(0,)]
    assert one.ledger.unallocated(one.row, "black") == 2
    assert one.ledger.audit(one.row)[0]["action"] == f"order.{to.lower()}"
    assert one.report().balanced
    assert one.buy("ann", "again", lines=2).code is not Code.OVER_LIMIT


@pytest.mark.parametrize(("state", "to"), BACK)
def test_4_4_only_the_right_state_begins_a_return(shop, state, to):
    """Compare-and-set against persist and pay: one row, one winner (Y2)."""
    one = shop()
    assert begin(one, to) is None
    in_state(one, state)
    for other in {end for start, end in BACK if start is not state}:
        assert begin(one, other) is None
    assert one.count("compensations") == 0


def test_4_4_a_return_goes_through_in_any_state_of_the_grant(shop):
    """DRAINING or CLOSED: the units leave the grant and are unallocated."""
    for state in ("DRAINING", "CLOSED"):
        one = shop()
        one.buy("ann", lines=4)
        begin(one, IntentState.RELEASED)
        if state == "CLOSED":
            one.sql("UPDATE stock SET unallocated = 6")
            one.sql("UPDATE grants SET quantity = consumed")
        one.sql("UPDATE grants SET state = ?", state)
        assert one.finish()
        assert one.report().balanced


def test_4_4_a_return_of_several_skus_lowers_every_scope(shop):
    """Each sku's quota and the sale's."""
    one = shop(skus={"black": 5, "white": 5}, per_buyer=PerBuyer(sku=2))
    one.buy("ann", lines={"black": 1, "white": 2})
    assert one.give_back("ann")
    assert {row[0] for row in one.sql("SELECT bought FROM quotas")} == {0}
    assert one.report().balanced


def test_4_4_two_workers_finishing_one_return_release_once(shop):
    """The second finds the final state and changes nothing (Y1)."""
    one = shop()
    one.buy("ann", lines=2)
    begin(one, IntentState.RELEASED)
    (job,) = one.ledger.claim_jobs({one.sid: "drop"}, limit=9, lease_s=0)
    assert one.ledger.finish_return(job)
    assert not one.ledger.finish_return(job)
    assert one.count("releases") == 1
    assert one.report().balanced


def test_4_4_a_return_whose_units_are_not_back_is_never_forgotten(shop):
    """The job is the only thing that will finish it."""
    one = shop()
    one.buy("ann")
    begin(one, IntentState.RELEASED)
    (job,) = one.ledger.claim_jobs({one.sid: "drop"}, limit=9, lease_s=0)
    with pytest.raises(ContractError, match="not finished"):
        one.ledger.forget_job(job, backend_done=True)
    assert one.ledger.jobs([one.sid]) == 1


def test_4_4_backend_done_is_set_only_for_the_current_epoch(shop):
    """Else the job stays, for the backend of the new epoch."""
    one = shop()
    one.buy("ann")
    begin(one, IntentState.RELEASED)
    (job,) = one.ledger.claim_jobs({one.sid: "drop"}, limit=9, lease_s=99)
    one.ledger.finish_return(job)
    one.sql("UPDATE sales SET epoch = 2")
    assert not one.ledger.forget_job(job, backend_done=True, epoch=1)
    assert one.sql("SELECT backend_done FROM releases") == [(0,)]
    (again,) = one.ledger.claim_jobs({one.sid: "drop"}, limit=9, lease_s=99)
    assert one.ledger.forget_job(again, backend_done=True, epoch=2)
    assert one.sql("SELECT backend_done FROM releases") == [(1,)]


def test_4_4_a_return_that_finds_no_quota_rolls_back(shop):
    """Units come back with their quota or not at all."""
    one = shop()
    one.buy("ann")
    begin(one, IntentState.RELEASED)
    one.sql("DELETE FROM quotas")
    (job,) = one.ledger.claim_jobs({one.sid: "drop"}, limit=9, lease_s=0)
    with pytest.raises(ContractError, match="quota"):
        one.ledger.finish_return(job)
    assert one.sql("SELECT state FROM intents") == [("RETURNING",)]
    assert one.count("releases") == 0


# ------------------------------------------------------------------ 4.5 persist
def test_4_5_created_and_the_order_are_one_transaction(shop):
    """A persist that fails after its move leaves RESERVED."""
    one = shop()
    one.buy("ann")

    def persist():
        with one.ledger.creating(waiting(one)) as creating:
            assert creating.answers == [Persisted.CREATED]
            creating.execute(orders.insert(), [one.order(creating.won[0])])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        persist()
    assert one.count("orders") == 0
    assert one.sql("SELECT state FROM intents") == [("RESERVED",)]
    assert one.persist() == 1
    assert one.report().balanced


def test_4_5_a_second_persist_wins_nothing(shop):
    """Answered EXISTS for CREATED and PAID; nothing is inserted."""
    one = shop()
    one.buy("ann")
    (item,) = waiting(one)
    assert one.create([item]) == 1
    for state in ("CREATED", "PAID"):
        one.sql("UPDATE intents SET state = ?", state)
        with one.ledger.creating([item]) as creating:
            creating.execute(orders.insert(), [])
            assert (creating.won, creating.answers) == ([], [Persisted.EXISTS])
    assert one.count("orders") == 1


@pytest.mark.parametrize("state", ["RETURNING", "RELEASED", "CANCELLED", "ABORTED"])
def test_4_5_a_later_persist_never_revives_a_returned_unit(shop, state):
    """REFUSED, and no dead letter for it: the return has won."""
    one = shop()
    one.buy("ann")
    (item,) = waiting(one)
    one.sql("UPDATE intents SET state = ?", state)
    with one.ledger.creating([item]) as creating:
        assert (creating.won, creating.answers) == ([], [Persisted.REFUSED])
    assert one.ledger.settle_persisted(one.sale, [item], [Persisted.REFUSED]) == []
    assert one.count("dead_letters") == 0


def test_4_5_an_outbox_row_is_done_when_no_intent_waits(shop):
    """Not when somebody says it was sent: the batch is claimed again after its lease (O2, O4)."""
    one = shop()
    one.accept(one.item("ann"), one.item("bob"))
    (claim,) = one.ledger.claim(owner="w", rows=10, lease_s=30)
    ann, _ = waiting(one)
    one.create([ann])
    assert one.ledger.settle([claim.batch]) == 0
    assert one.ledger.claim(owner="x", rows=10, lease_s=30) == []
    one.clock.advance(30)
    (again,) = one.ledger.claim(owner="x", rows=10, lease_s=30)
    assert (again.batch, again.tries) == (claim.batch, 1)
    one.create(waiting(one))
    assert one.ledger.settle([claim.batch, claim.batch]) == 1
    assert one.ledger.claim(owner="x", rows=10, lease_s=30, settled=[claim.batch]) == []
    assert one.report().balanced


def test_4_5_claims_are_whole_batches_oldest_first(shop):
    """Up to about ``rows`` intents, at least one batch; settled ones close in the same call."""
    one = shop(skus={"black": 99})
    for n in range(3):
        one.accept(*[one.item(f"b{n}x{k}") for k in range(4)])
        one.clock.advance(0.01)
    first = one.ledger.claim(owner="w", rows=1, lease_s=30)
    assert [claim.n for claim in first] == [4]
    one.create(one.ledger.reservations_of([first[0].batch], one.sale))
    rest = one.ledger.claim(owner="w", rows=8, lease_s=30, settled=[first[0].batch])
    assert [claim.n for claim in rest] == [4, 4]
    assert first[0].batch < rest[0].batch < rest[1].batch
    assert one.ledger.reserved([claim.batch for claim in rest]) == 8
    assert one.ledger.settle([]) == 0
    assert one.report().counts["pending_batches"] == 2


def test_4_5_a_persist_of_its_own_is_marked_afterwards(shop):
    """CREATED and EXISTS move the intent; REFUSED keeps it RESERVED with one dead letter."""
    one = shop()
    one.accept(one.item("ann"), one.item("bob"), one.item("cat"))
    items = waiting(one)
    answers = [Persisted.CREATED, Persisted.EXISTS, Persisted.REFUSED]
    for written in (1, 0):
        letters = one.ledger.settle_persisted(one.sale, items, answers)
        assert len(letters) == written
    states = dict(one.sql("SELECT buyer, state FROM intents"))
    assert sorted(states.values()) == ["CREATED", "CREATED", "RESERVED"]
    assert one.ledger.settle_persisted(one.sale, [], []) == []


def test_4_5_a_dead_letter_waits_for_a_person_not_for_a_worker(shop):
    """Its batch is done; only a discard returns it, and that answers the letter."""
    one = shop()
    one.buy("ann")
    (claim,) = one.ledger.claim(owner="w", rows=10, lease_s=30)
    one.ledger.settle_persisted(one.sale, waiting(one), [Persisted.REFUSED])
    assert waiting(one) == []
    assert one.ledger.reserved([claim.batch]) == 1
    assert one.ledger.settle([claim.batch]) == 1
    report = one.report()
    assert report.balanced
    assert report.counts["dead_letters"] == 1
    assert one.give_back("ann")
    assert one.report().counts["dead_letters"] == 0
    assert one.report().balanced


def test_4_5_a_reservation_without_its_intents_number_is_a_defect(shop):
    """It could be moved by nobody, so it is refused loudly."""
    one = shop()
    one.buy("ann")
    with (
        pytest.raises(ContractError, match="name no intent"),
        one.ledger.creating([one.item("ann")]),
    ):
        pass


def test_4_5_creating_takes_any_statement_of_the_plugin(shop):
    """Inserts with own values or conflict rules, updates: all in the one transaction."""
    one = shop()
    one.accept(one.item("ann"), one.item("bob"))
    with one.ledger.creating(waiting(one)) as creating:
        rows = [one.order(item) for item in creating.won]
        for row in rows:
            del row["state"]
        creating.execute(orders.insert().values(state="CREATED"), rows)
        creating.execute(orders.update().where(orders.c.sale == "drop"), [{"currency": "EUR"}])
    assert one.sql("SELECT DISTINCT state, currency FROM orders") == [("CREATED", "EUR")]


def test_4_5_void_statements_run_in_one_transaction(shop):
    """And an error in them leaves nothing."""
    one = shop()
    item = Reservation(one.item("ann").attempt, "p0", "f" * 32, 1)

    def statements(connection):
        connection.execute(orders.insert(), one.order(item, state="VOID"))
        return Persisted.REFUSED

    assert one.ledger.voiding(item, statements) is Persisted.REFUSED
    assert one.ledger.view().voiding(item, lambda connection: Persisted.EXISTS)

    def failing(connection):
        connection.execute(orders.delete())
        raise sqlite3.OperationalError("gone")

    with pytest.raises(UnavailableError):
        one.ledger.voiding(item, failing)
    assert one.count("orders", "state = 'VOID'") == 1


def test_9_after_the_commit_a_replay_answers_accepted(shop):
    """A crash between commit and answer loses nothing: whoever asks again is told."""
    one = shop()
    first = one.buy("ann")
    one.ledger.close()
    replay = one.buy("ann")
    assert (replay.code, replay.order_no) == (Code.ACCEPTED, first.order_no)
    assert one.persist() == 1
    assert one.persist() == 0
    assert one.report().balanced
