"""Attempts whose outcome is not known: settled by identity, never guessed (protocol.md 4.6).

While its process lives, the in-memory queue settles them unasked; a PENDING answer's signed
receipt lets any process do it when the buyer asks. Both commit the same tombstone: where an
intent is stored, it wins; else the identity is ABORTED for good and a hold goes back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from doorbuster.context import AlarmCall
from doorbuster.errors import UnknownSaleError
from doorbuster.identity import Receipt, ServerKey, parse_lines
from doorbuster.ledger import Ledger, outcome_of
from doorbuster.logs import get_logger
from doorbuster.model import Attempt, Kind, Reservation, Sale
from doorbuster.outcomes import Code, Outcome
from doorbuster.pipeline import Unsettled, busy

__all__ = ["MARGIN_MS", "Settlements", "receipt_of", "settle", "settle_by_receipt"]

MARGIN_MS: Final = 1000
"""After a receipt's deadline a call may still be on its way; wait this much longer."""
_QUEUE_MAX: Final = 100_000
_CHUNK: Final = 500
_ABORTED: Final = Outcome(Code.BUSY, final=True, detail={"reason": "aborted"})

Settled = Callable[[Unsettled, Outcome], None]


class Settlements:
    """The queue behind role ``resolve``. Thread-safe and bounded."""

    def __init__(self, ledger: Ledger, alarm: AlarmCall, on_settled: Settled) -> None:
        """``on_settled`` hears each final answer."""
        self._ledger = ledger
        self._alarm = alarm
        self._on_settled = on_settled
        self._lock = threading.Lock()
        self._queue: deque[Unsettled] = deque()
        self._log = get_logger("doorbuster.settlement")

    def __len__(self) -> int:
        """Count what waits."""
        return len(self._queue)

    def add(self, items: Sequence[Unsettled]) -> None:
        """Queue items; what is over the bound is left to receipts and the sweeper, loudly."""
        with self._lock:
            room = _QUEUE_MAX - len(self._queue)
            self._queue.extend(items[:room])
        if len(items) > room:
            self._alarm("settlement-overflow", "critical", items[0].sale.id, left=len(items) - room)

    def run_once(self) -> bool:
        """Settle a chunk; True when something was settled. What a fault meets stays queued.

        Raises:
            Exception: nothing could be settled; the first fault, for the runner to back off.
        """
        with self._lock:
            chunk = [self._queue.popleft() for _ in range(min(_CHUNK, len(self._queue)))]
        groups: dict[tuple[str, int, int, bool], list[Unsettled]] = {}
        for item in chunk:
            key = (item.sale.id, item.sale.run, item.epoch, item.holds)
            groups.setdefault(key, []).append(item)
        settled = False
        faults: list[Exception] = []
        for group in groups.values():
            try:
                self._settle(group)
                settled = True
            except Exception as error:  # noqa: BLE001 - no fault may lose what is queued
                self._log.warning("settlement waits", error=repr(error), items=len(group))
                faults.append(error)
                with self._lock:
                    self._queue.extend(group)
        if faults and not settled:
            raise faults[0]
        return settled

    def _settle(self, group: Sequence[Unsettled]) -> None:
        for item, answer in zip(group, settle(self._ledger, group), strict=True):
            self._on_settled(item, answer)


def settle(ledger: Ledger, group: Sequence[Unsettled]) -> list[Outcome]:
    """Commit tombstones for items of one sale, run, epoch and deduct plugin; answer the truth.

    Raises:
        BackendError: the ledger could not be asked; nothing is settled.
    """
    first = group[0]
    try:
        stored = ledger.tombstone(
            first.sale,
            first.epoch,
            [item.reservation for item in group],
            code=Code.BUSY,
            holds=first.holds,
        )
    except UnknownSaleError:  # another run by now: as after a fence, nothing is written
        stored = None
    if stored is None:
        return [busy("stale-epoch")] * len(group)
    return [
        _ABORTED if row is None else outcome_of(row, item.reservation.attempt.fingerprint)
        for item, row in zip(group, stored, strict=True)
    ]


def receipt_of(key: ServerKey, item: Unsettled, deadline_ms: int) -> str:
    """Sign what settles ``item`` later; ``deadline_ms`` is ledger time."""
    attempt = item.reservation.attempt
    return key.sign(
        Receipt(
            sale=item.sale.id,
            run=item.sale.run,
            buyer=attempt.buyer,
            request_id=attempt.request_id,
            fingerprint=attempt.fingerprint,
            epoch=item.epoch,
            place=item.reservation.place,
            kind=str(item.kind),
            deadline_ms=deadline_ms,
        )
    )


def settle_by_receipt(
    ledger: Ledger, key: ServerKey, sale: Sale, receipt: Receipt, *, holds: bool
) -> Outcome:
    """Settle one identity by its verified receipt; PENDING before its deadline and margin.

    Raises:
        BackendError: the ledger could not be asked.
    """
    if ledger.now_ms() < receipt.deadline_ms + MARGIN_MS:
        return Outcome(Code.PENDING, retry_after_ms=MARGIN_MS)
    attempt = Attempt(
        lines=parse_lines(receipt.fingerprint),
        buyer=receipt.buyer,
        request_id=receipt.request_id,
        sale=sale.id,
        order_no=key.order_no(sale.id, receipt.run, receipt.buyer, receipt.request_id),
        fingerprint=receipt.fingerprint,
    )
    item = Reservation(attempt, receipt.place, attempt.order_no, receipt.epoch)
    pending = Outcome(Code.PENDING)
    unsettled = Unsettled(sale, receipt.epoch, Kind(receipt.kind), item, holds, pending)
    return settle(ledger, [unsettled])[0]
