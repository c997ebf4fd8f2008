"""The composition root: one object that sells.

``Engine.open`` reads config, opens the ledger, compiles every mode and starts the workers of an
embedded process. Two colours, one object: ``attempt`` and ``result`` are for asyncio and go
through the door, which forms batches; ``attempt_batch`` and ``result_batch`` are plain calls.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from doorbuster.admission import Admission
from doorbuster.alarms import Alarms
from doorbuster.clock import Clock, SystemClock
from doorbuster.custody import Custody
from doorbuster.door import Door
from doorbuster.errors import BackendError, WiringError
from doorbuster.fulfilment import fulfil_batches
from doorbuster.identity import is_id
from doorbuster.ledger import Ledger, SaleRow
from doorbuster.loading import Given
from doorbuster.logs import get_logger
from doorbuster.model import Attempt, IntentState, Line, SaleState
from doorbuster.modes.control import follow_config
from doorbuster.outcomes import Code, Outcome
from doorbuster.pipeline import Pipeline, busy
from doorbuster.runtime import SaleRuntime
from doorbuster.sales import Sales
from doorbuster.settings import Settings, SettingsStore
from doorbuster.tiers import Tier
from doorbuster.windows import Counters, Windows
from doorbuster.wiring import Wiring
from doorbuster.workers.role import Tools
from doorbuster.workers.runner import ROLES, Runner, build_roles
from doorbuster.world import World

__all__ = ["Engine"]

_CLOSED = busy("engine-closed")
_NOT_DECIDED = busy("not-decided")
_POLL_S = 0.2  # how soon another node's pause or mode word is seen (design: mode)


class Engine:
    """A running doorbuster process. Use it as a context manager, plain or async."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        roles: Sequence[str] = tuple(ROLES),
        migrate: bool = True,
        follow: bool = True,
        plugins: Given | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """Open everything for ``settings``; ``roles`` run in threads of this process.

        ``migrate`` brings an older schema forward, else it is refused. ``follow`` takes what
        changed in config (a mode word, a router's places) to the ledger; who only looks does not.
        ``plugins`` are classes of the program itself by the word config uses, beside the
        installed ones. ``ledger`` is an open one, closed with the engine.

        Raises:
            ConfigError: the settings cannot be wired, or the ledger's schema is older.
            UnavailableError: the ledger cannot be reached.
        """
        self.settings = settings
        self.clock = clock or SystemClock()
        self.owner = f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(4)}"
        self.alarms = Alarms(self.clock)
        self.windows = Windows(self.clock)
        self.metrics = Counters()
        self._plugins = plugins
        self.ledger = ledger or Ledger.open(
            settings.ledger.url,
            self.clock,
            settings.environment,
            wait_ms=settings.ledger.wait_ms,
            settle_max_s=settings.workers.settle_max_s,
        )
        self._log = get_logger("doorbuster.engine")
        self._lock = threading.Lock()
        self._closed = False
        self._stop = threading.Event()
        try:
            if migrate:
                self.ledger.migrate()
            else:
                self.ledger.require_current()
            self._assemble(roles)
            if follow:
                self._follow_config()
        except BaseException:
            if hasattr(self, "wiring"):
                self.wiring.close()
            self.ledger.close()
            raise

    def _assemble(self, roles: Sequence[str]) -> None:
        settings = self.settings
        self.alarms.add(self.ledger.write_alarm)
        self._key = self.ledger.server_key(settings.keys.current)
        self._accepts = threading.BoundedSemaphore(settings.ledger.accepts_max)
        self.custody = Custody(
            self.ledger,
            self._key,
            clock=self.clock,
            alarm=self.alarms,
            runtime_of=lambda sale: self.world.runtimes.get(sale),
        )
        self._stores: MutableMapping[str, MutableMapping[str, Any]] = {}
        self.wiring = Wiring(
            settings,
            self.ledger,
            clock=self.clock,
            alarm=self.alarms,
            metrics=self.metrics,
            stores=self._stores,
            fulfil=self._fulfil,
            unsettled=self.custody.take,
            owner=self.owner,
            plugins=self._plugins,
        )
        self.world = World(
            settings,
            self.wiring,
            self.ledger,
            Admission(self._key, lines_max=settings.door.lines_max),
            clock=self.clock,
            alarm=self.alarms,
            windows=self.windows,
        )
        self._check_journal()
        self.alarms.add(lambda alarm: self.world.tell("alarm", alarm.sale, alarm))
        self.sales = Sales(self.world)
        self._pool = ThreadPoolExecutor(settings.door.threads, thread_name_prefix="door")
        self._doors: dict[tuple[int, str], tuple[asyncio.AbstractEventLoop, Door]] = {}
        tools = Tools(
            world=self.world,
            ledger=self.ledger,
            settings=settings.workers,
            settlements=self.custody.settlements,
            clock=self.clock,
            alarm=self.alarms,
            owner=self.owner,
        )
        self._new_runner: Callable[[], Runner] = lambda: Runner(build_roles(roles, tools), tools)
        self.runner = self._new_runner()
        self._poller = threading.Thread(target=self._poll, name="control-poll", daemon=True)

    def _check_journal(self) -> None:
        """A journal needs the role that brings its entries to the ledger."""
        for runtime in self.world.runtimes.values():
            for mode, pipeline in runtime.view.pipelines.items():
                if pipeline.kind == "J" and "apply" not in ROLES:
                    raise WiringError(
                        f"sale {runtime.id!r}, mode {mode!r}: journal 'stream' needs worker role "
                        "'apply', which this release does not have; use journal = 'ledger'",
                        sale=runtime.id,
                    )

    def _follow_config(self) -> None:
        """Take changed mode words of config to the ledger; a refused one is an alarm."""
        for row in self.ledger.sales():
            if row.sale in self.settings.sales and row.state is not SaleState.ENDED:
                try:
                    follow_config(self.ledger, self.settings, row)
                except WiringError as error:
                    self.alarms("mode-refused", "warning", row.sale, error=str(error))
        self.world.refresh()
        self.sales.grant_new_places()

    # ------------------------------------------------------------------ opening and closing
    @classmethod
    def open(
        cls,
        config: str | Path | None = "config",
        *,
        overrides: dict[str, Any] | None = None,
        roles: Sequence[str] = tuple(ROLES),
        clock: Clock | None = None,
        plugins: Given | None = None,
    ) -> Engine:
        """Open the engine of a config folder; ``overrides`` are tables above its layers.

        ``plugins`` are classes of the program itself, by the word config uses.

        Raises:
            ConfigError: everything wrong with the settings at once.
            UnavailableError: the ledger cannot be reached.
        """
        settings = SettingsStore(config, overrides=overrides).load().settings
        return cls(settings, roles=roles, clock=clock, plugins=plugins)

    def start(self) -> Self:
        """Start workers and the control poll; called by the context managers.

        Raises:
            RuntimeError: the engine was closed; open another one.
        """
        if self._closed:
            raise RuntimeError("this engine is closed; open another one")
        if not self._poller.is_alive():
            self._poller.start()
            self.runner.start()
        return self

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    async def __aenter__(self) -> Self:
        """Start."""
        return self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Answer everybody inside, then close."""
        await self.drain()
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    async def drain(self) -> None:
        """Take no more attempts on this loop, and answer all that wait."""
        loop = asyncio.get_running_loop()
        with self._lock:
            doors = [door for owner, door in self._doors.values() if owner is loop]
        await asyncio.gather(*(door.drain() for door in doors))

    def finish_work(self, *, progress: Callable[[int], None] = lambda left: None) -> int:
        """Stop the roles' threads and run the roles in this one until nothing is left.

        For the end of a job: ``progress`` hears what is left, and so does the caller, who gets
        what could not be done (see :meth:`Runner.drain`). The engine stays open, without workers.
        """
        self.runner.stop()
        self.runner = self._new_runner()
        return self.runner.drain(progress=progress)

    def close(self) -> None:
        """Stop workers and close everything; closing twice is closing once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._stop.set()
        self._pool.shutdown(wait=True)
        if self._poller.is_alive():
            self._poller.join()
        self.runner.stop()
        self.wiring.close()
        self.ledger.close()

    def _poll(self) -> None:
        while not self.clock.wait(self._stop, _POLL_S):
            try:
                self.world.refresh()
            except Exception as error:  # noqa: BLE001 - the next poll may succeed
                self._log.warning("control poll failed", error=str(error))

    # ------------------------------------------------------------------ selling, asyncio
    async def attempt(
        self,
        sale: str,
        sku: str | None = None,
        *,
        buyer: str,
        request_id: str,
        quantity: int = 1,
        lines: Sequence[Line] | None = None,
        ticket: str | None = None,
        facts: dict[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> Outcome:
        """Try to buy ``quantity`` of ``sku``, or all of ``lines``, and wait for the outcome.

        A refusal is an outcome, never an exception. The same ``request_id`` asks for the same
        attempt again. Cancelling the call does not cancel an attempt that is under way. What is
        not started after ``timeout_ms`` (default ``door.deadline_ms``; 0: never) is BUSY.
        """
        asked = Attempt(
            lines=lines if lines is not None else [Line(sku, quantity)],  # type: ignore[arg-type]  # raw values: admission answers INVALID
            buyer=buyer,
            request_id=request_id,
            ticket=ticket,
            facts=facts or {},
        )
        found = self.offer(sale, asked, timeout_ms=timeout_ms)
        if isinstance(found, Outcome):
            await asyncio.sleep(0)  # a caller in a tight loop must not starve the others
            return found
        return await found

    def offer(
        self, sale: str, attempt: Attempt, *, timeout_ms: int | None = None
    ) -> Outcome | asyncio.Future[Outcome]:
        """Start an attempt without waiting: its outcome when that is known at once, else a future.

        For a service on the running event loop, which waits for its own requests; see
        :meth:`attempt` for the rest. Cancelling the future only stops the waiting.

        Raises:
            RuntimeError: no event loop runs in this thread; nothing was started.
        """
        runtime = self._runtime(sale)
        if runtime is None:
            return _unknown_sale(sale)
        if self._closed:
            return _CLOSED
        admitted = runtime.admit(attempt, self._deadline_s(timeout_ms))
        if isinstance(admitted, Outcome):
            return admitted
        return self._door(runtime).submit(admitted)

    def _runtime(self, sale: Any) -> SaleRuntime | None:
        return self.world.runtimes.get(sale) if isinstance(sale, str) else None

    def _door(self, runtime: SaleRuntime) -> Door:
        loop = asyncio.get_running_loop()
        key = (id(loop), runtime.id)
        found = self._doors.get(key)
        if found is not None and found[0] is loop:
            return found[1]
        door = Door(
            lambda attempts: self._decide(runtime, attempts),
            self.settings.door,
            self._pool,
            loop,
            self.clock.monotonic_s,
        )
        with self._lock:  # loops of other threads come and go meanwhile
            gone = [old for old, (owner, _) in self._doors.items() if owner.is_closed()]
            for old in gone:
                del self._doors[old]
            self._doors[key] = (loop, door)
        return door

    async def result(
        self, sale: str, *, buyer: str, request_id: str, receipt: str | None = None
    ) -> Outcome | None:
        """Ask what became of an attempt; see :meth:`result_batch`."""
        loop = asyncio.get_running_loop()
        answers = await loop.run_in_executor(
            None, self.result_batch, sale, [(buyer, request_id)], [receipt]
        )
        return answers[0]

    # ------------------------------------------------------------------ selling, plain calls
    def attempt_batch(self, sale: str, attempts: Iterable[Attempt]) -> list[Outcome]:
        """Decide attempts of one sale, in batches of ``door.batch_max``; answers align."""
        runtime = self._runtime(sale)
        asked = list(attempts)
        if runtime is None:
            return [_unknown_sale(sale)] * len(asked)
        if self._closed:
            return [_CLOSED] * len(asked)
        deadline_s = self._deadline_s(0)
        admitted = [runtime.admit(attempt, deadline_s) for attempt in asked]
        todo = [n for n, found in enumerate(admitted) if isinstance(found, Attempt)]
        answers = [found if isinstance(found, Outcome) else _NOT_DECIDED for found in admitted]
        size = self.settings.door.batch_max
        for start in range(0, len(todo), size):
            part = todo[start : start + size]
            chunk = [found for n in part if isinstance(found := admitted[n], Attempt)]
            for n, outcome in zip(part, self._decide(runtime, chunk), strict=True):
                answers[n] = outcome
        return answers

    def result_batch(
        self,
        sale: str,
        identities: Sequence[tuple[str, str]],
        receipts: Sequence[str | None] = (),
    ) -> list[Outcome | None]:
        """Answer (buyer, request_id) pairs from the ledger's truth; ``None`` for the unknown.

        A receipt of a PENDING answer settles the attempt once its deadline is over; it must be
        of the same identity. BUSY when the ledger cannot be asked.
        """
        runtime = self._runtime(sale)
        row = None if runtime is None else runtime.view.row
        if runtime is None or row is None:
            return [None] * len(identities)
        asked = [n for n, pair in enumerate(identities) if all(map(is_id, pair))]
        answers: list[Outcome | None] = [None] * len(identities)  # of no identity: never asked
        try:
            found = self.ledger.results(row, [identities[n] for n in asked])
        except BackendError as error:
            self._log.warning("results unavailable", sale=sale, error=str(error))
            return [busy("ledger-unavailable")] * len(identities)
        for n, stored in zip(asked, found, strict=True):
            buyer, request_id = identities[n]
            receipt = receipts[n] if n < len(receipts) else None
            if stored is not None:
                answers[n] = stored
            elif receipt is not None:
                answers[n] = self.custody.by_receipt(
                    runtime, buyer, request_id, receipt, holds=self._holds(row)
                )
            else:
                answers[n] = runtime.known.pending(buyer, request_id, row.run)
        return answers

    def _holds(self, row: SaleRow) -> bool:
        """Whether a sale's deduct plugin holds units.

        What cannot be asked is taken for a holder: an undo too many is none, one too few leaks.
        """
        bound = self.world.deductor(row.sale, row.deduct)
        return bound is None or bound.tier is not Tier.ROUTER

    def release(
        self,
        sale: str,
        buyer: str,
        request_id: str,
        *,
        reason: str,
        actor: str,
        to: IntentState = IntentState.CANCELLED,
    ) -> bool:
        """Begin to give an accepted attempt's units back (protocol.md 4.4).

        Role ``compensate`` does the rest. False when its state does not allow it, or another
        change won. ``to`` is RELEASED before its order exists, CANCELLED or EXPIRED after it,
        REFUNDED once it is paid.

        Raises:
            WiringError: the persist plugin offers no ``void``.
            BackendError: the ledger cannot be reached.
        """
        runtime = self._runtime(sale)
        row = self.ledger.require_sale(sale)
        name = self.ledger.persist_of(row.sid, buyer, request_id)
        if runtime is not None and name is not None:
            if "void" not in self.wiring.bound(sale, name).hooks:
                raise WiringError(f"persist plugin {name!r} offers no void: a return needs it")
            runtime.known.drop(buyer, request_id)
        begun = self.ledger.begin_return(row, buyer, request_id, to=to, reason=reason, actor=actor)
        return begun is not None

    # ------------------------------------------------------------------ one batch
    def _deadline_s(self, timeout_ms: int | None) -> float | None:
        budget = self.settings.door.deadline_ms if timeout_ms is None else timeout_ms
        return self.clock.monotonic_s() + budget / 1000 if budget else None

    def _decide(self, runtime: SaleRuntime, attempts: Sequence[Attempt]) -> list[Outcome]:
        """Decide one batch under the cap on accepts under way (L14). Never raises."""
        if not self._accepts.acquire(timeout=self.settings.ledger.wait_ms / 1000):
            return [busy("accepts-max")] * len(attempts)
        try:
            return runtime.decide(attempts)
        except BaseException as error:  # noqa: BLE001 - a caller gets an answer, no traceback
            holds = self.world.pipeline(runtime).holds
            return self.custody.undecided(runtime, attempts, error, holds=holds)
        finally:
            self._accepts.release()

    def _fulfil(self, pipeline: Pipeline, batch: int) -> None:
        """Persist a committed batch in the request (INLINE); a fault leaves it claimable."""
        try:
            fulfil_batches(self.ledger, self.alarms, pipeline.sale, pipeline.persist, [batch])
            self.ledger.settle([batch])
        except BaseException as error:  # noqa: BLE001 - the accept stands, workers go on
            self._log.warning("inline persist failed", sale=pipeline.sale.id, error=str(error))
            self.alarms("inline-persist-failed", "warning", pipeline.sale.id)


def _unknown_sale(sale: Any) -> Outcome:
    shown = sale[:64] if isinstance(sale, str) else type(sale).__name__
    return Outcome(Code.INVALID, detail={"reason": "unknown-sale", "sale": shown})
