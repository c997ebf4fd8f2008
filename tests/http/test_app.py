"""The application in process: what a path, a body and a header mean, and that nothing else does."""

import asyncio
import json
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doorbuster.http import App, Readiness
from doorbuster.http.replies import of_outcome
from doorbuster.outcomes import HTTP_STATUS, Code, Outcome
from doorbuster.pipeline import busy
from doorbuster.settings import Http

ATTEMPTS = "/v1/sales/drop/attempts"
BUY = {"x-buyer": "ann", "idempotency-key": "r1"}


def orders(call):
    """Units that the ledger says are sold."""
    return sum(sku["accepted"] for sku in call.engine.sales.status("drop")["skus"])


# ------------------------------------------------------------------ attempts
def test_an_attempt_is_answered_with_the_outcome_as_it_is(call):
    """Code, name and order number; a repeat gets the same; no field that says nothing."""
    first = call.buy()
    assert (first.status, first.body["code"], first.name) == (200, 1, "ACCEPTED")
    assert first.body.keys() == {"code", "name", "order_no"}
    assert first.headers.keys() == {"content-type", "content-length"}
    assert call.buy() == first
    other = call.buy({"sku": "black", "quantity": 2})
    assert (other.status, other.body) == (422, {"code": -9, "name": "KEY_REUSED"})


def test_lines_are_bought_together(call):
    """All lines or nothing, under one order number."""
    lines = [{"sku": "black", "quantity": 2}, {"sku": "white", "group": "g1"}]
    assert call.buy({"lines": lines}).name == "ACCEPTED"
    lines[1]["quantity"] = 9
    refused = call.buy({"lines": lines}, BUY | {"idempotency-key": "r2"})
    assert (refused.status, refused.name) == (200, "SOLD_OUT")


def test_what_a_refusal_knows_is_told(make_caller):
    """``detail`` holds limit and bought, so that a client need not guess."""
    call = make_caller(sale={"per_buyer": 1})
    call.buy()
    refused = call.buy(headers=BUY | {"idempotency-key": "r2"})
    assert refused.status == 200
    assert refused.body == {
        "code": -2,
        "name": "OVER_LIMIT",
        "detail": {"limit": 1, "bought": 1},
    }


@pytest.mark.parametrize(
    ("retry_after_ms", "seconds"), [(0, "0"), (1, "1"), (1000, "1"), (1001, "2")]
)
def test_retry_after_is_whole_seconds_rounded_up(make_faulty, retry_after_ms, seconds):
    """A client that comes when the header says never comes too early."""

    async def attempt(*_, **__):
        return Outcome(Code.RATE_LIMITED, retry_after_ms=retry_after_ms)

    found = make_faulty(attempt).buy()
    assert (found.status, found.headers["retry-after"]) == (429, seconds)
    assert found.body["retry_after_ms"] == retry_after_ms


def told(outcome):
    """``retry_after_ms`` of the reply's body and its header, in seconds."""
    start, body = of_outcome(outcome)
    found = json.loads(body["body"])["retry_after_ms"]
    return found, int(dict(start["headers"])[b"retry-after"])


