"""One place that holds the settings in force, swaps them whole, and keeps the last good.

A reader takes ``store.snapshot`` once and works with that: one attribute, never two moments mixed
(G4). A reload builds everything aside and then assigns; whatever goes wrong before that changes
nothing, above all not a protection (G1).
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from doorbuster.clock import Clock, SystemClock
from doorbuster.errors import SettingError, SettingProblem
from doorbuster.logs import get_logger
from doorbuster.settings.convert import convert
from doorbuster.settings.layers import Layers, SourceFile, read_layers
from doorbuster.settings.types import Settings

__all__ = ["HISTORY_MAX", "SettingsStore", "Snapshot", "Subscriber", "digest_of"]

HISTORY_MAX: Final = 8
"""Snapshots kept, the one in force included: enough to see what the last changes were."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Snapshot(msgspec.Struct, frozen=True):
    """One configuration in force.

    ``version`` counts from 1 in this process; ``digest`` is the SHA-256 (hex) of the settings,
    equal on every node that runs the same; ``loaded_at`` is this host's time, in UTC.
    """

    version: int
    digest: str
    settings: Settings
    loaded_at: datetime


Subscriber = Callable[[Snapshot], None]
"""Called with the new snapshot after each swap, in the thread that reloads."""


def digest_of(settings: Settings) -> str:
    """Answer the SHA-256 in hex of the settings as JSON with sorted keys: equal if they are."""
    return hashlib.sha256(msgspec.json.encode(settings, order="deterministic")).hexdigest()


class SettingsStore:
    """Load a config folder and the environment; reload them safely. Thread-safe.

    :attr:`snapshot` is read without a lock. Loads, reloads and their notices run one after the
    other, so subscribers see versions in order.
    """

    def __init__(
        self,
        folder: Path | str | None,
        *,
        overrides: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        validate: Callable[[Settings], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Remember where the settings come from; nothing is read yet.

        Args:
            folder: the config folder; ``None``: no files.
            overrides: nested tables above every other layer, as from the command line.
            environ: the environment, read again at each load; ``None``: the process's own.
            validate: called with new settings before they are put in force, to build and compile
                what they name; whatever it raises refuses them.
            clock: gives ``loaded_at``.
        """
        self._folder = folder
        self._overrides = overrides
        self._environ = os.environ if environ is None else environ
        self._validate = validate
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._current: Snapshot | None = None
        self._files: Mapping[str, SourceFile] = {}
        self._error: Exception | None = None
        self._history: deque[Snapshot] = deque(maxlen=HISTORY_MAX)
        self._subscribers: list[Subscriber] = []
        self._log = get_logger("doorbuster.settings")

    @property
    def snapshot(self) -> Snapshot:
        """The configuration in force.

        Raises:
            RuntimeError: nothing was loaded yet.
        """
        current = self._current
        if current is None:
            raise RuntimeError("call load() first")
        return current

    @property
    def error(self) -> Exception | None:
        """Why the last load or reload was refused; ``None`` when it was good."""
        return self._error

    @property
    def history(self) -> Sequence[Snapshot]:
        """The last :data:`HISTORY_MAX` snapshots, oldest first, the one in force last."""
        with self._lock:
            return tuple(self._history)

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call ``callback`` after every swap from now on; call the answer to stop that.

        A callback that raises is logged, and the others still hear. It runs in the reloading
        thread, so it must be short, and must not reload.
        """
        with self._lock:
            self._subscribers = [*self._subscribers, callback]

        def cancel() -> None:
            with self._lock:
                self._subscribers = [kept for kept in self._subscribers if kept is not callback]

        return cancel

    def load(self) -> Snapshot:
        """Load for the first time; later calls answer the snapshot in force.

        Raises:
            SettingError: the settings are wrong; all problems together.
            Exception: what ``validate`` raised.
        """
        with self._lock:
            if self._current is None:
                try:
                    self._apply()
                except Exception as error:
                    self._error = error
                    raise
            return self.snapshot

    def reload(self) -> bool:
        """Read everything again and put it in force if it is good and different.

        Any fault keeps the last good snapshot, is logged, and stays in :attr:`error`. Missing or
        blanked files count as faults: a configuration never loses a protection by accident.

        Returns:
            True when a new snapshot is in force; False when nothing changed or it was refused.

        Raises:
            RuntimeError: nothing was loaded yet.
        """
        with self._lock:
            kept = self.snapshot
            try:
                return self._apply()
            except Exception as error:  # noqa: BLE001 - whatever it is, the last good must stay
                self._error = error
                self._log.error("settings refused", kept_version=kept.version, error=str(error))
                return False

    def _apply(self) -> bool:
        """Read, convert, validate; swap and notify when the digest is new."""
        layers = read_layers(self._folder, environ=self._environ, overrides=self._overrides)
        _refuse_losses(self._files, layers)
        settings = convert(layers.tree, layers.origin)
        digest = digest_of(settings)
        old = self._current
        changed = old is None or old.digest != digest
        if changed and self._validate is not None:
            self._validate(settings)
        self._files = layers.files
        self._error = None
        if changed:
            loaded_at = _EPOCH + timedelta(milliseconds=self._clock.wall_ms())
            version = 1 if old is None else old.version + 1
            self._current = Snapshot(version, digest, settings, loaded_at)
            self._history.append(self._current)
            self._notify(self._current)
        return changed

    def _notify(self, snapshot: Snapshot) -> None:
        self._log.info("settings in force", version=snapshot.version, digest=snapshot.digest)
        for callback in self._subscribers:
            try:
                callback(snapshot)
            except Exception as error:  # noqa: BLE001 - one listener must not silence the others
                self._log.error(
                    "settings subscriber failed", version=snapshot.version, error=str(error)
                )


def _refuse_losses(before: Mapping[str, SourceFile], layers: Layers) -> None:
    """Refuse a reload in which a file is gone, blank, or cut off inside a line (G1).

    A file cut at the end of a line cannot be told from an edit; that is why files are replaced by
    renaming a complete one, as the documentation asks.

    Raises:
        SettingError: naming each such file, and what to do if it was meant.
    """
    problems = []
    for name, old in before.items():
        new = layers.files.get(name)
        if new is None:
            text = "was there and is gone; the last good settings stay (restart if you mean it)"
        elif new.blank and not old.blank:
            text = "sets nothing any more; the last good settings stay (restart if you mean it)"
        elif _is_cut(old.text, new.text):
            text = (
                "looks half-written: it ends inside a line; end it with a new line if you mean it"
            )
        else:
            continue
        problems.append(SettingProblem(name, text))
    if problems:
        raise SettingError(problems)


def _is_cut(old: str, new: str) -> bool:
    shorter = len(new) < len(old) and old.startswith(new)
    return shorter and not new.endswith("\n") and old[len(new)] not in "\r\n"
