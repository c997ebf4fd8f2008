"""Laws at a holder's hooks, first half: deduct (style of suites: laws 1-7, 10)."""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from doorbuster.model import Control, Kind, Line, PerBuyer
from doorbuster.outcomes import Code, Rejection
from doorbuster.testing.kit import Kit
from doorbuster.testing.suites.base import Race, declined
from doorbuster.testing.suites.stock_desk import Desk, ask, codes, other
from doorbuster.testing.suites.stock_ground import StockGround
from doorbuster.tiers import Bound, Tier

__all__ = ["DeductLaws"]

OpenDesk = Callable[..., Desk]


class DeductLaws(StockGround):
    """What a holder's ``deduct`` keeps, asked directly (protocol.md 3.3)."""

    # ------------------------------------------------------------------ 1, 2
    def test_01_an_empty_batch_touches_nothing(self, open_desk: OpenDesk, kit: Kit) -> None:
        """1. An empty batch answers empty, prepared or not, and touches nothing."""
        desk = open_desk(epoch=0)
        assert desk.deduct() == []
        desk.open(gold=5)
        before = desk.look()
        assert desk.deduct() == []
        for hook in {"compensate", "credit", "debit"} & desk.hooks.keys():
            assert list(desk.hooks[hook]([])) == []
        assert desk.look() == before
        assert kit.alarms == []

    def test_02_answers_align_with_attempts(self, open_desk: OpenDesk) -> None:
        """2. One answer per attempt, in order; later attempts see earlier ones (3.3)."""
        desk = open_desk(gold=5, per_buyer=PerBuyer(sku=2))
        answers = desk.deduct(
            ask("ann", "r1", gold=1),
            ask("ann", "r1", gold=2),
            ask("bob", "r1", silver=1),
            ask("cid", "r1", gold=1),
            ask("ann", "r2", gold=2),
            ask("ann", "r1", gold=1),
        )
        assert codes(answers) == [
            "HELD",
            Code.KEY_REUSED,
            Code.SOLD_OUT,
            "HELD",
            Code.OVER_LIMIT,
            "HELD",
        ]
        assert [answers[n].attempt.buyer for n in (0, 3, 5)] == ["ann", "cid", "ann"]
        assert answers[0] == answers[5]
        assert desk.held() == 2

    def test_02_a_buyer_has_one_place(self, open_desk: OpenDesk) -> None:
        """F6: all that a buyer gets in an epoch lies in one place, batch by batch."""
        desk = open_desk(gold=40)
        crowd = [ask(f"b{n}", "r1") for n in range(20)]
        first = desk.deduct(*crowd)
        again = desk.deduct(*[other(attempt, request_id="r2") for attempt in reversed(crowd)])
        assert codes(first + again) == ["HELD"] * 40
        assert [a.place for a in first] == [a.place for a in reversed(again)]

    # ------------------------------------------------------------------ 3, 4
    def test_03_conservation_under_threads(self, open_desk: OpenDesk, race: Race) -> None:
        """3. Holds, undos, returns, credits and debits at once: every unit is still somewhere."""
        desk = open_desk(gold=80)

        def work(n: int) -> None:
            held = [desk.hold(ask(f"b{n}", f"r{k}")) for k in range(2)]
            desk.undo(held[0])
            desk.undo(held[0])
            if n % 2:
                desk.give_back(held[1])
            desk.credit("gold", 1, desk.places[n % len(desk.places)])
            if "debit" in desk.hooks:
                desk.debit("gold", 2, desk.places[n % len(desk.places)])

        race(work)
        assert desk.held() == 8
        assert desk.conserved()

    def test_03_count_is_what_is_there(self, bound: Bound, open_desk: OpenDesk) -> None:
        """3. ``count`` answers just what the probe sees, place by place."""
        desk = open_desk(gold=5, silver=3)
        self.need(bound, "count")
        desk.deduct(ask("ann", gold=2), ask("bob", silver=1), ask("cid", gold=1, silver=1))
        desk.undo(desk.hold(ask("dan")))
        found = list(desk.hooks["count"](desk.sale, desk.epoch))
        assert {(c.place, c.sku): c.left for c in found} == desk.probe.left(desk.sale, 1)
        held = {(c.place, c.sku): c.held for c in found if c.held}
        seen = desk.probe.held(desk.sale, 1)
        assert held == {key: n for key, n in seen.items() if n}

    def test_04_never_oversells_under_threads(self, open_desk: OpenDesk, race: Race) -> None:
        """4. Threads with batches hold min(units, demand), and a place that refused is empty."""
        for _ in range(4):  # the race is about the last units: often, not long
            desk = open_desk(gold=5)
            units = 5 * len(desk.places)
            asked = race(lambda n, d=desk: d.deduct(*[ask(f"b{n}-{k}") for k in range(3)]))  # type: ignore[misc]
            answers = [answer for part in asked for answer in part]
            told = Counter(codes(answers))
            assert told.keys() <= {"HELD", Code.SOLD_OUT}
            assert told["HELD"] == desk.held() == units - desk.left()
            left = desk.probe.left(desk.sale, desk.epoch)
            refused = {a.detail["place"] for a in answers if isinstance(a, Rejection)}
            assert {left[place, "gold"] for place in refused} <= {0}
            if not self.capabilities.may_strand and len(desk.places) == 1:
                assert told["HELD"] == min(units, len(answers))

    def test_04_the_last_unit_under_threads(self, open_desk: OpenDesk, race: Race) -> None:
        """4. One unit per place, asked for by all at once, round after round, is held once."""
        desk = open_desk(gold=0, silver=0)
        for number in range(4):
            desk.credit("gold", 1)
            told = race(lambda n, r=f"r{number}": desk.code(ask(f"b{n}", r)))  # type: ignore[misc]
            assert told.count("HELD") == len(desk.places) == 16 - told.count(Code.SOLD_OUT)
            assert desk.left() == 0

    def test_04_sold_out_names_its_place(self, open_desk: OpenDesk) -> None:
        """7.1: SOLD_OUT says which place is short, for the core to bring units there."""
        desk = open_desk(gold=1)
        place = desk.hold(ask("ann", "r1")).place
        (empty,) = desk.deduct(ask("ann", "r2"))
        assert (empty.code, empty.detail["place"]) == (Code.SOLD_OUT, place)

    # ------------------------------------------------------------------ 5, 6, 7
    def test_05_one_identity_holds_once(self, open_desk: OpenDesk) -> None:
        """5. The same request_id holds once and answers the same, in a batch and across."""
        desk = open_desk(gold=5)
        first, twin = desk.deduct(ask(gold=2), ask(gold=2))
        (later,) = desk.deduct(ask(gold=2))
        assert first == twin == later
        assert codes([first]) == ["HELD"]
        assert desk.held() == 2

    def test_05_one_identity_holds_once_under_threads(
        self, open_desk: OpenDesk, race: Race
    ) -> None:
        """5. The same attempt from many threads at once holds once and answers all the same."""
        desk = open_desk(gold=50)
        answers = race(lambda n: desk.deduct(ask("ann"), ask("ann")))
        first = answers[0][0]
        assert all(answer == first for pair in answers for answer in pair)
        assert desk.held() == 1

    def test_05_the_stored_order_no_is_answered(self, open_desk: OpenDesk) -> None:
        """2.2: keys rotate; a replay gets the order number, place and epoch of the first time."""
        desk = open_desk()
        first = desk.hold(ask())
        again = desk.hold(ask_with_number("0" * 32))
        assert (again.order_no, again.place, again.epoch) == (first.order_no, first.place, 1)
        assert desk.held() == 1

    def test_05_the_buyer_is_part_of_the_identity(self, open_desk: OpenDesk) -> None:
        """2.1: two buyers with one request_id are two attempts."""
        desk = open_desk()
        answers = desk.deduct(ask("ann", "r1"), ask("bob", "r1"))
        assert codes(answers) == ["HELD", "HELD"]
        assert answers[0].order_no != answers[1].order_no
        assert desk.held() == 2

    def test_05_a_replay_comes_before_every_refusal(self, open_desk: OpenDesk, kit: Kit) -> None:
        """3.3: who was held hears it again: too late, over the limit and with nothing left."""
        desk = open_desk(gold=1, per_buyer=PerBuyer(sale=1))
        attempt = ask(deadline_s=kit.clock.monotonic_s() + 1)
        first = desk.hold(attempt)
        kit.clock.advance(5)
        assert desk.hold(attempt) == first
        assert desk.held() == 1

    def test_05_a_refused_attempt_is_judged_anew(self, open_desk: OpenDesk) -> None:
        """Memory of protocol.md 9: a refusal before a hold stores nothing."""
        desk = open_desk(gold=1)
        assert desk.code(ask(gold=2)) is Code.SOLD_OUT
        desk.credit("gold", 1)
        assert desk.code(ask(gold=2)) == "HELD"

    def test_06_other_content_is_key_reused(self, open_desk: OpenDesk) -> None:
        """6. The same identity with other lines is KEY_REUSED, in a batch and across (2.3)."""
        desk = open_desk(gold=9, silver=9)
        assert codes(desk.deduct(ask(gold=1), ask(gold=2))) == ["HELD", Code.KEY_REUSED]
        assert codes(desk.deduct(ask(silver=1))) == [Code.KEY_REUSED]
        grouped = ask(lines=[Line("gold", 1, "team")])
        assert desk.code(grouped) is Code.KEY_REUSED
        assert (desk.held("gold"), desk.held("silver")) == (1, 0)

    def test_07_too_many_are_refused_whole(self, open_desk: OpenDesk) -> None:
        """7. What is larger than what is left is refused whole: no quantity, no line is split."""
        desk = open_desk(gold=3, silver=1)
        before = desk.look()
        split = ask("cid", lines=[Line("gold", 2, "a"), Line("gold", 2, "b")])
        told = desk.deduct(ask("ann", gold=4), ask("bob", gold=1, silver=2), split)
        assert codes(told) == [Code.SOLD_OUT] * 3
        assert desk.look() == before
        assert desk.code(ask("ann", "r2", gold=3, silver=1)) == "HELD"
        assert (desk.held("gold"), desk.held("silver")) == (3, 1)

    def test_07_two_lines_of_one_sku_count_together(self, open_desk: OpenDesk) -> None:
        """D2: lines of a sku are summed before any check, and held as their sum."""
        desk = open_desk(gold=5, per_buyer=PerBuyer(sku=3))
        four = ask("ann", "r1", lines=[Line("gold", 2, "a"), Line("gold", 2, "b")])
        three = ask("ann", "r2", lines=[Line("gold", 2, "a"), Line("gold", 1, "b")])
        assert codes(desk.deduct(four, three)) == [Code.OVER_LIMIT, "HELD"]
        assert desk.held() == 3

    def test_07_an_unknown_sku_is_not_sold_out(self, open_desk: OpenDesk) -> None:
        """3.1: a sku that the place never had is not ready, which is no word about its stock."""
        desk = open_desk(gold=5)
        assert desk.code(ask(gold=1, new=1)) is Code.BUSY
        assert desk.held() == 0

    # ------------------------------------------------------------------ 10
    @pytest.mark.parametrize(
        ("limits", "own", "more"),
        [
            (PerBuyer(sku=3), {}, 2),
            (PerBuyer(sku=9), {"gold": 3}, 2),
            (PerBuyer(sale=4), {}, 2),
            (PerBuyer(attempt=2), {}, 3),
        ],
        ids=["sku", "own", "sale", "attempt"],
    )
    def test_10_every_limit_counts(
        self, open_desk: OpenDesk, limits: PerBuyer, own: dict[str, int], more: int
    ) -> None:
        """10. Per sku, a sku's own before the default, per sale and per attempt: OVER_LIMIT."""
        desk = open_desk(gold=9, silver=9, per_buyer=limits, own_limits=own)
        assert desk.code(ask("ann", "r1", silver=1)) == "HELD"
        assert desk.code(ask("ann", "r2", gold=2)) == "HELD"
        assert desk.code(ask("ann", "r3", gold=more)) is Code.OVER_LIMIT
        assert desk.code(ask("bob", "r4", gold=2)) == "HELD"
        assert desk.held("gold") == 4

    def test_10_the_limit_holds_under_threads(self, open_desk: OpenDesk, race: Race) -> None:
        """10. Parallel attempts of one buyer with limit 2 hold exactly 2."""
        desk = open_desk(gold=50, per_buyer=PerBuyer(sale=2))
        told = [c for part in race(lambda n: codes(desk.deduct(*_tries(n)))) for c in part]
        assert Counter(told) == {"HELD": 2, Code.OVER_LIMIT: 46}
        assert desk.held() == 2

    def test_10_the_limit_is_judged_before_stock(self, open_desk: OpenDesk) -> None:
        """S0-14: who is over the limit hears that, also where nothing is left."""
        desk = open_desk(gold=1, per_buyer=PerBuyer(sku=1))
        desk.hold(ask("ann", "r1"))
        assert desk.code(ask("ann", "r2")) is Code.OVER_LIMIT

    def test_10_after_the_deadline_nothing_is_held(self, open_desk: OpenDesk, kit: Kit) -> None:
        """3.3, 3.4: past its deadline an attempt is BUSY before its limit and stock are judged."""
        desk = open_desk(gold=1, per_buyer=PerBuyer(attempt=1))
        late = ask(gold=2, deadline_s=kit.clock.monotonic_s() - 0.5)
        assert desk.code(late) is Code.BUSY
        assert desk.code(ask(deadline_s=kit.clock.monotonic_s() + 1)) == "HELD"

    def test_10_of_two_limits_the_smaller_counts(self, bound: Bound, open_desk: OpenDesk) -> None:
        """6.6: of the pushed limits and the batch's the smaller is used, and pushed anew."""
        desk = open_desk(gold=20, silver=20, per_buyer=PerBuyer(sale=3))
        self.need(bound, "push")
        for version, limits, more in [(1, PerBuyer(sale=1), 1), (2, PerBuyer(sale=9), 2)]:
            control = Control(version, limits, {}, paused=False)
            assert list(desk.hooks["push"](desk.sale, 1, control)) == []
            told = [desk.code(ask("ann", f"v{version}-{k}")) for k in range(4)]
            assert told == ["HELD"] * more + [Code.OVER_LIMIT] * (4 - more)
        own = Control(3, PerBuyer(), {"silver": 1}, paused=False)
        assert list(desk.hooks["push"](desk.sale, 1, own)) == []
        assert desk.code(ask("bob", silver=2)) is Code.OVER_LIMIT
        assert desk.code(ask("bob", gold=2)) == "HELD"

    def test_10_an_older_control_changes_nothing(self, bound: Bound, open_desk: OpenDesk) -> None:
        """6.6: versions order the pushes; paused is CLOSED for what is new, not for replays."""
        desk = open_desk(gold=20)
        self.need(bound, "push")
        first = desk.hold(ask("ann"))
        push = desk.hooks["push"]
        assert list(push(desk.sale, 1, Control(5, PerBuyer(), {}, paused=True))) == []
        assert list(push(desk.sale, 1, Control(4, PerBuyer(), {}, paused=False))) == []
        assert desk.code(ask("bob")) is Code.CLOSED
        assert desk.hold(ask("ann")) == first
        assert list(push(desk.sale, 1, Control(6, PerBuyer(), {}, paused=False))) == []
        assert desk.code(ask("bob")) == "HELD"
        missing = push(desk.sale, 2, Control(6, PerBuyer(), {}, paused=False))
        assert set(missing) == set(desk.places), "places that are not there were not reached"

    def test_10_another_kind_is_fenced(self, bound: Bound, open_desk: OpenDesk) -> None:
        """1.1: kind belongs to the epoch: a batch of kind J holds nothing at a holder."""
        desk = open_desk(gold=5)
        if bound.tier is Tier.JOURNAL:
            declined("accepts by itself", "an epoch of kind J is its own")
        assert desk.code(ask(), kind=Kind.J) is Code.BUSY
        assert desk.held() == 0


def ask_with_number(order_no: str) -> Any:
    """Ann's first attempt, named by another server key."""
    return other(ask(), order_no=order_no)


def _tries(n: int) -> list[Any]:
    return [ask("ann", f"r{n}-{k}") for k in range(3)]
