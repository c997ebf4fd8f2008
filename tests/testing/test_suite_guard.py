"""Laws of the suites themselves: nobody drops a law in silence, and what is declined is told."""

import functools
import os
import subprocess
import sys
import threading
from multiprocessing.connection import Client, Listener

import pytest

from doorbuster.model import Sale, Sku
from doorbuster.plugin import hookimpl
from doorbuster.testing import MemoryHolder, MemoryProbe, StockProbe, StockSuite
from doorbuster.testing.clock import START_S
from doorbuster.testing.probes import LedgerProbe
from doorbuster.testing.suites.base import Suite, broken_laws, racing
from doorbuster.testing.suites.kits import SuiteKit
from doorbuster.testing.suites.stock_desk import Desk, ask
from doorbuster.testing.suites.stock_ground import finish
from doorbuster.tiers import Bound

LAW = "test_04_never_oversells_under_threads"


# ------------------------------------------------------------------ the guard
class Kept(StockSuite):
    """Overrides no law: fixtures, capabilities and laws of its own are its author's."""

    capabilities = StockSuite.Capabilities(may_strand=True)

    @pytest.fixture
    def stock(self, context):
        return None

    def test_something_of_mine(self):
        pass


def test_a_suite_with_fixtures_and_own_tests_keeps_all_laws():
    """What an author adds is no override."""
    assert broken_laws(Kept) == []
    Kept().test_00_no_law_is_overridden()


@pytest.mark.parametrize("instead", [lambda self: None, None], ids=["method", "nothing"])
@pytest.mark.parametrize("name", [LAW, "_law_3_conservation"])
def test_an_override_in_silence_is_named(name, instead):
    """A law, or the check after every test, replaced or removed: the guard says which."""
    quiet = type("Quiet", (Kept,), {name: instead})
    below = type("Below", (quiet,), {})
    for cls in (quiet, below):
        assert broken_laws(cls) == [f"Quiet.{name}"]
        with pytest.raises(AssertionError, match=f"Quiet.{name}"):
            cls().test_00_no_law_is_overridden()


def test_an_override_with_a_reason_is_allowed():
    """``xfail`` with a reason is seen in every run; without one it is silence."""

    def law(self):
        """Not kept."""

    told = type("Told", (Kept,), {LAW: pytest.mark.xfail(reason="slots do not steal")(law)})
    assert broken_laws(told) == []

    def other(self):
        """Not kept either."""

    untold = type("Untold", (Kept,), {LAW: pytest.mark.xfail(other)})
    assert broken_laws(untold) == [f"Untold.{LAW}"]


def test_the_guard_itself_cannot_be_overridden():
    """Who replaces it has no class at all."""
    with pytest.raises(TypeError, match="guards all others"):
        type("Sly", (Suite,), {"test_00_no_law_is_overridden": lambda self: None})


def test_every_law_is_a_numbered_sentence():
    """A law's name begins with its number, and its docstring is the sentence."""
    laws = {name: getattr(StockSuite, name) for name in dir(StockSuite) if name.startswith("test_")}
    assert {name[5:7] for name in laws} == {f"{n:02d}" for n in range(15)}
    for name, law in laws.items():
        assert law.__doc__, name
        assert law.__doc__.rstrip().endswith("."), name


# ------------------------------------------------------------------ law 3 is sharp
def hold_one(kit):
    """A desk of a memory holder with one hold, and its slot."""
    holder = MemoryHolder(MemoryHolder.Options(), kit.context())
    hooks = {name: getattr(holder, name) for name in HOOKS}
    desk = Desk(Bound("stock", "stock", None, holder, hooks, "closed"), MemoryProbe(holder), "drop")
    desk.open(gold=5)
    desk.hold(ask())
    (slot,) = holder._store.epochs["drop", 1, 1].slots
    return desk, slot


