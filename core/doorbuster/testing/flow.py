"""A whole sale in ten lines of test: the same engine, on a ledger in memory, with a manual clock.

    def test_members_first():
        with flow(filter=["members"], plugins={"members": MembersOnly}, skus={"gold": 3},
                  options={"members": {"members": ["ann"]}}) as sale:
            assert sale.buy("ann", "gold").code is Code.ACCEPTED
            assert sale.buy("bob", "gold").code is Code.BLOCKED
            sale.drain()
            assert sale.orders == 1 and sale.balanced

Nothing runs by itself: :meth:`Flow.drain` runs the workers in the test's own thread, and
:meth:`Flow.advance` lets time pass. So every step has its place in the test and no test sleeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import sqlalchemy as sa

from doorbuster.alarms import Alarm
from doorbuster.clock import Clock
from doorbuster.engine import Engine
from doorbuster.ledger import Ledger, Report, schema
from doorbuster.loading import Given
from doorbuster.model import Attempt, IntentState, Line
from doorbuster.outcomes import Outcome
from doorbuster.settings.convert import convert
from doorbuster.testing.clock import ManualClock

__all__ = ["SALE", "Flow", "flow", "given"]

SALE: Final = "drop"
"""The id of the sale in a flow."""

_STAGES: Final = ("filter", "limit", "deduct", "journal", "enqueue", "persist")


def given(instance: Any) -> type[Any]:
    """A class that "builds" an instance which is there already, to name it in a flow."""
    kind = type(instance)
    attributes = {
        name: getattr(instance, name)
        for name in ("on_fault", "on_fault_values")
        if hasattr(instance, name)
    }
    return type(
        kind.__name__, (), {"__new__": lambda cls, options, context: instance, **attributes}
    )


class Flow:
    """One open sale of an engine under test, and the few moves its tests make."""

    def __init__(self, engine: Engine, clock: Any) -> None:
        """Watch ``engine``; ``clock`` is its clock, a manual one unless another was given."""
        self.engine = engine
        self.clock = clock
        self.alarms: list[Alarm] = []
        """Every alarm since the flow began, oldest first."""
        engine.alarms.add(self.alarms.append)
        self._numbers = count(1)

    # ------------------------------------------------------------------ moves
    def start(self) -> None:
        """Create, warm up and open the sale; idempotent."""
        self.engine.sales.start(SALE, actor="test")

    def buy(
        self,
        buyer: str,
        sku: str | None = None,
        quantity: int = 1,
        *,
        request_id: str | None = None,
        lines: Sequence[Line] | None = None,
        **fields: Any,
    ) -> Outcome:
        """Ask once; the first sku and a new ``request_id`` unless they are named.

        ``fields`` are further ones of :class:`~doorbuster.model.Attempt`: ticket, facts.
        """
        wanted = lines or [Line(sku or self._first_sku(), quantity)]
        asked = Attempt(wanted, buyer, request_id or f"auto-{next(self._numbers)}", **fields)
        return self.batch(asked)[0]

    def batch(self, *attempts: Attempt) -> list[Outcome]:
        """Send attempts that travel in one batch; answers align."""
        return self.engine.attempt_batch(SALE, attempts)

    def result(self, buyer: str, request_id: str, receipt: str | None = None) -> Outcome | None:
        """What became of an attempt, by the ledger's truth."""
        return self.engine.result_batch(SALE, [(buyer, request_id)], [receipt])[0]

    def give_back(
        self, buyer: str, request_id: str, *, to: IntentState = IntentState.CANCELLED
    ) -> bool:
        """Begin the return of an accepted attempt; :meth:`drain` finishes it."""
        return self.engine.release(SALE, buyer, request_id, reason="test", actor="test", to=to)

    def drain(self) -> int:
        """Run every worker role until nothing is left; answers what is left."""
        return self.engine.runner.drain()

    def advance(self, seconds: float) -> None:
        """Let time pass on the flow's manual clock."""
        self.clock.advance(seconds)

    # ------------------------------------------------------------------ looks
    @property
    def ledger(self) -> Ledger:
        """The ledger in memory."""
        return self.engine.ledger

    @property
    def orders(self) -> int:
        """How many orders count: written, and not cancelled or void."""
        return sum(row["state"] == "CREATED" for row in self.rows("orders"))

    @property
    def report(self) -> Report:
        """The invariants I1-I7 against the ledger's rows, and what the rows say."""
        return self.ledger.report(self.ledger.require_sale(SALE))

    @property
    def balanced(self) -> bool:
        """Whether every invariant holds; :attr:`report` says which does not."""
        return self.report.balanced

    def left(self) -> dict[str, int]:
        """Units not consumed, by sku."""
        sale = self.engine.world.runtimes[SALE].view.sale
        return {
            sku: found.unallocated + found.free for sku, found in self.ledger.left(sale).items()
        }

    def states(self) -> dict[tuple[str, str], str]:
        """Intent states by (buyer, request_id)."""
        return {(row["buyer"], row["request_id"]): row["state"] for row in self.rows("intents")}

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a ledger table, by its primary key."""
        found = schema.METADATA.tables[table]
        with self.ledger.database.read() as connection:
            query = sa.select(found).order_by(*found.primary_key.columns)
            return [dict(row) for row in connection.execute(query).mappings()]

    def _first_sku(self) -> str:
        return next(iter(self.engine.settings.sales[SALE].skus))


@contextmanager
def flow(
    *,
    plugins: Given | None = None,
    skus: Mapping[str, Any] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    per_buyer: Any = None,
    tables: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    ledger: Ledger | None = None,
    start: bool = True,
    **stages: Any,
) -> Iterator[Flow]:
    """Open a sale named ``drop`` and close it after the block.

    Args:
        plugins: classes by the word that stages use, beside the installed ones; an instance
            that is there already goes through :func:`given`.
        skus: units by sku, as in a sale's file; ten of ``gold`` when absent.
        options: plugins' tables by name, ``[plugins.NAME]``.
        per_buyer: as in a sale's file.
        tables: further tables of configuration, laid over the others (``door``, ``modes``).
        clock: a manual one when absent.
        ledger: an open one; in memory when absent. It is closed with the flow.
        start: create, warm up and open the sale at once.
        **stages: keys of ``[pipeline]``: filter, limit, deduct, journal, enqueue, persist.

    Raises:
        TypeError: a stage that there is not.
        ConfigError: everything wrong with the wiring at once.
    """
    unknown = sorted(set(stages) - set(_STAGES))
    if unknown:
        raise TypeError(
            f"flow: no stage is named {', '.join(unknown)}; known: {', '.join(_STAGES)}"
        )
    sale: dict[str, Any] = {"skus": dict(skus or {"gold": 10})}
    if per_buyer is not None:
        sale["per_buyer"] = per_buyer
    config: dict[str, Any] = {
        "ledger": {"url": "sqlite://"},
        "pipeline": stages,
        "plugins": dict(options or {}),
        "sales": {SALE: sale},
    }
    for table, values in (tables or {}).items():
        config[table] = {**config.get(table, {}), **values}
    clock = clock or ManualClock()
    # without files and variables: a test must not depend on where it runs
    settings = convert(config)
    with _opened(settings, clock, plugins, ledger) as engine:
        found = Flow(engine, clock)
        if start:
            found.start()
        yield found


@contextmanager
def _opened(
    settings: Any, clock: Clock, plugins: Given | None, ledger: Ledger | None
) -> Iterator[Engine]:
    engine = Engine(settings, clock=clock, plugins=plugins, ledger=ledger)
    try:
        yield engine
    finally:
        engine.close()
