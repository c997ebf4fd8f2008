"""Tree to typed, frozen :class:`Settings`, field by field: every problem is found in one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from doorbuster.errors import SettingError
from doorbuster.settings.fields import free_table, is_id, section, stages, table
from doorbuster.settings.report import Report
from doorbuster.settings.sales import modes, plugins, sale
from doorbuster.settings.tree import Path
from doorbuster.settings.types import (
    Door,
    Http,
    Keys,
    LedgerSettings,
    Log,
    Settings,
    StageSettings,
    Workers,
)

__all__ = ["KEY_LENGTH_MIN", "convert"]

KEY_LENGTH_MIN: Final = 16
"""Characters of ``keys.current``: below that an order number could be guessed (X16)."""

_DATABASES: Final = ("sqlite", "postgresql", "mysql", "mariadb")
_KNOWN: Final = tuple(field.name for field in msgspec.structs.fields(Settings))


def _unknown_origin(path: Path) -> str | None:
    return None


def convert(
    tree: Mapping[str, Any], origin: Callable[[Path], str | None] = _unknown_origin
) -> Settings:
    """Convert a merged tree to settings.

    Args:
        tree: nested tables as :func:`~doorbuster.settings.layers.read_layers` merges them.
        origin: names the file or variable that set a path, for the messages.

    Returns:
        Settings that share nothing mutable with ``tree``.

    Raises:
        SettingError: all problems together, each with its full dotted key, the value (never a
            secret's), what is expected, the nearest known name, and where it was set.
    """
    report = Report(origin)
    for key in tree:
        if key not in _KNOWN:
            report.unknown((key,), _KNOWN)
    base = section(_Base, {k: tree[k] for k in ("environment",) if k in tree}, (), report)
    if not is_id(base.environment):
        report.wrong(("environment",), base.environment, "1-64 of A-Z a-z 0-9 _ -")
    shared_modes = modes(tree.get("modes", {}), ("modes",), report)
    shared_plugins = plugins(tree.get("plugins", {}), ("plugins",), report, {})
    settings = Settings(
        environment=base.environment,
        ledger=_ledger(tree.get("ledger", {}), report),
        keys=_keys(tree.get("keys", {}), report),
        door=section(Door, tree.get("door", {}), ("door",), report),
        workers=section(Workers, tree.get("workers", {}), ("workers",), report),
        log=section(Log, tree.get("log", {}), ("log",), report),
        http=section(Http, tree.get("http", {}), ("http",), report),
        pipeline=stages(StageSettings, tree.get("pipeline", {}), ("pipeline",), report),
        plugins=shared_plugins,
        modes=shared_modes,
        servers=_servers(tree.get("servers", {}), report),
        sales={
            sale_id: sale(
                sale_id, value, report, shared_modes=shared_modes, shared_plugins=shared_plugins
            )
            for sale_id, value in table(tree.get("sales", {}), ("sales",), report).items()
        },
    )
    if report.problems:
        raise SettingError(report.problems)
    return settings


class _Base(msgspec.Struct, frozen=True):
    """The keys that stand outside every section."""

    environment: str = Settings().environment


def _ledger(value: Any, report: Report) -> LedgerSettings:
    ledger = section(LedgerSettings, value, ("ledger",), report)
    scheme, separator, _ = ledger.url.partition("://")
    if not separator or scheme.partition("+")[0] not in _DATABASES:
        expected = f"a URL of {', '.join(_DATABASES)}, such as sqlite:///doorbuster.db"
        report.add(("ledger", "url"), f"expected {expected}")  # not shown: it may hold a password
    return ledger


def _keys(value: Any, report: Report) -> Keys:
    keys = section(Keys, value, ("keys",), report)
    if keys.current is not None and len(keys.current) < KEY_LENGTH_MIN:
        report.wrong(("keys", "current"), keys.current, f"at least {KEY_LENGTH_MIN} characters")
    return keys


def _servers(value: Any, report: Report) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for name, server in table(value, ("servers",), report).items():
        path = ("servers", name)
        if not is_id(name):
            report.add(path, "a server's name is 1-64 of A-Z a-z 0-9 _ -")
        found[name] = free_table(server, path, report)
    return found
