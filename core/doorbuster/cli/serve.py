"""``serve``: the sales of a config over HTTP, with the workers inside."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from doorbuster.cli.options import DEFAULT_FOLDER, Config, Json, Url, actor_name
from doorbuster.cli.output import Output, print_json

if TYPE_CHECKING:
    from doorbuster.engine import Engine
    from doorbuster.settings import Settings

__all__ = ["require_extra", "serve"]

_DEV: Final = "dev"
_NOT_STARTED: Final = "not started"
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
    object when it is ready, with its url, its pid and its sales. On stderr it says which sales
    nobody can buy from yet, and the command that changes it.
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
        if start:
            for sale in _shut(engine).get(_NOT_STARTED, ()):
                engine.sales.start(sale, actor=actor_name(None))
        _check_ledger(engine, output)
        told = _told(engine, _where(config, url), source.folder)

        def on_ready() -> None:
            at = server.url_of(taken)
            output.note(f"serving {at}; {told}; stop with Ctrl-C")
            if as_json:  # last: who has read it finds everything said
                sales = list(engine.settings.sales)
                print_json({"url": at, "pid": os.getpid(), "sales": sales})

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


def _check_ledger(engine: Engine, output: Output) -> None:
    """Refuse a ledger in memory in which nothing was started, since nobody else can reach it.

    Raises:
        ConfigError: what its URL is, and what to do instead.
    """
    from doorbuster.errors import ConfigError

    if not engine.ledger.database.in_memory:
        return
    url = engine.settings.ledger.url
    if waiting := _shut(engine).get(_NOT_STARTED):
        dev = engine.settings.environment == _DEV
        start = "start the sales at once with: doorbuster serve --start; or " if dev else ""
        raise ConfigError(
            f"ledger.url: {url!r} is in the memory of this process, so no other command can start "
            f"{', '.join(waiting)} in it; {start}name a file, such as sqlite:///doorbuster.db"
        )
    output.note(f"ledger: {url} is in memory; all that is sold is forgotten when this ends")


def _shut(engine: Engine) -> dict[str, list[str]]:
    """Sales of the config that nobody can buy from until an operator acts, by why."""
    from doorbuster.model import SaleState

    states = {row.sale: row.state for row in engine.ledger.sales()}
    found: dict[str, list[str]] = {}
    for sale in engine.settings.sales:
        state = states.get(sale)
        if state is not SaleState.OPEN:
            found.setdefault(_NOT_STARTED if state is None else str(state), []).append(sale)
    return found


_NEXT: Final[Mapping[str, str]] = {
    _NOT_STARTED: "sale start",
    "created": "sale start",
    "warmed": "sale start",
    "paused": "sale resume",
}
"""By what keeps buyers out: the command that ends it. A sale that has ended is to sell nothing."""


def _where(config: Path | None, url: str | None) -> str:
    """The options with which another command finds the same sales."""
    words = [] if config is None else ["--config", str(config)]
    return shlex.join(words if url is None else [*words, "--url", url])


def _told(engine: Engine, where: str, folder: Path | None) -> str:
    """How many sales are served, which of them sell nothing, and what would change that."""
    count = len(engine.settings.sales)
    if not count:
        file = (folder or Path(DEFAULT_FOLDER)) / "sales" / "ID.toml"
        return f"0 sales: write one as {file}, as `doorbuster init` does"
    told = f"{count} sale{'' if count == 1 else 's'}"
    for why, sales in _shut(engine).items():
        told += f", {why}: {', '.join(sales)}"
        if why in _NEXT:
            which = sales[0] if len(sales) == 1 else "SALE"
            told += f" ({' '.join(filter(None, ('doorbuster', _NEXT[why], which, where)))}"
            is_early = why == _NOT_STARTED and engine.settings.environment == _DEV
            told += ", or serve with --start)" if is_early else ")"
    return told
