"""A rate per buyer and sale, one number each: the generic cell rate algorithm (S0-39, S4-25).

A buyer's number is the time at which all that passed would have been due, had it come evenly.
It slides, so there is no window edge at which twice the rate passes (L6): in any ``t`` at most
``burst + t / interval`` attempts of a buyer pass. A number in the past says nothing and is
forgotten, so the table holds only buyers who passed within ``burst * interval``.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Annotated, Final

import msgspec

from doorbuster.plugin import Batch, Context, PluginOptions, Rejection, Verdicts, hookimpl
from doorbuster_limiter._retry import rate_limited

__all__ = ["BuyerRate"]

_NS: Final = 1_000_000_000  # whole nanoseconds: sums of intervals stay exact
_EVICT: Final = 2  # looked at per attempt that passes: more than one added, so the table shrinks


class _Table:
    """(sale, buyer) -> due time in ns, in order of the last pass, oldest first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.due_ns: OrderedDict[tuple[str, str], int] = OrderedDict()


class BuyerRate:
    """``buyer-rate``: refuse a buyer who comes too often to one sale."""

    on_fault = "open"  # a rate protects the house; its own fault must not close it

    class Options(PluginOptions):
        """Settings under ``[plugins.buyer-rate]``."""

        per_second: Annotated[float, msgspec.Meta(gt=0)] = 5.0
        """Attempts per second and buyer that pass in the long run; default 5 (S0-39)."""
        every_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
        """Seconds between two attempts of a buyer; when given it replaces ``per_second``, for
        rates below one per second (S4-25 asks for 5)."""
        burst: Annotated[int, msgspec.Meta(ge=1)] | None = None
        """Attempts that pass at once; default 1 with ``every_s``, else one second's worth,
        because an impatient finger is not an attack."""
        buyers_max: Annotated[int, msgspec.Meta(ge=1)] = 1_000_000
        """Buyers kept, about 200 bytes each (measured); beyond it the one who passed longest ago is
        forgotten, so that memory is bounded and a real buyer is never refused for it."""

    def __init__(self, options: Options, context: Context) -> None:
        """The table lives in ``context.state``, so that a reload keeps who came when."""
        interval_s = options.every_s or 1.0 / options.per_second
        default_burst = 1 if options.every_s else max(1, int(options.per_second))
        self._interval_ns = max(1, round(interval_s * _NS))
        self._burst_ns = self._interval_ns * (options.burst or default_burst)
        self._buyers_max = options.buyers_max
        self._clock = context.clock
        self._table: _Table = context.state.setdefault("buyers", _Table())

    @hookimpl
    def limit(self, batch: Batch) -> Verdicts:
        """Judge each attempt by its buyer's own rate; later ones see earlier ones."""
        sale = batch.sale.id
        with self._table.lock:
            now_ns = round(self._clock.monotonic_s() * _NS)
            return [self._judge((sale, attempt.buyer), now_ns) for attempt in batch]

    def _judge(self, key: tuple[str, str], now_ns: int) -> Rejection | None:
        """Judge one attempt under the lock, in constant time."""
        due_ns = self._table.due_ns
        last_ns = due_ns.get(key, now_ns)
        if last_ns > now_ns + self._burst_ns:
            # A slower rate of before a reload, or a clock set back: keep the buyer out no
            # longer than the rate in force would.
            last_ns = due_ns[key] = now_ns + self._burst_ns
        next_ns = max(last_ns, now_ns) + self._interval_ns
        wait_ns = next_ns - now_ns - self._burst_ns
        if wait_ns > 0:
            return rate_limited(wait_ns / _NS)
        due_ns[key] = next_ns
        due_ns.move_to_end(key)
        self._forget(now_ns)
        return None

    def _forget(self, now_ns: int) -> None:
        """Drop at most two of the oldest: those who are idle, or anyone when over the bound.

        No scan: an idle buyer behind a busy one waits for a later turn.
        """
        due_ns = self._table.due_ns
        for _ in range(_EVICT):
            oldest = next(iter(due_ns))
            if due_ns[oldest] > now_ns and len(due_ns) <= self._buyers_max:
                return
            del due_ns[oldest]
