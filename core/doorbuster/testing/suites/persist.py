"""Laws of persist plugins: one order per accepted attempt, unique by ``order_no``, void for good.

class TestMine(PersistSuite):
    @pytest.fixture
    def persist(self, my_server, context):
        return Mine(Mine.Options(url=my_server), context)

    @pytest.fixture
    def find(self, my_server):
        return lambda order_no: my_server.count_valid(order_no)
"""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from doorbuster.errors import PermanentError, WiringError
from doorbuster.hookspecs import hookimpl
from doorbuster.model import IntentState, Reservation
from doorbuster.outcomes import Code, Persisted
from doorbuster.testing.faults import Flaky
from doorbuster.testing.flow import Flow, given
from doorbuster.testing.kit import Kit
from doorbuster.testing.suites.base import close_twice, must_offer, racing
from doorbuster.testing.suites.ground import OpenSale
from doorbuster.testing.suites.persist_ground import SKUS, PersistGround

__all__ = ["PersistSuite"]

CREATED: Final = Persisted.CREATED
EXISTS: Final = Persisted.EXISTS
REFUSED: Final = Persisted.REFUSED


class _Poisoned:
    """A persist plugin whose backend refuses one buyer's order for good."""

    def __init__(self, plugin: Any, buyer: str) -> None:
        self._plugin = plugin
        self._buyer = buyer

    @hookimpl
    def persist(self, reservations: Sequence[Reservation]) -> Sequence[Persisted]:
        if any(item.attempt.buyer == self._buyer for item in reservations):
            raise PermanentError("the order service refuses a row of this batch")
        answers: Sequence[Persisted] = self._plugin.persist(reservations)
        return answers


