"""``alarm(name, severity, sale, detail)`` is one thing everywhere.

It is a log line, a row in the ledger, a metric and an observer hook. Raising an alarm never
raises: a sink that fails is logged, and the others still hear it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from doorbuster.clock import Clock
from doorbuster.logs import get_logger

__all__ = ["Alarm", "Alarms", "Severity", "Sink"]


class Severity(StrEnum):
    """How soon a person must look."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Alarm(msgspec.Struct, frozen=True):
    """One alarm. ``at_ms`` is this host's wall clock, for people to read."""

    name: str
    severity: Severity
    at_ms: int
    sale: str | None = None
    detail: Mapping[str, Any] = {}


Sink = Callable[[Alarm], None]


class Alarms:
    """Fan an alarm out to its sinks, at most once per ``quiet_s`` and (name, sale)."""

    def __init__(self, clock: Clock, *, quiet_s: float = 1.0) -> None:
        """``quiet_s`` keeps a storm of equal alarms from flooding log and ledger."""
        self._clock = clock
        self._quiet_s = quiet_s
        self._sinks: list[Sink] = []
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str | None], tuple[float, int]] = {}
        self._log = get_logger("doorbuster.alarms")

    def add(self, sink: Sink) -> None:
        """Let ``sink`` hear every alarm from now on."""
        self._sinks.append(sink)

    def __call__(
        self,
        name: str,
        severity: Severity | str = Severity.WARNING,
        sale: str | None = None,
        **detail: Any,
    ) -> None:
        """Raise an alarm; equal ones within ``quiet_s`` are counted, and told by the next.

        A severity that is none counts as critical: a typo must not hide an alarm.
        """
        now = self._clock.monotonic_s()
        key = (name, sale)
        with self._lock:
            last, held = self._last.get(key, (float("-inf"), 0))
            if now - last < self._quiet_s:
                self._last[key] = (last, held + 1)
                return
            self._last[key] = (now, 0)
        if held:
            detail = {**detail, "repeated": held}
        known = severity in Severity.__members__.values()
        level = Severity(severity) if known else Severity.CRITICAL
        alarm = Alarm(name, level, self._clock.wall_ms(), sale, detail)
        self._log.warning("alarm", name=name, severity=str(level), sale=sale, detail=detail)
        for sink in tuple(self._sinks):
            try:
                sink(alarm)
            except BaseException as error:  # noqa: BLE001 - it must not fail what it reports
                self._log.error("alarm sink failed", name=name, error=repr(error))
