"""failures.md D4-D8 and full or read-only disks: what a fault of the database is answered."""

from __future__ import annotations

import sqlite3
import threading

import pytest
import sqlalchemy as sa

from doorbuster.clock import SystemClock
from doorbuster.errors import (
    ConfigError,
    ContractError,
    PermanentError,
    UnavailableError,
    UnknownOutcomeError,
)
from doorbuster.ledger import Ledger
from doorbuster.ledger.database import Database, new_batch_id
from doorbuster.ledger.migrations import VERSION
from doorbuster.model import PerBuyer
from doorbuster.outcomes import Code
from doorbuster.testing.clock import ManualClock


class Cut(Database):
    """A database whose COMMIT fails ``fails`` times, after it really committed or before."""

    fails = 0
    really = False
    then = staticmethod(lambda: None)

    def _commit(self, connection, transaction):
        if not self.fails:
            super()._commit(connection, transaction)
            return
        self.fails -= 1
        driver = connection.connection.dbapi_connection
        commit = connection.dialect.do_commit

        def cut(_):
            if self.really:
                driver.commit()
            self.then()
            raise sqlite3.OperationalError("connection lost")

        connection.dialect.do_commit = cut
        try:
            super()._commit(connection, transaction)
        finally:
            connection.dialect.do_commit = commit


@pytest.fixture
def cut(shop):
    """A shop whose COMMIT can be cut."""
    one = shop(per_buyer=PerBuyer(sale=1))
    one.ledger.database.close()
    one.ledger.database = Cut(f"sqlite:///{one.path}", one.clock, wait_ms=20)
    return one


# ------------------------------------------------------------------ D8
@pytest.mark.parametrize("really", [True, False])
@pytest.mark.parametrize("fails", [1, 2])
def test_d8_an_unknown_commit_is_run_again_and_stays_exact(cut, really, fails):
    """Whether it had committed or not: one intent, one unit, ACCEPTED."""
    cut.ledger.database.really, cut.ledger.database.fails = really, fails
    assert cut.buy("ann").code is Code.ACCEPTED
    cut.ledger.database.fails = 0  # a try that finds all stored commits nothing
    assert cut.free()["p0", "black"] == 9
    assert cut.persist() == 1
    assert cut.report().balanced


@pytest.mark.parametrize("really", [True, False])
def test_4_1_a_commit_that_stays_unknown_is_told_as_unknown(cut, really):
    """The database is gone after it; then the identity settles it: what is stored is the truth."""
    other = sqlite3.connect(cut.path)
    database = cut.ledger.database
    database.really, database.fails = really, 1 if really else 3
    database.then = lambda: really and other.execute("BEGIN IMMEDIATE")
    with pytest.raises(UnknownOutcomeError):
        cut.buy("ann")
    other.close()
    (stored,) = cut.ledger.tombstone(cut.sale, 1, [cut.item("ann")], code=Code.BUSY, holds=False)
    assert (stored is not None) is really
    assert cut.report().balanced


@pytest.mark.parametrize("error", [PermanentError, UnavailableError])
def test_d8_what_fails_after_an_unknown_commit_is_unknown(cut, error):
    """Only a later commit makes the outcome known again: "not applied" would be a guess."""
    database, tries = cut.ledger.database, []
    database.fails, database.really = 1, True

    def work(connection):
        tries.append(1)
        if len(tries) > 1:
            raise error("the second try")
        connection.execute(sa.text("DELETE FROM grants"))

    with pytest.raises(UnknownOutcomeError):
        database.transact(work)
    assert cut.count("grants") == 0


def test_d8_persist_with_an_unknown_commit_is_called_again(cut):
    """The order and its intent moved together, or not at all."""
    cut.buy("ann")
    for really, won in ((False, 1), (True, 0)):
        items = cut.ledger.reservations_of(
            [row[0] for row in cut.sql("SELECT batch FROM outbox")], cut.sale
        )
        cut.ledger.database.really, cut.ledger.database.fails = really, 1
        with pytest.raises(UnknownOutcomeError):
            cut.create(items)
        if really:
            assert cut.create(items) == won
    assert cut.count("orders") == 1
    assert cut.report().violations == []


