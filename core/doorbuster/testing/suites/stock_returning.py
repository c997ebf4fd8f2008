"""Laws at a holder's hooks, second half: ways back, epochs, fundings (laws 8, 9, 11, 13)."""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from doorbuster.errors import UnavailableError
from doorbuster.model import PerBuyer, Reservation
from doorbuster.outcomes import Code, Compensated, Rejection
from doorbuster.testing.kit import Kit
from doorbuster.testing.suites.base import Race
from doorbuster.testing.suites.stock_desk import Desk, ask, codes, other
from doorbuster.testing.suites.stock_ground import StockGround
from doorbuster.tiers import Bound

__all__ = ["ReturnLaws"]

OpenDesk = Callable[..., Desk]
DONE, ALREADY, KEPT, STALE = Compensated


class ReturnLaws(StockGround):
    """What a holder's other hooks keep, asked directly (protocol.md 3.1, 4.3, 4.4, 4.7, 5)."""

    # ------------------------------------------------------------------ 8: undo
    def test_08_an_undo_gives_the_unit_back_once(self, open_desk: OpenDesk) -> None:
        """8. Undo is idempotent and makes the unit sellable again, after SOLD_OUT too."""
        desk = open_desk(gold=2, per_buyer=PerBuyer(sku=2, sale=2))
        hold = desk.hold(ask("ann", "r1", gold=2))
        assert desk.code(ask("ann", "r2")) is Code.OVER_LIMIT
        before = desk.left()
        assert [desk.undo(hold), desk.undo(hold)] == [DONE, ALREADY]
        assert (desk.left(), desk.held()) == (before + 2, 0)
        assert desk.code(ask("ann", "r3", gold=2)) == "HELD"

    def test_08_an_undo_after_sold_out(self, open_desk: OpenDesk) -> None:
        """8. A place that answered SOLD_OUT sells what an undo brings back."""
        desk = open_desk(gold=1)
        hold = desk.hold(ask("ann", "r1"))
        assert desk.code(ask("ann", "r2")) is Code.SOLD_OUT
        assert desk.undo(hold) is DONE
        assert [desk.code(ask("ann", "r3")), desk.code(ask("ann", "r4"))] == ["HELD", Code.SOLD_OUT]

    def test_08_an_undo_under_threads_is_done_once(self, open_desk: OpenDesk, race: Race) -> None:
        """8. Many workers undo the same holds at once: one does each, and units come back once."""
        desk = open_desk(gold=5, per_buyer=PerBuyer(sale=4))
        holds = [desk.hold(ask("ann", f"r{k}")) for k in range(4)]
        for told in zip(*race(lambda n: [desk.undo(hold) for hold in holds]), strict=True):
            assert Counter(told) == {DONE: 1, ALREADY: 15}
        assert desk.left() == 5 * len(desk.places)
        again = [desk.code(ask("ann", f"n{k}")) for k in range(5)]
        assert again == ["HELD"] * 4 + [Code.OVER_LIMIT]

    def test_08_a_phantom_is_not_given_back(self, open_desk: OpenDesk) -> None:
        """4.3: of a hold the ledger had no units for, only the real ones come back."""
        desk = open_desk(gold=3, silver=2)
        before = desk.left()
        hold = desk.hold(ask(gold=3, silver=2))
        assert desk.undo(hold, gold=2) is DONE
        assert (desk.left(), desk.held()) == (before - 2, 0)
        assert desk.left("silver") == 2 * len(desk.places)

    def test_08_an_undo_before_its_hold_keeps_it_out(self, open_desk: OpenDesk) -> None:
        """4.7: without a record the ABORTED one is written: a late deduct holds nothing."""
        desk = open_desk(gold=5)
        attempt = desk.admit(ask("ann", "r1"))
        ahead = Reservation(attempt, desk.places[0], attempt.order_no, 1)
        before = desk.look()
        assert [desk.undo(ahead, Code.BUSY), desk.undo(ahead, Code.BUSY)] == [DONE, ALREADY]
        (late,) = desk.deduct(ask("ann", "r1"))
        assert isinstance(late, Rejection)
        assert (late.code, late.detail.get("final")) == (Code.BUSY, True)
        assert desk.look() == before

    def test_08_another_order_of_that_identity_is_kept(self, open_desk: OpenDesk) -> None:
        """4.7: keyed by identity and order_no: what names another order undoes nothing."""
        desk = open_desk(gold=5)
        hold = desk.hold(ask())
        assert desk.undo(other_order(hold)) is KEPT
        assert desk.held() == 1
        assert desk.hold(ask()) == hold

    def test_08_the_first_end_state_stands(self, open_desk: OpenDesk) -> None:
        """4.7: a returned record is no hold to undo, and an aborted one none to return."""
        desk = open_desk(gold=5)
        ann, bob = desk.hold(ask("ann")), desk.hold(ask("bob"))
        assert [desk.give_back(ann), desk.undo(bob)] == [DONE, DONE]
        before = desk.look()
        assert [desk.undo(ann), desk.give_back(bob)] == [KEPT, ALREADY]
        assert desk.look() == before
        assert codes(desk.deduct(ask("ann"), ask("bob"))) == ["HELD", Code.SOLD_OUT]

    # ------------------------------------------------------------------ 8: return
    def test_08_a_return_gives_the_limit_back_once(self, open_desk: OpenDesk) -> None:
        """8. RETURNED lowers the limit once and leaves the stock to funding (4.4)."""
        desk = open_desk(gold=3, per_buyer=PerBuyer(sku=1))
        before = desk.left()
        hold = desk.hold(ask("ann", "r1"))
        assert [desk.give_back(hold), desk.give_back(hold)] == [DONE, ALREADY]
        assert (desk.left(), desk.held()) == (before - 1, 0)
        told = [desk.code(ask("ann", f"n{k}")) for k in range(2)]
        assert told == ["HELD", Code.OVER_LIMIT]

    def test_08_a_return_without_a_record_lowers_nothing(self, open_desk: OpenDesk) -> None:
        """4.4: in an epoch that never saw the attempt, RETURNED is written, and no more."""
        desk = open_desk(gold=5, per_buyer=PerBuyer(sku=1))
        attempt = desk.admit(ask("ann", "old"))
        elsewhere = Reservation(attempt, desk.places[0], attempt.order_no, 1)
        before = desk.look()
        assert [desk.give_back(elsewhere), desk.give_back(elsewhere)] == [DONE, ALREADY]
        assert desk.look() == before
        told = [desk.code(ask("ann", f"n{k}")) for k in range(2)]
        assert told == ["HELD", Code.OVER_LIMIT]

    def test_08_a_hold_of_an_attempt_accepted_elsewhere(self, open_desk: OpenDesk) -> None:
        """4.3: such a hold goes back with its units, and its record still asks the ledger."""
        desk = open_desk(gold=5, per_buyer=PerBuyer(sku=1))
        before = desk.left()
        hold = desk.hold(ask())
        assert desk.give_back(hold, gold=1) is DONE
        assert (desk.left(), desk.held()) == (before, 0)
        assert desk.hold(ask()) == hold

    # ------------------------------------------------------------------ 8: the sweeper
    def test_08_holds_are_listed_by_age(self, bound: Bound, open_desk: OpenDesk, kit: Kit) -> None:
        """4.3: the sweeper sees HELD records of an age, of every place, and no ended one."""
        desk = open_desk(gold=9)
        self.need(bound, "holds")
        old = [desk.hold(ask(f"b{n}")) for n in range(6)]
        kit.clock.advance(10)
        young = desk.hold(ask("young"))
        desk.undo(old[0])
        desk.give_back(old[1])

        def listed(older_than_s: float) -> dict[str, Reservation]:
            found = desk.hooks["holds"](desk.sale, 1, older_than_s)
            assert all(hold.age_s >= older_than_s for hold in found)
            return {hold.reservation.order_no: hold.reservation for hold in found}

        assert listed(9.5).keys() == {hold.order_no for hold in old[2:]}
        assert listed(0.0).keys() == {hold.order_no for hold in [*old[2:], young]}
        first = listed(9.5)[old[2].order_no]
        assert first.attempt.lines == old[2].attempt.lines
        assert (first.place, first.attempt.buyer) == (old[2].place, "b2")

    # ------------------------------------------------------------------ 9
    def test_09_a_replay_after_return_gives_the_first_answer(self, open_desk: OpenDesk) -> None:
        """9. A returned attempt is answered as the first time; the ledger adds the state (3.2)."""
        desk = open_desk(gold=5)
        first = desk.hold(ask())
        desk.give_back(first)
        assert desk.hold(ask()) == first
        assert desk.code(ask(gold=2)) is Code.KEY_REUSED
        assert desk.held() == 0

    @pytest.mark.parametrize("code", [Code.OVER_LIMIT, Code.SOLD_OUT, Code.BUSY])
    def test_09_a_replay_after_abort_gives_its_code(self, open_desk: OpenDesk, code: Code) -> None:
        """9. An aborted attempt replays its code for good; a new request_id is judged (3.2)."""
        desk = open_desk(gold=5)
        desk.undo(desk.hold(ask("ann", "r1")), code)
        again, new = desk.deduct(ask("ann", "r1"), ask("ann", "r2"))
        assert (again.code, again.detail.get("final")) == (code, True)
        assert codes([new]) == ["HELD"]

    # ------------------------------------------------------------------ 11
    def test_11_a_stale_epoch_is_refused(self, open_desk: OpenDesk, kit: Kit) -> None:
        """11. Once a later epoch is open, the earlier one holds nothing more: BUSY."""
        desk = open_desk(gold=5).open(2, gold=5)
        before = desk.look()
        assert desk.code(ask(), epoch=1) is Code.BUSY
        assert not desk.hooks["open"](desk.sale, 1), "an epoch that is over does not open"
        desk.retire(1)
        assert desk.code(ask(), epoch=1) is Code.BUSY
        assert kit.alarms == [], "a late door is no incident"
        assert desk.look() == before[-len(desk.look()) :]
        assert desk.code(ask(), epoch=2) == "HELD"

    def test_11_a_stale_epoch_is_not_compensated(self, open_desk: OpenDesk) -> None:
        """11. STALE_EPOCH where the epoch is over, gone or unknown; nothing is written."""
        desk = open_desk(gold=5)
        hold = desk.hold(ask())
        unknown = Reservation(hold.attempt, hold.place, hold.order_no, 7)
        assert desk.undo(unknown) is STALE
        desk.open(2, gold=5)
        before = desk.look()
        assert [desk.undo(hold), desk.give_back(hold)] == [STALE, STALE]
        assert desk.look() == before
        desk.retire(1)
        assert desk.undo(hold) is STALE

    def test_11_what_is_not_there_is_not_ready(self, open_desk: OpenDesk, kit: Kit) -> None:
        """3.1: a missing place is BUSY with an alarm, never SOLD_OUT, and does not open."""
        desk = open_desk(epoch=0)
        assert desk.code(ask(), epoch=1) is Code.BUSY
        assert kit.alarms
        assert not desk.hooks["open"](desk.sale, 1)

    def test_11_runs_are_apart(self, open_desk: OpenDesk) -> None:
        """2.1: a sale created again starts with its own units, limits and records."""
        first = open_desk(gold=1, per_buyer=PerBuyer(sale=1))
        again = open_desk(gold=1, per_buyer=PerBuyer(sale=1), after=first)
        holds = [first.hold(ask()), again.hold(ask())]
        assert holds[0].order_no != holds[1].order_no
        assert (first.held(), again.held()) == (1, 1)

    # ------------------------------------------------------------------ 13
    def test_13_warm_up_twice_is_warm_up_once(self, open_desk: OpenDesk) -> None:
        """13. Preparing, crediting by the same id and opening again change nothing (3.1, 5.2)."""
        desk = open_desk(epoch=0)
        desk.prepare(1)
        credit = desk.funding("gold", 5)
        assert desk.fund("credit", credit, credit) == [5, 5]
        assert desk.code(ask()) is Code.BUSY, "a place sells only once it is open"
        for _ in range(2):
            desk.prepare(1)
            assert desk.fund("credit", credit) == [5]
            assert desk.hooks["open"](desk.sale, 1)
        assert desk.left() == 5
        for place in desk.places:
            desk.credit("gold", 1, place)
        hold = desk.hold(ask())
        desk.prepare(1)
        assert desk.hooks["open"](desk.sale, 1)
        assert desk.hold(ask()) == hold
        assert (desk.left(), desk.held()) == (4 + len(desk.places), 1)

    def test_13_credits_under_threads_count_once(self, open_desk: OpenDesk, race: Race) -> None:
        """13. Many workers bring the same fundings at once: each is credited once."""
        desk = open_desk(gold=0)
        moves = [desk.funding("gold", 7) for _ in range(4)]
        told = race(lambda n: [desk.fund("credit", move) for move in moves])
        assert told == [[[7]] * 4] * 16
        assert desk.left() == 28

    def test_13_a_debit_takes_free_units_once(self, bound: Bound, open_desk: OpenDesk) -> None:
        """5.2: a debit takes at most the free units, once per id, and none before open."""
        desk = open_desk(epoch=0)
        self.need(bound, "debit")
        desk.prepare(1)
        desk.credit("gold", 5)
        early = desk.funding("gold", 2)
        assert desk.fund("debit", early) == [0]
        assert desk.hooks["open"](desk.sale, 1)
        hold = desk.hold(ask(gold=3))
        debit = desk.funding("gold", 5, hold.place)
        assert desk.fund("debit", debit) == [2]
        desk.credit("gold", 4, hold.place)
        assert desk.fund("debit", debit) == [2]
        assert desk.left() == 5 * len(desk.places) - 5 + 4
        assert desk.held() == 3

    def test_13_a_move_to_a_missing_place_moves_nothing(
        self, bound: Bound, open_desk: OpenDesk
    ) -> None:
        """5.2: a call that names a place that is not there applies nothing of it."""
        desk = open_desk(gold=5)
        before = desk.look()
        for hook in sorted({"credit", "debit"} & bound.hooks.keys()):
            good, bad = desk.funding("gold", 2), desk.funding("gold", 2, "no-such-place")
            with pytest.raises(UnavailableError):
                desk.hooks[hook]([good, bad])
            assert desk.look() == before

    def test_13_retire_twice_is_retire_once(self, open_desk: OpenDesk) -> None:
        """13. A retired epoch is gone with its records, and stays gone."""
        desk = open_desk(gold=5)
        desk.hold(ask())
        for _ in range(2):
            desk.retire(1)
            assert sum(desk.probe.left(desk.sale, 1).values()) == 0
            assert desk.code(ask()) is Code.BUSY


def other_order(hold: Reservation) -> Reservation:
    """The same identity under another order number."""
    number = hold.order_no[::-1]
    attempt = other(hold.attempt, order_no=number)
    return Reservation(attempt, hold.place, number, hold.epoch)
