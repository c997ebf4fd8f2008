"""Faults as exceptions; expected answers are values (see :mod:`doorbuster.outcomes`).

Every class's docstring is its default message. A backend fault is one of two kinds, and the
difference is the whole point: *surely not applied* or *maybe applied*.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Sequence
from typing import Self

__all__ = [
    "BackendError",
    "ConfigError",
    "ContractError",
    "DoorbusterError",
    "PermanentError",
    "PluginNotInstalledError",
    "SettingError",
    "SettingProblem",
    "UnavailableError",
    "UnknownOutcomeError",
    "UnknownPluginError",
    "UnknownSaleError",
    "WiringError",
    "nearest",
]


class DoorbusterError(Exception):
    """Something went wrong in doorbuster."""

    def __init__(
        self,
        message: str | None = None,
        *,
        sale: str | None = None,
        stage: str | None = None,
        plugin: str | None = None,
    ) -> None:
        """Take the docstring as message when none is given; keep where it happened."""
        super().__init__(message or (inspect.getdoc(type(self)) or "").partition("\n")[0])
        self.sale = sale
        self.stage = stage
        self.plugin = plugin


class ConfigError(DoorbusterError, ValueError):
    """The configuration is not usable."""


class SettingProblem(tuple[str, str]):
    """One problem: ``(key, text)``; ``key`` is the full dotted key, the text says what to do."""

    __slots__ = ()

    def __new__(cls, key: str, text: str) -> Self:
        """Pair the full dotted key with what is wrong and what is expected."""
        return super().__new__(cls, (key, text))

    @property
    def key(self) -> str:
        """The full dotted key."""
        return self[0]

    def __str__(self) -> str:
        """``key: text``, one line."""
        return f"{self[0]}: {self[1]}" if self[0] else self[1]


class SettingError(ConfigError):
    """Settings are wrong. All problems are reported together, each with its full dotted key."""

    def __init__(self, problems: Iterable[SettingProblem]) -> None:
        """Collect ``problems`` (at least one) into one message, a line each."""
        self.problems: Sequence[SettingProblem] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UnknownPluginError(ConfigError):
    """No plugin of this name is installed."""

    def __init__(self, name: str, known: Iterable[str], *, where: str = "") -> None:
        """Name the known plugins and the nearest to ``name``."""
        names = sorted(known)
        at = f"{where}: " if where else ""
        super().__init__(
            f"{at}no plugin is named {name!r}{nearest(name, names)}; known: {', '.join(names)}",
            plugin=name,
        )


class PluginNotInstalledError(ConfigError, ImportError):
    """A plugin needs a package that is not installed."""

    def __init__(self, name: str, *, extra: str | None, missing: str, where: str = "") -> None:
        """Say what to install: the extra when the plugin is ours, else the missing module."""
        at = f"{where}: " if where else ""
        remedy = (
            f"pip install 'doorbuster[{extra}]'" if extra else f"install what provides {missing!r}"
        )
        super().__init__(f"{at}plugin {name!r} needs module {missing!r}: {remedy}", plugin=name)


class WiringError(ConfigError):
    """The stages of a mode do not fit together."""


class UnknownSaleError(DoorbusterError, LookupError):
    """No sale of this id is in the ledger."""

    def __init__(self, sale: str, known: Iterable[str] = ()) -> None:
        """Name the known sales and the nearest to ``sale``."""
        names = sorted(known)
        tail = f"; known: {', '.join(names)}" if names else "; create it with 'sale start'"
        super().__init__(f"no sale {sale!r}{nearest(sale, names)}{tail}", sale=sale)


class ContractError(DoorbusterError):
    """A plugin broke its stage's contract (count or type of its answers). This is a bug in it."""


class BackendError(DoorbusterError):
    """A backend failed. Always raised ``from`` the driver's own exception."""


class UnavailableError(BackendError):
    """The backend is not available; certainly nothing was applied."""


class UnknownOutcomeError(BackendError):
    """The call may have been applied; it is settled by identity, never retried blindly."""


class PermanentError(BackendError):
    """The backend refuses for good (auth, schema, script mismatch); certainly not applied."""


def nearest(word: str, words: Iterable[str]) -> str:
    """Answer `` (did you mean 'x'?)`` for the word nearest to ``word``, or nothing."""
    found = difflib.get_close_matches(word, list(words), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
