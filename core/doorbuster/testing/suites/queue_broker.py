"""Laws of queues with ``Delivery.BROKER``: what was sent arrives, in order, until it is settled."""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, ClassVar, Final

import msgspec
import pytest

from doorbuster.errors import UnavailableError, UnknownOutcomeError
from doorbuster.hookspecs import Delivery
from doorbuster.model import QUANTITY_MAX, Attempt, Line, Received, Reservation
from doorbuster.outcomes import UNKNOWN, Persisted, Sent
from doorbuster.testing.flow import SALE, Flow
from doorbuster.testing.suites.base import Suite, declined, racing
from doorbuster.testing.suites.ground import attempt, hooks_of

__all__ = ["BrokerLaws"]

_ROUNDS_MAX: Final = 500
_ODD: Final = Reservation(
    Attempt(
        lines=(Line("a" * 64, QUANTITY_MAX, "team_1"), Line("b-2", 1), Line("b-2", 2, "t")),
        buyer="Z" * 64,
        request_id="-_-",
        sale=SALE,
        order_no="f" * 32,
        fingerprint=f"{'a' * 64}={QUANTITY_MAX}@team_1,b-2=1,b-2=2@t",
        run=7,
    ),
    "",
    "f" * 32,
    2**31 - 1,
    2**63 - 1,
)
"""A reservation at the edge of every field."""


def reservation(number: int, buyer: str = "ann") -> Reservation:
    """A reservation as the ledger gives it to a relay."""
    asked = attempt(buyer, request_id=f"r{number}")
    return Reservation(asked, f"s{number % 3}", asked.order_no, 1, number)


def _plain(items: Sequence[Reservation]) -> list[Reservation]:
    """Reservations whose lines are tuples, as a codec may make lists of them."""
    replace = msgspec.structs.replace
    return [
        replace(item, attempt=replace(item.attempt, lines=tuple(item.attempt.lines)))
        for item in items
    ]


