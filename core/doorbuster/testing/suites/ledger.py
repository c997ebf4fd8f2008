"""Laws of the ledger, for every database it runs on.

    class TestMine(LedgerSuite):
        @pytest.fixture
        def ledger_url(self, my_server):
            return my_server.database_url

Tests of the class may share one database: their sales are named so that they never meet.
"""

from __future__ import annotations

from doorbuster.testing.suites.ledger_accept import AcceptLaws
from doorbuster.testing.suites.ledger_orders import OrderLaws
from doorbuster.testing.suites.ledger_returns import ReturnLaws
from doorbuster.testing.suites.ledger_units import UnitLaws

__all__ = ["LedgerSuite"]


class LedgerSuite(AcceptLaws, OrderLaws, ReturnLaws, UnitLaws):
    """Override ``ledger_url``: the laws of protocol.md 4 and 5, and I1-I7 after each of them."""
