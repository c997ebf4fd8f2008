"""Every hook a plugin may offer. Read this file first; it is the whole extension surface.

    request side   filter* -> limit* -> deduct! -> [accept]       answers an Outcome
    worker side    [apply] -> enqueue! -> persist! -> created
    arc            compensate                     the plugin that deducted

``*`` any number, in the order of the config list. ``!`` exactly one. ``[ ]`` is a transaction of
the core, not a hook. The laws that hold for every stage:

* A stage is a plain synchronous function over a *batch* of one sale. It answers one item per
  item it was given, in order; another count is a :class:`~doorbuster.errors.ContractError`.
* The core narrows the batch between stages: a plugin never sees a refused attempt.
* A "no" is a value (:class:`~doorbuster.outcomes.Rejection`); an exception is a fault.
  ``UnavailableError`` says surely not applied; anything else raised by a stage that changes
  something says maybe applied.
* A gate's fault follows the class attribute ``on_fault``: ``"closed"`` (the default) refuses the
  batch with BUSY, ``"open"`` lets it pass. Config may set it: ``[plugins.NAME] on_fault``.
* Methods are called from several threads at once, for different batches.
* The empty batch is never sent, and answered empty if it is.

Which of the hooks a ``deduct`` plugin offers is its *tier*: ``router`` (:class:`Stages` only),
``holder`` (:class:`Holder`), ``journal`` (:class:`Journal`). The class attribute ``delivery``
makes a class an ``enqueue`` plugin; only ``Delivery.BROKER`` has methods (:class:`Broker`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias

import pluggy

from doorbuster.alarms import Alarm
from doorbuster.model import (
    Batch,
    Compensation,
    Control,
    Count,
    Funding,
    Hold,
    Received,
    Reservation,
    Sale,
)
from doorbuster.outcomes import Compensated, Outcome, Persisted, Rejection, Sent, Unknown

__all__ = [
    "PROJECT",
    "Broker",
    "Deducted",
    "Delivery",
    "Holder",
    "Journal",
    "Observers",
    "PersistExtras",
    "Stages",
    "Verdicts",
    "hookimpl",
    "hookspec",
]

PROJECT = "doorbuster"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Verdicts: TypeAlias = Sequence[Rejection | None]
"""A gate's answers: ``None`` lets an attempt pass."""

Deducted: TypeAlias = Reservation | Rejection | Unknown
"""Deduct's answer for one attempt."""


class Delivery(Enum):
    """How accepted orders reach a worker: the class attribute ``delivery``."""

    CLAIM = "claim"
    """Workers claim committed batches from the ledger (default)."""
    INLINE = "inline"
    """Persist runs in the request after the commit; what that leaves is claimed."""
    BROKER = "broker"
    """A relay calls ``enqueue``, persist workers call ``receive`` and ``settle``."""


