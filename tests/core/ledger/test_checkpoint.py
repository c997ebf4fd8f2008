"""The log of the embedded database begins anew beside the commits, and a failure costs nothing."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import contextmanager

import pytest

from doorbuster.ledger.checkpoint import Checkpointer


@pytest.fixture
def file(tmp_path):
    """A database in WAL mode that never checkpoints by itself."""
    path = tmp_path / "log.db"

    def connect():
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    return connect


class Lock:
    """A write lock that tells when the checkpointer's thread let go of it."""

    def __init__(self):
        self.lock = threading.Lock()
        self.by_thread = threading.Event()

    @contextmanager
    def __call__(self):
        with self.lock:
            yield
        if threading.current_thread().name == "ledger-checkpoint":
            self.by_thread.set()


def pages(connection):
    """Pages in the log, and how many of them the database file has."""
    return connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1:]


def test_the_log_begins_anew_while_others_commit(file):
    """The pages committed during the copy are copied under the write lock, so none is left."""
    connection, lock = file(), Lock()
    connection.execute("CREATE TABLE t (x)")
    copied = []

    class Slow(sqlite3.Connection):
        def execute(self, text, *values):
            found = super().execute(text, *values)
            if "checkpoint" in text and not copied:  # a commit during the copy
                copied.append(True)
                connection.execute("INSERT INTO t VALUES (2)")
                return iter_of((0, 2, 1))
            return found

    def iter_of(row):
        return type("Rows", (), {"fetchone": lambda self: row})()

    path = connection.execute("PRAGMA database_list").fetchone()[2]
    checkpointer = Checkpointer(
        lambda: sqlite3.connect(path, factory=Slow, check_same_thread=False), lock, commits=30
    )
    for n in range(30):
        with lock():
            connection.execute("INSERT INTO t VALUES (?)", (n,))
            checkpointer.committed()
    assert lock.by_thread.wait(10)
    checkpointer.close()
    log, done = pages(connection)
    assert log == done
    connection.execute("INSERT INTO t VALUES (9)")
    assert pages(connection)[0] < 30  # it was begun anew


def test_fewer_commits_start_no_thread(file):
    """A command that writes three rows has no business with threads."""
    checkpointer = Checkpointer(file, Lock(), commits=3)
    checkpointer.committed()
    checkpointer.committed()
    checkpointer.close()
    checkpointer.close()
    checkpointer.committed()
    assert not [t for t in threading.enumerate() if t.name == "ledger-checkpoint"]


def test_a_checkpoint_that_fails_is_tried_again(file):
    """Nothing is lost: the log keeps the pages, the next commits bring the next try."""
    connection, lock, tries = file(), Lock(), []
    connection.execute("CREATE TABLE t (x)")
    again = threading.Event()

    class Broken(sqlite3.Connection):
        def execute(self, text, *values):
            tries.append(text)
            if len(tries) == 1:
                raise sqlite3.OperationalError("disk I/O error")
            again.set()
            return super().execute(text, *values)

    path = connection.execute("PRAGMA database_list").fetchone()[2]
    checkpointer = Checkpointer(
        lambda: sqlite3.connect(path, factory=Broken, check_same_thread=False), lock, commits=1
    )
    checkpointer.committed()
    for _ in range(200):
        if again.wait(0.01):
            break
        checkpointer.committed()
    checkpointer.close()
    assert again.is_set()
    assert len(tries) >= 2


def test_a_busy_ledger_checkpoints_beside_its_commits(shop):
    """The ledger tells it of every commit, also while readers look on."""
    one = shop(skus={"black": 1000})
    copied = threading.Event()
    checkpointer = one.ledger.database._checkpointer
    copy = checkpointer._copy
    checkpointer._copy = lambda connection: (copy(connection), copied.set())
    for n in range(64):
        one.buy(f"b{n}")
    assert copied.wait(10)
    assert one.report().balanced
