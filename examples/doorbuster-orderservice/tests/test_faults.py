"""What the plugin makes of each failure of the service, and what stands there afterwards."""

import pytest
from doorbuster.plugin import (
    Attempt,
    Context,
    Line,
    PermanentError,
    Persisted,
    Reservation,
    UnavailableError,
    UnknownOutcomeError,
)
from order_service import Service

from doorbuster_orderservice import OrderService

CREATED, EXISTS, REFUSED = Persisted


def order(n: int) -> Reservation:
    """An accepted attempt, as a worker reads it."""
    attempt = Attempt([Line("gold", 2)], f"buyer{n}", "r1", sale="drop", order_no=f"{n:032x}")
    return Reservation(attempt, "all", attempt.order_no, 1, n)


ORDERS = [order(1), order(2)]


@pytest.mark.parametrize("fault", ["lose-reply", "garble", "hang", "500", "502", "504"])
def test_what_may_be_done_is_unknown_and_is_one_order(
    service: Service, plugin: OrderService, fault: str
) -> None:
    """A reply that does not come or says nothing: calling again finds one order each."""
    service.faults = [fault]
    with pytest.raises(UnknownOutcomeError):
        plugin.persist(ORDERS)
    written = not fault.isdecimal()
    assert plugin.persist(ORDERS) == [EXISTS if written else CREATED] * 2
    assert [service.valid(item.order_no) for item in ORDERS] == [1, 1]


@pytest.mark.parametrize("fault", ["503", "429"])
def test_a_busy_service_did_nothing(service: Service, plugin: OrderService, fault: str) -> None:
    """Unavailable: nothing of the request was written, and the next call writes it."""
    service.faults = [fault]
    with pytest.raises(UnavailableError):
        plugin.persist(ORDERS)
    assert [service.valid(item.order_no) for item in ORDERS] == [0, 0]
    assert plugin.persist(ORDERS) == [CREATED, CREATED]


def test_a_service_that_is_not_there_is_unavailable(service: Service, plugin: OrderService) -> None:
    """A refused connection is certainly nothing done; the plugin tries once only."""
    service.stop()
    for call in (lambda: plugin.persist(ORDERS), lambda: plugin.void(ORDERS[0])):
        with pytest.raises(UnavailableError):
            call()


@pytest.mark.parametrize("fault", ["301", "401", "404"])
def test_a_wrong_address_or_token_is_permanent(
    service: Service, plugin: OrderService, fault: str
) -> None:
    """It is nobody's order's fault: nothing is refused, an alarm calls a person."""
    for call in (lambda: plugin.persist(ORDERS[:1]), lambda: plugin.void(ORDERS[0])):
        service.faults = [fault]
        with pytest.raises(PermanentError):
            call()


def test_bad_content_is_refused_alone_and_halved_in_company(
    service: Service, plugin: OrderService
) -> None:
    """One order alone: REFUSED. Several: a PermanentError, for the core to find which."""
    service.faults = ["422", "422"]
    assert plugin.persist(ORDERS[:1]) == [REFUSED]
    with pytest.raises(PermanentError):
        plugin.persist(ORDERS)


def test_a_later_request_that_fails_leaves_the_earlier_ones(
    service: Service, plugin: OrderService
) -> None:
    """Three orders are two requests: the call fails as a whole and is safe to repeat."""
    three = [*ORDERS, order(3)]
    assert plugin.persist(()) == []
    assert service.posts == 0
    plugin.persist(ORDERS)
    service.faults = ["503"]
    with pytest.raises(UnavailableError):
        plugin.persist(three)
    assert plugin.persist(three) == [EXISTS, EXISTS, CREATED]
    assert service.posts == 4


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("fault", ["lose-reply", "garble", "hang"])
def test_a_void_whose_reply_is_lost_is_found_again(
    service: Service, plugin: OrderService, fault: str, there: bool
) -> None:
    """The second DELETE answers what the first one would have, and no POST revives it."""
    if there:
        plugin.persist(ORDERS[:1])
    service.faults = [fault]
    with pytest.raises(UnknownOutcomeError):
        plugin.void(ORDERS[0])
    assert plugin.void(ORDERS[0]) is (EXISTS if there else REFUSED)
    assert plugin.persist(ORDERS) == [REFUSED, CREATED]
    assert service.valid(ORDERS[0].order_no) == 0


def test_answers_of_other_orders_are_not_believed(
    service: Service, plugin: OrderService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixed-up connection hands out somebody else's reply: unknown, never CREATED."""
    with monkeypatch.context() as patch:
        patch.setattr(service, "create", lambda orders: [])
        with pytest.raises(UnknownOutcomeError):
            plugin.persist(ORDERS)
    created = service.create
    with monkeypatch.context() as patch:
        patch.setattr(service, "create", lambda orders: created(orders)[::-1])
        with pytest.raises(UnknownOutcomeError):
            plugin.persist(ORDERS)
    assert plugin.persist(ORDERS) == [EXISTS, EXISTS]


@pytest.mark.parametrize("url", ["orders.example", "ftp://orders.example", "https://"])
def test_a_url_that_is_none_is_told_when_it_is_built(context: Context, url: str) -> None:
    """Not at the first order."""
    with pytest.raises(ValueError, match="url"):
        OrderService(OrderService.Options(url=url), context)
