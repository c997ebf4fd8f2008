"""Bounds on the wire, where uvicorn has none: connections, sizes, slow senders, leaving.

uvicorn parses and frames; this only counts and closes. It reads what ``HttpToolsProtocol`` keeps
of its request: ``cycle`` (the newest request), ``scope`` (of the head being read), ``headers`` (of
that head), ``pipeline`` (requests that wait for an earlier one's answer). What is refused here
never reached the application, so nothing was sold. Everything said is JSON, like the
application's own replies.

The number of headers needs no bound of its own: each takes four bytes of ``headers_max_bytes``.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from doorbuster.http.replies import error, of_outcome, on_the_wire, too_large
from doorbuster.pipeline import busy
from doorbuster.settings import Http

__all__ = ["BoundedProtocol", "bounded"]

_BAD_REQUEST: Final = on_the_wire(error(400, "bad-request"))
_TOO_SLOW: Final = on_the_wire(error(408, "request-timeout"))
_HEAD_TOO_LARGE: Final = on_the_wire(error(431, "headers-too-large"))
_NO_UPGRADE: Final = on_the_wire(error(400, "upgrade-with-body"))
_FULL: Final = busy("connections-max", 1000)
_GRACE_S: Final = 0.5
"""How long an idle connection is kept at the end: a request that is on its way is answered."""
_PARTS: Final = 16
_PIPELINE_MAX: Final = 256
"""Requests that wait on a connection for an earlier one's answer: 2 KB each, half a MB in all. A
gateway sends none before it has its answer; few clients send more than some (X14)."""
_HOST: Final = re.compile(
    rb"([A-Za-z0-9._~!$&'()*+,;=%-]*|\[[A-Za-z0-9._~!$&'()*+,;=%:-]+\])(:[0-9]*)?[ \t]*"
)
"""``uri-host [":" port]`` (RFC 9112 3.2); a name may be empty."""
_receive: Final = HttpToolsProtocol.data_received
_begin: Final = HttpToolsProtocol.on_headers_complete
_start: Final = HttpToolsProtocol._start_asgi_task


class BoundedProtocol(HttpToolsProtocol):
    """One connection, within ``bounds``. Costs a whole request three calls, and few comparisons."""

    bounds = Http()
    _watched = False  # a timer runs, or the connection is about to leave: no fast way
    _part: Any = None  # the scope of the request that ``_part_bytes`` belong to
    _part_bytes = 0  # of a request that is not whole
    _hosts: list[bytes] | None = None  # as the last request named its host
    _running: Any = None  # the cycle whose answer comes next
    _timer: asyncio.TimerHandle | None = None
    _leaving = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Take a connection, or say BUSY when there are too many; its first request must come."""
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections_max:
            self._end(on_the_wire(of_outcome(_FULL)))
        else:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection; who still answers on it hears that nobody is there.

        uvicorn tells only the newest request, and an earlier one would write to what is closed.
        """
        self._expect_nothing()
        if self._running is not None:
            self._running.disconnected = True
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        _start(self, cycle, app)

    def data_received(self, data: bytes) -> None:
        """Take what arrived; a request must be whole within ``receive_s``.

        A large piece is taken in parts, so that a head that is too large is seen before it ends:
        what passes exceeds ``headers_max_bytes`` by a part at most.
        """
        large = self.bounds.headers_max_bytes
        if len(data) > large:
            self._in_parts(data, large // _PARTS)
            return
        _receive(self, data)
        cycle = self.cycle
        if (
            self._watched
            or cycle is None
            or cycle.more_body
            or cycle.response_complete
            or cycle.scope is not self.scope
            or self.headers
        ):  # the request is not whole, or was not a moment ago; none has begun; it has a trailer
            self._weigh(len(data))

    def _in_parts(self, data: bytes, size: int) -> None:
        for at in range(0, len(data), size):
            if self.transport.is_closing():
                return
            part = data[at : at + size]
            _receive(self, part)
            self._weigh(len(part))

    def _weigh(self, size: int) -> None:
        """Count ``size`` bytes to the request that they belong to, and watch what is not whole.

        Beyond its head a request may take ``body_max_bytes``, framed as it likes: the sizes of
        chunks and the trailers have what its head has left of ``headers_max_bytes``.
        """
        cycle, bounds = self.cycle, self.bounds
        if cycle is None or cycle.scope is not self.scope:
            if self._count(size) > bounds.headers_max_bytes:
                self._end(_HEAD_TOO_LARGE)
            return
        if cycle.more_body:
            if self._count(size) > bounds.headers_max_bytes + bounds.body_max_bytes:
                self._end(on_the_wire(too_large(bounds.body_max_bytes)))
        elif cycle.response_complete:  # empty lines: they begin nothing, and keep nobody alive
            self._expect()
        else:
            self._part_bytes = 0
            self._expect_nothing()
        if self._leaving or any(b"close" in value.lower() for _, value in self.headers):
            cycle.keep_alive = False  # such a trailer may end the parser's reading: say so

    def _count(self, size: int) -> int:
        """Add to a request that is not whole, and expect the rest; answer its bytes so far."""
        if self._part is not self.scope:  # another one: earlier bytes and time were not its own
            self._part, self._part_bytes = self.scope, 0
            self._expect_nothing()
        self._part_bytes += size
        self._expect()
        return self._part_bytes

    # ------------------------------------------------------------------ heads
    def on_headers_complete(self) -> None:
        """Begin a request that names one host (RFC 9112 3.2), by the headers of its head alone.

        The parser calls a trailer a header too. One that comes after a body was judged by no
        gateway, so it must not name a buyer: from here on they go to a list that nobody reads.

        Raises:
            ValueError: not one host, or too many requests wait; the parser makes that a request
                that is none.
        """
        if len(self.pipeline) >= _PIPELINE_MAX:
            raise ValueError("too many requests before the first answer")
        hosts = [value for name, value in self.headers if name == b"host"]
        parser: Any = self.parser
        if hosts != self._hosts and (hosts or parser.get_http_version() != "1.0"):
            if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
                raise ValueError("a request names one host")
            self._hosts = hosts
        _begin(self)
        self.headers = []

    # ------------------------------------------------------------------ slow senders
    def _expect(self) -> None:
        if self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(self.bounds.receive_s, self._late)
            self._watched = True

    def _expect_nothing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._watched = self._leaving

    def _late(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self._end(_TOO_SLOW)

    # ------------------------------------------------------------------ the end
    def _end(self, said: bytes) -> None:
        """Close, with a word where it cannot be taken for the answer to an earlier request."""
        if self.transport.is_closing():
            return
        self._expect_nothing()
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self.transport.write(said)
        elif cycle.scope is self.scope and not self.pipeline and not cycle.response_started:
            self.transport.write(said)
            cycle.disconnected = True  # it is answered: the application is to hear no more of it
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self._end(_BAD_REQUEST)

    def _unsupported_upgrade_warning(self) -> None:
        """Answer an offer of another protocol in this one, and close: the parser is done.

        It has dropped the body, if there is one, so such a request is refused.
        """
        cycle = self.cycle
        if cycle is None:
            return
        cycle.keep_alive = False
        names = [name for name, value in cycle.scope["headers"] if value != b"0"]
        if b"content-length" in names or b"transfer-encoding" in names:
            self._end(_NO_UPGRADE)

    def shutdown(self) -> None:
        """Answer who is inside, and whoever is on the way, then close."""
        self._leaving = self._watched = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(_GRACE_S, self._leave)

    def _leave(self) -> None:
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and not self._part_bytes:
            self.transport.close()


def bounded(settings: Http) -> type[Any]:
    """The protocol class for these bounds, as uvicorn takes it."""
    return type("Bounded", (BoundedProtocol,), {"bounds": settings})
