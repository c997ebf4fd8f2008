"""A broker in this process, and the enqueue plugin before it: the smallest complete BROKER.

Promise: at least once, in order per buyer, as long as the process lives. It is what laws of
queues are run against first, so that a red plugin never means a red law.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Final

import msgspec

from doorbuster.plugin import (
    UNKNOWN,
    Clock,
    Context,
    Delivery,
    PluginOptions,
    Received,
    Reservation,
    Sent,
    UnavailableError,
    Unknown,
    UnknownOutcomeError,
    hookimpl,
)

__all__ = ["MemoryBroker", "MemoryQueue"]

_REFUSES: Final = "refuses"
_MUTE: Final = "mute"


class _Down(Exception):  # noqa: N818 - what a driver raises before a request was sent
    """The broker refused the connection: nothing was applied."""


class _Lost(Exception):  # noqa: N818 - what a driver raises when the reply did not come
    """The reply was lost: the request may have been applied."""


class _Record(msgspec.Struct):
    """One call of ``enqueue``, and who has it until when (seconds of the monotonic clock)."""

    reservations: tuple[Reservation, ...]
    owner: str = ""
    until_s: float = 0.0


class MemoryBroker:
    """Records in the order they came; each is kept until it is settled. Safe for many threads."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._lock = threading.Lock()
        self._records: dict[int, _Record] = {}
        self._next = 1
        self._trouble = ""
        self.arrived = threading.Event()
        """Set when a record came."""

    def __len__(self) -> int:
        """Count the records that are not settled."""
        return len(self._records)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuse every request within the block: nothing is applied."""
        yield from self._in_trouble(_REFUSES)

    @contextmanager
    def mute(self) -> Iterator[None]:
        """Apply every request within the block, and lose its reply."""
        yield from self._in_trouble(_MUTE)

    def _in_trouble(self, kind: str) -> Iterator[None]:
        self._trouble = kind
        try:
            yield
        finally:
            self._trouble = ""

    @contextmanager
    def _request(self) -> Iterator[None]:
        if self._trouble == _REFUSES:
            raise _Down
        with self._lock:
            yield
        if self._trouble == _MUTE:
            raise _Lost

    def append(self, reservations: Sequence[Reservation]) -> None:
        """Keep one record, behind all others."""
        with self._request():
            self._records[self._next] = _Record(tuple(reservations))
            self._next += 1
            self.arrived.set()

    def lease(
        self, owner: str, max_records: int, now_s: float, until_s: float
    ) -> Mapping[int, Sequence[Reservation]]:
        """Give the oldest records that nobody has, or had for too long."""
        found: dict[int, Sequence[Reservation]] = {}
        with self._request():
            self.arrived.clear()
            for number, record in self._records.items():
                if len(found) == max_records:
                    break
                if not record.owner or record.until_s <= now_s:
                    record.owner, record.until_s = owner, until_s
                    found[number] = record.reservations
        return found

    def remove(self, numbers: Sequence[int]) -> None:
        """Forget records for good; those that are gone already are passed over."""
        with self._request():
            for number in numbers:
                self._records.pop(number, None)

    def give_back(self, owner: str) -> None:
        """Let others have at once what ``owner`` has; a connection that closes does this."""
        with self._lock:
            for record in self._records.values():
                if record.owner == owner:
                    record.owner = ""


class MemoryQueue:
    """Delivery by a broker that lives in ``context.state``, for tests."""

    delivery: Final = Delivery.BROKER

    class Options(PluginOptions):
        """Settings under ``[plugins.NAME]``."""

        lease_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
        """Seconds after which records that were received and not settled go to another worker;
        default 30, far above what persisting a batch takes."""

    def __init__(self, options: Options, context: Context) -> None:
        """Find the broker that an earlier instance of this name left."""
        self._lease_s = options.lease_s
        self._clock: Clock = context.clock
        self._owner = secrets.token_hex(8)
        self._broker: MemoryBroker = context.state.setdefault("broker", MemoryBroker())

    @hookimpl
    def enqueue(self, reservations: Sequence[Reservation]) -> Sequence[Sent | Unknown]:
        """Append one record; UNKNOWN for all when the reply was lost.

        Raises:
            UnavailableError: the broker refused; nothing was sent.
        """
        if not reservations:
            return ()
        try:
            self._broker.append(reservations)
        except _Down as error:
            raise UnavailableError("the broker refuses") from error
        except _Lost:
            return [UNKNOWN] * len(reservations)
        return [Sent.SENT] * len(reservations)

    @hookimpl
    def receive(self, max: int, timeout_ms: int) -> Sequence[Received]:  # noqa: A002 - the hook's
        """Lease up to ``max`` records, oldest first.

        Raises:
            UnavailableError: the broker refused; nothing was leased.
            UnknownOutcomeError: the reply was lost; what was leased comes again.
        """
        give_up_s = self._clock.monotonic_s() + timeout_ms / 1000
        while True:
            now_s = self._clock.monotonic_s()
            try:
                found = self._broker.lease(self._owner, max, now_s, now_s + self._lease_s)
            except _Down as error:
                raise UnavailableError("the broker refuses") from error
            except _Lost as error:
                raise UnknownOutcomeError("the broker's reply was lost") from error
            if found or now_s >= give_up_s:
                return [Received(items, number) for number, items in found.items()]
            self._clock.wait(self._broker.arrived, give_up_s - now_s)

    @hookimpl
    def settle(self, received: Sequence[Received]) -> bool:
        """Remove records; settling twice is settling once.

        Raises:
            UnavailableError: the broker refused; the records come again.
            UnknownOutcomeError: the reply was lost; they may come again.
        """
        try:
            self._broker.remove([record.token for record in received])
        except _Down as error:
            raise UnavailableError("the broker refuses") from error
        except _Lost as error:
            raise UnknownOutcomeError("the broker's reply was lost") from error
        return True

    def close(self) -> None:
        """Give back what was not settled; closing twice is closing once."""
        self._broker.give_back(self._owner)
