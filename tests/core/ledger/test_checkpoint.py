"""The log of the embedded database begins anew beside the commits, and a failure costs nothing."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import contextmanager

import pytest

from doorbuster.errors import ConfigError, UnavailableError
from doorbuster.ledger.checkpoint import Checkpointer
from doorbuster.outcomes import Code


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


# ------------------------------------------------------------------ faults around a checkpoint
class Connections:
    """Connects for a checkpointer: told to fail, it raises; it knows which are open."""

    def __init__(self, file, *errors):
        self.path = file().execute("PRAGMA database_list").fetchone()[2]
        self.errors = list(errors)
        self.calls = threading.Semaphore(0)
        self.opened = []
        self.closed = []

    def __call__(self):
        try:
            if self.errors:
                raise self.errors.pop(0)
            outer = self

            class Watched(sqlite3.Connection):
                def close(self):
                    outer.closed.append(self)
                    super().close()

            self.opened.append(sqlite3.connect(self.path, factory=Watched, check_same_thread=False))
            return self.opened[-1]
        finally:
            self.calls.release()


class Copies:
    """Stands for the copying: each one raises the next error, if there is one."""

    def __init__(self, checkpointer, *errors):
        self.errors = list(errors)
        self.calls = threading.Semaphore(0)
        self.used = []
        checkpointer._copy = self

    def __call__(self, connection):
        self.used.append(connection)
        try:
            error = self.errors.pop(0) if self.errors else None
            if error is not None:
                raise error
        finally:
            self.calls.release()


def due(checkpointer, calls):
    """Make a checkpoint due, and wait until it was tried."""
    checkpointer.committed()
    assert calls.acquire(timeout=10)


@pytest.fixture
def refuse_threads(monkeypatch):
    """Make the next ``n`` starts of a checkpoint's thread fail."""

    def refuse(n, error):
        start, left = threading.Thread.start, [error] * n

        def refused(thread):
            if thread.name == "ledger-checkpoint" and left:
                raise left.pop()
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refused)

    return refuse


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_a_thread_that_does_not_start_is_started_when_the_next_is_due(
    file, refuse_threads, capsys, times, error
):
    """The commit has happened: nothing is raised, and it is logged."""
    refuse_threads(times, error)
    connections = Connections(file)
    checkpointer = Checkpointer(connections, Lock(), commits=1)
    for _ in range(times):
        checkpointer.committed()
        assert checkpointer._thread is None
    due(checkpointer, connections.calls)
    checkpointer.close()
    assert "checkpoint thread did not start" in capsys.readouterr().err


def test_an_accept_whose_commit_starts_no_thread_is_accepted(shop, refuse_threads):
    """Not PENDING: the 64th commit is as good as the others; and the ledger closes."""
    refuse_threads(1000, RuntimeError("can't start new thread"))
    one = shop(skus={"black": 1000})
    codes = {one.buy(f"b{n}").code for n in range(130)}
    assert codes == {Code.ACCEPTED}
    assert one.ledger.database._checkpointer._thread is None
    assert one.report().balanced
    one.ledger.close()


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize(
    "error",
    [
        sqlite3.OperationalError("unable to open database file"),
        ConfigError("this database keeps journal mode 'delete'"),
        OSError(24, "Too many open files"),
    ],
)
def test_a_connect_that_fails_is_tried_again_when_the_next_is_due(file, times, error):
    """Whatever it raises and however often: the thread lives, and the next one copies."""
    connections = Connections(file, *[error] * times)
    checkpointer = Checkpointer(connections, Lock(), commits=1)
    copies = Copies(checkpointer)
    for _ in range(times):
        due(checkpointer, connections.calls)
    thread = checkpointer._thread
    due(checkpointer, copies.calls)
    due(checkpointer, copies.calls)
    assert checkpointer._thread is thread
    assert copies.used == [connections.opened[0]] * 2, "a good connection is kept"
    checkpointer.close()
    assert connections.closed == connections.opened


@pytest.mark.parametrize("times", [1, 3])
def test_a_connection_that_breaks_is_closed_and_replaced(file, times):
    """In the middle of its life, also several in a row."""
    connections = Connections(file)
    checkpointer = Checkpointer(connections, Lock(), commits=1)
    copies = Copies(checkpointer, None, *[sqlite3.OperationalError("disk I/O error")] * times)
    for _ in range(times + 2):
        due(checkpointer, copies.calls)
    checkpointer.close()
    first, *others = copies.used
    assert others[0] is first, "it broke in its second use"
    assert len(connections.opened) == times + 1
    assert connections.closed == connections.opened
    assert copies.used[-1] is connections.opened[-1]


def test_a_broken_connection_that_cannot_be_closed_is_replaced_too(file):
    """Its last error is not the thread's last."""

    class Stuck(sqlite3.Connection):
        def close(self):
            super().close()
            raise sqlite3.OperationalError("unable to close due to unfinalized statements")

    path = file().execute("PRAGMA database_list").fetchone()[2]
    checkpointer = Checkpointer(
        lambda: sqlite3.connect(path, factory=Stuck, check_same_thread=False), Lock(), commits=1
    )
    copies = Copies(checkpointer, sqlite3.DatabaseError("malformed"))
    due(checkpointer, copies.calls)
    due(checkpointer, copies.calls)
    checkpointer.close()
    assert copies.used[0] is not copies.used[1]


def test_a_write_lock_that_was_taken_is_no_fault_of_the_connection(file):
    """It is kept: opening one costs, and it is as good as before."""
    connections = Connections(file)
    checkpointer = Checkpointer(connections, Lock(), commits=1)
    copies = Copies(checkpointer, UnavailableError("the ledger's write lock is taken"))
    due(checkpointer, copies.calls)
    due(checkpointer, copies.calls)
    checkpointer.close()
    assert copies.used == connections.opened * 2


def test_a_thread_that_is_gone_is_replaced(file):
    """A fork has none of its parent's threads."""
    connections = Connections(file)
    checkpointer = Checkpointer(connections, Lock(), commits=1)
    gone = threading.Thread(target=lambda: None)
    gone.start()
    gone.join()
    checkpointer._thread = gone
    due(checkpointer, connections.calls)
    checkpointer.close()


def test_a_close_at_any_moment_ends_the_thread(file):
    """Also one that comes while the thread takes note of what is due."""
    connections = Connections(file)
    checkpointer = Checkpointer(connections, Lock(), commits=1)

    class Due(threading.Event):
        def clear(self):
            checkpointer._closed = True  # close(), up to its join
            self.set()
            super().clear()

    checkpointer._due = Due()
    checkpointer.committed()
    assert checkpointer._thread is not None
    checkpointer._thread.join(10)
    ended = not checkpointer._thread.is_alive()
    checkpointer._due.set()  # let a thread go that missed it
    checkpointer.close()
    assert ended
