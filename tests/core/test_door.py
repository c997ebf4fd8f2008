"""The door: callers become batches; nobody waits for ever, and nobody is forgotten."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from doorbuster.door import Door
from doorbuster.model import Attempt
from doorbuster.outcomes import Code, Outcome
from doorbuster.settings import Door as DoorSettings

DONE = Outcome(Code.ACCEPTED, order_no="n")


class Room:
    """Decides batches, and keeps what it was given; ``gate`` holds workers back."""

    def __init__(self):
        self.batches = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.answer = lambda attempts: [
            Outcome(Code.ACCEPTED, order_no=attempt.buyer) for attempt in attempts
        ]

    def decide(self, attempts):
        self.batches.append([attempt.buyer for attempt in attempts])
        self.entered.release()
        assert self.gate.wait(10)
        return self.answer(attempts)


@pytest.fixture
def room():
    found = Room()
    yield found
    found.gate.set()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as found:
        yield found


def attempt(n):
    return Attempt([], f"b{n}", "r1")


async def ask(door, one):
    """A caller: it takes BUSY at once, or waits for its outcome."""
    found = door.submit(one)
    return found if isinstance(found, Outcome) else await found


async def settle(turns=20):
    """Let the loop turn, so that submitted work reaches the inbox."""
    for _ in range(turns):
        await asyncio.sleep(0)


def at_the_door(room, pool, work, **settings):
    """Run ``work(door)`` on a loop of its own; everything must end within 10 s."""

    async def main():
        door = Door(room.decide, DoorSettings(**settings), pool, asyncio.get_running_loop())
        return await asyncio.wait_for(work(door), 10)

    return asyncio.run(main())


def test_a_full_batch_goes_at_once(room, pool):
    """``batch_max`` attempts never linger, and never more travel together."""

    async def work(door):
        return await asyncio.gather(*(ask(door, attempt(n)) for n in range(8)))

    outcomes = at_the_door(room, pool, work, batch_max=4, linger_ms=1000, threads=2)
    assert sorted(map(len, room.batches)) == [4, 4]
    assert [o.order_no for o in outcomes] == [f"b{n}" for n in range(8)], "each got its own"


def test_a_lonely_attempt_waits_only_for_linger(room, pool):
    """Company is not required."""

    async def work(door):
        return await ask(door, attempt(1))

    assert at_the_door(room, pool, work, batch_max=100, linger_ms=1).order_no == "b1"
    assert room.batches == [["b1"]]


def test_attempts_that_come_while_all_workers_are_busy_travel_together(room, pool):
    """Nothing is gained by flushing to a busy pool: the next batch fills."""
    room.gate.clear()

    async def work(door):
        first = asyncio.create_task(ask(door, attempt(0)))
        await asyncio.to_thread(room.entered.acquire)
        rest = [asyncio.create_task(ask(door, attempt(n))) for n in range(1, 6)]
        await asyncio.sleep(0.01)
        assert len(room.batches) == 1
        room.gate.set()
        return await asyncio.gather(first, *rest)

    outcomes = at_the_door(room, pool, work, batch_max=100, linger_ms=0, threads=1)
    assert room.batches == [["b0"], ["b1", "b2", "b3", "b4", "b5"]]
    assert [o.order_no for o in outcomes] == [f"b{n}" for n in range(6)]


def test_s0_40_a_full_inbox_sheds_at_once(room, pool):
    """BUSY with a time to come again, without waiting for a worker."""
    room.gate.clear()

    async def work(door):
        first = asyncio.create_task(ask(door, attempt(0)))
        await asyncio.to_thread(room.entered.acquire)
        waiting = [asyncio.create_task(ask(door, attempt(n))) for n in range(1, 4)]
        await settle()
        shed = await ask(door, attempt(9))
        room.gate.set()
        return shed, await asyncio.gather(first, *waiting)

    shed, others = at_the_door(room, pool, work, inbox_max=3, threads=1, linger_ms=0)
    assert (shed.code, shed.detail) == (Code.BUSY, {"reason": "inbox-full"})
    assert shed.retry_after_ms
    assert [o.code for o in others] == [Code.ACCEPTED] * 4


def test_c7_cancelling_a_caller_cancels_nothing_but_its_waiting(room, pool):
    """The batch under way runs to its end, and its other callers are answered."""
    room.gate.clear()

    async def work(door):
        tasks = [asyncio.create_task(ask(door, attempt(n))) for n in range(3)]
        await asyncio.to_thread(room.entered.acquire)
        tasks[1].cancel()
        await settle()
        room.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, gone, third = at_the_door(room, pool, work, batch_max=3, linger_ms=0)
    assert isinstance(gone, asyncio.CancelledError)
    assert [first.order_no, third.order_no] == ["b0", "b2"]
    assert room.batches == [["b0", "b1", "b2"]]


def test_draining_answers_everybody_inside_and_nobody_after(room, pool):
    """Waiting ones too, without their linger; later ones are BUSY."""

    async def work(door):
        tasks = [asyncio.create_task(ask(door, attempt(n))) for n in range(10)]
        await settle()
        await door.drain()
        late = await ask(door, attempt(99))
        await door.drain()
        return late, await asyncio.gather(*tasks)

    late, outcomes = at_the_door(room, pool, work, batch_max=4, linger_ms=1000, threads=1)
    assert [o.code for o in outcomes] == [Code.ACCEPTED] * 10
    assert (late.code, late.detail) == (Code.BUSY, {"reason": "draining"})
    assert sum(map(len, room.batches)) == 10


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(1), MemoryError()])
def test_a_decision_that_raises_is_pending_and_no_traceback(room, pool, error):
    """It may be applied, so nobody guesses; the door lives on."""

    def fail(_attempts):
        raise error

    async def work(door):
        good, room.answer = room.answer, fail
        bad = await asyncio.gather(ask(door, attempt(1)), ask(door, attempt(2)))
        room.answer = good
        return bad, await ask(door, attempt(3))

    bad, after = at_the_door(room, pool, work, linger_ms=0)
    assert [o.code for o in bad] == [Code.PENDING] * 2
    assert after.code is Code.ACCEPTED


def test_a_decision_of_the_wrong_length_is_pending(room, pool):
    """Else somebody would get another's answer, or none."""

    async def work(door):
        return await asyncio.gather(ask(door, attempt(1)), ask(door, attempt(2)))

    room.answer = lambda attempts: [DONE]
    outcomes = at_the_door(room, pool, work, linger_ms=1, batch_max=2)
    assert [o.code for o in outcomes] == [Code.PENDING] * 2


