"""All that a plugin imports.

A plugin is a class named by an entry point in the group ``doorbuster.plugins``: a nested
``Options(PluginOptions)`` (omit it for none), ``__init__(self, options, context)``, methods
marked ``@hookimpl`` (see :mod:`doorbuster.hookspecs`), an optional ``close()``, and for gates a
class attribute ``on_fault = "open" | "closed"``.
"""

from doorbuster.alarms import Alarm, Severity
from doorbuster.clock import Clock
from doorbuster.context import Context, Creating, LedgerView, Metrics, PluginOptions, SoldOutRead
from doorbuster.errors import PermanentError, UnavailableError, UnknownOutcomeError
from doorbuster.hookspecs import Deducted, Delivery, Verdicts, hookimpl
from doorbuster.identity import canonical_lines, parse_lines, stable_hash
from doorbuster.model import (
    Attempt,
    Batch,
    Compensation,
    Control,
    Count,
    Funding,
    Hold,
    Line,
    PerBuyer,
    Received,
    Reservation,
    Sale,
    Sku,
)
from doorbuster.outcomes import (
    UNKNOWN,
    Code,
    Compensated,
    Outcome,
    Persisted,
    Rejection,
    Sent,
    Unknown,
)

__all__ = [
    "UNKNOWN",
    "Alarm",
    "Attempt",
    "Batch",
    "Clock",
    "Code",
    "Compensated",
    "Compensation",
    "Context",
    "Control",
    "Count",
    "Creating",
    "Deducted",
    "Delivery",
    "Funding",
    "Hold",
    "LedgerView",
    "Line",
    "Metrics",
    "Outcome",
    "PerBuyer",
    "PermanentError",
    "Persisted",
    "PluginOptions",
    "Received",
    "Rejection",
    "Reservation",
    "Sale",
    "Sent",
    "Severity",
    "Sku",
    "SoldOutRead",
    "UnavailableError",
    "Unknown",
    "UnknownOutcomeError",
    "Verdicts",
    "canonical_lines",
    "hookimpl",
    "parse_lines",
    "stable_hash",
]
