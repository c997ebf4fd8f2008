"""Whether this process should be sent buyers: what ``/readyz`` says, without asking anybody."""

from __future__ import annotations

import threading
from typing import Final, Self

from doorbuster.engine import Engine

__all__ = ["Readiness"]

_LOOK_S: Final = 1.0  # one cheap read of the control rows
_FRESH_S: Final = 5.0  # a ledger that is silent for longer is taken for lost


class Readiness:
    """Looks at the ledger once a second in a thread of its own; requests read what it saw.

    Use it as a context manager around the time in which requests are served.
    """

    def __init__(self, engine: Engine) -> None:
        """``engine`` must be started."""
        self.draining = False
        """Set when this process was asked to end."""
        self._engine = engine
        self._seen_s = float("-inf")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="http-readiness", daemon=True)

    def __enter__(self) -> Self:
        """Look once, then go on looking."""
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join()

    def look(self) -> None:
        """Ask the ledger, and remember when it answered."""
        try:
            self._engine.ledger.sales()
        except Exception:  # noqa: BLE001 - a ledger that does not answer is what this is about
            return
        self._seen_s = self._engine.clock.monotonic_s()

    def problem(self) -> str | None:
        """Why no buyer should be sent here, or ``None``."""
        if self.draining:
            return "draining"
        silent_s = self._engine.clock.monotonic_s() - self._seen_s
        return "ledger" if silent_s > _FRESH_S else None

    def _watch(self) -> None:
        while not self._engine.clock.wait(self._stop, _LOOK_S):
            self.look()
