"""Moves SQLite's log into its database file beside the commits, not inside one of them.

SQLite checkpoints inside the commit that fills the log: 60-100 ms once in a while, which is the
p99 of a buyer's answer, all of it under the write lock (measured). Here a thread of its own
copies the pages while others commit, then takes the write lock for the few that came meanwhile,
so that the log begins anew. The copying runs outside the interpreter lock.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Final

from doorbuster.errors import BackendError
from doorbuster.logs import get_logger

__all__ = ["COMMITS", "FALLBACK_PAGES", "Checkpointer"]

COMMITS: Final = 64
"""Commits between two checkpoints: some 10,000 pages of log under load. More copy a page that
many commits touched less often; fewer keep the log short, which a restart reads (measured)."""

FALLBACK_PAGES: Final = 40_000
"""Pages of log (160 MB) at which SQLite checkpoints inside a commit after all: when another
process or a long reader keeps the log from beginning anew."""


class Checkpointer:
    """One thread per database file, started by the first checkpoint that is due."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        write_lock: Callable[[], AbstractContextManager[None]],
        *,
        commits: int = COMMITS,
    ) -> None:
        """``connect`` opens a connection of the thread's own; commits happen in ``write_lock``."""
        self._connect = connect
        self._write_lock = write_lock
        self._commits = commits
        self._seen = 0
        self._due = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._log = get_logger("doorbuster.ledger")

    def committed(self) -> None:
        """Hear of a commit. Called under the write lock; never raises, for it has happened."""
        self._seen += 1
        if self._seen < self._commits or self._closed:
            return
        self._seen = 0
        self._due.set()
        if self._thread is None or not self._thread.is_alive():  # a fork has none
            self._start()

    def close(self) -> None:
        """End the thread; the last connection that closes copies what is left."""
        self._closed = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="ledger-checkpoint", daemon=True)
        try:
            thread.start()
        except Exception as error:  # noqa: BLE001 - no thread or no memory is no news for a buyer
            # The log keeps the pages; the next checkpoint that is due tries it again.
            self._log.warning("checkpoint thread did not start", error=str(error))
        else:
            self._thread = thread

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        while True:
            self._due.wait()
            self._due.clear()  # before the look at _closed: close() sets it after that
            if self._closed:
                break
            try:
                connection = connection or self._connect()
                self._copy(connection)
            except BackendError as error:  # the write lock was taken: the connection is good
                self._failed(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, the thread goes on
                self._failed(error)
                _drop(connection)
                connection = None
        _drop(connection)

    def _failed(self, error: Exception) -> None:
        # Nothing is lost: the log keeps it, and the next commits bring the next try.
        self._log.warning("checkpoint failed", error=str(error))

    def _copy(self, connection: sqlite3.Connection) -> None:
        if _is_behind(connection):
            with self._write_lock():
                _is_behind(connection)


def _is_behind(connection: sqlite3.Connection) -> bool:
    """Copy what can be copied; whether pages are left that were committed meanwhile."""
    _, pages, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return bool(copied < pages)


def _drop(connection: sqlite3.Connection | None) -> None:
    """Close a connection that may be broken."""
    if connection is not None:
        with suppress(sqlite3.Error):
            connection.close()
