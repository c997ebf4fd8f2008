"""Who asks for what: checks, canonical lines, order numbers and receipts (protocol.md 2).

An identity is (environment, sale, run, buyer, request_id). Its order number is the first 128
bits of HMAC-SHA256 over it, equal in every door and epoch (2.2), so it cannot be guessed (X16).
The fingerprint is the canonical text of the lines: sale and buyer are in the identity already,
so comparing texts compares the whole content, without a hash to collide (docs/decisions/0001).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from doorbuster.model import ID_PATTERN, QUANTITY_MAX, Attempt, Line
from doorbuster.outcomes import Code, Rejection

__all__ = [
    "Receipt",
    "ServerKey",
    "canonical_lines",
    "check",
    "identity_text",
    "is_id",
    "parse_lines",
    "stable_hash",
]

_fullmatch = ID_PATTERN.fullmatch
_pair_match = re.compile(rf"{ID_PATTERN.pattern}\|{ID_PATTERN.pattern}").fullmatch
_MASK: Final = (1 << 64) - 1


def stable_hash(text: str) -> int:
    """Hash ``text`` to 0 .. 2**32-1, equal in every process and release (F6).

    CRC32 of the UTF-8 bytes, mixed by a 64-bit multiplication so that ids that differ only in a
    few digits still spread evenly over any modulus. The vectors are published in the tests.
    """
    return ((zlib.crc32(text.encode()) * 0x9E3779B97F4A7C15) & _MASK) >> 32


def is_id(text: Any) -> bool:
    """Whether ``text`` may be part of a key (X3, X4); of any other type: it may not."""
    return isinstance(text, str) and _fullmatch(text) is not None


def identity_text(buyer: Any, request_id: Any) -> str | None:
    """``buyer|request_id`` when both are ids, else ``None``: one look instead of two."""
    if type(buyer) is not str or type(request_id) is not str:
        return None
    text = f"{buyer}|{request_id}"
    return text if _pair_match(text) else None


def _invalid(reason: str, **detail: Any) -> Rejection:
    return Rejection(Code.INVALID, {"reason": reason, **detail})


_BAD_BUYER: Final = _invalid("bad-buyer", expected="1-64 of A-Z a-z 0-9 _ -")
_BAD_REQUEST_ID: Final = _invalid("bad-request-id", expected="1-64 of A-Z a-z 0-9 _ -")
_BAD_TICKET: Final = _invalid("bad-ticket", expected="text")
_BAD_FACTS: Final = _invalid("bad-facts", expected="a mapping of texts")
_BAD_LINES: Final = _invalid("bad-lines", expected="a sequence of Line(sku, quantity)")
_NO_LINES: Final = _invalid("no-lines")
_BAD_SKU: Final = _invalid("bad-sku", expected="1-64 of A-Z a-z 0-9 _ -")
_BAD_GROUP: Final = _invalid("bad-group", expected="1-64 of A-Z a-z 0-9 _ -")
_BAD_QUANTITY: Final = _invalid("bad-quantity", expected=f"a whole number 1..{QUANTITY_MAX}")


def check(attempt: Attempt, lines_max: int) -> Rejection | tuple[Line, ...]:
    """Check one attempt's shape; answer its canonical lines or an INVALID rejection.

    Lines of one (sku, group) are summed before any other check (D2), then sorted. Values are
    tested strictly: a bool, a float or ``"1e3"`` is not a quantity (X8).
    """
    # isinstance first: attempts come from callers' hands, and a wrong type must be an answer
    if not is_id(attempt.buyer):
        return _BAD_BUYER
    if not is_id(attempt.request_id):
        return _BAD_REQUEST_ID
    if attempt.ticket is not None and not isinstance(attempt.ticket, str):
        return _BAD_TICKET
    if not isinstance(attempt.facts, Mapping) or not _are_texts(attempt.facts):
        return _BAD_FACTS
    lines = attempt.lines
    if not isinstance(lines, (tuple, list)):
        return _BAD_LINES
    if len(lines) == 1:  # the common case, without the sums
        bad = _check_line(lines[0])
        return bad or (lines[0],)
    if not lines:
        return _NO_LINES
    if len(lines) > lines_max:
        return _invalid("too-many-lines", lines_max=lines_max)
    sums: dict[tuple[str, str], int] = {}
    for line in lines:
        bad = _check_line(line)
        if bad:
            return bad
        key = (line.sku, line.group or "")
        sums[key] = sums.get(key, 0) + line.quantity
        if sums[key] > QUANTITY_MAX:
            return _BAD_QUANTITY
    return tuple(Line(sku, n, group or None) for (sku, group), n in sorted(sums.items()))


def _are_texts(facts: Mapping[Any, Any]) -> bool:
    return all(isinstance(k, str) and isinstance(v, str) for k, v in facts.items())


def _check_line(line: Any) -> Rejection | None:
    if not isinstance(line, Line):
        return _BAD_LINES
    if not is_id(line.sku):
        return _BAD_SKU
    if type(line.quantity) is not int or not 1 <= line.quantity <= QUANTITY_MAX:
        return _BAD_QUANTITY
    if line.group is not None and not is_id(line.group):
        return _BAD_GROUP
    return None


def canonical_lines(lines: Sequence[Line]) -> str:
    """Write canonical lines as ``sku=quantity[@group]``, joined by commas: the fingerprint."""
    return ",".join(
        f"{line.sku}={line.quantity}@{line.group}" if line.group else f"{line.sku}={line.quantity}"
        for line in lines
    )


@lru_cache(maxsize=4096)  # a sale has few distinct texts, and a worker reads each order's
def parse_lines(text: str) -> tuple[Line, ...]:
    """Read back what :func:`canonical_lines` wrote."""
    lines = []
    for part in text.split(",") if text else ():
        sku, _, rest = part.partition("=")
        quantity, _, group = rest.partition("@")
        lines.append(Line(sku, int(quantity), group or None))
    return tuple(lines)


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """What a PENDING answer carries, signed, so that asking again can settle it (4.6).

    ``deadline_ms`` is ledger time: until then the attempt may still be under way.
    """

    sale: str
    run: int
    buyer: str
    request_id: str
    fingerprint: str
    epoch: int
    place: str
    kind: str
    deadline_ms: int


class ServerKey:
    """A secret that makes order numbers and signs receipts. Thread-safe, never printed."""

    def __init__(self, secret: bytes, environment: str) -> None:
        """Prepare the padded HMAC states once: 1.0 us an order number against 2.4 (measured)."""
        if len(secret) < 16:
            raise ValueError("a server key has at least 16 bytes")
        self._environment = environment
        block = (hashlib.sha256(secret).digest() if len(secret) > 64 else secret).ljust(64, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))
        self._receipt_key = hmac.digest(secret, b"receipt", "sha256")

    def __repr__(self) -> str:
        """Show no secret (X9)."""
        return "ServerKey(...)"

    def order_no(self, sale: str, run: int, buyer: str, request_id: str) -> str:
        """Derive the order number of an identity: 32 hex digits (protocol.md 2.2)."""
        return self.numbers(sale, run)(f"{buyer}|{request_id}")

    def numbers(self, sale: str, run: int) -> Callable[[str], str]:
        """The order numbers of one run, from ``buyer|request_id``; sale and run hashed once."""
        begun = self._inner.copy()
        begun.update(f"{self._environment}|{sale}|{run}|".encode())
        begin, end = begun.copy, self._outer.copy

        def order_no(identity: str) -> str:
            inner = begin()
            inner.update(identity.encode())
            outer = end()
            outer.update(inner.digest())
            return outer.hexdigest()[:32]

        return order_no

    def sign(self, receipt: Receipt) -> str:
        """Sign ``receipt`` into one URL-safe word."""
        body = msgspec.json.encode(receipt)
        mac = hmac.digest(self._receipt_key, body, "sha256")[:16]
        return base64.urlsafe_b64encode(mac + body).decode().rstrip("=")

    def verify(self, text: str) -> Receipt | None:
        """Read a receipt; ``None`` for anything this key did not sign. Never raises on text."""
        if not isinstance(text, str):  # it comes from a caller's hands
            return None
        try:
            raw = base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
        except (ValueError, binascii.Error, UnicodeError):
            return None
        mac, body = raw[:16], raw[16:]
        if not hmac.compare_digest(mac, hmac.digest(self._receipt_key, body, "sha256")[:16]):
            return None
        return msgspec.json.decode(body, type=Receipt)
