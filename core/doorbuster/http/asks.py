"""What a buyer may send: one JSON object, strictly typed, with no field that means nothing.

A body never says who the buyer is (X1): such a field is unknown here, and refused. Numbers are
numbers: ``true``, ``1.0`` and ``"1"`` are no quantity (X8). Nesting is bounded by the type: the
first bracket where none belongs ends the reading (X15).
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from doorbuster.model import Line
from doorbuster.outcomes import Code, Outcome

__all__ = ["NO_REQUEST_ID", "TWO_REQUEST_IDS", "Ask", "bad_body", "decode", "lines_of"]

_PROBLEM_MAX: Final = 200  # characters: a problem may quote the sender's own field names


class _AskLine(msgspec.Struct, forbid_unknown_fields=True):
    """One line as sent; the engine judges ids and quantities."""

    sku: str
    quantity: int = 1
    group: str | None = None


class Ask(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an attempt: ``sku`` with an optional ``quantity``, or ``lines``.

    ``ticket`` is an admission ticket where the sale asks for one.
    """

    sku: str | UnsetType = UNSET
    quantity: int | UnsetType = UNSET
    lines: list[_AskLine] | UnsetType = UNSET
    ticket: str | None = None


def _invalid(reason: str, **detail: str) -> Outcome:
    return Outcome(Code.INVALID, detail={"reason": reason, **detail})


NO_REQUEST_ID: Final = _invalid("no-request-id", expected="a header Idempotency-Key")
TWO_REQUEST_IDS: Final = _invalid("two-request-ids", expected="one header Idempotency-Key")
_NO_SKU: Final = _invalid("no-sku", expected="sku and quantity, or lines")
_SKU_AND_LINES: Final = _invalid("sku-and-lines", expected="sku and quantity, or lines")

decode: Final = msgspec.json.Decoder(Ask).decode
"""Read an :class:`Ask` from bytes. Raises ValueError, which :func:`bad_body` turns into INVALID."""


def lines_of(ask: Ask) -> tuple[Line, ...] | Outcome:
    """The lines of an ask, or INVALID for one that has both ``sku`` and ``lines``, or neither."""
    sku, quantity, lines = ask.sku, ask.quantity, ask.lines
    if lines is UNSET:
        return _NO_SKU if sku is UNSET else (Line(sku, 1 if quantity is UNSET else quantity),)
    if sku is not UNSET or quantity is not UNSET:
        return _SKU_AND_LINES
    return tuple(Line(line.sku, line.quantity, line.group) for line in lines)


def bad_body(error: Exception) -> Outcome:
    """INVALID for a body that :data:`decode` refused, with what was wrong and where."""
    known = isinstance(error, msgspec.ValidationError)
    return _invalid("bad-body" if known else "bad-json", problem=str(error)[:_PROBLEM_MAX])
