"""``orders``: what was bought, and what became of one order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from doorbuster.cli.demo_sale import DEMO_SALE
from doorbuster.cli.operate import time_text
from doorbuster.cli.options import Config, Json, Limit, OneSale, Url
from doorbuster.cli.output import Output, grid, table

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["list_orders", "show"]

_COLUMNS: Final = ("sale", "buyer", "lines", "state")


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
    from doorbuster.cli.session import find_source, no_sales, open_ledger, rows_of
    from doorbuster.errors import UnknownSaleError

    output = Output(as_json=as_json)
    settings = find_source(config, url, output, or_demo=sale in (None, DEMO_SALE)).settings
    if not rows_of(settings):
        if sale is not None:
            raise UnknownSaleError(sale, ())
        output.result({"orders": []}, lambda console: console.print(no_sales(settings)))
        return
    with open_ledger(settings) as ledger:
        ledger.migrate()
        sales = [ledger.require_sale(sale).sale] if sale else [row.sale for row in ledger.sales()]
        found = [order for name in sales for order in ledger.orders(name, buyer=buyer, limit=limit)]
    found.sort(key=lambda order: order["id"], reverse=True)
    orders = [_public(order) for order in found[:limit]]

    def human(console: Console) -> None:
        columns = _COLUMNS[1:] if len(sales) == 1 else _COLUMNS
        title = f"Orders of sale {sales[0]}" if len(sales) == 1 else None
        shown = table("=order", *columns, "=UTC", title=title)
        for order in orders:
            when = time_text(order["created_at_ms"])[5:16]  # month, day, hour, minute
            shown.add_row(order["order_no"], *(order[name] for name in columns), when)
        console.print(shown if orders else "no orders")

    output.result({"orders": orders}, human)


def show(
    order_no: Annotated[str, typer.Argument(metavar="ORDER_NO", help="32 hex digits.")],
    config: Config = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show one order, the state of its intent, and its release if its units came back."""
    from doorbuster.cli.session import find_source, open_ledger, rows_of
    from doorbuster.errors import DoorbusterError

    output = Output(as_json=as_json)
    settings = find_source(config, url, output, or_demo=True).settings
    order = None
    if rows_of(settings):
        with open_ledger(settings) as ledger:
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
