"""Plugins by name: find the installed ones, import one, bind its hook methods.

Only a name that config uses is imported, so one broken plugin cannot stop another sale's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from doorbuster import hookspecs
from doorbuster.errors import (
    ConfigError,
    PluginNotInstalledError,
    UnknownPluginError,
    WiringError,
)

__all__ = ["GROUP", "bind_hook", "find_entry_points", "load_class", "scan"]

GROUP: Final = "doorbuster.plugins"
_EXTRAS: Final = {  # module -> extra, for plugins of this distribution
    "redis": "redis",
    "kafka": "kafka",
    "psycopg": "postgres",
    "pymysql": "mysql",
    "cachetools": "cache",
    "pytest": "testing",
    "hypothesis": "testing",
}


def scan() -> tuple[EntryPoint, ...]:
    """All installed plugins, also two of one name. Imports none of them; takes 12 ms."""
    return tuple(entry_points(group=GROUP))


def find_entry_points() -> dict[str, EntryPoint]:
    """All installed plugins by name, without importing any of them."""
    return {point.name: point for point in scan()}


def load_class(
    use: str, *, where: str = "", installed: Collection[EntryPoint] | None = None
) -> type[Any]:
    """Import the class of one plugin, of those ``installed`` (default: scan for them).

    Raises:
        UnknownPluginError: it names the known ones and the nearest.
        PluginNotInstalledError: it names the extra to install.
        ConfigError: its own import failed, it is no class, or two are installed by that name.
    """
    at = f"{where}: " if where else ""
    if installed is None:
        installed = scan()
    points = {point.value: point for point in installed if point.name == use}
    if not points:
        raise UnknownPluginError(use, {point.name for point in installed}, where=where)
    if len(points) > 1:
        raise ConfigError(
            f"{at}several plugins are named {use!r}: {', '.join(sorted(points))}; "
            "uninstall all but one",
            plugin=use,
        )
    ((value, point),) = points.items()
    try:
        found = point.load()
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        raise PluginNotInstalledError(
            use, extra=_EXTRAS.get(module), missing=error.name or "?", where=where
        ) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{at}plugin {use!r} ({value}) cannot be imported: {type(error).__name__}: {error}",
            plugin=use,
        ) from error
    if not isinstance(found, type):
        raise ConfigError(f"{at}plugin {use!r} ({value}) is not a class", plugin=use)
    return found


def bind_hook(impl: Any, caller: Any, use: str) -> Callable[..., Any]:
    """One hook method as a plain call in the order of its spec."""
    where = f"plugin {use!r}, hook {caller.name!r}"
    function = impl.function
    if impl.hookwrapper or impl.wrapper or impl.tryfirst or impl.trylast:
        raise WiringError(
            f"{where}: wrappers and ordering flags are refused; the config list is the order",
            plugin=use,
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise WiringError(
            f"{where}: a stage is synchronous; write 'def', and do I/O in it directly", plugin=use
        )
    if inspect.isgeneratorfunction(function):
        raise WiringError(
            f"{where}: a stage answers a sequence; build a list instead of yielding", plugin=use
        )
    wanted = tuple(caller.spec.argnames)
    if tuple(impl.argnames) == wanted:
        return function  # type: ignore[no-any-return]
    if set(impl.argnames) < set(wanted) and caller.name not in vars(hookspecs.Stages):
        picks = [wanted.index(name) for name in impl.argnames]
        return lambda *values: function(*[values[n] for n in picks])
    raise WiringError(
        f"{where}: takes ({', '.join(impl.argnames)}), expected ({', '.join(wanted)})",
        plugin=use,
    )