class BrokerLaws(Suite):
    """The part of :class:`~doorbuster.testing.suites.queue.QueueSuite` that is about brokers."""

    capabilities: ClassVar[Any]
    """See :class:`~doorbuster.testing.suites.queue.QueueSuite`."""

    # ------------------------------------------------------------------ an author's part
    @pytest.fixture
    def reopen(self) -> Callable[[], Any] | None:
        """Let the worker that received be gone, without settling; answer another one's queue."""
        return None

    @pytest.fixture
    def outage(self) -> Callable[[], AbstractContextManager[None]] | None:
        """Make the broker fail within a block: it refuses, is silent, or loses its replies."""
        return None

    # ------------------------------------------------------------------ the suite's part
    @pytest.fixture
    def broker(self, queue: Any, hooks: Mapping[str, Any]) -> Callable[[str], Callable[..., Any]]:
        """``broker(name)``: a hook of a queue with a broker; the law is declined for another."""

        def broker(name: str) -> Callable[..., Any]:
            if queue.delivery is not Delivery.BROKER:
                declined(f"delivers by {queue.delivery.name}", "no broker can lose its orders")
            hook: Callable[..., Any] = hooks[name]
            return hook

        return broker

    def receive(self, hook: Any, most: int = 100) -> list[Received]:
        """Receive until nothing comes any more, without settling."""
        got: list[Received] = []
        for _ in range(_ROUNDS_MAX):
            found = hook("receive")(most, self.capabilities.patience_ms)
            assert len(found) <= most
            if not found:
                return got
            got += found
        raise AssertionError("records come without an end: what was received came again at once")

    def arrivals(self, hook: Any) -> list[Reservation]:
        """Receive and settle everything; answer the reservations in order of arrival."""
        got = self.receive(hook)
        hook("settle")(got)
        return _plain([item for record in got for item in record.reservations])

    # ------------------------------------------------------------------ sending
    def test_sent_is_delivered_as_it_was(self, broker: Any) -> None:
        """SENT means delivered in the end, equal: attempt, place, order_no, epoch and intent."""
        items = [*(reservation(n, f"buyer{n % 4}") for n in range(20)), _ODD]
        answers = [*broker("enqueue")(items[:7]), *broker("enqueue")(items[7:])]
        assert answers == [Sent.SENT] * len(items)
        got = {item.order_no: item for item in self.arrivals(broker)}
        assert got == {item.order_no: item for item in items}

    def test_nothing_to_send_and_nothing_there(self, broker: Any) -> None:
        """The empty batch answers empty and sends nothing; an empty queue delivers nothing."""
        assert list(broker("enqueue")(())) == []
        assert list(broker("receive")(10, 0)) == []
        broker("settle")(())
        broker("enqueue")([reservation(1)])
        assert self.arrivals(broker) == [reservation(1)]

    def test_enqueue_twice_loses_nothing(self, broker: Any) -> None:
        """A relay that died after it sent sends again (O2): duplicates may come, gaps may not."""
        items = [reservation(n) for n in range(6)]
        for part in (items[:4], items, items[2:]):
            assert set(broker("enqueue")(part)) == {Sent.SENT}
        got = Counter(item.order_no for item in self.arrivals(broker))
        assert set(got) == {item.order_no for item in items}
        assert max(got.values()) <= 3

    def test_threads_send_all_of_theirs(self, broker: Any, queue: Any) -> None:
        """Relays that send at once lose none of each other's."""
        lots = [[reservation(n * 100 + k, f"buyer{n}") for k in range(5)] for n in range(8)]
        enqueue = broker("enqueue")
        with racing(queue) as race:
            answers = race(lambda n: [enqueue([item]) for item in lots[n]], 8)
        assert all(list(answer) == [Sent.SENT] for part in answers for answer in part)
        got = {item.order_no for item in self.arrivals(broker)}
        assert got == {item.order_no for lot in lots for item in lot}

    # ------------------------------------------------------------------ receiving
    def test_a_buyers_orders_arrive_in_order(self, broker: Any) -> None:
        """Order per key: what of one buyer was sent first arrives first."""
        items = [reservation(n, f"buyer{n % 3}") for n in range(30)]
        for start in range(0, 30, 4):
            broker("enqueue")(items[start : start + 4])
        got = [item for record in self.receive(broker, 2) for item in record.reservations]
        for buyer in ("buyer0", "buyer1", "buyer2"):
            numbers = [item.intent for item in got if item.attempt.buyer == buyer]
            first = list(dict.fromkeys(numbers))
            assert first == [item.intent for item in items if item.attempt.buyer == buyer]

    def test_receive_is_bounded(self, broker: Any) -> None:
        """``receive(max)`` gives at most ``max`` records, and in the end all of them."""
        items = [reservation(n) for n in range(7)]
        for item in items:
            broker("enqueue")([item])
        got = [item.order_no for record in self.receive(broker, 1) for item in record.reservations]
        assert got == [item.order_no for item in items]

    def test_receivers_at_once_miss_nothing(self, broker: Any, queue: Any) -> None:
        """Threads that receive and settle at once together see every record."""
        items = [reservation(n, f"buyer{n}") for n in range(24)]
        for item in items:
            broker("enqueue")([item])

        receive, settle = broker("receive"), broker("settle")

        def work(_: int) -> list[str]:
            seen: list[str] = []
            for _ in range(6):
                got = receive(2, 0)
                seen += [item.order_no for record in got for item in record.reservations]
                settle(got)
            return seen

        with racing(queue) as race:
            seen = [number for part in race(work, 4) for number in part]
        rest = [item.order_no for item in self.arrivals(broker)]
        assert set(seen + rest) == {item.order_no for item in items}

    # ------------------------------------------------------------------ settling
    def test_what_is_not_settled_comes_again(self, broker: Any, reopen: Any) -> None:
        """A worker that dies before it settled leaves its records to another one, unchanged."""
        other = self._other(broker, reopen)
        items = [reservation(n, f"buyer{n % 2}") for n in range(5)]
        for item in items:
            broker("enqueue")([item])
        assert len(self.receive(broker)) >= 1
        assert {item.order_no for item in self.arrivals(other())} == {i.order_no for i in items}

    def test_what_is_settled_does_not_come_again(self, broker: Any, reopen: Any) -> None:
        """Settled is over, for this worker and for every other one; settling twice is once."""
        other = self._other(broker, reopen)
        broker("enqueue")([reservation(1), reservation(2)])
        got = self.receive(broker)
        broker("settle")(got)
        broker("settle")(got)
        assert self.receive(broker) == []
        assert self.receive(other()) == []

    def test_settling_one_record_settles_no_other(self, broker: Any, reopen: Any) -> None:
        """Only the newest is settled, the worker dies: every older one comes again."""
        other = self._other(broker, reopen)
        items = [reservation(n, f"buyer{n}") for n in range(6)]
        for item in items:
            broker("enqueue")([item])
        got = self.receive(broker, 10)
        broker("settle")(got[-1:])
        settled = {item.order_no for item in got[-1].reservations}
        again = {item.order_no for item in self.arrivals(other())}
        assert again >= {item.order_no for item in items} - settled

    def test_what_came_again_can_be_settled(self, broker: Any, reopen: Any) -> None:
        """The second worker's settle counts: a third one gets nothing (no endless rebalance)."""
        other = self._other(broker, reopen)
        broker("enqueue")([reservation(1)])
        self.receive(broker)
        assert self.arrivals(other()) == [reservation(1)]
        assert self.receive(other()) == []

    def _other(self, broker: Any, reopen: Any) -> Callable[[], Any]:
        broker("receive")  # declined here where there is no broker
        if reopen is None:
            declined("names no reopen", "what becomes of a dead worker's records is not checked")
        return lambda: hooks_of(reopen()).__getitem__

    # ------------------------------------------------------------------ a broken broker
    def test_a_broken_broker_is_told_and_nothing_is_dropped(self, broker: Any, outage: Any) -> None:
        """No SENT without its record: else UNKNOWN, UnavailableError or UnknownOutcomeError."""
        broker("enqueue")
        if outage is None:
            declined("names no outage", "what a broken broker is answered is not checked")
        items = [reservation(n) for n in range(5)]
        sent = set()
        with outage():
            try:
                answers = broker("enqueue")(items)
            except (UnavailableError, UnknownOutcomeError):
                answers = [UNKNOWN] * len(items)
        assert len(answers) == len(items)
        for item, answer in zip(items, answers, strict=True):
            assert answer in (Sent.SENT, UNKNOWN)
            if answer is Sent.SENT:
                sent.add(item.order_no)
        assert {item.order_no for item in self.arrivals(broker)} >= sent
        assert set(broker("enqueue")(items)) == {Sent.SENT}
        assert {item.order_no for item in self.arrivals(broker)} == {i.order_no for i in items}

    def test_a_broken_settle_loses_nothing(self, broker: Any, outage: Any, reopen: Any) -> None:
        """A settle that failed or was refused settles at most what it was given."""
        other = self._other(broker, reopen)
        if outage is None:
            declined("names no outage", "what a broken broker is answered is not checked")
        for n in range(3):
            broker("enqueue")([reservation(n)])
        got = self.receive(broker, 1)
        with outage():
            with suppress(UnavailableError, UnknownOutcomeError):
                broker("settle")(got[:1])
            with suppress(UnavailableError, UnknownOutcomeError):
                broker("receive")(10, 0)
        again = {item.order_no for item in self.arrivals(other())}
        assert again >= {item.order_no for record in got[1:] for item in record.reservations}

    # ------------------------------------------------------------------ from ledger to orders
    def test_o7_a_record_delivered_twice_is_one_order(
        self, broker: Any, reopen: Any, flow: Flow, orders: Any
    ) -> None:
        """O2, O7: sent twice, persisted, the worker dies before it settles: one order each."""
        other = self._other(broker, reopen)
        for n in range(6):
            flow.buy(f"buyer{n % 2}")
        sale = flow.engine.world.runtimes[SALE].view.sale
        claims = flow.ledger.claim(owner="relay", rows=100, lease_s=0)
        items = flow.ledger.reservations_of([claim.batch for claim in claims], sale)
        assert len(items) == 6
        for _ in range(2):
            broker("enqueue")(items)
        for hook in (broker, other()):
            for record in self.receive(hook):
                answers = orders.persist(record.reservations)
                assert Persisted.REFUSED not in answers
                flow.ledger.settle_persisted(sale, record.reservations, answers)
        assert [orders.valid(item.order_no) for item in items] == [1] * 6
        assert flow.drain() == 0
        assert set(flow.states().values()) == {"CREATED"}
        assert len(orders.orders) == 6
