"""Plugins by name: find the installed ones, import one, convert its options, bind its hooks.

Only a name that config uses is imported, so one broken plugin cannot stop another sale's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Protocol, TypeAlias

from pluggy import HookImpl, PluginManager, PluginValidationError

from doorbuster import hookspecs
from doorbuster.context import PluginOptions
from doorbuster.errors import (
    ConfigError,
    PluginNotInstalledError,
    SettingError,
    SettingProblem,
    UnknownPluginError,
    WiringError,
    nearest,
)
from doorbuster.settings import PluginSettings, Settings, convert_options, plugin_of
from doorbuster.tiers import Problems, UnfitError, check_fault

__all__ = [
    "GROUP",
    "Given",
    "Installed",
    "bind_hook",
    "check_table",
    "configured",
    "find_entry_points",
    "find_hooks",
    "load_class",
    "new_manager",
    "register",
    "scan",
    "table_of",
]

GROUP: Final = "doorbuster.plugins"
_SPECS: Final = (
    hookspecs.Stages,
    hookspecs.Holder,
    hookspecs.Journal,
    hookspecs.Broker,
    hookspecs.PersistExtras,
    hookspecs.Observers,
)
_EXTRAS: Final = {  # module -> extra, for plugins of this distribution
    "redis": "redis",
    "kafka": "kafka",
    "psycopg": "postgres",
    "pymysql": "mysql",
    "cachetools": "cache",
    "pytest": "testing",
    "hypothesis": "testing",
}


class Installed(Protocol):
    """A plugin that can be had by name: an entry point, or a class that a program gives."""

    @property
    def name(self) -> str:
        """The word config uses."""
        ...

    @property
    def value(self) -> str:
        """Where it is from, for messages."""
        ...

    def load(self) -> Any:
        """Import it; answers its class."""
        ...


Given: TypeAlias = Mapping[str, type[Any]]
"""Classes of the program itself by the word config uses: plugins without a distribution."""


class _OfProgram:
    """A class that the program gives, as if it were installed."""

    def __init__(self, name: str, cls: type[Any]) -> None:
        self.name = name
        self.value = f"{cls.__module__}:{cls.__qualname__}"
        self._cls = cls

    def load(self) -> type[Any]:
        return self._cls


def scan(given: Given | None = None) -> tuple[Installed, ...]:
    """All installed plugins, also two of one name, and those ``given``.

    Imports none of them; takes 12 ms.
    """
    own = (_OfProgram(name, cls) for name, cls in (given or {}).items())
    return (*entry_points(group=GROUP), *own)


def find_entry_points() -> dict[str, EntryPoint]:
    """All installed plugins by name, without importing any of them."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load_class(
    use: str, *, where: str = "", installed: Collection[Installed] | None = None
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


def configured(
    settings: Settings, name: str, owner: str | None, installed: Collection[Installed]
) -> tuple[type[Any], Any, str]:
    """Answer the class of a plugin, its options and its ``on_fault`` word; build nothing.

    Args:
        settings: the whole configuration.
        name: the word config uses.
        owner: the sale whose own instance it is, or ``None``.
        installed: what :func:`scan` found.

    Raises:
        UnfitError: no class; under the table that names it, without a key when none does.
        SettingError: every problem of the options, each with the key that sets it.
    """
    declared = _declared(settings, name, owner)
    try:
        cls = load_class(declared.use, installed=installed)
    except ConfigError as error:
        table = table_of(settings, name, owner)
        key = f"{table}.use" if table and declared.use != name else table
        raise UnfitError([SettingProblem(key, str(error))]) from error
    here = f"sales.{owner}.plugins.{name}" if owner else f"plugins.{name}"
    try:
        return cls, *_options(cls, declared.options, here)
    except SettingError as error:
        raise SettingError(_where_set(p, settings, name, owner) for p in error.problems) from error


def check_table(
    settings: Settings,
    name: str,
    owner: str | None,
    installed: Collection[Installed],
    problems: Problems,
) -> None:
    """A ``[plugins.NAME]`` names what is installed and its options convert, used or not.

    What a global table lacks its sales may give: then only what it has is judged.
    """
    try:
        configured(settings, name, owner, installed)
    except UnfitError as error:
        problems.take(error)
    except SettingError as error:
        found = error.problems
        if owner is None and any(_covers(settings, name, sale) for sale in settings.sales):
            has = {f"plugins.{name}.{option}" for option in settings.plugins[name].options}
            found = [p for p in found if ".".join(p.key.split(".")[:3]) in has]
        problems.take(SettingError(found))


