"""``replay``: run a sale from a file of attempts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from doorbuster.cli.options import Config, Json, Url, actor_name
from doorbuster.cli.output import Output

if TYPE_CHECKING:
    from doorbuster.engine import Engine

__all__ = ["replay"]

_ACTOR: Final = "replay"  # how a start that broke off is known to be ours


def replay(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="JSONL or CSV, may be gzipped; - is stdin.")
    ],
    sale: Annotated[
        str | None,
        typer.Option(
            metavar="SALE", help="Which sale. Default: the config's only one.", show_default=False
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=100_000, help="Callers at the same time.")
    ] = 256,
    speed: Annotated[
        float | None,
        typer.Option(
            min=0.000001,
            help="Pace by at_ms: 1 as it was, 2 twice as fast. Default: as fast as it goes.",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    url: Url = None,
    as_json: Json = False,
    answers_file: Annotated[Path | None, typer.Option("--answers", hidden=True)] = None,
) -> None:
    """Make every attempt of a file: buyer, request_id, sku, quantity (or lines), at_ms.

    The sale is created, warmed up and opened when the ledger lacks it. Running the same file
    again adds no order for an attempt that was accepted. Rows that cannot be read are named with
    their line and left out.
    """
    from doorbuster.cli.answers import Answers
    from doorbuster.cli.attempts_file import AttemptsFile
    from doorbuster.cli.callers import from_slow_iterator
    from doorbuster.cli.run import conclude, sell
    from doorbuster.cli.session import find_source, open_engine
    from doorbuster.workers.runner import ROLES

    output = Output(as_json=as_json)
    attempts = AttemptsFile(file, speed=speed)
    answers = Answers(answers_file)
    with open_engine(find_source(config, url, output), roles=tuple(ROLES)) as engine:
        chosen = _choose(engine, sale)
        _start(engine, chosen)
        with engine:
            report = sell(
                engine,
                chosen,
                from_slow_iterator(iter(attempts)),
                answers,
                output,
                concurrency=concurrency,
                total=attempts.size,
                done=attempts.read_bytes,
                bad_rows=lambda: attempts.bad_rows,
            )
    attempts.close()
    answers.close()
    for bad in attempts.bad_lines:
        output.note(f"{file}:{bad['line']}: {bad['problem']}")
    if (more := attempts.bad_rows - len(attempts.bad_lines)) > 0:
        output.note(f"{file}: {more} more rows could not be read")
    where = "".join(
        f" {option} {value}" for option, value in (("--config", config), ("--url", url)) if value
    )
    conclude(
        {**report, "bad_lines": attempts.bad_lines},
        output,
        next_step=f"orders list --sale {chosen}{where}",
    )


def _choose(engine: Engine, sale: str | None) -> str:
    """The sale to replay into: the one named, else the only one of the config."""
    from doorbuster.errors import ConfigError, UnknownSaleError

    known = list(engine.settings.sales)
    if sale is not None:
        if sale not in known:
            raise UnknownSaleError(sale, known)
        return sale
    if len(known) != 1:
        listed = f"the config has {', '.join(known)}" if known else "the config has no sale"
        raise ConfigError(f"which sale? {listed}; name one with --sale")
    return known[0]


def _start(engine: Engine, sale: str) -> None:
    """Start a sale that the ledger lacks; go on with a start of ours that broke off."""
    from doorbuster.model import SaleState

    row = engine.ledger.sale(sale)
    if row is not None and row.state in (SaleState.CREATED, SaleState.WARMED):
        begun = engine.ledger.audit(row)
        if begun and begun[-1]["actor"] != _actor():
            return
    elif row is not None:
        return
    engine.sales.start(sale, actor=_actor())


def _actor() -> str:
    return f"{_ACTOR}/{actor_name(None)}"[:64]
