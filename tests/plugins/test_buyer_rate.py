"""Laws of the rate per buyer."""

import random
import time
from collections import OrderedDict

import msgspec
import pytest

from doorbuster.plugin import Code
from doorbuster_limiter import BuyerRate


@pytest.fixture
def make_rate(make_context):
    def make(state=None, **options):
        return BuyerRate(msgspec.convert(options, BuyerRate.Options), make_context(state=state))

    return make


@pytest.fixture
def ask(make_batch, make_attempt):
    """Ask once per given buyer, in one batch; answer a string of + (pass) and - (refused)."""

    def ask(rate, *buyers, sale=None):
        verdicts = rate.limit(make_batch([make_attempt(buyer) for buyer in buyers], sale))
        return "".join("+" if verdict is None else "-" for verdict in verdicts)

    return ask


class Yielding(OrderedDict):
    """Lets another thread run after every look-up, where a check before an act would race."""

    def get(self, key, default=None):
        found = super().get(key, default)
        time.sleep(0)
        return found


def kept(rate):
    return list(rate._table.due_ns)


def test_s0_39_five_a_second(make_rate, ask, clock):
    """S0-39: by default five attempts of a buyer pass at once, then one each fifth second."""
    rate = make_rate()
    assert ask(rate, *["ann"] * 7) == "+++++--"
    clock.advance(0.19)
    assert ask(rate, "ann") == "-"
    clock.advance(0.02)
    assert ask(rate, "ann", "ann") == "+-"


def test_s4_25_one_each_five_seconds(make_rate, ask, clock):
    """S4-25: ``every_s = 5`` lets one attempt pass per five seconds, sliding."""
    rate = make_rate(every_s=5)
    assert ask(rate, "ann", "ann") == "+-"
    clock.advance(4.99)
    assert ask(rate, "ann") == "-"
    clock.advance(0.01)
    assert ask(rate, "ann", "ann") == "+-"


def test_a_refused_attempt_costs_nothing(make_rate, ask, clock):
    """Knocking while refused does not push the next pass away."""
    rate = make_rate(every_s=5)
    ask(rate, "ann")
    for _ in range(49):
        clock.advance(0.1)
        assert ask(rate, "ann") == "-"
    clock.advance(0.11)
    assert ask(rate, "ann") == "+"


@pytest.mark.parametrize("seed", range(20))
def test_l6_no_window_passes_more_than_burst_plus_rate(make_rate, ask, clock, seed):
    """L6: in every window of every length at most ``burst + per_second * t`` pass."""
    rng = random.Random(seed)
    rate = make_rate(per_second=4, burst=2)
    times = []
    for _ in range(300):
        clock.advance(rng.choice([0, 0.01, 0.1, 0.5, 3]))
        if ask(rate, "ann") == "+":
            times.append(clock.monotonic_s())
    for first, start in enumerate(times):
        for last in range(first, len(times)):
            assert last - first + 1 <= 2 + 4 * (times[last] - start) + 1e-6


def test_l6_a_steady_rate_passes_whole(make_rate, ask, clock):
    """L6: who keeps to the rate is never refused, however often floats are summed."""
    rate = make_rate(per_second=3, burst=1)
    for _ in range(1000):
        assert ask(rate, "ann") == "+"
        clock.advance(1 / 3 + 1e-6)


def test_buyers_and_sales_are_apart(make_rate, ask, make_sale):
    """The key is (sale, buyer): neither another buyer nor another sale takes one's turn."""
    rate = make_rate(every_s=5)
    assert ask(rate, "ann", "bob", "ann") == "++-"
    assert ask(rate, "ann", sale=make_sale("other")) == "+"


