"""The ground of :class:`~doorbuster.testing.suites.ledger.LedgerSuite`: sales on a real ledger."""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from doorbuster.ledger import Ledger
from doorbuster.testing.clock import ManualClock
from doorbuster.testing.suites.base import Suite
from doorbuster.testing.suites.ground import OpenSale
from doorbuster.testing.suites.ledger_probe import wrong_sums

__all__ = ["LedgerGround", "Open"]

Open = Callable[..., OpenSale]
"""Opens a sale; keywords are those of :class:`~doorbuster.testing.suites.ground.OpenSale`."""


class LedgerGround(Suite):
    """Fixtures of the ledger's laws; an author overrides ``ledger_url``."""

    ledgers: ClassVar[dict[str, Ledger]]
    """Ledgers of the class by URL: opened once, since compiling its statements costs most."""

    @classmethod
    def setup_class(cls) -> None:
        """Nothing is open yet."""
        cls.ledgers = {}

    @classmethod
    def teardown_class(cls) -> None:
        """Close what the tests opened."""
        for ledger in cls.ledgers.values():
            ledger.close()

    @pytest.fixture
    def ledger_url(self) -> str:
        """The URL of an empty database, or of one that only this class uses."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture 'ledger_url'")

    @pytest.fixture
    def ledger(self, ledger_url: str) -> Ledger:
        """A ledger of that database, its schema current, its clock a manual one."""
        if ledger_url not in self.ledgers:
            self.ledgers[ledger_url] = Ledger.open(ledger_url, ManualClock())
            self.ledgers[ledger_url].migrate()
        return self.ledgers[ledger_url]

    @pytest.fixture
    def opened(self, ledger: Ledger) -> Iterator[list[OpenSale]]:
        """Every sale that the test has opened; each must add up at its end."""
        sales: list[OpenSale] = []
        yield sales
        for sale in sales:
            assert wrong_sums(ledger, sale.sid) == []
            report = sale.report()
            assert report.violations == []
            assert report.balanced

    @pytest.fixture(autouse=True)
    def _everything_adds_up(self, opened: Any) -> None:
        """I1-I7 and protocol.md 8: after every test, by the report and by a reader of its own."""

    @pytest.fixture
    def shop(self, ledger: Ledger, opened: list[OpenSale]) -> Open:
        """Open a sale of ten gold at one place, unless it is told otherwise."""

        def shop(**wanted: Any) -> OpenSale:
            opened.append(OpenSale(ledger, **wanted))
            return opened[-1]

        return shop
