"""Collect every problem of a configuration, each with its full dotted key and its origin."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from doorbuster.errors import SettingProblem, nearest
from doorbuster.settings.secrets import HIDDEN, is_secret, mask
from doorbuster.settings.tree import Path, dotted

__all__ = ["Report", "expectation"]

_SHOWN_MAX: Final = 60  # characters of a wrong value in a message


class Report:
    """The problems found so far. Nothing here raises, so that one run finds them all."""

    def __init__(self, origin: Callable[[Path], str | None]) -> None:
        """``origin`` names the file or variable that set a path, or ``None``."""
        self.problems: list[SettingProblem] = []
        self._origin = origin

    def add(self, path: Path, text: str) -> None:
        """Note ``text`` for ``path``."""
        origin = self._origin(path)
        told = f"{text} (in {origin})" if origin else text
        self.problems.append(SettingProblem(dotted(path), told))

    def wrong(self, path: Path, value: Any, expected: str) -> None:
        """Note that ``value`` is not what is expected; a secret is not shown."""
        self.add(path, f"got {_shown(path, value)}; expected {expected}")

    def unknown(self, path: Path, known: Iterable[str]) -> None:
        """Note a key that means nothing, with the nearest one that does. Shows no value."""
        names = sorted(known)
        hint = nearest(path[-1], names) or f"; known: {', '.join(names)}"
        self.add(path, f"unknown key{hint}")


def _shown(path: Path, value: Any) -> str:
    if any(is_secret(key) for key in path[-1:] + path[:1]):
        return HIDDEN
    if isinstance(value, bool):
        return str(value).lower()  # as TOML writes it
    if isinstance(value, (int, float, str, list, dict)):
        text = repr(mask(path[-1], value))
    else:
        text = str(value)  # dates and times read better this way
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}..."


def expectation(kind: Any) -> str:
    """Say in words what a field of type ``kind`` takes: ``a whole number from 1``."""
    return _words(msgspec.inspect.type_info(kind))


def _words(info: Any) -> str:
    match info:
        case msgspec.inspect.UnionType():
            kinds = [t for t in info.types if not isinstance(t, msgspec.inspect.NoneType)]
            return " or ".join(_words(kind) for kind in kinds)
        case msgspec.inspect.IntType():
            return f"a whole number{_bounds(info)}"
        case msgspec.inspect.FloatType():
            return f"a number{_bounds(info)}"
        case msgspec.inspect.LiteralType():
            return f"one of {', '.join(map(repr, info.values))}"
        case msgspec.inspect.StrType():
            return "text"
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.CollectionType():
            inner = info.item_type
            return "a list of texts" if isinstance(inner, msgspec.inspect.StrType) else "a list"
        case msgspec.inspect.DictType() | msgspec.inspect.StructType():
            return "a table"
        case msgspec.inspect.EnumType():
            return f"one of {', '.join(repr(member.value) for member in info.cls)}"
        case _:
            return "another kind of value"


def _bounds(info: Any) -> str:
    low = f" from {info.ge}" if info.ge is not None else ""
    low = f" above {info.gt}" if info.gt is not None else low
    high = f" to {info.le}" if info.le is not None else ""
    high = f" and below {info.lt}" if info.lt is not None else high
    return low + high
