"""Attempts that left the straight path: PENDING answers, their receipts, and their settlement.

Whoever is told PENDING can rely on three things: this process settles the attempt unasked while
it lives, the signed receipt settles it anywhere, and the same ``request_id`` gets the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from doorbuster.clock import Clock
from doorbuster.context import AlarmCall
from doorbuster.errors import BackendError
from doorbuster.identity import ServerKey
from doorbuster.ledger import Ledger
from doorbuster.logs import get_logger
from doorbuster.model import Attempt, Reservation
from doorbuster.outcomes import Code, Outcome
from doorbuster.pipeline import Unsettled, busy
from doorbuster.runtime import SaleRuntime
from doorbuster.settlement import Settlements, receipt_of, settle_by_receipt

__all__ = ["Custody"]

_RETRY_MS = 1000
_LEFT_MAX_S = 3600.0  # no call is on its way for longer, whatever deadline a caller names


class Custody:
    """Keeps what must be settled by identity (protocol.md 4.3, 4.6). Thread-safe."""

    def __init__(
        self,
        ledger: Ledger,
        key: ServerKey,
        *,
        clock: Clock,
        alarm: AlarmCall,
        runtime_of: Callable[[str], SaleRuntime | None],
    ) -> None:
        """``runtime_of`` finds a sale's runtime, whose known answers follow the settlement."""
        self._ledger = ledger
        self._key = key
        self._clock = clock
        self._alarm = alarm
        self._runtime_of = runtime_of
        self._log = get_logger("doorbuster.custody")
        self.settlements = Settlements(ledger, alarm, self._settled)

    def take(self, items: Sequence[Unsettled]) -> list[Outcome]:
        """Take items in; answer what their callers are told, PENDING ones with a receipt.

        The known answer is put before the item is queued, so a settlement can only follow it.
        """
        answers = [self._told(item) for item in items]
        self.settlements.add(items)
        return answers

    def _told(self, item: Unsettled) -> Outcome:
        if item.answer.code is not Code.PENDING:
            return item.answer
        attempt = item.reservation.attempt
        left_s = 0.0
        if attempt.deadline_s is not None:
            left_s = min(max(0.0, attempt.deadline_s - self._clock.monotonic_s()), _LEFT_MAX_S)
        deadline_ms = self._ledger.now_ms() + int(left_s * 1000)
        answer = item.answer
        try:
            receipt = receipt_of(self._key, item, deadline_ms)
            answer = msgspec.structs.replace(answer, receipt=receipt)
        except Exception as error:  # noqa: BLE001 - the others of the batch need theirs
            # The identity settles it all the same: this process unasked, or its next attempt.
            self._log.error("no receipt", sale=item.sale.id, error=repr(error))
        runtime = self._runtime_of(item.sale.id)
        if runtime is not None:
            runtime.known.put(attempt, answer)
        return answer

    def _settled(self, item: Unsettled, outcome: Outcome) -> None:
        runtime = self._runtime_of(item.sale.id)
        if runtime is not None:
            runtime.known.put(item.reservation.attempt, outcome)

    def undecided(
        self,
        runtime: SaleRuntime,
        attempts: Sequence[Attempt],
        error: BaseException,
        *,
        holds: bool,
    ) -> list[Outcome]:
        """A defect of ours, at a step nobody knows: every attempt is settled by identity."""
        self._log.error("batch failed", sale=runtime.id, error=repr(error))
        self._alarm("decide-failed", "critical", runtime.id, error=type(error).__name__)
        view = runtime.view
        if view.row is None:
            return [busy("not-decided")] * len(attempts)
        pending, epoch = Outcome(Code.PENDING, retry_after_ms=_RETRY_MS), view.row.epoch
        return self.take(
            [
                Unsettled(
                    view.sale,
                    epoch,
                    view.row.kind,
                    Reservation(attempt, "", attempt.order_no, epoch),
                    holds,
                    pending,
                )
                for attempt in attempts
            ]
        )

    def by_receipt(
        self, runtime: SaleRuntime, buyer: str, request_id: str, text: str, *, holds: bool
    ) -> Outcome:
        """Settle one identity by a receipt, which must be of just this identity.

        INVALID for another's or a forged one; PENDING, with the receipt again, before its
        deadline and while the ledger cannot be asked.
        """
        receipt = self._key.verify(text)
        sale = runtime.view.sale
        if receipt is None or (receipt.sale, receipt.run, receipt.buyer, receipt.request_id) != (
            sale.id,
            sale.run,
            buyer,
            request_id,
        ):
            return Outcome(Code.INVALID, detail={"reason": "bad-receipt"})
        try:
            answer = settle_by_receipt(self._ledger, self._key, sale, receipt, holds=holds)
        except BackendError as error:
            self._log.warning("settlement unavailable", sale=sale.id, error=str(error))
            answer = Outcome(Code.PENDING, retry_after_ms=_RETRY_MS)
        if answer.code is Code.PENDING:
            return msgspec.structs.replace(answer, receipt=text)
        runtime.known.drop(buyer, request_id)  # the ledger has the truth now
        return answer
