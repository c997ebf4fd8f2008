"""What every book shares: one database, one environment, one clock."""

from __future__ import annotations

import secrets
import threading
from typing import Self

import sqlalchemy as sa

from doorbuster.clock import Clock
from doorbuster.identity import ServerKey
from doorbuster.ledger import (
    migrations,
    schema,
)
from doorbuster.ledger.database import Database

__all__ = ["Book"]


class Book:
    """One environment's view of one ledger database. Safe for many threads."""

    def __init__(
        self, database: Database, clock: Clock, environment: str, *, settle_max_s: float = 30.0
    ) -> None:
        """Bind; call :meth:`migrate` or :meth:`require_current` before use."""
        self.database = database
        self.environment = environment
        self.settle_max_s = settle_max_s
        self._clock = clock
        self._lock = threading.Lock()
        self._sids: dict[tuple[str, int], int] = {}
        self._skus: dict[int, tuple[str, ...]] = {}
        self._dry: set[int] = set()

    @classmethod
    def open(
        cls,
        url: str,
        clock: Clock,
        environment: str = "dev",
        *,
        wait_ms: int = 2000,
        settle_max_s: float = 30.0,
    ) -> Self:
        """Open the database at ``url``.

        Raises:
            ConfigError: the URL is malformed or not supported.
        """
        return cls(
            Database(url, clock, wait_ms=wait_ms), clock, environment, settle_max_s=settle_max_s
        )

    def close(self) -> None:
        """Close the connections."""
        self.database.close()

    def now_ms(self) -> int:
        """Ledger time: the host's for an embedded database, which lives on this host."""
        return self._clock.wall_ms()

    def migrate(self) -> tuple[int, int]:
        """Bring the schema forward; answer the versions before and after."""
        return migrations.migrate(self.database, self._clock)

    def require_current(self) -> None:
        """Refuse an older schema with a ConfigError that says what to run."""
        migrations.require_current(self.database)

    def server_key(self, configured: str | None) -> ServerKey:
        """Answer the configured key, else the one kept here, made once for this environment."""
        if configured is not None:
            return ServerKey(configured.encode(), self.environment)
        table, kid = schema.keys, f"{self.environment}"

        def work(connection: sa.Connection) -> str:
            found = connection.execute(sa.select(table.c.secret).where(table.c.kid == kid)).scalar()
            if found is None:
                found = secrets.token_hex(32)
                connection.execute(
                    table.insert(), {"kid": kid, "secret": found, "at_ms": self.now_ms()}
                )
            return str(found)

        return ServerKey(bytes.fromhex(self.database.transact(work)), self.environment)
