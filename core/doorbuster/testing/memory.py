"""A holder whose slots live in this process: the smallest complete one, and a model of others.

Kind H only, promise ``none``: it holds units, the ledger decides (protocol.md 1, 3.2). What it
holds is gone with the process, which loses no accepted attempt; the sale then needs a new epoch.
Slots live in ``context.state`` and survive a rebuild on reload. Records live as long as their
epoch,
about half a kilobyte each beside their attempt; millions belong to another backend.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from doorbuster.plugin import (
    UNKNOWN,
    Batch,
    Compensated,
    Compensation,
    Context,
    Control,
    Count,
    Deducted,
    Funding,
    Hold,
    PluginOptions,
    Sale,
    UnavailableError,
    hookimpl,
    stable_hash,
)
from doorbuster.testing._slot import Slot, busy

__all__ = ["MemoryHolder"]

_KIND: Final = "H"


class _Epoch:
    """The slots of one epoch. Their number belongs to it, not to the options (protocol.md 1.1)."""

    def __init__(self, sale: Sale, places: Sequence[str]) -> None:
        self.slots = [Slot(place, tuple(sale.skus)) for place in places]

    def home(self, buyer: str) -> int:
        """The number of a buyer's slot, by stable hash (F6)."""
        return stable_hash(buyer) % len(self.slots)

    def at(self, place: str) -> Slot | None:
        """The slot of a place."""
        return next((slot for slot in self.slots if slot.place == place), None)