@pytest.mark.parametrize(("left", "held"), [(1, 0), (-1, 0), (0, 1), (0, -1), (-1, 1), (-5, 5)])
def test_law_3_sees_every_unit_that_moves_by_itself(kit, left, held):
    """A unit that comes, goes or changes sides without a call is told, with its place."""
    desk, slot = hold_one(kit)
    assert desk.conserved()
    slot.left["gold"] += left
    slot.held["gold"] += held
    with pytest.raises(AssertionError, match="m0/gold"):
        desk.conserved()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE grants SET consumed = consumed + 1",
        "UPDATE grants SET quantity = quantity + 1",
        "UPDATE stock SET unallocated = unallocated + 1",
        "UPDATE stock SET total = total - 1",
        "UPDATE quotas SET bought = bought + 1",
        "DELETE FROM quotas",
        "UPDATE intents SET state = 'ABORTED'",
        "UPDATE intents SET lines = 'gold=2'",
        "UPDATE intents SET place = 'elsewhere'",
    ],
)
def test_the_ledger_probe_sees_every_row_that_does_not_add_up(kit, change):
    """One row off by one is told, by plain sums of its own."""
    with kit.flow() as sale:
        sale.buy("ann")
        probe = LedgerProbe(sale.ledger)
        assert probe.wrong("drop") == []
        assert probe.sold("drop") == {"gold": 1}
        probe.write(change)
        assert probe.wrong("drop") != []


def test_a_probe_is_two_raw_reads(kit):
    """The protocol of a holder's author; the memory one answers nothing for what is not there."""
    holder = MemoryHolder(MemoryHolder.Options(), kit.context())
    probe = MemoryProbe(holder)
    sale = Sale("drop", {"gold": Sku("gold", 5)})
    assert isinstance(probe, StockProbe)
    assert (probe.left(sale, 1), probe.held(sale, 1)) == ({}, {})


def test_workers_that_never_finish_are_told(kit, monkeypatch):
    """A role that believes it works for ever ends the law, not the run."""
    with kit.flow() as sale:
        (role, *_) = sale.engine.runner._roles
        monkeypatch.setattr(role, "run_once", lambda: True)
        with pytest.raises(AssertionError, match="never finish"):
            finish(sale)


def test_a_race_steps_aside_between_the_lines_of_its_subject():
    """Check then act shows: of 16 threads that each add one, some are lost."""
    with racing(Counted()) as race:
        for _ in range(20):
            subject = Counted()
            race(lambda n, found=subject: found.add())
            if subject.n < 16:
                return
    raise AssertionError("no thread ever stepped aside")


class Counted:
    """Reads, then writes."""

    def __init__(self):
        self.n = 0

    def add(self):
        n = self.n
        n = n + 1
        self.n = n


def test_a_kit_of_a_suite_is_new_each_time():
    """Nothing of an earlier test is seen in the next, although the database object is kept."""
    first = SuiteKit()
    first.clock.advance(100)
    with first.flow() as sale:
        sale.buy("ann", request_id="r1")
    first.close()
    second = SuiteKit()
    assert second.clock.monotonic_s() == START_S
    with second.flow(skus={"silver": 2}) as sale:
        assert sale.result("ann", "r1") is None
        assert sale.buy("ann", request_id="r1").code == 1
        assert sale.drain() == 0
        assert sale.balanced
        assert sale.left() == {"silver": 1}
    second.close()
    second.close()
    third, fourth = SuiteKit(), SuiteKit()
    assert third.ledger.database is not fourth.ledger.database
    third.close()
    fourth.close()


# ------------------------------------------------------------------ law 14, forks
HOOKS = (
    "places prepare credit debit open retire count holds push deduct compensate".split()  # noqa: SIM905 - a list of strings would take a line each
)


class Served:
    """A memory holder behind a socket: each call opens its own connection, as a server has it."""

    def __init__(self, path, holder):
        self.path = path
        self.holder = holder
        self.listener = Listener(path)
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while True:
            with self.listener.accept() as connection:
                name, values = connection.recv()
                if not name:
                    return
                connection.send(getattr(self.holder, name)(*values))

    def close(self):
        with Client(self.path) as connection:
            connection.send(("", ()))
        self.thread.join()
        self.listener.close()


