"""What laws stand on: attempts as the core hands them on, and an open sale on a real ledger.

Nothing here decides anything, and nothing depends on which database is behind the ledger: rows
are read through SQLAlchemy, times are the ledger's own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from doorbuster import loading
from doorbuster.identity import ServerKey, canonical_lines, stable_hash
from doorbuster.ledger import Claim, Job, Ledger, Report, SaleRow, Short, schema
from doorbuster.ledger.stored import Stored
from doorbuster.model import (
    Attempt,
    Batch,
    GrantState,
    IntentState,
    Kind,
    Line,
    PerBuyer,
    Reservation,
    Sale,
    SaleState,
    Sku,
)
from doorbuster.outcomes import Code, Outcome, Persisted
from doorbuster.testing.flow import SALE

__all__ = ["KEY", "OpenSale", "attempt", "hooks_of", "sale_of"]

KEY: Final = ServerKey(b"known to every test, worth nothing", "dev")
"""Makes the order numbers of suites (protocol.md 2.2)."""

_LEASE_S: Final = 30.0


def attempt(
    buyer: str,
    sku: str = "gold",
    quantity: int = 1,
    *,
    request_id: str = "r1",
    lines: Mapping[str, int] | None = None,
    sale: str = SALE,
    **fields: Any,
) -> Attempt:
    """An attempt as a stage sees it: admitted, so its order number and fingerprint are filled.

    ``lines`` is units by sku and replaces ``sku`` and ``quantity``; ``fields`` are further ones
    of :class:`~doorbuster.model.Attempt`: ticket, facts.
    """
    wanted = {sku: quantity} if lines is None else lines
    parts = tuple(Line(word, n) for word, n in sorted(wanted.items()))
    return Attempt(
        lines=parts,
        buyer=buyer,
        request_id=request_id,
        sale=sale,
        order_no=KEY.order_no(sale, 1, buyer, request_id),
        fingerprint=canonical_lines(parts),
        run=1,
        **fields,
    )


def sale_of(skus: Mapping[str, int], *, sale: str = SALE, **fields: Any) -> Sale:
    """A sale of these units; ``fields`` are further ones of :class:`~doorbuster.model.Sale`."""
    return Sale(sale, {sku: Sku(sku, n) for sku, n in skus.items()}, **fields)


def hooks_of(plugin: Any) -> dict[str, Callable[..., Any]]:
    """The hook methods of a built plugin by name, checked against their specs.

    Raises:
        WiringError: a hook has another name, signature or colour than its spec.
    """
    return loading.register(loading.new_manager(), plugin, "suite", type(plugin).__name__)


class OpenSale:
    """One open sale on a ledger, named so that it meets no other one, and what can be done."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        sale: str | None = None,
        skus: Mapping[str, int] | None = None,
        places: int = 1,
        per_buyer: PerBuyer | None = None,
        holds: bool = False,
        everything: bool = True,
        state: SaleState = SaleState.OPEN,
        **fields: Any,
    ) -> None:
        """Create, provision and open it; ``holds`` plays a holder's accepts, else a router's.

        ``sale`` names it, where it is the only one of its ledger. Without ``everything`` its
        places get their first tranche alone, planned and not credited, as a holder's do (5.4).
        """
        self.ledger = ledger
        self.holds = holds
        self.places = [f"p{n}" for n in range(places)]
        self.sale = sale_of(
            skus or {"gold": 10},
            sale=sale or f"drop-{uuid.uuid4().hex[:12]}",
            per_buyer=per_buyer or PerBuyer(),
            **fields,
        )
        row = ledger.create_sale(
            self.sale, run=1, kind=Kind.H, deduct="backend", journal="ledger", actor="suite"
        )
        self.sid = row.sid
        ledger.provision(row, 1, places=self.places, backend="backend", everything=everything)
        ledger.set_state(row, allowed=[row.state, state], to=state, actor="suite", epoch=1)

    # ------------------------------------------------------------------ moves
    @property
    def row(self) -> SaleRow:
        """The control row as it is now."""
        return self.ledger.require_sale(self.sale.id)

    def ask(
        self,
        buyer: str,
        request_id: str = "r1",
        quantity: int = 1,
        *,
        lines: Mapping[str, int] | None = None,
        place: str | None = None,
    ) -> Reservation:
        """What deduct answers for one attempt; its home is by the buyer's hash."""
        asked = attempt(
            buyer,
            next(iter(self.sale.skus)),
            quantity,
            request_id=request_id,
            lines=lines,
            sale=self.sale.id,
        )
        home = self.places[stable_hash(buyer) % len(self.places)] if place is None else place
        return Reservation(asked, home, asked.order_no, 1)

    def accept(
        self, *items: Reservation, epoch: int = 1, kind: Kind = Kind.H
    ) -> list[Outcome | Short]:
        """Run the accept transaction once; answers align."""
        batch = Batch(self.sale, [item.attempt for item in items], "normal", epoch, kind)
        return list(self.ledger.accept(batch, items, holds=self.holds).answers)

    def decide(self, *items: Reservation, **terms: Any) -> list[Outcome]:
        """Accept once; answer the outcomes.

        Raises:
            AssertionError: a place was short, so nothing was decided.
        """
        answers = self.accept(*items, **terms)
        decided = [answer for answer in answers if isinstance(answer, Outcome)]
        if len(decided) != len(answers):
            raise AssertionError(f"a place was short: {answers!r}")
        return decided

    def codes(self, *items: Reservation, **terms: Any) -> list[Code | None]:
        """Accept once; answer the codes, ``None`` where a place was short."""
        answers = self.accept(*items, **terms)
        return [answer.code if isinstance(answer, Outcome) else None for answer in answers]

    def buy(self, buyer: str, request_id: str = "r1", quantity: int = 1, **more: Any) -> Outcome:
        """Accept one attempt that finds its units."""
        return self.decide(self.ask(buyer, request_id, quantity, **more))[0]

    def claim(self, owner: str = "worker", *, lease_s: float = _LEASE_S) -> list[Claim]:
        """Lease this sale's open batches."""
        return self.ledger.claim(owner=owner, rows=1000, lease_s=lease_s, sids=[self.sid])

    def waiting(self) -> list[Reservation]:
        """Lease what is open and read its RESERVED intents, as a worker does."""
        return self.ledger.reservations_of([claim.batch for claim in self.claim()], self.sale)

    def create(self, items: Sequence[Reservation]) -> Sequence[Persisted]:
        """Write the orders of ``items`` in the transaction that moves their intents (4.5)."""
        with self.ledger.creating(items) as creating:
            creating.execute(schema.orders.insert(), [self.order(item) for item in creating.won])
        return creating.answers

    def order(self, item: Reservation) -> dict[str, Any]:
        """The order row of a reservation."""
        return {
            "order_no": item.order_no,
            "environment": self.sale.environment,
            "sale": self.sale.id,
            "buyer": item.attempt.buyer,
            "request_id": item.attempt.request_id,
            "lines": item.attempt.fingerprint,
            "state": "CREATED",
            "created_at_ms": self.ledger.now_ms(),
        }

    def work(self) -> Sequence[Persisted]:
        """Claim, create and settle everything that is open; answer what persist answered."""
        batches = [claim.batch for claim in self.claim()]
        answers = self.create(self.ledger.reservations_of(batches, self.sale))
        self.ledger.settle(batches)
        return answers

    def begin_return(
        self, buyer: str, request_id: str = "r1", to: IntentState = IntentState.RELEASED
    ) -> Stored | None:
        """Compare and set one intent to RETURNING."""
        return self.ledger.begin_return(
            self.row, buyer, request_id, to=to, reason="a law", actor="suite"
        )

    def jobs(self, *, lease_s: float = _LEASE_S) -> list[Job]:
        """Lease this sale's jobs of the compensation lane."""
        return self.ledger.claim_jobs({self.sid: self.sale.id}, limit=1000, lease_s=lease_s)

    def give_back(
        self, buyer: str, request_id: str = "r1", to: IntentState = IntentState.RELEASED
    ) -> bool:
        """Return one accepted attempt to the end, its order cancelled; whether it was done."""
        return self.begin_return(buyer, request_id, to) is not None and self.finish()

    def finish(self) -> bool:
        """Do this sale's jobs that return units, their orders cancelled; whether any was done."""
        done = False
        for job in self.jobs():
            if job.returned_as is not None:
                self.cancel(job.reservation)
                done |= self.ledger.finish_return(job)
                self.ledger.forget_job(job, backend_done=True)
        return done

    def cancel(self, item: Reservation) -> None:
        """What ``void`` of an order that was written does."""
        orders = schema.orders
        self.write(
            sa.update(orders).where(orders.c.order_no == item.order_no).values(state="CANCELLED")
        )

    def fence(self, state: GrantState = GrantState.DRAINING) -> None:
        """What a hand-over does first: no grant of the epoch is ACTIVE any more (6.1)."""
        grants = schema.grants
        self.write(sa.update(grants).where(grants.c.sid == self.sid).values(state=state))

    def next_epoch(self) -> None:
        """Let the sale's epoch be over, as after a hand-over."""
        sales = schema.sales
        self.write(sa.update(sales).where(sales.c.sid == self.sid).values(epoch=sales.c.epoch + 1))

    def write(self, statement: Any) -> None:
        """Execute one statement past the ledger's rules, and commit."""
        self.ledger.database.transact(lambda connection: connection.execute(statement))

    # ------------------------------------------------------------------ looks
    def rows(self, table: sa.Table) -> list[dict[str, Any]]:
        """Every row of this sale in a ledger table, by its primary key."""
        mine = (
            table.c.order_no.in_(
                sa.select(schema.intents.c.order_no).where(schema.intents.c.sid == self.sid)
            )
            if "sid" not in table.c
            else table.c.sid == self.sid
        )
        query = sa.select(table).where(mine).order_by(*table.primary_key.columns)
        with self.ledger.database.read() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def everything(self) -> dict[str, list[dict[str, Any]]]:
        """All rows of this sale: what a transaction that failed must have left as it was."""
        tables = (
            schema.intents,
            schema.outbox,
            schema.quotas,
            schema.grants,
            schema.stock,
            schema.fundings,
            schema.compensations,
            schema.releases,
            schema.orders,
            schema.restocks,
            schema.dead_letters,
        )
        return {table.name: self.rows(table) for table in tables}

    def state(self, buyer: str, request_id: str = "r1") -> str | None:
        """The state of one intent, or ``None``."""
        for row in self.rows(schema.intents):
            if (row["buyer"], row["request_id"]) == (buyer, request_id):
                return str(row["state"])
        return None

    def free(self, place: str = "p0", sku: str | None = None) -> int:
        """Free units of one grant."""
        found = self.ledger.free_units(self.row)
        return found[place, sku or next(iter(self.sale.skus))]

    def unallocated(self, sku: str | None = None) -> int:
        """Units of a sku that no grant has."""
        return self.ledger.unallocated(self.row, sku or next(iter(self.sale.skus)))

    def report(self) -> Report:
        """I1-I7 of this sale."""
        return self.ledger.report(self.row)
