"""``init`` and ``demo``: the first minutes."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from doorbuster.cli.demo_sale import DEMO_SALE, DEMO_URL, demo_overrides
from doorbuster.cli.options import DEFAULT_FOLDER, Json
from doorbuster.cli.output import Output, print_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from doorbuster.engine import Engine
    from doorbuster.ledger import SaleRow

__all__ = ["Mode", "demo", "init"]

_TEMPLATES: Final = {"settings.toml": "settings.toml", "phone-x.toml": "sales/phone-x.toml"}


class Mode(StrEnum):
    """The modes of the demo's sale."""

    NORMAL = "normal"
    SEGMENTS = "segments"
    DIRECT = "direct"


# ------------------------------------------------------------------ init
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The folder to write.", show_default=True)
    ] = Path(DEFAULT_FOLDER),
    as_json: Json = False,
) -> None:
    """Write a config folder: the shortest settings, and a sale that is open once started.

    No file that exists is overwritten.
    """
    from doorbuster.errors import ConfigError

    output = Output(as_json=as_json)
    named = "" if folder == Path(DEFAULT_FOLDER) else f" --config {folder}"
    steps = (f"doorbuster config check{named}", f"doorbuster sale start phone-x{named}")
    files = {folder / to: _template(name) for name, to in _TEMPLATES.items()}
    there = [str(file) for file in files if file.exists() or file.is_symlink()]
    if there:
        print_error(f"{', '.join(there)}: exists; nothing was written", as_json=as_json)
        output.note("\nNext, with what is there:")
        for step in steps[: 1 if len(there) < len(files) else None]:
            output.note(f"  {step}")
        output.note("or write another folder:\n  doorbuster init NAME")
        raise typer.Exit(2)
    for file, text in files.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as stream:
                stream.write(text)
        except OSError as error:
            raise ConfigError(f"{file}: cannot be written: {error.strerror}") from error

    def human(console: Console) -> None:
        for file in files:
            console.print(f"wrote {file}", markup=False)
        console.print("\nNext:", style="bold")
        for step in steps:
            console.print(f"  {step}", markup=False)

    output.result({"written": [str(file) for file in files]}, human)


def _template(name: str) -> str:
    return (resources.files("doorbuster.cli") / "templates" / name).read_text(encoding="utf-8")


# ------------------------------------------------------------------ demo
def demo(
    stock: Annotated[int, typer.Option(min=0, max=999_999_999, help="Units for sale.")] = 10_000,
    buyers: Annotated[int, typer.Option(min=1, help="Different buyers, at most.")] = 40_000,
    attempts: Annotated[int, typer.Option(min=0, help="Attempts to buy.")] = 50_000,
    limit: Annotated[int, typer.Option(min=1, help="Units one buyer may have.")] = 1,
    concurrency: Annotated[
        int, typer.Option(min=1, max=100_000, help="Callers at the same time.")
    ] = 256,
    mode: Annotated[
        Mode | None, typer.Option(help="How it sells. Default: normal.", show_default=False)
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Go on with the database there is.")] = False,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help=f"Default: {DEMO_URL}", show_default=False),
    ] = None,
    as_json: Json = False,
    answers_file: Annotated[Path | None, typer.Option("--answers", hidden=True)] = None,
) -> None:
    """Sell a small stock to a large crowd, then count what happened. Needs no config.

    The crowd repeats itself, asks for more than it may have, and sends nonsense. Afterwards the
    callers' own answers are compared with the rows in the database. It starts fresh each time,
    unless --keep; with --url nothing is deleted, the sale begins a new run.
    """
    from doorbuster.cli.answers import Answers
    from doorbuster.cli.callers import from_iterable
    from doorbuster.cli.run import conclude, sell
    from doorbuster.cli.workload import workload
    from doorbuster.ledger.url import read_url

    output = Output(as_json=as_json)
    where = DEMO_URL if url is None else url
    read_url(where)  # before anything is removed or said: it may be nonsense, or hold a password
    if not keep and url is None:
        _start_fresh()
    named = f"--url {shlex.quote(where)}"
    answers = Answers(answers_file)
    with _engine(where, stock, limit, mode, keep=keep) as engine:
        output.note(f"ledger: {where}")
        output.note(f"if this is stopped: doorbuster worker --drain {named}")
        _prepare(engine, keep=keep)
        with engine:
            report = sell(
                engine,
                DEMO_SALE,
                from_iterable(workload(attempts=attempts, buyers=buyers)),
                answers,
                output,
                concurrency=concurrency,
                total=attempts,
            )
    answers.close()
    conclude({**report, "url": where}, output, next_step=f"orders list {named}")


