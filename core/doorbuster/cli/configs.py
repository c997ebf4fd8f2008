"""``config check`` and ``config show``: is it right, and what does it say?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doorbuster.cli.operate import time_text
from doorbuster.cli.options import Config, Json, Url
from doorbuster.cli.output import Output, table

if TYPE_CHECKING:
    from rich.console import Console

    from doorbuster.ledger import SaleRow
    from doorbuster.model import Sku
    from doorbuster.settings import SaleSettings, Settings

__all__ = ["check", "show"]


def check(config: Config = None, url: Url = None, as_json: Json = False) -> None:
    """Load the config, build its plugins, compile every mode of every sale.

    Says what each sale promises in each mode, and where the ledger, which is in force, differs.
    Nothing is written. Exit 2 names everything that is wrong.
    """
    from doorbuster.cli.session import find_source

    output = Output(as_json=as_json)
    source = find_source(config, url, output)
    promises = _compile(source.settings)
    differs = list(_differences(source.settings))

    in_force = {sale: row.effective for sale, row in _newest(source.settings).items()}

    def human(console: Console) -> None:
        shown = table("sale", "mode", "promise", "in config", "in force")
        for sale, modes in promises.items():
            for mode in (*modes, "closed"):
                marks = (source.settings.sales[sale].mode == mode, in_force.get(sale) == mode)
                promise = modes.get(mode, "-")  # closed accepts nothing
                shown.add_row(sale, mode, promise, *("yes" if mark else "" for mark in marks))
        console.print(shown if promises else "no sales")
        for item in differs:
            console.print(_sentence(item), style="yellow", markup=False)
        console.print("the config is good", style="green")

    data = {"ok": True, "environment": source.settings.environment, "promises": promises}
    output.result({**data, "differs": differs}, human)


def _compile(settings: Settings) -> dict[str, dict[str, str]]:
    """Wire everything over an empty ledger that is thrown away; answer promises by sale, mode."""
    import tempfile

    import msgspec

    from doorbuster.cli.session import database_file
    from doorbuster.clock import SystemClock
    from doorbuster.engine import Engine
    from doorbuster.ledger import Ledger

    Ledger.open(settings.ledger.url, SystemClock()).close()  # is the URL one of a ledger?
    with tempfile.TemporaryDirectory(prefix="doorbuster-check-") as folder:
        url = f"sqlite:///{Path(folder) / 'check.db'}"
        if database_file(settings.ledger.url) is None:
            url = settings.ledger.url  # in memory: it promises less than a file does
        scratch = msgspec.structs.replace(settings.ledger, url=url)
        engine = Engine(msgspec.structs.replace(settings, ledger=scratch), roles=())
        try:
            return {
                sale: {mode: made.promise for mode, made in runtime.view.pipelines.items()}
                for sale, runtime in engine.world.runtimes.items()
            }
        finally:
            engine.close()


def _newest(settings: Settings) -> dict[str, SaleRow]:
    """The newest run of every configured sale that the ledger has."""
    from doorbuster.cli.session import rows_of

    return {
        row.sale: row
        for row in rows_of(settings)
        if row.environment == settings.environment and row.sale in settings.sales
    }


def _sentence(item: Mapping[str, Any]) -> str:
    """One difference in words and TOML, as both files of the reader's are."""
    what, sku = item["what"], item["what"].removeprefix("units of ")
    if sku != what and item["config"] is None:
        said = f"{sku} is not in the config any more, and has {item['ledger']} units in the ledger"
    elif sku != what and item["ledger"] is None:
        said = f"{sku} is not in the ledger, and has {item['config']} units in the config"
    else:
        ledger, config = _inline(item["ledger"]), _inline(item["config"])
        said = f"{what} is {ledger} in the ledger, {config} in the config"
    return f"sale {item['sale']}: {said}; {item['hint']}"


