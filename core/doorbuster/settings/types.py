"""Typed, frozen settings: what the rest of the program sees of a configuration.

dynaconf reads the layers and never travels past this package. A snapshot is one immutable
:class:`Settings`; every bound is a field with a default and a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, dataclass_transform

import msgspec

from doorbuster.model import PerBuyer, Sku
from doorbuster.settings.secrets import mask

__all__ = [
    "CLOSED",
    "DEFAULT_MODE",
    "INHERIT",
    "Door",
    "Http",
    "Keys",
    "LedgerSettings",
    "Log",
    "PluginSettings",
    "Promise",
    "SaleSettings",
    "Settings",
    "StageOverlay",
    "StageSettings",
    "Workers",
]

DEFAULT_MODE = "normal"
"""The mode that ``[pipeline]`` itself describes."""

CLOSED = "closed"
"""The reserved mode of every sale: no stage runs, every attempt is CLOSED."""

INHERIT = "..."
"""In a list of gates: the list this overlay inherits."""

Positive = Annotated[int, msgspec.Meta(ge=1)]
Promise = Literal["none", "relaxed", "host", "quorum", "database"]
"""What ACCEPTED survives, weakest first (design.md 6)."""
PositiveSeconds = Annotated[float, msgspec.Meta(gt=0)]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every section: frozen, unknown keys are errors, ``repr`` hides secrets (X9)."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show each field with its secrets as ``***``; tracebacks by rich print this."""
        return [(name, mask(name, getattr(self, name))) for name in self.__struct_fields__]

    def __repr__(self) -> str:
        """Show the same as :meth:`__rich_repr__`."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"


class LedgerSettings(_Section):
    """``[ledger]``: the durable truth of units and intents."""

    url: str = "sqlite:///doorbuster.db"
    accepts_max: Positive = 8
    """Accept transactions under way at once; above it attempts are BUSY, so that a degraded
    mode never melts the database (L14)."""
    wait_ms: Positive = 2000
    """Longest wait for the database's write lock before BUSY."""


class Keys(_Section):
    """``[keys]``: the secret behind order numbers and receipts."""

    current: str | None = None
    """At least 16 characters; absent: made once and kept in the ledger."""


class Door(_Section):
    """``[door]``: how attempts become batches."""

    batch_max: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 256
    """Attempts per batch: beyond 256 a commit's cost per attempt hardly falls (measured)."""
    linger_ms: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 0.0
    """Longest wait of a first attempt for company. 0: those of one turn of the loop go together;
    under load the next batch fills while one is under way, and waiting gains nothing (measured,
    docs/decisions/0011)."""
    inbox_max: Positive = 10_000
    """Attempts waiting per sale; one more is shed with BUSY at once (S0-40)."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    """Batches under way at once per engine."""
    deadline_ms: Annotated[int, msgspec.Meta(ge=0)] = 2000
    """An attempt not started by then is answered BUSY; 0: never."""
    known_max: Annotated[int, msgspec.Meta(ge=0)] = 100_000
    """Accepted identities answered from memory; about 300 bytes each."""
    lines_max: Annotated[int, msgspec.Meta(ge=1, le=256)] = 16
    """Lines of one attempt."""


class Workers(_Section):
    """``[workers]``: how accepted attempts become orders, and how the rest is settled."""

    persist_rows: Positive = 2000
    """Orders written per transaction, at least one whole committed batch. S0-32 asks for 100: that
    bound is about a database whose rows are locked meanwhile (docs/decisions/0005)."""
    lease_s: PositiveSeconds = 10.0
    """A claimed batch not settled by then may be claimed by another worker (O4). A hundred times
    what persisting a lease takes (measured), so only a dead or hung worker loses one."""
    idle_ms: Positive = 50
    """Pause of a role that has nothing to do, or whose last lease was less than half full: so the
    longest an order waits for company before a transaction takes it; S0-32 allows 100 ms."""
    hold_age_s: PositiveSeconds = 10.0
    """Holds older than this and not justified by an intent are given back (protocol.md 4.3)."""
    settle_max_s: PositiveSeconds = 30.0
    """Every attempt reaches a final outcome within this time (I7)."""
    reconcile_s: PositiveSeconds = 60.0
    """Pause between two reconciles of the role."""


class Log(_Section):
    """``[log]``."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"