def test_a_closed_pool_answers_busy_instead_of_hanging(room):
    """An engine closed under its callers: what was not started is BUSY, every one of it."""
    pool = ThreadPoolExecutor(1)

    async def work(door):
        tasks = [asyncio.create_task(ask(door, attempt(n))) for n in range(50)]
        pool.shutdown()
        return await asyncio.gather(*tasks)

    outcomes = at_the_door(room, pool, work, batch_max=1, linger_ms=0)
    assert {o.code for o in outcomes} == {Code.BUSY}
    assert room.batches == []


def test_a_loop_that_is_gone_harms_nobody(room, pool):
    """Its batch is decided to the end; there is nobody left to tell."""
    room.gate.clear()

    async def main():
        door = Door(room.decide, DoorSettings(linger_ms=0), pool, asyncio.get_running_loop())
        task = asyncio.create_task(ask(door, attempt(1)))
        await asyncio.to_thread(room.entered.acquire)
        task.cancel()

    asyncio.run(main())
    room.gate.set()
    pool.shutdown(wait=True)
    assert room.batches == [["b1"]]


def test_a_deadline_passes_in_the_inbox_while_every_thread_is_busy(room, pool):
    """It is answered then, not when a thread is free again; those who have time go on waiting."""

    async def work(door):
        room.gate.clear()
        busy_one = asyncio.create_task(ask(door, attempt(0)))
        await asyncio.to_thread(room.entered.acquire)
        soon = msgspec.structs.replace(attempt(1), deadline_s=time.monotonic() + 0.01)
        late = asyncio.create_task(ask(door, soon))
        patient = asyncio.create_task(ask(door, attempt(2)))
        outcome = await late
        assert not room.gate.is_set()
        room.gate.set()
        return outcome, await busy_one, await patient

    outcome, first, last = at_the_door(room, pool, work, linger_ms=0, threads=1)
    assert (outcome.code, outcome.detail) == (Code.BUSY, {"reason": "deadline"})
    assert (first.order_no, last.order_no) == ("b0", "b2")
    assert room.batches == [["b0"], ["b2"]]


# ------------------------------------------------------------------ through the engine
def test_1000_equal_identities_at_once_are_one_decision(make_stand):
    """The same buyer a thousand times: one order, and everybody hears the same (2.4)."""
    stand = make_stand(door={"batch_max": 1000, "linger_ms": 50}, sale={"per_buyer": 1})

    async def crowd():
        asks = (
            stand.engine.attempt("drop", "gold", buyer="ann", request_id="r1") for _ in range(1000)
        )
        return await asyncio.gather(*asks)

    outcomes = asyncio.run(crowd())
    assert set(map(repr, outcomes)) == {repr(outcomes[0])}
    assert outcomes[0].code is Code.ACCEPTED
    assert [row["n"] for row in stand.rows("outbox")] == [1]
    assert len(stand.rows("intents")) == 1


