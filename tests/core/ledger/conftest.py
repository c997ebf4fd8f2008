"""A shop: an open sale in a fresh ledger file, and the few moves its tests make."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from doorbuster.identity import ServerKey, canonical_lines, stable_hash
from doorbuster.ledger import Ledger, Report, SaleRow
from doorbuster.ledger.accept import Answer
from doorbuster.ledger.schema import orders
from doorbuster.model import (
    Attempt,
    Batch,
    IntentState,
    Kind,
    Line,
    PerBuyer,
    Reservation,
    Sale,
    SaleState,
    Sku,
)
from doorbuster.testing.clock import ManualClock

KEY = ServerKey(b"a key that only tests know", "dev")


class Shop:
    """One open sale. ``places`` spread its units; ``holds`` plays a holder instead of a router."""

    def __init__(
        self,
        path: Path,
        *,
        skus: Mapping[str, int] | None = None,
        places: int = 1,
        per_buyer: PerBuyer | None = None,
        holds: bool = False,
        clock: Any = None,
        wait_ms: int = 2000,
        state: SaleState = SaleState.OPEN,
        opens_at_ms: int | None = None,
        closes_at_ms: int | None = None,
    ) -> None:
        self.path = path
        self.clock = clock or ManualClock()
        self.holds = holds
        self.places = [f"p{n}" for n in range(places)]
        self.sale = Sale(
            id="drop",
            skus={sku: Sku(sku, n) for sku, n in (skus or {"black": 10}).items()},
            per_buyer=per_buyer or PerBuyer(),
            opens_at_ms=opens_at_ms,
            closes_at_ms=closes_at_ms,
        )
        self.ledger = Ledger.open(f"sqlite:///{path}", self.clock, "dev", wait_ms=wait_ms)
        self.ledger.migrate()
        row = self.ledger.create_sale(
            self.sale, run=1, kind=Kind.H, deduct="backend", journal="ledger", actor="test"
        )
        self.ledger.provision(row, 1, places=self.places, backend="backend", everything=not holds)
        opened = self.ledger.set_state(
            row, allowed=[row.state, state], to=state, actor="test", epoch=1
        )
        assert opened is not None
        self.sid = opened.sid

    @property
    def row(self) -> SaleRow:
        """The control row as it is now."""
        return self.ledger.require_sale(self.sale.id)

    def item(
        self,
        buyer: str,
        request_id: str = "r1",
        lines: Mapping[str, int] | int = 1,
        place: str | None = None,
    ) -> Reservation:
        """What deduct answers for one attempt; its home is a place by the buyer's hash."""
        if isinstance(lines, int):
            lines = {next(iter(self.sale.skus)): lines}
        parts = tuple(Line(sku, n) for sku, n in sorted(lines.items()))
        number = KEY.order_no(self.sale.id, self.sale.run, buyer, request_id)
        attempt = Attempt(
            parts,
            buyer,
            request_id,
            sale=self.sale.id,
            order_no=number,
            fingerprint=canonical_lines(parts),
        )
        if place is None:
            place = self.places[stable_hash(buyer) % len(self.places)]
        return Reservation(attempt, place, number, 1)

    def batch(self, items: Sequence[Reservation], *, epoch: int = 1, kind: Kind = Kind.H) -> Batch:
        """The batch of ``items``."""
        return Batch(self.sale, [item.attempt for item in items], "normal", epoch, kind)

    def accept(self, *items: Reservation, epoch: int = 1) -> list[Answer]:
        """Accept once; answers align."""
        batch = self.batch(items, epoch=epoch)
        return list(self.ledger.accept(batch, items, holds=self.holds).answers)

    def buy(
        self,
        buyer: str,
        request_id: str = "r1",
        lines: Mapping[str, int] | int = 1,
        place: str | None = None,
    ) -> Answer:
        """Accept one attempt."""
        return self.accept(self.item(buyer, request_id, lines, place))[0]

    def persist(self) -> int:
        """Lease everything, write its orders, settle; answer how many were won."""
        won = 0
        while claims := self.ledger.claim(owner="w", rows=2000, lease_s=30):
            batches = [claim.batch for claim in claims]
            won += self.create(self.ledger.reservations_of(batches, self.sale))
            self.ledger.settle(batches)
        return won

    def create(self, reservations: Sequence[Reservation]) -> int:
        """Write the orders of reservations as a persist plugin does."""
        with self.ledger.creating(reservations) as creating:
            creating.execute(orders.insert(), [self.order(item) for item in creating.won])
        return len(creating.won)

    def order(self, item: Reservation, **other: Any) -> dict[str, Any]:
        """The order row of a reservation."""
        return {
            "order_no": item.order_no,
            "environment": "dev",
            "sale": self.sale.id,
            "buyer": item.attempt.buyer,
            "request_id": item.attempt.request_id,
            "lines": item.attempt.fingerprint,
            "state": "CREATED",
            "created_at_ms": self.ledger.now_ms(),
        } | other

    def give_back(
        self,
        buyer: str,
        request_id: str = "r1",
        to: IntentState = IntentState.RELEASED,
    ) -> bool:
        """Return one accepted attempt; whether its units came back."""
        before = self.ledger.begin_return(
            self.row, buyer, request_id, to=to, reason="changed their mind", actor="ann"
        )
        if before is None:
            return False
        return self.finish()

    def finish(self) -> bool:
        """Do the jobs of the compensation lane that return units; whether any did."""
        done = False
        for job in self.ledger.claim_jobs({self.sid: self.sale.id}, limit=100, lease_s=30):
            if job.returned_as is None:
                continue
            self.sql(
                "UPDATE orders SET state = 'CANCELLED' WHERE order_no = ?", job.reservation.order_no
            )
            done |= self.ledger.finish_return(job)
            self.ledger.forget_job(job, backend_done=True)
        return done

    def report(self) -> Report:
        """Check I1-I7."""
        return self.ledger.report(self.row)

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