class _Store:
    """All epochs of all sales. Small maps; ``lock`` guards changes that look before they write."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.epochs: dict[tuple[str, int, int], _Epoch] = {}
        self.run: dict[str, int] = {}
        self.opened: dict[tuple[str, int], int] = {}

    def live(self, sale: str, run: int, epoch: int) -> _Epoch | None:
        """The slots of ``epoch``, unless they are gone or a later epoch was opened."""
        over = self.opened.get((sale, run), 0) > epoch
        return None if over else self.epochs.get((sale, run, epoch))


class MemoryHolder:
    """``memory``: hold units in this process, for tests and demos (promise ``none``)."""

    class Options(PluginOptions):
        """Settings under ``[plugins.memory]``."""

        places: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
        """Slots of a sale, 1 to 1000, default 1: more only show what more slots do."""

    def __init__(self, options: Options, context: Context) -> None:
        """Find the slots that an earlier instance of this name left."""
        self._places = tuple(f"m{n}" for n in range(options.places))
        self._clock = context.clock
        self._alarm = context.alarm
        self._store: _Store = context.state.setdefault("store", _Store())

    @hookimpl
    def places(self, sale: Sale) -> Sequence[str]:
        """Name the places of the next epoch."""
        return self._places

    @hookimpl
    def prepare(self, sale: Sale, epoch: int) -> bool:
        """Make empty slots in SEED; slots that are there stay as they are (protocol.md 3.1)."""
        store = self._store
        with store.lock:
            store.epochs.setdefault((sale.id, sale.run, epoch), _Epoch(sale, self._places))
            store.run[sale.id] = max(sale.run, store.run.get(sale.id, 0))
        return True

    @hookimpl
    def open(self, sale: Sale, epoch: int) -> bool:
        """SEED -> OPEN in every slot, and older epochs are over. False: no such slots."""
        store = self._store
        with store.lock:
            found = store.live(sale.id, sale.run, epoch)
            if found is None:
                return False
            for slot in found.slots:
                with slot.lock:
                    slot.open()
            store.opened[sale.id, sale.run] = epoch
        return True

    @hookimpl
    def retire(self, sale: Sale, epoch: int) -> bool:
        """Forget slots and records of ``epoch``; forgetting twice is forgetting once."""
        with self._store.lock:
            self._store.epochs.pop((sale.id, sale.run, epoch), None)
        return True

    @hookimpl
    def credit(self, fundings: Sequence[Funding]) -> Sequence[int]:
        """Put units in, once per id, in SEED and OPEN.

        Raises:
            UnavailableError: a slot is not there; nothing of the call was applied.
        """
        return self._move(fundings, credit=True)

    @hookimpl
    def debit(self, fundings: Sequence[Funding]) -> Sequence[int]:
        """Take up to ``quantity`` units out, once per id; 0 while the slot is not open.

        Raises:
            UnavailableError: a slot is not there; nothing of the call was applied.
        """
        return self._move(fundings, credit=False)

    def _move(self, fundings: Sequence[Funding], *, credit: bool) -> Sequence[int]:
        slots = [self._slot_of(funding) for funding in fundings]  # all before the first write
        moved: list[int] = []
        for slot, funding in zip(slots, fundings, strict=True):
            with slot.lock:
                moved.append(slot.move(funding, credit=credit))
        return moved

    def _slot_of(self, funding: Funding) -> Slot:
        found = self._store.epochs.get((funding.sale, funding.run, funding.epoch))
        slot = None if found is None else found.at(funding.place)
        if slot is None:
            raise UnavailableError(f"no slot {funding.place!r} in epoch {funding.epoch}")
        return slot

    @hookimpl
    def deduct(self, batch: Batch) -> Sequence[Deducted]:
        """Hold each attempt's units in its buyer's home slot: one atomic step per slot.

        A missing slot is BUSY with an alarm, never sold out. SOLD_OUT names the ``place`` that
        is short; whether the sale is sold out, the core asks the ledger.
        """
        if not batch.attempts:
            return ()
        sale, store = batch.sale, self._store
        found = store.epochs.get((sale.id, sale.run, batch.epoch))
        over = store.opened.get((sale.id, sale.run), 0) > batch.epoch
        if found is None:
            if not over:
                self._alarm("stock-not-ready", "critical", sale.id, epoch=batch.epoch)
            return [busy("stale-epoch" if over else "not-ready") for _ in batch]
        fenced = "stale-epoch" if over else "kind" if batch.kind != _KIND else None
        answers: list[Deducted] = [UNKNOWN] * len(batch)
        homes: dict[int, list[int]] = defaultdict(list)
        for n, attempt in enumerate(batch):
            homes[found.home(attempt.buyer)].append(n)
        for home, numbers in homes.items():
            slot = found.slots[home]
            with slot.lock:
                fence = busy(fenced) if fenced else None
                terms = slot.terms(sale, batch.epoch, fence, self._clock.monotonic_s())
                for n in numbers:
                    answers[n] = slot.deduct(batch.attempts[n], terms)
        return answers

    @hookimpl
    def compensate(self, items: Sequence[Compensation]) -> Sequence[Compensated]:
        """Undo or return each item in its buyer's home slot, once per order_no (4.3, 4.4, 4.7).

        STALE_EPOCH when the item's epoch is gone, or a later one was opened.
        """
        return [self._compensate(item) for item in items]

    def _compensate(self, item: Compensation) -> Compensated:
        attempt = item.reservation.attempt
        # an attempt made by hand names no run: then it is of the newest
        run = attempt.run or self._store.run.get(attempt.sale, 0)
        found = self._store.live(attempt.sale, run, item.reservation.epoch)
        if found is None:
            return Compensated.STALE_EPOCH
        slot = found.slots[found.home(attempt.buyer)]
        with slot.lock:
            return slot.compensate(item, self._clock.monotonic_s())

    @hookimpl
    def count(self, sale: Sale, epoch: int) -> Sequence[Count]:
        """Count units left and held per place and sku; accepted units count as held.

        Raises:
            UnavailableError: the epoch's slots are gone; that is not a count of zero.
        """
        found = self._store.epochs.get((sale.id, sale.run, epoch))
        if found is None:
            raise UnavailableError(f"no slots of epoch {epoch}", sale=sale.id)
        counts: list[Count] = []
        for slot in found.slots:
            with slot.lock:
                counts += [
                    Count(slot.place, sku, left, slot.held.get(sku, 0))
                    for sku, left in slot.left.items()
                ]
        return counts

    @hookimpl
    def holds(self, sale: Sale, epoch: int, older_than_s: float) -> Sequence[Hold]:
        """List HELD records of ``older_than_s`` or more, accepted ones too: the ledger knows."""
        found = self._store.epochs.get((sale.id, sale.run, epoch))
        holds: list[Hold] = []
        now_s = self._clock.monotonic_s()
        for slot in [] if found is None else found.slots:
            with slot.lock:
                holds += slot.holds(now_s, older_than_s)
        return holds

    @hookimpl
    def push(self, sale: Sale, epoch: int, control: Control) -> Sequence[str]:
        """Store control values unless newer ones are there; without slots, no place is reached."""
        found = self._store.epochs.get((sale.id, sale.run, epoch))
        if found is None:
            return self._places
        for slot in found.slots:
            with slot.lock:
                if slot.control is None or slot.control.version <= control.version:
                    slot.control = control
        return ()
