"""Laws of ``flow``: a whole sale in a test, with nothing running by itself."""

import subprocess
import sys

import pytest

import doorbuster.testing
from doorbuster.errors import ConfigError
from doorbuster.model import IntentState, Line
from doorbuster.outcomes import Code
from doorbuster.plugin import Attempt, PluginOptions, Rejection, Reservation, hookimpl
from doorbuster.testing import Flow, Kit, ManualClock, MemoryHolder, flow, given


class MembersOnly:
    """Lets members in."""

    class Options(PluginOptions):
        """Who is one."""

        members: frozenset[str]

    def __init__(self, options, context):
        self.members = options.members

    @hookimpl
    def filter(self, batch):
        return [None if a.buyer in self.members else Rejection(Code.BLOCKED) for a in batch]


def test_a_sale_in_ten_lines():
    """The example of the design: a made-up gate, its options, two buyers, one order."""
    with flow(
        filter=["members"],
        plugins={"members": MembersOnly},
        skus={"gold": 3},
        options={"members": {"members": ["ann"]}},
    ) as sale:
        assert sale.buy("ann", "gold").code is Code.ACCEPTED
        assert sale.buy("bob", "gold").code is Code.BLOCKED
        sale.drain()
        assert sale.orders == 1
        assert sale.balanced


def test_nothing_runs_until_it_is_told():
    """Orders wait for ``drain``, time for ``advance``; both are the test's own steps."""
    with flow() as sale:
        before_s = sale.clock.monotonic_s()
        sale.buy("ann", request_id="r1")
        assert (sale.orders, sale.states()) == (0, {("ann", "r1"): "RESERVED"})
        assert sale.clock.monotonic_s() == before_s
        assert sale.drain() == 0
        assert (sale.orders, sale.states()) == (1, {("ann", "r1"): "CREATED"})
        sale.advance(3)
        assert sale.clock.monotonic_s() >= before_s + 3


def test_a_batch_travels_together_and_aligns():
    """``batch`` answers each attempt, ``lines`` names skus, ``left`` counts what is free."""
    with flow(skus={"gold": 2, "silver": 5}, per_buyer={"sku": 2}) as sale:
        both = Attempt([Line("gold"), Line("silver", 2)], "ann", "r1")
        many = Attempt([Line("silver", 3)], "bob", "r1")
        assert [o.name for o in sale.batch(both, many)] == ["ACCEPTED", "OVER_LIMIT"]
        assert sale.left() == {"gold": 1, "silver": 3}
        assert sale.buy("cid", lines=[Line("gold", 2)]).code is Code.SOLD_OUT
        assert [row["buyer"] for row in sale.rows("intents")] == ["ann"]


def test_each_purchase_has_its_own_request_id():
    """Unless one is named, every ``buy`` is a new attempt."""
    with flow() as sale:
        numbers = {sale.buy("ann").order_no for _ in range(3)}
        assert len(numbers) == 3
        assert sale.buy("ann", request_id="mine") == sale.buy("ann", request_id="mine")


def test_a_return_is_begun_and_drained():
    """``give_back`` begins it, once; the unit is free after ``drain``."""
    with flow(skus={"gold": 1}) as sale:
        sale.buy("ann", request_id="r1")
        assert sale.give_back("ann", "r1", to=IntentState.RELEASED)
        assert not sale.give_back("ann", "r1", to=IntentState.RELEASED)
        sale.drain()
        assert sale.left() == {"gold": 1}
        assert sale.result("ann", "r1").order_state == "RELEASED"
        assert sale.result("bob", "r1") is None


def test_what_is_wrong_is_said_at_once():
    """A stage that there is not, a plugin that is not installed, options that do not convert."""
    with pytest.raises(TypeError, match="no stage is named dedukt; known: filter"), flow(dedukt=""):
        pass
    with pytest.raises(ConfigError, match="no plugin is named 'dedukt'"), flow(deduct="dedukt"):
        pass
    wrong = flow(filter=["members"], plugins={"members": MembersOnly})
    with pytest.raises(ConfigError, match="members"), wrong:
        pass


def test_a_sale_that_was_not_started():
    """``start=False`` leaves the control plane to the test."""
    with flow(start=False) as sale:
        assert sale.rows("sales") == []
        assert sale.buy("ann").code is Code.NOT_STARTED
        sale.start()
        sale.start()
        assert sale.buy("ann").code is Code.ACCEPTED


def test_tables_lie_over_the_others():
    """Any table of configuration, such as a bound of the door."""
    with flow(tables={"door": {"lines_max": 1}, "pipeline": {"deduct": "memory"}}) as sale:
        assert sale.buy("ann", lines=[Line("gold"), Line("gold")]).code is Code.INVALID
        assert sale.rows("sales")[0]["deduct"] == "memory"


def test_alarms_are_kept(kit):
    """Whatever the sale or a plugin alarms is seen by the test."""
    holder = MemoryHolder(MemoryHolder.Options(), kit.context())
    with kit.flow(deduct="stock", plugins={"stock": given(holder)}) as sale:
        assert sale.alarms == []
        sale.engine.alarms("smoke", "warning", "drop")
        assert [alarm.name for alarm in sale.alarms] == ["smoke"]


def test_a_kit_and_its_flow_are_one_ground():
    """One ledger, one clock: a plugin built with the kit's context sees the flow's sale."""
    kit = Kit()
    with kit.flow() as sale:
        assert isinstance(sale, Flow)
        assert sale.clock is kit.clock
        assert kit.context().ledger.skus("drop")["gold"].units == 10
    kit.close()


def test_a_given_instance_is_used_as_it_is(kit):
    """``given`` builds nothing: the very instance answers, and is closed with the flow."""

    class Router:
        def __init__(self):
            self.closed = 0

        @hookimpl
        def deduct(self, batch):
            return [Reservation(attempt, "all") for attempt in batch]

        def close(self):
            self.closed += 1

    mine = Router()
    with kit.flow(deduct="mine", plugins={"mine": given(mine)}) as sale:
        assert sale.buy("ann").code is Code.ACCEPTED
        assert mine.closed == 0
    assert mine.closed == 1


def test_two_flows_know_nothing_of_each_other():
    """Each has its ledger and its clock."""
    with flow() as one, flow() as two:
        one.buy("ann", request_id="r1")
        assert two.result("ann", "r1") is None
        assert isinstance(one.clock, ManualClock)
        assert one.clock is not two.clock


def test_every_public_name_is_there():
    """Names are imported when they are asked for; ``flow`` is the function, not its module."""
    for name in doorbuster.testing.__all__:
        assert callable(getattr(doorbuster.testing, name)), name
    assert dir(doorbuster.testing) == doorbuster.testing.__all__
    assert doorbuster.testing.flow is flow
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = doorbuster.testing.nothing


def test_the_memory_backend_needs_no_test_tool():
    """A demo imports it without pytest, hypothesis and the engine's suites."""
    code = (
        "import sys, doorbuster.testing.memory\n"
        "from doorbuster.testing import flow\n"
        "import doorbuster.testing.flow\n"
        "from doorbuster.testing import flow as again\n"
        "assert flow is again and callable(flow)\n"
        "print(sorted({'pytest', 'hypothesis'} & sys.modules.keys()))"
    )
    told = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert (told.stdout.strip(), told.stderr) == ("[]", "")
