"""A mode, compiled: names became bound methods, what is switched off is absent.

:meth:`Pipeline.run` takes a batch of one sale through filter, limit, deduct and the accept
transaction and answers one :class:`~doorbuster.outcomes.Outcome` per attempt. It never raises
for a fault of a plugin or a backend: a gate's fault follows its ``on_fault``; from deduct on, a
fault is *surely not applied* (BUSY, and holds are given back) or *maybe applied* (PENDING, and
settled by identity). Nothing is guessed, and no unit is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, Final, Protocol, TypeGuard

import msgspec

from doorbuster.context import AlarmCall
from doorbuster.errors import ContractError, PermanentError, UnavailableError
from doorbuster.hookspecs import Deducted, Delivery, Verdicts
from doorbuster.ledger import Ledger, Left, Short, units
from doorbuster.logs import get_logger
from doorbuster.model import Attempt, Batch, Kind, Reservation, Sale
from doorbuster.outcomes import UNKNOWN, Code, Outcome, Rejection, Unknown

__all__ = ["FUNDING_ROUNDS", "Gate", "Pipeline", "Unsettled", "busy"]

FUNDING_ROUNDS: Final = 2
"""Times a batch's dry places are refilled before the ledger's truth answers: the retry of
protocol.md 5.3 and a final sweep (D10). More would only race with other batches."""

BUSY_RETRY_MS: Final = 200
_WAIT_MAX: Final = 2**53 - 1  # milliseconds that every JSON reader can hold


def busy(reason: str, retry_after_ms: int = BUSY_RETRY_MS) -> Outcome:
    """A BUSY answer that says why and when to come again."""
    return Outcome(Code.BUSY, retry_after_ms=retry_after_ms, detail={"reason": reason})


_UNDECIDED: Final = busy("not-decided")
_VERDICT: Final = (Rejection, NoneType)
_DEDUCTED: Final = (Reservation, Rejection, Unknown)


class Gate(msgspec.Struct, frozen=True):
    """One filter or limit stage. ``open_on_fault``: its own failure lets attempts pass."""

    name: str
    stage: str
    call: Callable[[Batch], Verdicts]
    open_on_fault: bool


class Unsettled(msgspec.Struct, frozen=True):
    """An attempt whose outcome must be settled by identity (protocol.md 4.3, 4.6)."""

    sale: Sale
    epoch: int
    kind: Kind
    reservation: Reservation
    holds: bool
    answer: Outcome
    """What the caller was told meanwhile: PENDING, or BUSY with a hold to give back."""


class Refill(Protocol):
    """Bring units to dry places; answers whether any moved (see :mod:`doorbuster.funding`)."""

    def __call__(self, sale: Sale, epoch: int, wants: Mapping[tuple[str, str], int]) -> bool:
        """``wants`` is units by (place, sku)."""
        ...


class Pipeline(msgspec.Struct, frozen=True):
    """One mode of one sale, ready to run. Built by :mod:`doorbuster.wiring` only."""

    sale: Sale
    mode: str
    promise: str
    kind: Kind
    gates: tuple[Gate, ...]
    deduct_name: str
    deduct: Callable[[Batch], Sequence[Deducted]]
    holds: bool
    delivery: Delivery
    persist_name: str
    persist: Callable[[Sequence[Reservation]], Sequence[Any]]
    refill: Refill
    fulfil: Callable[[Pipeline, int], None]
    """Persist one committed batch in the request (delivery INLINE)."""
    unsettled: Callable[[Sequence[Unsettled]], Sequence[Outcome]]
    """Take custody of what must be settled by identity; answers what callers are told."""
    observers: tuple[Callable[[Batch, Sequence[Outcome]], None], ...]
    ledger: Ledger
    alarm: AlarmCall
    lease_s: float
    owner: str

    def run(self, batch: Batch) -> list[Outcome]:
        """Decide every attempt of ``batch``; identities are distinct, lines canonical.

        Answers align with ``batch``. Never raises for faults of plugins and backends.
        """
        outcomes, alive, narrowed = self._gated(batch)
        if alive and narrowed is batch:
            outcomes = self._sell(batch)
        elif alive:
            for position, answer in zip(alive, self._sell(narrowed), strict=True):
                outcomes[position] = answer
        if self.observers:
            seen = tuple(outcomes)  # an observer changes nothing
            for observer in self.observers:
                self._tell(observer, batch, seen)
        return outcomes

    # ------------------------------------------------------------------ gates
    def _gated(self, batch: Batch) -> tuple[list[Outcome], Sequence[int], Batch]:
        """Ask every gate about what the gates before it passed; who is left, and where."""
        outcomes = [_UNDECIDED] * len(batch)
        alive: Sequence[int] = range(len(batch))
        narrowed = batch
        for gate in self.gates:
            if not alive:
                break
            verdicts = self._ask(gate, narrowed)
            kept = []
            for position, verdict in zip(alive, verdicts, strict=True):
                if verdict is None:
                    kept.append(position)
                else:
                    outcomes[position] = _refusal(verdict)
            if len(kept) != len(alive):
                alive = kept
                narrowed = _narrow(batch, alive)
        return outcomes, alive, narrowed

    def _ask(self, gate: Gate, batch: Batch) -> Verdicts:
        try:
            return _checked(f"{gate.name}.{gate.stage}", batch, gate.call(batch), _VERDICT)
        except BaseException as error:  # noqa: BLE001 - SystemExit of a plugin is its fault too
            self._fault(gate.stage, gate.name, error)
            if gate.open_on_fault:
                return [None] * len(batch)
            closed = Rejection(Code.BUSY, {"reason": f"{gate.stage}-fault"}, BUSY_RETRY_MS)
            return [closed] * len(batch)

    # ------------------------------------------------------------------ deduct and accept
    def _sell(self, batch: Batch) -> list[Outcome]:
        outcomes = [_UNDECIDED] * len(batch)
        missing = self._pass(batch, range(len(batch)), outcomes)
        if not missing:
            return outcomes
        left = self._left()
        if not self._all_sold_out(batch, missing, left):
            for _ in range(FUNDING_ROUNDS):
                if not missing or not self._refill(batch, missing):
                    break
                todo = sorted(missing)
                missing = self._pass(_narrow(batch, todo), todo, outcomes)
            left = self._left() if missing else None
        for position in missing:
            outcomes[position] = _short_answer(batch.attempts[position], left)
        return outcomes

    @staticmethod
    def _all_sold_out(
        batch: Batch, missing: Mapping[int, str], left: Mapping[str, Left] | None
    ) -> bool:
        """Whether nothing that is asked for can come from anywhere: one read, no refill."""
        if left is None:
            return False
        skus = {line.sku for position in missing for line in batch.attempts[position].lines}
        return all(sku in left and left[sku].sold_out for sku in skus)

    def _pass(
        self, batch: Batch, positions: Sequence[int], outcomes: list[Outcome]
    ) -> dict[int, str]:
        """Deduct and accept once; answer the dry place of each attempt that found too few."""
        missing: dict[int, str] = {}
        answers = self._deduct(batch)
        if _are_whole(answers):  # nearly every batch
            self._accept(batch, positions, answers, outcomes, missing)
            return missing
        held_at: list[int] = []  # positions, and beside them what was reserved
        held: list[Reservation] = []
        lost_at: list[int] = []
        lost: list[Reservation] = []
        epoch = batch.epoch
        for position, attempt, answer in zip(positions, batch.attempts, answers, strict=True):
            if isinstance(answer, Reservation):
                whole = answer.order_no and answer.epoch
                held_at.append(position)
                held.append(answer if whole else _complete(answer, attempt, epoch))
            elif answer is UNKNOWN:
                # The place is not known: "" is the buyer's home, which compensate finds.
                lost_at.append(position)
                lost.append(Reservation(attempt, "", attempt.order_no, epoch))
            elif isinstance(answer, Outcome):
                outcomes[position] = answer
            elif answer.code is Code.SOLD_OUT:
                # A place that is dry is not a sale that is sold out: the ledger knows (7.1).
                missing[position] = str(answer.detail.get("place", ""))
            else:
                outcomes[position] = _refusal(answer)
        if lost:
            self._pending(batch, lost_at, lost, outcomes)
        if held:
            self._accept(batch, held_at, held, outcomes, missing)
        return missing

    def _deduct(self, batch: Batch) -> Sequence[Deducted | Outcome]:
        try:
            return _checked(f"{self.deduct_name}.deduct", batch, self.deduct(batch), _DEDUCTED)
        except (UnavailableError, PermanentError) as error:
            self._fault("deduct", self.deduct_name, error)
            return [busy("deduct-unavailable")] * len(batch)
        except BaseException as error:  # noqa: BLE001 - whatever it was, it may be applied
            self._fault("deduct", self.deduct_name, error)
            if self.holds:
                return [UNKNOWN] * len(batch)
            return [busy("deduct-fault")] * len(batch)  # a router holds nothing

    def _accept(
        self,
        batch: Batch,
        positions: Sequence[int],
        items: Sequence[Reservation],
        outcomes: list[Outcome],
        missing: dict[int, str],
    ) -> None:
        lease = None
        if self.delivery is Delivery.INLINE:
            lease = (self.owner, self.ledger.now_ms() + int(self.lease_s * 1000))
        try:
            accepted = self.ledger.accept(
                batch, items, holds=self.holds, lease=lease, persist=self.persist_name
            )
        except (UnavailableError, PermanentError) as error:
            self._fault("accept", "ledger", error)
            refused = busy("ledger-unavailable")
            for position in positions:
                outcomes[position] = refused
            if self.holds:
                self._later(batch, items, refused)
            return
        except BaseException as error:  # noqa: BLE001 - the commit may have happened
            self._fault("accept", "ledger", error)
            self._pending(batch, positions, items, outcomes)
            return
        answers = accepted.answers
        if len(answers) == len(outcomes) and _are_said(answers):
            outcomes[:] = answers  # nearly every batch; positions rise, so these are all of them
        else:
            for position, item, answer in zip(positions, items, answers, strict=True):
                if isinstance(answer, Short):
                    missing[position] = item.place
                else:
                    outcomes[position] = answer
        if self.delivery is Delivery.INLINE and accepted.batch is not None:
            self.fulfil(self, accepted.batch)

    def _pending(
        self,
        batch: Batch,
        positions: Sequence[int],
        items: Sequence[Reservation],
        outcomes: list[Outcome],
    ) -> None:
        pending = Outcome(Code.PENDING, retry_after_ms=BUSY_RETRY_MS)
        for position, answer in zip(positions, self._later(batch, items, pending), strict=True):
            outcomes[position] = answer

    def _later(
        self, batch: Batch, items: Sequence[Reservation], answer: Outcome
    ) -> Sequence[Outcome]:
        return self.unsettled(
            [
                Unsettled(batch.sale, batch.epoch, batch.kind, item, self.holds, answer)
                for item in items
            ]
        )

    # ------------------------------------------------------------------ dry places
    def _refill(self, batch: Batch, missing: Mapping[int, str]) -> bool:
        wants: dict[tuple[str, str], int] = {}
        for position, place in missing.items():
            for line in batch.attempts[position].lines:
                key = (place, line.sku)
                wants[key] = wants.get(key, 0) + line.quantity
        try:
            return self.refill(batch.sale, batch.epoch, wants)
        except Exception as error:  # noqa: BLE001 - the rows stay open, role topup goes on
            self._fault("funding", self.deduct_name, error)
            return False

    def _left(self) -> Mapping[str, Left] | None:
        try:
            return self.ledger.left(self.sale)
        except Exception as error:  # noqa: BLE001 - then SOLD_OUT cannot be said
            self._fault("accept", "ledger", error)
            return None

    # ------------------------------------------------------------------ faults and observers
    def _fault(self, stage: str, plugin: str, error: BaseException) -> None:
        severity = "critical" if isinstance(error, ContractError) else "warning"
        get_logger("doorbuster.pipeline").warning(
            "stage failed",
            sale=self.sale.id,
            mode=self.mode,
            stage=stage,
            plugin=plugin,
            error=f"{type(error).__name__}: {error}",
        )
        self.alarm(
            f"{stage}-fault", severity, self.sale.id, plugin=plugin, error=type(error).__name__
        )

    def _tell(
        self,
        observer: Callable[[Batch, Sequence[Outcome]], None],
        batch: Batch,
        outcomes: Sequence[Outcome],
    ) -> None:
        try:
            observer(batch, outcomes)
        except BaseException as error:  # noqa: BLE001 - an observer changes nothing
            self._fault("batch_settled", getattr(observer, "__qualname__", "observer"), error)


def _checked(
    where: str, batch: Batch, answered: Sequence[Any], kinds: tuple[type, ...]
) -> list[Any]:
    """Hold a stage to its contract: one answer per attempt, each of a kind it may give.

    Answers a list of the core's own: a plugin may use its list again, and what was checked must
    stay so while accept waits for its lock (C3).

    Raises:
        ContractError: it is not; the whole batch is the plugin's fault.
    """
    if len(answered) != len(batch):
        raise ContractError(f"{where} answered {len(answered)} for {len(batch)} attempts")
    answers = list(answered)
    for answer, attempt in zip(answers, batch.attempts, strict=True):
        if type(answer) is Reservation and answer.attempt is attempt and kinds is _DEDUCTED:
            continue  # nearly every answer of deduct, at the price of one look
        if not isinstance(answer, kinds):
            raise ContractError(f"{where} answered a {type(answer).__name__}")
        if isinstance(answer, Rejection):
            if not isinstance(answer.code, Code) or not isinstance(answer.detail, Mapping):
                raise ContractError(f"{where} answered a rejection of {answer.code!r}")
            after_ms = answer.retry_after_ms
            if after_ms is not None and not (type(after_ms) is int and 0 <= after_ms <= _WAIT_MAX):
                raise ContractError(f"{where} answered retry_after_ms = {str(after_ms)[:40]}")
        elif isinstance(answer, Reservation) and answer.attempt != attempt:
            # what a mixed-up connection hands out: another buyer's answer (C3)
            raise ContractError(f"{where} answered a reservation of another attempt")
    return answers


def _narrow(batch: Batch, positions: Sequence[int]) -> Batch:
    if len(positions) == len(batch):
        return batch
    attempts = [batch.attempts[position] for position in positions]
    return msgspec.structs.replace(batch, attempts=attempts)


def _are_whole(answers: Sequence[Deducted | Outcome]) -> TypeGuard[Sequence[Reservation]]:
    """Whether every answer is a reservation that lacks nothing."""
    return all([type(a) is Reservation and a.order_no and a.epoch for a in answers])  # noqa: C419 - a list is built faster than a generator is asked


def _are_said(answers: Sequence[Outcome | Short]) -> TypeGuard[Sequence[Outcome]]:
    """Whether no place was short of an attempt's units."""
    return Short not in set(map(type, answers))


def _complete(item: Reservation, attempt: Attempt, epoch: int) -> Reservation:
    """Fill what a plugin left out; the stored order number of a replay is kept (2.2)."""
    return Reservation(attempt, item.place, item.order_no or attempt.order_no, item.epoch or epoch)


def _refusal(rejection: Rejection) -> Outcome:
    detail = rejection.detail
    return Outcome(
        rejection.code,
        detail=detail,
        retry_after_ms=rejection.retry_after_ms,
        final=bool(detail.get("final")) if detail else False,
    )


def _short_answer(attempt: Attempt, left: Mapping[str, Left] | None) -> Outcome:
    """SOLD_OUT only by the ledger's truth (protocol.md 7); else BUSY: units are on their way."""
    if left is None:
        return busy("ledger-unavailable")
    for sku, n in units(attempt.lines).items():
        found = left.get(sku)
        if found is None or found.sold_out:
            return Outcome(Code.SOLD_OUT, detail={"sku": sku})
        remaining = found.unallocated + found.free
        if remaining < n and not found.open_fundings:
            return Outcome(Code.SOLD_OUT, detail={"sku": sku, "remaining": remaining})
    return busy("units-moving")
