"""Two ways to load a door: callers that wait for their answers, and a clock that does not.

A closed loop measures what the door can do; its latency is that of a crowd as large as the door
makes it. An open loop sends by the clock, as buyers do, and counts a latency from the planned
time of sending: a door that stalls is charged for everybody who came meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import msgspec

__all__ = ["Measured", "closed_loop", "open_loop"]

T = TypeVar("T")
R = TypeVar("R")


class Measured(msgspec.Struct, Generic[R]):
    """Answers in the order of the items, seconds it took, latencies in ms, ascending."""

    answers: Sequence[R]
    seconds: float
    latencies_ms: Sequence[float]


async def closed_loop(
    items: Sequence[T], ask: Callable[[T], Awaitable[R]], *, concurrency: int
) -> Measured[R]:
    """Ask for every item, ``concurrency`` callers at once, each as soon as it is answered."""
    answers: list[R | None] = [None] * len(items)
    latencies: list[float] = [0.0] * len(items)
    numbers = iter(range(len(items)))

    async def caller() -> None:
        """Ask until nobody is left."""
        for n in numbers:
            began = time.perf_counter()
            answers[n] = await ask(items[n])
            latencies[n] = time.perf_counter() - began

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(min(concurrency, len(items)))))
    return _measured(answers, time.perf_counter() - began, latencies)


async def open_loop(
    items: Sequence[T], ask: Callable[[T], Awaitable[R]], *, per_s: float
) -> Measured[R]:
    """Ask for every item at its planned time, ``per_s`` a second, never waiting for answers."""
    answers: list[R | None] = [None] * len(items)
    latencies: list[float] = [0.0] * len(items)
    began = time.perf_counter()

    async def caller(n: int, planned: float) -> None:
        """Ask once, at the time it is."""
        answers[n] = await ask(items[n])
        latencies[n] = time.perf_counter() - planned

    tasks = []
    for n in range(len(items)):
        planned = began + n / per_s
        wait = planned - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        elif n % 64 == 0:
            await asyncio.sleep(0)  # behind the plan: the door must have its turn all the same
        tasks.append(asyncio.create_task(caller(n, planned)))
    await asyncio.gather(*tasks)
    return _measured(answers, time.perf_counter() - began, latencies)


def _measured(answers: Sequence[R | None], seconds: float, latencies: list[float]) -> Measured[R]:
    given = [answer for answer in answers if answer is not None]
    return Measured(given, seconds, sorted(1000 * latency for latency in latencies))
