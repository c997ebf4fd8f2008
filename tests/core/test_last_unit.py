"""The last unit: whoever asks for it at once, exactly one gets it (T7)."""

import asyncio
import threading

import pytest

from doorbuster.clock import SystemClock
from doorbuster.outcomes import Code

BACKENDS = ["db-atomic", "db-segments", "memory"]
CALLERS = 64
NOT_SOLD = {Code.SOLD_OUT, Code.BUSY}  # BUSY: its unit was on its way, then went to another


@pytest.fixture
def make_shop(make_stand, tmp_path):
    """A stand on a file, with the host's clock: threads really wait here."""

    def make(skus, deduct, **tables):
        return make_stand(
            skus,
            url=f"sqlite:///{tmp_path / 'shop.db'}",
            clock=SystemClock(),
            pipeline={"deduct": deduct},
            ledger={"accepts_max": 16, "wait_ms": 20_000},
            **tables,
        )

    return make


def last_unit(make_shop, deduct, rounds, crowd):
    """Each round restocks one unit; 64 callers ask at once; exactly one is sold."""
    stand = make_shop({"gold": 1}, deduct, door={"batch_max": 16, "linger_ms": 0, "threads": 4})
    for number in range(rounds):
        if number:
            stand.engine.sales.restock("drop", "gold", 1, actor="test")
        codes = [outcome.code for outcome in crowd(stand, f"r{number}")]
        assert codes.count(Code.ACCEPTED) == 1, codes
        assert set(codes) - {Code.ACCEPTED} <= NOT_SOLD
        assert stand.buy("late", f"r{number}").code is Code.SOLD_OUT
    assert stand.drain() == 0
    assert list(stand.states().values()).count("CREATED") == rounds
    assert stand.balanced()


def on_a_loop(stand, request_id):
    """64 callers at the door: batches of 16 race each other in four threads."""

    async def crowd():
        asks = (
            stand.engine.attempt("drop", "gold", buyer=f"b{n}", request_id=request_id)
            for n in range(CALLERS)
        )
        return await asyncio.gather(*asks)

    return asyncio.run(crowd())


@pytest.mark.parametrize("deduct", BACKENDS)
def test_t7_one_unit_for_64_callers_is_sold_once(make_shop, deduct):
    """16 rounds on each backend; the full count is the soak form."""
    last_unit(make_shop, deduct, 16, on_a_loop)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("deduct", BACKENDS)
def test_t7_one_unit_for_64_callers_is_sold_once_2000_rounds(make_shop, deduct):
    """The full count."""
    last_unit(make_shop, deduct, 2000, on_a_loop)


@pytest.mark.parametrize("deduct", BACKENDS)
def test_t7_one_unit_for_64_threads_is_sold_once(make_shop, together, deduct):
    """Without the door: 64 batches of one race each other."""
    last_unit(
        make_shop,
        deduct,
        2,
        lambda stand, request_id: together(lambda n: stand.buy(f"b{n}", request_id), CALLERS),
    )


@pytest.mark.parametrize("deduct", BACKENDS)
def test_t7_limit_one_holds_over_64_parallel_attempts_of_one_buyer(make_shop, together, deduct):
    """Exactly one is accepted, the others are over the limit (L1, L2)."""
    stand = make_shop({"gold": 500}, deduct, sale={"per_buyer": 1})
    for number in range(2):
        outcomes = together(lambda n, who=f"ann{number}": stand.buy(who, f"r{n}"), CALLERS)
        codes = [outcome.code for outcome in outcomes]
        assert codes.count(Code.ACCEPTED) == 1
        assert codes.count(Code.OVER_LIMIT) == CALLERS - 1
    assert stand.drain() == 0
    assert stand.balanced()


@pytest.mark.parametrize("deduct", BACKENDS)
def test_2_1_one_attempt_sent_64_times_is_one_order(make_shop, together, deduct):
    """Double clicks in parallel: one order number for all, one unit gone (L2)."""
    stand = make_shop({"gold": 500}, deduct, door={"known_max": 0})
    outcomes = together(lambda n: stand.buy("ann", "r1"), CALLERS)
    assert {outcome.code for outcome in outcomes} == {Code.ACCEPTED}
    assert len({outcome.order_no for outcome in outcomes}) == 1
    assert stand.drain() == 0
    assert len(stand.rows("orders")) == 1
    assert stand.balanced()


def test_d10_five_units_over_ten_segments_sell_exactly_five(make_shop, together, names):
    """A dry segment gathers, and a final sweep ends before SOLD_OUT."""
    stand = make_shop({"gold": 5}, "db-segments")
    outcomes = names(together(lambda n: stand.buy(f"b{n}"), CALLERS))
    assert outcomes.count("ACCEPTED") == 5
    assert stand.buy("late").code is Code.SOLD_OUT
    assert stand.balanced()


def test_d10_five_buyers_of_five_units_over_ten_segments_all_buy(make_stand, names):
    """Nobody is sent away while a unit is anywhere."""
    for start in range(6):
        stand = make_stand({"gold": 5}, pipeline={"deduct": "db-segments"})
        attempts = [stand.attempt(f"b{start * 5 + n}") for n in range(5)]
        assert names(stand.batch(*attempts)) == ["ACCEPTED"] * 5


@pytest.mark.parametrize("places", [1, 3])
def test_a_holder_under_64_callers_sells_exactly_its_units(make_shop, together, names, places):
    """With top-ups running beside it; BUSY is asked again, as a good client does."""
    stand = make_shop({"gold": 50}, "memory", plugin_tables={"memory": {"places": places}})
    over = threading.Event()

    def top_up():
        while not over.is_set():
            stand.role("topup").run_once()
            over.wait(0.002)

    thread = threading.Thread(target=top_up)
    thread.start()

    def ask(n):
        for _ in range(200):
            outcome = stand.buy(f"b{n}")
            if outcome.code is not Code.BUSY:
                return outcome
            over.wait(0.005)
        return outcome

    outcomes = names(together(ask, CALLERS))
    over.set()
    thread.join(10)
    assert outcomes.count("ACCEPTED") == 50, outcomes
    assert outcomes.count("SOLD_OUT") == CALLERS - 50
    assert stand.drain() == 0
    assert stand.balanced()