def _start_fresh() -> None:
    """Remove the demo's own database, and never another one.

    Raises:
        ConfigError: it cannot be removed.
    """
    from doorbuster.cli.session import database_file
    from doorbuster.errors import ConfigError

    file = database_file(DEMO_URL)
    if file is not None:
        for suffix in ("", "-wal", "-shm"):
            old = file.with_name(file.name + suffix)
            try:
                old.unlink(missing_ok=True)
            except OSError as error:
                raise ConfigError(
                    f"ledger.url {DEMO_URL!r}: {old.absolute()} cannot be removed for a fresh "
                    f"start: {error.strerror}; move it away, or name another database with --url"
                ) from error


@contextmanager
def _engine(url: str, stock: int, limit: int, mode: Mode | None, *, keep: bool) -> Iterator[Engine]:
    """Open the demo's engine; a sale that is there already keeps its mode unless one is named."""
    from doorbuster.cli.session import Source, open_engine, rows_of
    from doorbuster.workers.runner import ROLES

    def source(word: str) -> Source:
        return Source(None, demo_overrides(stock=stock, limit=limit, mode=word, url=url))

    found = source((mode or Mode.NORMAL).value)
    here = found.settings.environment
    rows = [
        row for row in rows_of(found.settings) if (row.environment, row.sale) == (here, DEMO_SALE)
    ]
    if rows and keep:
        _require_same_place(rows[-1], mode)
    if rows and mode is None:
        found = source(rows[-1].config_mode)
    with open_engine(found, roles=tuple(ROLES)) as engine:
        yield engine


def _require_same_place(row: SaleRow, mode: Mode | None) -> None:
    """Refuse to go on in a mode that sells from another place than the sale was started with."""
    from doorbuster.errors import ConfigError

    if mode is not None and (mode is Mode.SEGMENTS) != (row.deduct == "db-segments"):
        raise ConfigError(
            f"the demo in this database was started in mode {row.config_mode!r}, and mode "
            f"{mode.value!r} sells from another place; leave --mode or --keep out"
        )


def _prepare(engine: Engine, *, keep: bool) -> None:
    """Start the sale; without ``keep`` a sale that is there ends, and begins its next run.

    So does one that has ended: it can sell nothing more.

    Raises:
        ConfigError: a sale of this name is there that no demo made; it is left alone.
    """
    from doorbuster.errors import ConfigError
    from doorbuster.model import SaleState

    row = engine.ledger.sale(DEMO_SALE)
    if row is not None:
        made_by = engine.ledger.audit(row, limit=100_000)[-1]["actor"]
        if made_by != _actor():
            raise ConfigError(
                f"sale {DEMO_SALE!r} in this ledger was made by {made_by!r}, not by a demo; "
                "name another database with --url"
            )
        if not keep or row.state is SaleState.ENDED:
            engine.sales.end(DEMO_SALE, actor=_actor())
            engine.finish_work()
            engine.sales.create(DEMO_SALE, actor=_actor(), again=True)
    engine.sales.start(DEMO_SALE, actor=_actor())


def _actor() -> str:
    return "doorbuster demo"
