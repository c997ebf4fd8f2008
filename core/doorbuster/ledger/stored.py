"""What the ledger holds of an identity, and how a replay is answered from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from doorbuster.ledger import queries
from doorbuster.model import Attempt, IntentState, Line
from doorbuster.outcomes import Code, Outcome

__all__ = ["Stored", "identity_of", "outcome_of", "read_stored", "units"]


class Stored(msgspec.Struct, frozen=True):
    """What the ledger holds of one identity; ``batch`` is the transaction that wrote it."""

    id: int
    order_no: str
    lines: str
    state: IntentState
    code: int | None
    epoch: int
    place: str
    batch: int = 0

    def justifies(self, place: str, epoch: int) -> bool:
        """Whether this row justifies a hold at ``place`` in ``epoch`` (protocol.md 4.3).

        Only a row of the same grant that is not ABORTED does. A returned one still does: its
        hold is the record that the return's own job will mark RETURNED, and undoing it would
        give units back twice. An empty ``place`` is a hold whose reply was lost: it lies in the
        buyer's home, which is one place per epoch.
        """
        if self.state is IntentState.ABORTED or self.epoch != epoch:
            return False
        return not place or not self.place or self.place == place


def outcome_of(stored: Stored, fingerprint: str | None) -> Outcome:
    """Answer an identity from its stored row: ABORTED is never ACCEPTED (protocol.md 4.1).

    ``fingerprint`` of ``None`` asks without content (a query); other content is KEY_REUSED.
    """
    if fingerprint is not None and fingerprint != stored.lines:
        return Outcome(Code.KEY_REUSED)
    if stored.state is IntentState.ABORTED:
        # SOLD_OUT is 0: only a row without a code is answered BUSY.
        return Outcome(Code.BUSY if stored.code is None else Code(stored.code), final=True)
    return Outcome(Code.ACCEPTED, order_no=stored.order_no, order_state=str(stored.state))


def identity_of(attempt: Attempt) -> tuple[str, str]:
    """The part of the identity that varies within a sale's run: (buyer, request_id)."""
    return attempt.buyer, attempt.request_id


def units(lines: Sequence[Line]) -> dict[str, int]:
    """Sum lines per sku."""
    if len(lines) == 1:
        return {lines[0].sku: lines[0].quantity}
    sums: dict[str, int] = defaultdict(int)
    for line in lines:
        sums[line.sku] += line.quantity
    return dict(sums)


def read_stored(
    connection: sa.Connection, sid: int, identities: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], Stored]:
    """Read intents by (buyer, request_id); what is not stored is not in the answer."""
    if not identities:
        return {}
    sql = queries.load(connection.dialect.name)
    keys = (queries.array(identities), sid)
    row = tuple[str, str, int, str, str, IntentState, int | None, int, str, int]
    rows = queries.read_array(connection, sql["read_intents"], keys, row)
    return {(buyer, request_id): Stored(*rest) for buyer, request_id, *rest in rows}
