"""Laws of queues: plugins with a ``delivery``, which carry accepted orders to workers.

class TestMine(QueueSuite):
    @pytest.fixture
    def queue(self, my_server, context):
        return Mine(Mine.Options(url=my_server), context)

    @pytest.fixture
    def reopen(self, queue, my_server, context):
        def reopen():
            queue.close()
            return Mine(Mine.Options(url=my_server), context)
        return reopen
"""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

import pytest

from doorbuster.hookspecs import Delivery
from doorbuster.outcomes import Code
from doorbuster.plugin import PluginOptions
from doorbuster.testing.faults import Flaky
from doorbuster.testing.flow import Flow, given
from doorbuster.testing.kit import Kit
from doorbuster.testing.memory_orders import MemoryOrders
from doorbuster.testing.suites import base
from doorbuster.testing.suites.base import close_twice, declined
from doorbuster.testing.suites.ground import hooks_of
from doorbuster.testing.suites.queue_broker import BrokerLaws

__all__ = ["QueueSuite"]

_BROKER: Final = ("enqueue", "receive", "settle")


class QueueSuite(BrokerLaws):
    """Override ``queue``; for a broker ``reopen`` too, and ``outage`` where one can be had."""

    class Capabilities(base.Capabilities, frozen=True, kw_only=True):
        """What an enqueue plugin declares."""

        patience_ms: int = 0
        """How long an empty answer of ``receive`` may take to be believed: a broker's worker
        may have to join a group first."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    @pytest.fixture
    def queue(self, context: Any) -> Any:
        """The plugin instance under test, built with ``context``. To be overridden."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture 'queue'")

    @pytest.fixture
    def hooks(self, queue: Any) -> dict[str, Callable[..., Any]]:
        """The queue's hooks by name."""
        return hooks_of(queue)

    @pytest.fixture
    def orders(self, kit: Kit) -> MemoryOrders:
        """What persist writes in ``flow``."""
        return MemoryOrders(PluginOptions(), kit.context("orders"))

    @pytest.fixture
    def persist(self, orders: MemoryOrders) -> Flaky:
        """The persist plugin of ``flow``, which fails on order."""
        return Flaky(orders)

    @pytest.fixture
    def flow(self, kit: Kit, queue: Any, persist: Flaky) -> Iterator[Flow]:
        """An open sale whose orders travel by the queue."""
        plugins = {"queue": given(queue), "service": given(persist)}
        brief = {"workers": {"lease_s": 1}}  # a fault is tried again within the drain
        with kit.flow(plugins=plugins, tables=brief, enqueue="queue", persist="service") as opened:
            yield opened

    # ------------------------------------------------------------------ every delivery
    def test_a_delivery_has_the_methods_it_needs(
        self, queue: Any, hooks: Mapping[str, Any]
    ) -> None:
        """A broker offers enqueue, receive and settle; the other deliveries offer none of them."""
        assert isinstance(queue.delivery, Delivery)
        offered = [hook for hook in _BROKER if hook in hooks]
        assert offered == (list(_BROKER) if queue.delivery is Delivery.BROKER else [])

    def test_every_accepted_attempt_becomes_one_order(
        self, flow: Flow, orders: MemoryOrders
    ) -> None:
        """However it is carried: after the drain one order per accepted attempt, and no other."""
        outcomes = [flow.buy(f"buyer{n}", quantity=1 + n % 3) for n in range(7)]
        accepted = [found.order_no for found in outcomes if found.code is Code.ACCEPTED]
        assert 5 <= len(accepted) < 7  # ten units: the last buyers find too few
        assert flow.drain() == 0
        assert sorted(orders.orders) == sorted(str(number) for number in accepted)
        assert set(flow.states().values()) == {"CREATED"}
        assert flow.balanced

    def test_a_fault_of_persist_refuses_nobody_and_loses_nothing(
        self, flow: Flow, persist: Flaky, orders: MemoryOrders
    ) -> None:
        """Accepted is durable already: what persist could not write, or said nothing of, waits."""
        persist.refuse("persist", 2)
        persist.vanish("persist")
        for n in range(4):
            assert flow.buy(f"buyer{n}").code is Code.ACCEPTED
        assert flow.drain() == 0
        assert persist.faults == [("persist", "refuse")] * 2 + [("persist", "vanish")]
        assert len(orders.orders) == 4
        assert set(flow.states().values()) == {"CREATED"}
        assert flow.balanced

    def test_a_return_finds_the_order_it_takes_back(self, flow: Flow, orders: MemoryOrders) -> None:
        """An order that was carried can be cancelled: its units come back once."""
        number = str(flow.buy("ann", quantity=4).order_no)
        flow.buy("bob", quantity=6, request_id="r1")
        assert flow.drain() == 0
        assert flow.give_back("bob", "r1")
        assert flow.drain() == 0
        assert flow.left() == {"gold": 6}
        assert orders.valid(number) == 1
        assert flow.balanced

    # ------------------------------------------------------------------ CLAIM and INLINE
    def test_the_order_is_there_when_it_is_promised(
        self, queue: Any, flow: Flow, orders: MemoryOrders
    ) -> None:
        """INLINE: with the answer. CLAIM: after it, by a worker; no request waits for persist."""
        if queue.delivery is Delivery.BROKER:
            declined("delivers by BROKER", "orders are there when the broker's worker had its turn")
        outcome = flow.buy("ann")
        inline = queue.delivery is Delivery.INLINE
        assert orders.valid(str(outcome.order_no)) == inline
        assert list(flow.states().values()) == ["CREATED" if inline else "RESERVED"]
        assert len(flow.ledger.claim(owner="worker", rows=10, lease_s=0)) == (not inline)

    def test_what_inline_left_is_claimed(
        self, queue: Any, flow: Flow, persist: Flaky, orders: MemoryOrders
    ) -> None:
        """A fault of persist in the request: the answer stands, and a worker goes on with it."""
        if queue.delivery is not Delivery.INLINE:
            declined(f"delivers by {queue.delivery.name}", "no request calls persist")
        persist.refuse("persist")
        outcome = flow.buy("ann")
        assert outcome.code is Code.ACCEPTED
        assert orders.valid(str(outcome.order_no)) == 0
        assert flow.ledger.claim(owner="worker", rows=10, lease_s=30) == []  # the request has it
        assert flow.drain() == 0
        assert orders.valid(str(outcome.order_no)) == 1
        assert flow.balanced

    def test_close_twice_is_close_once(self, queue: Any) -> None:
        """Closing again changes nothing and raises nothing."""
        close_twice(queue)
