"""What the callers were told: their own record, kept apart from every counter of the engine."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from doorbuster.outcomes import Outcome

__all__ = ["Answers", "Latencies"]

_STEP: Final = math.log(1.02)


class Latencies:
    """Times in buckets of 2 %: quantiles of any number of attempts in bounded memory."""

    def __init__(self) -> None:
        """Start empty."""
        self._buckets: Counter[int] = Counter()

    def add(self, ms: float) -> None:
        """Count one time in milliseconds."""
        self._buckets[math.ceil(math.log(max(ms, 0.001)) / _STEP)] += 1

    def quantile(self, q: float) -> float:
        """The time in milliseconds that a share ``q`` of the attempts did not pass; 0 if none."""
        left = math.ceil(self._buckets.total() * q)
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return round(math.exp(bucket * _STEP), 3)
        return 0.0

    def summary(self) -> dict[str, float]:
        """The quantiles that reports name."""
        return {name: self.quantile(q) for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}


class Answers:
    """Outcomes by name, times, and the order number of every identity that was accepted."""

    def __init__(self, file: Path | None = None) -> None:
        """``file`` also gets one JSON line per ACCEPTED answer, as it comes, for audits."""
        self.outcomes: Counter[str] = Counter()
        self.latencies = Latencies()
        self.accepted: dict[tuple[str, str], str] = {}
        self.conflicts: list[tuple[tuple[str, str], str]] = []
        """ACCEPTED answers with another order number than the identity's first."""
        self._file: TextIO | None = None if file is None else file.open("a", encoding="utf-8")

    @property
    def attempts(self) -> int:
        """Attempts that were answered."""
        return self.outcomes.total()

    def by_code(self) -> Mapping[str, int]:
        """Outcomes by name, the most frequent first."""
        return dict(self.outcomes.most_common())

    def take(self, identity: tuple[str, str], outcome: Outcome, ms: float) -> None:
        """Keep the last answer to one attempt, and how long it took."""
        self.outcomes[outcome.name] += 1
        self.latencies.add(ms)
        if outcome.name != "ACCEPTED":
            return
        told = str(outcome.order_no)
        first = self.accepted.setdefault(identity, told)
        if first != told:
            self.conflicts.append((identity, told))
        if self._file is not None:
            buyer, request_id = identity
            line = {"buyer": buyer, "request_id": request_id, "order_no": told}
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()  # a killed process must leave what it has told

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
