"""Post accepted attempts to an order service, and take orders back there.

What the service must keep is in the README. What this side keeps: no retry of its own (the
workers call again, and they wait longer each time), a bound on every wait, and one table that
says of each failure whether the service may have done it. Where nobody can tell, it says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, NoReturn

import httpx
import msgspec
from doorbuster.plugin import (
    Context,
    PermanentError,
    Persisted,
    PluginOptions,
    Reservation,
    UnavailableError,
    UnknownOutcomeError,
    hookimpl,
)

__all__ = ["OrderService"]

_PERSISTED: Final[Mapping[Any, Persisted]] = {
    "created": Persisted.CREATED,
    "exists": Persisted.EXISTS,
    "refused": Persisted.REFUSED,
}
_VOIDED: Final[Mapping[Any, Persisted]] = {
    "cancelled": Persisted.EXISTS,
    "void": Persisted.REFUSED,
}
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_NOT_NOW: Final = (429, 503)  # by the contract of the service: nothing was done
_BAD_CONTENT: Final = (400, 409, 422)
_CONNECTIONS_MAX: Final = 16  # threads that persist at once are fewer


class OrderService:
    """Write orders into a team's own service over HTTP, and void them there."""

    class Options(PluginOptions):
        """Settings under ``[plugins.order-service]``."""

        url: str
        """Where the service is: ``https://orders.example``; required."""
        token: str | None = None
        """Sent as ``Authorization: Bearer``; default none. It belongs into the secrets file."""
        orders_max: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
        """Orders in one request, 1 to 1000, default 100."""
        connect_s: Annotated[float, msgspec.Meta(gt=0, le=60)] = 1.0
        """Longest wait for a connection, default 1: past that, nothing was sent."""
        reply_s: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0
        """Longest wait for a reply, default 5: past that, the orders may be written."""

    def __init__(self, options: Options, context: Context) -> None:
        """Open no connection yet.

        Raises:
            ValueError: ``url`` is not that of an HTTP server.
        """
        url = httpx.URL(options.url)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"url: {options.url!r} is not one; expected https://host")
        headers = {"Authorization": f"Bearer {options.token}"} if options.token else {}
        self._orders_max = options.orders_max
        self._client = httpx.Client(
            base_url=url,
            headers=headers,
            timeout=httpx.Timeout(options.reply_s, connect=options.connect_s),
            transport=httpx.HTTPTransport(
                verify=url.scheme == "https",  # plain http has no certificate to look up
                retries=0,  # who repeats must know what may have happened: the workers do
                limits=httpx.Limits(max_connections=_CONNECTIONS_MAX),
            ),
            trust_env=False,  # a proxy variable of the shell must not carry orders elsewhere
        )

    @hookimpl
    def persist(self, reservations: Sequence[Reservation]) -> Sequence[Persisted]:
        """Post the orders, some in each request; answer one item each, in order.

        Safe to call again with any of them: the same ``order_no`` is the same order.

        Raises:
            UnavailableError: the service refused the connection or is busy; of this request
                nothing was written, earlier ones of the call exist.
            UnknownOutcomeError: no reply, a broken one, or the service failed: any may exist.
            PermanentError: it refuses the request as such; nothing of it was written.
        """
        answers: list[Persisted] = []
        for start in range(0, len(reservations), self._orders_max):
            answers += self._post(reservations[start : start + self._orders_max])
        return answers

    @hookimpl
    def void(self, reservation: Reservation) -> Persisted:
        """Cancel the order, or leave a tombstone that refuses it for good; idempotent.

        EXISTS: it was there and is cancelled now. REFUSED: there was none, and will be none.

        Raises:
            UnavailableError: nothing was done.
            UnknownOutcomeError: it may be done; calling again finds the same end.
            PermanentError: the service refuses the request as such.
        """
        with _faults():
            reply = self._client.delete(f"/orders/{reservation.order_no}")
        if reply.status_code != 200:
            _raise_for(reply)
        answer = _VOIDED.get(_body(reply).get("state"))
        if answer is None:
            raise UnknownOutcomeError(f"the order service answered {reply.text[:80]!r}")
        return answer

    def close(self) -> None:
        """Close the connections; closing twice is closing once."""
        self._client.close()

    def _post(self, items: Sequence[Reservation]) -> Sequence[Persisted]:
        with _faults():
            reply = self._client.post("/orders", json={"orders": [_order(i) for i in items]})
        if reply.status_code != 200:
            if reply.status_code in _BAD_CONTENT and len(items) == 1:
                return [Persisted.REFUSED]  # this very order; of several, the core tries halves
            _raise_for(reply)
        told = _body(reply).get("orders")
        rows = told if isinstance(told, list) else []
        numbers = [row.get("order_no") if isinstance(row, dict) else None for row in rows]
        if numbers != [item.order_no for item in items]:  # another's answers, or some are missing
            raise UnknownOutcomeError("the order service answered other orders than were sent")
        states = [row.get("state") for row in rows]
        if strange := [state for state in states if state not in _PERSISTED]:
            raise UnknownOutcomeError(f"the order service answered a state {strange[0]!r}")
        return [_PERSISTED[state] for state in states]


def _order(item: Reservation) -> dict[str, Any]:
    attempt = item.attempt
    return {
        "order_no": item.order_no,
        "sale": attempt.sale,
        "buyer": attempt.buyer,
        "request_id": attempt.request_id,
        "lines": [{"sku": line.sku, "quantity": line.quantity} for line in attempt.lines],
    }


def _body(reply: httpx.Response) -> Mapping[str, Any]:
    try:
        body = reply.json()
    except ValueError as error:
        raise UnknownOutcomeError("the order service's reply is not JSON") from error
    return body if isinstance(body, dict) else {}


@contextmanager
def _faults() -> Iterator[None]:
    """What goes wrong on the way, as one of the two kinds of fault."""
    try:
        yield
    except _NOT_SENT as error:
        raise UnavailableError(f"the order service cannot be reached: {error}") from error
    except httpx.HTTPError as error:  # from the first byte sent, nobody here can tell
        raise UnknownOutcomeError(
            f"no reply of the order service: {type(error).__name__}"
        ) from error


def _raise_for(reply: httpx.Response) -> NoReturn:
    """Raise the fault that a status stands for."""
    said = f"the order service answered {reply.status_code}"
    if reply.status_code in _NOT_NOW:
        raise UnavailableError(said)
    if 300 <= reply.status_code < 500:
        raise PermanentError(said)
    raise UnknownOutcomeError(said)  # it failed on the way, or somebody between did (502, 504)