def _inline(value: Any) -> str:
    """A value as it stands behind ``=`` in TOML; what is not there is ``not set``."""
    if not isinstance(value, dict):
        return "not set" if value is None else _value(value)
    pairs = ", ".join(f"{_key(name)} = {_inline(inner)}" for name, inner in value.items())
    return f"{{ {pairs} }}" if pairs else "not set"


def _differences(settings: Settings) -> Iterator[dict[str, Any]]:
    """Where the ledger's sales differ from config: what config says there has no effect now."""
    from doorbuster.cli.session import open_ledger
    from doorbuster.settings import modes_of

    for sale, row in _newest(settings).items():
        with open_ledger(settings) as ledger:
            units = ledger.skus(row)
        yield from _differing(sale, row, units, settings.sales[sale])
        modes = modes_of(settings, sale)
        word = settings.sales[sale].mode
        if word in modes and modes[word].deduct != row.deduct:
            yield _difference(
                sale,
                "deduct",
                row.deduct,
                modes[word].deduct,
                "a started sale keeps its own",
            )


def _differing(
    sale: str, row: SaleRow, units: Mapping[str, Sku], found: SaleSettings
) -> Iterator[dict[str, Any]]:
    from doorbuster.ledger import Limits

    for sku in sorted({*units, *found.skus}):
        here = units[sku].units if sku in units else None
        there = found.skus[sku].units if sku in found.skus else None
        hint = f"doorbuster sale restock {sale} {sku} +N|-N"
        if here is None:  # restock knows the run's own skus only
            hint = "a run keeps its skus, the next one has it"
        if here != there:
            yield _difference(sale, f"units of {sku}", here, there, hint)
    for what, mine, other in (
        ("opens_at", _moment(row.opens_at_ms), _moment(found.opens_at_ms)),
        ("closes_at", _moment(row.closes_at_ms), _moment(found.closes_at_ms)),
        ("per_buyer", _shown(row.limits), _shown(Limits.of(found.per_buyer, found.skus))),
        ("mode", row.requested, found.mode),
    ):
        if mine != other:
            yield _difference(sale, what, mine, other, "the ledger's is in force")


def _shown(limits: Any) -> Any:
    import msgspec

    return {name: value for name, value in msgspec.structs.asdict(limits).items() if value}


def _moment(at_ms: int | None) -> str | None:
    return None if at_ms is None else f"{time_text(at_ms)} UTC"


def _difference(sale: str, what: str, ledger: Any, config: Any, hint: str) -> dict[str, Any]:
    return {"sale": sale, "what": what, "ledger": ledger, "config": config, "hint": hint}


def show(config: Config = None, url: Url = None, as_json: Json = False) -> None:
    """Print the whole config with every default, as TOML. Secrets are hidden."""
    from doorbuster.cli.session import find_source
    from doorbuster.settings import describe

    output = Output(as_json=as_json)
    source = find_source(config, url, output)
    described = describe(source.settings)

    def human(console: Console) -> None:
        for line in _toml(described, ()):
            console.print(line, markup=False, style="bold" if line.startswith("[") else None)

    output.result(described, human)


def _toml(tables: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Write tables as TOML lines; what is not set is a comment."""
    inner = {name: value for name, value in tables.items() if isinstance(value, dict)}
    plain = {name: value for name, value in tables.items() if name not in inner}
    if path and (plain or not inner):
        yield f"\n[{'.'.join(map(_key, path))}]"
    for name, value in plain.items():
        yield f"# {name} is not set" if value is None else f"{_key(name)} = {_value(value)}"
    for name, value in inner.items():
        yield from _toml(value, (*path, name))


def _key(name: str) -> str:
    bare = name.replace("-", "").replace("_", "")
    return name if bare.isascii() and bare.isalnum() else _value(name)


def _value(value: Any) -> str:
    """A JSON scalar or list is a TOML one."""
    import msgspec

    return msgspec.json.encode(value).decode().replace(",", ", ")
