"""The schema's version and the steps that bring an older ledger forward.

A step only adds (tables, nullable columns, indexes), so that the release before it keeps
running beside the new one. ``STEPS[n]`` brings version ``n`` to ``n + 1``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import sqlalchemy as sa

from doorbuster.clock import Clock
from doorbuster.errors import ConfigError
from doorbuster.ledger import schema
from doorbuster.ledger.database import Database

__all__ = ["STEPS", "VERSION", "Step", "current", "migrate"]

Step = Callable[[sa.Connection], None]


def _create_all(connection: sa.Connection) -> None:
    """Version 0 to 1: every table of the first release."""
    schema.METADATA.create_all(connection)


def _mark_batches(_connection: sa.Connection) -> None:
    """Version 1 to 2: it marked whole batches as kept elsewhere, which version 3 does better."""


def _mark_intents(connection: sa.Connection) -> None:
    """Version 2 to 3: each intent says whether its order is kept outside this database."""
    if not _has(connection, "intents", "away"):  # a new database was made with it
        connection.execute(
            sa.text("ALTER TABLE intents ADD COLUMN away INTEGER NOT NULL DEFAULT 0")
        )
    if _has(connection, "outbox", "away"):
        connection.execute(
            sa.text(
                "UPDATE intents SET away = 1"
                " WHERE batch IN (SELECT batch FROM outbox WHERE away = 1)"
                " AND NOT EXISTS (SELECT 1 FROM orders WHERE orders.order_no = intents.order_no)"
            )
        )


def _has(connection: sa.Connection, table: str, column: str) -> bool:
    return column in {found["name"] for found in sa.inspect(connection).get_columns(table)}


STEPS: Final[Sequence[Step]] = (_create_all, _mark_batches, _mark_intents)
VERSION: Final = len(STEPS)
"""The version this release writes."""


def current(connection: sa.Connection) -> int:
    """Answer the schema's version; 0 for an empty database."""
    if not sa.inspect(connection).has_table(schema.schema_version.name):
        return 0
    found = connection.execute(sa.select(sa.func.max(schema.schema_version.c.version))).scalar()
    return int(found or 0)


def migrate(database: Database, clock: Clock, *, steps: Sequence[Step] = STEPS) -> tuple[int, int]:
    """Bring the schema forward in one transaction; answer the versions before and after.

    A newer schema than this release knows is left alone: steps only add, so it still works.

    Raises:
        UnavailableError: the database cannot be written.
    """

    def work(connection: sa.Connection) -> tuple[int, int]:
        before = current(connection)
        for version, step in enumerate(steps[before:], start=before + 1):
            step(connection)
            connection.execute(
                schema.schema_version.insert(), {"version": version, "at_ms": clock.wall_ms()}
            )
        return before, max(before, len(steps))

    with database.read() as connection:
        before = current(connection)
    if before >= len(steps):
        return before, before
    return database.transact(work)


def require_current(database: Database) -> None:
    """Refuse to work on a ledger whose schema is older than this release.

    Raises:
        ConfigError: it says to run ``doorbuster migrate``.
    """
    with database.read() as connection:
        found = current(connection)
    if found < VERSION:
        raise ConfigError(
            f"the ledger has schema version {found}, this release needs {VERSION}: "
            "run 'doorbuster migrate'"
        )
