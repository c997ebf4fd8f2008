"""What a sale runs on, mode by mode: base, then the sale's own, then the mode. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from doorbuster.errors import UnknownSaleError
from doorbuster.settings.tree import merge
from doorbuster.settings.types import (
    DEFAULT_MODE,
    INHERIT,
    PluginSettings,
    SaleSettings,
    Settings,
    StageOverlay,
    StageSettings,
)

__all__ = ["key_of", "modes_of", "plugin_of"]

_NOTHING = StageOverlay()


def modes_of(settings: Settings, sale_id: str) -> Mapping[str, StageSettings]:
    """Answer the stages of every mode of a sale, ``normal`` first (design.md 7).

    ``normal`` is ``[pipeline]`` under the sale's ``[pipeline]``; another mode lies over that, the
    global ``[modes.NAME]`` first and the sale's own over it. ``"..."`` in a list of gates is the
    list inherited so far. The reserved mode ``closed`` runs no stage and is not answered.

    Raises:
        UnknownSaleError: no such sale is configured.
    """
    sale = _sale(settings, sale_id)
    normal = _over(settings.pipeline, sale.pipeline)
    modes = {DEFAULT_MODE: normal}
    for name in (*settings.modes, *sale.modes):
        shared = _over(normal, settings.modes.get(name, _NOTHING))
        modes[name] = _over(shared, sale.modes.get(name, _NOTHING))
    return modes


def key_of(settings: Settings, sale_id: str, mode: str, *stages: str, gate: str = "") -> str:
    """Answer the full dotted key under which a word of a sale's mode stands.

    Layers are asked from the most specific to the base: the sale's own mode, the global mode,
    the sale's ``[pipeline]``, ``[pipeline]``. Of several ``stages``, for a problem of a pair, the
    first that the most specific layer sets counts; of a list of gates, the list that has ``gate``.

    Raises:
        UnknownSaleError: no such sale is configured.
    """
    sale = _sale(settings, sale_id)
    layers: list[tuple[str, StageOverlay]] = [(f"sales.{sale_id}.pipeline", sale.pipeline)]
    if mode != DEFAULT_MODE:
        layers = [
            (f"sales.{sale_id}.modes.{mode}", sale.modes.get(mode, _NOTHING)),
            (f"modes.{mode}", settings.modes.get(mode, _NOTHING)),
            *layers,
        ]
    for table, overlay in layers:
        for stage in stages:
            value = getattr(overlay, stage)
            if value is not None and (not gate or gate in value):
                return f"{table}.{stage}"
    return f"pipeline.{stages[0]}"


def plugin_of(settings: Settings, sale_id: str, name: str) -> tuple[PluginSettings, str | None]:
    """Answer the settings of the plugin instance that ``sale_id`` uses under ``name``.

    A sale's ``[plugins.NAME]`` is an instance of its own: its options cover the global table's
    by key. When it names another entry point it starts from nothing, for the options of one
    class mean nothing to another.

    Returns:
        The settings (``use=name`` without options when no table is there), and the sale's id
        when the instance is its own, else ``None``.

    Raises:
        UnknownSaleError: no such sale is configured.
    """
    own = _sale(settings, sale_id).plugins.get(name)
    shared = settings.plugins.get(name)
    if own is None:
        return shared or PluginSettings(use=name), None
    if shared is None or shared.use != own.use:
        return own, sale_id
    return PluginSettings(use=own.use, options=merge(shared.options, own.options)), sale_id


def _sale(settings: Settings, sale_id: str) -> SaleSettings:
    try:
        return settings.sales[sale_id]
    except KeyError:
        raise UnknownSaleError(sale_id, settings.sales) from None


def _over(base: StageSettings, overlay: StageOverlay) -> StageSettings:
    changes = {
        name: value
        for name in overlay.__struct_fields__
        if (value := getattr(overlay, name)) is not None
    }
    for stage in ("filter", "limit"):
        if stage in changes:
            changes[stage] = _gates(changes[stage], getattr(base, stage))
    return msgspec.structs.replace(base, **changes)


def _gates(listed: tuple[str, ...], inherited: tuple[str, ...]) -> tuple[str, ...]:
    if INHERIT not in listed:
        return listed
    at = listed.index(INHERIT)
    return (*listed[:at], *inherited, *listed[at + 1 :])
