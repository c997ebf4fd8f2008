"""Laws of ``Flaky``: what it refuses is not applied, what it loses is, and else it is unseen."""

import pytest

from doorbuster import loading
from doorbuster.errors import UnavailableError, UnknownOutcomeError
from doorbuster.outcomes import Code
from doorbuster.plugin import Batch, Rejection, Sale, Sku, hookimpl
from doorbuster.testing import Flaky, ManualClock, MemoryHolder, flow, given, together

SALE = Sale("drop", {"gold": Sku("gold", 5)})
BATCH = Batch(SALE, (), "normal", 1)


class Counting:
    """Counts its calls."""

    on_fault = "open"

    def __init__(self):
        self.calls = []

    @hookimpl
    def deduct(self, batch):
        self.calls.append(batch)
        return []

    @hookimpl
    def prepare(self, sale, epoch):
        self.calls.append((sale, epoch))
        return True

    def close(self):
        self.calls.append("closed")


@pytest.fixture
def plugin():
    return Counting()


def test_refused_is_not_applied_and_lost_is(plugin):
    """Refuse raises before the call, vanish after it; then it goes on as if nothing was."""
    flaky = Flaky(plugin)
    flaky.refuse("deduct")
    flaky.vanish("deduct")
    with pytest.raises(UnavailableError):
        flaky.deduct(BATCH)
    assert plugin.calls == []
    with pytest.raises(UnknownOutcomeError):
        flaky.deduct(BATCH)
    assert flaky.deduct(BATCH) == []
    assert plugin.calls == [BATCH, BATCH]
    assert flaky.faults == [("deduct", "refuse"), ("deduct", "vanish")]


def test_orders_are_per_hook_and_count(plugin):
    """``times`` calls fail, ``after`` go well first, and another hook is not concerned."""
    flaky = Flaky(plugin)
    flaky.refuse("deduct", 2, after=1)
    assert flaky.deduct(batch=BATCH) == []
    assert flaky.prepare(SALE, 1)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            flaky.deduct(BATCH)
    assert flaky.deduct(BATCH) == []


def test_healed_means_no_order_is_left(plugin):
    """What was ordered and not used is forgotten; what happened is not."""
    flaky = Flaky(plugin)
    flaky.vanish("deduct", 3)
    with pytest.raises(UnknownOutcomeError):
        flaky.deduct(BATCH)
    flaky.heal()
    assert flaky.deduct(BATCH) == []
    assert flaky.faults == [("deduct", "vanish")]


def test_a_delay_passes_on_the_manual_clock(plugin):
    """Nothing sleeps; without a clock a delay is refused when it is ordered."""
    clock = ManualClock()
    before_s = clock.monotonic_s()
    flaky = Flaky(plugin, clock)
    flaky.delay("deduct", 2.5)
    assert flaky.deduct(BATCH) == []
    assert flaky.deduct(BATCH) == []
    assert clock.monotonic_s() == before_s + 2.5
    assert flaky.faults == [("deduct", "delay")]
    with pytest.raises(ValueError, match="manual clock"):
        Flaky(plugin).delay("deduct", 1)


def test_a_hook_that_is_not_there_is_named(plugin):
    """A typo must not become a test that tests nothing."""
    with pytest.raises(ValueError, match="did you mean 'deduct'"):
        Flaky(plugin).refuse("deduckt")
    with pytest.raises(ValueError, match="no hook"):
        Flaky(object())


def test_the_loader_sees_the_plugin_behind_it(plugin):
    """It offers the plugin's hooks with their signatures, and its other attributes."""
    flaky = Flaky(plugin)
    hooks, problems = loading.find_hooks(loading.new_manager(), flaky, "made", "made")
    assert problems == []
    assert hooks.keys() == {"deduct", "prepare"}
    assert flaky.on_fault == given(flaky).on_fault == "open"
    flaky.close()
    assert plugin.calls == ["closed"]
    with pytest.raises(AttributeError):
        _ = flaky.nothing


def test_each_order_is_used_by_one_of_many_threads(plugin):
    """Five refusals over forty threads are five refusals."""
    flaky = Flaky(plugin)
    flaky.refuse("deduct", 5)

    def work(n):
        try:
            return flaky.deduct(BATCH)
        except UnavailableError:
            return None

    assert together(work, 40).count(None) == 5


class Closed:
    """A gate that refuses all, and lets pass when it fails."""

    on_fault = "open"

    @hookimpl
    def filter(self, batch):
        return [Rejection(Code.BLOCKED)] * len(batch)


def test_a_gate_in_a_flow_fails_as_its_class_says():
    """``given(Flaky(gate))`` keeps ``on_fault``."""
    flaky = Flaky(Closed())
    with flow(filter=["gate"], plugins={"gate": given(flaky)}) as sale:
        assert sale.buy("ann").code is Code.BLOCKED
        flaky.refuse("filter")
        assert sale.buy("ann").code is Code.ACCEPTED


def test_a_slow_holder_in_a_flow(kit):
    """Who was admitted in time and found a slow backend is still answered once, exactly."""
    flaky = Flaky(MemoryHolder(MemoryHolder.Options(), kit.context()), kit.clock)
    with kit.flow(deduct="stock", plugins={"stock": given(flaky)}) as sale:
        flaky.delay("deduct", 30)
        assert sale.buy("ann").code is Code.ACCEPTED
        assert sale.drain() == 0
        assert sale.balanced
