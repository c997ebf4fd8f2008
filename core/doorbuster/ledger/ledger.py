"""The ledger: the only place where a unit can come into being or change hands.

This facade binds the transactions of the modules beside it to one database, one environment
and one clock. Every method that writes is one transaction, idempotent by the identities and ids
it is given, and raises only the errors of :meth:`doorbuster.ledger.database.Database.transact`.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from doorbuster.alarms import Alarm
from doorbuster.clock import Clock
from doorbuster.context import SoldOutRead
from doorbuster.errors import UnknownSaleError
from doorbuster.identity import ServerKey
from doorbuster.ledger import (
    audit,
    control,
    fundings,
    grants,
    invariants,
    migrations,
    outbox,
    reads,
    restock,
    returns,
    schema,
)
from doorbuster.ledger.accept import STALE, Accepted, accept, answer_from_stored
from doorbuster.ledger.control import SaleRow
from doorbuster.ledger.database import Database, new_batch_id
from doorbuster.ledger.fundings import FundingRow
from doorbuster.ledger.grants import Left
from doorbuster.ledger.outbox import Claim, CreatingTransaction
from doorbuster.ledger.returns import Job
from doorbuster.ledger.room import Fenced
from doorbuster.ledger.stored import Stored, outcome_of, read_stored
from doorbuster.model import (
    Batch,
    IntentState,
    Kind,
    Reservation,
    Sale,
    SaleState,
    Sku,
)
from doorbuster.outcomes import Code, Outcome, Persisted

__all__ = ["Ledger"]


class _NothingWritten(Exception):  # noqa: N818 - not a fault: it carries "roll back, all is said"
    """A router's batch without a new unit sold: its rows are removed again, so nothing stays."""

    def __init__(self, found: Accepted) -> None:
        super().__init__()
        self.found = found


