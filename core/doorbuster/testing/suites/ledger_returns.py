"""Laws of the ways back (protocol.md 4.3, 4.4): undo of a hold, return of an accepted unit."""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

from typing import Any, Final

import pytest

from doorbuster.errors import ContractError, PermanentError
from doorbuster.ledger import schema
from doorbuster.model import GrantState, IntentState, PerBuyer, Reservation
from doorbuster.outcomes import Code, Outcome
from doorbuster.testing.suites.base import Race
from doorbuster.testing.suites.cuts import lost_commits
from doorbuster.testing.suites.ground import OpenSale
from doorbuster.testing.suites.ledger_ground import LedgerGround, Open

__all__ = ["ReturnLaws"]

_RELEASED: Final = IntentState.RELEASED
_CANCELLED: Final = IntentState.CANCELLED


def _close(one: OpenSale) -> None:
    """What the close of a hand-over does: free units go back, the grant keeps what it sold."""
    grants, stock = schema.grants, schema.stock
    freed = sum(one.ledger.free_units(one.row).values())
    one.write(
        grants.update()
        .where(grants.c.sid == one.sid)
        .values(state=GrantState.CLOSED, quantity=grants.c.consumed)
    )
    one.write(
        stock.update().where(stock.c.sid == one.sid).values(unallocated=stock.c.unallocated + freed)
    )


