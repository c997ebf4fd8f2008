"""Every deduct plugin of this distribution keeps the fourteen laws of its tier."""

import pytest

from doorbuster.plugin import PluginOptions
from doorbuster.testing import MemoryHolder, MemoryProbe, StockSuite
from doorbuster_db_stock import AtomicStock, SegmentedStock


class TestMemory(StockSuite):
    """``memory``, one place."""

    @pytest.fixture
    def stock(self, context):
        return MemoryHolder(MemoryHolder.Options(), context)

    @pytest.fixture
    def probe(self, stock):
        return MemoryProbe(stock)


@pytest.mark.slow  # the same laws as the class above
class TestMemoryInThreePlaces(TestMemory):
    """``memory``, three places: units travel between them."""

    @pytest.fixture
    def stock(self, context):
        return MemoryHolder(MemoryHolder.Options(places=3), context)


class TestAtomic(StockSuite):
    """``db-atomic``: it keeps nothing, so a fork costs it nothing."""

    capabilities = StockSuite.Capabilities(forks=True)

    @pytest.fixture
    def stock(self, context):
        return AtomicStock(PluginOptions(), context)


class TestSegments(StockSuite):
    """``db-segments``, ten places."""

    capabilities = StockSuite.Capabilities(forks=True)

    @pytest.fixture
    def stock(self, context):
        return SegmentedStock(SegmentedStock.Options(), context)