class Ledger:
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

    @classmethod
    def open(
        cls,
        url: str,
        clock: Clock,
        environment: str = "dev",
        *,
        wait_ms: int = 2000,
        settle_max_s: float = 30.0,
    ) -> Ledger:
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

    # ------------------------------------------------------------------ schema and keys
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

    # ------------------------------------------------------------------ sales
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

    # ------------------------------------------------------------------ accept and query
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

    def accept(
        self,
        batch: Batch,
        items: Sequence[Reservation],
        *,
        holds: bool,
        lease: tuple[str, int] | None = None,
    ) -> Accepted:
        """Run the accept transaction (protocol.md 4.1) for distinct identities of one sale.

        A lock time-out or an unknown commit is run again as a new try.

        Raises:
            UnavailableError: nothing was applied.
            UnknownOutcomeError: it may be applied; settle by identity.
        """
        sid = self.sid(batch.sale)
        skus = self._skus_of(sid)

        def work(connection: sa.Connection) -> Accepted:
            found = accept(
                connection,
                sid,
                items,
                epoch=batch.epoch,
                kind=batch.kind,
                skus=skus,
                holds=holds,
                batch=new_batch_id(self._clock),
                now_ms=self.now_ms(),
                lease=lease,
            )
            if found.batch is None and not holds:
                raise _NothingWritten(found)  # a sold-out sale must not pay an fsync per batch
            return found

        try:
            return self.database.transact(work)
        except _NothingWritten as nothing:
            return nothing.found
        except Fenced:
            with self.database.read() as connection:
                answers = answer_from_stored(connection, sid, items, STALE)
            return Accepted(answers, None, (), undo=False)

    def _skus_of(self, sid: int) -> tuple[str, ...]:
        """The skus of a run, sorted: fixed when it was created, whatever config says now."""
        found = self._skus.get(sid)
        if found is None:
            table = schema.stock
            query = sa.select(table.c.sku).where(table.c.sid == sid).order_by(table.c.sku)
            with self.database.read() as connection:
                found = tuple(connection.execute(query).scalars())
            with self._lock:
                self._skus[sid] = found
        return found

    def results(self, row: SaleRow, identities: Sequence[tuple[str, str]]) -> list[Outcome | None]:
        """Answer (buyer, request_id) pairs from what is stored; ``None`` for the unknown."""
        with self.database.read() as connection:
            stored = read_stored(connection, row.sid, identities)
        return [
            outcome_of(found, None) if (found := stored.get(key)) else None for key in identities
        ]

    def tombstone(
        self, sale: Sale, epoch: int, items: Sequence[Reservation], *, code: Code, holds: bool
    ) -> list[Stored | None] | None:
        """Settle identities (protocol.md 4.3): ABORTED where none is stored.

        Answers what was stored before (``None``: the tombstone won), or ``None`` for all when
        the epoch is fenced and nothing was written.
        """
        sid = self.sid(sale)
        try:
            return self.database.transact(
                lambda connection: returns.tombstone(
                    connection,
                    sid,
                    epoch,
                    items,
                    code=code,
                    holds=holds,
                    batch=new_batch_id(self._clock),
                    now_ms=self.now_ms(),
                )
            )
        except Fenced:
            return None

    # ------------------------------------------------------------------ units
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

    def spare(self, row: SaleRow) -> bool:
        """Whether some units have no grant."""
        return self._any_stock(row, schema.stock.c.unallocated)

    def wanted(self, row: SaleRow) -> bool:
        """Whether a restock down still wants units."""
        return self._any_stock(row, schema.stock.c.wanted)

    def _any_stock(self, row: SaleRow, column: sa.Column[int]) -> bool:
        with self.database.read() as connection:
            query = sa.select(column).where(schema.stock.c.sid == row.sid, column > 0).limit(1)
            return connection.execute(query).first() is not None

    # ------------------------------------------------------------------ outbox and orders
    def pending(self, sids: Sequence[int]) -> int:
        """Count open batches of some sales."""
        with self.database.read() as connection:
            return outbox.pending(connection, sids)

    def claim(
        self,
        *,
        owner: str,
        rows: int,
        lease_s: float,
        settled: Sequence[int] = (),
        sids: Sequence[int] | None = None,
    ) -> list[Claim]:
        """Close ``settled`` batches and lease new ones, in one transaction (one fsync).

        ``sids`` are the sales the caller can persist; ``None``: every sale of the database.
        """
        with self.database.read() as connection:
            if not settled and not outbox.is_pending(connection, sids):
                return []

        def work(connection: sa.Connection) -> list[Claim]:
            outbox.settle(connection, settled)
            return outbox.claim(
                connection,
                owner=owner,
                rows=rows,
                now_ms=self.now_ms(),
                lease_ms=int(lease_s * 1000),
                sids=sids,
            )

        return self.database.transact(work)

    def settle(self, batches: Sequence[int]) -> int:
        """Close batches whose intents have all moved on; answer how many."""
        return self.database.transact(lambda connection: outbox.settle(connection, batches))

    def reservations_of(self, batches: Sequence[int], sale: Sale) -> list[Reservation]:
        """Read the RESERVED intents of one sale's batches, oldest first; no dead letters."""
        with self.database.read() as connection:
            return outbox.reservations_of(connection, batches, sale.id)

    def reserved(self, batches: Sequence[int]) -> int:
        """Count the intents of batches that are still RESERVED, dead letters too."""
        with self.database.read() as connection:
            return outbox.reserved(connection, batches)

    def settle_persisted(
        self, sale: Sale, reservations: Sequence[Reservation], answers: Sequence[Persisted]
    ) -> list[Reservation]:
        """Move what a persist plugin created on to CREATED; REFUSED becomes a dead letter.

        Answers the new dead letters. A refusal of an intent that is no longer RESERVED is none:
        its return has won, and the void refused it.
        """
        sid = self.sid(sale)
        pairs = list(zip(reservations, answers, strict=True))
        created = [item for item, answer in pairs if answer is not Persisted.REFUSED]
        refused = [item for item, answer in pairs if answer is Persisted.REFUSED]

        def work(connection: sa.Connection) -> list[Reservation]:
            outbox.mark_created(connection, created)
            now_ms = self.now_ms()
            return [
                item
                for item in refused
                if outbox.dead_letter(connection, sid, item, "persist refused", now_ms)
            ]

        return self.database.transact(work)

    @contextmanager
    def creating(self, reservations: Sequence[Reservation]) -> Iterator[CreatingTransaction]:
        """Open the transaction in which a persist plugin inserts its rows (protocol.md 4.5)."""
        with self.database.transaction() as connection:
            yield CreatingTransaction(connection, reservations)

    def voiding(
        self, reservation: Reservation, statements: Callable[[Any], Persisted]
    ) -> Persisted:
        """Run a persist plugin's ``void`` statements in one transaction."""
        return self.database.transact(statements)

    # ------------------------------------------------------------------ ways back
    def begin_return(
        self,
        row: SaleRow,
        buyer: str,
        request_id: str,
        *,
        to: IntentState,
        reason: str,
        actor: str,
    ) -> Stored | None:
        """Compare and set an intent to RETURNING; ``None`` when another change won (4.4 a)."""
        return self.database.transact(
            lambda connection: returns.begin_return(
                connection,
                row.sid,
                buyer,
                request_id,
                to=to,
                reason=reason,
                actor=actor,
                now_ms=self.now_ms(),
            )
        )

    def jobs(self, sids: Sequence[int]) -> int:
        """Count jobs of the compensation lane of some sales."""
        table = schema.compensations
        with self.database.read() as connection:
            query = sa.select(sa.func.count()).where(table.c.sid.in_(list(sids)))
            return int(connection.execute(query).scalar_one())

    def claim_jobs(self, sales: Mapping[int, str], *, limit: int, lease_s: float) -> list[Job]:
        """Lease due jobs of the compensation lane."""
        with self.database.read() as connection:
            if not connection.execute(sa.select(schema.compensations.c.id).limit(1)).first():
                return []
        return self.database.transact(
            lambda connection: returns.claim_jobs(
                connection,
                limit=limit,
                now_ms=self.now_ms(),
                lease_ms=int(lease_s * 1000),
                sales=sales,
            )
        )

    def finish_return(self, job: Job) -> bool:
        """Give the units of a RETURNING intent back, once (4.4 c)."""
        return self.database.transact(
            lambda connection: returns.finish_return(connection, job, self.now_ms())
        )

    def forget_job(self, job: Job, *, backend_done: bool, epoch: int | None = None) -> bool:
        """Close a job of the lane; False when it stays, because ``epoch`` is over (4.4).

        ``epoch`` is the one whose backend was told; give it whenever there can be another.

        Raises:
            ContractError: the units of a return were not given back yet.
        """
        return self.database.transact(
            lambda connection: returns.forget_job(
                connection, job, backend_done=backend_done, epoch=epoch
            )
        )

    def retry_job(self, job: Job, *, after_s: float) -> None:
        """Let a job wait."""
        due_ms = self.now_ms() + int(after_s * 1000)
        self.database.transact(lambda connection: returns.retry_job(connection, job, due_ms=due_ms))

    # ------------------------------------------------------------------ what people read
    def write_alarm(self, alarm: Alarm) -> None:
        """Keep an alarm as a row (a sink of :class:`doorbuster.alarms.Alarms`)."""
        self.database.transact(lambda connection: audit.write_alarm(connection, alarm), tries=1)

    def alarms(self, *, sale: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Read the newest alarms."""
        with self.database.read() as connection:
            return audit.read_alarms(connection, sale=sale, limit=limit)

    def audit(self, row: SaleRow, *, limit: int = 100) -> list[dict[str, Any]]:
        """Read the newest audit rows of a sale."""
        with self.database.read() as connection:
            return audit.read_audit(connection, row.sid, limit)

    def orders(
        self, sale: str, *, buyer: str | None = None, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Read orders of a sale, of every run, newest first."""
        with self.database.read() as connection:
            return reads.read_orders(connection, self.environment, sale, buyer, limit)

    def order(self, order_no: str) -> dict[str, Any] | None:
        """Read one order with its intent's state and its release, or ``None``."""
        with self.database.read() as connection:
            return reads.read_order(connection, self.environment, order_no)

    def report(self, row: SaleRow) -> invariants.Report:
        """Check I1-I7 of one sale against its rows, in one snapshot."""
        with self.database.read() as connection:
            return invariants.check(
                connection, row, now_ms=self.now_ms(), settle_max_s=self.settle_max_s
            )

    def view(self) -> LedgerReads:
        """What plugins see of this ledger."""
        return LedgerReads(self)


class LedgerReads:
    """Implements :class:`doorbuster.context.LedgerView`."""

    def __init__(self, ledger: Ledger) -> None:
        """Look at ``ledger``."""
        self._ledger = ledger
        self.creating = ledger.creating
        self.voiding = ledger.voiding

    def left(self, sale: Sale) -> dict[str, int]:
        """Units not yet consumed, by sku."""
        return {
            sku: found.unallocated + found.free for sku, found in self._ledger.left(sale).items()
        }

    def sold_out(self, sale: Sale) -> SoldOutRead:
        """Which skus have no unit left, read once (protocol.md 7.1)."""
        ledger = self._ledger
        sid = ledger.sid(sale)
        read_at_s = ledger._clock.monotonic_s()
        with ledger.database.read() as connection:  # one snapshot: units, epoch and version
            row = control.load(connection, sid)
            found = grants.left(connection, sid)
        return SoldOutRead(
            skus=frozenset(sku for sku, left in found.items() if left.sold_out),
            epoch=row.epoch,
            version=row.version,
            read_at_s=read_at_s,
        )
