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
from urllib.parse import quote

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
from doorbuster.ledger import queries, schema
from doorbuster.ledger.checkpoint import FALLBACK_PAGES, Checkpointer
from doorbuster.ledger.remedies import remedy
from doorbuster.ledger.url import file_of, read_url
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
_OURS: Final = {table.name for table in (schema.schema_version, schema.intents, schema.grants)}


class Database:
    """A ledger database, opened by URL. Safe for many threads."""

    def __init__(self, url: str, clock: Clock, *, wait_ms: int = 2000) -> None:
        """Open ``url``; ``wait_ms`` bounds the wait for the write lock.

        Raises:
            ConfigError: :func:`read_url` refuses the URL.
        """
        parsed = read_url(url)
        self.file = file_of(parsed)  # None: in memory
        self.in_memory = self.file is None
        if "uri" in parsed.query and self.file is not None:
            # SQLite would look for it again at each connect, and the process may have moved
            parsed = parsed.set(database=f"file:{quote(str(self.file))}")
        self.url = parsed
        self._told = f"ledger.url {url!r}"  # read_url lets no password in
        self._clock = clock
        self._wait_ms = wait_ms
        self._writer_lock = threading.Lock()
        self._writing = threading.local()
        self._is_ours = False
        self._log = get_logger("doorbuster.ledger")
        self._connect_args: dict[str, Any] = {"check_same_thread": False, "timeout": wait_ms / 1000}
        self._writer = self._engine("BEGIN IMMEDIATE", 1)
        # Once, as the engines do: a relative path must not follow the process to another folder.
        arguments, options = self._writer.dialect.create_connect_args(self.url)
        self._driver_args: tuple[Any, dict[str, Any]] = arguments, {**options, **self._connect_args}
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
            connect_args=self._connect_args,
            hide_parameters=True,  # buyers and order numbers are no part of a message (X9)
            **pool,
        )
        # Many rows of an insert are one statement, not one step each: see queries.py.
        engine.dialect.use_insertmanyvalues_wo_returning = True
        event.listen(engine, "connect", self._on_connect)
        event.listen(engine, "begin", lambda connection: queries.run(connection, begin))
        return engine

    def _connect_driver(self) -> sqlite3.Connection:
        """A connection for checkpoints alone: SQLAlchemy would open a transaction around them."""
        arguments, options = self._driver_args
        connection: sqlite3.Connection = sqlite3.connect(arguments[0], **options)
        try:
            self._on_connect(connection, None)
        except BaseException:
            connection.close()
            raise
        return connection

    def _on_connect(self, driver: Any, _record: Any) -> None:
        driver.isolation_level = None  # we begin ourselves
        cursor = driver.cursor()
        version = tuple(
            int(n) for n in cursor.execute("SELECT sqlite_version()").fetchone()[0].split(".")
        )
        if version < _SQLITE_MIN:
            raise ConfigError(
                f"{self._told}: SQLite {'.'.join(map(str, version))} is too old; "
                f"{'.'.join(map(str, _SQLITE_MIN))} or newer is needed: use a newer Python build"
            )
        try:
            cursor.execute("SELECT json_extract('[1]', '$[0]')")
        except sqlite3.OperationalError as error:
            raise ConfigError(
                f"{self._told}: this SQLite was built without JSON functions; "
                "use a Python build whose SQLite has them"
            ) from error
        if not self._is_ours:
            self._refuse_foreign(cursor)  # before anything is changed in it
        journal = cursor.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if journal not in ("wal", "memory"):
            raise ConfigError(
                f"{self._told}: this database keeps journal mode {journal!r}, and WAL is needed; "
                "name a file that can be written, on a disk of this host"
            )
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute(f"PRAGMA wal_autocheckpoint = {FALLBACK_PAGES}")
        # The indexes of a million orders: a miss costs more than the search (measured). It is an
        # upper bound, used as the file grows.
        cursor.execute("PRAGMA cache_size = -262144")
        cursor.close()
        self._is_ours = True  # from now on a wrong file is a fault of the backend, not of config

    def _refuse_foreign(self, cursor: sqlite3.Cursor) -> None:
        """Refuse a database with tables that are no ledger's: some have our names, not our rows."""
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite~_%'"
        names = sorted(name for (name,) in cursor.execute(f"{query} ESCAPE '~'"))
        if names and not set(names) >= _OURS:
            shown = ", ".join(names[:3]) + (", ..." if names[3:] else "")
            raise ConfigError(
                f"{self._told}: {self.file} is the database of another program (it holds {shown}); "
                "name a file of the ledger's own"
            )

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
            self._translated(),
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
                told = f"{self._told}: COMMIT was refused: {error.orig}"
                raise UnavailableError(f"{told}; {self._remedy(error.orig)}") from error
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
            with self._write_lock(), self._translated(), self._writer.begin() as shared:
                yield shared
            return
        with self._translated(), self._reader.connect() as connection:
            connection.begin()  # statements that run on the driver begin nothing by themselves
            yield connection

    def close(self) -> None:
        """Close every connection; closing twice is closing once."""
        self._checkpointer.close()
        self._writer.dispose()
        self._reader.dispose()

    # ------------------------------------------------------------------ faults
    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate driver errors once: before COMMIT nothing was applied."""
        try:
            yield
        except exc.IntegrityError as error:
            raise PermanentError(f"a constraint of the ledger refused: {error.orig}") from error
        except exc.TimeoutError as error:
            raise UnavailableError(
                f"{self._told} is not available: no connection was free for {self._wait_ms} ms; "
                "it passes with the load, or raise ledger.wait_ms"
            ) from error
        except (exc.DBAPIError, sqlite3.Error) as error:
            cause = getattr(error, "orig", None) or error
            raise UnavailableError(
                f"{self._told} is not available: {cause}; {self._remedy(cause)}"
            ) from error

    def _remedy(self, cause: BaseException | None) -> str:
        return remedy(cause, self.file, self.url, self._wait_ms)


def new_batch_id(clock: Clock) -> int:
    """A number for one accept transaction: rising with time, unique without a round trip.

    Two batches of one millisecond meet with a chance of 1 in 2 million; then the outbox's key
    refuses the second one before its commit (PermanentError).
    """
    return clock.wall_ms() << _BATCH_BITS | secrets.randbits(_BATCH_BITS)
