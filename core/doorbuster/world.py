"""What this process knows of its sales: settings, wiring and one runtime per sale.

Doors, workers and the control plane all look here. :meth:`World.refresh` follows the ledger's
control rows. The work of a sale that is only in the ledger waits; the role that meets it says so.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from doorbuster.admission import Admission
from doorbuster.clock import Clock
from doorbuster.context import AlarmCall
from doorbuster.errors import ConfigError, WiringError
from doorbuster.ledger import Ledger, SaleRow
from doorbuster.logs import get_logger
from doorbuster.model import Sale
from doorbuster.pipeline import Pipeline
from doorbuster.runtime import SaleRuntime, View, sale_of
from doorbuster.settings import CLOSED, DEFAULT_MODE, SaleSettings, Settings, modes_of
from doorbuster.tiers import Bound
from doorbuster.windows import Windows
from doorbuster.wiring import Wiring

__all__ = ["World", "configured_sale"]


def configured_sale(found: SaleSettings, environment: str) -> Sale:
    """The sale as config describes it, before the ledger has one."""
    return Sale(
        id=found.id,
        skus=found.skus,
        opens_at_ms=found.opens_at_ms,
        closes_at_ms=found.closes_at_ms,
        per_buyer=found.per_buyer,
        mode=found.mode,
        environment=environment,
        options=found.options,
    )


class World:
    """Sales by id, each with its runtime. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        wiring: Wiring,
        ledger: Ledger,
        admission: Admission,
        *,
        clock: Clock,
        alarm: AlarmCall,
        windows: Windows,
    ) -> None:
        """Compile every mode of every configured sale.

        Raises:
            WiringError: every problem of every sale, a line each.
        """
        self.settings = settings
        self.wiring = wiring
        self.ledger = ledger
        self.alarm = alarm
        self.windows = windows
        self._lock = threading.Lock()
        self._log = get_logger("doorbuster.world")
        self.runtimes: dict[str, SaleRuntime] = {}
        rows = {row.sale: row for row in ledger.sales()}
        problems: list[str] = []
        for sale_id, found in settings.sales.items():
            row = rows.get(sale_id)
            base = configured_sale(found, settings.environment)
            sale = sale_of(base, row, None if row is None else ledger.skus(row))
            try:
                pipelines = self._compile(sale, row)
            except ConfigError as error:
                problems.extend(str(error).splitlines())
                continue
            self.runtimes[sale_id] = SaleRuntime(
                View(row, sale, pipelines),
                admission,
                clock=clock,
                ledger=ledger,
                windows=windows,
                known_max=settings.door.known_max,
            )
        if problems:
            raise WiringError("\n".join(dict.fromkeys(problems)))

    def _compile(self, sale: Sale, row: SaleRow | None) -> Mapping[str, Pipeline]:
        """Compile every mode; a started sale keeps the pair its grants are lent to.

        Where config now gives the mode in force another deduct or journal, or has that mode no
        more, the sale goes on with the pair it has, and an alarm says so (design: modes).
        """
        pipelines = self.wiring.compile_sale(sale)
        if row is None or not row.epoch:
            return pipelines
        modes = modes_of(self.settings, sale.id)
        stages = modes.get(row.effective, modes[DEFAULT_MODE])
        lent = msgspec.structs.replace(stages, deduct=row.deduct, journal=row.journal)
        if row.effective in modes and stages == lent:
            return pipelines
        if row.effective != CLOSED:
            self.alarm(
                "mode-refused",
                "warning",
                sale.id,
                error=f"config gives mode {row.effective!r} another deduct or journal, or no "
                f"longer has it; the sale keeps {row.deduct!r} with journal {row.journal!r}",
            )
        try:
            return {**pipelines, row.effective: self.wiring.compile_mode(sale, row.effective, lent)}
        except ConfigError as error:
            self.alarm("plugin-missing", "critical", sale.id, plugin=row.deduct, error=str(error))
            return pipelines

    def refresh(self, only: str | None = None) -> None:
        """Take control rows that changed; cheap when none did."""
        with self._lock:
            for row in self.ledger.sales():
                runtime = self.runtimes.get(row.sale)
                if runtime is None or only not in (None, row.sale):
                    continue
                old = runtime.view.row
                if old is None or (old.run, old.version) != (row.run, row.version):
                    runtime.refresh(row, self.ledger.skus(row))
                    self._mode_changed(runtime, old, row)

    def _mode_changed(self, runtime: SaleRuntime, old: SaleRow | None, row: SaleRow) -> None:
        if old is not None and old.effective != row.effective:
            self.tell(
                "mode_changed", row.sale, runtime.view.sale, old.effective, row.effective, "ledger"
            )

    def by_sid(self) -> dict[int, SaleRuntime]:
        """Runtimes of the sales that are in the ledger, by the ledger's number."""
        return {
            runtime.view.row.sid: runtime
            for runtime in self.runtimes.values()
            if runtime.view.row is not None
        }

    def pipeline(self, runtime: SaleRuntime) -> Pipeline:
        """The pipeline in force; for a mode that runs no stage, the base one serves workers."""
        view = runtime.view
        effective = view.row.effective if view.row is not None else view.sale.mode
        return view.pipelines.get(effective) or view.pipelines[DEFAULT_MODE]

    def deductor(self, sale_id: str, backend: str) -> Bound | None:
        """The plugin that served a grant; an alarm and ``None`` when it cannot be had."""
        try:
            return self.wiring.bound(sale_id, backend)
        except ConfigError as error:
            self.alarm("plugin-missing", "critical", sale_id, plugin=backend, error=str(error))
            return None

    def tell(self, hook: str, sale_id: str | None, *values: Any) -> None:
        """Call every observer of ``hook``; one that fails is logged and changes nothing.

        ``sale_id`` of ``None`` concerns every sale's observers.
        """
        for observer in self.wiring.observers(hook, sale_id):
            try:
                observer(*values)
            except BaseException as error:  # noqa: BLE001 - observers change nothing
                self._log.error("observer failed", hook=hook, sale=sale_id, error=repr(error))

    def promises(self) -> Mapping[str, str]:
        """What ACCEPTED survives, by sale, with the mode in force."""
        return {
            sale_id: self.pipeline(runtime).promise for sale_id, runtime in self.runtimes.items()
        }
