"""Looks past the code under test: what a backend and the ledger really hold.

A probe reads raw and asks nobody. What it sees is compared with what a suite did, so it must use
neither the plugin's hooks nor the ledger's own queries: a defect in them would hide itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, Protocol, runtime_checkable

import sqlalchemy as sa

from doorbuster.ledger import Ledger
from doorbuster.model import Sale
from doorbuster.testing.memory import MemoryHolder

__all__ = ["GrantLook", "LedgerProbe", "MemoryProbe", "StockProbe", "Units"]

Units = Mapping[tuple[str, str], int]
"""Units by (place, sku)."""


@runtime_checkable
class StockProbe(Protocol):
    """What an author of a holder writes: two raw reads of the backend, without the plugin."""

    def left(self, sale: Sale, epoch: int) -> Units:
        """Units that may be sold, by (place, sku); empty when the epoch is not there."""
        ...

    def held(self, sale: Sale, epoch: int) -> Units:
        """Units of records that are HELD or ACCEPTED, by (place, sku) (protocol.md 3.2).

        Counted from the records where the backend keeps no such number.
        """
        ...


class MemoryProbe:
    """Reads the store of a :class:`~doorbuster.testing.memory.MemoryHolder` past its hooks.

    It uses ``_store.epochs[sale, run, epoch].slots`` and of each slot ``place``, ``left`` and
    ``held`` (units by sku), nothing else.
    """

    def __init__(self, holder: MemoryHolder) -> None:
        """Look into ``holder``."""
        self._store = holder._store

    def left(self, sale: Sale, epoch: int) -> Units:
        """Units that may be sold, by (place, sku)."""
        return self._read("left", sale, epoch)

    def held(self, sale: Sale, epoch: int) -> Units:
        """Units of held records, by (place, sku)."""
        return self._read("held", sale, epoch)

    def _read(self, what: str, sale: Sale, epoch: int) -> Units:
        found = self._store.epochs.get((sale.id, sale.run, epoch))
        slots = () if found is None else found.slots
        return {
            (slot.place, sku): n for slot in slots for sku, n in dict(getattr(slot, what)).items()
        }


class GrantLook(Protocol):
    """One row of ``grants``, as stored."""

    epoch: int
    place: str
    sku: str
    state: str
    quantity: int
    consumed: int


_LIVE: Final = ("RESERVED", "CREATED", "PAID", "RETURNING")
_SALE: Final = "*"


class LedgerProbe:
    """Reads a ledger's tables by plain SQL and does its own sums (protocol.md 8)."""

    def __init__(self, ledger: Ledger) -> None:
        """Look at ``ledger``'s database; of the ledger only its connection is used."""
        self._database = ledger.database

    def rows(self, sql: str, **values: Any) -> list[Any]:
        """Answer the rows of one plain query."""
        with self._database.read() as connection:
            return list(connection.execute(sa.text(sql), values))

    def write(self, sql: str, **values: Any) -> None:
        """Change rows behind the ledger's back, where a law needs a state nobody can ask for."""

        def work(connection: sa.Connection) -> None:
            connection.execute(sa.text(sql), values)

        self._database.transact(work)

    def sid(self, sale: str) -> int:
        """The number of a sale's current run."""
        ((sid,),) = self.rows("SELECT max(sid) FROM sales WHERE sale = :sale", sale=sale)
        return int(sid)

    def grants(self, sale: str) -> list[GrantLook]:
        """All grants of a sale's current run."""
        return self.rows(
            "SELECT epoch, place, sku, state, quantity, consumed FROM grants WHERE sid = :sid",
            sid=self.sid(sale),
        )

    def sold(self, sale: str) -> dict[str, int]:
        """Units of live intents, by sku."""
        sums: dict[str, int] = defaultdict(int)
        for (_, _, sku), n in self._live(self.sid(sale))[0].items():
            sums[sku] += n
        return dict(sums)

    def wrong(self, sale: str) -> list[str]:
        """Say what does not add up, a sentence each; nothing when all does.

        Of each sku: unallocated + suspense + free of grants + consumed = total, no term negative.
        Of each grant: consumed = the units of its live intents. Of each buyer: the quota of the
        sale = the units of the buyer's live intents.
        """
        sid = self.sid(sale)
        by_grant, by_buyer = self._live(sid)
        grants = self.grants(sale)
        told = []
        for grant in grants:
            live = by_grant.pop((grant.epoch, grant.place, grant.sku), 0)
            if grant.consumed != live:
                told.append(f"grant {grant}: its live intents hold {live}")
            if not 0 <= grant.consumed <= grant.quantity:
                told.append(f"grant {grant}: consumed is not within 0..quantity")
        told += [f"live intents of no grant: {key} {n}" for key, n in by_grant.items() if n]
        stock = "SELECT sku, total, unallocated, suspense FROM stock WHERE sid = :sid"
        for sku, total, unallocated, suspense in self.rows(stock, sid=sid):
            lent = sum(grant.quantity for grant in grants if grant.sku == sku)
            if unallocated + suspense + lent != total or min(unallocated, suspense) < 0:
                told.append(f"{sku}: {unallocated} + {suspense} + lent {lent} is not {total}")
        quotas = "SELECT buyer, bought FROM quotas WHERE sid = :sid AND scope = :scope"
        for buyer, bought in self.rows(quotas, sid=sid, scope=_SALE):
            n = by_buyer.pop(buyer, 0)
            if bought != n:
                told.append(f"quota of {buyer}: {bought}, live intents hold {n}")
        return told + [f"{buyer} holds {n} without a quota" for buyer, n in by_buyer.items() if n]

    def _live(self, sid: int) -> tuple[dict[tuple[int, str, str], int], dict[str, int]]:
        by_grant: dict[tuple[int, str, str], int] = defaultdict(int)
        by_buyer: dict[str, int] = defaultdict(int)
        intents = "SELECT epoch, place, buyer, state, lines FROM intents WHERE sid = :sid"
        for epoch, place, buyer, state, lines in self.rows(intents, sid=sid):
            for part in lines.split(",") if state in _LIVE else ():
                sku, _, rest = part.partition("=")
                n = int(rest.partition("@")[0])
                by_grant[epoch, place, sku] += n
                by_buyer[buyer] += n
        return by_grant, by_buyer