@pytest.mark.parametrize("after_ms", [1, 200, 1000, 5000])
@pytest.mark.parametrize("code", [Code.BUSY, Code.PENDING])
def test_a_crowd_that_is_told_to_come_again_is_spread(code, after_ms):
    """S0-62: between one and two times what the engine says; header and body agree."""
    found = [told(Outcome(code, retry_after_ms=after_ms)) for _ in range(400)]
    assert all(-(-ms // 1000) == seconds for ms, seconds in found)
    waits = [ms for ms, _ in found]
    assert after_ms <= min(waits) < max(waits) <= 2 * after_ms
    if after_ms >= 200:
        assert len(set(waits)) > 50
        assert 100 < sum(ms > 1.5 * after_ms for ms in waits) < 300


def test_what_is_spread_is_only_when_to_come_again():
    """A rate limit has spread its own; "at once" stays; what never changes is not touched."""
    assert told(Outcome(Code.RATE_LIMITED, retry_after_ms=700)) == (700, 1)
    assert told(Outcome(Code.BUSY, retry_after_ms=0)) == (0, 0)
    without = Outcome(Code.BUSY, detail={"reason": "x"})
    assert of_outcome(without) == of_outcome(without)
    outcome = busy("x")
    of_outcome(outcome)
    assert outcome == busy("x"), "outcomes are shared, and are not changed"


@pytest.mark.parametrize("code", list(Code))
def test_every_code_keeps_its_status_and_its_number(make_faulty, code):
    """Nobody re-wraps a code."""

    async def attempt(*_, **__):
        return Outcome(code, order_state="CREATED", final=True)

    found = make_faulty(attempt).buy()
    assert found.status == HTTP_STATUS[code]
    assert found.body == {
        "code": int(code),
        "name": code.name,
        "order_state": "CREATED",
        "final": True,
    }


def test_a_receipt_travels_in_a_header(make_faulty):
    """Out of a PENDING answer, and back with the question; never in a body."""
    asked = []

    async def attempt(*_, **named):
        asked.append(named.get("receipt"))
        return Outcome(Code.PENDING, receipt="abc-_", retry_after_ms=5)

    call = make_faulty(attempt)
    found = call.buy()
    assert (found.status, found.headers["doorbuster-receipt"]) == (202, "abc-_")
    assert "receipt" not in found.body
    call("GET", f"{ATTEMPTS}/r1", headers={"x-buyer": "ann", "doorbuster-receipt": "abc-_"})
    assert asked == [None, "abc-_"]


def test_a_detail_that_json_cannot_hold_costs_no_answer(make_faulty):
    """An answer is worth more than what a plugin says about it."""

    async def attempt(*_, **__):
        return Outcome(Code.ACCEPTED, order_no="n", detail={"bad": "\ud800"})

    assert make_faulty(attempt).buy().body == {"code": 1, "name": "ACCEPTED", "order_no": "n"}


# ------------------------------------------------------------------ who buys
@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"idempotency-key": "r1"}, "no-buyer"),
        ({"idempotency-key": "r1", "x-buyer": ""}, "no-buyer"),
        ([*BUY.items(), ("x-buyer", "bob")], "two-buyers"),
        ([*BUY.items(), ("x-buyer", "ann")], "two-buyers"),
    ],
)
def test_without_one_verified_buyer_nobody_is_served(refusing, headers, error):
    """X1: 401; of two headers nobody can tell which one the gateway wrote."""
    found = refusing.buy(headers=headers)
    assert (found.status, found.body["error"]) == (401, error)
    assert "X-Buyer" in found.body["expected"]
    assert "www-authenticate" in found.headers
    asked = [(name, value) for name, value in dict(headers).items() if name != "x-buyer"]
    if error == "no-buyer":
        assert refusing("GET", f"{ATTEMPTS}/r1", headers=asked).status == 401
    assert orders(refusing) == 0


@pytest.mark.parametrize("field", ["buyer", "buyer_id", "user", "x-buyer", "request_id", "Sku"])
def test_a_body_never_says_who_buys(refusing, field):
    """X1: a field that means nothing is refused, so nobody believes that it does."""
    found = refusing.buy({"sku": "black", field: "bob"})
    assert (found.status, found.name, found.reason) == (422, "INVALID", "bad-body")
    assert field in found.body["detail"]["problem"]
    assert orders(refusing) == 0


BAD_IDS = [
    "a b",
    " ann",
    "a|9|1",  # X5
    "a}b{c",  # X4
    "a:b",
    "a\x00",
    "caf\xe9",
    b"\xd0\xb0nn",  # a homoglyph in UTF-8 (X3)
    b"\xff\xfe",
    b"ann\xe2\x80\xae",  # right to left
    "ann, bob",
    '"r1"',
    "x" * 65,
    "x" * 65536,
]


