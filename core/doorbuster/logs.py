"""The library's own voice: warnings to stderr, unless the application configured structlog.

A library must never print to stdout: whoever pipes a program's output would get our lines too.
An application that calls ``structlog.configure`` before it opens an engine gets every line its
own way; the command line does just that.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

__all__ = ["Logger", "get_logger"]


class _Stderr:
    """``sys.stderr`` of the moment, which an application or a test may have replaced."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class Logger:
    """A structlog logger whose calls never raise: a dead stderr must not stop a sale.

    Lines are written where faults are handled; one that failed there would leave callers without
    their answers and threads without their work.
    """

    def __init__(self, name: str) -> None:
        """Speak as ``name``; how is decided at each line, so configuring late works too."""
        self._name = name

    def debug(self, event: str, **fields: Any) -> None:
        """Say what only a developer asks for."""
        self._say("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Say what happened."""
        self._say("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Say what somebody should look at."""
        self._say("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Say what went wrong."""
        self._say("error", event, fields)

    def _say(self, level: str, event: str, fields: dict[str, Any]) -> None:
        try:
            logger = structlog.get_logger(self._name) if structlog.is_configured() else _OWN
            getattr(logger, level)(event, **fields)
        except Exception:  # noqa: BLE001, S110 - there is no other place to say it
            pass


_OWN = structlog.wrap_logger(
    structlog.PrintLogger(_Stderr()),  # type: ignore[arg-type]  # all it needs of a file
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.dev.ConsoleRenderer(colors=False),
    ],
    wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
)


def get_logger(name: str) -> Logger:
    """Make the logger of one part of the library, or of a plugin."""
    return Logger(name)
