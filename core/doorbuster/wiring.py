"""From names to pipelines: load plugins, build instances, compile every mode of every sale.

Selection is by name from config, never by who answers first. Everything wrong with a mode is
said when config loads, with where it stands and what to do, never at 20:00.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from typing import Any

from doorbuster import loading
from doorbuster.clock import Clock
from doorbuster.context import AlarmCall, Context, Metrics
from doorbuster.errors import ConfigError, SettingError, SettingProblem
from doorbuster.funding import refill_holder, refill_router
from doorbuster.hookspecs import Delivery
from doorbuster.ledger import Ledger
from doorbuster.logs import get_logger
from doorbuster.model import Kind, Sale
from doorbuster.outcomes import Outcome
from doorbuster.pipeline import Gate, Pipeline, Unsettled
from doorbuster.settings import (
    PluginSettings,
    Settings,
    StageSettings,
    modes_of,
    plugin_of,
)
from doorbuster.settings.overlay import key_of
from doorbuster.tiers import (
    Bound,
    Problems,
    Tier,
    UnfitError,
    delivery_problem,
    pair_problem,
    places_problem,
    promise_of,
    promise_problem,
    tier_problem,
)

__all__ = ["Wiring"]


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
        plugins: loading.Given | None = None,
    ) -> None:
        """Bind; :meth:`compile_sale` builds. ``plugins`` are the program's own classes.

        Raises:
            ConfigError: no sale is configured, and a ``[plugins.NAME]`` table is wrong.
        """
        self.settings = settings
        self._ledger = ledger
        self._clock = clock
        self._alarm = alarm
        self._metrics = metrics
        self._stores = stores
        self._fulfil = fulfil
        self._unsettled = unsettled
        self._owner = owner
        self._manager = loading.new_manager()
        self._installed = loading.scan(plugins)
        self._lock = threading.Lock()
        self._built: dict[tuple[str, str | None], Bound] = {}
        self._failed: dict[tuple[str, str | None], SettingError | UnfitError] = {}
        self._users: dict[tuple[str, str | None], set[str]] = {}
        problems = Problems()
        if not settings.sales:  # else compile_sale says it, together with what is wrong there
            for name in settings.plugins:
                loading.check_table(settings, name, None, self._installed, problems)
        if problems:
            raise problems.refusal()

    # ---------------------------------------------------------------- instances
    def bound(self, sale_id: str, name: str) -> Bound:
        """Build (once) the instance that ``name`` means for this sale.

        Raises:
            ConfigError: unknown, not installed, bad options, wrong hooks; every problem of it.
        """
        declared, owner = plugin_of(self.settings, sale_id, name)
        key = (name, owner)
        with self._lock:  # roles ask for the plugin of an old grant while others do
            if key not in self._built:
                self._built[key] = self._build(name, owner, declared)
            self._users.setdefault(key, set()).add(sale_id)
            return self._built[key]

    def _build(self, name: str, owner: str | None, declared: PluginSettings) -> Bound:
        cls, options, on_fault = loading.configured(self.settings, name, owner, self._installed)
        context = Context(
            name=name,
            environment=self.settings.environment,
            clock=self._clock,
            alarm=self._alarm,
            metrics=self._metrics,
            log=get_logger(f"doorbuster.plugin.{name}"),
            ledger=self._ledger.view(),
            state=self._stores.setdefault(f"{owner or '*'}/{name}", {}),
            servers=self.settings.servers,
            sale=owner,
        )
        try:
            instance = cls(options, context)
        except SettingError:
            raise
        except (Exception, SystemExit) as error:
            said = f"plugin {declared.use!r} could not be built: {type(error).__name__}: {error}"
            text = str(error) if isinstance(error, ConfigError) else said
            raise UnfitError(
                [SettingProblem(loading.table_of(self.settings, name, owner), text)]
            ) from error
        return Bound(
            name=name,
            use=declared.use,
            sale=owner,
            instance=instance,
            hooks=loading.register(self._manager, instance, f"{owner or '*'}/{name}", declared.use),
            on_fault=on_fault,
        )

    # ---------------------------------------------------------------- modes
    def compile_sale(self, sale: Sale) -> dict[str, Pipeline]:
        """Compile every mode of one configured sale, by mode, and check all plugin tables.

        Raises:
            WiringError: every problem of every mode and table, a line each with its dotted key.
            SettingError: the same, when all are about plugins' options.
        """
        modes: dict[str, Pipeline] = {}
        problems = Problems()
        for mode, stages in modes_of(self.settings, sale.id).items():
            try:
                modes[mode] = self.compile_mode(sale, mode, stages)
            except (SettingError, UnfitError) as error:
                problems.take(error)
        for name in self.settings.plugins:
            loading.check_table(self.settings, name, None, self._installed, problems)
        for name in self.settings.sales[sale.id].plugins:
            loading.check_table(self.settings, name, sale.id, self._installed, problems)
        if problems:
            raise problems.refusal(sale.id)
        return modes

    def compile_mode(self, sale: Sale, mode: str, stages: StageSettings) -> Pipeline:
        """Compile one mode.

        Raises:
            WiringError: every problem of it, a line each: where it stands and what to do.
            SettingError: the same, when all are about plugins' options.
        """
        problems = Problems()
        key = partial(key_of, self.settings, sale.id, mode)
        gates = self._gates(sale.id, stages, key, problems)
        deduct = self._deduct(sale, stages, key, problems)
        enqueue = self._enqueue(sale.id, stages, key, problems)
        persist = self._offering(sale.id, stages.persist, "persist", key("persist"), problems)
        promise = promise_of(deduct, stages.journal, in_memory=self._ledger.database.in_memory)
        found = self.settings.sales.get(sale.id)
        if promise is not None and found is not None and found.promise is not None:
            wrong = promise_problem(mode, stages, promise, found.promise)
            problems.add(f"sales.{sale.id}.promise", wrong)
        delivery = None if enqueue is None else enqueue.delivery
        if deduct is None or enqueue is None or persist is None:
            raise problems.refusal(sale.id)
        if problems or promise is None or delivery is None:
            raise problems.refusal(sale.id)
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

    def _find(self, sale_id: str, name: str, key: str, problems: Problems) -> Bound | None:
        """The instance of a name, or its problems; what failed is not tried for every mode."""
        instance = (name, plugin_of(self.settings, sale_id, name)[1])
        if instance not in self._failed:
            try:
                return self.bound(sale_id, name)
            except (SettingError, UnfitError) as error:
                self._failed[instance] = error
        problems.take(self._failed[instance], key)
        return None

    def _offering(
        self, sale_id: str, name: str, stage: str, key: str, problems: Problems
    ) -> Bound | None:
        bound = self._find(sale_id, name, key, problems)
        if bound is not None and stage not in bound.hooks:
            offered = ", ".join(sorted(bound.hooks)) or "nothing"
            problems.add(
                key,
                f"{name!r} is listed under {stage} but offers {offered}; "
                f"list it where it belongs, or name a plugin that offers {stage}",
            )
            return None
        return bound

    def _gates(
        self, sale_id: str, stages: StageSettings, key: Callable[..., str], problems: Problems
    ) -> list[tuple[str, Bound]]:
        gates = []
        for stage, names in (("filter", stages.filter), ("limit", stages.limit)):
            for name, times in Counter(names).items():
                where = key(stage, gate=name)
                if times > 1:
                    text = f"{name!r} is listed twice; every attempt would pass it twice"
                    problems.add(where, text)
                bound = self._offering(sale_id, name, stage, where, problems)
                if bound is not None:
                    gates.append((stage, bound))
        return gates

    def _deduct(
        self, sale: Sale, stages: StageSettings, key: Callable[..., str], problems: Problems
    ) -> Bound | None:
        deduct = self._offering(sale.id, stages.deduct, "deduct", key("deduct"), problems)
        if deduct is None:
            return None
        wrong = tier_problem(deduct)
        problems.add(key("deduct"), wrong)
        problems.add(key("deduct"), places_problem(deduct, sale))
        if wrong is None:
            problems.add(key("deduct", "journal"), pair_problem(deduct, stages.journal))
        return deduct

    def _enqueue(
        self, sale_id: str, stages: StageSettings, key: Callable[..., str], problems: Problems
    ) -> Bound | None:
        enqueue = self._find(sale_id, stages.enqueue, key("enqueue"), problems)
        if enqueue is None:
            return None
        problems.add(key("enqueue"), delivery_problem(enqueue))
        if enqueue.delivery is Delivery.INLINE and stages.journal == "stream":
            problems.add(
                key("enqueue", "journal"),
                f"{enqueue.name!r} persists in the request, which journal 'stream' has no "
                "commit for; use journal = 'ledger' or another enqueue",
            )
        return enqueue

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
        log = get_logger("doorbuster.wiring")
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
