"""End attempts cheaply while a fresh mark says that a sku is sold out (protocol.md 7, S0-38).

The mark is an economy, never a decision of its own: it is set only by one ledger read, it dies
``life_s`` after the moment of that read, and units that come back lift it at once (F20, L3).
An empty place alone, or "too few for this quantity", sets nothing (F16, L4, 7.2).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec

from doorbuster.plugin import (
    Attempt,
    Batch,
    Code,
    Context,
    Outcome,
    PluginOptions,
    Rejection,
    Sale,
    SoldOutRead,
    Verdicts,
    hookimpl,
)

__all__ = ["SoldOut"]

_READS_PER_LIFE: Final = 10  # ten reads within one life bound what a crowd costs the ledger


class _Mark(msgspec.Struct, frozen=True):
    """What one read said: a ready answer per sold-out sku, for one epoch, until ``until_s``."""

    refusals: Mapping[str, Rejection]
    epoch: int
    version: int
    until_s: float

    def of(self, attempt: Attempt) -> Rejection | None:
        """Refuse an attempt one of whose skus is marked: all lines or nothing."""
        for line in attempt.lines:
            found = self.refusals.get(line.sku)
            if found is not None:
                return found
        return None


class _Watch:
    """What is known of one run of one sale. Written under its lock; ``mark`` is read freely."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.mark: _Mark | None = None
        self.generation = 0
        self.reading = False
        self.next_read_s = float("-inf")


class SoldOut:
    """``sold-out``: refuse with SOLD_OUT while the mark is fresh, and learn it from outcomes."""

    on_fault = "open"  # without the mark the ledger answers, only dearer

    class Options(PluginOptions):
        """Settings under ``[plugins.sold-out]``."""

        life_s: Annotated[float, msgspec.Meta(ge=1, le=2)] = 1.5
        """Seconds a mark lives, counted from its read, 1 to 2: shorter and it saves little,
        longer and a door that missed the news blocks a restock (S0-38, F20); default 1.5."""

    def __init__(self, options: Options, context: Context) -> None:
        """Marks live in ``context.state``, so that they survive a rebuild."""
        self._life_s = options.life_s
        self._context = context

    @hookimpl
    def filter(self, batch: Batch) -> Verdicts:
        """Refuse attempts of a marked sku; without a fresh mark of this epoch, nobody."""
        mark = self._fresh(self._watch(batch.sale), batch.epoch)
        if mark is None:
            return [None] * len(batch)
        return [mark.of(attempt) for attempt in batch]

    @hookimpl
    def batch_settled(self, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        """Ask the ledger once when somebody was told SOLD_OUT who was not told by a mark.

        One read at a time per sale, at most ten per ``life_s``. A read that raises sets no
        mark and is logged.
        """
        watch = self._watch(batch.sale)
        mark = self._fresh(watch, batch.epoch)
        news = any(
            outcome.code is Code.SOLD_OUT and (mark is None or mark.of(attempt) is None)
            for attempt, outcome in zip(batch, outcomes, strict=True)
        )
        if news:
            self._learn(watch, batch.sale)

    @hookimpl
    def units_returned(self, sale: Sale, skus: Sequence[str]) -> None:
        """Lift the mark of ``skus`` at once, also against a read that is under way (L9)."""
        watch = self._watch(sale)
        with watch.lock:
            watch.generation += 1
            mark = watch.mark
            if mark is not None:
                kept = {sku: no for sku, no in mark.refusals.items() if sku not in set(skus)}
                watch.mark = msgspec.structs.replace(mark, refusals=kept) if kept else None

    def _fresh(self, watch: _Watch, epoch: int) -> _Mark | None:
        mark = watch.mark
        if mark is None or mark.epoch != epoch:
            return None
        return mark if self._context.clock.monotonic_s() < mark.until_s else None

    def _learn(self, watch: _Watch, sale: Sale) -> None:
        """Read once and publish, unless a read is under way or was just made."""
        now_s = self._context.clock.monotonic_s()
        with watch.lock:
            if watch.reading or now_s < watch.next_read_s:
                return
            watch.reading = True
            watch.next_read_s = now_s + self._life_s / _READS_PER_LIFE
            generation = watch.generation
        try:
            read = self._context.ledger.sold_out(sale)
            self._publish(watch, read, generation)
        except Exception as error:  # noqa: BLE001 - an economy must not fail what it saves
            self._context.log.warning("sold-out read failed", sale=sale.id, error=str(error))
        finally:
            watch.reading = False

    def _publish(self, watch: _Watch, read: SoldOutRead, generation: int) -> None:
        """Set the mark unless units came back since the read began, or a newer one stands."""
        refusals = {
            sku: Rejection(Code.SOLD_OUT, {"sku": sku, "remaining": 0}) for sku in read.skus
        }
        mark = _Mark(refusals, read.epoch, read.version, read.read_at_s + self._life_s)
        with watch.lock:
            old = watch.mark
            newer = old is not None and (old.epoch, old.version) > (mark.epoch, mark.version)
            if watch.generation == generation and not newer:
                watch.mark = mark if refusals else None

    def _watch(self, sale: Sale) -> _Watch:
        key = f"watch/{sale.id}/{sale.run}"
        found = self._context.state.get(key)
        if found is None:  # setdefault: of two threads, one wins for both
            found = self._context.state.setdefault(key, _Watch())
        watch: _Watch = found
        return watch
