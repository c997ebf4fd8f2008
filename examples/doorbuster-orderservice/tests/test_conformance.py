"""The laws of persist plugins."""

from collections.abc import Callable

import pytest
from doorbuster.testing import PersistSuite
from order_service import Service

from doorbuster_orderservice import OrderService


class TestConformance(PersistSuite):
    """The plugin and the service are made in conftest.py, for the other tests use them too."""

    @pytest.fixture
    def persist(self, plugin: OrderService) -> OrderService:
        """The plugin under test."""
        return plugin

    @pytest.fixture
    def find(self, service: Service) -> Callable[[str], int]:
        """Look into the service's own store."""
        return service.valid