def table_of(settings: Settings, name: str, owner: str | None) -> str:
    """Answer the table that says which plugin ``name`` is; nothing when the name itself does."""
    if owner is not None and not _covers(settings, name, owner):
        return f"sales.{owner}.plugins.{name}"
    return f"plugins.{name}" if name in settings.plugins else ""


def _declared(settings: Settings, name: str, owner: str | None) -> PluginSettings:
    if owner is None:
        return settings.plugins.get(name) or PluginSettings(use=name)
    return plugin_of(settings, owner, name)[0]


def _covers(settings: Settings, name: str, sale_id: str) -> bool:
    """Whether a sale's table lies over the global one, so that only both are complete."""
    own, shared = settings.sales[sale_id].plugins.get(name), settings.plugins.get(name)
    return own is not None and shared is not None and own.use == shared.use


def _where_set(
    problem: SettingProblem, settings: Settings, name: str, owner: str | None
) -> SettingProblem:
    """A problem of a sale's instance, under the global table when the option stands there."""
    if owner is None or not _covers(settings, name, owner):
        return problem
    option = problem.key.removeprefix(f"sales.{owner}.plugins.{name}.").partition(".")[0]
    own = settings.sales[owner].plugins[name].options
    if option in own or option not in settings.plugins[name].options:
        return problem
    return SettingProblem(problem.key.removeprefix(f"sales.{owner}."), problem[1])


def _options(cls: type[Any], raw: Mapping[str, Any], table: str) -> tuple[Any, str]:
    """Convert a plugin's table to its ``Options``, and answer its ``on_fault`` word beside them.

    ``on_fault`` is an option of every plugin; a class may declare it among its own.

    Raises:
        SettingError: every problem, each under ``table``, the full dotted key.
    """
    kind = getattr(cls, "Options", PluginOptions)
    rest, options, problems = dict(raw), None, Problems()
    own_fault = "on_fault" in getattr(kind, "__struct_fields__", ())
    chosen = None if own_fault else rest.pop("on_fault", None)
    try:
        options = convert_options(kind, rest, tuple(table.split(".")))
    except SettingError as error:
        problems.take(error)
    said = (chosen, getattr(options, "on_fault", None), getattr(cls, "on_fault", None))
    word = next((word for word in said if word is not None), "closed")
    try:
        word = check_fault(word, cls, table)
    except SettingError as error:
        problems.take(error)
    if problems:
        raise problems.refusal()
    return options, word


def new_manager() -> PluginManager:
    """Make the register of built plugins, which knows every hook."""
    manager = PluginManager(hookspecs.PROJECT)
    for spec in _SPECS:
        manager.add_hookspecs(spec)
    return manager


def register(
    manager: PluginManager, instance: Any, full: str, use: str
) -> dict[str, Callable[..., Any]]:
    """Register a built plugin under ``full``, and answer its hook methods by name.

    Raises:
        UnfitError: every hook that does not fit, without a key.
    """
    hooks, texts = find_hooks(manager, instance, full, use)
    if texts:
        raise UnfitError(SettingProblem("", text) for text in texts)
    try:
        manager.register(instance, name=full)
    except (PluginValidationError, ValueError) as error:
        text = f"plugin {use!r} ({full}) does not fit the hooks: {error}"
        raise UnfitError([SettingProblem("", text)]) from error
    return hooks


def find_hooks(
    manager: PluginManager, instance: Any, full: str, use: str
) -> tuple[dict[str, Callable[..., Any]], list[str]]:
    """Answer the hook methods of ``instance`` by name, and what is wrong with the others.

    Its own look at the methods, for pluggy stops at the first problem and names objects.
    """
    known = sorted(name for name in vars(manager.hook) if not name.startswith("_"))
    hooks: dict[str, Callable[..., Any]] = {}
    problems: list[str] = []
    for name in dir(instance):
        marks = manager.parse_hookimpl_opts(instance, name)
        if marks is None:
            continue
        hook = marks.get("specname") or name
        caller = getattr(manager.hook, hook, None)
        if caller is None:
            hint = nearest(hook, known) or f"; known: {', '.join(known)}"
            problems.append(f"plugin {use!r}: no hook is named {hook!r}{hint}")
            continue
        try:
            impl = HookImpl(instance, full, getattr(instance, name), marks)
            hooks[hook] = bind_hook(impl, caller, use)
        except WiringError as error:
            problems.append(str(error))
    return hooks, problems


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
        return function  # type: ignore[no-any-return]  # the hook's own signature was compared
    if set(impl.argnames) < set(wanted) and caller.name not in vars(hookspecs.Stages):
        picks = [wanted.index(name) for name in impl.argnames]
        return lambda *values: function(*[values[n] for n in picks])
    raise WiringError(
        f"{where}: takes ({', '.join(impl.argnames)}), expected ({', '.join(wanted)})",
        plugin=use,
    )
