"""``serve``: the sales of a config over HTTP, with the workers inside."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from doorbuster.cli.options import Config, Json, Url, actor_name
from doorbuster.cli.output import Output, print_json

if TYPE_CHECKING:
    from doorbuster.engine import Engine
    from doorbuster.settings import Settings

__all__ = ["require_extra", "serve"]

_DEV: Final = "dev"
_EXTRA: Final = ("uvicorn", "uvloop", "httptools")


def serve(
    host: Annotated[
        str | None,
        typer.Option(help="Where to listen. Default: http.host of the config.", show_default=False),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Which port; 0: any free one. Default: http.port of the config.",
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        bool,
        typer.Option("--start", help="Start each sale that the ledger lacks (environment dev)."),
    ] = False,
    config: Config = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Serve the sales of the config over HTTP, and turn what they accept into orders.

    The config must name http.buyer_header, the header in which a trusted gateway puts the buyer.
    SIGTERM or Ctrl-C ends it: whoever is inside is answered first. With --json it prints one
    object when it is ready, with its url, its pid and its sales.
    """
    import msgspec

    from doorbuster.cli import log
    from doorbuster.cli.session import find_source, open_engine
    from doorbuster.workers.runner import ROLES

    require_extra()
    from doorbuster.http import server

    output = Output(as_json=as_json)
    source = find_source(config, url, output)
    http = source.settings.http
    http = msgspec.structs.replace(
        http, host=http.host if host is None else host, port=http.port if port is None else port
    )
    source.settings = msgspec.structs.replace(source.settings, http=http)
    server.check(http)
    if start:
        _require_dev(source.settings)
    with server.listen(http) as taken, open_engine(source, roles=tuple(ROLES)) as engine:
        log.speak(source.settings.log.level, source.settings.log.format)
        lacking = _lacking(engine)
        if start:
            for sale in lacking:
                engine.sales.start(sale, actor=actor_name(None))
            lacking = []

        def on_ready() -> None:
            where = server.url_of(taken)
            output.note(f"serving {where}; {_told(engine, lacking)}; stop with Ctrl-C")
            if as_json:  # last: who has read it finds everything said
                sales = list(engine.settings.sales)
                print_json({"url": where, "pid": os.getpid(), "sales": sales})

        server.serve(engine, taken, on_ready=on_ready)


def require_extra() -> None:
    """Refuse, with what to install, where the server's modules are missing."""
    from doorbuster.errors import ConfigError

    try:
        import doorbuster.http.server  # noqa: F401 - to know that it can be
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise ConfigError(
            f"serve needs module {error.name!r}: pip install 'doorbuster[http]'"
        ) from error


def _require_dev(settings: Settings) -> None:
    from doorbuster.errors import ConfigError

    if settings.environment != _DEV:
        raise ConfigError(
            f"--start is for environment {_DEV!r}, and this is {settings.environment!r}: there is "
            "no preflight yet that could say whether a sale is ready; start each one yourself "
            "with: doorbuster sale start SALE"
        )


def _lacking(engine: Engine) -> list[str]:
    """Sales of the config that nobody has created yet."""
    there = {row.sale for row in engine.ledger.sales()}
    return [sale for sale in engine.settings.sales if sale not in there]


def _told(engine: Engine, lacking: Sequence[str]) -> str:
    sales = len(engine.settings.sales)
    told = f"{sales} sale{'' if sales == 1 else 's'}"
    if lacking:
        told += f", not started: {', '.join(lacking)} (doorbuster sale start SALE)"
    return told
