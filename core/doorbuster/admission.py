"""An attempt's way to a batch: checked, canonical, named, and each identity once.

Shared by the door and by ``attempt_batch``, so that both judge alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from doorbuster.identity import ServerKey, are_ids, canonical_lines, check
from doorbuster.model import Attempt, Line, Sale
from doorbuster.outcomes import Code, Outcome

__all__ = ["Admission", "Coalesced", "coalesce"]

_MOMENT_MAX_S = 1e15


class Admission:
    """Turns callers' attempts into canonical ones. Stateless but for caches. Thread-safe."""

    _CACHE_MAX = 4096  # distinct (sku, quantity) texts, or runs of sales; both are few

    def __init__(self, key: ServerKey, *, lines_max: int) -> None:
        """``key`` names orders; ``lines_max`` bounds one attempt."""
        self._key = key
        self._lines_max = lines_max
        self._texts: dict[tuple[Line, ...], str] = {}
        self._singles: dict[tuple[str, int], tuple[tuple[Line, ...], str]] = {}
        self._numbers: dict[tuple[str, int], Callable[[str], str]] = {}
        self._last: tuple[Sale | None, Callable[[str], str]] = None, str

    def admit(self, sale: Sale, attempt: Attempt, deadline_s: float | None) -> Attempt | Outcome:
        """Answer the canonical attempt, or its INVALID outcome. Never raises."""
        if not isinstance(attempt, Attempt):
            return Outcome(Code.INVALID, detail={"reason": "bad-attempt", "expected": "Attempt"})
        if attempt.deadline_s is not None:
            if not _is_moment(attempt.deadline_s):
                return Outcome(
                    Code.INVALID, detail={"reason": "bad-deadline", "expected": "seconds"}
                )
            deadline_s = attempt.deadline_s
        buyer, request_id = attempt.buyer, attempt.request_id
        identity, known = "", None
        if type(buyer) is str and type(request_id) is str:
            identity = f"{buyer}|{request_id}"
            if are_ids(identity):
                known = self._known_line(attempt)
        if known is None:
            found = check(attempt, self._lines_max)
            if not isinstance(found, tuple):
                return Outcome(found.code, detail=found.detail)
            identity = f"{buyer}|{request_id}"
            known = found, self._text(found)
        lines, text = known
        skus = sale.skus
        for line in lines:
            if line.sku not in skus:
                return Outcome(Code.INVALID, detail={"reason": "unknown-sku", "sku": line.sku})
        named, number = self._last
        if named is not sale:
            number = self._numbers.get((sale.id, sale.run)) or self._new_numbers(sale)
            self._last = sale, number
        return Attempt(
            lines,
            buyer,
            request_id,
            sale.id,
            attempt.ticket,
            attempt.facts,
            deadline_s,
            number(identity),
            text,
            sale.run,
        )

    def _known_line(self, attempt: Attempt) -> tuple[tuple[Line, ...], str] | None:
        """One plain line that was checked before: what nearly every attempt is (2 us saved).

        Types are compared strictly: 1 == 1.0 == True, and only one of them is a quantity.
        """
        lines, facts = attempt.lines, attempt.facts
        if (
            facts
            or attempt.ticket is not None
            or type(facts) is not dict
            or (type(lines) is not list and type(lines) is not tuple)
            or len(lines) != 1
            or type(line := lines[0]) is not Line
            or line.group is not None
        ):
            return None
        sku, quantity = line.sku, line.quantity
        if type(sku) is not str or type(quantity) is not int:
            return None
        return self._singles.get((sku, quantity))

    def _text(self, lines: tuple[Line, ...]) -> str:
        text = self._texts.get(lines)
        if text is None:
            text = canonical_lines(lines)
            if len(self._texts) < self._CACHE_MAX:
                self._texts[lines] = text
                if len(lines) == 1 and lines[0].group is None:
                    self._singles[lines[0].sku, lines[0].quantity] = lines, text
        return text

    def _new_numbers(self, sale: Sale) -> Callable[[str], str]:
        numbers = self._key.numbers(sale.id, sale.run)
        if len(self._numbers) >= self._CACHE_MAX:
            self._numbers.clear()
        self._numbers[sale.id, sale.run] = numbers
        return numbers


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
        n = first.setdefault(key, len(distinct))
        if n == len(distinct):
            distinct.append(attempt)
            sharers.append([position])
        elif distinct[n].fingerprint == attempt.fingerprint:
            sharers[n].append(position)
        else:
            later.append(position)
    return Coalesced(distinct, sharers, later)
