"""Bounds on the wire, where uvicorn has none: connections, request heads, slow senders, leaving.

uvicorn parses and frames; this only counts and closes. It reads what ``HttpToolsProtocol`` keeps
of its request: ``cycle`` (the newest request), ``scope`` (of the head being read), ``pipeline``
(requests that wait for an earlier one's answer). What is refused here never reached the
application, so nothing was sold. Everything said is JSON, like the application's own replies.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from doorbuster.http.replies import error, of_outcome, on_the_wire
from doorbuster.pipeline import busy
from doorbuster.settings import Http

__all__ = ["BoundedProtocol", "bounded"]

_BAD_REQUEST: Final = on_the_wire(error(400, "bad-request"))
_TOO_SLOW: Final = on_the_wire(error(408, "request-timeout"))
_HEAD_TOO_LARGE: Final = on_the_wire(error(431, "headers-too-large"))
_NO_UPGRADE: Final = on_the_wire(error(400, "upgrade-with-body"))
_FULL: Final = on_the_wire(of_outcome(busy("connections-max", 1000)))
_GRACE_S: Final = 0.5
"""How long an idle connection is kept at the end: a request that is on its way is answered."""
_PARTS: Final = 16
_receive: Final = HttpToolsProtocol.data_received


class BoundedProtocol(HttpToolsProtocol):
    """One connection, within ``bounds``. Costs a whole request one call and two comparisons."""

    bounds = Http()
    _watched = False  # a timer runs, or the connection is about to leave: no fast way
    _head: Any = None  # the scope of the head that ``_head_bytes`` belong to
    _head_bytes = 0
    _timer: asyncio.TimerHandle | None = None
    _leaving = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Take a connection, or say BUSY when there are too many; its first request must come."""
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections_max:
            self._end(_FULL)
        else:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._expect_nothing()
        super().connection_lost(exc)

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
            self._watched or cycle is None or cycle.more_body or cycle.scope is not self.scope
        ):  # the request is not whole, or was not a moment ago
            self._weigh(len(data))

    def _in_parts(self, data: bytes, size: int) -> None:
        for at in range(0, len(data), size):
            if self.transport.is_closing():
                return
            part = data[at : at + size]
            _receive(self, part)
            self._weigh(len(part))

    def _weigh(self, size: int) -> None:
        """Count ``size`` bytes to the head or the body that they belong to."""
        cycle = self.cycle
        if cycle is None or cycle.scope is not self.scope:
            if self._head is not self.scope:  # another one: earlier bytes were other requests
                self._head, self._head_bytes = self.scope, 0
            self._head_bytes += size
            if self._head_bytes > self.bounds.headers_max_bytes:
                self._end(_HEAD_TOO_LARGE)
            else:
                self._expect()
            return
        self._head_bytes = 0
        if cycle.more_body and not cycle.response_complete:
            self._expect()
        else:
            self._expect_nothing()
        if self._leaving:
            cycle.keep_alive = False

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
        self._expect_nothing()
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            is_next = True
        else:
            is_next = cycle.scope is self.scope and not self.pipeline and not cycle.response_started
        if is_next:
            self.transport.write(said)
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
        names = [name for name, value in self.headers if value != b"0"]
        if b"content-length" in names or b"transfer-encoding" in names:
            self._end(_NO_UPGRADE)
            cycle.disconnected = True  # so that the application hears nothing of it

    def shutdown(self) -> None:
        """Answer who is inside, and whoever is on the way, then close."""
        self._leaving = self._watched = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(_GRACE_S, self._leave)

    def _leave(self) -> None:
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and not self._head_bytes:
            self.transport.close()


def bounded(settings: Http) -> type[Any]:
    """The protocol class for these bounds, as uvicorn takes it."""
    return type("Bounded", (BoundedProtocol,), {"bounds": settings})
