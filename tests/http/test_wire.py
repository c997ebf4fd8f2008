"""The wire itself: slow senders, large heads, too many connections, what is no HTTP at all."""

import asyncio
import contextlib
import json
import socket
import threading
import time

import pytest
import uvicorn
from uvicorn.server import ServerState

from doorbuster.http.protocol import bounded
from doorbuster.settings import Http

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


def chunked(*headers, trailer=b"", path=b"POST /v1/sales/drop/attempts", body=b'{"sku":"black"}'):
    """A request of one chunk, with these headers, and a trailer after the chunk."""
    head = (path + b" HTTP/1.1", b"Host: x", b"Transfer-Encoding: chunked", *headers, b"", b"")
    return b"\r\n".join(head) + b"%x\r\n%s\r\n0\r\n" % (len(body), body) + trailer + b"\r\n"


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


def test_x14_requests_that_wait_behind_one_are_bounded(dial, served):
    """Each costs memory from the moment it is read: beyond a bound the connection is closed."""
    one = dial()
    one.sendall(post("flood") + LIVE * 5000)
    told = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := one.recv(65536):
            told += piece
    assert told.count(b"HTTP/1.1 200") <= 300
    assert served.call("GET", "/healthz").status == 200


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


# ------------------------------------------------------------------ what a head is
KEY = b"Idempotency-Key: r1"