def test_refused_ones_are_told_when_to_come(make_rate, make_batch, make_attempt, clock):
    """RATE_LIMITED carries a ``retry_after_ms`` of one to two times the buyer's own wait."""
    rate = make_rate(every_s=5)
    rate.limit(make_batch([make_attempt()]))
    clock.advance(3)
    (refused,) = rate.limit(make_batch([make_attempt()]))
    assert refused.code is Code.RATE_LIMITED
    assert 2000 <= refused.retry_after_ms <= 4000


def test_l7_exact_under_64_threads(make_rate, ask, in_threads):
    """L7: 64 threads of one buyer get exactly the burst; 64 buyers get it each."""
    rate = make_rate(per_second=1, burst=7)
    rate._table.due_ns = Yielding()
    answers = in_threads(lambda n: ask(rate, "ann", f"b{n}"))
    assert sum(answer[0] == "+" for answer in answers) == 7
    assert all(answer[1] == "+" for answer in answers)


def test_idle_buyers_are_forgotten(make_rate, ask, clock):
    """A buyer whose turn is due again holds no memory: the table follows who is active."""
    rate = make_rate(every_s=5)
    for n in range(500):
        ask(rate, f"b{n}")
    assert len(kept(rate)) == 500
    clock.advance(6)
    for n in range(500):
        ask(rate, f"c{n}")
    assert {buyer[0] for _, buyer in kept(rate)} == {"c"}


def test_the_table_is_bounded(make_rate, ask):
    """Beyond ``buyers_max`` the one who passed longest ago is forgotten, and nobody refused."""
    rate = make_rate(every_s=5, buyers_max=10)
    assert ask(rate, *[f"b{n}" for n in range(100)]) == "+" * 100
    assert kept(rate) == [("drop", f"b{n}") for n in range(90, 100)]


def test_who_passed_longest_ago_is_forgotten_first(make_rate, ask):
    """The bound forgets by the last pass, not by the first: the active keep their turn."""
    rate = make_rate(every_s=5, burst=2, buyers_max=2)
    ask(rate, "ann", "bob", "ann", "cid")
    assert kept(rate) == [("drop", "ann"), ("drop", "cid")]


def test_forgetting_never_scans(make_rate, ask, clock):
    """However many are idle, one attempt drops at most two of them (amortised, bounded)."""
    rate = make_rate(every_s=5)
    ask(rate, *[f"b{n}" for n in range(100)])
    clock.advance(6)
    ask(rate, "ann")
    assert len(kept(rate)) == 100 + 1 - 2


def test_a_reload_keeps_who_came(make_rate, ask):
    """A rebuild neither forgets a buyer's turn nor starts a new burst."""
    state = {}
    assert ask(make_rate(state, every_s=5), "ann") == "+"
    assert ask(make_rate(state, every_s=5), "ann") == "-"


def test_a_reload_with_a_faster_rate_holds_nobody_to_the_old_one(make_rate, ask, clock):
    """After a reload a buyer waits at most as long as the rate in force asks."""
    state = {}
    ask(make_rate(state, every_s=3600), "ann")
    faster = make_rate(state, every_s=5)
    assert ask(faster, "ann") == "-"
    clock.advance(5)
    assert ask(faster, "ann") == "+"


def test_l5_a_clock_set_back_keeps_nobody_out(make_rate, ask, clock):
    """L5: after an hour back a buyer waits one turn, not an hour."""
    rate = make_rate(every_s=5)
    ask(rate, "ann")
    clock.advance(-3600)
    assert ask(rate, "ann") == "-"
    clock.advance(5)
    assert ask(rate, "ann") == "+"


@pytest.mark.parametrize(
    "options", [{"per_second": 0}, {"every_s": 0}, {"burst": 0}, {"buyers_max": 0}]
)
def test_bad_options_are_refused(make_rate, options):
    """Every bound is positive, checked when config loads."""
    with pytest.raises(msgspec.ValidationError):
        make_rate(**options)


def test_the_fault_of_a_rate_is_open():
    """A limiter's own fault must not close the sale."""
    assert BuyerRate.on_fault == "open"
