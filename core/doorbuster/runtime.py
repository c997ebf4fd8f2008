"""One sale as this process serves it: its control row, its compiled modes, its known answers.

Everything a batch needs is read from one snapshot reference, so no attempt sees two settings
(G4). Control rows come from the ledger; a refresh swaps the reference.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from doorbuster.admission import Admission, coalesce
from doorbuster.clock import Clock
from doorbuster.ledger import Ledger, SaleRow, judge
from doorbuster.model import Attempt, Batch, PerBuyer, Sale, Sku
from doorbuster.outcomes import Code, Outcome
from doorbuster.pipeline import Pipeline, busy
from doorbuster.windows import Windows

__all__ = ["Known", "SaleRuntime", "sale_of"]

_PENDING_S = 1.0
_ACCEPTED: Final = Code.ACCEPTED
_NOT_DECIDED: Final = busy("not-decided")


def sale_of(configured: Sale, row: SaleRow | None, skus: Mapping[str, Sku] | None) -> Sale:
    """The sale as the ledger has it: run, window, limits and totals in force."""
    if row is None or skus is None:
        return configured
    limits = row.limits
    return msgspec.structs.replace(
        configured,
        run=row.run,
        skus=skus,
        opens_at_ms=row.opens_at_ms,
        closes_at_ms=row.closes_at_ms,
        per_buyer=PerBuyer(limits.sku, limits.sale, limits.attempt),
    )


class _Answer(msgspec.Struct, frozen=True, gc=False):
    """A known answer of one run; a PENDING one is believed for a moment only."""

    run: int
    fingerprint: str
    outcome: Outcome
    until_s: float


class Known:
    """Accepted and pending identities, answered before the gates. Bounded.

    An answer belongs to a run: another run's is never given, however late it comes. A PENDING one
    is given for a moment, to spare the backend callers that ask at once; after that the attempt
    is judged again by its identity, which finds the truth also where nothing settles it.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        """Keep at most ``limit`` answers, the newest."""
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, str], _Answer] = {}

    def get(self, attempt: Attempt) -> Outcome | None:
        """The known answer, KEY_REUSED for other content, or ``None``."""
        found = self._answers.get((attempt.buyer, attempt.request_id))
        if found is None or found.run != attempt.run:
            return None
        if found.fingerprint != attempt.fingerprint:
            return Outcome(Code.KEY_REUSED)
        is_over = found.outcome.code is Code.PENDING and self._clock.monotonic_s() > found.until_s
        return None if is_over else found.outcome

    def pending(self, buyer: str, request_id: str, run: int) -> Outcome | None:
        """The answer when it is still PENDING."""
        found = self._answers.get((buyer, request_id))
        is_pending = found is not None and found.outcome.code is Code.PENDING and found.run == run
        return found.outcome if found is not None and is_pending else None

    def put(self, attempt: Attempt, outcome: Outcome) -> None:
        """Remember ACCEPTED and PENDING; forget anything else. An older run changes nothing."""
        self.put_all([(attempt, outcome)])

    def put_all(self, pairs: Iterable[tuple[Attempt, Outcome]]) -> None:
        """:meth:`put` for many, under one lock."""
        until_s = self._clock.monotonic_s() + _PENDING_S
        answers = self._answers
        with self._lock:
            for attempt, outcome in pairs:
                key = (attempt.buyer, attempt.request_id)
                old = answers.get(key)
                if old is not None and old.run > attempt.run:
                    continue
                if outcome.code > 0 and self._limit:
                    answers[key] = _Answer(attempt.run, attempt.fingerprint, outcome, until_s)
                else:
                    answers.pop(key, None)
            while len(answers) > self._limit:
                del answers[next(iter(answers))]

    def drop(self, buyer: str, request_id: str) -> None:
        """Forget one identity: its order changed, the ledger answers now."""
        with self._lock:
            self._answers.pop((buyer, request_id), None)


class View(msgspec.Struct, frozen=True):
    """What one batch sees. ``row`` is ``None`` for a sale that is not in the ledger yet."""

    row: SaleRow | None
    sale: Sale
    pipelines: Mapping[str, Pipeline]


