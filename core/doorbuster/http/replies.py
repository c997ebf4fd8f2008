"""From an outcome, or an error of HTTP's own, to bytes.

A body with ``code`` is an outcome, whatever its status; a body with ``error`` means that the
request never became an attempt. A reply is the pair of messages that ASGI sends; what does not
change is built once.
"""

from __future__ import annotations

import random
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import msgspec

from doorbuster.outcomes import HTTP_STATUS, Code, Outcome

__all__ = [
    "Reply",
    "closing",
    "error",
    "json_bytes",
    "of_outcome",
    "on_the_wire",
    "reply",
    "too_large",
]

Header: TypeAlias = tuple[bytes, bytes]
Reply: TypeAlias = tuple[dict[str, Any], dict[str, Any]]
"""``http.response.start`` and ``http.response.body``. Neither is changed once it is built."""

json_bytes: Final = msgspec.json.Encoder(enc_hook=str).encode
"""JSON of anything; what JSON has no kind for is written as text."""

_JSON: Final = (b"content-type", b"application/json")
_CLOSE: Final = (b"connection", b"close")
_SPREAD: Final = frozenset({Code.BUSY, Code.PENDING})
"""Codes whose ``retry_after_ms`` is one number for everybody: a crowd would come back as one."""
_LENGTHS: Final = [(b"content-length", b"%d" % n) for n in range(1024)]
_BEGINNINGS: Final = {
    code: (
        HTTP_STATUS[code],
        b'{"code":%d,"name":"%s"' % (code, code.name.encode()),
        len(b'{"code":%d' % code),  # what an encoded outcome begins with instead
    )
    for code in Code
}


def reply(status: int, body: bytes, *headers: Header) -> Reply:
    """A JSON reply with ``headers`` beside its type and length."""
    size = len(body)
    length = _LENGTHS[size] if size < len(_LENGTHS) else (b"content-length", b"%d" % size)
    return (
        {"type": "http.response.start", "status": status, "headers": (_JSON, length, *headers)},
        {"type": "http.response.body", "body": body},
    )


def error(status: int, name: str, *headers: Header, **detail: Any) -> Reply:
    """A reply about the request itself: ``{"error": name, ...}``."""
    return reply(status, json_bytes({"error": name, **detail}), *headers)


def too_large(body_max_bytes: int) -> Reply:
    """413: a body beyond the bound; to be sent as the last on its connection."""
    return error(413, "body-too-large", body_max_bytes=body_max_bytes)


def closing(found: Reply) -> Reply:
    """The same, after which the connection ends: what is left of the request is not read."""
    start, body = found
    return {**start, "headers": (*start["headers"], _CLOSE)}, body


def of_outcome(outcome: Outcome) -> Reply:
    """The reply to an attempt: the outcome's own fields, its code's status, its headers.

    ``receipt`` travels in ``Doorbuster-Receipt``; ``retry_after_ms`` also as ``Retry-After``, in
    whole seconds, rounded up. That of BUSY and PENDING is between one and two times what the
    engine says, for each caller another: this is the one place that every such answer passes,
    whichever stage or bound it comes from. A rate limit has spread its own already.
    """
    code = outcome.code
    status, beginning, skipped = _BEGINNINGS[code]
    headers: tuple[Header, ...] = ()
    after_ms = outcome.retry_after_ms
    if after_ms is not None:
        if code in _SPREAD:
            after_ms = round(after_ms * (1.0 + random.random()))
            outcome = msgspec.structs.replace(outcome, retry_after_ms=after_ms)
        headers = ((b"retry-after", b"%d" % -(-after_ms // 1000)),)
    if outcome.receipt is not None:
        headers = (*headers, (b"doorbuster-receipt", outcome.receipt.encode()))
        outcome = msgspec.structs.replace(outcome, receipt=None)
    if code is Code.INVALID and outcome.detail.get("reason") == "unknown-sale":
        status = 404
    return reply(status, beginning + _encoded(outcome)[skipped:], *headers)


def _encoded(outcome: Outcome) -> bytes:
    """The outcome as JSON; it always begins with its code, which has no default to omit."""
    try:
        return json_bytes(outcome)
    except (ValueError, TypeError, OverflowError, RecursionError):
        # a plugin's detail that JSON cannot hold must not turn an answer into none
        return json_bytes(msgspec.structs.replace(outcome, detail={}))


def on_the_wire(found: Reply) -> bytes:
    """A reply as the bytes of HTTP/1.1 that end a connection, for what no application sees."""
    start, body = closing(found)
    status = HTTPStatus(start["status"])
    head = [b"HTTP/1.1 %d %s" % (status, status.phrase.encode())]
    head += [b"%s: %s" % header for header in start["headers"]]
    return b"\r\n".join((*head, b"", body["body"]))