@pytest.mark.parametrize("bad", BAD_IDS, ids=range(len(BAD_IDS)))
@pytest.mark.parametrize(
    ("header", "reason"), [("x-buyer", "bad-buyer"), ("idempotency-key", "bad-request-id")]
)
def test_ids_outside_the_charset_are_refused_as_they_are(refusing, header, reason, bad):
    """X3, X4, X5: no id is trimmed, folded or decoded into another one."""
    found = refusing.buy(headers=BUY | {header: bad})
    assert (found.status, found.name, found.reason) == (422, "INVALID", reason)
    assert orders(refusing) == 0


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"x-buyer": "ann"}, "no-request-id"),
        ({"x-buyer": "ann", "idempotency-key": ""}, "no-request-id"),
        ([*BUY.items(), ("idempotency-key", "r2")], "two-request-ids"),
        ([*BUY.items(), ("idempotency-key", "r1")], "two-request-ids"),
    ],
)
def test_an_attempt_has_one_idempotency_key(refusing, headers, reason):
    """Without one a retry would be another attempt; with two nobody knows which it is."""
    found = refusing.buy(headers=headers)
    assert (found.status, found.name, found.reason) == (422, "INVALID", reason)
    assert orders(refusing) == 0


# ------------------------------------------------------------------ bodies
BAD_BODIES = [
    (b"", "bad-json"),
    (b"{", "bad-json"),
    (b"sku=black", "bad-json"),
    (b'{"sku":"black"}x', "bad-json"),
    (b"\xef\xbb\xbf" + b'{"sku":"black"}', "bad-json"),
    ('{"sku":"black"}'.encode("utf-16"), "bad-json"),
    (b'{"sku":"bl\xff"}', "bad-json"),
    (b'{"sku":"\\ud800"}', "bad-json"),
    (b"{'sku':'black'}", "bad-json"),
    (b'{"sku":"black","quantity":NaN}', "bad-json"),
    (b'{"sku":"black","quantity":-Infinity}', "bad-json"),
    (b'{"sku":"black","quantity":01}', "bad-json"),
    (b'{"sku":"black","quantity":0x10}', "bad-json"),
    (b"null", "bad-body"),
    (b"[]", "bad-body"),
    (b'"black"', "bad-body"),
    (b"[" * 16_000, "bad-body"),  # X15
    (b'{"sku":' + b"[" * 16_000, "bad-body"),
    (b'{"lines":' + b"[" * 16_000, "bad-body"),
    (b'{"x":' + b'{"x":' * 3_000, "bad-body"),
    (b'{"sku":5}', "bad-body"),
    (b'{"sku":null}', "bad-body"),
    (b'{"sku":"black","quantity":true}', "bad-body"),  # X8
    (b'{"sku":"black","quantity":"1"}', "bad-body"),
    (b'{"sku":"black","quantity":1.0}', "bad-body"),
    (b'{"sku":"black","quantity":1e3}', "bad-body"),
    (b'{"sku":"black","quantity":null}', "bad-body"),
    (b'{"sku":"black","quantity":' + b"9" * 16_000 + b"}", "bad-body"),
    (b'{"sku":"black","ticket":5}', "bad-body"),
    (b'{"lines":[{"sku":"black","price":1}]}', "bad-body"),
    (b'{"lines":[{"quantity":1}]}', "bad-body"),
    (b'{"lines":[null]}', "bad-body"),
    (b'{"sku":"black","quantity":0}', "bad-quantity"),
    (b'{"sku":"black","quantity":-0}', "bad-quantity"),
    (b'{"sku":"black","quantity":-5}', "bad-quantity"),
    (b'{"sku":"black","quantity":1000000000}', "bad-quantity"),
    (b'{"sku":"black","quantity":9223372036854775808}', "bad-quantity"),
    (b'{"sku":""}', "bad-sku"),
    (b'{"sku":"bl\\u0000ck"}', "bad-sku"),
    (b'{"sku":"a}b{c"}', "bad-sku"),
    (b'{"sku":"red"}', "unknown-sku"),
    (b'{"lines":[{"sku":"black","group":"a b"}]}', "bad-group"),
    (b'{"lines":[]}', "no-lines"),
    (b'{"lines":[' + b",".join([b'{"sku":"black"}'] * 17) + b"]}", "too-many-lines"),
    (b"{}", "no-sku"),
    (b'{"quantity":1}', "no-sku"),
    (b'{"sku":"black","lines":[{"sku":"black"}]}', "sku-and-lines"),
    (b'{"quantity":2,"lines":[{"sku":"black"}]}', "sku-and-lines"),
]


