"""The built-in persist plugin, and the order store in memory, keep the laws of persist."""

import pytest
import sqlalchemy as sa

from doorbuster.hookspecs import hookimpl
from doorbuster.plugin import PluginOptions
from doorbuster.testing import MemoryOrders, PersistSuite
from doorbuster_db_stock import Orders


class TestOrders(PersistSuite):
    """``orders``: in the ledger's own database."""

    @pytest.fixture
    def persist(self, context):
        return Orders(PluginOptions(), context)

    @pytest.fixture
    def find(self, kit):
        query = sa.text("SELECT count(*) FROM orders WHERE order_no = :no AND state = 'CREATED'")

        def find(order_no):
            with kit.ledger.database.read() as connection:
                return connection.execute(query, {"no": order_no}).scalar_one()

        return find


class TestMemoryOrders(PersistSuite):
    """A store outside the ledger's database."""

    @pytest.fixture
    def persist(self, context):
        return MemoryOrders(PluginOptions(), context)

    @pytest.fixture
    def find(self, persist):
        return persist.valid


class WriteOnly:
    """An order service that cannot take an order back."""

    def __init__(self, orders):
        self._orders = orders

    @hookimpl
    def persist(self, reservations):
        return self._orders.persist(reservations)


class TestWithoutVoid(TestMemoryOrders):
    """What a plugin without ``void`` loses is told: nothing it wrote can be returned."""

    @pytest.fixture
    def persist(self, context):
        return WriteOnly(MemoryOrders(PluginOptions(), context))

    @pytest.fixture
    def find(self, persist):
        return persist._orders.valid
