"""Many threads that start at once: the shape of every race."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["together"]

T = TypeVar("T")

_JOIN_S = 60.0


def together(work: Callable[[int], T], count: int = 64) -> list[T]:
    """Run ``work(n)`` for n in 0..count-1 in threads that start at once; answer in order.

    Raises:
        AssertionError: a thread raised, or did not end within a minute.
    """
    barrier = threading.Barrier(count)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def body(n: int) -> None:
        barrier.wait()
        try:
            results[n] = work(n)
        except BaseException as error:  # noqa: BLE001 - told below, in the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=body, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_JOIN_S)
    if errors:
        raise AssertionError(f"{len(errors)} threads failed: {errors[:3]!r}") from errors[0]
    if any(thread.is_alive() for thread in threads):
        raise AssertionError("a thread did not end")
    return [results[n] for n in range(count)]
