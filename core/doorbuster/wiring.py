"""From names to pipelines: load plugins, build instances, compile every mode of every sale.

Selection is by name from config, never by who answers first. Everything wrong with a mode is
said when config loads, with where it stands and what to do, never at 20:00.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from typing import Any, Final

import pluggy
import structlog

from doorbuster import hookspecs, loading
from doorbuster.clock import Clock
from doorbuster.context import AlarmCall, Context, Metrics, PluginOptions
from doorbuster.errors import ConfigError, WiringError
from doorbuster.funding import refill_holder, refill_router
from doorbuster.ledger import Ledger
from doorbuster.model import Kind, Sale
from doorbuster.outcomes import Outcome
from doorbuster.pipeline import Gate, Pipeline, Unsettled
from doorbuster.settings import (
    PluginSettings,
    Settings,
    StageSettings,
    convert_options,
    modes_of,
    plugin_of,
)
from doorbuster.tiers import (
    PROMISES,
    Bound,
    Tier,
    check_delivery,
    check_fault,
    check_places,
    check_tier,
)

__all__ = ["Wiring"]

_SPECS: Final = (
    hookspecs.Stages,
    hookspecs.Holder,
    hookspecs.Journal,
    hookspecs.Broker,
    hookspecs.PersistExtras,
    hookspecs.Observers,
)


class Wiring:
    """Every instance and every compiled mode of one settings snapshot.

    ``stores`` keeps plugins' state by instance name and outlives this object, so that limiter,
    breaker and cache state survives a reload.
    """

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        *,
        clock: Clock,
        alarm: AlarmCall,
        metrics: Metrics,
        stores: MutableMapping[str, MutableMapping[str, Any]],
        fulfil: Callable[[Pipeline, int], None],
        unsettled: Callable[[Sequence[Unsettled]], Sequence[Outcome]],
        owner: str,
    ) -> None:
        """Only bind; :meth:`compile_sale` builds."""
        self.settings = settings
        self._ledger = ledger
        self._clock = clock
        self._alarm = alarm
        self._metrics = metrics
        self._stores = stores
        self._fulfil = fulfil
        self._unsettled = unsettled
        self._owner = owner
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        for spec in _SPECS:
            self._manager.add_hookspecs(spec)
        self._installed = loading.scan()
        self._lock = threading.Lock()
        self._built: dict[tuple[str, str | None], Bound] = {}
        self._users: dict[tuple[str, str | None], set[str]] = {}

    # ---------------------------------------------------------------- instances
    def bound(self, sale_id: str, name: str, *, where: str = "") -> Bound:
        """Build (once) the instance that ``name`` means for this sale.

        Raises:
            ConfigError: unknown, not installed, bad options, wrong hooks.
        """
        declared, owner = plugin_of(self.settings, sale_id, name)
        key = (name, owner)
        with self._lock:  # roles ask for the plugin of an old grant while others do
            if key not in self._built:
                self._built[key] = self._build(name, owner, declared, where)
            self._users.setdefault(key, set()).add(sale_id)
            return self._built[key]

    def _build(self, name: str, owner: str | None, declared: PluginSettings, where: str) -> Bound:
        cls = loading.load_class(declared.use, where=where, installed=self._installed)
        table = f"sales.{owner}.plugins.{name}" if owner else f"plugins.{name}"
        raw = dict(declared.options)
        options_type = getattr(cls, "Options", PluginOptions)
        own_fault = "on_fault" in getattr(options_type, "__struct_fields__", ())
        chosen = None if own_fault else raw.pop("on_fault", None)
        options = convert_options(options_type, raw, tuple(table.split(".")))
        context = Context(
            name=name,
            environment=self.settings.environment,
            clock=self._clock,
            alarm=self._alarm,
            metrics=self._metrics,
            log=structlog.get_logger(f"doorbuster.plugin.{name}").bind(sale=owner),
            ledger=self._ledger.view(),
            state=self._stores.setdefault(f"{owner or '*'}/{name}", {}),
            servers=self.settings.servers,
            sale=owner,
        )
        try:
            instance = cls(options, context)
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"{table}: plugin {declared.use!r} could not be built: "
                f"{type(error).__name__}: {error}",
                plugin=name,
            ) from error
        said = (chosen, getattr(options, "on_fault", None), getattr(cls, "on_fault", None))
        on_fault = next((word for word in said if word is not None), "closed")
        return Bound(
            name=name,
            use=declared.use,
            sale=owner,
            instance=instance,
            hooks=self._register(instance, name, owner, declared.use),
            on_fault=check_fault(on_fault, cls, table),
        )

    def _register(
        self, instance: Any, name: str, owner: str | None, use: str
    ) -> dict[str, Callable[..., Any]]:
        full = f"{owner or '*'}/{name}"
        try:
            self._manager.register(instance, name=full)
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            if self._manager.has_plugin(full):
                self._manager.unregister(name=full)
            raise WiringError(
                f"plugin {use!r} ({full}) does not fit the hooks: {error}", plugin=name
            ) from error
        hooks: dict[str, Callable[..., Any]] = {}
        for caller in self._manager.get_hookcallers(instance) or ():
            for impl in caller.get_hookimpls():
                if impl.plugin is instance:
                    hooks[caller.name] = loading.bind_hook(impl, caller, use)
        return hooks

    # ---------------------------------------------------------------- modes
    def compile_sale(self, sale: Sale) -> dict[str, Pipeline]:
        """Compile every mode of one configured sale, by mode.

        Raises:
            WiringError: every problem of every mode, a line each.
        """
        modes: dict[str, Pipeline] = {}
        problems: list[str] = []
        for mode, stages in modes_of(self.settings, sale.id).items():
            try:
                modes[mode] = self.compile_mode(sale, mode, stages)
            except ConfigError as error:
                problems.append(str(error))
        if problems:
            raise WiringError("\n".join(dict.fromkeys(problems)), sale=sale.id)
        return modes

    def compile_mode(self, sale: Sale, mode: str, stages: StageSettings) -> Pipeline:
        """Compile one mode.

        Raises:
            ConfigError: its first problem, with where it stands and what to do.
        """
        where = f"sale {sale.id!r}, mode {mode!r}"
        gates = [
            (stage, self._offering(sale.id, name, stage, where))
            for stage, names in (("filter", stages.filter), ("limit", stages.limit))
            for name in names
        ]
        deduct = self._offering(sale.id, stages.deduct, "deduct", where)
        check_tier(deduct, f"{where}, stage deduct")
        check_places(deduct, sale, f"{where}, stage deduct")
        enqueue = self.bound(sale.id, stages.enqueue, where=f"{where}, stage enqueue")
        delivery = check_delivery(enqueue, stages.journal, f"{where}, stage enqueue")
        persist = self._offering(sale.id, stages.persist, "persist", where)
        promise = self._promise(sale.id, deduct, stages.journal, where)
        holds = deduct.tier is not Tier.ROUTER
        used = [*(bound for _, bound in gates), deduct, enqueue, persist]
        return Pipeline(
            sale=sale,
            mode=mode,
            promise=promise,
            kind=Kind.J if stages.journal == "stream" else Kind.H,
            gates=tuple(
                Gate(bound.name, stage, bound.hooks[stage], bound.on_fault == "open")
                for stage, bound in gates
            ),
            deduct_name=stages.deduct,
            deduct=deduct.hooks["deduct"],
            holds=holds,
            delivery=delivery,
            persist_name=stages.persist,
            persist=persist.hooks["persist"],
            refill=partial(refill_holder, self._ledger, deduct.hooks)
            if holds
            else partial(refill_router, self._ledger),
            fulfil=self._fulfil,
            unsettled=self._unsettled,
            observers=tuple(
                bound.hooks["batch_settled"]
                for bound in {id(b): b for b in used}.values()
                if "batch_settled" in bound.hooks
            ),
            ledger=self._ledger,
            alarm=self._alarm,
            lease_s=self.settings.workers.lease_s,
            owner=self._owner,
        )

    def _offering(self, sale_id: str, name: str, stage: str, where: str) -> Bound:
        bound = self.bound(sale_id, name, where=f"{where}, stage {stage}")
        if stage not in bound.hooks:
            offered = ", ".join(sorted(bound.hooks)) or "nothing"
            raise WiringError(
                f"{where}: {name!r} is listed under {stage} but offers {offered}; "
                f"list it where it belongs, or name a plugin that offers {stage}",
                sale=sale_id,
                stage=stage,
                plugin=name,
            )
        return bound

    def _promise(self, sale_id: str, deduct: Bound, journal: str, where: str) -> str:
        if journal == "stream":
            if deduct.tier is not Tier.JOURNAL:
                raise WiringError(
                    f"{where}: journal 'stream' needs a deduct plugin of tier journal, "
                    f"{deduct.name!r} is a {deduct.tier}; use journal = 'ledger'",
                    sale=sale_id,
                    stage="deduct",
                )
            pair = str(getattr(deduct.instance, "promise", "none"))
        else:
            pair = "none" if self._ledger.database.in_memory else "database"
        least = self.settings.sales[sale_id].promise if sale_id in self.settings.sales else None
        if least is not None and PROMISES.index(pair) < PROMISES.index(least):
            raise WiringError(
                f"{where}: {deduct.name!r} with journal {journal!r} promises {pair!r}, "
                f"less than the sale's promise = {least!r}; lower it or change the pair",
                sale=sale_id,
            )
        return pair

    def observers(self, hook: str, sale_id: str | None) -> tuple[Callable[..., Any], ...]:
        """Observers of ``hook`` among the instances that serve this sale; ``None``: among all."""
        with self._lock:
            return tuple(
                bound.hooks[hook]
                for key, bound in self._built.items()
                if hook in bound.hooks and (sale_id is None or sale_id in self._users[key])
            )

    def close(self) -> None:
        """Close every instance that has a ``close``; one that fails is logged."""
        log = structlog.get_logger("doorbuster.wiring").bind()
        with self._lock:
            built = list(self._built.values())
            self._built.clear()
        for bound in built:
            close = getattr(bound.instance, "close", None)
            if callable(close):
                try:
                    close()
                except BaseException as error:  # noqa: BLE001 - the others must close too
                    log.error("plugin close failed", plugin=bound.name, error=repr(error))