def test_d8_a_commit_that_the_database_refused_is_surely_not_applied(cut, monkeypatch):
    """Full, busy, read-only: it says so, and nobody waits for a settlement."""
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL

    def refuse(*_):
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(
            "sqlalchemy.dialects.sqlite.pysqlite.SQLiteDialect_pysqlite.do_commit", refuse
        )
        with pytest.raises(UnavailableError, match="COMMIT was refused"):
            cut.buy("ann")
    assert cut.count("intents") == 0
    assert cut.buy("ann").code is Code.ACCEPTED


# ------------------------------------------------------------------ disks
def test_a_full_disk_is_unavailable_and_recovers_by_itself(shop):
    """BUSY for buyers, nothing half applied, and the first free page ends it."""
    one = shop(skus={"black": 9999})
    pages = one.sql("PRAGMA page_count")[0][0]

    def limit(n):
        with one.ledger.database.transaction() as connection:
            connection.exec_driver_sql(f"PRAGMA max_page_count = {n}")

    limit(pages + 2)
    accepted = 0

    def fill():
        nonlocal accepted
        for n in range(500):
            one.accept(*[one.item(f"b{n}x{k}") for k in range(20)])
            accepted += 20

    with pytest.raises(UnavailableError, match="full"):
        fill()
    assert one.count("intents") == accepted
    assert one.report().balanced
    limit(1_000_000)
    assert one.buy("late").code is Code.ACCEPTED
    assert one.report().balanced


def test_a_read_only_database_is_unavailable_and_recovers_by_itself(shop):
    """Reads go on."""
    one = shop()
    one.buy("ann")

    def read_only(value):
        driver = one.ledger.database._writer.raw_connection()
        driver.cursor().execute(f"PRAGMA query_only = {value}")
        driver.close()

    read_only(1)
    with pytest.raises(UnavailableError):
        one.buy("bob")
    assert one.ledger.results(one.row, [("ann", "r1")])[0].code is Code.ACCEPTED
    assert one.report().balanced
    read_only(0)
    assert one.buy("bob").code is Code.ACCEPTED


def test_a_ledger_whose_folder_is_gone_is_unavailable(tmp_path):
    """Said by the first call, with the driver's reason."""
    ledger = Ledger.open(f"sqlite:///{tmp_path}/no/such/ledger.db", ManualClock())
    with pytest.raises(UnavailableError, match="unable to open"):
        ledger.sales()
    with pytest.raises(UnavailableError, match="unable to open"):
        ledger.migrate()


# ------------------------------------------------------------------ locks
def test_d6_32_threads_write_and_nobody_sees_a_locked_database(shop):
    """Own lock, BEGIN IMMEDIATE, one writer; the last unit goes to one of them."""
    one = shop(skus={"black": 100}, places=4, clock=SystemClock(), wait_ms=30_000)
    answers, errors = [], []

    def run(n):
        try:
            for k in range(8):
                place = f"p{(n + k) % 4}"
                answers.extend(
                    one.accept(*[one.item(f"b{n}x{k}x{j}", place=place) for j in (1, 2)])
                )
                one.ledger.left(one.sale)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sum(getattr(answer, "code", None) is Code.ACCEPTED for answer in answers) == 100
    assert one.report().balanced


def test_d6_who_cannot_have_the_lock_in_time_is_told_unavailable(shop):
    """Bounded by wait_ms, once, whatever number of tries is left."""
    one = shop(wait_ms=20)
    with one.ledger.database.transaction():
        found = []

        def other():
            try:
                one.ledger.database.transact(lambda connection: None)
            except UnavailableError as error:
                found.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert found == ["the ledger's write lock is taken"]


def test_d6_a_lock_of_another_process_is_unavailable_then_free(shop):
    """The database's own lock is waited for too, and not longer."""
    one = shop(wait_ms=20)
    other = sqlite3.connect(one.path)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(UnavailableError, match="locked"):
        one.buy("ann")
    other.rollback()
    other.close()
    assert one.buy("ann").code is Code.ACCEPTED


def test_d6_a_write_transaction_has_the_lock_from_its_begin(shop):
    """Before its first statement: what it reads stays true, and no lock is upgraded later."""
    one = shop()
    other = sqlite3.connect(one.path, timeout=0)
    with one.ledger.database.transaction():
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        one.ledger.left(one.sale)
    other.execute("BEGIN IMMEDIATE")
    other.close()


