"""What people read: sales, orders, audit, alarms."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from doorbuster.alarms import Alarm, Severity
from doorbuster.errors import UnknownSaleError
from doorbuster.ledger import Ledger, Needs, queries
from doorbuster.model import IntentState, Kind, Sale, Sku


def test_sales_are_found_by_environment_and_id(shop):
    """A test environment sees none of production's; the nearest name is told."""
    one = shop()
    assert [row.sale for row in one.ledger.sales()] == ["drop"]
    assert one.ledger.skus(one.row)["black"].units == 10
    other = Ledger(one.ledger.database, one.clock, "prod")
    assert other.sales() == []
    assert other.sale("drop") is None
    with pytest.raises(UnknownSaleError, match="did you mean 'drop'"):
        one.ledger.require_sale("dorp")


def test_creating_a_sale_twice_is_creating_it_once(shop):
    """Nothing of the row that is there is overwritten."""
    one = shop()
    again = Sale("drop", {"black": Sku("black", 999)})
    row = one.ledger.create_sale(
        again, run=1, kind=Kind.H, deduct="x", journal="ledger", actor="test"
    )
    assert row == one.row
    assert one.ledger.skus(row)["black"].units == 10


def test_the_newest_run_is_the_sale(shop):
    """Older runs stay readable by their orders only."""
    one = shop()
    one.buy("ann")
    one.persist()
    one.ledger.set_state(one.row, allowed=["open"], to="ended", actor="op")
    one.ledger.create_sale(one.sale, run=2, kind=Kind.H, deduct="x", journal="ledger", actor="test")
    assert [row.run for row in one.ledger.sales()] == [2]
    (order,) = one.ledger.orders("drop")
    assert one.ledger.order(order["order_no"])["intent_state"] == "CREATED"


def test_an_order_is_read_with_its_intent_and_its_release(shop):
    """One look-up tells how it ended."""
    one = shop()
    one.accept(one.item("ann"), one.item("bob"))
    one.persist()
    number = one.item("ann").order_no
    assert one.ledger.order("nothing") is None
    found = one.ledger.order(number)
    assert (found["buyer"], found["intent_state"], found["release"]) == ("ann", "CREATED", None)
    one.give_back("ann", to=IntentState.EXPIRED)
    found = one.ledger.order(number)
    assert (found["intent_state"], found["release"]["state"]) == ("EXPIRED", "EXPIRED")
    one.sql("DELETE FROM intents WHERE buyer = 'ann'")
    assert one.ledger.order(number)["intent_state"] is None


def test_orders_are_read_newest_first_and_by_buyer(shop):
    """Bounded by ``limit``."""
    one = shop()
    one.accept(*[one.item(f"b{n}") for n in range(3)])
    one.persist()
    ids = [order["id"] for order in one.ledger.orders("drop")]
    assert ids == sorted(ids, reverse=True)
    assert len(one.ledger.orders("drop", limit=2)) == 2
    assert [order["buyer"] for order in one.ledger.orders("drop", buyer="b1")] == ["b1"]
    assert one.ledger.orders("drop", buyer="nobody") == []
    assert one.ledger.orders("other") == []


def test_audit_and_alarms_are_rows(shop):
    """Who, what, when; newest first."""
    one = shop()
    assert [row["action"] for row in one.ledger.audit(one.row)] == ["sale.state", "sale.create"]
    assert one.ledger.audit(one.row, limit=1)[0]["detail"] == {"to": "open"}
    for name, sale in (("late", "drop"), ("full", None)):
        one.ledger.write_alarm(Alarm(name, Severity.WARNING, 7, sale, {"n": 1}))
    assert [alarm["name"] for alarm in one.ledger.alarms()] == ["full", "late"]
    assert one.ledger.alarms(sale="drop") == [
        {"at_ms": 7, "name": "late", "severity": "warning", "sale": "drop", "detail": {"n": 1}}
    ]


def test_what_a_worker_asks_before_it_writes(shop):
    """Open batches, units to hand out, restocks to go on with: cheap reads."""
    one = shop()
    assert one.ledger.pending([one.sid]) == 0
    assert one.ledger.needs(one.row) == Needs(wanted=False, spare=False, moving=False)
    one.buy("ann")
    assert one.ledger.pending([one.sid]) == 1
    assert one.ledger.pending([]) == 0
    one.ledger.restock(one.row, "black", 1, restock_id="a", actor="op")
    one.ledger.restock(one.row, "black", -1, restock_id="b", actor="op")
    assert one.ledger.needs(one.row) == Needs(wanted=True, spare=True, moving=False)
    one.ledger.plan_funding(
        one.row, "f1", sku="black", kind="dry", source="", target=one.places[0], units=1
    )
    assert one.ledger.needs(one.row).moving


def test_a_read_is_one_snapshot_whichever_way_its_statements_run(shop):
    """Statements on the driver begin nothing: two of them must not see two moments."""
    one = shop()
    text = "SELECT count(*) FROM intents"
    with one.ledger.database.read() as connection:
        assert queries.run(connection, text).fetchone() == (0,)
        one.buy("ann")
        assert queries.run(connection, text).fetchone() == (0,)
        assert connection.exec_driver_sql(text).scalar_one() == 0
    with one.ledger.database.read() as connection:
        assert queries.run(connection, text).fetchone() == (1,)


def test_who_listens_to_statements_hears_those_of_the_driver_too(shop):
    """A tracer that listens to SQLAlchemy sees every statement of an accept."""
    one = shop()
    heard = []
    sa.event.listen(
        one.ledger.database._writer, "before_cursor_execute", lambda *told: heard.append(told[2])
    )
    one.buy("ann")
    first = [text.split(None, 1)[0] for text in heard]
    assert first == ["BEGIN", "SELECT", "INSERT", "SELECT", "SELECT", "INSERT", "UPDATE", "INSERT"]
