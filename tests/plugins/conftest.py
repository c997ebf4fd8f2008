"""What the plugin tests share: a manual clock, a context without a core, short makers."""

import sys

import pytest
import structlog

from doorbuster.identity import canonical_lines
from doorbuster.plugin import Attempt, Batch, Context, Line, PerBuyer, Sale, Sku
from doorbuster.testing.clock import ManualClock
from doorbuster.testing.threads import together


class NoMetrics:
    """Counts nothing."""

    def count(self, name, n=1, **labels):
        pass

    def observe(self, name, value, **labels):
        pass


class Alarms(list):
    """Keeps (name, severity, sale) of each alarm."""

    def __call__(self, name, severity="warning", sale=None, **detail):
        self.append((name, severity, sale))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def alarms():
    return Alarms()


@pytest.fixture
def make_context(clock, alarms):
    """Build a context; give ``state`` to play a rebuild, ``ledger`` to answer reads."""

    def make(state=None, ledger=None, name="plugin"):
        return Context(
            name=name,
            environment="test",
            clock=clock,
            alarm=alarms,
            metrics=NoMetrics(),
            log=structlog.get_logger("tests"),
            ledger=ledger,
            state={} if state is None else state,
        )

    return make


@pytest.fixture
def make_sale():
    """Build a sale: ``make_sale(gold=3)``, quotas by ``per_buyer`` or per sku."""

    def make(name="drop", run=1, per_buyer=None, sku_limits=None, **skus):
        own = sku_limits or {}
        units = skus or {"gold": 10}
        return Sale(
            name,
            {sku: Sku(sku, n, own.get(sku)) for sku, n in units.items()},
            per_buyer=per_buyer or PerBuyer(),
            run=run,
        )

    return make


@pytest.fixture
def make_attempt():
    """Build an attempt as the core hands it to a plugin: order_no and fingerprint filled."""

    def make(buyer="ann", request_id="r1", *, deadline_s=None, facts=None, lines=None, **need):
        if lines is None:
            lines = tuple(Line(sku, n) for sku, n in sorted((need or {"gold": 1}).items()))
        return Attempt(
            lines=lines,
            buyer=buyer,
            request_id=request_id,
            sale="drop",
            facts=facts or {},
            deadline_s=deadline_s,
            order_no=f"no-{buyer}-{request_id}",
            fingerprint=canonical_lines(lines),
        )

    return make


@pytest.fixture
def make_batch(make_sale):
    """Build a batch of one sale."""

    def make(attempts, sale=None, epoch=1, **fields):
        return Batch(sale or make_sale(), tuple(attempts), "normal", epoch, **fields)

    return make


@pytest.fixture
def in_threads():
    """Run ``work(n)`` in ``count`` threads that start together; answer what each returned."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # change threads as often as can be: races show

    yield together
    sys.setswitchinterval(interval_s)
