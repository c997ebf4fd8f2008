"""`doorbuster serve`: it begins where it may, ends with every answer given, and may be killed."""

import http.client
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from doorbuster.errors import ConfigError
from doorbuster.http import server
from doorbuster.settings import Http

READY = {"alive": True}

pytestmark = pytest.mark.slow  # every one starts a process


# ------------------------------------------------------------------ the beginning
def test_ready_is_one_object_and_one_line(make_served, tools):
    """A script reads where it is, a person on stderr; then it sells, with the workers inside."""
    served = make_served()
    assert served.ready == {
        "url": f"http://127.0.0.1:{served.port}",
        "pid": served.process.pid,
        "sales": ["drop"],
    }
    assert served.told().splitlines() == [
        f"serving {served.ready['url']}; 1 sale; stop with Ctrl-C"
    ]
    assert served.call("GET", "/healthz").body == READY
    assert served.call("GET", "/readyz").body == {"ready": True}
    first = served.buy("ann")
    assert (first.status, first.name) == (200, "ACCEPTED")
    assert served.buy("ann").body == first.body
    tools.wait_for(lambda: served.result("ann").body.get("order_state") == "CREATED", "no order")
    assert served.result("ann").body["order_no"] == first.body["order_no"]
    assert served.result("bob").status == 404
    assert served.call("GET", "/v1/sales/drop").body["state"] == "open"
    assert served.end() == 0
    assert "Traceback" not in served.told()


def test_without_start_no_sale_is_started(make_served, command):
    """The ready line says what is to be done, and a sale started beside it is served."""
    served = make_served("--json")
    assert served.told() == (
        f"serving {served.ready['url']}; 1 sale, not started: drop (doorbuster sale start drop, or "
        "serve with --start); stop with Ctrl-C\n"
    )
    assert served.buy("ann").name == "NOT_STARTED"
    assert command(served.folder, "sale", "start", "drop").returncode == 0
    give_up_s = time.monotonic() + 20
    while served.buy("ann").name == "NOT_STARTED":
        assert time.monotonic() < give_up_s
        time.sleep(0.05)
    assert served.buy("ann").name == "ACCEPTED"


def test_start_starts_only_what_the_ledger_lacks(command, make_served):
    """A sale that an operator ended or paused stays as it is."""
    served = make_served()
    assert served.end() == 0
    assert command(served.folder, "sale", "pause", "drop").returncode == 0
    again = make_served(folder=served.folder)
    assert again.buy("ann").name == "CLOSED"
    assert again.end() == 0
    shown = command(served.folder, "sale", "status", "drop", "--json").stdout
    assert '"state": "paused"' in shown


def test_what_keeps_buyers_out_is_told_with_its_remedy(tmp_path, make_served, command, tools):
    """By what an operator left: each command is whole, and does what it is told for."""
    tools.write(tmp_path)
    for name in ("early", "late", "new", "over"):
        text = (tmp_path / "config/sales/drop.toml").read_text()
        (tmp_path / f"config/sales/{name}.toml").write_text(text)
    where = ("--config", "config", "--url", "sqlite:///my sales.db")
    for words in (
        ("start", "drop"), ("pause", "drop"), ("start", "over"), ("end", "over"), ("create", "new")
    ):  # fmt: skip
        assert command(tmp_path, "sale", *words, *where).returncode == 0
    served = make_served(*where, folder=tmp_path)
    end = " --config config --url 'sqlite:///my sales.db'"
    for part in (
        "5 sales",
        f", created: new (doorbuster sale start new{end})",
        f", paused: drop (doorbuster sale resume drop{end})",
        f", not started: early, late (doorbuster sale start SALE{end}, or serve with --start)",
        ", ended: over",
    ):
        assert part in served.told()
    assert "over (" not in served.told(), "what is over is meant to be"
    assert command(tmp_path, "sale", "start", "new", *where).returncode == 0
    assert command(tmp_path, "sale", "resume", "drop", *where).returncode == 0
    assert served.end() == 0
    assert "created" not in make_served(*where, folder=tmp_path).told()


