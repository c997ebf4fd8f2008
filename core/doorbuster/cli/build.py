"""``plugins``: what is installed, what each plugin does, and what it can be told."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from doorbuster.cli.options import Json
from doorbuster.cli.output import Output, grid, table

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import msgspec
    from rich.console import Console

__all__ = ["info", "list_plugins"]

_MARKS: Final = re.compile(r"(?::\w+:)?`+~?([^`]*)`+")
_RULES: Final = re.compile(r"\s*\([^()]*(?:\b[A-Z]\d+\b|\w\.md\b|\bdesign:)[^()]*\)")
_STAGES: Final = ("filter", "limit", "deduct", "enqueue", "persist", "compensate")


def list_plugins(as_json: Json = False) -> None:
    """List the plugins that are installed, with the stages each one serves."""
    from doorbuster.errors import ConfigError
    from doorbuster.loading import find_entry_points

    found = []
    for point in sorted(find_entry_points().values(), key=lambda point: point.name):
        try:
            described = _describe(point)
        except ConfigError as error:  # one that cannot be imported is said, and the rest listed
            described = {"name": point.name, "error": str(error), **_origin(point)}
        found.append(
            {
                name: value
                for name, value in described.items()
                if name not in ("options", "hooks", "problems")
            }
        )

    def human(console: Console) -> None:
        shown = table("=name", "stages", "kind", "what it does", "from")
        for item in found:
            shown.add_row(
                item["name"],
                ", ".join(item.get("stages", ())),
                item.get("tier") or item.get("delivery") or "",
                item.get("error") or item.get("summary", ""),
                item["distribution"].partition(" ")[0],
                style="red" if "error" in item else None,
            )
        console.print(shown)

    Output(as_json=as_json).result({"plugins": found}, human)


def info(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The word that config uses.")],
    as_json: Json = False,
) -> None:
    """Show one plugin: its stages, its tier or delivery, its options with their defaults.

    Exit 1 when its hooks do not fit: what is wrong with them is said.
    """
    from doorbuster.errors import UnknownPluginError
    from doorbuster.loading import find_entry_points

    points = find_entry_points()
    if name not in points:
        raise UnknownPluginError(name, points)
    found = _describe(points[name])

    def human(console: Console) -> None:
        console.print(found["name"], style="bold")
        console.print(found["summary"], markup=False)
        console.print()
        told = {
            "stages": ", ".join(found["stages"]),
            "tier": found["tier"],
            "delivery": found["delivery"],
            "on_fault": found["on_fault"],
            "hooks": ", ".join(found["hooks"]),
            "from": f"{found['distribution']} ({found['class']})",
        }
        console.print(grid({key: value for key, value in told.items() if value}))
        for problem in found["problems"]:
            console.print(f"problem: {problem}", style="bold red", markup=False)
        if not found["options"]:
            console.print("\nno options")
            return
        options = table("option", "takes", "default", "", title=f"\n[plugins.{name}]")
        options.title = f"Options, under \\[plugins.{name}]"
        for option in found["options"]:
            default = "required" if option["required"] else _shown(option["default"])
            options.add_row(option["name"], option["takes"], default, option["doc"])
        console.print()
        console.print(options)

    Output(as_json=as_json).result(found, human)
    if found["problems"]:
        raise typer.Exit(1)


def _shown(default: Any) -> str:
    import msgspec

    return "-" if default is None else msgspec.json.encode(default).decode()


def _origin(point: EntryPoint) -> dict[str, str]:
    distribution = point.dist
    named = f"{distribution.name} {distribution.version}" if distribution else "unknown"
    return {"class": point.value, "distribution": named}


def _describe(point: EntryPoint) -> dict[str, Any]:
    """Describe one plugin from its class, without building it.

    Raises:
        ConfigError: it cannot be imported; the message says what to install.
    """
    from doorbuster.cli.fitting import problems
    from doorbuster.hookspecs import Delivery
    from doorbuster.loading import load_class
    from doorbuster.tiers import Bound

    cls = load_class(point.name)
    hooks = _hooks(cls)
    delivery = getattr(cls, "delivery", None)
    stages = [stage for stage in _STAGES if stage in hooks]
    if isinstance(delivery, Delivery) and "enqueue" not in stages:
        stages.append("enqueue")  # only a broker has methods of its own
    bound = Bound(
        point.name, point.name, None, cls, {hook: getattr(cls, hook) for hook in hooks}, ""
    )
    gate = "filter" in hooks or "limit" in hooks
    return {
        "name": point.name,
        "summary": _summary(cls, point.name),
        "stages": stages,
        "tier": str(bound.tier) if "deduct" in hooks else None,
        "delivery": delivery.value if isinstance(delivery, Delivery) else None,
        "on_fault": str(getattr(cls, "on_fault", "closed")) if gate else None,
        "hooks": hooks,
        "problems": problems(cls, bound),
        "options": _options(getattr(cls, "Options", None)),
        **_origin(point),
    }


def _summary(cls: type[Any], name: str) -> str:
    """The first paragraph of a class's docstring, as plain words, without the name before it."""
    text = (inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", " ")
    return _plain(text).removeprefix(f"{name}: ")


def _plain(text: str) -> str:
    """For operators: without the marks of markup, and without the codes of rules in brackets."""
    return _RULES.sub("", _MARKS.sub(r"\1", text))


def _hooks(cls: type[Any]) -> list[str]:
    """Names of the methods that carry the mark of ``@hookimpl``."""
    from doorbuster.hookspecs import PROJECT

    return [name for name in dir(cls) if hasattr(getattr(cls, name, None), f"{PROJECT}_impl")]


def _options(kind: type[msgspec.Struct] | None) -> list[dict[str, Any]]:
    import msgspec

    from doorbuster.settings.report import expectation

    if kind is None:
        return []
    docs = _field_docs(kind)
    found = []
    for field in msgspec.structs.fields(kind):
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        found.append(
            {
                "name": field.name,
                "takes": expectation(field.type),
                "required": field.required,
                "default": None if field.required else msgspec.to_builtins(default),
                "doc": docs.get(field.name, ""),
            }
        )
    return found


def _field_docs(kind: type[Any]) -> Mapping[str, str]:
    """The texts that stand under the fields of a class; none when its source is not there."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, SyntaxError, TypeError):
        return {}
    (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef)] or ([],)
    docs = {}
    for field, text in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            docs[field.target.id] = _plain(" ".join(str(text.value.value).split()))
    return docs
