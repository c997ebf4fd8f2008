"""``bench``: what this machine does with this code, in numbers that say what they are of."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doorbuster.cli.options import Json
from doorbuster.cli.output import Output, table

if TYPE_CHECKING:
    from rich.console import Console

    from doorbuster.bench.results import Result

__all__ = ["core", "embedded", "http"]


def _folder(flag: str, text: str) -> Any:
    return typer.Option(flag, metavar="DIR", help=text, show_default=False)


def _count(least: int, most: int, text: str) -> Any:
    return typer.Option(min=least, max=most, help=text)


_Save = Annotated[Path | None, _folder("--save", "Keep the results as a file there.")]
_Folder = Annotated[
    Path | None,
    _folder(
        "--folder",
        "Where the databases lie while it measures: the disk matters. "
        "Default: the system's folder for temporary files.",
    ),
]
_Attempts = Annotated[int, _count(1000, 10_000_000, "Attempts of each row.")]


def core(attempts: _Attempts = 50_000, save: _Save = None, as_json: Json = False) -> None:
    """Measure the CPU cost of an attempt: pipeline over memory, naming included; the door alone.

    The bar is 3 us an attempt for Pipeline.run in batches of 256, order number included.
    """
    from doorbuster.bench import core as bench

    _run("core", lambda progress: bench.bench(attempts=attempts, progress=progress), save, as_json)


def embedded(
    attempts: _Attempts = 60_000,
    orders: Annotated[int, _count(0, 10_000_000, "Orders in the second file; 0: none.")] = 500_000,
    callers: Annotated[int, _count(1, 100_000, "Callers at once, of the door.")] = 1000,
    study: Annotated[
        bool,
        typer.Option("--study", help="Instead: p99 of the door by linger and thread switch."),
    ] = False,
    folder: _Folder = None,
    save: _Save = None,
    as_json: Json = False,
) -> None:
    """Measure durable accepts on SQLite with persist running at once.

    On a fresh file and with orders in it; by plain calls and through the door. A rate counts
    orders in the database, until the last one is written.
    """
    from doorbuster.bench import embedded as bench
    from doorbuster.bench.study import study as measure

    with tempfile.TemporaryDirectory(prefix="doorbuster-bench-", dir=folder) as place:

        def work(progress: Callable[[str], None]) -> Sequence[Result]:
            if study:
                return measure(Path(place), attempts=attempts, progress=progress)
            return bench.bench(
                Path(place), attempts=attempts, orders=orders, callers=callers, progress=progress
            )

        _run("door-study" if study else "embedded", work, save, as_json)


def http(
    requests: Annotated[int, _count(1000, 10_000_000, "Requests of each round.")] = 50_000,
    connections: Annotated[int, _count(1, 10_000, "Keep-alive connections.")] = 64,
    rounds: Annotated[int, _count(1, 100, "Pairs of bare and ours.")] = 3,
    folder: _Folder = None,
    save: _Save = None,
    as_json: Json = False,
) -> None:
    """Measure serve beside an application that answers a constant, under the same server.

    Three crowds: all accepted, a rush of which a tenth is, and repeats of accepted attempts.
    """
    from doorbuster.bench import http as bench
    from doorbuster.cli.serve import require_extra

    require_extra()
    with tempfile.TemporaryDirectory(prefix="doorbuster-bench-", dir=folder) as place:
        _run(
            "http",
            lambda progress: bench.bench(
                Path(place),
                requests=requests,
                connections=connections,
                rounds=rounds,
                progress=progress,
            ),
            save,
            as_json,
        )


def _run(
    name: str,
    work: Callable[[Callable[[str], None]], Sequence[Result]],
    save: Path | None,
    as_json: bool,
) -> None:
    import msgspec

    from doorbuster.bench.results import report
    from doorbuster.errors import ConfigError

    output = Output(as_json=as_json)
    if save is not None and not save.is_dir():
        raise ConfigError(f"--save {save}: there is no such folder; make it first")
    found = report(name, work(lambda what: output.note(f"measuring: {what}")))
    data = msgspec.to_builtins(found)
    if save is not None:
        at = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        file = save / f"{name}-{at}-{found.versions.get('commit', 'release').rstrip('+')}.json"
        file.write_bytes(msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n")
        output.note(f"wrote {file}")

    def human(console: Console) -> None:
        shown = table("what", ">per s", "baseline", ">per s", ">ratio", ">p50 ms", ">p99 ms")
        for one in found.results:
            shown.add_row(
                one.name,
                f"{one.ours_per_s:,.0f}",
                one.baseline or "",
                _number(one.baseline_per_s),
                _number(one.ratio),
                _number(one.p50_ms),
                _number(one.p99_ms),
            )
        console.print(shown)
        how = [_conditions(one) for one in found.results]
        shared = [facts for facts in how[0] if all(facts in other for other in how)]
        console.print(f"all: {'; '.join(shared)}", markup=False, soft_wrap=True)
        for one, facts in zip(found.results, how, strict=True):
            own = [fact for fact in facts if fact not in shared]
            if own:
                console.print(f"{one.name}: {'; '.join(own)}", markup=False, soft_wrap=True)
        console.print(
            f"{found.machine['cpus']} x {found.machine['cpu']}", markup=False, soft_wrap=True
        )

    output.result(data, human)


def _conditions(one: Result) -> list[str]:
    """How a result was measured: what a rate means nothing without."""
    offered = f"{one.concurrency} at once" if one.concurrency else f"{one.offered_per_s:g}/s"
    facts = [f"{one.loop} loop, {offered}", one.mix, one.topology, f"fsync: {one.fsync}"]
    if one.us_per_attempt is not None:
        facts.append(f"{one.us_per_attempt} us CPU an attempt")
    if one.bar is not None:
        facts.append(f"bar {one.bar}")
    return facts


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}".rstrip("0").rstrip(".")
