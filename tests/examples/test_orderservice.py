"""The order service, installed: orders live in somebody else's process."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "examples/doorbuster-orderservice/tests/order_service.py"
BUYERS = [f"buyer{n}" for n in range(8)]


class Running:
    """The reference service as a process of its own, with its store in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    def start(self) -> int:
        """Start it; answers its port, a new one each time."""
        words = [sys.executable, str(SCRIPT), str(self._file)]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self.port

    def kill(self) -> None:
        """End it without a word."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def spoil(self, kind: str, times: int = 1) -> None:
        """Spoil the next requests."""
        body = json.dumps({"kind": kind, "times": times}).encode()
        url = f"http://127.0.0.1:{self.port}/faults"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(url, body)) as reply:
            assert reply.status == 200

    def orders(self) -> dict[str, str]:
        """State by order number, from its own store."""
        with closing(sqlite3.connect(self._file)) as db:
            return dict(db.execute("SELECT order_no, state FROM orders"))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    found = Running(tmp_path / "service.db")
    found.start()
    yield found
    found.kill()


@pytest.fixture
def to_service(config: Callable[..., None]) -> Callable[[int], None]:
    """Configure a sale whose orders go to the service at a port."""

    def to_service(port: int) -> None:
        config(
            '[pipeline]\npersist = "order-service"\n'
            f'[plugins.order-service]\nurl = "http://127.0.0.1:{port}"\nreply_s = 0.3\n'
            "orders_max = 2\n[workers]\nlease_s = 0.5\n"
        )

    return to_service


def accepted(tmp_path: Path) -> dict[str, str]:
    """State of the intent by order number, from the ledger's own rows."""
    with closing(sqlite3.connect(tmp_path / "doorbuster.db")) as db:
        return dict(db.execute("SELECT order_no, state FROM intents"))


def balanced(run: Callable[..., Any]) -> bool:
    """What ``reconcile`` says; it exits 1 when it is not."""
    return bool(run("reconcile")["balanced"])


def test_a_sale_ends_with_its_orders_there(run, service, to_service, ask, tmp_path) -> None:
    """replay, worker --drain, reconcile: every accepted attempt is one order in the service."""
    to_service(service.port)
    report = run("replay", ask(*BUYERS))
    assert report["outcomes"] == {"ACCEPTED": 5, "SOLD_OUT": 3}
    assert (report["lost"], report["duplicates"], report["unfinished"]) == (0, 0, 0)
    assert run("worker", "--drain")["drained"]
    assert service.orders() == dict.fromkeys(accepted(tmp_path), "created")
    assert set(accepted(tmp_path).values()) == {"CREATED"}
    assert balanced(run)


@pytest.mark.parametrize("fault", ["lose-reply", "503"])
def test_whatever_fails_is_one_order_in_the_end(
    run, service, to_service, ask, tmp_path, fault
) -> None:
    """Replies lost after their effect, a busy service: tried again, never twice."""
    to_service(service.port)
    service.spoil(fault, 2)
    run("replay", ask(*BUYERS))
    assert run("worker", "--drain")["drained"]
    assert service.orders() == dict.fromkeys(accepted(tmp_path), "created")
    assert balanced(run)


def test_a_service_that_is_down_keeps_nobody_from_buying(
    run, service, to_service, ask, tmp_path
) -> None:
    """It is killed: attempts are accepted all the same, and it gets its orders when it is back."""
    to_service(service.port)
    service.kill()
    report = run("replay", ask(*BUYERS), code=1)
    assert report["outcomes"]["ACCEPTED"] == 5
    assert report["unfinished"] > 0
    assert service.orders() == {}
    to_service(service.start())
    assert run("worker", "--drain")["drained"]
    assert service.orders() == dict.fromkeys(accepted(tmp_path), "created")
    assert balanced(run)


def test_it_is_found_and_described(run) -> None:
    """Doorbuster knows where orders of this plugin go back, and hides no option."""
    told = run("plugins", "info", "order-service")
    assert told["hooks"] == ["persist", "void"]
    assert told["not_offered"] == []
    assert [o["name"] for o in told["options"] if o["required"]] == ["url"]


def test_its_own_tests_pass(conformance) -> None:
    """The laws of persist, and what it makes of each failure."""
    assert "passed" in conformance("doorbuster-orderservice")
