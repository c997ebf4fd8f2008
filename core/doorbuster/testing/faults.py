"""A plugin whose backend fails when a test says so: before the call, or after it was applied."""

from __future__ import annotations

import functools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from doorbuster import loading
from doorbuster.clock import Clock
from doorbuster.errors import UnavailableError, UnknownOutcomeError, nearest

__all__ = ["Flaky"]

_REFUSE: Final = "refuse"
_VANISH: Final = "vanish"
_DELAY: Final = "delay"


class Flaky:
    """Wraps a plugin instance; every hook of it goes on working until a fault is ordered.

    The wrapper offers exactly the hooks of the plugin, so it takes its place anywhere, for
    example in a flow: ``flow(deduct="stock", plugins={"stock": given(flaky)})``. Orders queue up
    per hook and each is used by one call. Safe for many threads.
    """

    def __init__(self, plugin: Any, clock: Clock | None = None) -> None:
        """Wrap ``plugin``; :meth:`delay` needs the manual clock that the test moves.

        Raises:
            ValueError: the plugin offers no hook.
        """
        self._plugin = plugin
        self._clock = clock
        self._lock = threading.Lock()
        self._orders: dict[str, deque[tuple[str, float]]] = defaultdict(deque)
        self.faults: list[tuple[str, str]] = []
        """The faults that happened, oldest first: (hook, ``refuse``, ``vanish`` or ``delay``)."""
        manager = loading.new_manager()
        self._hooks = []
        for name in dir(plugin):
            marks = manager.parse_hookimpl_opts(plugin, name)
            if marks is not None:
                hook = marks.get("specname") or name
                setattr(self, name, self._wrap(hook, getattr(plugin, name)))
                self._hooks.append(hook)
        if not self._hooks:
            raise ValueError(f"{type(plugin).__name__} offers no hook to fail")

    def __getattr__(self, name: str) -> Any:
        """What is no hook is the plugin's own: ``delivery``, ``on_fault``, ``close``."""
        return getattr(self._plugin, name)

    @property
    def hooks(self) -> Sequence[str]:
        """The hooks that can be made to fail."""
        return tuple(self._hooks)

    # ------------------------------------------------------------------ orders
    def refuse(self, hook: str, times: int = 1, *, after: int = 0) -> None:
        """Raise ``UnavailableError`` instead of the next ``times`` calls: nothing is applied.

        ``after`` calls go well first.
        """
        self._order(hook, _REFUSE, 0.0, times, after)

    def vanish(self, hook: str, times: int = 1, *, after: int = 0) -> None:
        """Apply the next ``times`` calls, then raise ``UnknownOutcomeError``: the answer is lost.

        ``after`` calls go well first.
        """
        self._order(hook, _VANISH, 0.0, times, after)

    def delay(self, hook: str, seconds: float, times: int = 1, *, after: int = 0) -> None:
        """Let ``seconds`` pass on the manual clock before the next ``times`` calls.

        Raises:
            ValueError: no clock was given.
        """
        if self._clock is None:
            raise ValueError("a delay needs the manual clock: Flaky(plugin, clock)")
        self._order(hook, _DELAY, seconds, times, after)

    def heal(self) -> None:
        """Forget every order that was not used yet."""
        with self._lock:
            self._orders.clear()

    def _order(self, hook: str, what: str, seconds: float, times: int, after: int) -> None:
        if hook not in self._hooks:
            hint = nearest(hook, self._hooks) or f"; it offers {', '.join(sorted(self._hooks))}"
            raise ValueError(f"{type(self._plugin).__name__} offers no {hook}{hint}")
        with self._lock:
            self._orders[hook] += [("", 0.0)] * after + [(what, seconds)] * times

    # ------------------------------------------------------------------ calls
    def _wrap(self, hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
        # wraps copies the hook's mark, and the signature that the loader compares
        @functools.wraps(call)
        def flaky(*values: Any, **named: Any) -> Any:
            what, seconds = self._next(hook)
            if what == _REFUSE:
                raise UnavailableError(f"{hook} is made to fail before anything is applied")
            if what == _DELAY and self._clock is not None:
                self._clock.wait(threading.Event(), seconds)
            answer = call(*values, **named)
            if what == _VANISH:
                raise UnknownOutcomeError(f"the answer of {hook} is made to vanish")
            return answer

        return flaky

    def _next(self, hook: str) -> tuple[str, float]:
        with self._lock:
            orders = self._orders[hook]
            found = orders.popleft() if orders else ("", 0.0)
            if found[0]:
                self.faults.append((hook, found[0]))
            return found
