"""The suite of deduct plugins: routers, holders, and journals as far as they hold.

The whole of an author's test, for a holder::

    class TestMyStock(StockSuite):
        @pytest.fixture
        def stock(self, my_server, context):
            return MyStock(MyStock.Options(url=my_server), context)

        @pytest.fixture
        def probe(self, my_server):
            return MyProbe(my_server)  # raw reads, without MyStock

A router needs no probe: it holds nothing, so the ledger's rows say everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from doorbuster.testing.faults import Flaky
from doorbuster.testing.flow import Flow
from doorbuster.testing.machine import StockMachine
from doorbuster.testing.machine_sale import SaleMachine
from doorbuster.testing.suites.base import declined
from doorbuster.testing.suites.stock_faults import FaultLaws
from doorbuster.testing.suites.stock_ground import ROUTER, Books
from doorbuster.testing.suites.stock_holding import DeductLaws
from doorbuster.testing.suites.stock_returning import ReturnLaws
from doorbuster.testing.suites.stock_selling import SaleLaws
from doorbuster.testing.suites.stock_sharing import SharingLaws
from doorbuster.tiers import Bound, Tier

__all__ = ["StockSuite"]

_SOAK: Final = 50
_SLOW: Final = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


class StockSuite(DeductLaws, ReturnLaws, SaleLaws, FaultLaws, SharingLaws):
    """The fourteen laws of a deduct plugin, at its hooks and through a sale.

    Law 3 runs after every test. A plugin of tier journal is tested as the holder it also is; laws
    of ``freeze``, ``seed``, ``read`` and ``trim`` come with the first backend that accepts by
    itself. ``capabilities`` are what no hook can say.
    """

    max_examples: ClassVar[int] = 15
    """Runs of the state machine at the hooks; of a sale, whose steps cost more, a seventh."""
    stateful_step_count: ClassVar[int] = 20
    """Steps of a run."""

    def test_03_any_order_of_events_at_the_hooks(self, books: Books, stock: Any) -> None:
        """3. Deduct, replay, undo, return, fund, transfer, switch and fault match the model."""
        self._hooks(books, stock, 1)

    @pytest.mark.soak
    def test_03_any_order_of_events_at_the_hooks_soak(self, books: Books, stock: Any) -> None:
        """3. The same, fifty times as many runs."""
        self._hooks(books, stock, _SOAK)

    def test_03_any_order_of_events_in_a_sale(
        self, bound: Bound, open_sale: Callable[..., Flow], flaky: Flaky
    ) -> None:
        """3. Buying, replaying, returning, restocking, draining and faults match the model."""
        self._sale(bound, open_sale, flaky, 1)

    @pytest.mark.soak
    def test_03_any_order_of_events_in_a_sale_soak(
        self, bound: Bound, open_sale: Callable[..., Flow], flaky: Flaky
    ) -> None:
        """3. The same, fifty times as many runs."""
        self._sale(bound, open_sale, flaky, _SOAK)

    def _hooks(self, books: Books, stock: Any, times: int) -> None:
        probe = books.probe
        if probe is None:
            declined("is a router", ROUTER)
        self._run(lambda: StockMachine(stock, probe), self.max_examples * times)

    def _sale(self, bound: Bound, open_sale: Callable[..., Flow], flaky: Flaky, times: int) -> None:
        if self.capabilities.may_strand:
            declined("declares may_strand", "no model can say which buyer is refused")
        sale = open_sale(flaky=flaky, gold=6, per_buyer=3)
        holds, debits = bound.tier is not Tier.ROUTER, "debit" in bound.hooks
        examples = max(1, self.max_examples * times // 7)
        self._run(lambda: SaleMachine(sale, flaky, holds=holds, debits=debits), examples)

    def _run(self, make: Callable[[], RuleBasedStateMachine], examples: int) -> None:
        run_state_machine_as_test(
            make,  # type: ignore[arg-type]  # a factory will do (hypothesis docs), types name a class
            settings=settings(
                max_examples=examples,
                stateful_step_count=self.stateful_step_count,
                derandomize=True,
                database=None,
                deadline=None,
                phases=(Phase.generate, Phase.shrink),
                report_multiple_bugs=False,
                suppress_health_check=_SLOW,  # a backend may well be
            ),
        )