@pytest.mark.parametrize(("body", "reason"), BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_body_that_is_not_an_attempt_is_invalid(refusing, body, reason):
    """X8, X15: 422 and a reason; never a traceback, and nothing is sold."""
    found = refusing.buy(body)
    assert (found.status, found.name, found.reason) == (422, "INVALID", reason)
    assert len(found.headers["content-length"]) < 4, "an answer is short, whatever was asked"
    assert orders(refusing) == 0


def test_any_content_type_is_read_as_json(call):
    """`curl -d` sends a form's; the required header is what keeps other sites' forms out."""
    for n, kind in enumerate(["application/json", "application/x-www-form-urlencoded", "x"]):
        headers = {"x-buyer": "ann", "idempotency-key": f"r{n}", "content-type": kind}
        assert call.buy(headers=headers).name == "ACCEPTED"


@pytest.mark.parametrize(
    ("pieces", "headers"),
    [
        ([b" " * 200], {}),
        ([b'{"sku":', b" " * 200], {}),
        ([b" "] * 200, {}),
        ([b"", b""], {"content-length": "129"}),
        ([b"", b""], {"content-length": "9" * 5000}),
    ],
)
def test_a_body_beyond_the_bound_is_413(make_caller, pieces, headers):
    """By its length, or as soon as it is longer; the rest of it is not read."""
    call = make_caller(http={"body_max_bytes": 128})
    found = call.buy(pieces, BUY | headers)
    assert (found.status, found.name) == (413, "body-too-large")
    assert found.body["body_max_bytes"] == 128
    assert found.headers["connection"] == "close"
    assert orders(call) == 0


def test_a_body_may_come_in_pieces(make_caller):
    """Up to the bound, to the byte."""
    call = make_caller(http={"body_max_bytes": 64})
    text = b'{"sku":"black"}'.ljust(64)
    pieces = [text[n : n + 5] for n in range(0, 64, 5)]
    assert call.buy(pieces, BUY | {"content-length": "64"}).name == "ACCEPTED"
    assert call.buy([*pieces, b" "]).status == 413


def test_who_goes_before_the_body_ends_has_not_asked(call):
    """A half body is no attempt, and nobody is there to be answered."""

    async def half():
        sent = []
        messages = [{"type": "http.request", "body": b'{"sku":"black"}', "more_body": True}]

        async def receive():
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        headers = [(name.encode(), value.encode()) for name, value in BUY.items()]
        scope = {"type": "http", "method": "POST", "path": ATTEMPTS, "headers": headers}
        await call.app(scope | {"raw_path": ATTEMPTS.encode()}, receive, send)
        return sent

    assert asyncio.run(half()) == []
    assert orders(call) == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["sku", "quantity", "lines", "ticket", "x"]), inner)
    ),
    max_leaves=12,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(body=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_is_sent_is_answered(make_faulty, body):
    """T13: no exception, no 500, and the engine hears of nothing that is not an attempt."""

    async def attempt(sale, asked):
        for line in asked.lines:
            assert isinstance(line.sku, str)
            assert type(line.quantity) is int
        return Outcome(Code.SOLD_OUT)

    found = make_faulty(attempt).buy(body)
    assert found.status in (200, 422)


# ------------------------------------------------------------------ paths
@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/", 404, None),
        ("POST", "/v1/sales/drop/attempts/", 404, None),
        ("POST", "//v1/sales/drop/attempts", 404, None),
        ("POST", "/v1/sales/drop%2Fattempts", 405, "GET, HEAD"),
        ("POST", "/v1%2Fsales/drop/attempts", 404, None),
        ("POST", "/V1/sales/drop/attempts", 404, None),
        ("GET", "/v1/sales/drop/attempts", 405, "POST"),
        ("PUT", "/v1/sales/drop/attempts", 405, "POST"),
        ("OPTIONS", "/v1/sales/drop/attempts", 405, "POST"),
        ("POST", "/v1/sales/drop/attempts/r1", 405, "GET, HEAD"),
        ("DELETE", "/v1/sales/drop", 405, "GET, HEAD"),
        ("POST", "/healthz", 405, "GET, HEAD"),
        ("POST", "/readyz", 405, "GET, HEAD"),
        ("BREW", "/healthz", 405, "GET, HEAD"),
        ("GET", b"/\xff\xfe", 404, None),
        ("GET", "/v1/sales/../../etc/passwd", 404, None),
        ("GET", "/" * 5000, 404, None),
    ],
)
def test_a_path_is_matched_as_it_is_sent(refusing, method, path, status, allow):
    """One spelling per path: what a gateway judged is what is served. 405 says what is allowed."""
    found = refusing(method, path, b'{"sku":"black"}', BUY)
    assert (found.status, found.headers.get("allow")) == (status, allow)
    assert "error" in found.body
    assert orders(refusing) == 0


