"""Sales, their control rows and their totals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from doorbuster.errors import UnknownSaleError
from doorbuster.ledger import (
    control,
    grants,
    restock,
    schema,
)
from doorbuster.ledger.books.base import Book
from doorbuster.ledger.control import SaleRow
from doorbuster.model import (
    Kind,
    Sale,
    SaleState,
    Sku,
)

__all__ = ["SalesBook"]


class SalesBook(Book):
    """Runs of sales: created, changed, provisioned, restocked."""

    def sale(self, sale: str) -> SaleRow | None:
        """Read the current run of a sale, or ``None``."""
        with self.database.read() as connection:
            return control.find(connection, self.environment, sale)

    def require_sale(self, sale: str) -> SaleRow:
        """Read the current run of a sale.

        Raises:
            UnknownSaleError: it names the known ones.
        """
        row = self.sale(sale)
        if row is None:
            raise UnknownSaleError(sale, [known.sale for known in self.sales()])
        return row

    def sales(self) -> list[SaleRow]:
        """Read the current run of every sale, by id."""
        with self.database.read() as connection:
            return control.load_all(connection, self.environment)

    def skus(self, row: SaleRow) -> dict[str, Sku]:
        """Read the skus of a sale; ``units`` is the total now."""
        with self.database.read() as connection:
            return control.load_skus(connection, row)

    def create_sale(
        self, sale: Sale, *, run: int, kind: Kind, deduct: str, journal: str, actor: str
    ) -> SaleRow:
        """Write a new run, all units unallocated; idempotent by (sale, run)."""
        return self.database.transact(
            lambda connection: control.create(
                connection,
                sale,
                run=run,
                kind=kind,
                deduct=deduct,
                journal=journal,
                actor=actor,
                now_ms=self.now_ms(),
            )
        )

    def set_state(
        self,
        row: SaleRow,
        *,
        allowed: Sequence[SaleState],
        to: SaleState,
        actor: str,
        epoch: int | None = None,
    ) -> SaleRow | None:
        """Compare and set a sale's state; ``None`` when it was in none of ``allowed``."""
        return self.database.transact(
            lambda connection: control.set_state(
                connection,
                row.sid,
                allowed=allowed,
                to=to,
                actor=actor,
                now_ms=self.now_ms(),
                epoch=epoch,
            )
        )

    def first_epoch(self, row: SaleRow) -> int:
        """The epoch that warm-up opens: 1, or one above the last epoch of the runs before.

        So no epoch of a sale is ever used twice, and what an old run left in a backend, whose
        keys are named by sale and epoch, cannot be taken for a new run's.
        """
        table = schema.sales
        with self.database.read() as connection:
            last = connection.execute(
                sa.select(sa.func.max(table.c.epoch)).where(
                    table.c.environment == row.environment,
                    table.c.sale == row.sale,
                    table.c.run < row.run,
                )
            ).scalar()
        return int(last or schema.EPOCH_NONE) + 1

    def change_control(self, row: SaleRow, *, actor: str, action: str, **values: Any) -> SaleRow:
        """Change control values under a new version (protocol.md 6.6)."""
        return self.database.transact(
            lambda connection: control.change(
                connection, row.sid, actor=actor, action=action, now_ms=self.now_ms(), **values
            )
        )

    def provision(
        self, row: SaleRow, epoch: int, *, places: Sequence[str], backend: str, everything: bool
    ) -> None:
        """Make an epoch's grants and plan their first fundings; idempotent."""
        self.database.transact(
            lambda connection: grants.provision(
                connection,
                row.sid,
                epoch,
                places=places,
                backend=backend,
                version=control.load(connection, row.sid).version,
                everything=everything,
                now_ms=self.now_ms(),
            )
        )

    def restock(self, row: SaleRow, sku: str, units: int, *, restock_id: str, actor: str) -> bool:
        """Change a total by ``units`` (up or down), once per id; False when it was applied."""
        return self.database.transact(
            lambda connection: restock.apply_restock(
                connection,
                row.sid,
                sku,
                units,
                restock_id=restock_id,
                actor=actor,
                now_ms=self.now_ms(),
            )
        )

    def take_wanted(self, row: SaleRow, *, router: bool) -> dict[str, int]:
        """Go on with restocks down; answer units still wanted per sku."""
        return self.database.transact(
            lambda connection: restock.take_wanted(
                connection, row.sid, row.epoch, router=router, now_ms=self.now_ms()
            )
        )

    def sid(self, sale: Sale) -> int:
        """The number of a sale's run.

        Raises:
            UnknownSaleError: the run is not in the ledger.
        """
        key = (sale.id, sale.run)
        found = self._sids.get(key)
        if found is None:
            row = self.require_sale(sale.id)
            if row.run != sale.run:
                raise UnknownSaleError(f"{sale.id} (run {sale.run})")
            with self._lock:
                found = self._sids[key] = row.sid
        return found
