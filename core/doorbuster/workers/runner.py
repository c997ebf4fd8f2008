"""Runs roles in threads, each with its own back-off, until told to stop or nothing is left."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from doorbuster.errors import BackendError, ConfigError, nearest
from doorbuster.logs import get_logger
from doorbuster.workers.compensate import Compensate
from doorbuster.workers.persist import Persist
from doorbuster.workers.reconcile import Reconcile
from doorbuster.workers.resolve import Resolve
from doorbuster.workers.role import Role, Tools
from doorbuster.workers.topup import TopUp

__all__ = ["ROLES", "Runner", "build_roles"]

ROLES: Final[Mapping[str, Callable[[Tools], Role]]] = {
    "persist": Persist,
    "compensate": Compensate,
    "topup": TopUp,
    "resolve": Resolve,
    "reconcile": Reconcile,
}
"""Every role by name, in the order ``--roles all`` starts them."""

_BACKOFF_MAX_S: Final = 5.0
_DRAIN_STEP_S: Final = 0.05


def build_roles(names: Sequence[str], tools: Tools) -> list[Role]:
    """Build roles by name.

    Raises:
        ConfigError: an unknown role; it names the known ones and the nearest.
    """
    if any(not name for name in names):
        raise ConfigError(f"a role without a name; known: {', '.join(ROLES)}")
    for name in names:
        if name not in ROLES:
            raise ConfigError(f"no role {name!r}{nearest(name, ROLES)}; known: {', '.join(ROLES)}")
    return [ROLES[name](tools) for name in names]


class Runner:
    """Owns the threads of some roles."""

    def __init__(self, roles: Sequence[Role], tools: Tools) -> None:
        """Start nothing yet."""
        self._roles = roles
        self._tools = tools
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._log = get_logger("doorbuster.workers")

    def start(self) -> None:
        """Start a thread per role."""
        self._threads = [
            threading.Thread(target=self._loop, args=(role,), name=f"role-{role.name}", daemon=True)
            for role in self._roles
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let each role finish its piece, then end the threads. Stopping twice is once."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._threads:
            for role in self._roles:
                self._step(role, 0, role.finish)
        self._threads = []

    def _loop(self, role: Role) -> None:
        failures = 0
        while not self._stop.is_set():
            worked, failures = self._step(role, failures)
            if failures:
                self._tools.clock.wait(self._stop, _pause(failures))
            elif not (worked and role.hurries):
                self._tools.clock.wait(self._stop, self._tools.settings.idle_ms / 1000)

    def _step(
        self, role: Role, failures: int, step: Callable[[], bool | None] | None = None
    ) -> tuple[bool, int]:
        try:
            return bool((step or role.run_once)()), 0
        except BaseException as error:
            ctrl_c = isinstance(error, KeyboardInterrupt)
            if ctrl_c and threading.current_thread() is threading.main_thread():
                raise  # a person at the terminal; of a plugin it is a fault like any other
            self._log.warning(
                "role failed", role=role.name, error=f"{type(error).__name__}: {error}"
            )
            self._tools.alarm(f"role-{role.name}-failed", "warning", None, error=str(error))
            return False, failures + 1

    def drain(self, *, progress: Callable[[int], None] = lambda left: None) -> int:
        """Run the roles in this thread until none has anything left; answer what is left.

        Leases of a dead process are waited for; work that keeps failing for longer than a lease
        and a half is given up, and counted in the answer (at least 1 when it cannot be counted).
        """
        clock, patience_s = self._tools.clock, self._tools.settings.lease_s * 1.5 + 1
        moved_s = clock.monotonic_s()
        failures, left = 0, 1
        while True:
            steps = [self._step(role, failures) for role in self._roles]
            try:
                left = sum(role.waiting() for role in self._roles)
            except BackendError as error:
                self._log.warning("cannot count what is left", error=str(error))
                steps.append((False, failures + 1))
            progress(left)
            worked = any(did for did, _ in steps)
            failures = max(failed for _, failed in steps)
            if not left and not worked and not failures:
                return 0
            if worked:
                moved_s = clock.monotonic_s()
                continue
            if self._stop.is_set() or clock.monotonic_s() - moved_s > patience_s:
                return left
            clock.wait(self._stop, max(_DRAIN_STEP_S, _pause(failures) if failures else 0))


def _pause(failures: int) -> float:
    """Full jitter, doubled per failure, bounded."""
    return random.random() * min(_BACKOFF_MAX_S, 0.1 * float(2 ** min(failures, 10)))