@pytest.mark.parametrize("sale", ["nope", "dr%6Fp", "drop%20", "DROP", "a|b", "x" * 3000])
def test_an_unknown_sale_is_404_and_invalid(refusing, sale):
    """On every path that names one; a percent sign is in no id."""
    found = refusing.buy(sale=sale)
    assert (found.status, found.name, found.reason) == (404, "INVALID", "unknown-sale")
    assert found.body["detail"]["sale"] == sale[:64]
    for path in (f"/v1/sales/{sale}", f"/v1/sales/{sale}/attempts/r1"):
        assert refusing("GET", path, headers=BUY) == found


def test_a_body_that_nobody_reads_ends_its_connection(call):
    """Else it could be sent for ever."""
    found = call("POST", "/nothing", [b"x", b"y"])
    assert (found.status, found.headers["connection"]) == (404, "close")
    assert "connection" not in call("POST", "/nothing", b"x").headers


# ------------------------------------------------------------------ results
def test_a_result_is_for_its_own_buyer_only(call):
    """X16: another buyer's attempt is as unknown as none."""
    first = call.buy()
    found = call("GET", f"{ATTEMPTS}/r1", headers={"x-buyer": "ann"})
    assert (found.status, found.body["order_no"]) == (200, first.body["order_no"])
    for path, buyer in ((f"{ATTEMPTS}/r1", "bob"), (f"{ATTEMPTS}/r2", "ann")):
        assert call("GET", path, headers={"x-buyer": buyer}).body == {"error": "unknown-attempt"}
    for bad in ("r%31", "r1%00", "a|b", "x" * 65):
        assert call("GET", f"{ATTEMPTS}/{bad}", headers={"x-buyer": "ann"}).status == 404
    twice = [("x-buyer", "ann"), ("x-buyer", "bob")]
    assert call("GET", f"{ATTEMPTS}/r1", headers=twice).body["error"] == "two-buyers"
    forged = {"x-buyer": "bob", "doorbuster-receipt": "\xff" * 40}
    assert call("GET", f"{ATTEMPTS}/r1", headers=forged).status in (404, 422)


def test_results_under_way_are_bounded(make_faulty):
    """One read too many is BUSY at once; the place of one that ended is free again."""
    release = None

    async def result(*_, **__):
        await release.wait()

    async def crowd(call):
        nonlocal release
        release = asyncio.Event()
        asking = {"x-buyer": "ann"}
        tasks = [
            asyncio.create_task(call.ask("GET", f"{ATTEMPTS}/r1", headers=asking))
            for _ in range(Http().results_max)
        ]
        await asyncio.sleep(0)
        shed = await call.ask("GET", f"{ATTEMPTS}/r1", headers=asking)
        release.set()
        answered = await asyncio.gather(*tasks)
        again = await call.ask("GET", f"{ATTEMPTS}/r1", headers=asking)
        return shed, answered, again

    shed, answered, again = asyncio.run(crowd(make_faulty(result)))
    assert (shed.status, shed.name, shed.headers["retry-after"]) == (503, "BUSY", "1")
    assert {found.status for found in (*answered, again)} == {404}


