"""The kit of a suite: as :class:`~doorbuster.testing.kit.Kit`, at a fraction of its cost.

A suite makes hundreds of ledgers, and most of what that takes is making tables and compiling
statements. So a ledger that no law looks at makes no tables, the texts of the tables are kept,
and so is the database object with its compiled statements. All that a law can see is new
(measured: a kit 14 ms, here 0.2; a sale from nothing to open 78 ms, here 28).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import sqlalchemy as sa

from doorbuster.alarms import Alarm, Alarms
from doorbuster.ledger import Ledger
from doorbuster.ledger.database import TRIES, Database
from doorbuster.ledger.migrations import migrate
from doorbuster.testing.clock import START_S, ManualClock
from doorbuster.testing.kit import Kit
from doorbuster.windows import Counters

__all__ = ["SuiteKit"]

T = TypeVar("T")
_ENVIRONMENT: Final = "dev"
_tables: Final[list[str]] = []


class _Memory(Database):
    """A database in memory whose tables are made when somebody first looks."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        super().__init__("sqlite://", self.clock)
        self._is_made = False

    def renew(self) -> None:
        """Begin anew: empty, and at the start of time."""
        self.close()
        self.clock.advance(START_S - self.clock.monotonic_s())
        self._is_made = False

    def transact(self, work: Callable[[sa.Connection], T], *, tries: int = TRIES) -> T:
        self._make()
        return super().transact(work, tries=tries)

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        self._make()
        with super().transaction() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        self._make()
        with super().read() as connection:
            yield connection

    def _make(self) -> None:
        if self._is_made:
            return
        self._is_made = True
        if not _tables:
            migrate(self, self.clock)
            query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rootpage"
            with self.read() as connection:
                _tables.extend(connection.execute(sa.text(query)).scalars())
                rows = connection.execute(sa.text("SELECT version, at_ms FROM schema_version"))
                # what the steps of the migration wrote beside the tables
                _tables.extend(f"INSERT INTO schema_version VALUES ({v}, {at})" for v, at in rows)  # noqa: S608 - numbers that were just read
            return

        def work(connection: sa.Connection) -> None:
            for statement in _tables:
                connection.exec_driver_sql(statement)

        super().transact(work)


class SuiteKit(Kit):
    """One ledger in memory, one manual clock, and contexts of plugins that look at them."""

    _idle: Final[list[_Memory]] = []

    def __init__(self) -> None:
        """Open an empty ledger, on a database object of an earlier kit when there is one."""
        self._database = self._idle.pop() if self._idle else _Memory()
        self.clock = self._database.clock
        self.ledger = Ledger(self._database, self.clock, _ENVIRONMENT)
        self.metrics = Counters()
        self.alarms: list[Alarm] = []
        self._alarm = Alarms(self.clock, quiet_s=0.0)
        self._alarm.add(self.alarms.append)

    def close(self) -> None:
        """Close the ledger, whose rows are gone; closing twice is closing once."""
        if self._database not in self._idle:
            self._database.renew()
            self._idle.append(self._database)
