"""The ground of :class:`~doorbuster.testing.suites.stock.StockSuite`: fixtures, books, law 3."""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from itertools import count
from typing import Any, ClassVar, Final

import pytest

from doorbuster import loading
from doorbuster.model import PerBuyer
from doorbuster.outcomes import Code, Outcome
from doorbuster.testing.faults import Flaky
from doorbuster.testing.flow import SALE, Flow, given
from doorbuster.testing.kit import Kit
from doorbuster.testing.probes import LedgerProbe, StockProbe
from doorbuster.testing.suites import base
from doorbuster.testing.suites.base import Race, declined, must_offer, racing
from doorbuster.testing.suites.stock_desk import Desk
from doorbuster.tiers import Bound, Tier, tier_problem

__all__ = ["ROUTER", "Books", "StockGround", "finish", "insist", "names"]

ROUTER: Final = "it holds nothing; the ledger decides, and the laws run through a sale"
_ROUNDS_MAX: Final = 500  # of the workers; a law needs a few dozen
_TRIES: Final = 8
_SWEEP_S: Final = 25.0  # older than any hold the sweeper spares, and its pause


class Books:
    """The desks and sales that one test opened, and law 3 over all of them."""

    def __init__(self, bound: Bound, probe: StockProbe | None) -> None:
        """Nothing is open yet."""
        self.bound = bound
        self.probe = probe
        self.desks: list[Desk] = []
        self.sales: list[Flow] = []
        self.flaky: list[Flaky] = []
        self.opened = ExitStack()
        """Closes the sales, after law 3 has looked at them."""

    def settle(self, sale: Flow) -> None:
        """Let every worker finish, and the sweeper find what nobody gave back."""
        assert finish(sale) == 0
        if "holds" in self.bound.hooks:
            sale.advance(_SWEEP_S)
            assert finish(sale) == 0

    def held(self, sale: Flow) -> int:
        """Units that a holder holds for ``sale`` in its epochs, over all places and skus."""
        seen = sale.engine.world.runtimes[SALE].view.sale
        epochs = {grant.epoch for grant in LedgerProbe(sale.ledger).grants(SALE)}
        if self.probe is None:
            return 0
        return sum(n for epoch in epochs for n in self.probe.held(seen, epoch).values())

    def check(self) -> None:
        """Law 3, by the probes."""
        for flaky in self.flaky:
            flaky.heal()
        for desk in self.desks:
            assert desk.conserved()
        for sale in self.sales:
            self.settle(sale)
            assert self.conserved(sale)

    def conserved(self, sale: Flow) -> bool:
        """Whether a settled sale adds up: the ledger's rows, and the holder's places with them."""
        ledger = LedgerProbe(sale.ledger)
        assert not ledger.wrong(SALE)
        if self.bound.tier is Tier.ROUTER or self.probe is None:
            return True
        seen = sale.engine.world.runtimes[SALE].view.sale
        for grant in ledger.grants(SALE):
            if grant.state != "ACTIVE":
                continue
            at = (grant.place, grant.sku)
            left = self.probe.left(seen, grant.epoch).get(at, 0)
            held = self.probe.held(seen, grant.epoch).get(at, 0)
            assert left >= 0
            assert left + held == grant.quantity, f"{at}: {left} left, {held} held: {grant}"
            assert held >= grant.consumed, f"{at}: {held} held: {grant}"
            if "holds" in self.bound.hooks:  # else a leak waits for the next epoch
                assert held == grant.consumed, f"{at}: {held} held: {grant}"
        return True