# ------------------------------------------------------------------ views
def test_a_sale_is_shown_without_counts(make_caller):
    """Times, prices, limits; from memory, and never how many are left."""
    call = make_caller(
        sale={
            "skus": {"black": 5, "gold": {"units": 2, "per_buyer": 1, "price_minor": 9900,
                                          "currency": "EUR"}},
            "per_buyer": {"sale": 2},
            "closes_at": "2030-01-01T00:00:00Z",
        }
    )  # fmt: skip
    call.engine.ledger.close()
    assert call("GET", "/v1/sales/drop").body == {
        "id": "drop",
        "state": "open",
        "opens_at": None,
        "closes_at": "2030-01-01T00:00:00.000Z",
        "per_buyer": {"sale": 2},
        "skus": [
            {"id": "black"},
            {"id": "gold", "per_buyer": 1, "price_minor": 9900, "currency": "EUR"},
        ],
        "server_time": "2023-11-14T22:13:20.000Z",
    }


def test_a_view_follows_the_sale(make_caller, clock):
    """Its state is what an attempt would meet, from the first look after a change."""
    call = make_caller(start=False)
    sales = call.engine.sales

    def shown():
        return call("GET", "/v1/sales/drop").body["state"]

    assert shown() == "created"
    sales.create("drop", actor="test")
    assert shown() == "created"
    sales.warm_up("drop", actor="test")
    assert shown() == "warmed"
    sales.open("drop", actor="test")
    assert shown() == "open"
    sales.pause("drop", actor="test")
    assert shown() == "paused"
    sales.end("drop", actor="test")
    assert shown() == "ended"
    before = call("GET", "/v1/sales/drop").body["server_time"]
    clock.advance(1.5)
    assert call("GET", "/v1/sales/drop").body["server_time"] > before


def test_a_sale_in_mode_closed_is_shown_paused(make_caller):
    """Modes are the operator's; a buyer meets a closed entrance."""
    call = make_caller(sale={"mode": "closed"})
    assert call.buy().name == "CLOSED"
    assert call("GET", "/v1/sales/drop").body["state"] == "paused"


# ------------------------------------------------------------------ health
def test_health_and_readiness(call, clock):
    """Alive is alive; ready needs a ledger that answered lately, and a process that stays."""
    call.app._readiness = readiness = Readiness(call.engine)
    assert call("GET", "/healthz").body == {"alive": True}
    assert call("GET", "/readyz").body == {"ready": False, "reason": "ledger"}
    readiness.look()
    assert call("GET", "/readyz") == call("HEAD", "/readyz")
    assert call("GET", "/readyz").body == {"ready": True}
    clock.advance(60)
    assert call("GET", "/readyz").status == 503
    readiness.look()
    readiness.draining = True
    assert call("GET", "/readyz").body == {"ready": False, "reason": "draining"}
    assert call("GET", "/healthz").status == 200


def test_readiness_is_no_read_per_request(call, monkeypatch):
    """A probe costs the ledger nothing, however often it comes."""

    def asked():
        raise AssertionError("the ledger was asked")

    monkeypatch.setattr(call.engine.ledger, "sales", asked)
    assert call("GET", "/readyz").status == 200


def test_a_ledger_that_fails_is_not_ready(call, monkeypatch, clock):
    """The look fails, time passes, and buyers are sent elsewhere."""

    def fails():
        raise RuntimeError("gone")

    monkeypatch.setattr(call.engine.ledger, "sales", fails)
    clock.advance(60)
    call.app._readiness.look()
    assert call("GET", "/readyz").body["reason"] == "ledger"


