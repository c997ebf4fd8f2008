"""A local token bucket per sale: never more than ``burst + per_second * t`` pass in ``t`` (L5).

One process, one bucket: with several doors the bound is the sum of theirs, so configure each
with its share. Time is the monotonic clock; a reading before the last one refills nothing.
"""

from __future__ import annotations

import threading
from typing import Annotated

import msgspec

from doorbuster.plugin import Batch, Context, PluginOptions, Rejection, Verdicts, hookimpl
from doorbuster_limiter._retry import rate_limited

__all__ = ["Rate"]


class _Bucket:
    """A level and the time it was true. Bounds are the caller's, so a reload keeps the level."""

    def __init__(self, level: float, at_s: float) -> None:
        self.lock = threading.Lock()
        self.level = level
        self.at_s = at_s

    def take(self, n: int, now_s: float, per_second: float, burst: float) -> tuple[int, float]:
        """Take up to ``n`` whole tokens in one step; answer how many, and the level left."""
        with self.lock:
            elapsed_s = now_s - self.at_s
            if elapsed_s > 0:  # a clock set back, or a thread that read it earlier, adds nothing
                self.level += elapsed_s * per_second
                self.at_s = now_s
            self.level = min(self.level, burst)
            taken = min(n, int(self.level))
            self.level -= taken
            return taken, self.level


class Rate:
    """``rate``: let ``per_second`` attempts of a sale pass, ``burst`` at once (S0-39)."""

    on_fault = "open"  # a rate protects the house; its own fault must not close it

    class Options(PluginOptions):
        """Settings under ``[plugins.rate]``."""

        per_second: Annotated[float, msgspec.Meta(gt=0)]
        """Attempts per second that pass in the long run; no default, because only a forecast
        of the peak says it (S0-39)."""
        burst: Annotated[float, msgspec.Meta(ge=1)] | None = None
        """Attempts that pass at once after a pause; default one second's worth, at least 1."""

    def __init__(self, options: Options, context: Context) -> None:
        """Buckets live in ``context.state``, so that a reload keeps their level."""
        self._per_second = options.per_second
        self._burst = max(1.0, options.per_second) if options.burst is None else options.burst
        self._clock = context.clock
        self._state = context.state

    @hookimpl
    def limit(self, batch: Batch) -> Verdicts:
        """Take one token per attempt in one step; the first ones pass, the rest are refused."""
        if not batch.attempts:
            return ()
        now_s = self._clock.monotonic_s()
        taken, level = self._bucket(batch.sale.id, now_s).take(
            len(batch), now_s, self._per_second, self._burst
        )
        refused = range(1, len(batch) - taken + 1)  # each waits for its own token
        passed: list[Rejection | None] = [None] * taken
        return passed + [rate_limited((n - level) / self._per_second) for n in refused]

    def _bucket(self, sale: str, now_s: float) -> _Bucket:
        key = f"bucket/{sale}"
        found = self._state.get(key)
        if found is None:  # setdefault: of two threads, one bucket wins for both
            found = self._state.setdefault(key, _Bucket(self._burst, now_s))
        bucket: _Bucket = found
        return bucket
