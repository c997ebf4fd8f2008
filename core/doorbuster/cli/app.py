"""Every command, in groups, each with an example; and the way from an error to an exit code."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import typer
from typer.core import TyperGroup

from doorbuster.cli import (
    bench,
    build,
    configs,
    operate,
    orders,
    recover,
    replay,
    sale,
    scaffold,
    serve,
    start,
)

__all__ = ["EXAMPLES", "app", "run"]

_INTERRUPTED: Final = 130  # the shell's code for Ctrl-C
_ORDER: Final = (
    *("init", "demo", "serve", "replay"),
    *("sale", "orders"),
    *("config", "worker", "alarms", "migrate"),
    "reconcile",
    *("plugins", "bench"),
)
"""Commands as help lists them; their panels follow: Start, Sell, Operate, Recover, Build."""


class _Ordered(TyperGroup):
    """A group whose help follows :data:`_ORDER`, not the order of registration."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands, in order."""
        return [name for name in _ORDER if name in self.commands]


app: Final = typer.Typer(
    name="doorbuster",
    cls=_Ordered,
    help="Flash sales that never oversell and never lose an accepted order.",
    epilog="First steps: doorbuster demo, then doorbuster init.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

EXAMPLES: Final[dict[str, str]] = {}
"""One example per command, shown at the end of its help."""


def _add(
    group: typer.Typer,
    name: str,
    function: Callable[..., None],
    example: str,
    *,
    panel: str | None = None,
    **settings: Any,
) -> None:
    words = name if group is app else f"{group.info.name} {name}"
    EXAMPLES[words] = example
    group.command(
        name,
        help=_unwrapped(function),
        rich_help_panel=panel,
        epilog=f"[dim]Example:[/] {example}",
        **settings,
    )(function)


def _unwrapped(function: Callable[..., None]) -> str:
    """The docstring, each paragraph one line: the terminal breaks it where it ends."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _group(name: str, text: str, panel: str) -> typer.Typer:
    made = typer.Typer(name=name, help=text, no_args_is_help=True, rich_markup_mode="rich")
    app.add_typer(made, rich_help_panel=panel)
    return made


_add(app, "init", start.init, "doorbuster init", panel="Start")
_add(app, "demo", start.demo, "doorbuster demo --stock 1000 --attempts 5000", panel="Start")
_add(app, "serve", serve.serve, "doorbuster serve --start", panel="Start")
_add(
    app,
    "replay",
    replay.replay,
    "doorbuster replay attempts.jsonl --sale phone-x",
    panel="Start",
)

_sale = _group("sale", "Create, open, pause, restock and end a sale.", "Sell")
_add(_sale, "start", sale.start, "doorbuster sale start phone-x")
_add(_sale, "create", sale.create, "doorbuster sale create phone-x")
_add(_sale, "warmup", sale.warmup, "doorbuster sale warmup phone-x")
_add(_sale, "open", sale.open_sale, "doorbuster sale open phone-x")
_add(_sale, "pause", sale.pause, "doorbuster sale pause phone-x")
_add(_sale, "resume", sale.resume, "doorbuster sale resume phone-x")
_add(_sale, "end", sale.end, "doorbuster sale end phone-x")
_add(
    _sale,
    "restock",
    sale.restock,
    "doorbuster sale restock phone-x black +500",
    context_settings={"ignore_unknown_options": True},  # -500 is a change, not an option
)
_add(_sale, "status", sale.status, "doorbuster sale status phone-x")
_add(_sale, "list", sale.list_sales, "doorbuster sale list")

_orders = _group("orders", "List orders, or show one.", "Sell")
_add(_orders, "list", orders.list_orders, "doorbuster orders list --sale phone-x --buyer ann")
_add(_orders, "show", orders.show, "doorbuster orders show 5f0c2ab19e7d4c6680c1d2e3f4a5b697")

_config = _group("config", "Check the config, or show all of it.", "Operate")
_add(_config, "check", configs.check, "doorbuster config check --config config")
_add(_config, "show", configs.show, "doorbuster config show --json")

_add(app, "worker", operate.worker, "doorbuster worker --drain", panel="Operate")
_add(app, "alarms", operate.alarms, "doorbuster alarms --sale phone-x", panel="Operate")
_add(app, "migrate", operate.migrate, "doorbuster migrate", panel="Operate")
_add(app, "reconcile", recover.reconcile, "doorbuster reconcile --sale phone-x", panel="Recover")

_plugins = _group("plugins", "List the plugins, show one, or write one.", "Build")
_add(_plugins, "list", build.list_plugins, "doorbuster plugins list")
_add(_plugins, "info", build.info, "doorbuster plugins info db-segments")
_add(
    _plugins,
    "new",
    scaffold.new,
    "doorbuster plugins new members --stage filter --test",
)


_bench = _group("bench", "Measure this machine with this code.", "Build")
_add(_bench, "core", bench.core, "doorbuster bench core")
_add(_bench, "embedded", bench.embedded, "doorbuster bench embedded --orders 0")
_add(_bench, "http", bench.http, "doorbuster bench http --connections 256")


def _version(wanted: bool) -> None:
    if wanted:
        from doorbuster import __version__

        print(f"doorbuster {__version__}")  # noqa: T201 - the result of --version
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Flash sales that never oversell and never lose an accepted order."""
    from doorbuster.cli import log

    log.configure()


def run(arguments: Sequence[str]) -> int:
    """Run one command; answer 0 when it is good, 1 when a check failed, 2 for usage or config.

    An error is one clear message on stderr, and with ``--json`` also ``{"error": ...}`` on
    stdout; only a defect shows a traceback.
    """
    as_json = "--json" in arguments
    code = _run(arguments, as_json=as_json)
    if code == _INTERRUPTED:
        from doorbuster.cli.output import print_error

        print_error("stopped; what was accepted is kept", as_json=as_json)
    return code


def _run(arguments: Sequence[str], *, as_json: bool) -> int:
    from doorbuster.errors import ConfigError, DoorbusterError

    try:
        # With --json the errors of usage come here too, instead of being printed for people.
        return int(app(list(arguments), prog_name="doorbuster", standalone_mode=not as_json) or 0)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UnicodeEncodeError:  # a word that is no text: no id, no URL, no name has one
        return _told(ConfigError("an argument is not UTF-8 text"), as_json=as_json) or 2
    except OSError as error:
        # stdout itself may be what cannot be written: say it on stderr, JSON or not
        return _told(DoorbusterError(f"{error.strerror or error}"), as_json=False) or 1
    except Exception as error:
        code = _told(error, as_json=as_json)
        if code is None:
            raise
        return code


def _told(error: Exception, *, as_json: bool) -> int | None:
    """Print an error that people are meant to see; ``None`` for a defect."""
    from doorbuster.cli.output import print_error
    from doorbuster.errors import ConfigError, DoorbusterError, UnknownSaleError

    usage = getattr(error, "format_message", None)  # typer's own, whatever it is derived from
    if usage is not None:
        print_error(str(usage()), as_json=as_json)
        return 2
    if isinstance(error, ExceptionGroup):  # a caller's task failed: its first error is the story
        return _told(error.exceptions[0], as_json=as_json)
    if not isinstance(error, DoorbusterError):
        return None
    print_error(str(error), as_json=as_json)
    return 2 if isinstance(error, (ConfigError, UnknownSaleError)) else 1
