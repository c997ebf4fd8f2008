"""The proxy loses just what it is told to lose: the server's own count is the proof."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from doorbuster.testing._links import READ_BYTES
from doorbuster.testing.proxy import Counts, Proxy
from doorbuster.testing.servers import Server, free_ports, listening

COUNTING = """
import socket, sys, threading
count = 0
def serve(link):
    global count
    with link, link.makefile("rwb") as file:
        for line in file:
            word = line.split()[0]
            if word == b"add":
                count += 1
            if word == b"bye":
                return
            if word == b"push":
                for n in range(3):
                    file.write(b"pushed\\n")
            elif word == b"big":
                file.write(b"x" * int(line.split()[1]))
            else:
                file.write(b"%d\\n" % count)
            file.flush()
taken = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    threading.Thread(target=serve, args=(taken.accept()[0],), daemon=True).start()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """It counts ``add`` lines, and answers each line with the count so far."""
    command = [sys.executable, "-I", "-S", "-c", COUNTING, "{port}"]
    folder = tmp_path_factory.mktemp("counting")
    with Server(command, name="counting", folder=folder, ready=listening()) as server:
        yield server


@pytest.fixture
def proxy(server) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


class Client:
    """One connection; asks a line, answers a line; ``b""`` is the end."""

    def __init__(self, port: int, timeout_s: float = 2.0) -> None:
        self.link = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self.file = self.link.makefile("rb")

    def close(self) -> None:
        self.file.close()
        self.link.close()

    def send(self, line: str) -> None:
        self.link.sendall(line.encode() + b"\n")

    def ask(self, line: str) -> bytes:
        self.send(line)
        return self.file.readline()

    def hears_nothing(self, seconds: float = 0.05) -> bool:
        self.link.settimeout(seconds)
        try:
            self.link.recv(1)
        except TimeoutError:
            return True
        finally:
            self.link.settimeout(2.0)
        return False


def connect(port: int) -> contextlib.closing[Client]:
    return contextlib.closing(Client(port))


