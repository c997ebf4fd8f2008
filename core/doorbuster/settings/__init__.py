"""Configuration: layers of files and variables become one frozen, typed :class:`Settings`.

:class:`SettingsStore` is the way in; the rest are its steps, each usable alone: read the layers,
convert them, overlay the modes of a sale, show them without secrets.
"""

from doorbuster.settings.convert import convert
from doorbuster.settings.layers import Layers, read_layers
from doorbuster.settings.options import convert_options
from doorbuster.settings.overlay import modes_of, plugin_of
from doorbuster.settings.show import describe
from doorbuster.settings.store import SettingsStore, Snapshot, Subscriber, digest_of
from doorbuster.settings.types import (
    CLOSED,
    DEFAULT_MODE,
    INHERIT,
    Door,
    Http,
    Keys,
    LedgerSettings,
    Log,
    PluginSettings,
    Promise,
    SaleSettings,
    Settings,
    StageOverlay,
    StageSettings,
    Workers,
)

__all__ = [
    "CLOSED",
    "DEFAULT_MODE",
    "INHERIT",
    "Door",
    "Http",
    "Keys",
    "Layers",
    "LedgerSettings",
    "Log",
    "PluginSettings",
    "Promise",
    "SaleSettings",
    "Settings",
    "SettingsStore",
    "Snapshot",
    "StageOverlay",
    "StageSettings",
    "Subscriber",
    "Workers",
    "convert",
    "convert_options",
    "describe",
    "digest_of",
    "modes_of",
    "plugin_of",
    "read_layers",
]
