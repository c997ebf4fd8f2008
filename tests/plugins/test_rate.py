"""Laws of the token bucket."""

import random
import threading

import msgspec
import pytest

from doorbuster.plugin import Code
from doorbuster_limiter import Rate


@pytest.fixture
def make_rate(make_context):
    def make(state=None, **options):
        return Rate(msgspec.convert(options, Rate.Options), make_context(state=state))

    return make


@pytest.fixture
def ask(make_batch, make_attempt):
    """Ask for ``n`` attempts of a batch; answer how many pass."""

    def ask(rate, n=1, sale=None):
        verdicts = rate.limit(make_batch([make_attempt(f"b{k}") for k in range(n)], sale))
        assert len(verdicts) == n
        return sum(verdict is None for verdict in verdicts)

    return ask


def test_burst_then_rate(make_rate, ask, clock):
    """A full bucket lets ``burst`` pass at once, then ``per_second``."""
    rate = make_rate(per_second=10, burst=3)
    assert ask(rate, 5) == 3
    clock.advance(0.1)
    assert ask(rate, 5) == 1
    clock.advance(0.05)
    assert ask(rate, 5) == 0


def test_burst_is_one_seconds_worth_and_at_least_one(make_rate, ask):
    """The default burst is ``per_second``, and never less than one attempt."""
    assert ask(make_rate(per_second=4), 9) == 4
    assert ask(make_rate(per_second=0.1), 9) == 1


def test_l5_refill_is_capped(make_rate, ask, clock):
    """L5: an hour's pause refills to ``burst``, not beyond it."""
    rate = make_rate(per_second=10, burst=3)
    ask(rate, 3)
    clock.advance(3600)
    assert ask(rate, 50) == 3


def test_l5_a_clock_set_back_adds_nothing(make_rate, ask, clock):
    """L5: negative elapsed time is ignored, and the way forward again is not counted twice."""
    rate = make_rate(per_second=10, burst=3)
    assert ask(rate, 3) == 3
    clock.advance(-3600)
    assert ask(rate, 3) == 0
    clock.advance(3600)
    assert ask(rate, 3) == 0
    clock.advance(0.1)
    assert ask(rate, 3) == 1


@pytest.mark.parametrize("seed", range(20))
def test_l5_never_more_than_burst_plus_rate_times_t(make_rate, ask, clock, seed):
    """L5: over any walk of the clock, at most ``burst + per_second * t`` pass."""
    rng = random.Random(seed)
    rate = make_rate(per_second=7, burst=4)
    forward = peak = 0.0
    passed = ask(rate, 1)  # the first attempt fills the bucket
    for _ in range(300):
        step = rng.choice([0, 0.01, 0.3, 2, -1, -5])
        clock.advance(step)
        forward += step
        peak = max(peak, forward)
        passed += ask(rate, rng.randint(0, 6))
        assert passed <= 4 + 7 * peak + 1e-6


def test_l7_exact_under_64_threads(make_rate, ask, in_threads):
    """L7: 64 threads that ask for 640 at once get exactly the 100 tokens there are."""
    rate = make_rate(per_second=1, burst=100)
    assert sum(in_threads(lambda n: ask(rate, 10))) == 100


def test_a_batch_takes_its_tokens_in_one_step(make_rate, ask, make_context):
    """A whole batch is one look at the bucket: the first attempts pass, the later do not."""
    rate = make_rate(per_second=1, burst=5)
    entered = []

    class CountingLock:
        def __init__(self):
            self.lock = threading.Lock()

        def __enter__(self):
            entered.append(1)
            self.lock.acquire()

        def __exit__(self, *error):
            self.lock.release()

    ask(rate, 0)
    ask(rate, 1)
    (bucket,) = rate._state.values()
    bucket.lock = CountingLock()
    assert ask(rate, 200) == 4
    assert len(entered) == 1


def test_refused_ones_are_told_when_to_come(make_rate, make_batch, make_attempt):
    """RATE_LIMITED carries ``retry_after_ms``: each its own token's time, spread by jitter."""
    rate = make_rate(per_second=2, burst=1)
    attempts = [make_attempt(f"b{n}") for n in range(101)]
    first, *refused = rate.limit(make_batch(attempts))
    assert first is None
    assert {verdict.code for verdict in refused} == {Code.RATE_LIMITED}
    assert 500 <= refused[0].retry_after_ms <= 1000
    assert 50_000 <= refused[99].retry_after_ms <= 100_000
    assert len({verdict.retry_after_ms for verdict in refused}) > 80


def test_retry_after_is_bounded(make_rate, make_batch, make_attempt):
    """A wait told to a crowd lies between a tenth of a second and two minutes."""
    slow, fast = make_rate(per_second=0.001), make_rate(per_second=100_000, burst=1)
    for rate in (slow, fast):
        refused = rate.limit(make_batch([make_attempt("a"), make_attempt("b")]))[1]
        assert 100 <= refused.retry_after_ms <= 120_000


def test_each_sale_has_its_own_bucket(make_rate, ask, make_sale):
    """One sale's crowd takes no tokens of another sale."""
    rate = make_rate(per_second=1, burst=2)
    assert ask(rate, 5, make_sale("one")) == 2
    assert ask(rate, 5, make_sale("two")) == 2


def test_a_reload_with_another_rate_keeps_the_level(make_rate, ask, clock):
    """A rebuild with another ``per_second`` starts at the level the old one left."""
    state = {}
    assert ask(make_rate(state, per_second=10, burst=10), 10) == 10
    reloaded = make_rate(state, per_second=100, burst=50)
    assert ask(reloaded, 10) == 0
    clock.advance(0.1)
    assert ask(reloaded, 50) == 10


def test_a_reload_with_a_smaller_burst_cuts_the_level(make_rate, ask):
    """A level above a new, smaller burst is cut to it."""
    state = {}
    ask(make_rate(state, per_second=100), 1)
    assert ask(make_rate(state, per_second=100, burst=2), 50) == 2


@pytest.mark.parametrize(
    "options", [{}, {"per_second": 0}, {"per_second": -1}, {"per_second": 1, "burst": 0}]
)
def test_bad_options_are_refused(make_rate, options):
    """``per_second`` is required and positive, ``burst`` at least 1."""
    with pytest.raises(msgspec.ValidationError):
        make_rate(**options)


def test_the_fault_of_a_rate_is_open():
    """A limiter's own fault must not close the sale."""
    assert Rate.on_fault == "open"