class SaleRuntime:
    """Admits, judges and decides attempts of one sale. Thread-safe."""

    def __init__(
        self,
        view: View,
        admission: Admission,
        *,
        clock: Clock,
        ledger: Ledger,
        windows: Windows,
        known_max: int,
    ) -> None:
        """Serve ``view`` until :meth:`refresh` swaps it."""
        self.view = view
        self.known = Known(known_max, clock)
        self._admission = admission
        self._clock = clock
        self._ledger = ledger
        self._windows = windows

    @property
    def id(self) -> str:
        """The sale's id."""
        return self.view.sale.id

    def refresh(self, row: SaleRow, skus: Mapping[str, Sku]) -> None:
        """Take a newer control row: one reference assignment."""
        view = self.view
        sale = sale_of(view.sale, row, skus)
        pipelines = {
            mode: msgspec.structs.replace(pipeline, sale=sale)
            for mode, pipeline in view.pipelines.items()
        }
        self.view = View(row, sale, pipelines)

    # ------------------------------------------------------------------ attempts
    def admit(self, attempt: Attempt, deadline_s: float | None) -> Attempt | Outcome:
        """Answer the canonical attempt, or at once: INVALID, or a known answer."""
        admitted = self._admission.admit(self.view.sale, attempt, deadline_s)
        if isinstance(admitted, Outcome):
            return admitted
        return self.known.get(admitted) or admitted

    def decide(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """Decide admitted attempts; equal identities share one result (protocol.md 2.4)."""
        started = self._clock.monotonic_s()
        outcomes: list[Outcome | None] = [None] * len(attempts)
        todo = list(enumerate(attempts))
        while todo:
            round_ = coalesce(todo)
            answers = self._decide_distinct(round_.attempts)
            for sharers, answer in zip(round_.sharers, answers, strict=True):
                for position in sharers:
                    outcomes[position] = answer
            todo = []
            for position in round_.later:
                # What the round accepted is known now: other content of it is KEY_REUSED.
                found = self.known.get(attempts[position])
                if found is None:
                    todo.append((position, attempts[position]))
                else:
                    outcomes[position] = found
        decided = [outcome or _NOT_DECIDED for outcome in outcomes]
        self._windows.record(self.id, decided, (self._clock.monotonic_s() - started) * 1000)
        return decided

    def _decide_distinct(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        view = self.view
        if view.row is None:
            return [Outcome(Code.NOT_STARTED)] * len(attempts)
        refused = judge(view.row, self._ledger.now_ms())
        if refused is not None:
            return [Outcome(refused.code, detail=refused.detail)] * len(attempts)
        pipeline = view.pipelines.get(view.row.effective)
        if pipeline is None or pipeline.deduct_name != view.row.deduct:
            # Another node's config chose it, or its grants are lent to another backend.
            return [busy("mode-not-here")] * len(attempts)
        now_s, run, row = self._clock.monotonic_s(), view.sale.run, view.row
        late = {
            n: unjudged
            for n, attempt in enumerate(attempts)
            if (unjudged := _refused_unjudged(attempt, run, now_s)) is not None
        }
        alive = [a for n, a in enumerate(attempts) if n not in late] if late else attempts
        if not alive:
            return list(late.values())
        answers = pipeline.run(Batch(view.sale, alive, pipeline.mode, row.epoch, row.kind))
        self.known.put_all(  # PENDING is put by whoever settles it
            pair for pair in zip(alive, answers, strict=True) if pair[1].code is _ACCEPTED
        )
        if not late:
            return answers
        judged = iter(answers)
        return [late[n] if n in late else next(judged) for n in range(len(attempts))]


def _refused_unjudged(attempt: Attempt, run: int, now_s: float) -> Outcome | None:
    """BUSY for what may not start: too late, or admitted to a run that is over.

    An order number names its run (protocol.md 2.1, 2.2), so an attempt of the last run must not
    be accepted in this one; asked again it is admitted to this one.
    """
    if attempt.deadline_s is not None and now_s > attempt.deadline_s:
        return busy("deadline")
    return busy("created-again") if attempt.run != run else None
