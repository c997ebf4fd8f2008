"""From a committed batch to orders: one path for persist workers and for delivery INLINE.

Persist is idempotent by order_no, so anything here may run again. What answers REFUSED is a
dead letter and an alarm, and its intent stays RESERVED until a person decides (design: stages).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from doorbuster.context import AlarmCall
from doorbuster.errors import ContractError
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
        ContractError: persist answered another number of items.
    """
    reservations = ledger.reservations_of(batches, sale)
    if not reservations:
        return 0
    answers = persist(reservations)
    if len(answers) != len(reservations):
        raise ContractError(
            f"persist answered {len(answers)} for {len(reservations)} reservations",
            sale=sale.id,
            stage="persist",
        )
    refused = sum(answer is Persisted.REFUSED for answer in answers)
    if refused or ledger.reserved(batches):
        # A persist plugin outside the ledger's database moves no intents: the core does.
        ledger.settle_persisted(sale, reservations, answers)
    if refused:
        alarm("persist-refused", "critical", sale.id, orders=refused)
    return len(reservations)
