"""One sale as this process serves it: its control row, its compiled modes, its known answers.

Everything a batch needs is read from one snapshot reference, so no attempt sees two settings
(G4). Control rows come from the ledger; a refresh swaps the reference.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import msgspec

from doorbuster.admission import Admission, coalesce
from doorbuster.clock import Clock
from doorbuster.ledger import Ledger, SaleRow, judge
from doorbuster.model import Attempt, Batch, PerBuyer, Sale, Sku
from doorbuster.outcomes import Code, Outcome
from doorbuster.pipeline import Pipeline, busy
from doorbuster.windows import Windows

__all__ = ["Known", "SaleRuntime", "sale_of"]


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


class Known:
    """Accepted and pending identities of one run, answered before the gates. Bounded."""

    def __init__(self, limit: int) -> None:
        """Keep at most ``limit`` answers, the newest."""
        self._limit = limit
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, str], tuple[str, Outcome]] = {}

    def get(self, attempt: Attempt) -> Outcome | None:
        """The known answer, KEY_REUSED for other content, or ``None``."""
        found = self._answers.get((attempt.buyer, attempt.request_id))
        if found is None:
            return None
        return found[1] if found[0] == attempt.fingerprint else Outcome(Code.KEY_REUSED)

    def pending(self, buyer: str, request_id: str) -> Outcome | None:
        """The answer when it is still PENDING."""
        found = self._answers.get((buyer, request_id))
        return found[1] if found is not None and found[1].code is Code.PENDING else None

    def put(self, attempt: Attempt, outcome: Outcome) -> None:
        """Remember ACCEPTED and PENDING; forget anything else."""
        key = (attempt.buyer, attempt.request_id)
        with self._lock:
            if outcome.code > 0 and self._limit:
                self._answers[key] = (attempt.fingerprint, outcome)
                while len(self._answers) > self._limit:
                    del self._answers[next(iter(self._answers))]
            else:
                self._answers.pop(key, None)

    def drop(self, buyer: str, request_id: str) -> None:
        """Forget one identity: its order changed, the ledger answers now."""
        with self._lock:
            self._answers.pop((buyer, request_id), None)

    def clear(self) -> None:
        """Forget all: another run."""
        with self._lock:
            self._answers.clear()


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
        self.known = Known(known_max)
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
        if view.row is not None and view.row.run != row.run:
            self.known.clear()
        pipelines = {
            mode: msgspec.structs.replace(pipeline, sale=sale)
            for mode, pipeline in view.pipelines.items()
        }
        self.view = View(row, sale, pipelines)

    def rewire(self, pipelines: Mapping[str, Pipeline], sale: Sale) -> None:
        """Take newly compiled modes."""
        self.view = View(self.view.row, sale, pipelines)

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
            todo = [(position, attempts[position]) for position in round_.later]
            # What the round accepted is known now: other content of it is KEY_REUSED.
            for position, attempt in list(todo):
                if (found := self.known.get(attempt)) is not None:
                    outcomes[position] = found
                    todo.remove((position, attempt))
        decided = [outcome or busy("not-decided") for outcome in outcomes]
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
        now_s = self._clock.monotonic_s()
        late = [a.deadline_s is not None and now_s > a.deadline_s for a in attempts]
        alive = [a for a, is_late in zip(attempts, late, strict=True) if not is_late]
        row = view.row
        answers = iter(
            pipeline.run(Batch(view.sale, alive, pipeline.mode, row.epoch, row.kind))
            if alive
            else ()
        )
        outcomes = []
        for attempt, is_late in zip(attempts, late, strict=True):
            outcome = busy("deadline") if is_late else next(answers)
            if outcome.code is Code.ACCEPTED:  # PENDING is put by whoever settles it
                self.known.put(attempt, outcome)
            outcomes.append(outcome)
        return outcomes
