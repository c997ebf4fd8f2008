"""A plugin's options table, converted to its own frozen ``Options``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from doorbuster.errors import SettingError
from doorbuster.settings.fields import converted
from doorbuster.settings.report import Report, expectation
from doorbuster.settings.tree import Path

__all__ = ["convert_options"]

T = TypeVar("T", bound=msgspec.Struct)


def convert_options(kind: type[T], raw: Mapping[str, Any], path: Path) -> T:
    """Convert ``raw`` to ``kind``; ``path`` is the table's dotted key, as a tuple.

    Raises:
        SettingError: every problem at once: unknown keys, wrong values, missing ones.
    """
    report = Report(lambda _: None)
    values = converted(kind, raw, path, report)
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in raw:
            report.add((*path, field.name), f"is missing; expected {expectation(field.type)}")
    if report.problems:
        raise SettingError(report.problems)
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:  # the plugin's own __post_init__ refused
        report.add(path, str(error))
        raise SettingError(report.problems) from error