class Http(_Section):
    """``[http]``: the HTTP service. Bounds are a connection's or the process's (X14, X15)."""

    buyer_header: str | None = None
    """The header in which a trusted gateway puts the verified buyer, such as ``"X-Buyer"``; until
    it is named nobody is served, since a body may say anything (X1)."""
    host: str = "127.0.0.1"
    """Where to listen: this host only, until a gateway elsewhere is meant to reach it."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8000
    """Which port; 0: any free one, printed when the service is ready."""
    body_max_bytes: Annotated[int, msgspec.Meta(ge=64, le=1_048_576)] = 16_384
    """Longest body; 16 lines of the longest ids take 3 KiB, the rest is for a ticket."""
    headers_max_bytes: Annotated[int, msgspec.Meta(ge=1024, le=1_048_576)] = 16_384
    """Longest request line with headers, measured while they arrive; a gateway's cookies and
    traces fit, as they do in common gateways' own bound of 8 to 16 KiB. A whole request, framed as
    it likes, may take this and ``body_max_bytes`` together."""
    receive_s: PositiveSeconds = 5.0
    """A request not whole by then is answered 408: a slow sender keeps no connection (X14)."""
    keep_alive_s: Positive = 75
    """An idle connection is kept that long: longer than gateways keep theirs (60 s is common),
    so that they close first and never send into a closing one. As long, on Linux, one that takes
    none of its answers."""
    connections_max: Positive = 10_000
    """Connections at once; one more is answered BUSY and closed. Each is an open file: the process
    raises its own limit of them as far as the system lets it."""
    backlog: Positive = 2048
    """Connections the system may hold before they are taken; it caps this itself (somaxconn)."""
    results_max: Positive = 64
    """Reads of earlier answers under way at once; one more is BUSY. They go to the ledger, and
    must not queue without end beside the selling."""
    drain_s: Positive = 10
    """At the end, whoever is inside is answered for that long; who is not is told PENDING."""


class StageSettings(_Section):
    """``[pipeline]``: which plugin serves each stage."""

    filter: tuple[str, ...] = ()
    limit: tuple[str, ...] = ()
    deduct: str = "db-atomic"
    journal: Literal["ledger", "stream"] = "ledger"
    enqueue: str = "outbox"
    persist: str = "orders"


class StageOverlay(_Section):
    """``[modes.NAME]`` or a sale's ``[pipeline]``: what differs; ``None`` is inherited."""

    filter: tuple[str, ...] | None = None
    limit: tuple[str, ...] | None = None
    deduct: str | None = None
    journal: Literal["ledger", "stream"] | None = None
    enqueue: str | None = None
    persist: str | None = None


class PluginSettings(_Section):
    """``[plugins.NAME]``: entry point (``use``, default NAME) and its options, unconverted."""

    use: str
    options: Mapping[str, Any] = {}


class SaleSettings(_Section):
    """One sale as configured. Times are ledger milliseconds; ``None``: no bound."""

    id: str
    skus: Mapping[str, Sku]
    opens_at_ms: int | None = None
    closes_at_ms: int | None = None
    per_buyer: PerBuyer = PerBuyer()
    mode: str = DEFAULT_MODE
    promise: Promise | None = None
    degrade_to: str | None = None
    options: Mapping[str, Any] = {}
    pipeline: StageOverlay = StageOverlay()
    modes: Mapping[str, StageOverlay] = {}
    plugins: Mapping[str, PluginSettings] = {}


class Settings(_Section):
    """A whole configuration."""

    environment: str = "dev"
    ledger: LedgerSettings = LedgerSettings()
    keys: Keys = Keys()
    door: Door = Door()
    workers: Workers = Workers()
    log: Log = Log()
    http: Http = Http()
    pipeline: StageSettings = StageSettings()
    plugins: Mapping[str, PluginSettings] = {}
    modes: Mapping[str, StageOverlay] = {}
    servers: Mapping[str, Mapping[str, Any]] = {}
    sales: Mapping[str, SaleSettings] = {}
