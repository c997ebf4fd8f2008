"""Options that many commands share, so that one word means one thing everywhere."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

__all__ = [
    "DEFAULT_FOLDER",
    "Actor",
    "Config",
    "Json",
    "Limit",
    "OneSale",
    "SaleId",
    "Url",
    "actor_name",
]

DEFAULT_FOLDER = "config"
"""The config folder that is used when none is named."""

_WHERE = "Where"

Config: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="DIR",
        help="The config folder. Default: config.",
        show_default=False,
        rich_help_panel=_WHERE,
    ),
]
Url: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The ledger's database. Default: what the config says, "
        "else sqlite:///doorbuster.db, a file in the working folder.",
        show_default=False,
        rich_help_panel=_WHERE,
    ),
]
Json: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON object and nothing else.", rich_help_panel="Output"
    ),
]
SaleId: TypeAlias = Annotated[str, typer.Argument(metavar="SALE", help="The sale's id.")]
OneSale: TypeAlias = Annotated[
    str | None,
    typer.Option("--sale", metavar="SALE", help="Only this sale.", show_default=False),
]
Limit: TypeAlias = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most.")]
Actor: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--actor",
        metavar="NAME",
        help="Who asks, for the audit. Default: your user name.",
        show_default=False,
    ),
]


def actor_name(given: str | None) -> str:
    """Answer who asks: ``given``, else the user of this process; at most 64 characters."""
    try:
        return (given or getpass.getuser())[:64]
    except (KeyError, OSError):  # a container may run a number without a name
        return "cli"