class Stages:
    """The six stages."""

    @hookspec
    def filter(self, batch: Batch) -> Verdicts:
        """Pass or refuse each attempt by caches, tickets, deny-lists, eligibility.

        Holds nothing and changes no stock. A fault follows the class's ``on_fault``.
        """
        raise NotImplementedError

    @hookspec
    def limit(self, batch: Batch) -> Verdicts:
        """Take rate tokens or answer RATE_LIMITED, never waiting.

        A fault follows the class's ``on_fault``.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def deduct(self, batch: Batch) -> Sequence[Deducted]:
        """Hold the units of each attempt, or say where the ledger serves it.

        All lines of an attempt or none; a quantity is never split; replay, quota and stock are
        decided in one atomic step, or left to the ledger. Later attempts see earlier ones.
        """
        raise NotImplementedError

    @hookspec(firstresult=True)
    def enqueue(self, reservations: Sequence[Reservation]) -> Sequence[Sent | Unknown]:
        """Carry what the ledger already holds to a worker. May not refuse. Idempotent."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def persist(self, reservations: Sequence[Reservation]) -> Sequence[Persisted]:
        """Write orders, unique by ``order_no``. Touches no stock. Idempotent."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def compensate(self, items: Sequence[Compensation]) -> Sequence[Compensated | Unknown]:
        """Write the given end state, give back quota and the given units, once per order_no.

        Called by workers only, never on the request side's connections.
        """
        raise NotImplementedError


class Holder:
    """What a ``deduct`` plugin offers that holds units itself.

    Needed: ``compensate``, ``prepare``, ``credit``, ``open``, ``retire``. Optional, each missing
    one costs a named thing: ``places`` (one place), ``debit`` (no second place), ``count``
    (drift waits for the next epoch), ``holds`` (so does a leak), ``adopt`` (a lost server means
    a new epoch), ``push`` (a raised quota waits for the next epoch).
    """

    @hookspec(firstresult=True)
    def places(self, sale: Sale) -> Sequence[str]:
        """Name the places that warm-up funds (a router may offer it too; default one)."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def prepare(self, sale: Sale, epoch: int) -> bool:
        """Make the empty places of ``epoch`` in state SEED. True when done; idempotent."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def credit(self, fundings: Sequence[Funding]) -> Sequence[int]:
        """Put units into places, once per funding id; answer the units credited by each id."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def debit(self, fundings: Sequence[Funding]) -> Sequence[int]:
        """Take up to ``quantity`` free units out, once per id; answer what each id took."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def open(self, sale: Sale, epoch: int) -> bool:
        """SEED -> OPEN, never from FROZEN. True when open; idempotent."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def retire(self, sale: Sale, epoch: int) -> bool:
        """Forget the places of ``epoch``. Only called when it is closed and reconciled."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def count(self, sale: Sale, epoch: int) -> Sequence[Count]:
        """Count units left and held per place and sku."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def holds(self, sale: Sale, epoch: int, older_than_s: float) -> Sequence[Hold]:
        """List HELD records older than ``older_than_s`` for the sweeper (protocol.md 4.3)."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def adopt(self, sale: Sale, epoch: int) -> bool:
        """Keep ``epoch`` on another server incarnation. True when nothing was lost."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def push(self, sale: Sale, epoch: int, control: Control) -> Sequence[str]:
        """Store control values unless newer ones are there; answer places not reached."""
        raise NotImplementedError


class Journal:
    """What a ``deduct`` plugin offers beside :class:`Holder` to accept by itself (kind J)."""

    @hookspec(firstresult=True)
    def freeze(self, sale: Sale, epoch: int) -> Sequence[Any]:
        """Stop every place; answer units left, last entry id and applied funding ids."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def seed(self, sale: Sale, epoch: int, intents: Sequence[Any]) -> bool:
        """Write records of the ledger's intents where none is (protocol.md 6.4)."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def read(self, sale: Sale, epoch: int, max: int) -> Sequence[Any]:
        """Read journal entries that ``apply`` has not settled, oldest first."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def trim(self, sale: Sale, epoch: int, upto: Mapping[str, str]) -> bool:
        """Drop entries at or below the ledger's watermark of each place."""
        raise NotImplementedError


class Broker:
    """What an ``enqueue`` plugin with ``Delivery.BROKER`` offers to persist workers."""

    @hookspec(firstresult=True)
    def receive(self, max: int, timeout_ms: int) -> Sequence[Received]:
        """Receive up to ``max`` records, waiting at most ``timeout_ms``."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def settle(self, received: Sequence[Received]) -> bool:
        """Acknowledge records after their database commit."""
        raise NotImplementedError


class PersistExtras:
    """What a ``persist`` plugin may offer."""

    @hookspec(firstresult=True)
    def void(self, reservation: Reservation) -> Persisted:
        """Make sure this order is never (or no longer) valid (protocol.md 4.5).

        EXISTS: it was there and is cancelled now. REFUSED: a tombstone stands, a later
        ``persist`` of it answers REFUSED.
        """
        raise NotImplementedError


class Observers:
    """What any plugin may watch. An observer's exception is logged and changes nothing."""

    @hookspec
    def batch_settled(self, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        """See a batch and its outcomes, in order, after they are decided."""

    @hookspec
    def mode_changed(self, sale: Sale, old: str, new: str, by: str) -> None:
        """See a change of the effective mode."""

    @hookspec
    def order_changed(self, sale: Sale, order_no: str, old: str, new: str) -> None:
        """See a returned order reach its end state: ``old`` is RETURNING (protocol.md 4.4)."""

    @hookspec
    def units_returned(self, sale: Sale, skus: Sequence[str]) -> None:
        """Hear that units of ``skus`` became sellable again: lift sold-out marks (F20)."""

    @hookspec
    def alarm(self, alarm: Alarm) -> None:
        """Hear an alarm."""
