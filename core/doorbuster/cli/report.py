"""The report of ``demo`` and ``replay``: callers' answers against the ledger's rows.

Nothing here is a counter of the engine. What callers were told is compared with the rows that
are in the database when nothing is left to do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from doorbuster.cli.output import grid, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from doorbuster.cli.answers import Answers
    from doorbuster.engine import Engine
    from doorbuster.ledger import Ledger, SaleRow

__all__ = ["FAULTS", "Compared", "compare", "failed", "show", "summarize"]

FAULTS = ("oversold", "lost", "duplicates", "limit_breaches")
"""Keys of a report that must be 0."""


class Compared(NamedTuple):
    """Callers' answers against rows; every count but ``stock`` and ``orders`` must be 0.

    stock: units of the sale now. orders: order rows of the accepted identities. oversold: units
    of live intents above the total. lost: ACCEPTED answers whose number has neither an order nor
    an audited release. duplicates: orders beyond one per identity. limit_breaches: buyers above
    their limit.
    """

    stock: int
    orders: int
    oversold: int
    lost: int
    duplicates: int
    limit_breaches: int


def compare(ledger: Ledger, row: SaleRow, answers: Answers) -> Compared:
    """Compare what callers were told with the rows of the sale, in one snapshot."""
    from doorbuster.ledger import counts

    with ledger.database.read() as connection:
        numbers: dict[tuple[str, str], list[str]] = defaultdict(list)
        for buyer, request_id, order_no in counts.orders(connection, row):
            numbers[buyer, request_id].append(order_no)
        told = [*answers.accepted.items(), *answers.conflicts]
        missing = {no for identity, no in told if no not in numbers.get(identity, ())}
        totals = counts.totals(connection, row)
        sold = counts.sold(connection, row)
        return Compared(
            stock=sum(totals.values()),
            orders=sum(len(numbers.get(identity, ())) for identity in answers.accepted),
            oversold=sum(max(0, n - totals.get(sku, 0)) for sku, n in sold.items()),
            lost=len(missing - counts.released(connection, missing)),
            duplicates=sum(len(found) - 1 for found in numbers.values()),
            limit_breaches=counts.breaches(connection, row),
        )


def summarize(
    engine: Engine,
    row: SaleRow,
    answers: Answers,
    *,
    seconds: float,
    left: int,
    bad_rows: int,
) -> dict[str, Any]:
    """Make the report, once the work is done.

    Args:
        engine: holds the ledger and the promises.
        row: the sale.
        answers: what the callers were told.
        seconds: how long the callers took.
        left: work that could not be done; else the ledger was not to be written at the end.
        bad_rows: rows of a file that were no attempts.
    """
    compared = compare(engine.ledger, row, answers)
    reconciled = engine.ledger.report(row)
    return {
        "sale": row.sale,
        "stock": compared.stock,
        "attempts": answers.attempts,
        "accepted": len(answers.accepted),
        "orders": compared.orders,
        "oversold": compared.oversold,
        "lost": compared.lost,
        "duplicates": compared.duplicates,
        "limit_breaches": compared.limit_breaches,
        "bad_rows": bad_rows,
        "unfinished": left,
        "outcomes": answers.by_code(),
        "seconds": round(seconds, 3),
        "attempts_per_s": round(answers.attempts / seconds) if seconds else 0,
        "latency_ms": answers.latencies.summary(),
        "promise": engine.world.promises()[row.sale],
        "mode": row.effective,
        "reconcile": {"balanced": reconciled.balanced, "drift": reconciled.drift},
    }


def failed(report: Mapping[str, Any]) -> bool:
    """Whether a law was broken, or work is left so that nobody can say."""
    broken = any(report[fault] for fault in FAULTS) or not report["reconcile"]["balanced"]
    return broken or bool(report["unfinished"])


_MEANINGS: Mapping[str, str] = {
    "ACCEPTED": "has an order; a repeat hears the same again",
    "PENDING": "not known yet; ask again",
    "SOLD_OUT": "every unit is sold",
    "NOT_STARTED": "the sale is not open yet",
    "OVER_LIMIT": "this buyer has as many as one may have",
    "ENDED": "the sale is over",
    "CLOSED": "the entrance is closed",
    "RATE_LIMITED": "too many at once; come again later",
    "BUSY": "shed; come again later",
    "BLOCKED": "this buyer may not buy",
    "INVALID": "malformed: a bad id, quantity or sku",
    "KEY_REUSED": "an old request_id with another content",
}


_PROMISES: Mapping[str, str] = {
    "database": "database: ACCEPTED survives whatever the database's commit survives",
    "none": "none: ACCEPTED is kept in memory only",
}


def show(console: Console, report: Mapping[str, Any], *, next_step: str) -> None:
    """Print the report for a person: what callers heard, what the ledger holds, a verdict."""
    latency = report["latency_ms"]
    console.print()
    outcomes = table("outcome", ">attempts", "meaning", title="What the callers were told")
    by_code = report["outcomes"]
    for name in sorted(by_code, key=lambda name: (name != "ACCEPTED", -by_code[name])):
        style = "green" if name == "ACCEPTED" else None
        outcomes.add_row(name, f"{by_code[name]:,}", _MEANINGS.get(name, ""), style=style)
    console.print(outcomes)
    laws = table("what", ">count", "", title="What the ledger holds")
    laws.add_row("units for sale", f"{report['stock']:,}", "")
    laws.add_row("identities accepted", f"{report['accepted']:,}", "")
    laws.add_row("orders of them", f"{report['orders']:,}", "")
    for fault in FAULTS:
        laws.add_row(fault.replace("_", " "), f"{report[fault]:,}", _mark(not report[fault]))
    balanced = report["reconcile"]["balanced"]
    laws.add_row("stock drift", f"{report['reconcile']['drift']:,}", _mark(balanced))
    if report["bad_rows"]:
        laws.add_row("rows that could not be read", f"{report['bad_rows']:,}", "")
    console.print(laws)
    console.print(
        grid(
            {
                "speed": f"{report['attempts']:,} attempts in {report['seconds']:.1f} s: "
                f"{report['attempts_per_s']:,} per second",
                "wait": f"p50 {latency['p50']:.1f} ms, p95 {latency['p95']:.1f} ms, "
                f"p99 {latency['p99']:.1f} ms",
                "mode": report["mode"],
                "promise": _PROMISES.get(report["promise"], report["promise"]),
            }
        )
    )
    console.print()
    console.print(_verdict(report))
    console.print(f"Look: doorbuster {next_step}", style="dim", markup=False)


def _mark(good: bool) -> Text:
    from rich.text import Text

    return Text("ok", style="green") if good else Text("WRONG", style="bold red")


def _verdict(report: Mapping[str, Any]) -> Text:
    from rich.text import Text

    broken = [fault.replace("_", " ") for fault in FAULTS if report[fault]]
    if not report["reconcile"]["balanced"]:
        broken.append("stock does not balance")
    if report["unfinished"]:
        return Text(
            f"The work is not done, {report['unfinished']:,} pieces are left; when the ledger can "
            f"be written again: doorbuster worker --drain{_where(report)}.",
            style="bold yellow",
        )
    if broken:
        return Text(f"This must not happen: {', '.join(broken)}.", style="bold red")
    accepted = report["accepted"]
    orders = {
        0: "Nothing was accepted",
        1: "The one accepted attempt has exactly one order",
    }.get(accepted, f"Every one of the {accepted:,} accepted attempts has exactly one order")
    text = Text(f"{orders}, no unit was sold twice, and the stock balances.", style="bold green")
    undecided = sum(report["outcomes"].get(name, 0) for name in ("BUSY", "PENDING"))
    if undecided:
        counted = "1 attempt" if undecided == 1 else f"{undecided:,} attempts"
        again = "run it again, with --keep" if "url" in report else "run it again"
        text.append(f"\n{counted} got no decision: {again}.", style="bold yellow")
    return text


def _where(report: Mapping[str, Any]) -> str:
    return f" --url {report['url']}" if "url" in report else ""