class PersistSuite(PersistGround):
    """Override ``persist``; ``find`` lets the laws look past the plugin."""

    # ------------------------------------------------------------------ writing
    def test_nothing_is_answered_with_nothing(self, write: Any) -> None:
        """An empty batch answers empty."""
        assert write(()) == []

    def test_the_first_time_creates_and_every_other_time_exists(
        self, write: Any, items: Sequence[Reservation], valid: Any
    ) -> None:
        """CREATED, then EXISTS: one order, however often it is written."""
        assert write(items) == [CREATED] * 6
        for _ in range(2):
            assert write(items) == [EXISTS] * 6
        assert valid(1, *items)

    def test_answers_align_with_reservations(
        self, write: Any, items: Sequence[Reservation], valid: Any
    ) -> None:
        """Batches that overlap in any order: each answer is of the order in its place."""
        assert write(items[1:3]) == [CREATED, CREATED]
        assert write(items[3::-1]) == [CREATED, EXISTS, EXISTS, CREATED]
        assert write([items[4], items[2], items[5]]) == [CREATED, EXISTS, CREATED]
        assert valid(1, *items)

    def test_threads_create_each_order_once(
        self, write: Any, kit: Kit, persist: Any, valid: Any
    ) -> None:
        """Workers that write the same orders at once: one of them created each."""
        one = OpenSale(kit.ledger, skus={"gold": 100})
        for part in range(3):  # a race does not show every time
            one.accept(*(one.ask(f"buyer{part}-{n}") for n in range(20)))
            items = one.waiting()
            assert len(items) == 20
            parts = [items[n % 3 :] for n in range(8)]
            with racing(persist) as race:
                answers = race(lambda n: write(parts[n]), 8)  # noqa: B023 - it ends here
            told = [
                (item.order_no, answer)
                for asked, answered in zip(parts, answers, strict=True)
                for item, answer in zip(asked, answered, strict=True)
            ]
            created = Counter(number for number, answer in told if answer is CREATED)
            assert created == {item.order_no: 1 for item in items}
            assert REFUSED not in [answer for _, answer in told]
            assert valid(1, *items)

    # ------------------------------------------------------------------ void
    def test_4_5_void_before_persist_refuses_it_for_good(
        self, write: Any, void: Any, drop: OpenSale, items: Sequence[Reservation], valid: Any
    ) -> None:
        """REFUSED, and a persist that comes later answers REFUSED too: no unit is revived."""
        assert drop.begin_return("buyer1") is not None
        assert void(items[1]) is REFUSED
        assert write(items[:3]) == [CREATED, REFUSED, CREATED]
        assert write([items[1]]) == [REFUSED]
        assert valid(0, items[1])
        assert valid(1, items[0], items[2])

    def test_4_5_void_of_a_written_order_cancels_it_for_good(
        self, write: Any, void: Any, drop: OpenSale, items: Sequence[Reservation], valid: Any
    ) -> None:
        """EXISTS: it was there and is cancelled now, and a later persist never revives it."""
        self._created(drop, items, write(items))
        assert drop.begin_return("buyer1", to=IntentState.CANCELLED) is not None
        assert void(items[1]) is EXISTS
        assert valid(0, items[1])
        assert write(items)[1] is REFUSED
        assert valid(0, items[1])
        assert valid(1, items[0], items[5])

    def test_void_twice_is_void_once(
        self, write: Any, void: Any, drop: OpenSale, items: Sequence[Reservation], valid: Any
    ) -> None:
        """A worker that died after void calls it again: the same answer, the same end."""
        self._created(drop, items[:1], write(items[:1]))
        drop.begin_return("buyer0", to=IntentState.CANCELLED)
        drop.begin_return("buyer1")
        assert [void(items[0]) for _ in range(3)] == [EXISTS] * 3
        assert [void(items[1]) for _ in range(3)] == [REFUSED] * 3
        assert write(items[:2]) == [REFUSED, REFUSED]
        assert valid(0, *items[:2])

    def test_4_5_void_wins_against_a_persist_at_the_same_time(
        self,
        write: Any,
        void: Any,
        drop: OpenSale,
        items: Sequence[Reservation],
        persist: Any,
        hooks: Mapping[str, Any],
        valid: Any,
    ) -> None:
        """Whoever comes first, in the end no valid order is left of a return that has begun."""
        must_offer("void", hooks)
        for item in items:
            assert drop.begin_return(item.attempt.buyer, item.attempt.request_id) is not None

        def work(n: int) -> list[Persisted]:
            return [void(item) for item in items] if n % 2 else write(items)

        with racing(persist) as race:
            race(work, 4)
        assert write(items) == [REFUSED] * 6
        assert valid(0, *items)

    def _created(
        self, drop: OpenSale, items: Sequence[Reservation], answers: Sequence[Persisted]
    ) -> None:
        """What the core does after persist: intents of a foreign store move on (4.5)."""
        assert answers == [CREATED] * len(items)
        drop.ledger.settle_persisted(drop.sale, items, answers)

    # ------------------------------------------------------------------ in a sale
    def test_a_drain_writes_one_order_per_accepted_attempt(self, flow: Flow, find: Any) -> None:
        """I3: every accepted attempt has just one order, nobody else has one."""
        outcomes = [flow.buy(f"buyer{n}", "gold", 1 + n % 4) for n in range(8)]
        accepted = [found.order_no for found in outcomes if found.code is Code.ACCEPTED]
        assert 5 <= len(accepted) < 8  # twelve units: some find too few
        assert flow.drain() == 0
        assert find is None or [find(number) for number in accepted] == [1] * len(accepted)
        assert list(flow.states().values()) == ["CREATED"] * len(accepted)
        assert flow.balanced

    @pytest.mark.parametrize("drained", [False, True])
    def test_4_4_a_return_leaves_no_valid_order(
        self, flow: Flow, flaky: Flaky, find: Any, drained: bool
    ) -> None:
        """Before or after its order was written: units come back once, and no order lives on.

        A plugin without ``void`` cannot promise that, so with it no return begins at all.
        """
        number = flow.buy("ann", "gold", 12, request_id="r1").order_no
        other = flow.buy("bob", "silver", request_id="r1").order_no
        to = IntentState.CANCELLED if drained else IntentState.RELEASED
        if drained:
            assert flow.drain() == 0
        if "void" not in flaky.hooks:
            with pytest.raises(WiringError, match="void"):
                flow.give_back("ann", "r1", to=to)
            to = IntentState.CREATED
        else:
            assert flow.give_back("ann", "r1", to=to)
            assert not flow.give_back("ann", "r1", to=to)
        assert flow.drain() == 0
        returned = to is not IntentState.CREATED
        assert flow.states() == {("ann", "r1"): str(to), ("bob", "r1"): "CREATED"}
        assert flow.left() == {"gold": 12 if returned else 0, "silver": 11}
        assert find is None or (find(number), find(other)) == (not returned, 1)
        assert flow.buy("eve", "gold", 12).code is (Code.ACCEPTED if returned else Code.SOLD_OUT)
        assert flow.drain() == 0
        assert flow.balanced

    def test_a_fault_of_persist_is_one_order_in_the_end(
        self, flow: Flow, flaky: Flaky, find: Any
    ) -> None:
        """Refused before, or applied and its answer lost: tried again, one order each (D8, O2)."""
        numbers = [flow.buy(f"buyer{n}", "gold").order_no for n in range(3)]
        flaky.refuse("persist")
        flaky.vanish("persist")
        assert flow.drain() == 0
        assert flaky.faults == [("persist", "refuse"), ("persist", "vanish")]
        assert find is None or [find(number) for number in numbers] == [1, 1, 1]
        assert list(flow.states().values()) == ["CREATED"] * 3
        assert flow.balanced

    def test_a_fault_of_void_is_one_return_in_the_end(
        self, flow: Flow, flaky: Flaky, find: Any
    ) -> None:
        """A return whose void failed, or whose answer was lost, is finished by the next try."""
        must_offer("void", flaky.hooks)
        number = flow.buy("ann", "gold", 2, request_id="r1").order_no
        assert flow.drain() == 0
        assert flow.give_back("ann", "r1")
        flaky.refuse("void")
        flaky.vanish("void")
        assert flow.drain() == 0
        assert flow.states() == {("ann", "r1"): "CANCELLED"}
        assert flow.left() == {"gold": 12, "silver": 12}
        assert find is None or find(number) == 0
        assert len(flow.rows("releases")) == 1
        assert flow.balanced

    def test_o11_one_poisoned_order_keeps_no_other_waiting(
        self, kit: Kit, persist: Any, find: Any
    ) -> None:
        """O11: what is refused for good is a dead letter and an alarm; the others are written."""
        plugins = {"mine": given(_Poisoned(persist, "bob"))}
        with kit.flow(plugins=plugins, skus=SKUS, persist="mine") as flow:
            numbers = {name: flow.buy(name, "gold").order_no for name in ("ann", "bob", "eve")}
            assert flow.drain() == 0
            assert find is None or {name: find(no) for name, no in numbers.items()} == {
                "ann": 1,
                "bob": 0,
                "eve": 1,
            }
            assert sorted(flow.states().values()) == ["CREATED", "CREATED", "RESERVED"]
            assert [row["order_no"] for row in flow.rows("dead_letters")] == [numbers["bob"]]
            assert "persist-refused" in [alarm.name for alarm in flow.alarms]
            assert flow.balanced

    def test_close_twice_is_close_once(self, persist: Any) -> None:
        """Closing again changes nothing and raises nothing."""
        close_twice(persist)
