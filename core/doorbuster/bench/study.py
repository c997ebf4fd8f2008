"""``bench embedded --study``: how the door's p99 depends on linger and on thread switches.

Defaults are chosen from this table, not by taste: a crowd that waits for its answers (closed
loop), and a trickle and a stream that do not (open loop).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from doorbuster.bench.embedded import run_door
from doorbuster.bench.results import Result, percentile

__all__ = ["LINGERS_MS", "LOADS", "SWITCHES_MS", "study"]

LINGERS_MS: Final = (0.0, 1.0, 2.0, 5.0)
"""``door.linger_ms`` tried."""

SWITCHES_MS: Final = (5.0, 1.0, 0.2)
"""Thread switch intervals tried; Python's own is 5 ms."""

LOADS: Final = ((256, 0.0), (0, 500.0), (0, 3000.0))
"""(callers, 0) of a closed loop, (0, attempts a second) of an open one."""


def study(folder: Path, *, attempts: int, progress: Callable[[str], None]) -> list[Result]:
    """Measure every pair under every load, each on a fresh file.

    ``attempts`` are those of a closed loop; an open one runs for two seconds.
    """
    results = []
    for callers, per_s in LOADS:
        for switch_ms in SWITCHES_MS:
            for linger_ms in LINGERS_MS:
                load = f"{callers} callers" if callers else f"{per_s:g}/s"
                name = f"{load}, linger {linger_ms:g} ms, switch {switch_ms:g} ms"
                progress(name)
                file = folder / f"{callers}-{per_s}-{switch_ms}-{linger_ms}.db"
                n = int(per_s * 2) if per_s else attempts
                with _switch(switch_ms):
                    found = run_door(file, n, callers=callers, per_s=per_s, linger_ms=linger_ms)
                results.append(
                    Result(
                        name=name,
                        ours_per_s=round(len(found.answers) / found.seconds),
                        p50_ms=round(percentile(found.latencies_ms, 0.5), 2),
                        p99_ms=round(percentile(found.latencies_ms, 0.99), 2),
                        loop="open" if per_s else "closed",
                        concurrency=callers or None,
                        offered_per_s=per_s or None,
                        mix="100 % accepted, distinct random buyers",
                        topology="one process: door, accept and role persist",
                        fsync="SQLite WAL, synchronous FULL",
                    )
                )
    return results


@contextmanager
def _switch(interval_ms: float) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval_ms / 1000)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
