"""The door: attempts of many callers become batches of one sale.

An attempt waits in a bounded inbox for at most ``linger_ms`` or until ``batch_max`` are there,
then a worker thread decides the batch. A full inbox sheds at once with BUSY (S0-40). A caller
that goes away never takes its attempt with it: from the flush on, the batch runs to its end (C7).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from doorbuster.errors import ContractError
from doorbuster.logs import get_logger
from doorbuster.model import Attempt
from doorbuster.outcomes import Code, Outcome
from doorbuster.pipeline import busy
from doorbuster.settings import Door as DoorSettings

__all__ = ["Door"]

Decide = Callable[[Sequence[Attempt]], Sequence[Outcome]]
_WATCH_S = 0.05  # how late a deadline in a waiting inbox may be noticed
_DRAIN_STEP_S = 0.001  # answers come through the loop, so it must turn
_Waiting = tuple[Attempt, "asyncio.Future[Outcome]"]


class Door:
    """One sale's inbox on one event loop. Not thread-safe: use it from its loop."""

    def __init__(
        self,
        decide: Decide,
        settings: DoorSettings,
        pool: ThreadPoolExecutor,
        loop: asyncio.AbstractEventLoop,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``decide`` runs in ``pool``, at most ``settings.threads`` batches at once.

        ``now_s`` is the clock that attempts' ``deadline_s`` are readings of.
        """
        self._decide = decide
        self._settings = settings
        self._pool = pool
        self._loop = loop
        self._inbox: deque[_Waiting] = deque()
        self._running = 0
        self._now_s = now_s
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._closing = False
        self._log = get_logger("doorbuster.door")

    def submit(self, attempt: Attempt) -> Outcome | asyncio.Future[Outcome]:
        """Take an admitted attempt in; answer what to wait for, or BUSY at once.

        Cancelling the future only stops the waiting.
        """
        if self._closing:
            return busy("draining")
        if len(self._inbox) >= self._settings.inbox_max:
            return busy("inbox-full")
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._inbox.append((attempt, future))
        self._schedule()
        return future

    def _schedule(self) -> None:
        """Flush when a batch is full, else when the first attempt lingered long enough.

        While every worker runs a batch nothing is gained by flushing: the next batch fills.
        """
        while self._running < self._settings.threads and (
            len(self._inbox) >= self._settings.batch_max
        ):
            self._flush()
        if self._inbox and self._running >= self._settings.threads and self._watch is None:
            self._watch = self._loop.call_later(_WATCH_S, self._answer_late)
        if not self._inbox or self._running >= self._settings.threads or self._timer is not None:
            return
        self._timer = self._loop.call_later(self._settings.linger_ms / 1000, self._linger_over)

    def _linger_over(self) -> None:
        self._timer = None
        if self._inbox and self._running < self._settings.threads:
            self._flush()
        self._schedule()

    def _answer_late(self) -> None:
        """Answer BUSY where a deadline passed in the inbox: no thread may be free for long."""
        self._watch = None
        now_s = self._now_s()
        late = [one for one in self._inbox if _is_late(one[0], now_s)]
        if late:
            self._inbox = deque(one for one in self._inbox if not _is_late(one[0], now_s))
            for _, future in late:
                if not future.done():
                    future.set_result(busy("deadline"))
        self._schedule()

    def _flush(self) -> None:
        size = min(len(self._inbox), self._settings.batch_max)
        batch = [self._inbox.popleft() for _ in range(size)]
        self._running += 1
        attempts = [attempt for attempt, _ in batch]
        try:
            task = self._pool.submit(self._decide_safely, attempts)
        except RuntimeError:  # the pool is closed: nothing was started
            self._loop.call_soon(self._answer, batch, [busy("draining")] * size)
            return
        task.add_done_callback(lambda done: self._hand_back(batch, _outcomes_of(done, size)))

    def _hand_back(self, batch: Sequence[_Waiting], outcomes: Sequence[Outcome]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._answer, batch, outcomes)
        except RuntimeError:  # the loop is closed, and with it everybody who waited
            self._log.info("batch decided after its loop was closed", attempts=len(batch))

    def _decide_safely(self, attempts: Sequence[Attempt]) -> Sequence[Outcome]:
        try:
            outcomes = self._decide(attempts)
            if len(outcomes) == len(attempts):
                return outcomes
            raise ContractError(f"{len(outcomes)} outcomes for {len(attempts)} attempts")
        except BaseException as error:  # noqa: BLE001 - a caller gets an answer, never a traceback
            self._log.error("batch failed", error=f"{type(error).__name__}: {error}")
            # It may be applied: the same request_id gets the truth (protocol.md 4.6).
            return [Outcome(Code.PENDING, retry_after_ms=1000)] * len(attempts)

    def _answer(self, batch: Sequence[_Waiting], outcomes: Sequence[Outcome]) -> None:
        self._running -= 1
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            if not future.done():  # its caller may be gone
                future.set_result(outcome)
        self._schedule()

    async def drain(self) -> None:
        """Take no more attempts, and wait until every one inside is answered."""
        self._closing = True
        while self._inbox or self._running:
            while self._inbox and self._running < self._settings.threads:
                self._flush()
            await asyncio.sleep(_DRAIN_STEP_S)
        for timer in (self._timer, self._watch):
            if timer is not None:
                timer.cancel()
        self._timer = self._watch = None


def _is_late(attempt: Attempt, now_s: float) -> bool:
    return attempt.deadline_s is not None and now_s > attempt.deadline_s


def _outcomes_of(done: Future[Sequence[Outcome]], size: int) -> Sequence[Outcome]:
    """A batch's outcomes; whatever became of its task, every caller gets an answer."""
    if done.cancelled() or done.exception() is not None:
        return [Outcome(Code.PENDING, retry_after_ms=1000)] * size
    return done.result()