class StockGround(base.Suite):
    """Fixtures of the stock laws; an author overrides ``stock``, and ``probe`` for a holder."""

    class Capabilities(base.Capabilities, frozen=True, kw_only=True):
        """What a deduct plugin declares."""

        may_strand: bool = False
        """Units may stay unsold in a place while another place's buyers are refused."""
        forks: bool = False
        """An instance that was built before a fork goes on in the child."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    @pytest.fixture
    def stock(self, context: Any) -> Any:
        """The plugin instance under test, built with ``context``. To be overridden."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture 'stock'")

    @pytest.fixture
    def bound(self, stock: Any) -> Bound:
        """The instance with its hooks, found as the core finds them."""
        found, problems = _bind(stock)
        wrong = tier_problem(found)
        assert not problems, problems
        assert wrong is None, wrong
        assert "deduct" in found.hooks, "it offers no deduct"
        return found

    @pytest.fixture
    def probe(self, bound: Bound) -> StockProbe | None:
        """The author's raw look at a holder's backend; a router needs none. To be overridden."""
        if bound.tier is not Tier.ROUTER:
            pytest.fail(f"{type(self).__name__} tests a holder and needs a fixture 'probe'")
        return None

    @pytest.fixture
    def race(self, stock: Any) -> Iterator[Race]:
        """Threads that start at once and change between the lines of the plugin's modules."""
        with racing(stock) as run:
            yield run

    @pytest.fixture
    def books(self, bound: Bound, probe: StockProbe | None) -> Books:
        """What this test opened."""
        return Books(bound, probe)

    @pytest.fixture(autouse=True)
    def _law_3_conservation(self, books: Books) -> Iterator[None]:
        """3. After every test: remaining + held + accepted is what was credited."""
        with books.opened:
            yield
            books.check()

    @pytest.fixture
    def open_desk(self, books: Books) -> Callable[..., Desk]:
        """``open_desk(gold=5)``: a sale at the holder's hooks, epoch 1 open; skipped for a router.

        Each place is credited the units. ``per_buyer`` and ``own_limits`` are limits, ``flaky``
        the wrapper whose faults the law orders; ``epoch=0`` prepares nothing; ``after`` is the
        desk whose sale is created again.
        """
        if books.probe is None:
            declined("is a router", ROUTER)
        probe = books.probe

        def make(
            *,
            per_buyer: PerBuyer | None = None,
            own_limits: Mapping[str, int] | None = None,
            flaky: Flaky | None = None,
            epoch: int = 1,
            after: Desk | None = None,
            **units: int,
        ) -> Desk:
            desk = Desk(
                books.bound if flaky is None else _bind(flaky)[0],
                probe,
                f"h{len(books.desks)}" if after is None else after.sale.id,
                per_buyer=per_buyer,
                own_limits=own_limits,
                run=1 if after is None else after.sale.run + 1,
            )
            books.desks.append(desk)
            return desk.open(epoch, **units) if epoch else desk

        return make

    @pytest.fixture
    def open_sale(self, books: Books, stock: Any, kit: Kit) -> Callable[..., Flow]:
        """``open_sale(gold=5)``: a whole sale whose deduct is the plugin, started.

        The door remembers no answer, so that each replay reaches the plugin and the ledger.
        """

        def make(*, flaky: Flaky | None = None, **wanted: Any) -> Flow:
            named = ("per_buyer", "tables", "start")
            rest = {key: wanted.pop(key) for key in named if key in wanted}
            rest["tables"] = {"door": {"known_max": 0}, **rest.get("tables", {})}
            skus = wanted or {"gold": 10}
            plugins = {"stock": given(flaky or stock)}
            sale = books.opened.enter_context(
                kit.flow(deduct="stock", plugins=plugins, skus=skus, **rest)
            )
            books.sales.append(sale)
            return sale

        return make

    @pytest.fixture
    def flaky(self, books: Books, stock: Any, kit: Kit) -> Flaky:
        """The plugin, made to fail where a law says so."""
        found = Flaky(stock, kit.clock)
        books.flaky.append(found)
        return found

    def need(self, bound: Bound, hook: str) -> None:
        """Decline the law that runs now unless the plugin offers ``hook``."""
        must_offer(hook, bound.hooks)


@cache
def _manager() -> Any:
    return loading.new_manager()


def _bind(instance: Any) -> tuple[Bound, list[str]]:
    hooks, problems = loading.find_hooks(_manager(), instance, "stock", "stock")
    return Bound("stock", "stock", None, instance, hooks, "closed"), problems


def names(outcomes: Sequence[Outcome]) -> list[str]:
    """The code names of outcomes, in order."""
    return [outcome.name for outcome in outcomes]


def finish(sale: Flow) -> int:
    """Run the workers until nothing is left; answers what is left.

    Raises:
        AssertionError: they work on and on: each round believes that it changed something.
    """
    rounds = count(1)

    def progress(left: int) -> None:
        if next(rounds) > _ROUNDS_MAX:
            raise AssertionError(f"the workers never finish, {left} is left")

    return sale.engine.runner.drain(progress=progress)


def insist(sale: Flow, buyer: str, request_id: str, **need: Any) -> Outcome:
    """Ask until the answer is not BUSY: between two tries the workers get their turn."""
    outcome = sale.buy(buyer, request_id=request_id, **need)
    for _ in range(_TRIES):
        if outcome.code is not Code.BUSY:
            break
        finish(sale)
        outcome = sale.buy(buyer, request_id=request_id, **need)
    return outcome
