"""What ``demo`` and ``replay`` share: ask, finish the work, compare, report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from doorbuster.cli import report as reports
from doorbuster.cli.answers import Answers
from doorbuster.cli.callers import Callers, Next
from doorbuster.cli.output import Output

if TYPE_CHECKING:
    from rich.progress import Progress

    from doorbuster.engine import Engine

__all__ = ["conclude", "finish_work", "sell"]


def sell(
    engine: Engine,
    sale: str,
    source: Next,
    answers: Answers,
    output: Output,
    *,
    concurrency: int,
    total: int | None,
    done: Callable[[], int] | None = None,
    bad_rows: Callable[[], int] = lambda: 0,
) -> dict[str, Any]:
    """Make every attempt of ``source``, finish all work, and answer the report.

    The engine must be started. ``total`` and ``done`` measure progress; ``done`` defaults to
    the number of answers.
    """
    with output.progress() as progress:
        task = progress.add_task("attempts", total=total)
        callers = Callers(
            engine,
            sale,
            answers,
            on_progress=lambda n: progress.update(task, completed=done() if done else n),
        )

        async def load() -> float:
            """Ask, and let the last batches end."""
            seconds = await callers.run(source, concurrency)
            await engine.drain()
            return seconds

        seconds = asyncio.run(load())
        left = finish_work(engine, progress)
    row = engine.ledger.require_sale(sale)
    return reports.summarize(engine, row, answers, seconds=seconds, left=left, bad_rows=bad_rows())


def finish_work(engine: Engine, progress: Progress) -> int:
    """Work until nothing is left; answer what is."""
    task = progress.add_task("orders to write", total=None)
    most = 0

    def on_progress(left: int) -> None:
        nonlocal most
        most = max(most, left)
        progress.update(task, total=most, completed=most - left)

    return engine.finish_work(progress=on_progress)


def conclude(report: dict[str, Any], output: Output, *, next_step: str) -> None:
    """Print the report and a command to look further; exit 1 when a law was broken."""
    output.result(report, lambda console: reports.show(console, report, next_step=next_step))
    if reports.failed(report):
        raise typer.Exit(1)
