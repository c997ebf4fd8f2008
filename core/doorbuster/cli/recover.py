"""``reconcile``: check every invariant of every sale against the rows of the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from doorbuster.cli.demo_sale import DEMO_SALE
from doorbuster.cli.options import Config, Json, OneSale, Url
from doorbuster.cli.output import Output, table

if TYPE_CHECKING:
    from rich.console import Console

    from doorbuster.ledger import Report, SaleRow

__all__ = ["reconcile"]

_LAWS: Final = {
    "I1": "no more units are sold than there are",
    "I2": "the places of units add up to the total",
    "I3": "every accepted attempt has one order, or one release",
    "I4": "one intent per identity, one order per number",
    "I5": "no buyer has more than the limit",
    "I6": "units come back at most once",
    "I7": "every attempt found its outcome in time",
}


def reconcile(
    sale: OneSale = None, config: Config = None, url: Url = None, as_json: Json = False
) -> None:
    """Check the laws of every sale, every run, against the ledger's rows. Changes nothing.

    Exit 1 when a law is broken or the units do not balance.
    """
    from doorbuster.cli.session import find_source, no_sales, open_ledger, rows_of
    from doorbuster.errors import UnknownSaleError

    output = Output(as_json=as_json)
    settings = find_source(config, url, output, or_demo=sale in (None, DEMO_SALE)).settings
    rows = [row for row in rows_of(settings) if row.environment == settings.environment]
    if sale is not None and sale not in {row.sale for row in rows}:
        raise UnknownSaleError(sale, {row.sale for row in rows})
    reports: list[tuple[SaleRow, Report]] = []
    if rows:
        with open_ledger(settings) as ledger:
            reports = [(row, ledger.report(row)) for row in rows if sale in (None, row.sale)]
    data = _summary(reports)
    nothing = no_sales(settings)
    output.result(data, lambda console: _show(console, data) if reports else console.print(nothing))
    if not data["balanced"] or not all(data["invariants"].values()):
        raise typer.Exit(1)


def _summary(reports: list[tuple[SaleRow, Report]]) -> dict[str, Any]:
    return {
        "balanced": all(report.balanced for _, report in reports),
        "drift": sum(report.drift for _, report in reports),
        "invariants": {law: all(report.invariants[law] for _, report in reports) for law in _LAWS},
        "sales": [
            {
                "sale": row.sale,
                "run": row.run,
                "state": str(row.state),
                "balanced": report.balanced,
                "drift": report.drift,
                "invariants": dict(report.invariants),
                "violations": [str(violation) for violation in report.violations],
                "skus": report.equation,
                "counts": dict(report.counts),
            }
            for row, report in reports
        ],
    }


def _show(console: Console, data: dict[str, Any]) -> None:
    laws = table("", "law", "")
    for law, meaning in _LAWS.items():
        good = data["invariants"][law]
        laws.add_row(law, meaning, "ok" if good else "BROKEN", style=None if good else "bold red")
    console.print(laws)
    for sale in data["sales"]:
        good = sale["balanced"] and all(sale["invariants"].values())
        console.print(
            f"sale {sale['sale']}, run {sale['run']}, {sale['state']}: "
            + ("balanced" if good else f"drift {sale['drift']}"),
            style="green" if good else "bold red",
        )
        for violation in sale["violations"]:
            console.print(f"  - {violation}", markup=False)
