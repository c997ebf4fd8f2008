"""An attempt's way to a batch: checked, canonical, named, and each identity once.

Shared by the door and by ``attempt_batch``, so that both judge alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from doorbuster.identity import ServerKey, canonical_lines, check
from doorbuster.model import Attempt, Line, Sale
from doorbuster.outcomes import Code, Outcome

__all__ = ["Admission", "Coalesced", "coalesce"]

_MOMENT_MAX_S = 1e15


class Admission:
    """Turns callers' attempts into canonical ones for one sale. Stateless but for a cache."""

    _CACHE_MAX = 4096  # distinct (sku, quantity) texts; a sale has few

    def __init__(self, key: ServerKey, *, lines_max: int) -> None:
        """``key`` names orders; ``lines_max`` bounds one attempt."""
        self._key = key
        self._lines_max = lines_max
        self._texts: dict[tuple[Line, ...], str] = {}

    def admit(self, sale: Sale, attempt: Attempt, deadline_s: float | None) -> Attempt | Outcome:
        """Answer the canonical attempt, or its INVALID outcome. Never raises."""
        if not isinstance(attempt, Attempt):
            return Outcome(Code.INVALID, detail={"reason": "bad-attempt", "expected": "Attempt"})
        if attempt.deadline_s is not None and not _is_moment(attempt.deadline_s):
            return Outcome(Code.INVALID, detail={"reason": "bad-deadline", "expected": "seconds"})
        lines = check(attempt, self._lines_max)
        if not isinstance(lines, tuple):
            return Outcome(lines.code, detail=lines.detail)
        for line in lines:
            if line.sku not in sale.skus:
                return Outcome(Code.INVALID, detail={"reason": "unknown-sku", "sku": line.sku})
        return Attempt(
            lines=lines,
            buyer=attempt.buyer,
            request_id=attempt.request_id,
            sale=sale.id,
            ticket=attempt.ticket,
            facts=attempt.facts,
            deadline_s=attempt.deadline_s if attempt.deadline_s is not None else deadline_s,
            order_no=self._key.order_no(sale.id, sale.run, attempt.buyer, attempt.request_id),
            fingerprint=self._text(lines),
            run=sale.run,
        )

    def _text(self, lines: tuple[Line, ...]) -> str:
        text = self._texts.get(lines)
        if text is None:
            text = canonical_lines(lines)
            if len(self._texts) < self._CACHE_MAX:
                self._texts[lines] = text
        return text


def _is_moment(value: object) -> bool:
    """A number of seconds that a float can hold: no NaN, no infinity, no 10**400."""
    return isinstance(value, (int, float)) and abs(value) < _MOMENT_MAX_S


class Coalesced(msgspec.Struct, frozen=True):
    """Distinct attempts, who shares their answers, and who must wait for the next round."""

    attempts: Sequence[Attempt]
    sharers: Sequence[Sequence[int]]
    """Positions of the callers that get ``attempts[n]``'s answer."""
    later: Sequence[int]
    """Positions with an identity of this round but other content: judged after it."""


def coalesce(attempts: Sequence[tuple[int, Attempt]]) -> Coalesced:
    """Let equal identities of one batch share one result (protocol.md 2.4)."""
    first: dict[tuple[str, str], int] = {}
    distinct: list[Attempt] = []
    sharers: list[list[int]] = []
    later: list[int] = []
    for position, attempt in attempts:
        key = (attempt.buyer, attempt.request_id)
        n = first.get(key)
        if n is None:
            first[key] = len(distinct)
            distinct.append(attempt)
            sharers.append([position])
        elif distinct[n].fingerprint == attempt.fingerprint:
            sharers[n].append(position)
        else:
            later.append(position)
    return Coalesced(distinct, sharers, later)
