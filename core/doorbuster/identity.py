"""Who asks for what: checks, canonical lines, order numbers and receipts (protocol.md 2).

An identity is (environment, sale, run, buyer, request_id). Its order number is 128 bits of keyed
BLAKE2s over it (docs/decisions/0008), equal in every door and epoch (2.2), so it cannot be
guessed (X16).
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
    "are_ids",
    "canonical_lines",
    "check",
    "is_id",
    "parse_lines",
    "stable_hash",
]

_fullmatch = ID_PATTERN.fullmatch
are_ids: Final = re.compile(rf"{ID_PATTERN.pattern}\|{ID_PATTERN.pattern}").fullmatch
"""Whether ``buyer|request_id`` is of two ids: one look instead of two."""
_MASK: Final = (1 << 64) - 1


def stable_hash(text: str) -> int:
    """Hash ``text`` to 0 .. 2**32-1, equal in every process and release (F6).

    CRC32 of the UTF-8 bytes, mixed by a 64-bit multiplication so that ids that differ only in a
    few digits still spread evenly over any modulus. The vectors are published in the tests.
    """
    return ((zlib.crc32(text.encode()) * 0x9E3779B97F4A7C15) & _MASK) >> 32


def is_id(text: Any) -> bool:
    """Whether ``text`` may be part of a key (X3, X4); of any other type: it may not.

    A subclass of ``str`` is another type: it compares equal to plain text, but drivers and
    encoders refuse it, after others may have relied on the equality.
    """
    return type(text) is str and _fullmatch(text) is not None


def _invalid(reason: str, **detail: Any) -> Rejection:
    return Rejection(Code.INVALID, {"reason": reason, **detail})


_ID_TEXT: Final = "a plain str of 1-64 of A-Z a-z 0-9 _ -"
_BAD_BUYER: Final = _invalid("bad-buyer", expected=_ID_TEXT)
_BAD_REQUEST_ID: Final = _invalid("bad-request-id", expected=_ID_TEXT)
_BAD_TICKET: Final = _invalid("bad-ticket", expected="a plain str")
_BAD_FACTS: Final = _invalid("bad-facts", expected="a mapping of texts")
_BAD_LINES: Final = _invalid("bad-lines", expected="a sequence of Line(sku, quantity)")
_NO_LINES: Final = _invalid("no-lines", expected="at least one Line(sku, quantity)")
_BAD_SKU: Final = _invalid("bad-sku", expected=_ID_TEXT)
_BAD_GROUP: Final = _invalid("bad-group", expected=_ID_TEXT)
_BAD_QUANTITY: Final = _invalid("bad-quantity", expected=f"a whole number 1..{QUANTITY_MAX}")


def check(attempt: Attempt, lines_max: int) -> Rejection | tuple[Line, ...]:
    """Check one attempt's shape; answer its canonical lines or an INVALID rejection.

    Lines of one (sku, group) are summed before any other check (D2), then sorted. Values are
    tested strictly: a bool, a float or ``"1e3"`` is not a quantity (X8). The lines answered are
    never the caller's own objects, which a cache must not keep.
    """
    # types first: attempts come from callers' hands, and a wrong type must be an answer
    if not is_id(attempt.buyer):
        return _BAD_BUYER
    if not is_id(attempt.request_id):
        return _BAD_REQUEST_ID
    if attempt.ticket is not None and type(attempt.ticket) is not str:
        return _BAD_TICKET
    if not isinstance(attempt.facts, Mapping) or not _are_texts(attempt.facts):
        return _BAD_FACTS
    lines = attempt.lines
    if not isinstance(lines, (tuple, list)):
        return _BAD_LINES
    if len(lines) == 1:  # the common case, without the sums
        line = lines[0]
        return _check_line(line) or (Line(line.sku, line.quantity, line.group),)
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
        """Derive the two keys: one for order numbers, one for receipts.

        Raises:
            ValueError: the secret is shorter than 16 bytes.
        """
        if len(secret) < 16:
            raise ValueError("a server key has at least 16 bytes")
        self._environment = environment
        self._order_key = hmac.digest(secret, b"order_no", "sha256")  # 32 bytes: BLAKE2s' most
        self._receipt_key = hmac.digest(secret, b"receipt", "sha256")

    def __repr__(self) -> str:
        """Show no secret (X9)."""
        return "ServerKey(...)"

    def order_no(self, sale: str, run: int, buyer: str, request_id: str) -> str:
        """Derive the order number of an identity: 32 hex digits (protocol.md 2.2)."""
        return self.numbers(sale, run)(f"{buyer}|{request_id}")

    def numbers(self, sale: str, run: int) -> Callable[[str], str]:
        """The order numbers of one run, from ``buyer|request_id``; sale and run hashed once."""
        begun = hashlib.blake2s(
            f"{self._environment}|{sale}|{run}|".encode(), key=self._order_key, digest_size=16
        )
        begin = begun.copy

        def order_no(identity: str) -> str:
            made = begin()
            made.update(identity.encode())
            return made.hexdigest()

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