def test_a_thousand_equal_identities_over_many_batches_are_one_order(make_stand, names):
    """Also when they do not share a batch; a thousand request_ids of one buyer meet the limit."""
    stand = make_stand(door={"batch_max": 64, "linger_ms": 0}, sale={"per_buyer": 1})

    async def crowd(request_id):
        asks = (
            stand.engine.attempt("drop", "gold", buyer="ann", request_id=request_id(n))
            for n in range(1000)
        )
        return await asyncio.gather(*asks)

    same = asyncio.run(crowd(lambda n: "r1"))
    assert {(o.name, o.order_no) for o in same} == {("ACCEPTED", same[0].order_no)}
    others = asyncio.run(crowd(lambda n: f"x{n}"))
    assert set(names(others)) == {"OVER_LIMIT"}
    assert len(stand.rows("intents")) == 1


def test_an_attempt_that_is_not_started_in_time_is_busy(make_stand, clock):
    """C6: past its deadline nothing is begun; the rest of the batch is sold."""
    stand = make_stand()
    admit = stand.runtime.admit
    late = admit(stand.attempt("ann"), clock.monotonic_s() + 1)
    good = admit(stand.attempt("bob"), clock.monotonic_s() + 3)
    clock.advance(2)
    outcomes = stand.engine._decide(stand.runtime, [late, good, late])
    assert [o.name for o in outcomes] == ["BUSY", "ACCEPTED", "BUSY"]
    assert outcomes[0].detail == {"reason": "deadline"}
    assert set(stand.states()) == {("bob", "r1")}
    assert stand.engine._decide(stand.runtime, [late])[0].code is Code.BUSY
    zero = asyncio.run(
        stand.engine.attempt("drop", "gold", buyer="cat", request_id="r1", timeout_ms=-1)
    )
    assert zero.detail == {"reason": "deadline"}
    never = asyncio.run(
        stand.engine.attempt("drop", "gold", buyer="cat", request_id="r1", timeout_ms=0)
    )
    assert never.code is Code.ACCEPTED


def test_l14_accepts_under_way_are_bounded(make_stand):
    """Above the cap an attempt is BUSY, so that a slow database is not buried."""
    stand = make_stand(ledger={"accepts_max": 1, "wait_ms": 1})
    stand.engine._accepts.acquire()
    outcome = stand.buy("ann")
    assert (outcome.code, outcome.detail) == (Code.BUSY, {"reason": "accepts-max"})
    stand.engine._accepts.release()
    assert stand.buy("ann").code is Code.ACCEPTED


def test_c7_the_order_of_a_caller_who_left_exists(make_stand, plugins):
    """The caller is cancelled inside deduct; the attempt is accepted all the same."""
    inside, go_on = threading.Event(), threading.Event()

    def wait(batch):
        inside.set()
        assert go_on.wait(10)
        return [None] * len(batch)

    plugins.gate("slow", wait)
    stand = make_stand(pipeline={"filter": ["slow"]})

    async def leave():
        task = asyncio.create_task(
            stand.engine.attempt("drop", "gold", buyer="ann", request_id="r1")
        )
        await asyncio.to_thread(inside.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await stand.engine.drain()

    asyncio.run(leave())
    assert stand.drain() == 0
    assert stand.states() == {("ann", "r1"): "CREATED"}
    assert stand.result("ann").order_state == "CREATED"


def test_several_loops_share_one_engine(make_stand, together, names):
    """Each loop has its own door; loops that are over leave nothing behind."""
    stand = make_stand({"gold": 40})

    def loop(n):
        async def crowd():
            asks = (
                stand.engine.attempt("drop", "gold", buyer=f"b{n}-{i}", request_id="r1")
                for i in range(10)
            )
            outcomes = await asyncio.gather(*asks)
            await stand.engine.drain()
            return outcomes

        return asyncio.run(crowd())

    outcomes = [o for found in together(loop, 8) for o in found]
    assert names(outcomes).count("ACCEPTED") == 40
    assert names(outcomes).count("SOLD_OUT") == 40
    asyncio.run(stand.engine.attempt("drop", "gold", buyer="z", request_id="r1"))
    assert len(stand.engine._doors) == 1, "doors of closed loops are forgotten"
