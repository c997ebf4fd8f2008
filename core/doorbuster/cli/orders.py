"""``orders``: what was bought, and what became of one order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from doorbuster.cli.operate import time_text
from doorbuster.cli.options import Config, Json, Limit, OneSale, Url
from doorbuster.cli.output import Output, grid, table

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["list_orders", "show"]


def list_orders(
    sale: OneSale = None,
    buyer: Annotated[
        str | None, typer.Option(metavar="BUYER", help="Only this buyer's.", show_default=False)
    ] = None,
    limit: Limit = 20,
    config: Config = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List orders, the newest first."""
    from doorbuster.cli.session import find_source, open_ledger

    output = Output(as_json=as_json)
    with open_ledger(find_source(config, url, output).settings) as ledger:
        ledger.migrate()
        sales = [ledger.require_sale(sale).sale] if sale else [row.sale for row in ledger.sales()]
        found = [order for name in sales for order in ledger.orders(name, buyer=buyer, limit=limit)]
    found.sort(key=lambda order: order["id"], reverse=True)
    orders = [_public(order) for order in found[:limit]]

    def human(console: Console) -> None:
        shown = table("=order", "sale", "buyer", "lines", "state", "=created (UTC)")
        for order in orders:
            shown.add_row(
                *(order[name] for name in ("order_no", "sale", "buyer", "lines", "state")),
                time_text(order["created_at_ms"])[5:],
            )
        console.print(shown if orders else "no orders")

    output.result({"orders": orders}, human)


def show(
    order_no: Annotated[str, typer.Argument(metavar="ORDER_NO", help="32 hex digits.")],
    config: Config = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show one order, the state of its intent, and its release if its units came back."""
    from doorbuster.cli.session import find_source, open_ledger
    from doorbuster.errors import DoorbusterError

    output = Output(as_json=as_json)
    with open_ledger(find_source(config, url, output).settings) as ledger:
        ledger.migrate()
        order = ledger.order(order_no)
    if order is None:
        raise DoorbusterError(f"no order {order_no!r}")
    shown = _public(order)

    def human(console: Console) -> None:
        told = {name: value for name, value in shown.items() if value is not None}
        told["created_at_ms"] = f"{time_text(shown['created_at_ms'])} UTC"
        console.print(grid({name.removesuffix("_at_ms"): value for name, value in told.items()}))

    output.result(shown, human)


def _public(order: dict[str, Any]) -> dict[str, Any]:
    """Without the row's number, which means nothing outside the database."""
    return {name: value for name, value in order.items() if name != "id"}
