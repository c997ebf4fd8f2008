"""Units on their way between places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from doorbuster.ledger import (
    fundings,
    grants,
    schema,
)
from doorbuster.ledger.books.sales import SalesBook
from doorbuster.ledger.control import SaleRow
from doorbuster.ledger.fundings import FundingRow
from doorbuster.ledger.grants import Left, Needs
from doorbuster.model import (
    Sale,
)

__all__ = ["UnitsBook"]


class UnitsBook(SalesBook):
    """What is left, and every move of it."""

    def left(self, sale: Sale) -> dict[str, Left]:
        """Read what is left per sku, in one snapshot."""
        sid = self.sid(sale)
        with self.database.read() as connection:
            return grants.left(connection, sid)

    def unallocated(self, row: SaleRow, sku: str) -> int:
        """Units of a sku that no grant has."""
        table = schema.stock
        with self.database.read() as connection:
            return int(
                connection.execute(
                    sa.select(table.c.unallocated).where(table.c.sid == row.sid, table.c.sku == sku)
                ).scalar_one()
            )

    def gather(self, sale: Sale, epoch: int, wants: Mapping[tuple[str, str], int]) -> int:
        """Bring units to dry places of a router; answer how many moved (protocol.md 5.3).

        Where a read shows that there is nothing to move, the write lock is not taken: a sale
        that is sold out asks this for every batch.
        """
        sid = self.sid(sale)
        with self.database.read() as connection:
            there = grants.left(connection, sid)
        if not any(there[sku].unallocated or there[sku].free for _, sku in wants if sku in there):
            return 0
        return self.database.transact(
            lambda connection: grants.gather(connection, sid, epoch, wants, self.now_ms())
        )

    def plan_funding(
        self,
        row: SaleRow,
        funding_id: str,
        *,
        sku: str,
        kind: str,
        source: str,
        target: str,
        units: int,
    ) -> bool:
        """Write a PLANNED funding row; False when the id is there already (5.1)."""
        return self.database.transact(
            lambda connection: fundings.plan(
                connection,
                funding_id,
                sid=row.sid,
                epoch=row.epoch,
                sku=sku,
                kind=kind,
                source=source,
                target=target,
                units=units,
                now_ms=self.now_ms(),
            )
        )

    def plan_rounds(self, row: SaleRow) -> list[str]:
        """Plan top-ups for places that ran low (5.3); answer the new ids."""
        return self.database.transact(
            lambda connection: grants.plan_rounds(
                connection, row.sid, row.epoch, now_ms=self.now_ms()
            )
        )

    def open_fundings(self, row: SaleRow) -> list[FundingRow]:
        """Read the moves under way, oldest first."""
        with self.database.read() as connection:
            return fundings.open_fundings(connection, row.sid)

    def move(self, funding_id: str, debited: int | None) -> FundingRow:
        """PLANNED -> MOVED or CANCELLED (5.2)."""
        return self.database.transact(
            lambda connection: fundings.move(connection, funding_id, debited)
        )

    def credited(self, funding_ids: Sequence[str]) -> None:
        """MOVED -> CREDITED."""
        self.database.transact(lambda connection: fundings.credited(connection, funding_ids))

    def free_units(self, row: SaleRow) -> dict[tuple[str, str], int]:
        """Free units of each ACTIVE grant of the current epoch, by (place, sku)."""
        with self.database.read() as connection:
            return grants.free_units(connection, row.sid, row.epoch)

    def places_of(self, sid: int, epoch: int) -> dict[str, str]:
        """Places of an epoch and the plugin name that serves each."""
        table = schema.grants
        with self.database.read() as connection:
            rows = connection.execute(
                sa.select(table.c.place, table.c.backend)
                .where(table.c.sid == sid, table.c.epoch == epoch)
                .distinct()
            )
            return {found.place: found.backend for found in rows}

    def needs(self, row: SaleRow) -> Needs:
        """What role ``topup`` has to do for a sale, in one look."""
        with self.database.read() as connection:
            return grants.needs(connection, row.sid)