def test_without_a_sale_it_says_where_one_is_written(tmp_path, make_served):
    """It serves all the same: a file that comes is followed."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "settings.toml").write_text("")
    served = make_served("--start", "--config", "mine", folder=tmp_path)
    assert "; 0 sales: write one as mine/sales/ID.toml" in served.told()
    assert "doorbuster init" in served.told()
    (tmp_path / "mine" / "sales").mkdir()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_ledger_in_memory_is_started_at_once_or_never(tmp_path, command, tools, url):
    """No other command can reach it, so it is refused with the key, its value and what to do."""
    tools.write(tmp_path)
    done = command(tmp_path, "serve", "--port", "0", "--url", url, "--json")
    assert done.returncode == 2
    said = json.loads(done.stdout)["error"]
    assert done.stderr == f"doorbuster: {said}\n"
    for part in (f"ledger.url: {url!r}", "memory", "drop", "serve --start", "sqlite:///doorbuster"):
        assert part in said


def test_a_ledger_in_memory_forgets_and_says_so(tmp_path, make_served, command, tools):
    """For a try; where --start is refused it is not offered."""
    served = make_served("--start", "--url", "sqlite://")
    assert "sqlite:// is in memory; all that is sold is forgotten" in served.told()
    assert served.buy("ann").name == "ACCEPTED"
    tools.write(tmp_path)
    done = command(
        tmp_path, "serve", "--port", "0", "--url", "sqlite://", DOORBUSTER_ENVIRONMENT="prod"
    )
    assert done.returncode == 2
    assert "name a file" in done.stderr
    assert "--start" not in done.stderr


@pytest.mark.parametrize("header", [None, "", "X Buyer", "Host", "idempotency-key", "X-B\u00fc"])
def test_a_buyers_header_is_a_header_of_the_gateways_own(header):
    """X1: an error that names the key and an example; without one also who must set it."""
    with pytest.raises(ConfigError, match=r'http\.buyer_header: .*"X-Buyer"') as caught:
        server.check(Http(buyer_header=header))
    assert (header is None) == ("as anybody" in str(caught.value))
    server.check(Http(buyer_header="X-Buyer"))


def test_it_refuses_to_serve_until_the_buyers_header_is_named(tmp_path, command, tools):
    """X1: exit 2, and nothing was begun."""
    tools.write(tmp_path)
    done = command(tmp_path, "serve", "--start", without=["DOORBUSTER_HTTP__BUYER_HEADER"])
    assert (done.returncode, done.stdout) == (2, "")
    assert "http.buyer_header: not set" in done.stderr
    assert not list(tmp_path.glob("*.db"))


def test_start_is_for_dev(tmp_path, command, tools):
    """Elsewhere a sale is started on purpose: exit 2, and how."""
    tools.write(tmp_path)
    done = command(tmp_path, "serve", "--start", "--json", DOORBUSTER_ENVIRONMENT="prod")
    assert done.returncode == 2
    assert "preflight" in done.stderr
    assert "doorbuster sale start SALE" in done.stderr
    assert done.stdout.startswith('{"error": ')
    assert not list(tmp_path.glob("*.db"))


@pytest.mark.parametrize("keep_alive_s", [1, 10**9])
def test_any_time_to_keep_a_connection_is_one_the_system_takes(keep_alive_s):
    """Who takes no answer is ended by the system, as far ahead as it can count."""
    server.listen(Http(buyer_header="X-Buyer", port=0, keep_alive_s=keep_alive_s)).close()


def test_an_address_that_cannot_be_had(tmp_path, command, tools):
    """Exit 2 and the key, before anything is opened."""
    tools.write(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = command(tmp_path, "serve", "--port", str(port))
        assert done.returncode == 2
        assert f"http.host, http.port: cannot listen on 127.0.0.1 port {port}" in done.stderr
    done = command(tmp_path, "serve", "--host", "256.0.0.1")
    assert done.returncode == 2
    assert "http.host" in done.stderr
    assert not list(tmp_path.glob("*.db"))


def test_without_the_extra_it_says_what_to_install(tmp_path, environment, tools):
    """Exit 2, whichever module is missing; no other command needs them."""
    tools.write(tmp_path)
    program = """
import sys
from doorbuster.cli.app import run
for module in ("uvicorn", "uvloop", "httptools"):
    sys.modules[module] = None
    assert run(["sale", "list"]) == 0
    assert run(["serve"]) == 2
    del sys.modules[module]
    for name in [name for name in sys.modules if name.startswith(("doorbuster.http", "uvicorn"))]:
        del sys.modules[name]
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    for module in ("uvicorn", "uvloop", "httptools"):
        assert f"needs module '{module}': pip install 'doorbuster[http]'" in done.stderr


# ------------------------------------------------------------------ the end
class Crowd:
    """Threads that buy without a pause, each on one connection, until it ends."""

    def __init__(self, served, tools, threads=8):
        self.accepted = {}
        self.lost = []
        self.goodbyes = 0
        self._served, self._tools = served, tools
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, n):
        connection = self._served.connect()
        for k in range(1_000_000):
            buyer = f"b{n}-{k}"
            try:
                found = self._tools.ask(
                    connection, "POST", "/v1/sales/drop/attempts", b'{"sku":"black"}',
                    self._tools.who(buyer),
                )  # fmt: skip
            except OSError:
                with self._lock:
                    self.lost.append(buyer)
                break
            with self._lock:
                if found.name == "ACCEPTED":
                    self.accepted[buyer] = found.body["order_no"]
                if found.headers.get("connection") == "close":
                    self.goodbyes += 1
                    break
        connection.close()

    def join(self):
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()


