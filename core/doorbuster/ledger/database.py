"""One database, two ways in: :meth:`Database.transact` to write, :meth:`Database.read` to read.

SQLite is used as its documentation asks of a durable store: WAL, synchronous FULL, one writer,
every write transaction begun with BEGIN IMMEDIATE (D6), own lock before the database's so that
threads of this process queue fairly instead of polling. Errors become two kinds here and
nowhere else: before COMMIT nothing was applied (``UnavailableError``); an error of COMMIT
itself is unknown unless the database says why it refused, and the transaction is run again as
a new try (D8, protocol.md 4.1), which every transaction of the ledger is written to survive.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.pool import QueuePool, StaticPool

from doorbuster.clock import Clock
from doorbuster.errors import (
    ConfigError,
    ContractError,
    PermanentError,
    UnavailableError,
    UnknownOutcomeError,
)
from doorbuster.ledger.checkpoint import FALLBACK_PAGES, Checkpointer
from doorbuster.logs import get_logger

__all__ = ["TRIES", "Database", "new_batch_id"]

T = TypeVar("T")

TRIES: Final = 3
"""Tries of one transaction: on a lock time-out, or on a COMMIT whose outcome is unknown."""

_SQLITE_MIN: Final = (3, 35)  # RETURNING
_BACKOFF_MS: Final = 20  # full jitter, doubled per try
_BATCH_BITS: Final = 21  # random bits of a batch number: it stays below 2**63 until 2109
# COMMIT refused with the transaction still open or already undone: nothing is visible to anyone.
_NOT_COMMITTED: Final = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL}
)


class Database:
    """A ledger database, opened by URL. Safe for many threads."""

    def __init__(self, url: str, clock: Clock, *, wait_ms: int = 2000) -> None:
        """Open ``url``; ``wait_ms`` bounds the wait for the write lock.

        Raises:
            ConfigError: the URL is malformed, or its database is not supported.
        """
        try:
            parsed = sa.make_url(url)
        except exc.ArgumentError:
            # from None and without the text: it may hold a password (X9)
            raise ConfigError(
                "ledger.url is not a database URL; expected for example 'sqlite:///doorbuster.db'"
            ) from None
        if parsed.get_backend_name() != "sqlite":
            raise ConfigError(
                f"ledger.url: the ledger runs on SQLite; {parsed.get_backend_name()!r} is not "
                "supported by this release; use 'sqlite:///doorbuster.db'"
            )
        self.url = parsed
        database = parsed.database or ""
        self.in_memory = database == "" or ":memory:" in database or "mode=memory" in url
        self._clock = clock
        self._wait_ms = wait_ms
        self._writer_lock = threading.Lock()
        self._writing = threading.local()
        self._log = get_logger("doorbuster.ledger")
        self._writer = self._engine("BEGIN IMMEDIATE", 1)
        self._checkpointer = Checkpointer(self._connect_driver, self._write_lock)
        # One connection is one in-memory database: readers then share the writer's.
        self._reader = self._writer if self.in_memory else self._engine("BEGIN", 4)

    def _engine(self, begin: str, size: int) -> sa.Engine:
        pool: dict[str, Any] = (
            {"poolclass": StaticPool}
            if self.in_memory
            else {
                "poolclass": QueuePool,
                "pool_size": size,
                "max_overflow": 16,
                "pool_timeout": self._wait_ms / 1000,  # D5: the default of 30 s hides a jam
            }
        )
        engine = sa.create_engine(
            self.url,
            connect_args={"check_same_thread": False, "timeout": self._wait_ms / 1000},
            hide_parameters=True,  # buyers and order numbers are no part of a message (X9)
            **pool,
        )
        # Many rows of an insert are one statement, not one step each: see queries.py.
        engine.dialect.use_insertmanyvalues_wo_returning = True
        event.listen(engine, "connect", self._on_connect)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
        return engine

    def _connect_driver(self) -> sqlite3.Connection:
        """A connection for checkpoints alone: SQLAlchemy would open a transaction around them."""
        connection = sqlite3.connect(
            self.url.database or "", timeout=self._wait_ms / 1000, check_same_thread=False
        )
        self._on_connect(connection, None)
        return connection

    def _on_connect(self, driver: Any, _record: Any) -> None:
        driver.isolation_level = None  # we begin ourselves
        cursor = driver.cursor()
        version = tuple(
            int(n) for n in cursor.execute("SELECT sqlite_version()").fetchone()[0].split(".")
        )
        if version < _SQLITE_MIN:
            raise ConfigError(
                f"ledger.url: SQLite {'.'.join(map(str, version))} is too old; "
                f"{'.'.join(map(str, _SQLITE_MIN))} or newer is needed"
            )
        try:
            cursor.execute("SELECT json_extract('[1]', '$[0]')")
        except sqlite3.OperationalError as error:
            raise ConfigError("ledger.url: this SQLite was built without JSON functions") from error
        journal = cursor.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if journal not in ("wal", "memory"):
            raise ConfigError(
                f"ledger.url: this database keeps journal mode {journal!r}; WAL is needed, "
                "which a network file system or a read-only file does not allow"
            )
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute(f"PRAGMA wal_autocheckpoint = {FALLBACK_PAGES}")
        # The indexes of a million orders: a miss costs more than the search (measured). It is an
        # upper bound, used as the file grows.
        cursor.execute("PRAGMA cache_size = -262144")
        cursor.close()

    # ------------------------------------------------------------------ writing
    def transact(self, work: Callable[[sa.Connection], T], *, tries: int = TRIES) -> T:
        """Run ``work`` in one write transaction and answer what it answers, after the commit.

        ``work`` may run more than once; it must be idempotent by the identities it writes. Once
        a COMMIT is unknown, only a commit makes the outcome known again: what fails after it,
        for whatever reason, is unknown too.

        Raises:
            UnavailableError: nothing was applied (lock, disk full, read-only, server gone).
            UnknownOutcomeError: COMMIT failed; it may be applied, and no later try committed.
            PermanentError: a constraint or the schema refused; nothing was applied.
        """
        give_up_s = self._clock.monotonic_s() + self._wait_ms / 1000
        unknown: UnknownOutcomeError | None = None
        for n in range(tries):
            try:
                with self.transaction() as connection:
                    return work(connection)
            except PermanentError as error:
                if unknown is not None:
                    raise unknown from error
                raise
            except (UnavailableError, UnknownOutcomeError) as error:
                if isinstance(error, UnknownOutcomeError):
                    unknown = error
                # Who has waited for the lock once does not wait for it twice.
                last = n + 1 == tries or self._clock.monotonic_s() >= give_up_s
                self._log.warning(
                    "transaction failed",
                    error=str(error),
                    cause=str(getattr(error.__cause__, "orig", error.__cause__)),
                    will_retry=not last,
                )
                if last:
                    raise unknown or error from error.__cause__
            pause_s = random.random() * _BACKOFF_MS * 2**n / 1000
            self._clock.wait(threading.Event(), pause_s)
        raise AssertionError("tries is at least 1")

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Open one write transaction, tried once; it commits when the block ends well.

        Raises:
            UnavailableError: nothing was applied.
            UnknownOutcomeError: COMMIT failed; it may be applied.
            PermanentError: a constraint refused; nothing was applied.
            ContractError: this thread is inside a write transaction already.
        """
        with (
            self._write_lock(),
            _translated(),
            self._writer.connect() as connection,
        ):
            transaction = connection.begin()
            try:
                yield connection
            except BaseException:
                self._rollback(connection, transaction)
                raise
            self._commit(connection, transaction)
            if not self.in_memory:
                self._checkpointer.committed()

    @contextmanager
    def _write_lock(self) -> Iterator[None]:
        """Queue for the one writer; a thread that would wait for itself is told so at once."""
        if getattr(self._writing, "inside", False):
            raise ContractError("a ledger transaction was asked for inside another one")
        if not self._writer_lock.acquire(timeout=self._wait_ms / 1000):
            raise UnavailableError("the ledger's write lock is taken")
        self._writing.inside = True
        try:
            yield
        finally:
            self._writing.inside = False
            self._writer_lock.release()

    def _commit(self, connection: sa.Connection, transaction: sa.RootTransaction) -> None:
        try:
            transaction.commit()
        except exc.DBAPIError as error:
            self._abandon(connection)
            code = getattr(error.orig, "sqlite_errorcode", None)
            if code is not None and code & 0xFF in _NOT_COMMITTED:
                raise UnavailableError(f"COMMIT was refused: {error.orig}") from error
            raise UnknownOutcomeError("COMMIT failed; its outcome is not known") from error

    def _rollback(self, connection: sa.Connection, transaction: sa.RootTransaction) -> None:
        try:
            transaction.rollback()
        except exc.DBAPIError:
            self._abandon(connection)

    def _abandon(self, connection: sa.Connection) -> None:
        """Let the next transaction start on a fresh connection; closing this one rolls it back.

        An in-memory database is its connection, so that one is rolled back and kept.
        """
        driver = connection.connection.dbapi_connection
        assert driver is not None  # noqa: S101 - it was checked out for this transaction
        if self.in_memory:
            driver.rollback()
            return
        # A cursor that a traceback holds keeps a closed connection's transaction, and its lock.
        with contextlib.suppress(sqlite3.Error):
            driver.rollback()
        connection.invalidate()

    # ------------------------------------------------------------------ reading
    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Open one consistent read snapshot.

        Raises:
            UnavailableError: the database cannot be read now.
        """
        if self.in_memory:
            with self._write_lock(), _translated(), self._writer.begin() as shared:
                yield shared
            return
        with _translated(), self._reader.connect() as connection:
            yield connection

    def close(self) -> None:
        """Close every connection; closing twice is closing once."""
        self._checkpointer.close()
        self._writer.dispose()
        self._reader.dispose()


@contextmanager
def _translated() -> Iterator[None]:
    """Translate driver errors once: before COMMIT nothing was applied."""
    try:
        yield
    except exc.IntegrityError as error:
        raise PermanentError(f"a constraint of the ledger refused: {error.orig}") from error
    except (exc.DBAPIError, exc.TimeoutError, sqlite3.Error) as error:
        cause = getattr(error, "orig", None) or error
        raise UnavailableError(f"the ledger's database is not available: {cause}") from error


def new_batch_id(clock: Clock) -> int:
    """A number for one accept transaction: rising with time, unique without a round trip.

    Two batches of one millisecond meet with a chance of 1 in 2 million; then the outbox's key
    refuses the second one before its commit (PermanentError).
    """
    return clock.wall_ms() << _BATCH_BITS | secrets.randbits(_BATCH_BITS)
