"""``bench core``: what the pipeline and the door cost, with nothing behind them but memory.

Cost is this thread's CPU time, the best of several rounds: other processes of the machine may
slow a round, none makes it faster.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from doorbuster.admission import Admission
from doorbuster.bench.loops import closed_loop
from doorbuster.bench.memory import MemoryLedger
from doorbuster.bench.results import Result, percentile
from doorbuster.bench.sale import attempts_of
from doorbuster.door import Door
from doorbuster.identity import ServerKey
from doorbuster.model import Attempt, Batch
from doorbuster.outcomes import Code, Outcome
from doorbuster.pipeline import Pipeline
from doorbuster.settings import Door as DoorSettings
from doorbuster.testing.flow import SALE, flow

__all__ = ["BAR_US", "bench"]

BAR_US: Final = 3.0
"""Microseconds of CPU per attempt: ``Pipeline.run`` at batch 256 (design: speed)."""

_BATCH: Final = 256
_ROUNDS: Final = 7
_KEY: Final = ServerKey(b"the key of a bench", "dev")
_MIX: Final = "100 % accepted, distinct buyers, limit 1"
_HERE: Final = "one process, one thread, memory backends"


def bench(*, attempts: int, progress: Callable[[str], None]) -> list[Result]:
    """Measure the pipeline over a router and over a holder, one by one and in batches, the door.

    Args:
        attempts: attempts per round.
        progress: told what is measured next.
    """
    results = []
    for deduct, what in (("db-atomic", "router"), ("memory", "holder")):
        progress(f"pipeline over a {what}")
        alone = _pipeline_us(deduct, attempts // 8, size=1)
        cost = _pipeline_us(deduct, attempts, size=_BATCH)
        results.append(_row(f"Pipeline.run, {what}, batch {_BATCH}", cost, alone))
    progress("door")
    results.append(_door(attempts))
    return results


def _row(name: str, us: float, alone_us: float) -> Result:
    met = "met" if us <= BAR_US else "NOT met"
    return Result(
        name=name,
        ours_per_s=round(1e6 / us),
        baseline="the same, one attempt per batch",
        baseline_per_s=round(1e6 / alone_us),
        ratio=round(alone_us / us, 2),
        concurrency=1,
        mix=_MIX,
        topology=_HERE,
        fsync="none",
        us_per_attempt=round(us, 2),
        bar=f"<= {BAR_US:g} us an attempt: {met}",
    )


@contextmanager
def _pipeline(deduct: str, units: int) -> Iterator[Pipeline]:
    """A compiled pipeline whose accept step is in memory.

    A holder was lent a fifth of ``units`` at warm-up, which is more than a round asks for.
    """
    with flow(deduct=deduct, skus={"gold": units}, per_buyer=1) as sale:
        pipeline = sale.engine.world.pipeline(sale.engine.world.runtimes[SALE])
        ledger: Any = MemoryLedger(units=units, per_buyer=1)
        yield msgspec.structs.replace(pipeline, ledger=ledger)


def _pipeline_us(deduct: str, attempts: int, *, size: int) -> float:
    """CPU microseconds per attempt of naming (fingerprint, order number) and ``Pipeline.run``."""
    best = float("inf")
    for number in range(_ROUNDS):
        asked = attempts_of(attempts, seed=number)
        with _pipeline(deduct, 8 * attempts) as pipeline:
            admit = Admission(_KEY, lines_max=16).admit
            sale = pipeline.sale
            batches = [asked[start : start + size] for start in range(0, len(asked), size)]
            outcomes: list[Outcome] = []
            gc.collect()
            began = time.thread_time()
            for part in batches:
                named: Any = [admit(sale, attempt, None) for attempt in part]
                outcomes += pipeline.run(Batch(sale, named, "normal", 1))
            best = min(best, time.thread_time() - began)
            _require_accepted(outcomes, len(asked))
    return best / attempts * 1e6


def _require_accepted(outcomes: Sequence[Outcome], wanted: int) -> None:
    """A bench that sold nothing would be the fastest."""
    accepted = sum(outcome.code is Code.ACCEPTED for outcome in outcomes)
    if accepted != wanted:
        raise RuntimeError(f"bench: {accepted} of {wanted} attempts were accepted")


def _door(attempts: int) -> Result:
    """The door alone: its batches are answered at once, so what is left is its own cost."""
    asked = attempts_of(attempts, seed=0)
    answer = Outcome(Code.ACCEPTED, order_no="0" * 32)
    callers = 256

    async def run() -> tuple[float, Sequence[float]]:
        with ThreadPoolExecutor(2) as pool:
            door = Door(
                lambda batch: [answer] * len(batch),
                DoorSettings(),
                pool,
                asyncio.get_running_loop(),
            )

            async def ask(attempt: Attempt) -> Outcome:
                found = door.submit(attempt)
                return found if isinstance(found, Outcome) else await found

            began = time.process_time()
            measured = await closed_loop(asked, ask, concurrency=callers)
            return time.process_time() - began, measured.latencies_ms

    cost, latencies = min((asyncio.run(run()) for _ in range(3)), key=lambda found: found[0])
    us = cost / attempts * 1e6
    return Result(
        name="door alone",
        ours_per_s=round(1e6 / us),
        p50_ms=round(percentile(latencies, 0.5), 2),
        p99_ms=round(percentile(latencies, 0.99), 2),
        concurrency=callers,
        mix="answered at once",
        topology="one process: an event loop and two threads",
        fsync="none",
        us_per_attempt=round(us, 2),
    )