def orders_after(served, command):
    """Drain and reconcile what a service left; order numbers by buyer."""
    drained = command(served.folder, "worker", "--drain", "--json")
    assert drained.returncode == 0, drained
    assert command(served.folder, "reconcile", "--json").returncode == 0
    with sqlite3.connect(served.folder / "doorbuster.db") as db:
        rows = db.execute("SELECT buyer, order_no FROM orders").fetchall()
    db.close()
    assert len(dict(rows)) == len(rows), "an attempt has two orders"
    return dict(rows)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end_under_load_loses_no_answer(make_served, command, tools, number):
    """Whoever has asked is answered, told that the connection ends, and exit is 0."""
    served = make_served()
    crowd = Crowd(served, tools)
    tools.wait_for(lambda: len(crowd.accepted) > 200, "the crowd buys nothing")
    assert served.end(number) == 0
    crowd.join()
    assert crowd.lost == []
    assert crowd.goodbyes == 8
    orders = orders_after(served, command)
    assert orders == crowd.accepted
    assert "Traceback" not in served.told()


def test_kill_9_under_load_breaks_no_promise(make_served, command, tools):
    """Every ACCEPTED that a buyer read has exactly one order, with that number."""
    served = make_served()
    crowd = Crowd(served, tools)
    tools.wait_for(lambda: len(crowd.accepted) > 200, "the crowd buys nothing")
    assert served.end(signal.SIGKILL) == -signal.SIGKILL
    crowd.join()
    orders = orders_after(served, command)
    assert {buyer: orders.get(buyer) for buyer in crowd.accepted} == crowd.accepted
    assert len(orders) <= len(crowd.accepted) + len(crowd.lost)


def test_who_is_inside_gets_the_outcome(make_served, tools):
    """Asked to end while an attempt waits for its batch: it is decided, then answered."""
    served = make_served(door={"linger_ms": 500})
    answers = []
    buyer = threading.Thread(target=lambda: answers.append(served.buy("ann")))
    idle = served.connect()
    assert tools.ask(idle, "GET", "/readyz").status == 200
    buyer.start()
    time.sleep(0.2)
    served.process.terminate()
    time.sleep(0.15)
    found = tools.ask(idle, "GET", "/readyz")  # an idle connection has a moment yet
    assert (found.status, found.body["reason"]) == (503, "draining")
    assert found.headers["connection"] == "close"
    buyer.join(20)
    assert answers[0].name == "ACCEPTED"
    assert answers[0].headers["connection"] == "close"
    assert served.end() == 0, "a second signal is no fault"


def test_who_waits_beyond_the_drain_is_told_pending(make_served, command, tools):
    """Never a 500: the attempt goes on, and the same request_id gets the truth."""
    served = make_served(http={"drain_s": 1}, ledger={"wait_ms": 8000})
    served.buy("first")
    other = sqlite3.connect(served.folder / "doorbuster.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    answers = []
    buyer = threading.Thread(target=lambda: answers.append(served.buy("ann")))
    buyer.start()
    time.sleep(0.3)
    served.process.terminate()
    buyer.join(20)
    assert (answers[0].status, answers[0].name) == (202, "PENDING")
    other.execute("ROLLBACK")
    other.close()
    assert served.end() == 0
    assert orders_after(served, command).keys() == {"first", "ann"}


HALVES = [
    b'POST /v1/sales/drop/attempts HTTP/1.1\r\n%sContent-Length: 15\r\n\r\n{"sku":"bl',
    b"POST /v1/sales/drop/attempts HTTP/1.1\r\n%sContent-Length: 15\r\n\r\n",
    b'POST /v1/sales/drop/attempts HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n4\r\n{"sk\r\n',
    b"GET /v1/sales/drop HTTP/1.1\r\n%sContent-Length: 15\r\n\r\n",
]


@pytest.mark.parametrize("how", ["drain_s is over", "a second signal"])
def test_half_a_request_is_busy_at_the_end(make_served, command, how):
    """Nothing was applied, and that is what is said, in JSON, wherever the body stopped."""
    served = make_served(http={"drain_s": 1 if how == "drain_s is over" else 30, "receive_s": 60})
    senders = []
    for n, half in enumerate(HALVES):
        one = socket.create_connection(("127.0.0.1", served.port), timeout=20)
        head = f"Host: x\r\nX-Buyer: half{n}\r\nIdempotency-Key: r1\r\n"
        one.sendall(half % head.encode())
        senders.append(one)
    assert served.buy("whole").name == "ACCEPTED"
    served.process.terminate()
    if how == "a second signal":
        time.sleep(0.3)
        served.process.terminate()
    for one in senders:
        answer = http.client.HTTPResponse(one)
        answer.begin()
        body = json.loads(answer.read())
        assert (answer.status, body["name"], body["detail"]) == (
            503, "BUSY", {"reason": "draining"}
        )  # fmt: skip
        assert answer.getheader("content-type") == "application/json"
        assert answer.getheader("connection") == "close"
        assert one.recv(1) == b""
        answer.close()
        one.close()
    assert served.end() == 0
    assert orders_after(served, command).keys() == {"whole"}
    assert "Traceback" not in served.told()
