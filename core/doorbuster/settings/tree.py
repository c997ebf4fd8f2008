"""A configuration before it is typed: nested tables, and how one layer covers another."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

__all__ = ["DEPTH_MAX", "Path", "Tree", "dotted", "is_deep", "merge", "nodes"]

Tree: TypeAlias = dict[str, Any]
"""Tables as dicts; keys keep their case, for sale and sku ids have one."""

Path: TypeAlias = tuple[str, ...]
"""The keys from the root to a value."""

DEPTH_MAX: Final = 32
"""Tables within tables: far more than any setting needs, far less than recursion bears."""


def dotted(path: Path) -> str:
    """Write ``path`` as people write it: ``sales.phone-x.skus.black.units``."""
    return ".".join(path)


def merge(old: Any, new: Any, path: Path = ()) -> Any:
    """Cover ``old`` with ``new``: tables merge by key, lists and scalars are replaced.

    A shorthand that a table covers is first written out, so that ``per_buyer = 1`` in the sale
    and ``DOORBUSTER_SALES__X__PER_BUYER__ATTEMPT=2`` together keep both limits.

    Returns:
        A new value that shares nothing with ``old`` or ``new``.
    """
    if not isinstance(new, Mapping):
        return copy.deepcopy(new)
    if not isinstance(old, Mapping):
        old = _written_out(old, path)
    merged = {key: copy.deepcopy(value) for key, value in old.items() if key not in new}
    for key, value in new.items():
        merged[key] = merge(old.get(key), value, (*path, key))
    return merged


def _written_out(value: Any, path: Path) -> Tree:
    """Turn ``per_buyer = 1`` and ``black = 10`` into the table they stand for."""
    if value is None or path[:1] != ("sales",):
        return {}
    if len(path) == 3 and path[2] == "per_buyer":
        return {"sale": value}
    if len(path) == 4 and path[2] == "skus":
        return {"units": value}
    return {}


def nodes(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Walk every table, list and scalar below ``value``, each with its path.

    List elements are numbered from 0. The root itself is not answered.
    """
    items = (
        value.items()
        if isinstance(value, Mapping)
        else enumerate(value)
        if isinstance(value, (list, tuple))
        else ()
    )
    for key, item in items:
        here = (*path, str(key))
        yield here, item
        yield from nodes(item, here)


def is_deep(value: Any) -> bool:
    """Answer whether ``value`` nests deeper than :data:`DEPTH_MAX`. Does not recurse itself."""
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [
            item
            for outer in level
            if isinstance(outer, (dict, list))
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)
