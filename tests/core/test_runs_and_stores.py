"""Faults a hostile reader found: answers of another run, orders of another store, dead logs."""

from __future__ import annotations

import msgspec
import pytest
import structlog

from doorbuster.clock import SystemClock
from doorbuster.errors import ConfigError, PermanentError
from doorbuster.ledger import Ledger
from doorbuster.ledger.database import Database
from doorbuster.model import IntentState
from doorbuster.outcomes import Code, Outcome, Persisted
from doorbuster.plugin import hookimpl


def create_again(stand):
    """End the sale, drain it and open its next run."""
    sales = stand.engine.sales
    sales.end("drop", actor="test")
    assert stand.drain() == 0
    sales.create("drop", actor="test", again=True)
    stand.start()


def test_2_1_an_attempt_admitted_to_one_run_is_not_accepted_in_the_next(make_stand):
    """Its order number names the run: asked again, it is admitted to the new one."""
    stand = make_stand()
    old = stand.runtime.admit(stand.attempt("ann"), None)
    create_again(stand)
    (late,) = stand.runtime.decide([old])
    assert (late.code, late.detail) == (Code.BUSY, {"reason": "created-again"})
    again = stand.buy("ann")
    assert again.code is Code.ACCEPTED
    assert again.order_no != old.order_no
    assert stand.drain() == 0
    assert stand.balanced()


def test_2_1_a_known_answer_of_one_run_is_none_of_the_next(make_stand):
    """Also when its settlement comes after the new run has opened."""
    stand = make_stand()
    old = stand.runtime.admit(stand.attempt("ann"), None)
    accepted = stand.buy("ann")
    create_again(stand)
    stand.runtime.known.put(old, accepted)
    assert stand.result("ann") is None
    assert stand.buy("ann").order_no != accepted.order_no


def test_2_1_an_older_run_never_overwrites_a_known_answer(make_stand):
    """The newer one stays."""
    stand = make_stand()
    old = stand.runtime.admit(stand.attempt("ann"), None)
    create_again(stand)
    newer = stand.buy("ann")
    stand.runtime.known.put(old, Outcome(Code.PENDING))
    assert stand.buy("ann") == newer


def test_4_6_a_pending_answer_is_believed_for_a_moment_only(make_stand, clock):
    """After it the same request_id finds the truth, also where nothing settles it."""
    stand = make_stand()
    admitted = stand.runtime.admit(stand.attempt("ann"), None)
    stand.runtime.known.put(admitted, Outcome(Code.PENDING))
    assert stand.buy("ann").code is Code.PENDING
    clock.advance(2)
    assert stand.buy("ann").code is Code.ACCEPTED


class Book:
    """A store of orders of its own, as a team might have."""

    rows: dict[str, str]

    def __init__(self, options, context):
        self.rows = context.state.setdefault("rows", {})

    @hookimpl
    def persist(self, reservations):
        for item in reservations:
            self.rows.setdefault(item.order_no, "CREATED")
        return [Persisted.CREATED] * len(reservations)

    @hookimpl
    def void(self, reservation):
        self.rows[reservation.order_no] = "VOID"
        return Persisted.REFUSED


def test_4_4_a_return_voids_the_store_that_wrote_the_order(make_stand, plugins):
    """Whatever the mode's word is by then: the outbox row names its persist plugin."""
    plugins["book"] = Book
    stand = make_stand(modes={"booked": {"persist": "book"}})
    order_no = stand.buy("ann").order_no
    assert stand.drain() == 0
    row = stand.ledger.require_sale("drop")
    stand.ledger.change_control(row, actor="op", action="mode", effective="booked")
    stand.engine.world.refresh()
    cancelled = IntentState.CANCELLED
    assert stand.engine.release("drop", "ann", "r1", reason="why", actor="op", to=cancelled)
    assert stand.drain() == 0
    assert [(one["order_no"], one["state"]) for one in stand.rows("orders")] == [
        (order_no, "CANCELLED")
    ]


def test_4_5_a_batch_is_persisted_by_the_plugin_it_was_accepted_for(make_stand, plugins):
    """A word that changes between accept and persist does not move the order."""
    plugins["book"] = Book
    stand = make_stand(modes={"booked": {"persist": "book"}})
    stand.buy("ann")
    row = stand.ledger.require_sale("drop")
    stand.ledger.change_control(row, actor="op", action="mode", effective="booked")
    stand.engine.world.refresh()
    stand.buy("bob")
    assert stand.drain() == 0
    assert [one["buyer"] for one in stand.rows("orders")] == ["ann"]
    assert len(stand.engine.wiring.bound("drop", "book").instance.rows) == 1


