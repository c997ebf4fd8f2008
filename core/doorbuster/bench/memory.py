"""The accept step of a ledger that is a few dicts: what ``bench core`` puts behind a pipeline.

It decides as the accept transaction does (identity, content, limit before stock, units, one
outbox row per batch), so the pipeline above it does all of its work, and nothing else is measured.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from doorbuster.ledger import Accepted, Short, units
from doorbuster.model import Batch, Reservation
from doorbuster.outcomes import Code, Outcome

__all__ = ["MemoryLedger"]

_ACCEPTED: Final = Code.ACCEPTED


class MemoryLedger:
    """Units of one sku at one place, one quota per buyer. Thread-safe, forgets with the process."""

    def __init__(self, *, units: int, per_buyer: int) -> None:
        """Lend ``units``; a buyer may have ``per_buyer`` of them."""
        self._lock = threading.Lock()
        self._free = units
        self._per_buyer = per_buyer
        self._intents: dict[str, str] = {}  # an order number names its identity
        self._bought: dict[str, int] = {}
        self.outbox: list[int] = []
        """How many attempts each committed batch accepted."""

    def accept(
        self,
        batch: Batch,
        items: Sequence[Reservation],
        *,
        holds: bool,
        lease: tuple[str, int] | None = None,
        persist: str = "orders",
    ) -> Accepted:
        """Accept what may be, in order, in one step."""
        answers: list[Outcome | Short] = []
        taken: list[int] = []
        intents, bought, most = self._intents, self._bought, self._per_buyer
        with self._lock:
            free = self._free
            for n, item in enumerate(items):
                attempt = item.attempt
                buyer, lines = attempt.buyer, attempt.lines
                order_no = item.order_no
                stored = intents.get(order_no)
                if stored is not None:
                    same = stored == attempt.fingerprint
                    answers.append(Outcome(_ACCEPTED, order_no) if same else _REUSED)
                    continue
                wanted = lines[0].quantity if len(lines) == 1 else sum(units(lines).values())
                has = bought.get(buyer, 0)
                if has + wanted > most:
                    answers.append(_over(most, has))
                    continue
                if wanted > free:
                    answers.append(Short({lines[0].sku: wanted}))
                    continue
                free -= wanted
                bought[buyer] = has + wanted
                intents[order_no] = attempt.fingerprint
                taken.append(n)
                answers.append(Outcome(_ACCEPTED, order_no))
            self._free = free
            self.outbox.append(len(taken))
        return Accepted(answers, len(self.outbox), taken, undo=False)


_REUSED: Final = Outcome(Code.KEY_REUSED)


def _over(limit: int, bought: int) -> Outcome:
    return Outcome(Code.OVER_LIMIT, detail={"limit": limit, "bought": bought})
