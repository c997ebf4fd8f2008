"""The control plane of one sale: create, warm up, open, pause, resume, end, restock.

Every command is idempotent: running it again goes on where it stopped, and none overwrites live
stock (S4-18, S4-34, Y5). What a command does is one compare-and-set of the control row, or steps
keyed by (sale, epoch), so a crash between them costs nothing.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from doorbuster.context import AlarmCall
from doorbuster.errors import ConfigError, UnknownSaleError, WiringError
from doorbuster.funding import advance
from doorbuster.identity import is_id
from doorbuster.ledger import Ledger, SaleRow
from doorbuster.model import Control, Kind, PerBuyer, Sale, SaleState
from doorbuster.settings import DEFAULT_MODE, StageSettings, modes_of
from doorbuster.tiers import Bound, Tier
from doorbuster.world import World, configured_sale

__all__ = ["Sales", "push_control"]


class Sales:
    """Commands on the sales of one world. ``actor`` is who asked, for the audit."""

    def __init__(self, world: World) -> None:
        """Act on ``world``'s ledger."""
        self._world = world
        self._ledger: Ledger = world.ledger

    # ------------------------------------------------------------------ life
    def start(self, sale_id: str, *, actor: str) -> SaleRow:
        """Create, warm up and open; idempotent.

        Raises:
            UnknownSaleError: config has no such sale.
            ConfigError: the sale has ended.
        """
        self.create(sale_id, actor=actor)
        self.warm_up(sale_id, actor=actor)
        return self.open(sale_id, actor=actor)

    def create(self, sale_id: str, *, actor: str, again: bool = False) -> SaleRow:
        """Write the configured sale to the ledger, all its units unallocated.

        ``again`` makes the next run of a sale that has ended.

        Raises:
            UnknownSaleError: config has no such sale.
            ConfigError: ``again`` for a sale that has not ended; no ``again`` for one that has.
        """
        settings = self._world.settings
        if sale_id not in settings.sales:
            raise UnknownSaleError(sale_id, settings.sales)
        sale = configured_sale(settings.sales[sale_id], settings.environment)
        row = self._ledger.sale(sale_id)
        run = 1 if row is None else row.run
        if row is not None and not again:
            _require_alive(row)
        if again and row is not None:
            if row.state is not SaleState.ENDED:
                raise ConfigError(
                    f"sale {sale_id!r} is {row.state}; end it before it is created again",
                    sale=sale_id,
                )
            left = self._ledger.pending([row.sid]) + self._ledger.jobs([row.sid])
            if left:  # workers serve the current run: what is left of this one would be stranded
                raise ConfigError(
                    f"run {run} of sale {sale_id!r} has {left} pieces of work left: "
                    "run 'worker --drain' before it is created again",
                    sale=sale_id,
                )
            run += 1
        stages = self._stages(sale_id, sale.mode)
        row = self._ledger.create_sale(
            sale,
            run=run,
            kind=_kind(stages),
            deduct=stages.deduct,
            journal=stages.journal,
            actor=actor,
        )
        self._world.refresh(sale_id)
        return row

    def _stages(self, sale_id: str, mode: str) -> StageSettings:
        modes = modes_of(self._world.settings, sale_id)
        return modes.get(mode, modes[DEFAULT_MODE])  # mode closed runs no stage of its own

    def warm_up(self, sale_id: str, *, actor: str) -> SaleRow:
        """Make the grants of the first epoch and bring units to the backend. Idempotent.

        The grants go to the deduct plugin that the mode in force has now: until here a change
        of mode or config costs nothing.
        """
        row = self._ledger.require_sale(sale_id)
        _require_alive(row)
        if row.state is not SaleState.CREATED:
            return row
        epoch = self._ledger.first_epoch(row)
        if not self._ledger.places_of(row.sid, epoch):  # else a try that broke off goes on
            row = self._follow_stages(row)
        bound, sale = self._deductor(row)
        router = bound.tier is Tier.ROUTER
        if not router:
            _done(bound.hooks["prepare"](sale, epoch), "prepare", sale_id)
        self._ledger.provision(
            row, epoch, places=bound.places(sale), backend=row.deduct, everything=router
        )
        advance(self._ledger, bound.hooks, msgspec.structs.replace(row, epoch=epoch))
        self._ledger.set_state(
            row,
            allowed=(SaleState.CREATED,),
            to=SaleState.WARMED,
            actor=actor,
            epoch=epoch,
        )
        return self._after(sale_id)

    def _follow_stages(self, row: SaleRow) -> SaleRow:
        stages = self._stages(row.sale, row.effective)
        if (stages.deduct, stages.journal) == (row.deduct, row.journal):
            return row
        return self._ledger.change_control(
            row,
            actor="config",
            action="sale.stages",
            deduct=stages.deduct,
            journal=stages.journal,
            kind=_kind(stages),
        )

    def grant_new_places(self) -> None:
        """Give places that a router names since its sale was warmed up a grant, empty at first.

        A router holds nothing, so another number of segments needs no hand-over: the next dry
        buyer gathers from where the units are (protocol.md 5.3).
        """
        for runtime in self._world.runtimes.values():
            row = runtime.view.row
            if row is None or not row.epoch or row.state is SaleState.ENDED:
                continue
            bound = self._world.deductor(row.sale, row.deduct)
            if bound is None or bound.tier is not Tier.ROUTER:
                continue
            places = bound.places(runtime.view.sale)
            if not self._ledger.places_of(row.sid, row.epoch).keys() >= set(places):
                self._ledger.provision(
                    row, row.epoch, places=places, backend=row.deduct, everything=True
                )

    def open(self, sale_id: str, *, actor: str) -> SaleRow:
        """Let attempts in, as far as the window does. Idempotent.

        Raises:
            ConfigError: the sale was not warmed up, or has ended.
        """
        row = self._ledger.require_sale(sale_id)
        _require_alive(row)
        if row.state is SaleState.CREATED:
            raise ConfigError(
                f"sale {sale_id!r} is created but not warmed up: run 'sale warmup {sale_id}', "
                f"or 'sale start {sale_id}' for all steps",
                sale=sale_id,
            )
        if row.state is not SaleState.WARMED:
            return self._after(sale_id)  # an earlier try may have stopped before its push
        bound, sale = self._deductor(row)
        if "open" in bound.hooks:
            _done(bound.hooks["open"](sale, row.epoch), "open", sale_id)
        self._ledger.set_state(row, allowed=(SaleState.WARMED,), to=SaleState.OPEN, actor=actor)
        return self._after(sale_id)

    def pause(self, sale_id: str, *, actor: str) -> SaleRow:
        """Close the entrance; accepted attempts go on. Idempotent."""
        return self._flip(sale_id, SaleState.OPEN, SaleState.PAUSED, actor)

    def resume(self, sale_id: str, *, actor: str) -> SaleRow:
        """Open the entrance again. Idempotent."""
        return self._flip(sale_id, SaleState.PAUSED, SaleState.OPEN, actor)

    def _flip(self, sale_id: str, old: SaleState, new: SaleState, actor: str) -> SaleRow:
        row = self._ledger.require_sale(sale_id)
        _require_alive(row)
        if row.state is not new and (
            self._ledger.set_state(row, allowed=(old,), to=new, actor=actor) is None
        ):
            raise ConfigError(f"sale {sale_id!r} is {row.state}, not {old}", sale=sale_id)
        return self._after(sale_id)

    def end(self, sale_id: str, *, actor: str) -> SaleRow:
        """End a sale for good; accepted attempts go on to their orders. Idempotent."""
        row = self._ledger.require_sale(sale_id)
        alive = [state for state in SaleState if state is not SaleState.ENDED]
        self._ledger.set_state(row, allowed=alive, to=SaleState.ENDED, actor=actor)
        return self._after(sale_id)

    def restock(
        self, sale_id: str, sku: str, units: int, *, actor: str, restock_id: str | None = None
    ) -> SaleRow:
        """Change a sku's total by ``units``, up or down, once per ``restock_id``.

        Down takes only free units, as they become free (protocol.md 5.5).

        Raises:
            ConfigError: unknown sku, 0 units, or more taken away than the sale has.
        """
        row = self._ledger.require_sale(sale_id)
        skus = self._ledger.skus(row)
        if sku not in skus:
            raise ConfigError(f"sale {sale_id!r} has no sku {sku!r}; it has {', '.join(skus)}")
        if units == 0:
            raise ConfigError("restock by 0 units changes nothing; give +N or -N")
        if restock_id is not None and not is_id(restock_id):
            raise ConfigError(
                f"restock id {restock_id!r}: expected 1-64 of A-Z a-z 0-9 _ -, "
                "the same for each try of one restock"
            )
        self._ledger.restock(
            row,
            sku,
            units,
            restock_id=uuid.uuid4().hex if restock_id is None else restock_id,
            actor=actor,
        )
        runtime = self._world.runtimes.get(sale_id)
        if units < 0:
            # without the sale's config only unallocated units go now; a worker takes the others
            known = bool(row.epoch) and runtime is not None
            router = known and self._deductor(row)[0].tier is Tier.ROUTER
            self._ledger.take_wanted(row, router=router)
        elif runtime is not None:
            self._world.tell("units_returned", sale_id, runtime.view.sale, [sku])
        return self._after(sale_id)

    # ------------------------------------------------------------------ views
    def status(self, sale_id: str) -> dict[str, Any]:
        """State, mode, promise and units of one sale, as plain values."""
        row = self._ledger.require_sale(sale_id)
        report = self._ledger.report(row)
        runtime = self._world.runtimes.get(sale_id)
        return {
            "sale": row.sale,
            "run": row.run,
            "state": str(row.state),
            "epoch": row.epoch,
            "deduct": row.deduct,
            "journal": row.journal,
            "mode": {"requested": row.requested, "fuse": row.fuse, "effective": row.effective},
            "version": row.version,
            "promise": None if runtime is None else self._world.pipeline(runtime).promise,
            "skus": report.equation,
            "counts": dict(report.counts),
            "balanced": report.balanced,
        }

    # ------------------------------------------------------------------ helpers
    def _deductor(self, row: SaleRow) -> tuple[Bound, Sale]:
        runtime = self._world.runtimes.get(row.sale)
        if runtime is None:
            raise UnknownSaleError(row.sale, self._world.runtimes)
        return self._world.wiring.bound(row.sale, row.deduct), runtime.view.sale

    def _after(self, sale_id: str) -> SaleRow:
        """Refresh this process's view, push control to a holder, answer the row."""
        self._world.refresh(sale_id)
        row = self._ledger.require_sale(sale_id)
        if row.epoch and sale_id in self._world.runtimes:
            bound, sale = self._deductor(row)
            push_control(bound, sale, row, self._world.alarm)
        return row


