"""What a plugin under test is given: the ground that every suite and the fixture stand on."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any

from doorbuster.alarms import Alarm, Alarms
from doorbuster.context import Context
from doorbuster.ledger import Ledger
from doorbuster.logs import get_logger
from doorbuster.testing.clock import ManualClock
from doorbuster.testing.flow import Flow, flow
from doorbuster.windows import Counters

__all__ = ["Kit"]


class Kit:
    """One ledger in memory, one manual clock, and contexts of plugins that look at them.

    A plugin built with :meth:`context` can be put into a sale by :meth:`flow`: both see the same
    ledger and the same clock.
    """

    def __init__(self, url: str = "sqlite://") -> None:
        """Open an empty ledger."""
        self.clock = ManualClock()
        self.ledger = Ledger.open(url, self.clock)
        self.ledger.migrate()
        self.metrics = Counters()
        self.alarms: list[Alarm] = []
        """What plugins and the sale alarmed, oldest first."""
        self._alarm = Alarms(self.clock, quiet_s=0.0)
        self._alarm.add(self.alarms.append)

    def context(
        self,
        name: str = "plugin",
        *,
        state: MutableMapping[str, Any] | None = None,
        servers: Mapping[str, Any] | None = None,
        sale: str | None = None,
    ) -> Context:
        """A context as the core builds it; give ``state`` again to play a rebuild on reload."""
        return Context(
            name=name,
            environment=self.ledger.environment,
            clock=self.clock,
            alarm=self._alarm,
            metrics=self.metrics,
            log=get_logger(f"doorbuster.plugin.{name}"),
            ledger=self.ledger.view(),
            state={} if state is None else state,
            servers=servers or {},
            sale=sale,
        )

    def flow(self, **wanted: Any) -> AbstractContextManager[Flow]:
        """Open a sale on this ledger and clock; see :func:`doorbuster.testing.flow.flow`."""
        return flow(clock=self.clock, ledger=self.ledger, **wanted)

    def close(self) -> None:
        """Close the ledger; closing twice is closing once."""
        self.ledger.close()
