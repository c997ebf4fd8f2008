"""A stand: an engine with one open sale, plugins made on the spot, and a clock that stands still.

Nothing runs by itself here: a test that wants workers calls ``stand.drain()``, so every step has
its place in the test and no test sleeps.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from doorbuster import loading
from doorbuster.engine import Engine
from doorbuster.ledger.database import Database
from doorbuster.model import Attempt, Line
from doorbuster.outcomes import Outcome
from doorbuster.plugin import hookimpl
from doorbuster.settings.convert import convert
from doorbuster.testing import threads
from doorbuster.testing.clock import ManualClock
from doorbuster.testing.flow import SALE, Flow

_INSTALLED = tuple(importlib.metadata.entry_points(group=loading.GROUP))


class Stand(Flow):
    """A flow whose identities are named, and a look inside its engine."""

    @property
    def runtime(self) -> Any:
        return self.engine.world.runtimes[SALE]

    def start(self) -> Stand:
        super().start()
        return self

    @staticmethod
    def attempt(buyer: str, request_id: str = "r1", /, **need: Any) -> Attempt:
        """``attempt("ann", "r1", gold=2)``; one gold when nothing is named."""
        lines = [Line(sku, n) for sku, n in (need or {"gold": 1}).items()]
        return Attempt(lines, buyer, request_id)

    def buy(self, buyer: str, request_id: str = "r1", /, **need: Any) -> Outcome:
        """One attempt by a plain call."""
        return self.batch(self.attempt(buyer, request_id, **need))[0]

    def crowd(self, n: int, **need: Any) -> list[Outcome]:
        """``n`` buyers, each one attempt, in one batch."""
        return self.batch(*(self.attempt(f"b{i}", **need) for i in range(n)))

    def result(self, buyer: str, request_id: str = "r1", receipt: str | None = None) -> Any:
        return super().result(buyer, request_id, receipt)

    def role(self, name: str) -> Any:
        return next(role for role in self.engine.runner._roles if role.name == name)

    def status(self) -> Any:
        return self.engine.sales.status(SALE)

    def balanced(self) -> bool:
        report = self.report
        assert report.balanced, report.violations
        return True

    def alarm_names(self) -> list[str]:
        return [alarm.name for alarm in self.alarms]


class _Point:
    """What the loader needs of an entry point."""

    def __init__(self, name: str, load: Callable[[], Any]) -> None:
        self.name = name
        self.value = f"made_up:{name}"
        self.load = load


class Plugins(dict[str, Any]):
    """What looks installed, by the word configuration uses: a class, or a function that loads."""

    def points(self, **params: Any) -> list[Any]:
        name = params.get("name")
        made = [
            _Point(word, item if inspect.isfunction(item) else lambda item=item: item)
            for word, item in self.items()
        ]
        return [p for p in (*_INSTALLED, *made) if name in (None, p.name)]

    def gate(
        self, word: str, answer: Callable[[Any], Any], *, stage: str = "filter", **attributes: Any
    ) -> None:
        """Install a gate whose verdicts are ``answer(batch)``."""

        def judge(self: Any, batch: Any) -> Any:
            return answer(batch)

        def build(self: Any, options: Any, context: Any) -> None:
            self.context = context

        judge.__name__ = stage
        self[word] = type("Made", (), {stage: hookimpl(judge), "__init__": build, **attributes})


class _Compiled(dict[Any, Any]):
    """Compiled statements, whichever engine asks.

    SQLAlchemy's key begins with the engine's own dialect, and all dialects of a run are equal.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key[1:], value)


@pytest.fixture(scope="session", autouse=True)
def _compile_once() -> Iterator[None]:
    """Compile each statement once in a run, not once per ledger: a sixth of these tests' time."""
    real, compiled = Database._engine, _Compiled()

    def engine(self: Database, begin: str, size: int) -> sa.Engine:
        made = real(self, begin, size)
        made.update_execution_options(compiled_cache=compiled)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "_engine", engine)
        yield


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    """Install classes for this test: ``plugins["word"] = cls``, or ``plugins.gate(...)``."""
    made = Plugins()
    monkeypatch.setattr(loading, "entry_points", made.points)
    return made


@pytest.fixture
def make_stand(clock: ManualClock, plugins: Plugins) -> Iterator[Callable[..., Stand]]:
    """Open an engine on a ledger in memory (or at ``url``), with its sale open.

    ``pipeline``, ``modes``, ``plugin_tables``, ``door``, ``workers``, ``sales`` are tables of
    configuration; ``sale`` are further keys of the sale; ``skus`` are units by sku.
    """
    opened: list[Engine] = []

    def make(
        skus: Mapping[str, Any] | None = None,
        *,
        url: str = "sqlite://",
        start: bool = True,
        sale: Mapping[str, Any] | None = None,
        pipeline: Mapping[str, Any] | None = None,
        modes: Mapping[str, Any] | None = None,
        plugin_tables: Mapping[str, Any] | None = None,
        door: Mapping[str, Any] | None = None,
        workers: Mapping[str, Any] | None = None,
        sales: Mapping[str, Any] | None = None,
        ledger: Mapping[str, Any] | None = None,
        clock: Any = clock,
        **tables: Any,
    ) -> Stand:
        overrides = {
            "ledger": {"url": url, **(ledger or {})},
            "pipeline": dict(pipeline or {}),
            "modes": dict(modes or {}),
            "plugins": dict(plugin_tables or {}),
            "door": dict(door or {}),
            "workers": dict(workers or {}),
            "sales": {SALE: {"skus": dict(skus or {"gold": 10}), **(sale or {})}, **(sales or {})},
            **tables,
        }
        engine = Engine(convert(overrides), clock=clock)  # without reading files and variables
        opened.append(engine)
        stand = Stand(engine, clock)
        return stand.start() if start else stand

    yield make
    for engine in opened:
        engine.close()


@pytest.fixture
def together() -> Callable[..., list[Any]]:
    """Run ``work(n)`` in ``count`` threads that start at once; answer what each returned."""
    return threads.together


@pytest.fixture
def names() -> Callable[[Sequence[Outcome]], list[str]]:
    """The code names of outcomes, in order."""
    return lambda outcomes: [outcome.name for outcome in outcomes]
