"""A closed loop of callers: each asks, waits for its answer, and only then asks again.

They behave as a good client does: BUSY and PENDING are asked again with the same request_id,
after the time the answer names, a bounded number of times.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from doorbuster.cli.answers import Answers
    from doorbuster.engine import Engine
    from doorbuster.outcomes import Outcome

__all__ = ["TRIES", "Ask", "Callers", "from_iterable", "from_slow_iterator"]

TRIES: Final = 5
"""Times one attempt is asked before its BUSY or PENDING stands."""

_PAUSE_MS: Final = 100
_PAUSE_MAX_MS: Final = 2000
_CHUNK: Final = 256  # rows read at a time
_PROGRESS_STEP: Final = 100  # attempts between two looks at the progress bar


class Ask(NamedTuple):
    """One attempt to make, with values as they were read: the engine judges them.

    ``due_s`` is when to ask, in seconds after the start; ``None``: at once.
    """

    buyer: Any
    request_id: Any
    lines: Any
    due_s: float | None = None


Next = Callable[[], Awaitable[Ask | None]]
"""Answers the next attempt, or ``None`` at the end."""


def from_iterable(asks: Iterable[Ask]) -> Next:
    """Hand out what a quick iterable yields."""
    rest = iter(asks)

    async def take() -> Ask | None:
        """The next one."""
        return next(rest, None)

    return take


def from_slow_iterator(rows: Iterator[Ask]) -> Next:
    """Hand out what another thread reads in chunks: a slow file stops no answer."""
    waiting: deque[Ask] = deque()
    lock = asyncio.Lock()
    ended = False

    def read() -> list[Ask]:
        return [row for _, row in zip(range(_CHUNK), rows, strict=False)]

    async def take() -> Ask | None:
        """The next one; the first caller that finds none reads on for all."""
        nonlocal ended
        while not waiting and not ended:
            async with lock:
                if not waiting and not ended:
                    waiting.extend(await asyncio.get_running_loop().run_in_executor(None, read))
                    ended = not waiting
        return waiting.popleft() if waiting else None

    return take


class Callers:
    """``concurrency`` callers that share one source of attempts."""

    def __init__(
        self,
        engine: Engine,
        sale: str,
        answers: Answers,
        *,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        """``on_progress`` hears how many attempts are answered, now and then."""
        self._engine = engine
        self._sale = sale
        self._answers = answers
        self._on_progress = on_progress
        self._started_s = 0.0

    async def run(self, source: Next, concurrency: int) -> float:
        """Make every attempt of ``source``; answer the seconds it took."""
        self._started_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(self._call(source))
        self._on_progress(self._answers.attempts)
        return time.perf_counter() - self._started_s

    async def _call(self, source: Next) -> None:
        answers = self._answers
        while (ask := await source()) is not None:
            if ask.due_s is not None:
                await asyncio.sleep(self._started_s + ask.due_s - time.perf_counter())
            asked_s = time.perf_counter()
            outcome = await self._ask(ask)
            waited_ms = (time.perf_counter() - asked_s) * 1000
            answers.take((ask.buyer, ask.request_id), outcome, waited_ms)
            if answers.attempts % _PROGRESS_STEP == 0:
                self._on_progress(answers.attempts)

    async def _ask(self, ask: Ask) -> Outcome:
        for tries_left in reversed(range(TRIES)):
            outcome = await self._engine.attempt(
                self._sale, buyer=ask.buyer, request_id=ask.request_id, lines=ask.lines
            )
            if outcome.name not in ("BUSY", "PENDING") or outcome.final or not tries_left:
                return outcome
            pause_ms = min(outcome.retry_after_ms or _PAUSE_MS, _PAUSE_MAX_MS)
            await asyncio.sleep(pause_ms / 1000 * (1 + random.random()))
        raise AssertionError("TRIES is at least 1")
