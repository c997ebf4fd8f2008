"""``plugins``: what is installed, what each plugin does, and what it can be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from doorbuster.cli.described import SURVIVES, describe, origin
from doorbuster.cli.options import Json
from doorbuster.cli.output import Output, grid, table

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["info", "list_plugins"]

_IN_LIST: Final = (
    *("name", "summary", "stages", "tier", "delivery", "on_fault"),
    *("error", "class", "distribution"),
)


def list_plugins(as_json: Json = False) -> None:
    """List the plugins that are installed, with the stages each one serves."""
    from doorbuster.errors import ConfigError
    from doorbuster.loading import find_entry_points

    found = []
    for point in sorted(find_entry_points().values(), key=lambda point: point.name):
        try:
            described = describe(point)
        except ConfigError as error:  # one that cannot be imported is said, and the rest listed
            described = {"name": point.name, "error": str(error), **origin(point)}
        found.append({name: described[name] for name in _IN_LIST if name in described})

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
    """Show one plugin: its stages, what it promises, its options with their defaults.

    Of the optional hooks that it does not offer, it says what that costs.

    Exit 1 when its hooks do not fit: what is wrong with them is said.
    """
    from doorbuster.errors import UnknownPluginError
    from doorbuster.loading import find_entry_points

    points = find_entry_points()
    if name not in points:
        raise UnknownPluginError(name, points)
    found = describe(points[name])

    Output(as_json=as_json).result(found, lambda console: _show(console, found))
    if found["problems"]:
        raise typer.Exit(1)


def _show(console: Console, found: dict[str, Any]) -> None:
    """Print what :func:`doorbuster.cli.described.describe` answered, for a person."""
    console.print(found["name"], style="bold", markup=False)
    console.print(found["summary"], markup=False)
    console.print()
    promises = found["promise"] or {}
    told = {
        "stages": ", ".join(found["stages"]),
        "tier": found["tier"],
        "delivery": found["delivery"],
        "promise": "\n".join(_promise(*pair) for pair in promises.items()) or "-",
        "on_fault": found["on_fault"] or "-",
        "hooks": ", ".join(found["hooks"]),
        "from": f"{found['distribution']} ({found['class']})",
    }
    console.print(grid({key: value for key, value in told.items() if value}))
    for problem in found["problems"]:
        console.print(f"problem: {problem}", style="bold red", markup=False)
    if found["not_offered"]:
        lacks = table("=hook", "without it", title="Optional hooks that it does not offer")
        for item in found["not_offered"]:
            lacks.add_row(item["hook"], item["costs"])
        console.print()
        console.print(lacks)
    if not found["options"]:
        console.print("\nno options")
        return
    title = f"Options, under \\[plugins.{found['name']}]"
    options = table("=option", "takes", "default", "", title=title)
    for option in found["options"]:
        default = "required" if option["required"] else _shown(option["default"])
        options.add_row(option["name"], option["takes"], default, option["doc"])
    console.print()
    console.print(options)


def _promise(journal: str, promise: str | None) -> str:
    if promise is None:
        return f"journal {journal}: -"
    return f"journal {journal}: {promise}; ACCEPTED survives {SURVIVES.get(promise, '?')}"


def _shown(default: Any) -> str:
    import msgspec

    return "-" if default is None else msgspec.json.encode(default).decode()
