"""Time, as one small object that tests can replace.

Deadlines and rates use :meth:`Clock.monotonic_s`; only the ledger's time judges a window, so
wall-clock differences between nodes decide nothing (Y9, protocol.md 3.4).
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """What the core and plugins ask for time."""

    def monotonic_s(self) -> float:
        """Seconds that never jump; only differences mean something."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970 on this host."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until ``event`` is set or ``seconds`` passed; answer whether it is set."""
        ...


class SystemClock:
    """The host's clocks."""

    def monotonic_s(self) -> float:
        """Seconds of the host's monotonic clock."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds since 1970 of the host's wall clock."""
        return time.time_ns() // 1_000_000

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait on ``event`` for at most ``seconds``."""
        return event.wait(seconds)