@pytest.mark.parametrize("is_cut", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize(
    ("head", "trailer", "status", "said"),
    [
        ([KEY], b"X-Buyer: eve", 401, "no-buyer"),
        ([KEY], b"x-buyer:eve", 401, "no-buyer"),
        ([b"X-Buyer: eve"], KEY, 422, "INVALID"),
        ([], b"X-Buyer: eve\r\n" + KEY, 401, "no-buyer"),
        ([b"X-Buyer: %s", KEY], b"X-Buyer: eve", 200, "ACCEPTED"),
        ([b"X-Buyer: %s", KEY], b"Idempotency-Key: r2", 200, "ACCEPTED"),
        ([b"X-Buyer: %s", KEY], b"Host: y", 200, "ACCEPTED"),
    ],
)
def test_a_trailer_is_no_header(served, dial, request, is_cut, head, trailer, status, said):
    """X1: no gateway has judged it, so it names no buyer and no request, nor does it double one."""
    one, buyer = dial(), f"t{abs(hash(request.node.name)) % 10**9}"
    head = [line.replace(b"%s", buyer.encode()) for line in head]
    text = chunked(*head, trailer=trailer + b"\r\n")
    cut = text.index(b"\r\n0\r\n") if is_cut else len(text)
    one.sendall(text[:cut])
    if is_cut:
        time.sleep(0.05)
        one.sendall(text[cut:])
    ((got, body),) = read(one)
    assert (got, body.get("name") or body["error"]) == (status, said)
    assert served.result("eve").status == 404
    if status == 200:
        assert (served.result(buyer).status, served.result(buyer, "r2").status) == (200, 404)


def test_a_trailer_is_no_receipt(served, dial):
    """A forged receipt is refused in a head, and not seen in a trailer."""
    receipt = b"Doorbuster-Receipt: forged"
    path = b"GET /v1/sales/drop/attempts/receipt"
    answers = []
    for head, trailer in (((), b""), ((receipt,), b""), ((), receipt + b"\r\n")):
        one = dial()
        one.sendall(chunked(b"X-Buyer: ann", *head, trailer=trailer, path=path, body=b"x"))
        answers += read(one)
    assert answers[0] == answers[2]
    assert answers[0][0] == 404
    assert answers[1][0] != 404, "the header itself means something, or this shows nothing"


@pytest.mark.parametrize(
    "trailer",
    [b"X-Buyer: eve\r\n" + KEY, b"Host: y", b"Expect: 100-continue",
     b"Connection: keep-alive, upgrade\r\nUpgrade: h2c"],
)  # fmt: skip
@pytest.mark.parametrize("is_cut", [False, True], ids=["at once", "later"])
def test_a_trailer_says_nothing_of_the_next_request(served, dial, trailer, is_cut):
    """The request that follows on the connection is what its own head says, and no more."""
    one = dial()
    first = chunked(b"X-Buyer: next", KEY, trailer=trailer + b"\r\n")
    nobody = post("x").replace(b"X-Buyer: x\r\n", b"")
    found = []
    for text in (first, nobody, LIVE) if is_cut else (first + nobody + LIVE,):
        one.sendall(text)
        found += read(one, 1 if is_cut else 3)
    assert [status for status, _ in found] == [200, 401, 200]
    assert found[0][1]["name"] == "ACCEPTED"
    assert served.result("eve").status == 404


@pytest.mark.parametrize("more", [b"", LIVE])
def test_a_trailer_may_end_its_connection_and_that_is_said(dial, more):
    """The parser reads nothing after it, so nobody is left to wait for an answer to that."""
    one, text = dial(), b""
    one.sendall(chunked(b"X-Buyer: over", KEY, trailer=b"Connection: Close\r\n") + more)
    with contextlib.suppress(ConnectionResetError):
        while piece := one.recv(65536):
            text += piece
    assert text.count(b"HTTP/1.1 ") == text.count(b"\r\nconnection: close\r\n") == 1
    assert b"ACCEPTED" in text


@pytest.mark.parametrize("trailer", [b"Content-Length: 9", b"Transfer-Encoding: chunked"])
def test_a_trailer_that_frames_again_is_400_and_the_end(served, dial, trailer):
    """Where the next request begins could be doubted, so there is none, nor was this one."""
    one = dial()
    one.sendall(chunked(b"X-Buyer: framed", KEY, trailer=trailer + b"\r\n") + LIVE)
    assert read(one, 2) == [(400, {"error": "bad-request"})]
    assert is_closed(one)
    assert served.result("framed").status == 404


@pytest.mark.parametrize(
    ("version", "hosts", "status"),
    [
        (b"1.1", [], 400),
        (b"1.1", [b"Host: x", b"Host: x"], 400),
        (b"1.1", [b"Host: x", b"host: y"], 400),
        (b"1.0", [b"Host: x", b"Host: y"], 400),
        (b"1.1", [b"Host: a b"], 400),
        (b"1.1", [b"Host: a,b/c"], 400),
        (b"1.1", [b"Host: ann@x"], 400),
        (b"1.1", [b"Host: x:80:90"], 400),
        (b"1.1", [b"Host: x:http"], 400),
        (b"1.1", [b"Host: [::1"], 400),
        (b"1.1", [b"Host: \xff"], 400),
        (b"1.0", [], 200),
        (b"1.1", [b"Host:"], 200),
        (b"1.1", [b"Host: shop.example:8000"], 200),
        (b"1.1", [b"hOST: [::1]:8000 "], 200),
        (b"1.1", [b"Host: a_b"], 200),
    ],
)
def test_a_request_names_one_host(dial, version, hosts, status):
    """RFC 9112 3.2: 400 without one, with two, or with none that could be; then the end."""
    one = dial()
    one.sendall(b"\r\n".join((b"GET /healthz HTTP/" + version, *hosts, b"", b"")))
    assert read(one)[0][0] == status
    if status == 400:
        assert is_closed(one)


def test_each_request_names_its_host(served, dial):
    """A good one earns the next one nothing, and a bad attempt is none."""
    one = dial()
    one.sendall(LIVE + LIVE.replace(b": x", b": y"))
    assert [status for status, _ in read(one, 2)] == [200, 200]
    one.sendall(post("hostless").replace(b"Host: x\r\n", b""))
    assert read(one) == [(400, {"error": "bad-request"})]
    assert is_closed(one)
    assert served.result("hostless").status == 404


# ------------------------------------------------------------------ what has no end
@pytest.mark.parametrize("step", [100_000, 700])
@pytest.mark.parametrize(
    ("begun", "again", "status", "error"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"a:\r\n", 431, "headers-too-large"),
        (chunked(KEY)[:-2], b"a:\r\n", 413, "body-too-large"),
        (chunked(KEY)[:-2] + b"X-A: ", b"aaaa", 413, "body-too-large"),
        (chunked(KEY)[:-7] + b"\r\n1;", b"aaaa", 413, "body-too-large"),
        (chunked(KEY)[:-7] + b"\r\n", b"0000", 413, "body-too-large"),
        (chunked(KEY)[:-7], b"\r\n1;a\r\n ", 413, "body-too-large"),
    ],
    ids=["headers", "trailers", "a trailer", "an extension", "a size", "small chunks"],
)
def test_what_frames_a_body_is_bounded_too(served, dial, begun, again, status, error, step):
    """X14, X15: before its time is over; the service goes on, and what was half sent is none."""
    one = dial()
    text = begun.replace(KEY, KEY + b"\r\nX-Buyer: endless") + again * 30_000
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for at in range(0, len(text), step):
            one.sendall(text[at : at + step])
    try:
        ((got, body),) = read(one)
        assert (got, body["error"]) == (status, error)
    except ConnectionResetError:
        pass  # who goes on sending may see the reset before the answer
    assert served.call("GET", "/healthz").status == 200
    assert served.result("endless").status == 404


