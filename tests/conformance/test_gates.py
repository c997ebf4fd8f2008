"""Every built-in gate keeps the laws of gates."""

from typing import ClassVar

import msgspec
import pytest

from doorbuster.plugin import Batch, Code, Outcome, SoldOutRead
from doorbuster.testing import GateSuite
from doorbuster.testing.suites.ground import attempt
from doorbuster_limiter import BuyerRate, DenyList, Rate
from doorbuster_local_cache import SoldOut


class TestRate(GateSuite):
    """``rate``: a bucket per sale."""

    capabilities = GateSuite.Capabilities(per_second=2, burst=3)

    @pytest.fixture
    def rebuild(self, context):
        return lambda: Rate(Rate.Options(per_second=2, burst=3), context)

    @pytest.fixture
    def gate(self, rebuild):
        return rebuild()


class TestBuyerRate(GateSuite):
    """``buyer-rate``: a rate per buyer and sale."""

    capabilities = GateSuite.Capabilities(per_second=5, burst=2, per_buyer=True)

    @pytest.fixture
    def rebuild(self, context):
        return lambda: BuyerRate(BuyerRate.Options(per_second=5, burst=2), context)

    @pytest.fixture
    def gate(self, rebuild):
        return rebuild()


class TestDenyList(GateSuite):
    """``deny-list``: names and addresses."""

    @pytest.fixture
    def rebuild(self, context):
        options = DenyList.Options(
            buyers=frozenset({"mallory"}), ips=frozenset({"10.0.0.0/8", "2001:db8::1"})
        )
        return lambda: DenyList(options, context)

    @pytest.fixture
    def gate(self, rebuild):
        return rebuild()

    @pytest.fixture
    def refused(self):
        ips = ("10.1.2.3", "::ffff:10.9.9.9", "2001:db8::1", "no address")
        return [
            attempt("mallory"),
            *(attempt(f"at{n}", facts={"ip": ip}) for n, ip in enumerate(ips)),
        ]


class Truth:
    """A ledger whose last gold is sold."""

    def __init__(self, clock):
        self._clock = clock

    def sold_out(self, sale):
        return SoldOutRead(frozenset({"gold"}), 1, 1, self._clock.monotonic_s())


class TestSoldOut(GateSuite):
    """``sold-out``: somebody was told that gold is sold out; silver is there."""

    capabilities = GateSuite.Capabilities(per_sale=True)
    skus: ClassVar = {"gold": 1, "silver": 10}

    @pytest.fixture
    def rebuild(self, context, kit):
        return lambda: SoldOut(
            SoldOut.Options(), msgspec.structs.replace(context, ledger=Truth(kit.clock))
        )

    @pytest.fixture
    def gate(self, rebuild):
        return rebuild()

    @pytest.fixture
    def passing(self):
        return [attempt(f"buyer{n}", "silver") for n in range(5)]

    @pytest.fixture
    def refused(self, gate, sale):
        told = Batch(sale, [attempt("late", "gold")], "normal", 1)
        gate.batch_settled(told, [Outcome(Code.SOLD_OUT)])
        return [attempt("ann", "gold"), attempt("bob", lines={"gold": 1, "silver": 1})]
