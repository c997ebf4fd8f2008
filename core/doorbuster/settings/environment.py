"""The environment layer: ``DOORBUSTER_LEDGER__URL`` is ``ledger.url``.

dynaconf casts the values (TOML rules, else text). It is given one flat name per variable and
nothing else: no files, no other variables, no nesting, because its own nesting changes case and
merges ``Black`` into ``black`` (docs/decisions/0003).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from dynaconf import Dynaconf  # type: ignore[import-untyped]  # ships no types
from dynaconf.utils.parse_conf import (  # type: ignore[import-untyped]  # as above
    boolean_fix,
    converters,
)

from doorbuster.errors import SettingProblem, nearest
from doorbuster.settings.tree import Path, Tree, dotted, merge, nodes
from doorbuster.settings.types import Settings, StageSettings

__all__ = ["PREFIX", "is_token", "variables"]

PREFIX: Final = "DOORBUSTER_"
"""Every variable with this prefix is a setting, and one that is not is an error."""

_TESTS: Final = "DOORBUSTER_TEST_"  # servers of the test suites, not settings
_SECTIONS: Final = tuple(field.name for field in msgspec.structs.fields(Settings))
_STAGES: Final = tuple(field.name for field in msgspec.structs.fields(StageSettings))


def is_token(value: Any) -> bool:
    """Answer whether dynaconf would evaluate ``value`` (``@format``, ``@jinja`` ...; X11)."""
    return isinstance(value, str) and value.partition(" ")[0] in converters


def variables(
    environ: Mapping[str, str], tree: Tree, problems: list[SettingProblem]
) -> list[tuple[str, Path, Any]]:
    """Read the ``DOORBUSTER_*`` variables, in the order of their names.

    A part of a name finds the key of ``tree`` that is equal but for case and for ``-`` against
    ``_`` (``PHONE_X`` is ``phone-x``); the very key wins; no key: the part in lower case.

    Args:
        environ: the environment; only names with :data:`PREFIX` are looked at.
        tree: the layers below, whose keys the names may refer to.
        problems: receives what is wrong, by variable.

    Returns:
        ``(variable, path, value)`` for each usable variable.
    """
    found: list[tuple[str, Path, Any]] = []
    by_path: dict[Path, str] = {}
    names = sorted(n for n in environ if n.startswith(PREFIX) and not n.startswith(_TESTS))
    values = _cast({name: environ[name] for name in names if not is_token(environ[name])})
    for name in names:
        path = _path(name, tree, problems)
        if path is None:
            continue
        if name not in values or any(is_token(item) for _, item in nodes(values[name])):
            problems.append(SettingProblem(name, "holds an @token; no token is evaluated here"))
            continue
        if path in by_path:
            text = f"is {dotted(path)}, and so is {by_path[path]}; keep one"
            problems.append(SettingProblem(name, text))
            continue
        by_path[path] = name
        value = values[name]
        if _is_text(path) and not isinstance(value, str):
            value = environ[name]  # a key of digits only is still text
        found.append((name, path, value))
        tree = merge(tree, table_at(path, value))
    return found


def table_at(path: Path, value: Any) -> Tree:
    """Answer the tree that holds just ``value`` at ``path``."""
    for key in reversed(path):
        value = {key: value}
    table: Tree = value
    return table


def _cast(texts: Mapping[str, str]) -> dict[str, Any]:
    """Let a new dynaconf cast ``texts``, shut off from files and from other variables."""
    if not texts:
        return {}
    reader = Dynaconf(
        settings_files=[],
        settings_file=[],
        secrets=None,
        includes=[],
        preload=[],
        core_loaders=[],
        loaders=[],
        load_dotenv=False,
        environments=False,
        envvar_prefix=None,
        auto_cast=True,
        merge_enabled=False,
        nested_separator=False,
        dotted_lookup=False,
    )
    # Numbered names: dynaconf upper-cases names, and some of them would configure dynaconf.
    for number, text in enumerate(texts.values()):
        reader.set(f"V{number}", boolean_fix(text), tomlfy=True, validate=False)
    cast: Mapping[str, Any] = reader.as_dict()
    return {name: cast[f"V{number}"] for number, name in enumerate(texts)}


def _path(name: str, tree: Tree, problems: list[SettingProblem]) -> Path | None:
    parts = name.removeprefix(PREFIX).split("__")
    section = parts[0].lower()
    if section not in _SECTIONS or not all(parts):
        known = "" if section in _SECTIONS else f"{nearest(section, _SECTIONS)}"
        text = f"names no setting{known}; known: {', '.join(_SECTIONS)}, then __ and the key"
        problems.append(SettingProblem(name, text))
        return None
    path: Path = (section,)
    node: Any = tree.get(section)
    for part in parts[1:]:
        keys = set(node) if isinstance(node, Mapping) else set()
        if path[-1] == "plugins" and len(path) in (1, 3):
            keys |= _named_plugins(tree)
        fits = [part] if part in keys else [key for key in keys if _plain(key) == _plain(part)]
        if len(fits) > 1:
            text = f"{part} may be any of {', '.join(sorted(fits))}; write the very key"
            problems.append(SettingProblem(name, text))
            return None
        key = fits[0] if fits else part.lower()
        path = (*path, key)
        node = node.get(key) if isinstance(node, Mapping) else None
    return path


def _plain(key: str) -> str:
    return key.lower().replace("-", "_")


def _named_plugins(tree: Tree) -> set[str]:
    """Collect the plugin names of every stage: a variable may be a plugin's first option."""
    names = {value for value in msgspec.to_builtins(StageSettings()).values() if value}
    names = {name for name in names if isinstance(name, str)}
    tables = [tree, *_tables(tree.get("sales"))]
    for table in tables:
        for stages in (table.get("pipeline"), *_tables(table.get("modes"))):
            if isinstance(stages, Mapping):
                for stage in _STAGES:
                    value = stages.get(stage)
                    listed = value if isinstance(value, list) else [value]
                    names.update(item for item in listed if isinstance(item, str))
    return names


def _tables(value: Any) -> Iterable[Mapping[str, Any]]:
    if not isinstance(value, Mapping):
        return ()
    return [item for item in value.values() if isinstance(item, Mapping)]


def _is_text(path: Path) -> bool:
    """Answer whether the setting at ``path`` is text, so that its digits must stay text."""
    if path[0] == "sales":
        return path[2:] in (("mode",), ("degrade_to",))
    kind: Any = Settings
    for key in path:
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            return False
        kind = {field.name: field.type for field in msgspec.structs.fields(kind)}.get(key)
    return kind in (str, str | None)
