"""Logs of a command: structlog to stderr, so that stdout holds nothing but the result.

A fault that repeats (a full disk under 256 callers) says the same thing many times a second;
here it is said once in a few seconds, with a count.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

__all__ = ["configure", "hold_back", "speak"]

_QUIET_S: Final = 5.0
_KINDS_MAX: Final = 1000
_TRIES: Final = "transaction failed"  # told again, and better, by the error of the command

Event = MutableMapping[str, Any]


class _Stderr:
    """``sys.stderr`` of the moment: a progress bar puts its own in place, and lines go above it."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads it any more
            return sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()


class _Voice:
    """What is logged, and how; loggers that were made before a change follow it too."""

    def __init__(self) -> None:
        self.level = logging.WARNING
        self.renderer: Any = structlog.dev.ConsoleRenderer(colors=False, sort_keys=False)
        self.held_back: set[str] = set()
        self._last: dict[tuple[str, str], tuple[float, int]] = {}

    def sift(self, _logger: Any, method: str, event: Event) -> Event:
        """Drop what is below the level, held back, or was said a moment ago."""
        level = logging.getLevelNamesMapping().get(method.upper(), logging.ERROR)
        text = str(event.get("event"))
        if level < self.level or text in self.held_back:
            raise structlog.DropEvent
        key = (text, str(event.get("name") or event.get("sale")))
        now_s = time.monotonic()
        last_s, dropped = self._last.get(key, (float("-inf"), 0))
        if now_s - last_s < _QUIET_S:
            self._last[key] = (last_s, dropped + 1)
            raise structlog.DropEvent
        if len(self._last) >= _KINDS_MAX:
            self._last.clear()
        self._last[key] = (now_s, 0)
        if dropped:
            event["repeated"] = dropped
        return event

    def render(self, logger: Any, method: str, event: Event) -> Any:
        """Make the line."""
        return self.renderer(logger, method, event)


_voice: Final = _Voice()


def configure() -> None:
    """Send warnings and errors to stderr; to be called before the first logger is made."""
    speak("warning", "console")
    structlog.configure(
        processors=[
            _voice.sift,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _voice.render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.PrintLoggerFactory(_Stderr()),  # type: ignore[arg-type]  # all it needs of a file
        cache_logger_on_first_use=False,
    )


def speak(level: str, style: str) -> None:
    """Log ``level`` and above from now on, as ``console`` lines or ``json`` objects."""
    _voice.level = logging.getLevelNamesMapping()[level.upper()]
    _voice.renderer = (
        structlog.processors.JSONRenderer(default=str)
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False)
    )


def hold_back(*, tries: bool) -> None:
    """Leave the ledger's single tries out of the log while a command reports their error."""
    if tries:
        _voice.held_back.add(_TRIES)
    else:
        _voice.held_back.discard(_TRIES)
