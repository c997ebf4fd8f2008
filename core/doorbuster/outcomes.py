"""What an attempt can be answered: fixed codes and frozen values (design: outcomes).

Nobody re-wraps a code: what a stage says is what the buyer reads. An expected "no" is a
:class:`Rejection`, never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Any, Final

import msgspec

__all__ = [
    "HTTP_STATUS",
    "UNKNOWN",
    "Code",
    "Compensated",
    "Outcome",
    "Persisted",
    "Rejection",
    "Sent",
    "Unknown",
]


class Code(IntEnum):
    """Every answer to an attempt. The numbers are public and never change meaning (S0-25)."""

    ACCEPTED = 1
    """Durable as the pipeline promises; carries ``order_no``."""
    PENDING = 2
    """Outcome not known yet; ask again with the same ``request_id``."""
    SOLD_OUT = 0
    """Every unit is sold or held; only from the ledger's truth or a fresh mark of it."""
    NOT_STARTED = -1
    """The sale is created or warmed, or its window is not open yet."""
    OVER_LIMIT = -2
    """The buyer's limit; judged before stock (S0-14)."""
    ENDED = -3
    """After the window, or ended for good."""
    CLOSED = -4
    """Entrance closed: paused, mode ``closed``, or drift."""
    RATE_LIMITED = -5
    """A rate limit; see ``retry_after_ms``."""
    BUSY = -6
    """Shed, breaker open, backend not ready, stale epoch; see ``retry_after_ms``."""
    BLOCKED = -7
    """Deny-list, eligibility, bad or missing ticket."""
    INVALID = -8
    """Malformed, quantity out of range, unknown sale or sku."""
    KEY_REUSED = -9
    """Same identity, other content."""


HTTP_STATUS: Final[Mapping[Code, int]] = {
    Code.ACCEPTED: 200,
    Code.PENDING: 202,
    Code.SOLD_OUT: 200,
    Code.NOT_STARTED: 200,
    Code.OVER_LIMIT: 200,
    Code.ENDED: 200,
    Code.CLOSED: 200,
    Code.RATE_LIMITED: 429,
    Code.BUSY: 503,
    Code.BLOCKED: 403,
    Code.INVALID: 422,  # an unknown sale is 404
    Code.KEY_REUSED: 422,
}
"""HTTP status per code; an unknown sale is 404 instead of 422."""


class Unknown(Enum):
    """The type of :data:`UNKNOWN`."""

    UNKNOWN = "UNKNOWN"

    def __repr__(self) -> str:
        """``UNKNOWN``."""
        return "UNKNOWN"


UNKNOWN: Final = Unknown.UNKNOWN
"""A stage's answer for one item: maybe applied, to be settled by identity."""


class Sent(Enum):
    """``enqueue``'s answer for one item (or :data:`UNKNOWN`)."""

    SENT = "SENT"


class Persisted(Enum):
    """``persist``'s answer for one item."""

    CREATED = "CREATED"
    """The order was written now."""
    EXISTS = "EXISTS"
    """The same order_no was there already."""
    REFUSED = "REFUSED"
    """Voided or refused; the intent stays RESERVED, a dead letter and an alarm are written."""


class Compensated(Enum):
    """``compensate``'s answer for one item (or :data:`UNKNOWN`)."""

    DONE = "DONE"
    ALREADY = "ALREADY"
    KEPT = "KEPT"
    """A live record wins; nothing was given back."""
    STALE_EPOCH = "STALE_EPOCH"
    """The item's epoch is over there; nothing was written."""


class Rejection(msgspec.Struct, frozen=True):
    """An expected "no": a code, bounded details, and when to come again.

    Raises:
        ValueError: for ACCEPTED or PENDING, which are not refusals.
    """

    code: Code
    detail: Mapping[str, Any] = {}
    retry_after_ms: int | None = None

    def __post_init__(self) -> None:
        """Refuse the two codes that are not refusals."""
        if self.code > 0:
            raise ValueError(f"{self.code.name} is not a rejection")


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The answer to one attempt.

    ``detail`` may hold ``limit``, ``bought``, ``remaining``, ``starts_at`` (ISO 8601) and a
    ``reason``. ``final`` says that the same ``request_id`` will never be judged anew.
    """

    code: Code
    order_no: str | None = None
    order_state: str | None = None
    retry_after_ms: int | None = None
    receipt: str | None = None
    final: bool = False
    detail: Mapping[str, Any] = {}

    @property
    def name(self) -> str:
        """The code's name, for example ``ACCEPTED``."""
        return self.code.name
