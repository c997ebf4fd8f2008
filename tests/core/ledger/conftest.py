"""A shop: an open sale in a fresh ledger file, and the few moves its tests make."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from doorbuster.ledger import Ledger
from doorbuster.ledger.accept import Answer
from doorbuster.model import Batch, Kind, Reservation
from doorbuster.outcomes import Persisted
from doorbuster.testing.clock import ManualClock
from doorbuster.testing.suites.ground import OpenSale


class Shop(OpenSale):
    """The open sale of a ledger file. ``places`` spread its units; ``holds`` plays a holder."""

    def __init__(
        self,
        path: Path,
        *,
        skus: Mapping[str, int] | None = None,
        holds: bool = False,
        clock: Any = None,
        wait_ms: int = 2000,
        **wanted: Any,
    ) -> None:
        self.path = path
        self.clock = clock or ManualClock()
        ledger = Ledger.open(f"sqlite:///{path}", self.clock, "dev", wait_ms=wait_ms)
        ledger.migrate()
        stock = skus or {"black": 10}
        super().__init__(
            ledger, sale="drop", skus=stock, holds=holds, everything=not holds, **wanted
        )

    def item(
        self,
        buyer: str,
        request_id: str = "r1",
        lines: Mapping[str, int] | int = 1,
        place: str | None = None,
    ) -> Reservation:
        """What deduct answers for one attempt; ``lines`` are units by sku, or of the first one."""
        need = {next(iter(self.sale.skus)): lines} if isinstance(lines, int) else lines
        return self.ask(buyer, request_id, lines=need, place=place)

    def batch(self, items: Sequence[Reservation], *, epoch: int = 1, kind: Kind = Kind.H) -> Batch:
        """The batch of ``items``."""
        return Batch(self.sale, [item.attempt for item in items], "normal", epoch, kind)

    def buy(self, *which: Any, **more: Any) -> Answer:
        """Accept one attempt, that of :meth:`item`; it may be short."""
        return self.accept(self.item(*which, **more))[0]

    def persist(self) -> int:
        """Lease everything, write its orders, settle; answer how many were won."""
        won = 0
        while claims := self.claim():
            batches = [claim.batch for claim in claims]
            won += self.create(self.ledger.reservations_of(batches, self.sale))
            self.ledger.settle(batches)
        return won

    def create(self, items: Sequence[Reservation]) -> int:
        """Write the orders of ``items``; answer how many were won."""
        return sum(answer is Persisted.CREATED for answer in super().create(items))

    def order(self, item: Reservation, **other: Any) -> dict[str, Any]:
        """The order row of a reservation."""
        return super().order(item) | other

    def free(self) -> dict[tuple[str, str], int]:
        """Free units by (place, sku)."""
        return self.ledger.free_units(self.row)

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Run raw SQL past the ledger, its constraints too, and commit."""
        connection = sqlite3.connect(self.path, timeout=5)
        try:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            rows = connection.execute(statement, values).fetchall()
            connection.commit()
            return rows
        finally:
            connection.close()

    def count(self, table: str, where: str = "1 = 1") -> int:
        """Count rows."""
        return int(self.sql(f"SELECT count(*) FROM {table} WHERE {where}")[0][0])


Open = Callable[..., Shop]


@pytest.fixture(scope="session")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated ledger file without a sale; copying it is faster than making its tables."""
    path = tmp_path_factory.mktemp("ledger") / "blank.db"
    ledger = Ledger.open(f"sqlite:///{path}", ManualClock())
    ledger.migrate()
    ledger.close()
    return path


@pytest.fixture
def shop(tmp_path: Path, blank: Path) -> Iterator[Open]:
    """Open shops; each keyword is one of :class:`Shop`. All are closed at the end."""
    opened: list[Shop] = []

    def make(**options: Any) -> Shop:
        path = tmp_path / f"ledger{len(opened)}.db"
        shutil.copy(blank, path)
        opened.append(Shop(path, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.ledger.close()


@pytest.fixture
def memory_url() -> str:
    """An embedded ledger without a file."""
    return str(sa.URL.create("sqlite"))
