"""What is left under the write lock, and who may have it: quotas of buyers, units of places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import sqlalchemy as sa

from doorbuster.errors import ContractError
from doorbuster.ledger import queries
from doorbuster.ledger.control import Limits, SaleRow
from doorbuster.ledger.stored import units
from doorbuster.model import PER_SALE, GrantState, Reservation
from doorbuster.outcomes import Code, Rejection

__all__ = ["Fenced", "Room", "Short"]

_NO_LIMIT: Final = 1 << 62
_UNKNOWN_SKU: Final = Rejection(Code.INVALID, {"reason": "unknown-sku"})
_NO_GRANT: Final = Rejection(Code.BUSY, {"reason": "no-grant"}, retry_after_ms=200)


class Fenced(Exception):  # noqa: N818 - not a fault: it carries "roll back, this epoch is over"
    """A grant of the batch's epoch is not ACTIVE: nothing may be written (protocol.md 6.1)."""


class Short(msgspec.Struct, frozen=True):
    """The place has too few units: nothing was decided, the core gathers and tries again.

    ``missing`` is the units the attempt asked for, of each sku that its place is short of.
    """

    missing: Mapping[str, int]


class Room:
    """Read quotas and free units, judge attempt by attempt, write what was taken.

    Everything is read and written in one transaction under the write lock, so a guard of a
    write can only fail by a defect: then the transaction rolls back (ContractError).
    """

    def __init__(
        self, connection: sa.Connection, row: SaleRow, skus: Sequence[str], epoch: int
    ) -> None:
        """Judge for one epoch of one sale whose ledger has ``skus``."""
        self._connection = connection
        self._sql = queries.load(connection.dialect.name)
        self._row = row
        self._epoch = epoch
        self._skus = frozenset(skus)
        # With one sku its quota and the sale's are one row: count it once (PER_SALE).
        self._one_sku = len(skus) == 1
        self._limits = (
            {PER_SALE: lowest(row.limits, skus[0])}
            if self._one_sku
            else {PER_SALE: row.limits.sale} | {sku: row.limits.of_sku(sku) for sku in skus}
        )
        self._bought: dict[tuple[str, str], int] = {}
        self._free: dict[tuple[str, str], int] = {}
        self._added: dict[tuple[str, str], int] = defaultdict(int)
        self._consumed: dict[tuple[str, str], int] = defaultdict(int)

    def read(self, items: Sequence[Reservation]) -> None:
        """Read what ``items`` may touch: quotas, then grants (the lock order).

        Raises:
            Fenced: a grant of the epoch is not ACTIVE.
        """
        if not items:
            return
        sid = self._row.sid
        buyers = queries.array(sorted({item.attempt.buyer for item in items}))
        for buyer, scope, bought in queries.read_array(
            self._connection, self._sql["read_quotas"], (buyers, sid), tuple[str, str, int]
        ):
            self._bought[buyer, scope] = bought
        places = queries.array(sorted({item.place for item in items}))
        for place, sku, free, state in queries.run(
            self._connection, self._sql["read_grants"], (sid, self._epoch, places)
        ):
            if state != GrantState.ACTIVE:
                raise Fenced
            self._free[place, sku] = free

    def decide(self, item: Reservation) -> Rejection | Short | None:
        """Judge one attempt: limit before stock (S0-14); ``None`` takes its units.

        A buyer's second attempt in the batch sees the first one.
        """
        attempt, place = item.attempt, item.place
        buyer, lines = attempt.buyer, attempt.lines
        if len(lines) == 1:  # without the sums: what nearly every attempt is
            total = lines[0].quantity
            need: Iterable[tuple[str, int]] = ((lines[0].sku, total),)
        else:
            need = tuple(units(lines).items())
            total = sum(n for _, n in need)
        for sku, _ in need:
            if sku not in self._skus:
                return _UNKNOWN_SKU
        most = self._row.limits.attempt
        if most is not None and total > most:
            return Rejection(Code.OVER_LIMIT, {"limit": most, "scope": "attempt"})
        wants = ((PER_SALE, total),) if self._one_sku else ((PER_SALE, total), *need)
        for scope, n in wants:
            limit = self._limits[scope]
            if limit is not None and (bought := self._bought.get((buyer, scope), 0)) + n > limit:
                return Rejection(Code.OVER_LIMIT, {"limit": limit, "bought": bought})
        missing: dict[str, int] = {}
        for sku, n in need:
            free = self._free.get((place, sku))
            if free is None:
                return _NO_GRANT
            if free < n:
                missing[sku] = n
        if missing:
            return Short(missing)
        for scope, n in wants:
            key = buyer, scope
            self._bought[key] = self._bought.get(key, 0) + n
            self._added[key] += n
        for sku, n in need:
            self._free[place, sku] -= n
            self._consumed[place, sku] += n
        return None

    def phantom(self, short: Short, place: str) -> dict[str, int]:
        """What a hold took that its grant never had: quantity - free (protocol.md 4.3)."""
        return {sku: n - self._free[place, sku] for sku, n in short.missing.items()}

    def write(self) -> None:
        """Raise quotas, then consume grants; each guard must hit.

        Raises:
            ContractError: a guard failed, which the write lock forbids: a defect.
        """
        if not self._added:
            return
        sid, hit = self._row.sid, 0
        rows = [(sid, buyer, scope, n) for (buyer, scope), n in sorted(self._added.items())]
        for scope, limit in self._limits.items():
            hit += queries.insert_many(
                self._connection,
                self._sql["add_quotas"],
                [row for row in rows if row[2] == scope] if len(self._limits) > 1 else rows,
                _NO_LIMIT if limit is None else limit,
            )
        takes = [(place, sku, n) for (place, sku), n in sorted(self._consumed.items())]
        keys = (queries.array(takes), sid, self._epoch, self._row.version)
        hit += queries.run(self._connection, self._sql["consume_grants"], keys).rowcount
        missed = len(rows) + len(takes) - hit
        if missed:
            raise ContractError(
                f"{missed} guards of quotas or grants failed under the write lock",
                sale=self._row.sale,
            )


def lowest(limits: Limits, sku: str) -> int | None:
    """The quota of a sale with one sku: the smaller of the sale's and the sku's."""
    found = [n for n in (limits.sale, limits.of_sku(sku)) if n is not None]
    return min(found, default=None)