def test_readiness_looks_by_itself(call):
    """Until it is left; then its thread is gone."""
    looked = threading.Event()

    class Seen(Readiness):
        def look(self):
            super().look()
            looked.set()

    before = threading.active_count()
    with Seen(call.engine) as readiness:
        looked.clear()
        assert looked.wait(10)
        assert readiness.problem() is None
    assert threading.active_count() == before


# ------------------------------------------------------------------ faults
def test_a_fault_of_an_attempt_is_pending(make_faulty):
    """It may have been applied, so nobody guesses: the same request_id gets the truth."""

    async def attempt(*_, **__):
        raise RuntimeError("a defect")

    call = make_faulty(attempt)
    found = call.buy()
    assert (found.status, found.name) == (202, "PENDING")
    found = call("GET", f"{ATTEMPTS}/r1", headers={"x-buyer": "ann"})
    assert (found.status, found.name) == (503, "BUSY")


def test_a_cancelled_caller_is_told_pending(make_faulty):
    """C7: at the end of a drain the wait is over, and the attempt is not."""

    async def attempt(*_, **__):
        await asyncio.sleep(60)  # until it is cancelled

    async def cancelled(call, *request):
        task = asyncio.create_task(call.ask(*request))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        return await task

    call = make_faulty(attempt)
    found = asyncio.run(cancelled(call, "POST", ATTEMPTS, b'{"sku":"black"}', BUY))
    assert (found.status, found.name) == (202, "PENDING")
    found = asyncio.run(cancelled(call, "GET", f"{ATTEMPTS}/r1", b"", {"x-buyer": "ann"}))
    assert (found.status, found.name) == (503, "BUSY")


@pytest.mark.parametrize("arrived", [0, 1, 2])
@pytest.mark.parametrize(
    ("method", "path"), [("POST", ATTEMPTS), ("GET", "/healthz"), ("PUT", "/nothing")]
)
def test_a_body_that_never_ends_is_busy_at_the_end(make_faulty, method, path, arrived):
    """Cancelled in the middle of a request: nothing was applied, and that is what is said."""

    async def attempt(*_, **__):
        raise AssertionError("half a request is none")

    async def ends(app):
        left = [{"type": "http.request", "body": b'{"sku":', "more_body": True}] * arrived
        sent, waits = [], asyncio.Event()

        async def receive():
            if not left:
                waits.set()
                await asyncio.sleep(60)  # until it is cancelled
            return left.pop()

        async def send(message):
            sent.append(message)

        headers = [(name.encode(), value.encode()) for name, value in BUY.items()]
        scope = {"type": "http", "method": method, "path": path, "headers": headers}
        task = asyncio.create_task(app(scope | {"raw_path": path.encode()}, receive, send))
        if method == "POST" or not arrived:
            await waits.wait()
            task.cancel()
        await task
        return sent

    call = make_faulty(attempt)
    for _ in range(2):  # the second time its path is known
        start, body = asyncio.run(ends(call.app))
        assert (b"connection", b"close") in start["headers"]
        assert (b"content-type", b"application/json") in start["headers"]
        if method == "POST" or not arrived:
            found = json.loads(body["body"])
            assert (start["status"], found["name"]) == (HTTP_STATUS[Code.BUSY], "BUSY")
            assert found["detail"] == {"reason": "draining"}


def test_any_server_may_run_it(call):
    """Lifespan is acknowledged; a web socket is closed."""

    async def run(kind, *incoming):
        left, sent = list(incoming), []

        async def receive():
            return {"type": left.pop(0)}

        async def send(message):
            sent.append(message["type"])

        await call.app({"type": kind}, receive, send)
        return sent

    assert asyncio.run(run("lifespan", "lifespan.startup", "lifespan.shutdown")) == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert asyncio.run(run("websocket", "websocket.connect")) == ["websocket.close"]


def test_it_is_not_built_without_a_buyer_header(call):
    """A program that mounts it cannot forget it either (X1)."""
    with pytest.raises(ValueError, match="buyer_header"):
        App(call.engine, Readiness(call.engine), Http())
