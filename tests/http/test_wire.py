"""The wire itself: slow senders, large heads, too many connections, what is no HTTP at all."""

import json
import socket
import threading
import time

import pytest

BOUNDS = {
    "receive_s": 0.4,
    "connections_max": 20,
    "headers_max_bytes": 2048,
    "body_max_bytes": 1024,
    "keep_alive_s": 1,
}
LIVE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def post(buyer, body=b'{"sku":"black"}', more=b""):
    return (
        b"POST /v1/sales/drop/attempts HTTP/1.1\r\nHost: x\r\nX-Buyer: %s\r\n"
        b"Idempotency-Key: r1\r\nContent-Length: %d\r\n%s\r\n%s"
    ) % (buyer.encode(), len(body), more, body)


@pytest.fixture(scope="module")
def served(make_shared):
    """A service with narrow bounds."""
    return make_shared(http=BOUNDS)


@pytest.fixture
def dial(served):
    """``dial()`` opens a connection; all are closed in the end."""
    opened = []

    def connect():
        opened.append(socket.create_connection(("127.0.0.1", served.port), timeout=10))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


def read(connection, answers=1):
    """``answers`` replies: status and JSON body of each. Fewer, when the other side has closed."""
    text, found = b"", []
    while len(found) < answers:
        head, end, rest = text.partition(b"\r\n\r\n")
        if end:
            size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            if len(rest) >= size:
                found.append((int(head.split()[1]), json.loads(rest[:size])))
                text = rest[size:]
                continue
        piece = connection.recv(65536)
        if not piece:
            return found
        text += piece
    return found


def is_closed(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "begun",
    [b"", b"G", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ", post("slow")[:-3]],
    ids=["nothing", "one letter", "half a head", "half a body"],
)
def test_a_slow_sender_keeps_no_connection(served, dial, begun):
    """X14: 408 after ``receive_s``, though bytes drip; healthy callers notice nothing."""
    slow = dial()
    slow.sendall(begun)
    stop = threading.Event()

    def drip():
        while begun and not stop.wait(0.1):
            try:
                slow.sendall(b"a")
            except OSError:
                return

    dripping = threading.Thread(target=drip)
    if b"X-A" in begun:
        dripping.start()
    began_s = time.monotonic()
    assert served.call("GET", "/healthz").status == 200
    assert read(slow) == [(408, {"error": "request-timeout"})]
    assert 0.2 < time.monotonic() - began_s < 5
    assert is_closed(slow)
    stop.set()
    if dripping.ident:
        dripping.join()
    assert served.result("slow").status == 404, "half an attempt is none"


@pytest.mark.slow
def test_a_slow_second_request_is_timed_too(dial):
    """A connection that was good once earns no patience; an idle one closes by itself."""
    one = dial()
    one.sendall(LIVE + b"GET")
    assert read(one, 2) == [(200, {"alive": True}), (408, {"error": "request-timeout"})]
    idle = dial()
    idle.sendall(LIVE)
    assert read(idle, 2) == [(200, {"alive": True})]


def test_a_request_in_pieces_is_a_request(dial):
    """However it is cut, and however often the connection is used."""
    one = dial()
    for n in range(3):
        text = post(f"pieces{n}")
        for at in range(0, len(text), 37):
            one.sendall(text[at : at + 37])
            time.sleep(0.002)
        ((status, body),) = read(one)
        assert (status, body["name"]) == (200, "ACCEPTED")


@pytest.mark.parametrize("step", [100_000, 500])
@pytest.mark.parametrize(
    "head", [b"GET /%s HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nX-A: %s\r\n\r\n"]
)
def test_a_head_beyond_the_bound_is_431(dial, head, step):
    """At once or in pieces; as a path or as a header."""
    one = dial()
    text = head % (b"a" * 4096)
    for at in range(0, len(text), step):
        try:
            one.sendall(text[at : at + step])
        except (BrokenPipeError, ConnectionResetError):
            break
        time.sleep(0.002)
    try:
        assert read(one) == [(431, {"error": "headers-too-large"})]
    except ConnectionResetError:
        assert step == 500, "who goes on sending may see the reset before the answer"


def test_many_small_requests_are_no_large_head(dial):
    """Pipelined requests are counted one by one, and answered in order."""
    one = dial()
    one.sendall(LIVE * 60 + post("pipe") + LIVE * 60)
    found = read(one, 121)
    assert [status for status, _ in found] == [200] * 121
    assert found[60][1]["name"] == "ACCEPTED"


@pytest.mark.parametrize("how", [b"Content-Length: 90000", b"Transfer-Encoding: chunked"])
def test_a_large_body_is_413_and_the_end(dial, how):
    """By its announced length, or while it comes."""
    one = dial()
    head = post("large").partition(b"Content-Length")[0]
    chunk = b"320\r\n" + b" " * 800 + b"\r\n"
    one.sendall(head + how + b"\r\n\r\n" + chunk * 4)
    ((status, body),) = read(one)
    assert (status, body) == (413, {"error": "body-too-large", "body_max_bytes": 1024})
    assert is_closed(one)


def test_a_chunked_body_is_a_body(dial):
    """Clients that do not know the length beforehand are served too."""
    one = dial()
    head = post("chunks").partition(b"Content-Length")[0]
    one.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n8\r\n" + b'{"sku":"\r\n')
    one.sendall(b'7\r\nblack"}\r\n0\r\n\r\n')
    assert read(one)[0][1]["name"] == "ACCEPTED"


def test_expect_100_continue_is_answered(dial):
    """As curl sends it with a body above a kilobyte."""
    one = dial()
    text = post("expect", more=b"Expect: 100-continue\r\n")
    head, body = text[:-15], text[-15:]
    one.sendall(head)
    assert one.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    one.sendall(body)
    assert read(one)[0][1]["name"] == "ACCEPTED"


@pytest.mark.parametrize(
    "text",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS, at a port without it
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT host:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nBad Header: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-A: a\x00b\r\n\r\n",
    ],
    ids=range(11),
)
def test_what_is_no_http_is_400_in_json(dial, text):
    """And the connection ends: nothing after it can be trusted."""
    one = dial()
    one.sendall(text)
    ((status, body),) = read(one)
    assert (status, body) in ((400, {"error": "bad-request"}), (404, {"error": "unknown-path"}))
    if status == 400:
        assert is_closed(one)


