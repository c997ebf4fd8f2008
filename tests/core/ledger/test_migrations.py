"""The schema's version: forward only, data kept, older refused, newer left alone."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from doorbuster.errors import ConfigError
from doorbuster.ledger import Ledger
from doorbuster.ledger import migrations as module
from doorbuster.ledger.migrations import STEPS, VERSION, current, migrate
from doorbuster.ledger.schema import METADATA
from doorbuster.testing.clock import ManualClock


def version(ledger):
    with ledger.database.read() as connection:
        return current(connection)


@pytest.fixture
def empty(tmp_path):
    ledger = Ledger.open(f"sqlite:///{tmp_path}/new.db", ManualClock())
    yield ledger
    ledger.close()


def test_an_empty_database_becomes_current_once(empty):
    """Every table of the schema, and the second run changes nothing."""
    assert version(empty) == 0
    assert empty.migrate() == (0, VERSION)
    assert empty.migrate() == (VERSION, VERSION)
    with empty.database.read() as connection:
        assert set(sa.inspect(connection).get_table_names()) == set(METADATA.tables)
    empty.require_current()


def test_a_ledger_of_version_1_learns_where_orders_are(shop):
    """Step 3 adds the mark of orders that are kept elsewhere; orders stay as they are."""
    one = shop()
    one.buy("ann")
    one.persist()
    one.sql("ALTER TABLE intents DROP COLUMN away")
    one.sql("DELETE FROM schema_version WHERE version > 1")
    assert one.ledger.migrate() == (1, VERSION)
    assert one.sql("SELECT away FROM intents") == [(0,)]
    assert one.report().balanced


def test_a_ledger_of_version_2_keeps_what_it_knew_of_orders_elsewhere(shop):
    """It marked whole batches: of those, the intents without an order here are elsewhere."""
    one = shop()
    one.accept(one.item("ann"), one.item("bob"))
    one.persist()
    one.sql("ALTER TABLE intents DROP COLUMN away")
    one.sql("ALTER TABLE outbox ADD COLUMN away INTEGER NOT NULL DEFAULT 0")
    one.sql("UPDATE outbox SET away = 1")
    one.sql("DELETE FROM orders WHERE buyer = 'bob'")
    one.sql("DELETE FROM schema_version WHERE version > 2")
    assert one.ledger.migrate() == (2, VERSION)
    assert one.sql("SELECT buyer, away FROM intents ORDER BY buyer") == [("ann", 0), ("bob", 1)]
    assert one.report().balanced


def add_note(connection):
    connection.execute(sa.text("ALTER TABLE sales ADD COLUMN note TEXT"))


def test_a_later_step_keeps_the_data(shop):
    """A release with one step more, over a database with orders in it."""
    one = shop()
    one.buy("ann")
    one.persist()
    assert migrate(one.ledger.database, one.clock, steps=(*STEPS, add_note)) == (
        VERSION,
        VERSION + 1,
    )
    assert one.sql("SELECT note FROM sales") == [(None,)]
    assert one.buy("ann").order_state == "CREATED"
    assert one.report().balanced


def test_a_step_that_fails_leaves_the_version_before(shop):
    """All steps of a run are one transaction."""
    one = shop()

    def broken(connection):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        migrate(one.ledger.database, one.clock, steps=(*STEPS, add_note, broken))
    assert version(one.ledger) == VERSION
    assert "note" not in [row[1] for row in one.sql("PRAGMA table_info(sales)")]


def test_a_newer_schema_is_left_alone(shop):
    """Steps only add: the release before keeps running beside the new one."""
    one = shop()
    migrate(one.ledger.database, one.clock, steps=(*STEPS, add_note))
    assert one.ledger.migrate() == (VERSION + 1, VERSION + 1)
    one.ledger.require_current()
    assert one.buy("ann").order_no is not None


def test_an_older_schema_is_refused_with_what_to_run(empty, monkeypatch):
    """Never half used."""
    with pytest.raises(ConfigError, match=rf"version 0, this release needs {VERSION}: run 'doorb"):
        empty.require_current()
    empty.migrate()
    monkeypatch.setattr(module, "VERSION", VERSION + 1)
    with pytest.raises(ConfigError, match=f"needs {VERSION + 1}"):
        empty.require_current()


def test_two_who_migrate_at_once_migrate_once(empty):
    """The second finds the version of the first under the write lock."""
    ran = []

    def step(connection):
        ran.append(1)
        STEPS[0](connection)
        if len(ran) == 1:
            return

    class Late(type(empty.database)):
        """Somebody else migrates between this one's read and its write."""

        def transact(self, work, *, tries=3):
            super().transact(lambda connection: first(connection), tries=tries)
            return super().transact(work, tries=tries)

    def first(connection):
        step(connection)
        connection.execute(sa.text("INSERT INTO schema_version VALUES (1, 0)"))

    empty.database.__class__ = Late
    assert migrate(empty.database, ManualClock(), steps=(step,)) == (1, 1)
    assert ran == [1]
