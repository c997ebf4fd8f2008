"""A clock that moves only when it is told to, so that no test sleeps."""

from __future__ import annotations

import threading
from typing import Final

__all__ = ["START_S", "START_WALL_MS", "ManualClock"]

START_S: Final = 1000.0
"""What :meth:`ManualClock.monotonic_s` reads first: not 0, which code may take for "never"."""

START_WALL_MS: Final = 1_700_000_000_000
"""What :meth:`ManualClock.wall_ms` reads first (a day in November 2023)."""


class ManualClock:
    """A :class:`doorbuster.plugin.Clock` for tests. Safe for many threads."""

    def __init__(self) -> None:
        """Stand still at ``START_S`` and ``START_WALL_MS``."""
        self._lock = threading.Lock()
        self._passed_s = 0.0

    def monotonic_s(self) -> float:
        """Seconds: the start plus all advances."""
        with self._lock:
            return START_S + self._passed_s

    def wall_ms(self) -> int:
        """Milliseconds since 1970: the start plus all advances."""
        with self._lock:
            return START_WALL_MS + round(self._passed_s * 1000)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Let ``seconds`` pass at once unless ``event`` is set; answer whether it is set.

        Waiting is how time passes here: a single-threaded test never blocks.
        """
        if not event.is_set():
            self.advance(max(0.0, seconds))
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Move both clocks by ``seconds``; negative: a clock that a fault set back (L5)."""
        with self._lock:
            self._passed_s += seconds
