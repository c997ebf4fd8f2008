"""Convert the table ``sales.ID``, that is a file ``sales/ID.toml``, to a frozen sale."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

import msgspec

from doorbuster.errors import nearest
from doorbuster.model import PerBuyer, Sku
from doorbuster.settings.fields import (
    free_table,
    is_id,
    section,
    stages,
    table,
    whole_number,
)
from doorbuster.settings.report import Report
from doorbuster.settings.tree import Path
from doorbuster.settings.types import (
    CLOSED,
    DEFAULT_MODE,
    PluginSettings,
    Promise,
    SaleSettings,
    StageOverlay,
)

__all__ = ["modes", "plugins", "sale"]

_KEYS: Final = tuple(
    name.removesuffix("_ms") for name in SaleSettings.__struct_fields__ if name != "id"
)
_SKU_KEYS: Final = ("units", "per_buyer", "price_minor", "currency")
_CURRENCY: Final = re.compile(r"[A-Z]{3}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = "; a sku is its units, or a table { units, per_buyer, price_minor, currency }"


def sale(
    sale_id: str,
    value: Any,
    report: Report,
    *,
    shared_modes: Iterable[str],
    shared_plugins: Mapping[str, PluginSettings],
) -> SaleSettings:
    """Convert one sale; what is wrong goes to ``report`` under ``sales.ID``.

    Args:
        sale_id: the file's name.
        value: the sale's table.
        report: receives the problems.
        shared_modes: names under ``[modes]`` of the whole configuration.
        shared_plugins: ``[plugins]`` of the whole configuration, for the default of ``use``.
    """
    path = ("sales", sale_id)
    if not is_id(sale_id):
        report.add(path, "a sale id is 1-64 of A-Z a-z 0-9 _ -")
    found = table(value, path, report)
    for key in found:
        if key not in _KEYS:
            report.unknown((*path, key), _KEYS)
    words = {key: found[key] for key in ("mode", "promise", "degrade_to") if key in found}
    plain = section(_Words, words, path, report)
    own_modes = modes(found.get("modes", {}), (*path, "modes"), report)
    known = {DEFAULT_MODE, CLOSED, *shared_modes, *own_modes}
    for key in ("mode", "degrade_to"):
        name = getattr(plain, key)
        if name is not None and name not in known:
            hint = nearest(name, known) or f"; known: {', '.join(sorted(known))}"
            report.add((*path, key), f"no mode is named {name!r}{hint}")
    opens_at_ms, closes_at_ms = _window(found, path, report)
    return SaleSettings(
        id=sale_id,
        skus=_skus(found.get("skus", {}), (*path, "skus"), report),
        opens_at_ms=opens_at_ms,
        closes_at_ms=closes_at_ms,
        per_buyer=_per_buyer(found.get("per_buyer", {}), (*path, "per_buyer"), report),
        mode=plain.mode,
        promise=plain.promise,
        degrade_to=plain.degrade_to,
        options=free_table(found.get("options", {}), (*path, "options"), report),
        pipeline=stages(StageOverlay, found.get("pipeline", {}), (*path, "pipeline"), report),
        modes=own_modes,
        plugins=plugins(found.get("plugins", {}), (*path, "plugins"), report, shared_plugins),
    )


class _Words(msgspec.Struct, frozen=True):
    """The keys of a sale that hold one word, typed as in :class:`SaleSettings`."""

    mode: str = DEFAULT_MODE
    promise: Promise | None = None
    degrade_to: str | None = None


def modes(value: Any, path: Path, report: Report) -> dict[str, StageOverlay]:
    """Convert ``[modes.NAME]`` tables; ``normal`` and ``closed`` are not for config to define."""
    found = {}
    for name, overlay in table(value, path, report).items():
        here = (*path, name)
        if name == CLOSED:
            report.add(here, "is reserved: every sale has this mode, and it runs no stage")
        elif name == DEFAULT_MODE:
            report.add(here, "is [pipeline] itself; set the stages there")
        elif not is_id(name):
            report.add(here, "a mode's name is 1-64 of A-Z a-z 0-9 _ -")
        found[name] = stages(StageOverlay, overlay, here, report)
    return found


def plugins(
    value: Any, path: Path, report: Report, shared: Mapping[str, PluginSettings]
) -> dict[str, PluginSettings]:
    """Convert ``[plugins.NAME]`` tables: ``use``, and options that stay unconverted.

    ``use`` defaults to what the ``shared`` table of that name uses, else to NAME.
    """
    found = {}
    for name, item in table(value, path, report).items():
        here = (*path, name)
        if not is_id(name):
            report.add(here, "a plugin's name is 1-64 of A-Z a-z 0-9 _ -")
        options = free_table(item, here, report)
        use = options.pop("use", shared[name].use if name in shared else name)
        if not isinstance(use, str) or not use:
            report.wrong((*here, "use"), use, "the name of an installed plugin")
            use = name
        found[name] = PluginSettings(use=use, options=options)
    return found


def _skus(value: Any, path: Path, report: Report) -> dict[str, Sku]:
    found = {}
    listed = table(value, path, report)
    if isinstance(value, dict) and not listed:
        report.add(path, "missing; expected at least one sku, such as skus = { black = 10000 }")
    for sku_id, item in listed.items():
        here = (*path, sku_id)
        if not is_id(sku_id):
            report.add(here, "a sku id is 1-64 of A-Z a-z 0-9 _ -")
        found[sku_id] = _sku(sku_id, item, here, report)
    return found


def _sku(sku_id: str, value: Any, path: Path, report: Report) -> Sku:
    row = value if isinstance(value, dict) else {"units": value}
    for key in row:
        if key not in _SKU_KEYS:
            report.unknown((*path, key), _SKU_KEYS)
    numbers = {}
    for key, low, hint in (("units", 0, _UNITS), ("per_buyer", 1, ""), ("price_minor", 0, "")):
        if key in row:
            numbers[key] = whole_number(row[key], low, (*path, key), report, hint=hint)
    if "units" not in row:
        report.add((*path, "units"), "missing; expected the first total of this sku")
    currency = row.get("currency")
    if "currency" in row and not (isinstance(currency, str) and _CURRENCY.fullmatch(currency)):
        report.wrong((*path, "currency"), currency, 'three capital letters such as "EUR"')
    elif "price_minor" in row and currency is None:
        report.add((*path, "currency"), 'missing; a price needs one, such as currency = "EUR"')
    return Sku(
        sku_id,
        numbers.get("units") or 0,
        numbers.get("per_buyer"),
        numbers.get("price_minor"),
        currency if isinstance(currency, str) else None,
    )


def _per_buyer(value: Any, path: Path, report: Report) -> PerBuyer:
    if not isinstance(value, dict):
        hint = " (per sale), or a table of sku, sale, attempt"
        return PerBuyer(sale=whole_number(value, 1, path, report, hint=hint))
    known = PerBuyer.__struct_fields__
    limits = {}
    for key, limit in value.items():
        here = (*path, key)
        if key in known:
            limits[key] = whole_number(limit, 1, here, report, hint="; leave it out for no limit")
        else:
            report.unknown(here, known)
    return PerBuyer(**limits)


def _window(found: Mapping[str, Any], path: Path, report: Report) -> tuple[int | None, int | None]:
    opens, closes = (
        _moment_ms(found[key], (*path, key), report) if key in found else None
        for key in ("opens_at", "closes_at")
    )
    if opens is not None and closes is not None and closes <= opens:
        expected = f"a time after opens_at ({found['opens_at']})"
        report.wrong((*path, "closes_at"), found["closes_at"], expected)
    return opens, closes


def _moment_ms(value: Any, path: Path, report: Report) -> int | None:
    """Answer milliseconds since 1970 of a date and time that says its offset from UTC."""
    moment = value
    if isinstance(value, str):  # the environment and the command line have only text
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            moment = None
    if not isinstance(moment, datetime):
        part = "the time too" if isinstance(value, date) else "a date and time"
        part = "the date too" if isinstance(value, time) else part
        report.wrong(path, value, f"{part}, such as 2026-11-11T20:00:00Z")
        return None
    if moment.tzinfo is None:
        text = "an offset, for clocks differ: add Z for UTC, or such as +08:00"
        report.wrong(path, value, text)
        return None
    return (moment - _EPOCH) // timedelta(milliseconds=1)