def test_o11_one_row_that_is_refused_for_good_keeps_no_other_waiting(make_stand, plugins):
    """It becomes a dead letter; when nothing goes through, nothing is written off."""

    class Picky(Book):
        refuses = frozenset({"b3"})

        @hookimpl
        def persist(self, reservations):
            if any(item.attempt.buyer in self.refuses for item in reservations):
                raise PermanentError("unique")
            return super().persist(reservations)

    plugins["picky"] = Picky
    stand = make_stand(pipeline={"persist": "picky"})
    stand.crowd(8)
    assert stand.drain() == 0
    assert list(stand.states().values()).count("CREATED") == 7
    assert [letter["reason"] for letter in stand.rows("dead_letters")] == ["persist refused"]
    Picky.refuses = frozenset({"b9"})
    stand.buy("b9")
    with pytest.raises(PermanentError):
        stand.role("persist").run_once()
    assert len(stand.rows("dead_letters")) == 1


def test_a_logger_that_cannot_write_costs_nobody_an_answer(make_stand, plugins):
    """A dead stderr must not hang a caller or end a role."""

    def broken(*_):
        raise OSError("no reader")

    def fall(*_):
        raise SystemExit("plugin")

    plugins.gate("wild", fall)
    stand = make_stand(pipeline={"filter": ["wild"]})
    structlog.configure(processors=[broken])
    try:
        assert stand.buy("ann").code is Code.BUSY
        stand.engine.alarms("anything", "critical")
        assert stand.role("persist").run_once() is False
    finally:
        structlog.reset_defaults()


def test_a_sale_that_left_the_config_can_still_be_paused_and_restocked(make_stand):
    """The command does what it says, once, or says that it did nothing."""
    stand = make_stand()
    del stand.engine.world.runtimes["drop"]
    total = stand.rows("stock")[0]["total"]
    sales = stand.engine.sales
    assert sales.pause("drop", actor="op").state == "paused"
    sales.restock("drop", "gold", 3, actor="op", restock_id="once")
    sales.restock("drop", "gold", 3, actor="op", restock_id="once")
    assert stand.rows("stock")[0]["total"] == total + 3
    assert sales.end("drop", actor="op").state == "ended"


def test_a_restock_id_is_a_name(make_stand):
    """An empty one is a shell variable that was not set: it must not mean "a new one"."""
    stand = make_stand()
    with pytest.raises(ConfigError, match="restock id ''"):
        stand.engine.sales.restock("drop", "gold", 3, actor="op", restock_id="")


def test_y9_a_clock_that_was_set_back_strands_no_lease(make_stand, clock):
    """A lease that ends later than any given now would is over."""
    stand = make_stand()
    stand.buy("ann")
    sids = list(stand.engine.world.by_sid())
    lost = stand.ledger.claim(owner="dead", rows=10, lease_s=10, sids=sids)
    assert len(lost) == 1
    clock.advance(-3600)
    assert stand.ledger.claim(owner="next", rows=10, lease_s=10, sids=sids) != []


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///:memory:", "sqlite:///file:q?mode=memory&cache=shared&uri=true"],
)
def test_a_database_in_memory_promises_nothing(url):
    """However its URL is written."""
    database = Database(url, SystemClock())
    assert database.in_memory
    database.close()


@pytest.mark.parametrize("url", ["mysql:u:S3CRET@h", "postgres//u:S3CRET@h/db", "://S3CRET"])
def test_x9_a_malformed_url_is_not_shown(url):
    """It may hold a password."""
    with pytest.raises(ConfigError) as found:
        Ledger.open(url, SystemClock())
    assert "S3CRET" not in str(found.value)


@pytest.mark.parametrize("deadline_s", [float("inf"), float("nan"), 10**400, "soon"])
def test_a_deadline_that_is_no_moment_is_invalid(make_stand, deadline_s):
    """It costs its own attempt only."""
    stand = make_stand()
    odd = msgspec.structs.replace(stand.attempt("ann"), deadline_s=deadline_s)
    assert [one.code for one in stand.batch(odd, stand.attempt("bob"))] == [
        Code.INVALID,
        Code.ACCEPTED,
    ]
