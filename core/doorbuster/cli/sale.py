"""``sale``: the life of a sale, one command per step. Each is safe to run again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from doorbuster.cli.demo_sale import DEMO_SALE
from doorbuster.cli.options import Actor, Config, Json, SaleId, Url, actor_name
from doorbuster.cli.output import Output, grid, table

if TYPE_CHECKING:
    from rich.console import Console

    from doorbuster.engine import Engine

__all__ = [
    "create",
    "end",
    "list_sales",
    "open_sale",
    "pause",
    "restock",
    "resume",
    "start",
    "status",
    "warmup",
]

_CHANGE: Final = re.compile(r"[+-][0-9]{1,9}")


def start(
    sale: SaleId, actor: Actor = None, config: Config = None, url: Url = None, as_json: Json = False
) -> None:
    """Create, warm up and open a sale of the config: all steps in one."""
    _do(lambda engine, who: engine.sales.start(sale, actor=who), sale, actor, config, url, as_json)


def create(
    sale: SaleId,
    again: Annotated[
        bool, typer.Option("--again", help="The next run of a sale that has ended.")
    ] = False,
    actor: Actor = None,
    config: Config = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Write a sale of the config to the ledger; nothing can be bought yet."""

    def step(engine: Engine, who: str) -> object:
        return engine.sales.create(sale, actor=who, again=again)

    _do(step, sale, actor, config, url, as_json)


def warmup(
    sale: SaleId, actor: Actor = None, config: Config = None, url: Url = None, as_json: Json = False
) -> None:
    """Bring the units of a created sale to the backend that will sell them."""
    _do(
        lambda engine, who: engine.sales.warm_up(sale, actor=who), sale, actor, config, url, as_json
    )


def open_sale(
    sale: SaleId, actor: Actor = None, config: Config = None, url: Url = None, as_json: Json = False
) -> None:
    """Let buyers in, as far as the sale's window does."""
    _do(lambda engine, who: engine.sales.open(sale, actor=who), sale, actor, config, url, as_json)


def pause(
    sale: SaleId, actor: Actor = None, config: Config = None, url: Url = None, as_json: Json = False
) -> None:
    """Close the entrance for now; what was accepted goes on to its order."""
    _do(lambda engine, who: engine.sales.pause(sale, actor=who), sale, actor, config, url, as_json)


def resume(
    sale: SaleId, actor: Actor = None, config: Config = None, url: Url = None, as_json: Json = False
) -> None:
    """Open the entrance of a paused sale again."""
    _do(lambda engine, who: engine.sales.resume(sale, actor=who), sale, actor, config, url, as_json)


def end(
    sale: SaleId, actor: Actor = None, config: Config = None, url: Url = None, as_json: Json = False
) -> None:
    """End a sale for good; what was accepted goes on to its order."""
    _do(lambda engine, who: engine.sales.end(sale, actor=who), sale, actor, config, url, as_json)


def restock(
    sale: SaleId,
    sku: Annotated[str, typer.Argument(metavar="SKU", help="Which sku.")],
    change: Annotated[
        str, typer.Argument(metavar="+N|-N", help="Units to add, or to take away if free.")
    ],
    restock_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="Applied once per id, however often it is run.",
            show_default=False,
        ),
    ] = None,
    actor: Actor = None,
    config: Config = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Change how many units a sale has, while it sells."""
    from doorbuster.errors import ConfigError

    if not _CHANGE.fullmatch(change):
        raise ConfigError(f"{change!r} is no change of units; give +N to add or -N to take away")

    def step(engine: Engine, who: str) -> object:
        return engine.sales.restock(sale, sku, int(change), actor=who, restock_id=restock_id)

    _do(step, sale, actor, config, url, as_json)


def status(sale: SaleId, config: Config = None, url: Url = None, as_json: Json = False) -> None:
    """Show a sale: its state, its mode, its units, what was accepted."""
    _do(lambda engine, who: None, sale, None, config, url, as_json, follow=False)


def list_sales(config: Config = None, url: Url = None, as_json: Json = False) -> None:
    """List the sales of the config and of the ledger."""
    from doorbuster.cli.session import find_source, has_folder, open_engine

    output = Output(as_json=as_json)
    # a folder has sales of its own to list, started or not
    source = find_source(config, url, output, or_demo=not has_folder())
    with open_engine(source, follow=False) as engine:
        rows = {row.sale: row for row in engine.ledger.sales()}
        found: list[dict[str, Any]] = []
        for sale_id in sorted({*rows, *engine.settings.sales}):
            row = rows.get(sale_id)
            settings = engine.settings.sales.get(sale_id)
            skus = {} if settings is None else settings.skus
            if row is not None:
                skus = engine.ledger.skus(row)
            found.append(
                {
                    "sale": sale_id,
                    "state": "not started" if row is None else str(row.state),
                    "run": None if row is None else row.run,
                    "mode": settings.mode if row is None and settings else row and row.effective,
                    "units": {sku.id: sku.units for sku in skus.values()},
                    "configured": settings is not None,
                }
            )

    def human(console: Console) -> None:
        shown = table("sale", "state", "mode", ">units", "")
        for item in found:
            units = ", ".join(f"{sku} {n:,}" for sku, n in item["units"].items())
            note = "" if item["configured"] else "not in the config"
            shown.add_row(item["sale"], item["state"], str(item["mode"] or ""), units, note)
        console.print(shown if found else "no sales: `doorbuster init` writes one")

    output.result({"sales": found}, human)


def _do(
    step: Callable[[Engine, str], object],
    sale: str,
    actor: str | None,
    config: Path | None,
    url: str | None,
    as_json: bool,
    *,
    follow: bool = True,
) -> None:
    """Run one step on a sale, then show the sale."""
    from doorbuster.cli.session import find_source, open_engine

    output = Output(as_json=as_json)
    or_demo = not follow and sale == DEMO_SALE  # to look, never to change
    with open_engine(find_source(config, url, output, or_demo=or_demo), follow=follow) as engine:
        step(engine, actor_name(actor))
        shown = engine.sales.status(sale)
    output.result(shown, lambda console: _show(console, shown))


def _show(console: Console, shown: Mapping[str, Any]) -> None:
    units = table("sku", ">units", ">sold", ">left", ">to be withdrawn")
    for sku in shown["skus"]:
        left = sku["unallocated"] + sku["free"]
        numbers = (sku["total"], sku["accepted"], left, sku["wanted"])
        units.add_row(sku["sku"], *(f"{n:,}" for n in numbers))
    counts = shown["counts"]
    mode = shown["mode"]
    word = mode["effective"] + (f" (fuse: {mode['fuse']})" if mode["fuse"] else "")
    console.print(
        grid(
            {
                "sale": shown["sale"],
                "state": shown["state"],
                "run": shown["run"],
                "mode": word,
                "sold by": f"plugin {shown['deduct']}, epoch {shown['epoch']}",
                "promise": shown["promise"] or "not in the config",
                "orders": f"{counts['orders']:,}, and {counts['reserved']:,} to be written",
                "balanced": "yes" if shown["balanced"] else "NO: run doorbuster reconcile",
            }
        )
    )
    console.print(units)
