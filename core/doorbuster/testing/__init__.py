"""What tests of sales and of plugins stand on: flows, conformance suites, faults, a manual clock.

Nothing here is needed to run a sale. A name is imported when it is first asked for, so that a
flow needs no hypothesis, and the in-memory backends no pytest.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from doorbuster.testing.clock import ManualClock
    from doorbuster.testing.faults import Flaky
    from doorbuster.testing.flow import Flow, flow, given
    from doorbuster.testing.kit import Kit
    from doorbuster.testing.machine import StockMachine
    from doorbuster.testing.memory import MemoryHolder
    from doorbuster.testing.memory_orders import MemoryOrders
    from doorbuster.testing.memory_queue import MemoryQueue
    from doorbuster.testing.probes import MemoryProbe, StockProbe
    from doorbuster.testing.suites.gate import GateSuite
    from doorbuster.testing.suites.ledger import LedgerSuite
    from doorbuster.testing.suites.persist import PersistSuite
    from doorbuster.testing.suites.queue import QueueSuite
    from doorbuster.testing.suites.source import SourceSuite
    from doorbuster.testing.suites.stock import StockSuite
    from doorbuster.testing.threads import together

__all__ = [
    "Flaky",
    "Flow",
    "GateSuite",
    "Kit",
    "LedgerSuite",
    "ManualClock",
    "MemoryHolder",
    "MemoryOrders",
    "MemoryProbe",
    "MemoryQueue",
    "PersistSuite",
    "QueueSuite",
    "SourceSuite",
    "StockMachine",
    "StockProbe",
    "StockSuite",
    "flow",
    "given",
    "together",
]

_HOMES: Final = {
    "Flaky": "faults",
    "Flow": "flow",
    "GateSuite": "suites.gate",
    "Kit": "kit",
    "LedgerSuite": "suites.ledger",
    "ManualClock": "clock",
    "MemoryHolder": "memory",
    "MemoryOrders": "memory_orders",
    "MemoryProbe": "probes",
    "MemoryQueue": "memory_queue",
    "PersistSuite": "suites.persist",
    "QueueSuite": "suites.queue",
    "SourceSuite": "suites.source",
    "StockMachine": "machine",
    "StockProbe": "probes",
    "StockSuite": "suites.stock",
    "given": "flow",
    "together": "threads",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module, once.

    Raises:
        AttributeError: there is no such name.
        ImportError: what it needs is not installed: ``pip install 'doorbuster[testing]'``.
    """
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return sorted(__all__)


class _Package(ModuleType):
    """This package: its name ``flow`` is the function, although a module is named so too."""

    @property
    def flow(self) -> Any:
        """:func:`doorbuster.testing.flow.flow`."""
        return importlib.import_module(f"{__name__}.flow").flow

    @flow.setter
    def flow(self, module: ModuleType) -> None:
        """The import of the module would put it in the function's place."""


sys.modules[__name__].__class__ = _Package
