"""From options to an engine: which settings are in force, and the ledger they name.

A demo's database can be worked on without a config folder: where none is named and the ledger
holds the demo's sale, the sale's built-in settings are used, and stderr says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from doorbuster.cli import log
from doorbuster.cli.demo_sale import DEMO_SALE, DEMO_SKU, DEMO_URL, demo_overrides
from doorbuster.cli.options import DEFAULT_FOLDER

if TYPE_CHECKING:
    from doorbuster.cli.output import Output
    from doorbuster.engine import Engine
    from doorbuster.ledger import Ledger, SaleRow
    from doorbuster.settings import Settings

__all__ = [
    "Source",
    "database_file",
    "find_source",
    "has_folder",
    "no_sales",
    "open_engine",
    "open_ledger",
    "rows_of",
]


_URL_VARIABLE: Final = "DOORBUSTER_LEDGER__URL"  # names a ledger as --url does


class Source:
    """Where the settings come from: a folder, or none, and tables laid over it."""

    def __init__(self, folder: Path | None, overrides: dict[str, Any]) -> None:
        """Read the settings.

        Raises:
            SettingError: everything wrong with them.
        """
        from doorbuster.settings import SettingsStore

        self.folder = folder
        self.overrides = overrides
        self.settings: Settings = SettingsStore(folder, overrides=overrides).load().settings


def database_file(url: str) -> Path | None:
    """The file behind an SQLite URL, absolute; ``None`` for a ledger in memory.

    Raises:
        ConfigError: the URL is not usable.
    """
    from doorbuster.ledger.url import file_of, read_url

    return file_of(read_url(url))


def has_folder() -> bool:
    """Whether the config folder that is used when none is named is there."""
    return Path(DEFAULT_FOLDER).is_dir()


def find_source(
    config: Path | None, url: str | None, output: Output, *, or_demo: bool = False
) -> Source:
    """Find the settings for these options.

    ``or_demo``: where neither a folder nor a ledger was named and the ledger there would be
    holds no sale, go to the demo's own database when one is here. What a killed demo left is
    otherwise looked for in a ledger that never heard of it.

    Raises:
        SettingError: they are wrong, or there is no folder and no demo to work on.
    """
    given: dict[str, Any] = {} if url is None else {"ledger": {"url": url}}
    if config is not None:
        return Source(config, given)
    folder = Path(DEFAULT_FOLDER) if has_folder() else None
    source = Source(folder, given)
    if or_demo and url is None and _URL_VARIABLE not in os.environ and not rows_of(source.settings):
        demo = _demo_beside(Source(None, {"ledger": {"url": DEMO_URL}}))
        if demo is not None:
            output.note(f"ledger: {DEMO_URL}, the demo's; {no_sales(source.settings)}")
            return demo
    demo = _demo_beside(source)
    if demo is not None:
        output.note(f"using the built-in settings of sale {DEMO_SALE!r}, which this ledger holds")
        return demo
    # without a folder there is nothing to work with: let the settings say what to do
    return source if folder is not None else Source(Path(DEFAULT_FOLDER), given)


def _demo_beside(source: Source) -> Source | None:
    """The source with the demo's sale laid over it, when its ledger holds one config lacks."""
    rows = rows_of(source.settings)
    demos = [row for row in rows if row.sale == DEMO_SALE]
    if not demos or DEMO_SALE in source.settings.sales:
        return None
    only_demo = len(demos) == len(rows)
    if not only_demo and demos[-1].environment != source.settings.environment:
        return None
    row = demos[-1]
    with open_ledger(source.settings) as ledger:
        units = ledger.skus(row)
    tables = demo_overrides(
        stock=units[DEMO_SKU].units if DEMO_SKU in units else 0,
        limit=row.limits.sale,
        mode=row.config_mode,
        url=source.settings.ledger.url,
    )
    if only_demo:  # a demo's own database: the folder beside it is about something else
        return Source(None, {**tables, "environment": row.environment})
    return Source(source.folder, {**source.overrides, **tables})


def no_sales(settings: Settings) -> str:
    """Say that the ledger of ``settings`` holds no sale; a password in its URL is hidden."""
    import sqlalchemy as sa
    from sqlalchemy.exc import ArgumentError

    try:
        url = sa.make_url(settings.ledger.url).render_as_string(hide_password=True)
    except ArgumentError:
        url = "the ledger"
    return f"no sales in {url}"


def rows_of(settings: Settings) -> list[SaleRow]:
    """Read every run in the ledger of ``settings``, without making or changing it."""
    from doorbuster.ledger import counts, migrations

    file = database_file(settings.ledger.url)
    # os.path: the method of Path raises where it may not look, and the ledger says it better
    if file is None or not os.path.exists(file):
        return []
    with open_ledger(settings) as ledger, ledger.database.read() as connection:
        return counts.runs(connection) if migrations.current(connection) else []


@contextmanager
def open_ledger(settings: Settings) -> Iterator[Ledger]:
    """Open the ledger alone: no plugin is built, and no change of config is followed.

    Raises:
        ConfigError: the URL is not usable.
    """
    from doorbuster.clock import SystemClock
    from doorbuster.ledger import Ledger

    ledger = Ledger.open(
        settings.ledger.url,
        SystemClock(),
        settings.environment,
        wait_ms=settings.ledger.wait_ms,
        settle_max_s=settings.workers.settle_max_s,
    )
    try:
        yield ledger
    finally:
        ledger.close()


@contextmanager
def open_engine(
    source: Source, *, roles: Sequence[str] = (), follow: bool = True
) -> Iterator[Engine]:
    """Open an engine that is closed at the end; nothing in it runs until it is started.

    A command that only looks does not ``follow`` what changed in the config.

    Raises:
        ConfigError: the settings cannot be wired.
        UnavailableError: the ledger cannot be reached, or its disk is full or read-only.
    """
    from doorbuster.engine import Engine

    log.hold_back(tries=True)
    engine = Engine(source.settings, roles=roles, follow=follow)
    log.hold_back(tries=False)
    try:
        yield engine
    finally:
        engine.close()