@contextlib.contextmanager
def raw() -> Iterator[tuple[Proxy, Client, socket.socket]]:
    """A proxy, a client of it, and the server's own end of their connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as target,
        Proxy(target.getsockname()[1]) as proxy,
        connect(proxy.port) as client,
    ):
        link, _ = target.accept()
        with link:
            yield proxy, client, link


@pytest.fixture
def count(server):
    """``count()``: what the server has counted, asked past the proxy."""

    def count() -> int:
        with connect(server.port) as direct:
            return int(direct.ask("count"))

    return count


@pytest.fixture
def client(proxy) -> Iterator[Client]:
    with connect(proxy.port) as client:
        yield client


def wait_for(check, seconds: float = 2.0) -> bool:
    deadline_s = time.monotonic() + seconds
    while not (good := check()) and time.monotonic() < deadline_s:
        time.sleep(0.002)  # what threads and another process do has no clock of ours
    return good


# passing


def test_without_a_fault_everything_passes_and_is_counted(proxy, client, count):
    """Both ways, byte by byte."""
    before = count()
    assert client.ask("add") == b"%d\n" % (before + 1)
    reply = client.ask("count")
    assert proxy.counts == Counts(
        connections=1, open=1, request_bytes=len("add\ncount\n"), reply_bytes=2 * len(reply)
    )


def test_the_end_of_a_connection_passes_both_ways(proxy, client):
    """Whoever ends it; what was under way still arrives, and nothing is left open."""
    client.send("count")
    client.link.shutdown(socket.SHUT_WR)
    assert client.file.read().strip().isdigit()
    with connect(proxy.port) as other:
        assert other.ask("bye") == b""
    assert wait_for(lambda: proxy.counts.open == 0)


def test_what_a_server_said_before_it_left_arrives(proxy):
    """A client that reads late gets all of it, though the proxy has closed the connection."""
    n = 60_000
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # the rest waits on the way
        link.settimeout(2)
        link.connect(("127.0.0.1", proxy.port))
        link.sendall(b"big %d\n" % n)
        link.shutdown(socket.SHUT_WR)
        assert wait_for(lambda: proxy.counts == Counts(1, 0, len(f"big {n}\n"), n))
        with link.makefile("rb") as file:
            assert len(file.read()) == n


def test_more_than_all_buffers_passes_to_a_slow_reader(proxy, client):
    """Nothing is lost or reordered when the client does not read for a while."""
    n = 8_000_000
    client.send(f"big {n}")
    time.sleep(0.05)  # the child fills every buffer meanwhile
    held = proxy.counts.reply_bytes
    assert held < n
    assert client.file.read(n) == b"x" * n
    assert client.ask("count").strip().isdigit()


def test_a_client_of_a_server_that_is_down_is_reset(tmp_path):
    """As when it crashed; and served once it is up."""
    (port,) = free_ports(1)
    with Proxy(port) as proxy:
        with pytest.raises(ConnectionResetError), connect(proxy.port) as client:  # or in connect
            client.file.read()
        with socket.create_server(("127.0.0.1", port)) as target, connect(proxy.port) as client:
            client.send("hello")
            link, _ = target.accept()
            with link:
                assert link.recv(10) == b"hello\n"


def test_many_connections_at_once_are_kept_apart(proxy, server):
    """Each client gets its own answers."""
    clients = [Client(proxy.port) for _ in range(50)]
    for n, client in enumerate(clients):
        client.send(f"big {n + 1}")
    for n, client in enumerate(clients):
        assert client.file.read(n + 1) == b"x" * (n + 1)
        client.close()
    assert proxy.counts.connections == 50


# delay


@pytest.mark.parametrize(("delays", "least_s"), [((60,), 0.12), ((60, 0), 0.06), ((0, 60), 0.06)])
def test_delay_holds_each_direction(proxy, client, delays, least_s):
    """One number: both ways; two: requests and replies. Nothing is lost."""
    proxy.delay(*delays)
    begin_s = time.monotonic()
    assert client.ask("count").strip().isdigit()
    assert least_s <= time.monotonic() - begin_s < least_s + 1
    proxy.delay(0)
    begin_s = time.monotonic()
    client.ask("count")
    assert time.monotonic() - begin_s < 0.06


def test_a_shorter_delay_does_not_overtake():
    """Order is kept when the delay changes under way, the end of the connection included."""
    with raw() as (proxy, client, link), link.makefile("rb") as file:
        proxy.delay(60)
        client.send("first")
        assert wait_for(lambda: proxy.counts.request_bytes == len("first\n"))
        proxy.delay(0)
        client.send("second")
        client.link.shutdown(socket.SHUT_WR)
        assert file.read() == b"first\nsecond\n"


# drop


def test_a_lost_reply_comes_after_the_effect(proxy, client, count):
    """The server counted the request, and the client got nothing."""
    before = count()
    proxy.drop_replies()
    client.send("add")
    assert wait_for(lambda: proxy.counts.dropped_replies == 1)
    assert client.hears_nothing()
    assert count() == before + 1
    assert proxy.counts.reply_bytes == 0
    assert proxy.counts.dropped_bytes == len(b"%d\n" % (before + 1))


def test_a_lost_request_has_no_effect(proxy, client, count):
    """The server did not count it, and the client got nothing."""
    before = count()
    proxy.drop_requests()
    client.send("add")
    assert client.hears_nothing()
    assert count() == before
    assert (proxy.counts.dropped_requests, proxy.counts.dropped_bytes) == (1, len("add\n"))
    assert proxy.counts.request_bytes == 0


@pytest.mark.parametrize("side", ["requests", "replies"])
def test_n_of_them_are_lost_and_no_more(proxy, count, side):
    """Over all connections; the client knows at once when they are also cut."""
    before, answered = count(), 0
    getattr(proxy, f"drop_{side}")(2, cut=True)
    for _ in range(4):
        with connect(proxy.port) as client:
            try:
                answered += client.ask("add") != b""
            except ConnectionResetError:
                continue
    assert answered == 2
    assert count() - before == (2 if side == "requests" else 4)
    assert getattr(proxy.counts, f"dropped_{side}") == 2


def test_a_connection_goes_on_after_a_lost_reply(proxy, client, count):
    """The next reply is that of the next request: nothing of the lost one shows up late."""
    before = count()
    proxy.drop_replies(1)
    client.send("big 300000")
    assert client.hears_nothing()
    assert client.ask("add") == b"%d\n" % (before + 1)
    assert proxy.counts.dropped_bytes == 300_000
    assert proxy.counts.dropped_replies == 1


@pytest.mark.parametrize("side", ["requests", "replies"])
def test_matching_chooses_the_request(proxy, client, count, side):
    """Only the COMMIT is lost, or only its answer; everything before passes."""
    client.ask("count COMMIT")  # an earlier request is none of the rule's
    before = count()
    getattr(proxy, f"drop_{side}")(1, matching=b"COMMIT", cut=True)
    assert client.ask("add BEGIN") == b"%d\n" % (before + 1)
    with pytest.raises(ConnectionResetError):
        client.ask("add COMMIT")
    assert count() - before == (1 if side == "requests" else 2)
    with connect(proxy.port) as again:
        assert again.ask("add COMMIT").strip() == b"%d" % count()


def test_matching_finds_text_that_comes_in_two_parts(proxy, client, count):
    """A client may write its request in pieces."""
    before = count()
    proxy.drop_requests(1, matching=b"COMMIT", cut=True)
    client.link.sendall(b"add COM")
    assert wait_for(lambda: proxy.counts.request_bytes == len("add COM"))
    with pytest.raises(ConnectionResetError):
        client.ask("MIT")
    assert count() == before


def test_a_reply_that_has_begun_is_not_one_of_n_but_is_lost_without_n():
    """Without ``n`` every byte from now on is lost, in the middle of a stream too."""
    with raw() as (proxy, client, link):
        link.sendall(b"one\n")
        assert client.file.readline() == b"one\n"
        proxy.drop_replies(1)
        link.sendall(b"two\n")
        assert client.file.readline() == b"two\n"
        proxy.drop_replies()
        link.sendall(b"three\n")
        assert wait_for(lambda: proxy.counts.dropped_bytes == len("three\n"))
        assert client.hears_nothing(0.02)


def test_zero_loses_nothing_and_a_negative_number_is_refused(proxy, client):
    """``drop_replies(0)`` ends a rule."""
    proxy.drop_replies()
    proxy.drop_replies(0)
    proxy.drop_requests(0)
    assert client.ask("count").strip().isdigit()
    for drop in (proxy.drop_requests, proxy.drop_replies):
        with pytest.raises(ValueError, match="n is -1"):
            drop(-1)


# cut and heal


def test_cut_ends_all_connections_and_takes_new_ones(proxy, client):
    """Both that work and that wait."""
    client.ask("count")
    with connect(proxy.port) as idle:
        proxy.cut()
        for one in (client, idle):
            with pytest.raises(ConnectionResetError):
                one.file.read()
    assert proxy.counts.open == 0
    with connect(proxy.port) as again:
        assert again.ask("count").strip().isdigit()


def test_a_cut_reaches_a_connection_that_was_not_taken_yet(proxy):
    """Its client believes that it is connected."""

    def connect_and_cut() -> Client:  # in the proxy's thread: it cannot take it before the cut
        client = Client(proxy.port)
        proxy._relay.cut(refuse=False)
        return client

    with contextlib.closing(proxy._relay.call(connect_and_cut)) as client:
        with pytest.raises(ConnectionResetError):
            client.file.read()
        assert proxy.counts == Counts(connections=1)


def test_a_cut_loses_what_is_held(proxy, client, count):
    """A delayed request that was cut has no effect."""
    before = count()
    proxy.delay(60)
    client.send("add")
    assert wait_for(lambda: proxy.counts.request_bytes > 0)
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.file.read()
    time.sleep(0.08)  # what was held would have reached the child that counts by now
    assert count() == before


def test_a_cut_may_refuse_until_healed(proxy, client):
    """Then the same port serves again."""
    proxy.cut(refuse=True)
    proxy.cut(refuse=True)
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            Client(proxy.port)
    proxy.heal()
    with connect(proxy.port) as again:
        assert again.ask("count").strip().isdigit()


def test_heal_ends_every_fault(proxy, client, count):
    """Held bytes go on at once; no rule and no delay is left."""
    before = count()
    proxy.delay(60_000)
    proxy.drop_replies(5)
    proxy.drop_requests(5, matching=b"COMMIT")
    client.send("add")
    assert wait_for(lambda: proxy.counts.request_bytes > 0)
    proxy.heal()
    assert client.file.readline() == b"%d\n" % (before + 1)
    assert client.ask("add COMMIT") == b"%d\n" % (before + 2)


@pytest.mark.parametrize("side", ["requests", "replies"])
def test_heal_cuts_a_connection_that_lost_bytes(proxy, client, side):
    """A TCP connection with a hole in it does not exist; a whole one lives on."""
    with connect(proxy.port) as whole:
        whole.ask("count")
        getattr(proxy, f"drop_{side}")()
        client.send("count")
        assert wait_for(lambda: getattr(proxy.counts, f"dropped_{side}") == 1)
        proxy.heal()
        with pytest.raises(ConnectionResetError):
            client.file.read()
        assert whole.ask("count").strip().isdigit()


def test_a_frozen_server_behind_a_proxy_is_silent(proxy, server, client):
    """The proxy takes the request and waits with it; nothing is reset."""
    server.freeze()
    try:
        client.send("count")
        assert client.hears_nothing()
    finally:
        server.thaw()
    assert client.file.readline().strip().isdigit()


# close


def test_close_ends_threads_and_connections_and_leaks_no_descriptor(server):
    """After each of a few proxies with open, delayed, dropped and refused connections."""

    def use() -> None:
        with Proxy(server.port) as proxy:
            clients = [Client(proxy.port) for _ in range(5)]
            proxy.delay(1000)
            for client in clients:
                client.send("count")
            proxy.cut(refuse=True)
            proxy.heal()
            clients += [Client(proxy.port) for _ in range(5)]
            proxy.drop_replies()
            for client in clients[5:]:
                client.send("count")
            assert wait_for(lambda: proxy.counts.dropped_replies == 5)
        for client in clients:
            client.close()

    threads = threading.active_count()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        use()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == before


def test_close_twice_is_close_once_and_counts_stay(proxy, client):
    """Every other control of a closed proxy is refused, and its port too."""
    client.ask("count")
    proxy.close()
    proxy.close()
    assert proxy.counts.connections == 1
    assert proxy.counts.open == 0
    for control in (proxy.cut, proxy.heal, proxy.drop_replies, lambda: proxy.delay(1)):
        with pytest.raises(ValueError, match="is closed"):
            control()
    with pytest.raises(ConnectionRefusedError):
        Client(proxy.port)


def test_an_idle_proxy_uses_no_processor(proxy, client):
    """With idle, half-closed and deaf connections it waits: no event comes again and again."""
    client.ask("count")
    proxy.drop_requests()
    client.send("count")
    with connect(proxy.port) as other:
        other.link.shutdown(socket.SHUT_WR)
        assert wait_for(lambda: proxy.counts.dropped_requests == 1)
        begin_s = time.process_time()
        time.sleep(0.1)  # idle is what is measured
        assert time.process_time() - begin_s < 0.05


def test_a_read_is_as_large_as_the_docs_say():
    """``drop_requests`` names this number."""
    assert f"{READ_BYTES // 1024} KiB" in (Proxy.drop_requests.__doc__ or "")
