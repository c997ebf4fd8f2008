"""From a committed batch to orders: one path for persist workers and for delivery INLINE.

Persist is idempotent by order_no, so anything here may run again. What answers REFUSED is a
dead letter and an alarm, and its intent stays RESERVED until a person decides (design: stages).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from doorbuster.context import AlarmCall
from doorbuster.errors import ContractError, PermanentError
from doorbuster.ledger import Ledger
from doorbuster.model import Reservation, Sale
from doorbuster.outcomes import Persisted

__all__ = ["PersistCall", "fulfil_batches"]

PersistCall = Callable[[Sequence[Reservation]], Sequence[Persisted]]


def fulfil_batches(
    ledger: Ledger,
    alarm: AlarmCall,
    sale: Sale,
    persist: PersistCall,
    batches: Sequence[int],
) -> int:
    """Write the orders of one sale's leased batches; answer how many went to persist.

    The caller settles the batches afterwards.

    Raises:
        BackendError: persist or the ledger failed; the lease runs out and another tries.
        ContractError: persist answered another number of items, or not Persisted.
    """
    reservations = ledger.reservations_of(batches, sale)
    if not reservations:
        return 0
    answers = _persist(persist, reservations)
    if len(answers) != len(reservations) or not all(isinstance(a, Persisted) for a in answers):
        raise ContractError(
            f"persist answered {len(answers)} items for {len(reservations)} reservations, or "
            "items that are not Persisted",
            sale=sale.id,
            stage="persist",
        )
    refused = any(answer is Persisted.REFUSED for answer in answers)
    if refused or ledger.reserved(batches):
        # A persist plugin outside the ledger's database moves no intents: the core does.
        letters = ledger.settle_persisted(sale, reservations, answers)
        if letters:  # a refusal that a return asked for is none
            alarm("persist-refused", "critical", sale.id, orders=len(letters))
    return len(reservations)


def _persist(persist: PersistCall, reservations: Sequence[Reservation]) -> Sequence[Persisted]:
    """Call persist; a row that is refused for good must not keep the others waiting (O11).

    Bisects on ``PermanentError``, which surely applied nothing. What fails alone is REFUSED, but
    only when others went through: else the fault is not the row's, and nothing is written off.

    Raises:
        PermanentError: no reservation could be written.
    """
    try:
        return persist(reservations)
    except PermanentError:
        if len(reservations) == 1:
            raise
    half = len(reservations) // 2
    answers: list[Persisted] = []
    failed: PermanentError | None = None
    parts = (reservations[:half], reservations[half:])
    for part in parts:
        try:
            answers.extend(_persist(persist, part))
        except PermanentError as error:
            answers.extend([Persisted.REFUSED] * len(part))
            failed = error
    if failed is not None and all(answer is Persisted.REFUSED for answer in answers):
        raise failed
    return answers
