"""The ASGI application of the buyer path: a few paths, each read as it was sent.

No framework, since an attempt costs the engine a few microseconds and a router would cost more.
A path is matched byte by byte: ids need no percent sign, so one that has it is unknown, and no
two spellings name the same sale (X3). Whatever a request holds, it gets an answer in JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, TypeAlias

from doorbuster.engine import Engine
from doorbuster.http import asks
from doorbuster.http.readiness import Readiness
from doorbuster.http.replies import (
    Reply,
    closing,
    error,
    json_bytes,
    of_outcome,
    reply,
    too_large,
)
from doorbuster.http.views import SaleViews
from doorbuster.logs import get_logger
from doorbuster.model import Attempt
from doorbuster.outcomes import Code, Outcome
from doorbuster.pipeline import busy
from doorbuster.settings import Http

__all__ = ["App"]

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

_REQUEST_ID: Final = b"idempotency-key"
_RECEIPT: Final = b"doorbuster-receipt"

_UNSURE: Final = Outcome(Code.PENDING, retry_after_ms=1000)
"""For what may have been applied: the same request_id gets the truth (protocol.md 4.6)."""

_CHALLENGE: Final = (b"www-authenticate", b"Gateway")  # HTTP asks a 401 to name a scheme
_NO_PATH: Final = error(404, "unknown-path")
_NO_ATTEMPT: Final = error(404, "unknown-attempt")
_ALIVE: Final = reply(200, b'{"alive":true}')
_READY: Final = reply(200, b'{"ready":true}')
_GET_ONLY: Final = error(405, "method-not-allowed", (b"allow", b"GET, HEAD"))
_POST_ONLY: Final = error(405, "method-not-allowed", (b"allow", b"POST"))


class App:
    """One engine over HTTP. Serves any number of requests on one event loop."""

    def __init__(self, engine: Engine, readiness: Readiness, settings: Http) -> None:
        """``settings.buyer_header`` must be named.

        Raises:
            ValueError: it is not.
        """
        if settings.buyer_header is None:
            raise ValueError("http.buyer_header is not named")
        self._engine = engine
        self._readiness = readiness
        self._settings = settings
        self._buyer_header = settings.buyer_header.lower().encode("latin-1")
        self._body_max = settings.body_max_bytes
        self._results = 0
        self._views = SaleViews()
        self._log = get_logger("doorbuster.http")
        self._sales: dict[bytes, str] = {}  # the one look-up on the way of an attempt
        self._no_buyer = self._unauthorized("no-buyer")
        self._two_buyers = self._unauthorized("two-buyers")
        self._too_large = closing(too_large(self._body_max))

    def _unauthorized(self, name: str) -> Reply:
        return error(401, name, _CHALLENGE, expected=f"one header {self._settings.buyer_header}")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or the server's lifespan."""
        if scope["type"] != "http":
            await _lifespan(scope, receive, send)
            return
        if scope["method"] == "POST":
            sale = self._sales.get(scope.get("raw_path", b""))
            if sale is not None:
                await self._attempt(sale, scope["headers"], receive, send)
                return
        try:
            await self._route(scope, receive, send)
        except Exception as fault:  # noqa: BLE001 - a defect of ours is no traceback of theirs
            self._log.error("request failed", error=f"{type(fault).__name__}: {fault}")
            await _send(send, of_outcome(busy("defect")))

    # ------------------------------------------------------------------ paths
    async def _route(self, scope: Message, receive: Receive, send: Send) -> None:
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        getting = scope["method"] in ("GET", "HEAD")
        match path.split(b"/")[1:]:
            case [*words] if b"" in words:  # "/", a slash too many: ids are never empty
                found = _NO_PATH
            case [b"v1", b"sales", sale, b"attempts"] if scope["method"] == "POST":
                name = sale.decode("latin-1")
                if name in self._engine.world.runtimes:  # as many as config has
                    self._sales[path] = name
                await self._attempt(name, scope["headers"], receive, send)
                return
            case [b"v1", b"sales", _, b"attempts"]:
                found = _POST_ONLY
            case [b"v1", b"sales", sale, b"attempts", request_id]:
                found = _GET_ONLY
                if getting:
                    found = await self._result(sale, request_id, scope["headers"])
            case [b"v1", b"sales", sale]:
                found = self._view(sale.decode("latin-1")) if getting else _GET_ONLY
            case [b"healthz"]:
                found = _ALIVE if getting else _GET_ONLY
            case [b"readyz"]:
                found = self._ready() if getting else _GET_ONLY
            case _:
                found = _NO_PATH
        try:
            message = await receive()
        except asyncio.CancelledError:  # the time to drain is over
            await _send(send, _not_heard())
            return
        if message["type"] == "http.request":
            # a body that nobody reads ends its connection, or it could be sent for ever
            await _send(send, closing(found) if message.get("more_body") else found)

    def _ready(self) -> Reply:
        problem = self._readiness.problem()
        if problem is None:
            return _READY
        return reply(503, json_bytes({"ready": False, "reason": problem}))

    def _view(self, sale: str) -> Reply:
        runtime = self._engine.world.runtimes.get(sale)
        if runtime is None:
            return _unknown_sale(sale)
        return reply(200, self._views.body(runtime, self._engine.ledger.now_ms()))

    # ------------------------------------------------------------------ attempts
    async def _attempt(self, sale: str, headers: Headers, receive: Receive, send: Send) -> None:
        body = await self._body(headers, receive)
        if isinstance(body, tuple):
            await _send(send, body)
        elif body is not None:  # else gone before it had asked
            await _send(send, await self._judged(sale, headers, body))

    async def _judged(self, sale: str, headers: Headers, body: bytes) -> Reply:
        """Who asks, under which request_id, then what the engine says."""
        buyer = request_id = b""
        buyers = request_ids = 0
        buyer_header = self._buyer_header
        for name, value in headers:
            if name == buyer_header:
                buyer = value
                buyers += 1
            elif name == _REQUEST_ID:
                request_id = value
                request_ids += 1
        if not buyer:
            return self._no_buyer
        if buyers > 1:  # which one the gateway wrote cannot be told (X1)
            return self._two_buyers
        if not request_id:
            return of_outcome(asks.NO_REQUEST_ID)
        if request_ids > 1:
            return of_outcome(asks.TWO_REQUEST_IDS)
        return of_outcome(
            await self._decide(sale, buyer.decode("latin-1"), request_id.decode("latin-1"), body)
        )

    async def _decide(self, sale: str, buyer: str, request_id: str, body: bytes) -> Outcome:
        """The outcome of one attempt. What fails from here on may have been applied."""
        try:
            ask = asks.decode(body)
        except (ValueError, RecursionError) as fault:
            return asks.bad_body(fault)
        lines = asks.lines_of(ask)
        if isinstance(lines, Outcome):
            return lines
        try:
            found = self._engine.offer(sale, Attempt(lines, buyer, request_id, ticket=ask.ticket))
            return found if isinstance(found, Outcome) else await found
        except asyncio.CancelledError:  # the time to drain is over; the attempt goes on (C7)
            return _UNSURE
        except Exception as fault:  # noqa: BLE001 - a buyer gets an answer, never a traceback
            self._log.error("attempt failed", error=f"{type(fault).__name__}: {fault}")
            return _UNSURE

    async def _body(self, headers: Headers, receive: Receive) -> bytes | Reply | None:
        """Read a body: all of it, or why not, or ``None`` when its sender is gone."""
        try:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body: bytes = message.get("body", b"")
            if message.get("more_body") or len(body) > self._body_max:
                return await self._whole(body, bool(message.get("more_body")), headers, receive)
            return body
        except asyncio.CancelledError:  # the time to drain is over
            return _not_heard()

    async def _whole(
        self, body: bytes, more: bool, headers: Headers, receive: Receive
    ) -> bytes | Reply | None:
        """The same for a body that comes in pieces, or is too large."""
        for name, value in headers:
            if name == b"content-length" and value.isdigit() and int(value[:20]) > self._body_max:
                return self._too_large
        read = bytearray(body)
        while len(read) <= self._body_max:
            if not more:
                return bytes(read)
            message = await receive()
            if message["type"] != "http.request":
                return None
            read += message.get("body", b"")
            more = bool(message.get("more_body"))
        return self._too_large

    # ------------------------------------------------------------------ results
    async def _result(self, sale: bytes, request_id: bytes, headers: Headers) -> Reply:
        """What became of an attempt of this buyer; another's is as unknown as none (X16)."""
        buyers = [value for name, value in headers if name == self._buyer_header]
        receipts = [value for name, value in headers if name == _RECEIPT]
        if not buyers or not buyers[0]:
            return self._no_buyer
        if len(buyers) > 1:
            return self._two_buyers
        name = sale.decode("latin-1")
        if name not in self._engine.world.runtimes:
            return _unknown_sale(name)
        if self._results >= self._settings.results_max:
            return of_outcome(busy("results-max"))
        self._results += 1
        try:
            found = await self._engine.result(
                name,
                buyer=buyers[0].decode("latin-1"),
                request_id=request_id.decode("latin-1"),
                receipt=receipts[0].decode("latin-1") if receipts else None,
            )
        except asyncio.CancelledError:
            return of_outcome(busy("draining"))
        finally:
            self._results -= 1
        return _NO_ATTEMPT if found is None else of_outcome(found)


def _unknown_sale(sale: str) -> Reply:
    return of_outcome(Outcome(Code.INVALID, detail={"reason": "unknown-sale", "sale": sale[:64]}))


def _not_heard() -> Reply:
    """For a request that was not whole when its time was over: surely nothing was applied."""
    return closing(of_outcome(busy("draining")))


async def _send(send: Send, found: Reply) -> None:
    start, body = found
    await send(start)
    await send(body)


async def _lifespan(scope: Message, receive: Receive, send: Send) -> None:
    """The engine's life is its owner's: say that all is well, whatever server asks."""
    if scope["type"] != "lifespan":
        await send({"type": "websocket.close", "code": 1000})
        return
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