def push_control(bound: Bound, sale: Sale, row: SaleRow, alarm: AlarmCall) -> bool:
    """Push a holder's places the control values in force; True when all of them have them.

    Places that were not reached are an alarm; role ``topup`` pushes until they answer (6.6).
    """
    if "push" not in bound.hooks:
        return True
    control = Control(
        version=row.version,
        per_buyer=PerBuyer(row.limits.sku, row.limits.sale, row.limits.attempt),
        sku_limits=row.limits.skus,
        paused=row.state is not SaleState.OPEN,
    )
    missed = bound.hooks["push"](sale, row.epoch, control)
    if missed:
        alarm("control-not-pushed", "warning", row.sale, places=len(missed))
    return not missed


def _require_alive(row: SaleRow) -> None:
    if row.state is SaleState.ENDED:  # to say yes and change nothing would hide a closed door
        raise ConfigError(
            f"sale {row.sale!r} is ended for good; make its next run with: "
            f"doorbuster sale create {row.sale} --again, then sale start {row.sale}",
            sale=row.sale,
        )


def _kind(stages: StageSettings) -> Kind:
    return Kind.J if stages.journal == "stream" else Kind.H


def _done(answer: Any, hook: str, sale_id: str) -> None:
    if not answer:
        raise WiringError(f"the deduct plugin's {hook} of sale {sale_id!r} is not done yet")