def test_empty_lines_keep_no_connection(dial):
    """They begin no request, so that they are no sign of life: 408 in the time for one."""
    one = dial()
    one.sendall(LIVE)
    assert read(one)[0][0] == 200
    began_s = time.monotonic()
    stop = threading.Event()

    def drip():
        while not stop.is_set():
            try:
                one.sendall(b"\r\n")
            except OSError:
                return
            stop.wait(0.05)

    dripping = threading.Thread(target=drip)
    dripping.start()
    assert read(one) == [(408, {"error": "request-timeout"})]
    assert time.monotonic() - began_s < 5
    stop.set()
    dripping.join()


def test_an_empty_line_before_a_request_is_nothing(dial):
    """RFC 9112 2.2: an old client sends one after a body; the connection is good."""
    one = dial()
    for _ in range(3):
        one.sendall(b"\r\n")
        time.sleep(0.02)
        one.sendall(LIVE)
        assert read(one)[0][0] == 200


@pytest.mark.slow
def test_requests_that_overlap_are_timed_one_by_one(dial):
    """A client that always has the next one under way is slow with none of them."""
    one, sent = dial(), 0
    one.sendall(LIVE[:10])
    until_s = time.monotonic() + 3 * BOUNDS["receive_s"]
    while time.monotonic() < until_s:
        one.sendall(LIVE[10:] + LIVE[:10])
        sent += 1
        assert read(one)[0][0] == 200
        time.sleep(0.05)
    assert sent > 10


@pytest.mark.slow
def test_who_takes_no_answer_keeps_no_connection(make_shared, tools, tmp_path):
    """X14: it is ended as an idle one is, though its answers were never sent to the end."""
    tools.write(tmp_path)
    skus = ", ".join(f"{'x' * 50}{n} = 1" for n in range(1000))  # its view is a large answer
    (tmp_path / "config/sales/drop.toml").write_text(f"skus = {{ {skus} }}\n")
    served = make_shared(folder=tmp_path, http={"keep_alive_s": 1})
    left = b"GET /v1/sales/drop HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(0.05)
        one.connect(("127.0.0.1", served.port))
        one.sendall(left)

        def is_gone():
            try:
                one.send(left)
            except TimeoutError:
                return False
            except OSError:
                return True
            return False

        tools.wait_for(is_gone, "it is still there")
    assert served.buy("ann").status == 422
    assert "error" not in served.told()


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


BAD_ENDS = [b"1\r\n \r\nzz\r\n", b"1\r\n \r\n1;" + b"a" * 9000]
PATHS = [b"GET /healthz", b"POST /nothing", b"POST /v1/sales/drop/attempts"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("ending", BAD_ENDS, ids=["no chunk", "no end"])
def test_a_body_that_ends_badly_is_answered_once(dial, path, ending):
    """Though the application, which needs no body, would answer it by itself."""
    one, text = dial(), b""
    one.sendall(chunked(path=path)[:-7] + b"\r\n" + ending)
    with contextlib.suppress(ConnectionResetError):
        while piece := one.recv(65536):
            text += piece
    assert text.count(b"HTTP/1.1 ") == 1
    assert text.split()[1] in (b"400", b"413")


class Slow(asyncio.Transport):
    """A transport whose peer has read nothing yet: what is written after its end goes out too."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data):
        self.written += data

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        pass

    resume_reading = pause_reading


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("ending", BAD_ENDS, ids=["no chunk", "no end"])
def test_it_is_answered_once_to_a_slow_reader_too(make_faulty, path, ending):
    """The connection is there until it has read, and a second answer would be the next one's."""

    async def attempt(*_):
        raise AssertionError("half a request is none")

    async def run(app):
        settings = Http(**BOUNDS)
        config = uvicorn.Config(app, http=bounded(settings), lifespan="off", log_config=None)
        one, transport = config.http(config, ServerState(), {}), Slow()
        one.connection_made(transport)
        one.data_received(chunked(path=path)[:-7] + b"\r\n" + ending)
        await asyncio.sleep(0.02)
        one.connection_lost(None)
        return transport.written

    text = asyncio.run(run(make_faulty(attempt).app))
    assert text.count(b"HTTP/1.1 ") == 1
    assert text.split()[1] in (b"400", b"413")


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
    for crowd in (range(15), range(15, 30)):  # at once: fewer than ``connections_max``
        for n in crowd:
            leaving = dial()
            leaving.sendall(
                post(f"left{n}") + LIVE * (n % 3)
            )  # not always with the last of its own
            leaving.close()
        tools.wait_for(
            lambda crowd=crowd: all(served.result(f"left{n}").status == 200 for n in crowd),
            "an attempt is lost",
        )


def test_nothing_of_all_this_is_a_traceback(served):
    """Whatever was sent by the tests above: the log has warnings only, and no buyer (X9)."""
    assert served.buy("last").name == "ACCEPTED"
    told = served.told()
    assert "Traceback" not in told
    assert "error" not in told
    assert "pieces0" not in told
