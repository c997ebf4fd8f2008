"""``bench embedded``: durable accepts on SQLite with persist running at once.

A rate counts orders in the database after the drain, over the time from the first attempt to the
last order; answers alone would flatter whoever leaves the work for later.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from doorbuster.bench.loops import Measured, closed_loop, open_loop
from doorbuster.bench.results import Result, percentile
from doorbuster.bench.sale import SKU, attempts_of
from doorbuster.engine import Engine
from doorbuster.model import Attempt
from doorbuster.outcomes import Code, Outcome
from doorbuster.settings import Settings
from doorbuster.settings.convert import convert

__all__ = ["BAR_PER_S", "bench", "opened", "run_door", "settings_for"]

BAR_PER_S: Final = 15_000
"""Durable accepts a second, on a fresh file and with 500,000 orders in it (design: speed)."""

_SALE: Final = "drop"
_FSYNC: Final = "SQLite WAL, synchronous FULL"
_MIX: Final = "100 % accepted, distinct random buyers, limit 1"
_HERE: Final = "one process: door, accept and role persist"
_UNITS: Final = 900_000_000


def settings_for(file: Path, **door: Any) -> Settings:
    """The embedded default over ``file``; ``door`` are keys of ``[door]``."""
    return convert(
        {
            "ledger": {"url": f"sqlite:///{file}"},
            "door": {"inbox_max": 100_000, "deadline_ms": 0, **door},
            "sales": {_SALE: {"skus": {SKU: _UNITS}, "per_buyer": 1}},
        }
    )


@contextmanager
def opened(file: Path, **door: Any) -> Iterator[Engine]:
    """An engine with its persist role running, its sale open."""
    with Engine(settings_for(file, **door), roles=("persist",)) as engine:
        engine.sales.start(_SALE, actor="bench")
        yield engine


def bench(
    folder: Path,
    *,
    attempts: int,
    orders: int,
    callers: int,
    progress: Callable[[str], None],
) -> list[Result]:
    """Measure on a fresh file, then with ``orders`` in it; plain calls, and through the door.

    Args:
        folder: an empty folder on the disk that is to be measured.
        attempts: attempts of each measurement.
        orders: how many orders the second file has; 0 leaves it out.
        callers: callers at once, of the door.
        progress: told what is measured next.
    """
    progress("baseline: one transaction per order")
    baseline = _one_by_one(folder / "baseline.db")
    results = []
    for name, there in (("fresh file", 0), (f"{orders:,} orders in it", orders)):
        if name != "fresh file" and not there:
            continue
        file = folder / f"bench-{there}.db"
        if there:
            progress(f"writing {there:,} orders")
            _fill(file, there)
        progress(f"{name}: plain calls")
        results.append(_row(f"plain calls, {name}", _plain(file, attempts), 2, baseline))
        progress(f"{name}: door")
        measured = run_door(file, attempts, callers=callers)
        results.append(_row(f"door, {name}", measured, callers, baseline))
    return results


def _row(name: str, measured: Measured[Outcome], concurrency: int, baseline: float) -> Result:
    per_s = len(measured.answers) / measured.seconds
    met = "met" if per_s >= BAR_PER_S else "NOT met"
    return Result(
        name=name,
        ours_per_s=round(per_s),
        baseline="one durable transaction per order, sqlite3",
        baseline_per_s=round(baseline),
        ratio=round(per_s / baseline, 1),
        p50_ms=round(percentile(measured.latencies_ms, 0.5), 2),
        p99_ms=round(percentile(measured.latencies_ms, 0.99), 2),
        concurrency=concurrency,
        mix=_MIX,
        topology=_HERE,
        fsync=_FSYNC,
        bar=f">= {BAR_PER_S:,} durable accepts/s: {met}",
    )


def _plain(file: Path, attempts: int) -> Measured[Outcome]:
    """Two threads that each call ``attempt_batch`` with whole batches."""
    latencies: list[float] = []
    answers: list[Outcome] = []
    with opened(file) as engine:
        size = engine.settings.door.batch_max
        asked = attempts_of(attempts, seed=time.time_ns())
        batches = [asked[start : start + size] for start in range(0, attempts, size)]

        def caller(mine: Sequence[Sequence[Attempt]]) -> None:
            for batch in mine:
                began = time.perf_counter()
                answers.extend(engine.attempt_batch(_SALE, batch))
                latencies.append(1000 * (time.perf_counter() - began))

        threads = [threading.Thread(target=caller, args=(batches[n::2],)) for n in range(2)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = _drained(engine, began)
    return _all_accepted(Measured(answers, seconds, sorted(latencies)), attempts)


def run_door(
    file: Path, attempts: int, *, callers: int = 0, per_s: float = 0, **door: Any
) -> Measured[Outcome]:
    """Send attempts through the door: ``callers`` in a closed loop, or ``per_s`` by the clock."""
    with opened(file, **door) as engine:
        asked = attempts_of(attempts, seed=time.time_ns())

        async def ask(attempt: Attempt) -> Outcome:
            """One caller at the door."""
            return await engine.attempt(
                _SALE, SKU, buyer=attempt.buyer, request_id=attempt.request_id
            )

        began = time.perf_counter()
        measured = asyncio.run(
            open_loop(asked, ask, per_s=per_s)
            if per_s
            else closed_loop(asked, ask, concurrency=callers)
        )
        seconds = _drained(engine, began)
    return _all_accepted(Measured(measured.answers, seconds, measured.latencies_ms), attempts)


def _drained(engine: Engine, began: float) -> float:
    """Seconds from ``began`` until every accepted attempt has its order."""
    row = engine.ledger.require_sale(_SALE)
    while engine.ledger.pending([row.sid]):
        time.sleep(0.005)
    return time.perf_counter() - began


def _all_accepted(measured: Measured[Outcome], attempts: int) -> Measured[Outcome]:
    """A bench of refusals would be the fastest."""
    accepted = sum(answer.code is Code.ACCEPTED for answer in measured.answers)
    if accepted != attempts:
        raise RuntimeError(f"bench: {accepted} of {attempts} attempts were accepted")
    return measured


def _fill(file: Path, orders: int) -> None:
    with opened(file) as engine:
        size = 4096
        for start in range(0, orders, size):
            engine.attempt_batch(_SALE, attempts_of(min(size, orders - start), seed=-1 - start))
        _drained(engine, 0.0)


def _one_by_one(file: Path, *, seconds: float = 1.0) -> float:
    """Orders a second of the usual way: check, insert and commit, one transaction each."""
    asked = iter(attempts_of(20_000, seed=1))
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE stock (sku TEXT PRIMARY KEY, left INTEGER)")
        connection.execute(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, buyer TEXT UNIQUE, request_id TEXT)"
        )
        connection.execute("INSERT INTO stock VALUES (?, ?)", (SKU, _UNITS))
        began, n = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < seconds:
            attempt = next(asked)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "UPDATE stock SET left = left - 1 WHERE sku = ? AND left > 0", (SKU,)
            )
            values = (attempt.buyer, attempt.request_id)
            connection.execute("INSERT INTO orders (buyer, request_id) VALUES (?, ?)", values)
            connection.execute("COMMIT")
            n += 1
    return n / passed