def test_garbage_is_not_taken_for_an_earlier_answer(dial):
    """An attempt that is inside keeps its turn: what follows it says nothing in its place."""
    one = dial()
    one.sendall(post("turn") + b"garbage\r\n\r\n")
    assert [body["name"] for _, body in read(one)] in ([], ["ACCEPTED"])


def test_an_offer_of_another_protocol(dial):
    """It is not taken up. A body that the parser drops with it must not look like another one."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    one, two = dial(), dial()
    one.sendall(LIVE[:-2] + offer + b"\r\n")
    assert read(one) == [(200, {"alive": True})]
    assert is_closed(one)
    two.sendall(post("offer", more=offer))
    assert read(two) == [(400, {"error": "upgrade-with-body"})]


def test_connections_are_bounded_and_who_is_inside_is_served(dial, served, tools):
    """One too many is BUSY at once; the others go on, and a place that is free is taken."""
    inside = [dial() for _ in range(BOUNDS["connections_max"])]
    for one in inside:
        one.sendall(LIVE)
        assert read(one)[0][0] == 200
    ((status, body),) = read(dial())
    assert (status, body["name"], body["detail"]["reason"]) == (503, "BUSY", "connections-max")
    inside[0].sendall(post("inside"))
    assert read(inside[0])[0][1]["name"] == "ACCEPTED"
    for one in inside:
        one.close()
    tools.wait_for(lambda: served.call("GET", "/healthz").status == 200, "no place is free")


def test_a_client_that_leaves_takes_nothing_with_it(served, dial, tools):
    """C7: the attempt goes on, and its result can be asked for."""
    for n in range(30):
        leaving = dial()
        leaving.sendall(post(f"left{n}"))
        leaving.close()
    tools.wait_for(
        lambda: all(served.result(f"left{n}").status == 200 for n in range(30)),
        "an attempt is lost",
    )


def test_nothing_of_all_this_is_a_traceback(served):
    """Whatever was sent by the tests above: the log has warnings only, and no buyer (X9)."""
    assert served.buy("last").name == "ACCEPTED"
    told = served.told()
    assert "Traceback" not in told
    assert "pieces0" not in told
