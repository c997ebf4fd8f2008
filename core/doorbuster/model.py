"""The nouns that travel: frozen, slotted, no behaviour.

Units are whole numbers, money is in minor units (cents), times end in their unit (``_ms``).
Glossary: an *attempt* is one ask to buy, its *identity* is (sale, run, buyer, request_id);
a *reservation* is what deduct answers; an *intent* is the ledger's row of it; an *order* is
what persist writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from doorbuster.outcomes import Code

__all__ = [
    "ID_PATTERN",
    "PER_SALE",
    "QUANTITY_MAX",
    "Attempt",
    "Batch",
    "Compensation",
    "Control",
    "Count",
    "Funding",
    "FundingState",
    "GrantState",
    "Hold",
    "IntentState",
    "Kind",
    "Line",
    "PerBuyer",
    "Received",
    "Reservation",
    "Sale",
    "SaleState",
    "Sku",
]

ID_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Ids that form keys match this whole; anything else is INVALID, never normalised (X3, X4)."""

QUANTITY_MAX: Final = 999_999_999
"""The largest quantity that is still a number to every backend (R15, X8)."""

PER_SALE: Final = "*"
"""The quota scope of a whole sale; every other scope is a sku id (never ``*``: ID_PATTERN)."""


class Kind(StrEnum):
    """Who accepts; belongs to an epoch (protocol.md 1). Internal: never in config."""

    H = "H"
    """Held: the accept transaction in the ledger decides (journal ``ledger``)."""
    J = "J"
    """Journal: deduct accepts and writes the entry (journal ``stream``)."""


class SaleState(StrEnum):
    """The life of a sale; only an open one is judged by its window."""

    CREATED = "created"
    WARMED = "warmed"
    OPEN = "open"
    PAUSED = "paused"
    ENDED = "ended"


class IntentState(StrEnum):
    """States of the ledger's intent row, the only row that is compared and set."""

    RESERVED = "RESERVED"
    CREATED = "CREATED"
    PAID = "PAID"
    RETURNING = "RETURNING"
    RELEASED = "RELEASED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"
    REFUNDED = "REFUNDED"
    ABORTED = "ABORTED"


class GrantState(StrEnum):
    """States of a grant: units the ledger has lent to one place of a backend."""

    ACTIVE = "ACTIVE"
    DRAINING = "DRAINING"
    CLOSED = "CLOSED"


class FundingState(StrEnum):
    """States of one move of units (protocol.md 5.1)."""

    PLANNED = "PLANNED"
    MOVED = "MOVED"
    CREDITED = "CREDITED"
    CANCELLED = "CANCELLED"


class Line(msgspec.Struct, frozen=True, gc=False):
    """``quantity`` units of ``sku``; ``group`` names a team where a shape needs one."""

    sku: str
    quantity: int = 1
    group: str | None = None


class Sku(msgspec.Struct, frozen=True):
    """One sellable unit: first total ``units``, its own buyer quota, its price in minor units."""

    id: str
    units: int
    per_buyer: int | None = None
    price_minor: int | None = None
    currency: str | None = None


class PerBuyer(msgspec.Struct, frozen=True):
    """How many units one buyer may have: of each sku, of the sale, in one attempt."""

    sku: int | None = None
    sale: int | None = None
    attempt: int | None = None


class Sale(msgspec.Struct, frozen=True):
    """What is sold, when, to whom. ``run`` rises only when a sale is created again."""

    id: str
    skus: Mapping[str, Sku]
    opens_at_ms: int | None = None
    closes_at_ms: int | None = None
    per_buyer: PerBuyer = PerBuyer()
    run: int = 1
    mode: str = "normal"
    environment: str = "dev"
    options: Mapping[str, Any] = {}


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One ask to buy, all lines or nothing.

    ``deadline_s`` is a reading of the process's monotonic clock after which no work may start.
    The core fills ``sale``, ``run``, ``order_no`` and ``fingerprint``; a plugin reads them.
    """

    lines: Sequence[Line]
    buyer: str
    request_id: str
    sale: str = ""
    ticket: str | None = None
    facts: Mapping[str, str] = {}
    deadline_s: float | None = None
    order_no: str = ""
    fingerprint: str = ""
    run: int = 0


class Batch(msgspec.Struct, frozen=True):
    """Attempts of one sale travelling together; iterate it, answer one item per attempt."""

    sale: Sale
    attempts: Sequence[Attempt]
    mode: str
    epoch: int
    kind: Kind = Kind.H

    def __iter__(self) -> Iterator[Attempt]:
        """Iterate over the attempts, in order."""
        return iter(self.attempts)

    def __len__(self) -> int:
        """Count the attempts."""
        return len(self.attempts)


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """Where an attempt's units are served. The core fills what a plugin leaves out.

    ``intent`` is the number of the ledger's row, known on the worker side.
    """

    attempt: Attempt
    place: str
    order_no: str = ""
    epoch: int = 0
    intent: int = 0


class Compensation(msgspec.Struct, frozen=True):
    """One way back (protocol.md 4.7): write ``state``, give back quota and just ``units``.

    ``state`` is ABORTED (an undo, ``code`` is its answer, ``units`` the lines less a phantom) or
    RETURNED (``code`` is ACCEPTED). ``units`` is empty for a returned order: funding brings them
    back. It is the lines for a hold whose attempt was accepted under another grant (4.3).
    """

    reservation: Reservation
    state: str
    code: Code
    units: Mapping[str, int] = {}


class Funding(msgspec.Struct, frozen=True):
    """Credit or debit ``quantity`` units of ``sku`` at ``place``, once per ``id``."""

    id: str
    sale: str
    run: int
    epoch: int
    sku: str
    place: str
    quantity: int


class Hold(msgspec.Struct, frozen=True):
    """A HELD record that a holder lists for the sweeper."""

    reservation: Reservation
    age_s: float


class Count(msgspec.Struct, frozen=True):
    """What a holder counts at one place for one sku: units left and units held."""

    place: str
    sku: str
    left: int
    held: int


class Control(msgspec.Struct, frozen=True):
    """The control values of a sale, with the version that orders them (protocol.md 6.6)."""

    version: int
    per_buyer: PerBuyer
    sku_limits: Mapping[str, int]
    paused: bool


class Received(msgspec.Struct, frozen=True):
    """A record a broker delivered: its reservations, and what ``settle`` needs."""

    reservations: Sequence[Reservation]
    token: Any
