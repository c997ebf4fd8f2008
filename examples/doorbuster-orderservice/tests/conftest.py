"""The reference service on a free port, new for each test."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from doorbuster.plugin import Context
from order_service import Service

from doorbuster_orderservice import OrderService


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service that runs in a thread of this process."""
    found = Service(str(tmp_path / "orders.db"))
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    if not found.stopped.is_set():
        found.stop()
    thread.join()


@pytest.fixture
def plugin(service: Service, context: Context) -> Iterator[OrderService]:
    """The plugin under test; two orders per request, so that batches take several."""
    url = f"http://127.0.0.1:{service.port}"
    options = OrderService.Options(url=url, orders_max=2, reply_s=0.2)
    found = OrderService(options, context)
    yield found
    found.close()
