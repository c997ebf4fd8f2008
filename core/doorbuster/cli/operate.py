"""``alarms``, ``worker`` and ``migrate``: what keeps a sale running."""

from __future__ import annotations

import signal
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from doorbuster.cli.demo_sale import DEMO_SALE
from doorbuster.cli.options import Config, Json, Limit, OneSale, Url
from doorbuster.cli.output import Output, table

if TYPE_CHECKING:
    from rich.console import Console

    from doorbuster.engine import Engine

__all__ = ["alarms", "migrate", "time_text", "worker"]

_LOOK_S: Final = 0.1  # how soon a signal is acted on
_SEVERITY: Final = {"critical": "bold red", "warning": "yellow"}


def time_text(at_ms: int) -> str:
    """Show ledger time for a person, in UTC."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


# ------------------------------------------------------------------ alarms
def alarms(
    sale: OneSale = None,
    limit: Limit = 20,
    config: Config = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show the newest alarms."""
    from doorbuster.cli.session import find_source, no_sales, open_ledger, rows_of

    output = Output(as_json=as_json)
    settings = find_source(config, url, output, or_demo=sale in (None, DEMO_SALE)).settings
    found: list[dict[str, Any]] = []
    nothing = "no alarms"
    if rows_of(settings):
        with open_ledger(settings) as ledger:
            ledger.migrate()
            found = list(ledger.alarms(sale=sale, limit=limit))
    else:
        nothing = no_sales(settings)

    def human(console: Console) -> None:
        shown = table("=time (UTC)", "severity", "alarm", "sale", "detail")
        for alarm in found:
            detail = ", ".join(f"{name} {value}" for name, value in alarm["detail"].items())
            shown.add_row(
                time_text(alarm["at_ms"]),
                alarm["severity"],
                alarm["name"],
                alarm["sale"] or "",
                detail,
                style=_SEVERITY.get(alarm["severity"]),
            )
        console.print(shown if found else nothing, markup=False)

    output.result({"alarms": found}, human)


# ------------------------------------------------------------------ worker
class _Signals:
    """SIGTERM and SIGINT ask for a graceful end; the handler only sets a flag."""

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> Self:
        self._old = {
            number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: object) -> None:
        self.came = True


def worker(
    roles: Annotated[
        str, typer.Option(metavar="ROLE,...", help="Which roles, or all of them.")
    ] = "all",
    drain: Annotated[
        bool, typer.Option("--drain", help="Work until nothing is left, then exit.")
    ] = False,
    config: Config = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Turn accepted attempts into orders, and settle all the rest, until told to stop.

    With --drain it exits 0 when nothing is left, and 1 when something is.
    """
    from doorbuster.cli import log
    from doorbuster.cli.session import find_source, has_folder, no_sales, open_engine, rows_of
    from doorbuster.workers.runner import ROLES

    names = tuple(ROLES) if roles == "all" else tuple(filter(None, roles.split(",")))
    output = Output(as_json=as_json)
    # a worker that stays waits for the sales of its folder, not for a demo left beside it
    source = find_source(config, url, output, or_demo=drain or not has_folder())
    if drain and ROLES.keys() >= set(names) and not rows_of(source.settings):
        nothing = {"roles": list(names), "drained": True, "left": 0, "unfinished": []}
        output.result(nothing, lambda console: console.print(no_sales(source.settings)))
        return
    with open_engine(source, roles=names) as engine:
        log.speak(source.settings.log.level, source.settings.log.format)
        with _Signals() as signals:
            if drain:
                left = _drain(engine, signals, output)
            else:
                output.note(f"working: {', '.join(names)}; stop with Ctrl-C")
                with engine:
                    while not signals.came:
                        time.sleep(_LOOK_S)
                left = 0
        unfinished = _unfinished(engine) if drain else []
    data = {"roles": list(names), "drained": drain and not left and not unfinished, "left": left}
    data["unfinished"] = unfinished

    def human(console: Console) -> None:
        if not drain:
            console.print("stopped")
        elif not left and not unfinished:
            console.print("nothing is left", style="green")
        else:
            console.print(f"left: {left}", style="bold red")
            for item in unfinished:
                console.print(
                    f"  sale {item['sale']}, run {item['run']}: {item['batches']} open batches, "
                    f"{item['jobs']} ways back"
                )

    output.result(data, human)
    if drain and (left or unfinished):
        raise typer.Exit(1)


def _drain(engine: Engine, signals: _Signals, output: Output) -> int:
    """Drain in a thread of its own, so that a signal can end it between two steps."""
    from doorbuster.cli.run import finish_work

    answers: list[int] = []
    with output.progress() as progress:
        thread = threading.Thread(target=lambda: answers.append(finish_work(engine, progress)))
        thread.start()
        while thread.is_alive():
            thread.join(_LOOK_S)
            if signals.came:
                engine.runner.stop()
    return answers[0] if answers else 1


def _unfinished(engine: Engine) -> list[dict[str, Any]]:
    """Work in the ledger that no role of this process could do: a sale that config lacks."""
    from doorbuster.ledger import counts

    with engine.ledger.database.read() as connection:
        return [
            {"sale": item.sale, "run": item.run, "batches": item.batches, "jobs": item.jobs}
            for item in counts.unfinished(connection, engine.settings.environment)
        ]


# ------------------------------------------------------------------ migrate
def migrate(config: Config = None, url: Url = None, as_json: Json = False) -> None:
    """Bring the ledger's tables to this release's version; steps only add."""
    from doorbuster.cli.session import find_source, open_ledger

    output = Output(as_json=as_json)
    source = find_source(config, url, output)
    with open_ledger(source.settings) as ledger:
        before, after = ledger.migrate()

    def human(console: Console) -> None:
        console.print(
            f"the ledger was at version {before} and is at {after} now"
            if before != after
            else f"the ledger is at version {after}; nothing to do"
        )

    output.result({"before": before, "after": after}, human)
