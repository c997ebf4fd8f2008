"""What happened lately, in process: counts, outcome mix, error rate and latencies.

A ring of one-second buckets per sale, read by fuses and reports. Counters are cumulative. This
is not the metrics export; it is what the core itself decides by, so it needs no library.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence

import msgspec

from doorbuster.clock import Clock
from doorbuster.outcomes import Code, Outcome

__all__ = ["Counters", "Window", "Windows"]

_FAULTS = (Code.BUSY, Code.PENDING)
_SAMPLES_MAX = 512  # latencies kept per second: enough for a p99, bounded


class Window(msgspec.Struct, frozen=True):
    """What the last ``seconds`` held. ``error_rate`` is the share of BUSY and PENDING."""

    seconds: float
    attempts: int
    outcomes: Mapping[str, int]
    error_rate: float
    p50_ms: float
    p99_ms: float


class _Bucket:
    __slots__ = ("outcomes", "samples", "second")

    def __init__(self, second: int) -> None:
        self.second = second
        self.outcomes: Counter[Code] = Counter()
        self.samples: list[float] = []


class Windows:
    """Rings per sale. Thread-safe; a batch is recorded in one step."""

    def __init__(self, clock: Clock, *, seconds: int = 120) -> None:
        """Keep ``seconds`` of history per sale."""
        self._clock = clock
        self._seconds = seconds
        self._lock = threading.Lock()
        self._rings: dict[str, deque[_Bucket]] = {}

    def record(self, sale: str, outcomes: Sequence[Outcome], latency_ms: float) -> None:
        """Record a batch's outcomes and the time its attempts waited for them."""
        second = int(self._clock.monotonic_s())
        with self._lock:
            ring = self._rings.setdefault(sale, deque(maxlen=self._seconds))
            if not ring or ring[-1].second != second:
                ring.append(_Bucket(second))
            bucket = ring[-1]
            bucket.outcomes.update(outcome.code for outcome in outcomes)
            if len(bucket.samples) < _SAMPLES_MAX:
                bucket.samples.append(latency_ms)

    def last(self, sale: str, seconds: float) -> Window:
        """Sum up the last ``seconds`` of one sale."""
        since = self._clock.monotonic_s() - seconds
        outcomes: Counter[Code] = Counter()
        samples: list[float] = []
        with self._lock:
            for bucket in self._rings.get(sale, ()):
                if bucket.second >= since:
                    outcomes.update(bucket.outcomes)
                    samples.extend(bucket.samples)
        total = sum(outcomes.values())
        samples.sort()
        return Window(
            seconds=seconds,
            attempts=total,
            outcomes={code.name: n for code, n in sorted(outcomes.items())},
            error_rate=sum(outcomes[code] for code in _FAULTS) / total if total else 0.0,
            p50_ms=_quantile(samples, 0.50),
            p99_ms=_quantile(samples, 0.99),
        )


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))] if ordered else 0.0


class Counters:
    """Implements :class:`doorbuster.context.Metrics` in process, bounded per name."""

    _SERIES_MAX = 1000  # label sets per process; one more is counted under "other" (X17)

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def count(self, name: str, n: int = 1, **labels: str) -> None:
        """Add ``n``."""
        self._add(name, n, labels)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to ``name_sum`` and ``name_count``."""
        self._add(f"{name}_sum", value, labels)
        self._add(f"{name}_count", 1, labels)

    def _add(self, name: str, n: float, labels: Mapping[str, str]) -> None:
        key = (name, tuple(sorted(labels.items())))
        with self._lock:
            if key not in self._counts and len(self._counts) >= self._SERIES_MAX:
                key = (name, (("label", "other"),))
            self._counts[key] = self._counts.get(key, 0) + n

    def read(self) -> dict[str, float]:
        """All series as ``name{label=value}``."""
        with self._lock:
            return {
                name + ("{" + ",".join(f"{k}={v}" for k, v in labels) + "}" if labels else ""): n
                for (name, labels), n in sorted(self._counts.items())
            }