def test_a_transaction_inside_a_transaction_is_a_defect_told_at_once(shop, memory_url):
    """It would wait for itself."""
    one = shop()
    with pytest.raises(ContractError, match="inside another"), one.ledger.database.transaction():
        one.buy("ann")
    ledger = Ledger.open(memory_url, ManualClock())
    ledger.migrate()
    with pytest.raises(ContractError, match="inside another"), ledger.database.transaction():
        ledger.sales()


def test_a_constraint_is_permanent_and_leaves_nothing(shop):
    """The CHECKs are the last net (D1): the transaction is gone, and it is not tried again."""
    one = shop()
    tries = []

    def work(connection):
        tries.append(1)
        connection.execute(sa.text("UPDATE grants SET consumed = 3"))
        connection.execute(sa.text("UPDATE stock SET unallocated = -1"))

    with pytest.raises(PermanentError, match="stock_units"):
        one.ledger.database.transact(work)
    assert tries == [1]
    assert one.report().balanced


def test_a_connection_that_cannot_roll_back_is_replaced(shop, monkeypatch):
    """The next transaction starts clean."""
    one = shop()

    def broken(*_):
        raise sqlite3.OperationalError("no rollback")

    def work(connection):
        connection.execute(sa.text("DELETE FROM stock"))
        monkeypatch.setattr(
            "sqlalchemy.dialects.sqlite.pysqlite.SQLiteDialect_pysqlite.do_rollback", broken
        )
        raise ContractError

    with pytest.raises(ContractError):
        one.ledger.database.transact(work)
    monkeypatch.undo()
    assert one.buy("ann").code is Code.ACCEPTED
    assert one.report().balanced


# ------------------------------------------------------------------ opening
def test_an_in_memory_ledger_is_one_connection_for_all(memory_url):
    """Readers share it, also after a failed COMMIT; closing twice is closing once."""
    clock = ManualClock()
    database = Cut(memory_url, clock)
    ledger = Ledger(database, clock, "dev")
    assert ledger.migrate() == (0, VERSION)
    database.fails = 1
    key = ledger.server_key(None)
    assert repr(key) == "ServerKey(...)"
    assert ledger.server_key(None).order_no("s", 1, "b", "r") == key.order_no("s", 1, "b", "r")
    assert ledger.server_key("0123456789abcdef").order_no("s", 1, "b", "r") != key.order_no(
        "s", 1, "b", "r"
    )
    assert ledger.sales() == []
    ledger.close()
    ledger.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [("nonsense", "not a database URL"), ("postgresql://x/y", "is not supported")],
)
def test_a_url_that_cannot_be_used_is_refused_when_opened(url, message):
    """With what is expected instead."""
    with pytest.raises(ConfigError, match=message):
        Ledger.open(url, ManualClock())


@pytest.mark.parametrize(
    ("answer", "message"), [("3.34.0", "SQLite 3.34.0 is too old"), (None, "without JSON")]
)
def test_a_sqlite_that_cannot_do_it_is_refused(answer, message):
    """By what it says of itself, before the first statement."""

    class Cursor:
        def execute(self, statement):
            if answer is None and "json" in statement:
                raise sqlite3.OperationalError("no such function: json_extract")
            return self

        def fetchone(self):
            return (answer or "3.40.0",)

    class Driver:
        def cursor(self):
            return Cursor()

    with pytest.raises(ConfigError, match=message):
        Database("sqlite://", ManualClock())._on_connect(Driver(), None)


def test_sqlite_is_opened_as_a_durable_store(shop):
    """WAL and synchronous FULL on every connection."""
    one = shop()
    with one.ledger.database.transaction() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_batch_numbers_rise_with_time_and_fit_in_64_bits(shop):
    """Workers claim the oldest first; far enough into the next century."""
    one = shop()
    first = new_batch_id(one.clock)
    one.clock.advance(0.001)
    assert first < new_batch_id(one.clock)
    one.clock.advance(80 * 365 * 86400)
    assert new_batch_id(one.clock) < 2**63
