"""Query plans: no hot statement scans a table that grows with the sale."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from doorbuster.ledger import queries

GROWING = re.compile(r"\bSCAN (i|q|d|intents|quotas|orders|outbox|releases|dead_letters)\b")


@pytest.fixture
def plans(shop):
    """Every statement that the moves of a whole sale run, with its plan."""
    one = shop(places=2)
    found = {}
    recording = []

    def record(connection, cursor, statement, parameters, context, executemany):
        if statement.split(None, 1)[0] in ("SELECT", "INSERT", "UPDATE", "DELETE"):
            recording.append((statement, parameters[0] if executemany else parameters))

    for engine in (one.ledger.database._writer, one.ledger.database._reader):
        sa.event.listen(engine, "before_cursor_execute", record)

    def move(name, act):
        recording.clear()
        act()
        for statement, parameters in recording:
            plan = one.sql(f"EXPLAIN QUERY PLAN {statement}", *parameters)
            found.setdefault(name, []).append((statement, "\n".join(row[-1] for row in plan)))

    items = [one.item(f"b{n}") for n in range(3)]
    move("accept", lambda: one.accept(*items))
    move("replay", lambda: one.accept(*items, one.item("late")))
    move("refuse", lambda: one.buy("ann", lines=99))
    move("read_stored", lambda: one.ledger.results(one.row, [("b1", "r1"), ("x", "y")]))
    claims = []
    move("claim", lambda: claims.extend(one.ledger.claim(owner="w", rows=9, lease_s=1)))
    batches = [claim.batch for claim in claims]
    read = []
    move("reservations_of", lambda: read.extend(one.ledger.reservations_of(batches, one.sale)))
    move("creating", lambda: one.create(read))
    move("settle", lambda: one.ledger.settle(batches))
    move("return", lambda: one.give_back("b1", to="CANCELLED"))
    move("tombstone", lambda: one.ledger.tombstone(one.sale, 1, items, code=-6, holds=True))
    move("order", lambda: one.ledger.order(items[0].order_no))
    move("orders of a buyer", lambda: one.ledger.orders("drop", buyer="b1"))
    return found


def test_no_statement_of_a_hot_move_scans_a_growing_table(plans):
    """They are found by key, whatever the sale has sold."""
    assert len(plans) == 12
    for name, told in plans.items():
        assert told, name
        for statement, plan in told:
            assert not GROWING.search(plan), (name, statement, plan)


def test_the_search_for_scans_can_fail(shop):
    """What the law above looks for is what SQLite says."""
    one = shop()
    (row,) = one.sql("EXPLAIN QUERY PLAN SELECT * FROM intents WHERE lines = 'x'")
    assert GROWING.search(row[-1])


def test_bulk_inserts_use_few_statement_texts():
    """Sizes are powers of two up to a bound, so that prepared statements are found again."""
    sizes = []

    class Cursor:
        rowcount = 1

        def execute(self, statement, values):
            sizes.append((statement.count("(?"), len(values)))

    class Connection:
        dispatch = SimpleNamespace(before_cursor_execute=False, after_cursor_execute=False)
        connection = SimpleNamespace(cursor=Cursor)

    text = "INSERT INTO t (a, b) VALUES (?, ?) ON CONFLICT DO UPDATE SET b = ?"
    assert queries.insert_many(Connection(), text, [(n, n) for n in range(600)], 9) == 5
    assert sizes == [(256, 513), (256, 513), (64, 129), (16, 33), (8, 17)]
    assert queries.insert_many(Connection(), text, []) == 0