class ReturnLaws(LedgerGround):
    """Tombstones, undos and returns."""

    # ------------------------------------------------------------------ 4.3
    def test_4_3_a_tombstone_keeps_a_later_accept_out(self, shop: Open) -> None:
        """Settled as aborted, then the accept comes: never ACCEPTED, and no unit is taken."""
        one = shop(holds=True)
        asked = one.ask("ann")
        assert self._settle(one, asked) == [None]
        (answer,) = one.decide(asked)
        assert (answer.code, answer.final) == (Code.BUSY, True)
        assert one.free() == 10
        assert len(one.jobs()) == 1  # the hold goes back, once

    def test_4_3_an_accept_keeps_a_later_tombstone_out(self, shop: Open) -> None:
        """Accepted, then settled: the intent wins, and its hold is not given back."""
        one = shop(holds=True)
        asked = one.ask("ann")
        assert one.codes(asked) == [Code.ACCEPTED]
        (stored,) = self._settle(one, asked)
        assert (stored.state, stored.order_no) == (IntentState.RESERVED, asked.order_no)
        assert one.jobs() == []
        assert one.codes(asked) == [Code.ACCEPTED]
        assert one.free() == 9

    def test_4_3_settling_again_undoes_once(self, shop: Open) -> None:
        """Any worker may settle an identity again: one tombstone, one undo in the queue."""
        one = shop(holds=True)
        items = [one.ask("ann"), one.ask("bob")]
        assert self._settle(one, items[0]) == [None]
        stored = self._settle(one, *items)
        assert stored[0].state is IntentState.ABORTED
        assert stored[1] is None
        with lost_commits(one.ledger.database, applied=True):
            self._settle(one, *items)
        assert sorted(job.reservation.attempt.buyer for job in one.jobs()) == ["ann", "bob"]

    def test_4_3_a_hold_of_another_grant_goes_back(self, shop: Open) -> None:
        """The identity was accepted elsewhere: this hold is justified by nothing, that one is."""
        one = shop(places=2, holds=True)
        assert one.codes(one.ask("ann", place="p0")) == [Code.ACCEPTED]
        assert one.codes(one.ask("ann", place="p1")) == [Code.ACCEPTED]
        (job,) = one.jobs()
        assert (job.reservation.place, job.code) == ("p1", Code.ACCEPTED)
        (stored,) = self._settle(one, one.ask("ann", place="p1"))
        assert stored.place == "p0"
        assert len(one.rows(schema.compensations)) == 1
        assert (one.free("p0"), one.free("p1")) == (4, 5)

    @pytest.mark.parametrize("over", ["epoch", "fence"])
    def test_4_3_after_the_fence_nothing_is_written(self, shop: Open, over: str) -> None:
        """The fence itself is the proof: no tombstone, no undo, and no final answer."""
        one = shop(holds=True)
        one.fence()
        if over == "epoch":
            one.next_epoch()
        before = one.everything()
        assert (
            one.ledger.tombstone(one.sale, 1, [one.ask("ann")], code=Code.BUSY, holds=True) is None
        )
        assert one.everything() == before

    def test_4_3_accepts_and_tombstones_at_once_have_one_winner(
        self, shop: Open, race: Race
    ) -> None:
        """Whoever comes first: one truth, heard by both sides, and units only of the accepted."""
        one = shop(holds=True)
        items = [one.ask(f"buyer{n}") for n in range(6)]

        def work(n: int) -> list[bool]:
            ordered = items if n % 4 < 2 else items[::-1]
            heard = {}
            for item in ordered:
                if n % 2:
                    (answer,) = one.decide(item)
                    heard[item.order_no] = answer.code is Code.ACCEPTED
                else:
                    (stored,) = self._settle(one, item)
                    live = stored is not None and stored.state is IntentState.RESERVED
                    heard[item.order_no] = live
            return [heard[item.order_no] for item in items]

        answers = race(work, 4)
        assert all(heard == answers[0] for heard in answers)
        assert one.free() == 10 - sum(answers[0])

    def _settle(self, one: OpenSale, *items: Reservation) -> list[Any]:
        found = one.ledger.tombstone(one.sale, 1, items, code=Code.BUSY, holds=one.holds)
        assert found is not None
        return [*found]

    # ------------------------------------------------------------------ 4.4
    def test_4_4_a_return_gives_everything_back_once(self, shop: Open) -> None:
        """Units to ``unallocated``, quota minus, one release row; a second time does nothing."""
        one = shop(skus={"gold": 6, "silver": 6}, per_buyer=PerBuyer(sale=4))
        one.buy("ann", lines={"gold": 3, "silver": 1})
        before = one.begin_return("ann")
        assert before is not None
        assert before.state is IntentState.RESERVED
        assert one.begin_return("ann") is None
        (job,) = one.jobs()
        with lost_commits(one.ledger.database, applied=True):
            one.ledger.finish_return(job)
        assert not one.ledger.finish_return(job)
        assert (one.unallocated("gold"), one.unallocated("silver")) == (3, 1)
        assert (one.free(sku="gold"), one.free(sku="silver")) == (3, 5)
        assert [row["state"] for row in one.rows(schema.releases)] == [_RELEASED]
        assert one.codes(one.ask("ann", "r2", lines={"gold": 2, "silver": 2})) == [Code.ACCEPTED]

    def test_4_4_returned_units_are_sold_again_once(self, shop: Open) -> None:
        """The last unit comes back, another buyer has it, and nobody has it beside him."""
        one = shop(skus={"gold": 1})
        one.buy("ann")
        assert one.codes(one.ask("bob")) == [None]
        assert one.give_back("ann")
        assert one.ledger.gather(one.sale, 1, {("p0", "gold"): 1}) == 1
        assert one.codes(one.ask("bob"), one.ask("eve")) == [Code.ACCEPTED, None]
        (replay,) = one.decide(one.ask("ann"))
        assert replay == Outcome(
            Code.ACCEPTED, order_no=one.ask("ann").order_no, order_state=str(_RELEASED)
        )

    def test_4_4_the_database_refuses_a_second_release(self, shop: Open) -> None:
        """Below every compare and set: one release row for an order, whoever writes it and why."""
        one = shop()
        one.buy("ann")
        assert one.give_back("ann")
        before = one.everything()
        (release,) = before[schema.releases.name]
        second = release | {"state": _CANCELLED, "reason": "another", "actor": "bob"}
        with pytest.raises(PermanentError):
            one.write(schema.releases.insert().values(second))
        assert one.everything() == before

    @pytest.mark.parametrize("state", [GrantState.DRAINING, GrantState.CLOSED])
    def test_4_4_a_return_works_in_any_state_of_the_grant(
        self, shop: Open, state: GrantState
    ) -> None:
        """Y4: the grant is fenced or closed meanwhile; the units go where a new one finds them."""
        one = shop()
        one.buy("ann", quantity=4)
        if state is GrantState.CLOSED:
            _close(one)
        else:
            one.fence(state)
        assert one.give_back("ann")
        assert one.unallocated() == (10 if state is GrantState.CLOSED else 4)

    @pytest.mark.parametrize(
        ("start", "allowed"),
        [
            (IntentState.RESERVED, {_RELEASED}),
            (IntentState.CREATED, {_CANCELLED, IntentState.EXPIRED}),
            (IntentState.PAID, {IntentState.REFUNDED}),
        ],
    )
    def test_4_4_each_end_has_its_beginning(
        self, shop: Open, start: IntentState, allowed: set[IntentState]
    ) -> None:
        """I6: never released while PAID, never cancelled before it was created."""
        one = shop()
        one.buy("ann")
        if start is not IntentState.RESERVED:
            one.work()
            intents = schema.intents
            one.write(intents.update().where(intents.c.sid == one.sid).values(state=start))
        ends = [_RELEASED, _CANCELLED, IntentState.EXPIRED, IntentState.REFUNDED]
        for end in [end for end in ends if end not in allowed]:
            assert one.begin_return("ann", to=end) is None
        assert one.state("ann") == start
        assert one.give_back("ann", to=min(allowed))
        assert one.state("ann") == min(allowed)

    def test_4_4_threads_return_an_order_once(self, shop: Open, race: Race) -> None:
        """Y1: two cancels, a timer and an operator at once: one winner, units come back once."""
        one = shop()
        one.buy("ann", quantity=3)
        begun = race(lambda n: one.begin_return("ann") is not None, 6)
        assert sum(begun) == 1
        (job,) = one.jobs()
        assert sum(race(lambda n: one.ledger.finish_return(job), 6)) == 1
        assert one.unallocated() == 3

    def test_4_4_any_worker_goes_on_with_a_return(self, shop: Open) -> None:
        """A job is leased, not taken: when its worker is gone another one finishes it."""
        one = shop()
        one.buy("ann")
        one.begin_return("ann")
        (leased,) = one.jobs(lease_s=30)
        assert one.jobs() == []
        one.ledger.retry_job(leased, after_s=0)
        (job,) = one.jobs(lease_s=0)
        with pytest.raises(ContractError, match="not finished"):
            one.ledger.forget_job(job, backend_done=True)
        assert one.ledger.finish_return(one.jobs(lease_s=0)[0])
        assert one.ledger.forget_job(job, backend_done=True)
        assert one.jobs() == []

    def test_4_4_backend_done_is_only_said_of_the_epoch_in_force(self, shop: Open) -> None:
        """A hand-over came between: the job stays, for the backend of the new epoch."""
        one = shop()
        one.buy("ann")
        one.begin_return("ann")
        (job,) = one.jobs()
        one.ledger.finish_return(job)
        one.next_epoch()
        assert not one.ledger.forget_job(job, backend_done=True, epoch=1)
        (row,) = one.rows(schema.releases)
        assert row["backend_done"] == 0
        (again,) = one.jobs()
        assert one.ledger.forget_job(again, backend_done=True, epoch=2)
        (row,) = one.rows(schema.releases)
        assert row["backend_done"] == 1
