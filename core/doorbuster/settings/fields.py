"""Convert one table or one value, strictly: a bool is not a number, ``"5"`` is not 5 (X8)."""

from __future__ import annotations

import copy
import math
from typing import Any, Final, TypeVar

import msgspec

from doorbuster.model import ID_PATTERN, QUANTITY_MAX
from doorbuster.settings.report import Report, expectation
from doorbuster.settings.tree import Path, nodes
from doorbuster.settings.types import INHERIT, StageOverlay, StageSettings

__all__ = ["converted", "free_table", "is_id", "section", "stages", "table", "whole_number"]

T = TypeVar("T", bound=msgspec.Struct)
S = TypeVar("S", StageSettings, StageOverlay)

_INT64: Final = 1 << 63
_ID: Final = "a name of 1-64 of A-Z a-z 0-9 _ -"


def section(kind: type[T], value: Any, path: Path, report: Report) -> T:
    """Convert a table to ``kind``, field by field; a field in error keeps its default."""
    return kind(**converted(kind, value, path, report))


def converted(kind: type[T], value: Any, path: Path, report: Report) -> dict[str, Any]:
    """Convert the fields of ``kind`` that a table has; what is unknown or wrong is reported."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    values = {}
    for name, item in table(value, path, report).items():
        here = (*path, name)
        if name not in fields:
            report.unknown(here, fields)
            continue
        try:
            if isinstance(item, float) and not math.isfinite(item):
                raise msgspec.ValidationError  # TOML has inf and nan, a bound or a pause has not
            values[name] = msgspec.convert(item, fields[name])
        except msgspec.ValidationError:
            report.wrong(here, item, expectation(fields[name]))
    return values


def stages(kind: type[S], value: Any, path: Path, report: Report) -> S:
    """Convert ``[pipeline]`` or an overlay, and check the plugin names in it.

    ``"..."`` stands at most once in a list of gates, and only in an overlay: the base inherits
    nothing. Whether the plugins exist is for the wiring to say.
    """
    found = section(kind, value, path, report)
    inherits_max = 1 if kind is StageOverlay else 0
    for stage in ("filter", "limit"):
        listed = getattr(found, stage) or ()
        if listed.count(INHERIT) > inherits_max:
            text = "a list that inherits once at most" if inherits_max else "no '...' in the base"
            report.wrong((*path, stage), list(listed), f"{text}: '...' is the inherited list")
        for name in listed:
            if name != INHERIT and not is_id(name):
                report.wrong((*path, stage), name, _ID)
    for stage in ("deduct", "enqueue", "persist"):
        name = getattr(found, stage)
        if name is not None and not is_id(name):
            report.wrong((*path, stage), name, _ID)
    return found


def table(value: Any, path: Path, report: Report) -> dict[str, Any]:
    """Answer ``value`` when it is a table, else note it and answer an empty one."""
    if isinstance(value, dict):
        return value
    report.wrong(path, value, "a table")
    return {}


def free_table(value: Any, path: Path, report: Report) -> dict[str, Any]:
    """Copy a table whose keys are somebody else's: a plugin's options, a server's settings.

    Numbers must be finite and fit 64 bits, or the snapshot's digest could not tell them apart.
    """
    found = table(value, path, report)
    for where, item in nodes(found, path):
        if isinstance(item, float) and not math.isfinite(item):
            report.wrong(where, item, "a finite number")
        elif isinstance(item, int) and not -_INT64 <= item < _INT64:
            report.wrong(where, item, "a whole number of 64 bits")
    return copy.deepcopy(found)


def whole_number(value: Any, low: int, path: Path, report: Report, *, hint: str = "") -> int | None:
    """Answer a whole number from ``low`` to :data:`QUANTITY_MAX`, else note it (X8)."""
    if type(value) is int and low <= value <= QUANTITY_MAX:
        return value
    report.wrong(path, value, f"a whole number from {low} to {QUANTITY_MAX}{hint}")
    return None


def is_id(value: Any) -> bool:
    """Answer whether ``value`` may name something: such names become parts of keys (X3)."""
    return isinstance(value, str) and ID_PATTERN.fullmatch(value) is not None