class Remote:
    """Asks the server; keeps no connection that a fork could share."""

    def __init__(self, path):
        self.path = path

    def ask(self, name, *values):
        with Client(self.path) as connection:
            connection.send((name, values))
            return connection.recv()


def _remote(name):
    @functools.wraps(getattr(MemoryHolder, name))
    def hook(self, *values):
        return self.ask(name, *values)

    return hookimpl(hook)


for _name in HOOKS:
    setattr(Remote, _name, _remote(_name))


class Forking(StockSuite):
    """Declares that a fork is survived."""

    capabilities = StockSuite.Capabilities(forks=True)


class Request:
    """What the law asks pytest for: the desk."""

    def __init__(self, desk):
        self.desk = desk

    def getfixturevalue(self, name):
        assert name == "open_desk"
        return lambda **units: self.desk.open(**units)


def fork(kit, holder, plugin):
    """Run the law on ``plugin``, whose units lie in ``holder``."""
    hooks = {name: getattr(plugin, name) for name in HOOKS}
    bound = Bound("stock", "stock", None, plugin, hooks, "closed")
    desk = Desk(bound, MemoryProbe(holder), "fork")
    Forking().test_14_an_instance_survives_a_fork(Request(desk), bound)
    assert desk.conserved()


def test_the_fork_law_holds_for_a_backend_that_both_reach(kit, tmp_path):
    """A child's hold is in the one backend, and the parent goes on."""
    holder = MemoryHolder(MemoryHolder.Options(), kit.context())
    served = Served(str(tmp_path / "s"), holder)
    try:
        fork(kit, holder, Remote(served.path))
    finally:
        served.close()


def test_the_fork_law_fails_for_units_in_the_process(kit):
    """A child that sells its own copy would oversell: who declares ``forks`` is found out."""
    holder = MemoryHolder(MemoryHolder.Options(), kit.context())
    with pytest.raises(AssertionError, match="the child's hold is in the backend"):
        fork(kit, holder, holder)


# ------------------------------------------------------------------ the author's run
AUTHOR = """
import pytest
from doorbuster.plugin import Reservation, hookimpl
from doorbuster.testing import MemoryHolder, MemoryProbe, StockSuite

class Mine:
    def __init__(self, context):
        self.context = context
    @hookimpl
    def deduct(self, batch):
        return [Reservation(attempt, "all") for attempt in batch]

class TestMine(StockSuite):
    @pytest.fixture
    def stock(self, context):
        return Mine(context)

class TestUnprobed(StockSuite):
    @pytest.fixture
    def stock(self, context):
        return MemoryHolder(MemoryHolder.Options(), context)

class TestQuiet(TestMine):
    def test_07_a_sale_splits_no_quantity(self):
        pass

class Uncounted(MemoryHolder):
    count = None

class TestUncounted(StockSuite):
    @pytest.fixture
    def stock(self, context):
        return Uncounted(MemoryHolder.Options(), context)
    @pytest.fixture
    def probe(self, stock):
        return MemoryProbe(stock)
"""


@pytest.mark.slow
def test_an_author_needs_ten_lines_and_is_told_what_is_declined(tmp_path):
    """Strict markers, no configuration: laws run, soak forms wait, declined laws name the cost."""
    (tmp_path / "test_mine.py").write_text(AUTHOR)
    chosen = "TestMine or test_00 or (TestUnprobed and test_07_two) or (TestUncounted and count_is)"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", "-q"]
    told = subprocess.run(
        [*command, "-k", chosen, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200"},
    )
    out = told.stdout
    assert "TestQuiet::test_00_no_law_is_overridden" in out
    assert "TestQuiet.test_07_a_sale_splits_no_quantity: overridden in silence" in out
    assert "TestUnprobed tests a holder and needs a fixture 'probe'" in out
    assert "TestMine is a router: it holds nothing" in out
    assert "TestUncounted offers no count: drift waits for the next epoch" in out
    assert "test_03_count_is_what_is_there" in out
    assert "soak" not in out
    assert "1 failed" in out
    assert "2 errors" in out, "its laws have no probe"
    assert " skipped" not in out
