"""Settings as plain JSON for ``config show``: every default filled in, no secret."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from doorbuster.model import PerBuyer, Sku
from doorbuster.settings.overlay import modes_of, plugin_of
from doorbuster.settings.secrets import mask
from doorbuster.settings.types import PluginSettings, SaleSettings, Settings

__all__ = ["describe"]


def describe(settings: Settings) -> dict[str, Any]:
    """Describe ``settings`` as JSON-able tables; secrets are ``"***"`` (X9).

    Returns:
        One key per section, with defaults. ``sales`` maps an id to ``skus`` (sku to units),
        ``per_buyer`` (as config writes it: a number per sale, a table, or null for no limit),
        ``mode``, ``modes`` (every mode with its full stage settings), ``opens_at`` and
        ``closes_at`` (ISO 8601 in UTC, or null), ``sku_per_buyer`` and ``prices`` (only the skus
        that have them), ``promise``, ``degrade_to``, ``options``, and ``plugins`` (the sale's own
        instances with inherited options).
    """
    shown: dict[str, Any] = {
        name: mask(name, msgspec.to_builtins(value))
        for name, value in msgspec.structs.asdict(settings).items()
        if name not in ("plugins", "modes", "sales")
    }
    shown["plugins"] = _plugins(settings.plugins)
    shown["modes"] = {
        name: {
            stage: value
            for stage, value in msgspec.to_builtins(overlay).items()
            if value is not None
        }
        for name, overlay in settings.modes.items()
    }
    shown["sales"] = {sale_id: _sale(settings, sale) for sale_id, sale in settings.sales.items()}
    return shown


def _sale(settings: Settings, sale: SaleSettings) -> dict[str, Any]:
    own = {name: plugin_of(settings, sale.id, name)[0] for name in sale.plugins}
    return {
        "skus": {sku.id: sku.units for sku in sale.skus.values()},
        "per_buyer": _per_buyer(sale.per_buyer),
        "sku_per_buyer": {
            sku.id: sku.per_buyer for sku in sale.skus.values() if sku.per_buyer is not None
        },
        "prices": {
            sku.id: _price(sku) for sku in sale.skus.values() if sku.price_minor is not None
        },
        "opens_at": _iso(sale.opens_at_ms),
        "closes_at": _iso(sale.closes_at_ms),
        "mode": sale.mode,
        "promise": sale.promise,
        "degrade_to": sale.degrade_to,
        "options": mask("options", msgspec.to_builtins(sale.options)),
        "modes": {
            name: msgspec.to_builtins(stages)
            for name, stages in modes_of(settings, sale.id).items()
        },
        "plugins": _plugins(own),
    }


def _plugins(plugins: Mapping[str, PluginSettings]) -> dict[str, Any]:
    return {
        name: {"use": plugin.use, **mask(name, msgspec.to_builtins(plugin.options))}
        for name, plugin in plugins.items()
    }


def _per_buyer(limits: PerBuyer) -> int | dict[str, int] | None:
    known = {name: limit for name, limit in msgspec.structs.asdict(limits).items() if limit}
    return known["sale"] if known.keys() == {"sale"} else known or None


def _price(sku: Sku) -> dict[str, Any]:
    return {"price_minor": sku.price_minor, "currency": sku.currency}


def _iso(moment_ms: int | None) -> str | None:
    if moment_ms is None:
        return None
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=moment_ms)
    return moment.isoformat().replace("+00:00", "Z")
