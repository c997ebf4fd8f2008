"""Laws of the conversion: strict types, every problem at once, no secret in a message."""

from __future__ import annotations

import json
import tomllib
from datetime import UTC, date, datetime, time, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as bounds
from hypothesis import strategies as st

from doorbuster.errors import SettingError
from doorbuster.model import QUANTITY_MAX, PerBuyer, Sku
from doorbuster.settings import (
    PluginSettings,
    SaleSettings,
    Settings,
    StageOverlay,
    convert,
    describe,
    digest_of,
    read_layers,
)
from doorbuster.settings.report import expectation

EIGHT = datetime(2026, 11, 11, 20, tzinfo=UTC)
EIGHT_MS = 1_794_427_200_000

UNHURRIED = bounds(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # busy machines


def settings(text: str) -> Settings:
    return convert(tomllib.loads(text))


def one_sale(body: str, *, head: str = "") -> SaleSettings:
    return settings(f"{head}\n[sales.p]\n{body}").sales["p"]


def problems(tree: dict[str, Any] | str) -> dict[str, str]:
    """Convert what must fail; answer the problems by key."""
    with pytest.raises(SettingError) as caught:
        convert(tomllib.loads(tree) if isinstance(tree, str) else tree)
    assert caught.value.__context__ is None  # a chained exception could print values
    found = {problem.key: problem[1] for problem in caught.value.problems}
    assert len(found) == len(caught.value.problems), "a key was told twice"
    return found


def sale_problems(
    body: str, *, skus: str = "skus = { black = 1 }", head: str = ""
) -> dict[str, str]:
    return problems(f"{head}\n[sales.p]\n{skus}\n{body}")


# ---------------------------------------------------------------- defaults and shapes


def test_nothing_is_the_defaults() -> None:
    """An empty configuration is complete."""
    assert convert({}) == Settings()


def test_a_whole_sale() -> None:
    """The shapes of design.md 7, each in its long and short form."""
    found = one_sale(
        """
        opens_at  = 2026-11-11T20:00:00Z
        closes_at = 2026-11-11T22:00:00+01:00
        per_buyer = 1
        mode = "no-redis"
        promise = "database"
        degrade_to = "closed"
        options = { team = 3 }
        [sales.p.skus]
        Black = 10000
        white = { units = 5000, per_buyer = 2, price_minor = 9900, currency = "EUR" }
        [sales.p.pipeline]
        filter = ["...", "members"]
        [sales.p.modes.no-redis]
        deduct = "db-segments"
        [sales.p.plugins.rate]
        per_second = 5000
        """
    )
    assert found == SaleSettings(
        id="p",
        skus={"Black": Sku("Black", 10000), "white": Sku("white", 5000, 2, 9900, "EUR")},
        opens_at_ms=EIGHT_MS,
        closes_at_ms=EIGHT_MS + 3_600_000,
        per_buyer=PerBuyer(sale=1),
        mode="no-redis",
        promise="database",
        degrade_to="closed",
        options={"team": 3},
        pipeline=StageOverlay(filter=("...", "members")),
        modes={"no-redis": StageOverlay(deduct="db-segments")},
        plugins={"rate": PluginSettings(use="rate", options={"per_second": 5000})},
    )


def test_per_buyer_table() -> None:
    """A table sets each limit by itself; no table is no limit."""
    base = "skus = { black = 1 }\n"
    assert one_sale(base).per_buyer == PerBuyer()
    assert one_sale(base + "per_buyer = { sku = 1, sale = 2, attempt = 3 }").per_buyer == PerBuyer(
        1, 2, 3
    )


def test_use_defaults_to_the_name_or_to_the_shared_table() -> None:
    """``use`` is the entry point: NAME, or what the shared table of that name uses."""
    found = settings(
        """
        [plugins.rate]
        per_second = 1
        [plugins.rate-strict]
        use = "rate"
        [sales.p]
        skus = { black = 1 }
        [sales.p.plugins.rate-strict]
        per_second = 2
        [sales.p.plugins.mine]
        use = "acme.rate"
        """
    )
    assert {name: plugin.use for name, plugin in found.plugins.items()} == {
        "rate": "rate",
        "rate-strict": "rate",
    }
    own = found.sales["p"].plugins
    assert own["rate-strict"] == PluginSettings(use="rate", options={"per_second": 2})
    assert own["mine"].use == "acme.rate"


def test_the_shipped_configuration_sells() -> None:
    """The folder ``config`` is a working sale with the modes it documents."""
    folder = Path(__file__).parents[2] / "config"
    found = describe(convert(read_layers(folder, environ={}).tree))
    sale = found["sales"]["phone-x"]
    assert (sale["skus"], sale["per_buyer"], sale["mode"]) == ({"black": 10000}, 1, "normal")
    assert sale["opens_at"] is sale["closes_at"] is None
    assert sale["modes"].keys() == {"normal", "segments", "direct"}
    assert sale["modes"]["segments"]["deduct"] == "db-segments"
    assert sale["modes"]["direct"]["enqueue"] == "direct"


def test_the_example_of_secrets_is_refused_until_it_is_changed() -> None:
    """X13: nobody runs with the key that everybody can read."""
    example = Path(__file__).parents[2] / "config" / "secrets.example.toml"
    assert problems(example.read_text()) == {
        "keys.current": "got ***; expected at least 16 characters"
    }


# ---------------------------------------------------------------- units (X8)

ODD_UNITS = [
    True, False, 1.0, 0.5, -0.0, 1e3, float("inf"), float("nan"), -1, -5, -(2**63), 2**63,
    QUANTITY_MAX + 1, 10**12, 10**30, "", "1", "10", "1e3", " 1", "1_000", "0x10", "ten", "-1",
    "+1", "1.0", "true", "null", "\u0661", "\uff11", "1\n", "[]", "{}", [], [1], [[]], {"a": 1},
    EIGHT, date(2026, 1, 1), time(1, 2), None,
]  # fmt: skip


@pytest.mark.parametrize("value", ODD_UNITS, ids=repr)
@pytest.mark.parametrize("long", [False, True])
def test_units_are_strict_whole_numbers(value: Any, long: bool) -> None:
    """X8: what is not an int 0..999999999 is told at its key, in the short and the long form."""
    sku = {"units": value} if long else value
    found = problems({"sales": {"phone-x": {"skus": {"black": sku}}}})
    key = "sales.phone-x.skus.black.units"
    if value == {"a": 1} and not long:  # a table, but not of a sku
        assert found == {
            "sales.phone-x.skus.black.a": "unknown key; known: "
            "currency, per_buyer, price_minor, units",
            key: "missing; expected the first total of this sku",
        }
    else:
        assert found.keys() == {key}
        assert "expected a whole number from 0 to 999999999" in found[key]


@pytest.mark.parametrize("units", [0, 1, 10_000, QUANTITY_MAX])
def test_units_in_range_are_taken(units: int) -> None:
    """Both ends of the range are in it."""
    assert one_sale(f"skus = {{ black = {units} }}").skus["black"].units == units


@pytest.mark.parametrize("value", ["0", "-1", "true", "1.5", '"1"', "[1]", "1000000000"])
@pytest.mark.parametrize("key", ["sku", "sale", "attempt"])
def test_limits_are_strict_and_at_least_one(value: str, key: str) -> None:
    """A limit that lets nobody buy, or is no number, is an error; no key is no limit."""
    found = sale_problems(f"per_buyer = {{ {key} = {value} }}")
    assert found.keys() == {f"sales.p.per_buyer.{key}"}
    assert "a whole number from 1 to 999999999; leave it out for no limit" in next(
        iter(found.values())
    )
    assert sale_problems(
        "", skus=f"skus = {{ a = {{ units = 1, per_buyer = {value} }} }}"
    ).keys() == {"sales.p.skus.a.per_buyer"}


@pytest.mark.parametrize("value", ["0", "true", "1.5", '"1"', "[1]"])
def test_a_short_limit_is_strict_too(value: str) -> None:
    """``per_buyer = 1`` is a whole number or a table."""
    found = sale_problems(f"per_buyer = {value}")
    assert "(per sale), or a table of sku, sale, attempt" in found["sales.p.per_buyer"]


# ---------------------------------------------------------------- skus and prices


@pytest.mark.parametrize(
    ("skus", "key", "says"),
    [
        ("", "sales.p.skus", "missing; expected at least one sku"),
        ("skus = {}", "sales.p.skus", "missing; expected at least one sku"),
        ("skus = 5", "sales.p.skus", "got 5; expected a table"),
        ("skus = ['black']", "sales.p.skus", "expected a table"),
        ("skus = { 'a b' = 1 }", "sales.p.skus.a b", "a sku id is 1-64 of"),
        ("skus = { '' = 1 }", "sales.p.skus.", "a sku id is 1-64 of"),
        ("skus = { '*' = 1 }", "sales.p.skus.*", "a sku id is 1-64 of"),
        ("skus = { a = {} }", "sales.p.skus.a.units", "missing"),
        ("skus = { a = { units = 1, unit = 2 } }", "sales.p.skus.a.unit", "did you mean 'units'?"),
        ("skus = { a = { units = 1, price_minor = 5 } }", "sales.p.skus.a.currency", "missing"),
    ],
)
def test_skus_that_cannot_be_sold(skus: str, key: str, says: str) -> None:
    """A sale has at least one sku, each with an id, units, and a currency beside a price."""
    found = sale_problems("", skus=skus)
    assert found.keys() == {key}
    assert says in found[key]


@pytest.mark.parametrize("price", ["-1", "1.5", "true", '"9.90"', "1000000000"])
def test_prices_are_whole_minor_units(price: str) -> None:
    """Money is a whole number of cents."""
    row = f'{{ units = 1, price_minor = {price}, currency = "EUR" }}'
    assert sale_problems("", skus=f"skus = {{ a = {row} }}").keys() == {
        "sales.p.skus.a.price_minor"
    }


@pytest.mark.parametrize("currency", ['"eur"', '"EURO"', '"E"', '""', "978", "true", '"ÉUR"'])
def test_a_currency_is_three_capital_letters(currency: str) -> None:
    """ISO 4217's form, whether a price is there or not."""
    for price in ("", "price_minor = 0, "):
        row = f"{{ units = 1, {price}currency = {currency} }}"
        found = sale_problems("", skus=f"skus = {{ a = {row} }}")
        assert found.keys() == {"sales.p.skus.a.currency"}
        assert "three capital letters" in found["sales.p.skus.a.currency"]


# ---------------------------------------------------------------- windows


@pytest.mark.parametrize(
    "moment",
    [
        EIGHT,
        EIGHT.astimezone(timezone(timedelta(hours=8))),
        "2026-11-11T20:00:00Z",
        "2026-11-11 20:00:00+00:00",
        "2026-11-12T04:00:00+08:00",
        "20261111T200000Z",
    ],
)
def test_moments_with_an_offset(moment: Any) -> None:
    """A moment is the same instant in whatever offset, from TOML or as text."""
    tree = {"sales": {"p": {"skus": {"a": 1}, "opens_at": moment}}}
    assert convert(tree).sales["p"].opens_at_ms == EIGHT_MS


@pytest.mark.parametrize("key", ["opens_at", "closes_at"])
@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("2026-11-11T20:00:00", "add Z for UTC"),
        ('"2026-11-11T20:00:00"', "add Z for UTC"),
        ("2026-11-11", "expected the time too"),
        ("20:00:00", "expected the date too"),
        ('"tonight"', "expected a date and time"),
        ('""', "expected a date and time"),
        ("1794427200000", "expected a date and time"),
        ("true", "expected a date and time"),
        ("[]", "expected a date and time"),
    ],
)
def test_moments_that_are_none(key: str, value: str, says: str) -> None:
    """A time without an offset is a different instant on every host: refused, with the remedy."""
    found = sale_problems(f"{key} = {value}")
    assert found.keys() == {f"sales.p.{key}"}
    assert says in found[f"sales.p.{key}"]


@pytest.mark.parametrize("closes", ["2026-11-11T20:00:00Z", "2026-11-11T20:30:00+01:00"])
def test_a_window_closes_after_it_opens(closes: str) -> None:
    """Compared as instants, not as text."""
    found = sale_problems(f"opens_at = 2026-11-11T20:00:00Z\ncloses_at = {closes}")
    assert found.keys() == {"sales.p.closes_at"}
    assert "expected a time after opens_at" in found["sales.p.closes_at"]


@UNHURRIED
@given(st.datetimes(timezones=st.just(UTC)))
def test_every_moment_is_exact_to_the_millisecond(moment: datetime) -> None:
    """No float is between a moment and its milliseconds, in any year."""
    tree = {"sales": {"p": {"skus": {"a": 1}, "opens_at": moment}}}
    found = convert(tree).sales["p"].opens_at_ms
    assert found is not None
    back = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=found)
    assert timedelta(0) <= moment - back < timedelta(milliseconds=1)


# ---------------------------------------------------------------- modes and stages


@pytest.mark.parametrize("key", ["mode", "degrade_to"])
def test_a_mode_must_be_known(key: str) -> None:
    """The nearest name is told; a shared mode, an own one, ``normal`` and ``closed`` are known."""
    head = "[modes.no-redis]\ndeduct = 'db-segments'\n"
    own = "[sales.p.modes.mine]\nenqueue = 'direct'\n"
    for known in ("normal", "closed", "no-redis", "mine"):
        found = one_sale(f"skus = {{ a = 1 }}\n{key} = '{known}'\n{own}", head=head)
        assert getattr(found, key) == known
    assert sale_problems(f"{key} = 'no-reds'\n{own}", head=head) == {
        f"sales.p.{key}": "no mode is named 'no-reds' (did you mean 'no-redis'?)"
    }
    assert sale_problems(f"{key} = 'x'\n{own}", head=head) == {
        f"sales.p.{key}": "no mode is named 'x'; known: closed, mine, no-redis, normal"
    }
    assert sale_problems(f"{key} = 5") == {f"sales.p.{key}": "got 5; expected text"}


def test_a_mode_of_another_sale_is_not_known() -> None:
    """A sale's own modes are its own."""
    head = "[sales.q]\nskus = { a = 1 }\n[sales.q.modes.mine]\n"
    assert sale_problems("mode = 'mine'", head=head).keys() == {"sales.p.mode"}


@pytest.mark.parametrize("at", ["", "sales.p."])
def test_reserved_modes_are_errors(at: str) -> None:
    """``closed`` is every sale's; ``normal`` is [pipeline] itself."""
    found = sale_problems(
        f"[{at}modes.closed]\n[{at}modes.normal]\ndeduct = 'x'\n[{at}modes.'a b']"
    )
    assert found.keys() == {f"{at}modes.closed", f"{at}modes.normal", f"{at}modes.a b"}
    assert "is reserved" in found[f"{at}modes.closed"]
    assert "is [pipeline] itself" in found[f"{at}modes.normal"]


@pytest.mark.parametrize("stage", ["filter", "limit"])
def test_the_inherited_list_stands_once_and_only_in_overlays(stage: str) -> None:
    """``"..."`` has nothing to inherit in the base, and nothing twice."""
    head = f"[modes.m]\n{stage} = ['a', '...', 'b']\n"
    assert getattr(settings(head).modes["m"], stage) == ("a", "...", "b")
    found = problems(
        f"[pipeline]\n{stage} = ['...']\n[modes.m]\n{stage} = ['...', '...']\n"
        f"[sales.p]\nskus = {{ a = 1 }}\n[sales.p.pipeline]\n{stage} = ['...', 'x', '...']\n"
        f"[sales.p.modes.m]\n{stage} = ['...', '...']\n"
    )
    assert found.keys() == {
        f"pipeline.{stage}",
        f"modes.m.{stage}",
        f"sales.p.pipeline.{stage}",
        f"sales.p.modes.m.{stage}",
    }
    assert "no '...' in the base" in found[f"pipeline.{stage}"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("filter = 'a'", "expected a list of texts"),
        ("filter = [1]", "expected a list of texts"),
        ("limit = ['a b']", "expected a name of 1-64"),
        ("limit = ['']", "expected a name of 1-64"),
        ("deduct = ''", "expected a name of 1-64"),
        ("deduct = ['a']", "expected text"),
        ("enqueue = '...'", "expected a name of 1-64"),
        ("persist = true", "expected text"),
        ("journal = 'legder'", "expected one of 'ledger', 'stream'"),
        ("dedcut = 'a'", "unknown key (did you mean 'deduct'?)"),
    ],
)
@pytest.mark.parametrize("table", ["pipeline", "modes.m", "sales.p.pipeline", "sales.p.modes.m"])
def test_stages_are_checked_wherever_they_stand(table: str, line: str, says: str) -> None:
    """Base, shared mode, sale and the sale's mode speak the same language."""
    found = problems(f"[sales.p]\nskus = {{ a = 1 }}\n[{table}]\n{line}\n")
    assert found.keys() == {f"{table}.{line.split(' ')[0]}"}
    assert says in next(iter(found.values()))


# ---------------------------------------------------------------- sections


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("door = 1", "door", "got 1; expected a table"),
        ("door = []", "door", "expected a table"),
        ("sales = 'x'", "sales", "expected a table"),
        ("modes = 'x'", "modes", "expected a table"),
        ("modes.m = 'x'", "modes.m", "expected a table"),
        ("plugins = 1", "plugins", "expected a table"),
        ("plugins.rate = 1", "plugins.rate", "expected a table"),
        ("plugins.rate.use = ''", "plugins.rate.use", "expected the name of an installed plugin"),
        ("plugins.'a b'.x = 1", "plugins.a b", "a plugin's name is 1-64"),
        ("servers = 1", "servers", "expected a table"),
        ("servers.redis = 'redis://h'", "servers.redis", "expected a table"),
        ("servers.'a/b'.url = ''", "servers.a/b", "a server's name is 1-64"),
        ("pipeline = 1", "pipeline", "expected a table"),
        ("sales.p = 5", "sales.p.skus", "missing"),
        ("sales.'a b'.skus.x = 1", "sales.a b", "a sale id is 1-64"),
        ("legder.url = ''", "legder", "unknown key (did you mean 'ledger'?)"),
        ("zzz = 1", "zzz", "unknown key; known: door, environment"),
        ("door.batchmax = 1", "door.batchmax", "(did you mean 'batch_max'?)"),
        ("door.batch_max = 0", "door.batch_max", "expected a whole number from 1 to 4096"),
        ("door.batch_max = 5000", "door.batch_max", "expected a whole number from 1 to 4096"),
        ("door.batch_max = 256.0", "door.batch_max", "got 256.0; expected a whole number"),
        ("door.batch_max = true", "door.batch_max", "got true; expected a whole number"),
        ("door.linger_ms = -1", "door.linger_ms", "expected a number from 0 to 1000"),
        ("door.linger_ms = nan", "door.linger_ms", "expected a number from 0 to 1000"),
        ("door.linger_ms = '1'", "door.linger_ms", "got '1'; expected a number"),
        ("workers.lease_s = 0", "workers.lease_s", "expected a number above 0"),
        ("workers.lease_s = inf", "workers.lease_s", "got inf; expected a number above 0"),
        ("workers.idle_ms = 0", "workers.idle_ms", "expected a whole number from 1"),
        ("log.level = 'loud'", "log.level", "expected one of"),
        ("http.buyer_header = 5", "http.buyer_header", "expected text"),
        ("http.port = 65536", "http.port", "expected a whole number from 0 to 65535"),
        ("http.port = -1", "http.port", "expected a whole number from 0 to 65535"),
        ("http.body_max_bytes = 0", "http.body_max_bytes", "a whole number from 64 to 1048576"),
        ("http.headers_max_bytes = 0", "http.headers_max_bytes", "a whole number from 1024"),
        ("http.receive_s = 0", "http.receive_s", "expected a number above 0"),
        ("http.keep_alive_s = 0", "http.keep_alive_s", "expected a whole number from 1"),
        ("http.connections_max = 0", "http.connections_max", "expected a whole number from 1"),
        ("http.backlog = 0", "http.backlog", "expected a whole number from 1"),
        ("http.results_max = 0", "http.results_max", "expected a whole number from 1"),
        ("http.drain_s = 1.5", "http.drain_s", "got 1.5; expected a whole number from 1"),
        ("environment = 5", "environment", "got 5; expected text"),
        ("environment = ''", "environment", "expected 1-64 of"),
        ("environment = 'a b'", "environment", "expected 1-64 of"),
        ("ledger.url = 5", "ledger.url", "expected text"),
        ("ledger.url = 'file:///etc/passwd'", "ledger.url", "a URL of sqlite, postgresql"),
        ("ledger.url = 'doorbuster.db'", "ledger.url", "a URL of sqlite, postgresql"),
        ("ledger.url = ''", "ledger.url", "a URL of sqlite, postgresql"),
        ("keys.current = 5", "keys.current", "got ***; expected text"),
        ("keys.current = '123456789012345'", "keys.current", "at least 16 characters"),
        ("plugins.rate.x = inf", "plugins.rate.x", "a finite number"),
        ("servers.r.x = [9223372036854775808]", "servers.r.x.0", "a whole number of 64 bits"),
        ("plugins.rate.x = 'ok'\nplugins.rate.y = nan", "plugins.rate.y", "a finite number"),
    ],
)
def test_sections_are_typed_and_unknown_keys_are_errors(text: str, key: str, says: str) -> None:
    """Each problem names the full dotted key, the value and what is expected."""
    found = problems(text)
    assert says in found[key]
    assert all(other.startswith(key.split(".")[0]) for other in found)


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ("sku = { a = 1 }", "sales.p.sku"),
        ("id = 'p'", "sales.p.id"),
        ("opens_at_ms = 5", "sales.p.opens_at_ms"),
        ("openat = 2026-11-11T20:00:00Z", "sales.p.openat"),
        ("promise = 'best'", "sales.p.promise"),
        ("options = 1", "sales.p.options"),
        ("per_buyer = { skus = 1 }", "sales.p.per_buyer.skus"),
        ("[sales.p.sales.p]", "sales.p.sales"),
        ("[sales.p.plugins.r]\nuse = 5", "sales.p.plugins.r.use"),
    ],
)
def test_a_sale_has_only_its_own_keys(body: str, key: str) -> None:
    """What a sale's file may not say is told by its key, and told once."""
    assert sale_problems(body).keys() == {key}


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite+pysqlite:///a.db",
        "postgresql+psycopg://u:p@h/d",
        "mysql+pymysql://h/d",
        "mariadb://h",
    ],
)
def test_databases_that_may_be_a_ledger(url: str) -> None:
    """X11: only the schemes of databases are opened."""
    assert settings(f"ledger.url = '{url}'").ledger.url == url


def test_all_problems_are_told_at_once() -> None:
    """One run tells every problem of every section, each with the origin it came from."""
    tree = tomllib.loads(
        "typo = 1\n[door]\nbatch_max = 0\nlinger_ms = 'x'\n[keys]\ncurrent = 'x'\n"
        "[modes.closed]\n[sales.a]\nmode = 'nope'\n[sales.b.skus]\nc = true\nd = 1.5\n"
    )
    with pytest.raises(SettingError) as caught:
        convert(tree, lambda path: f"file-of-{path[0]}")
    found = caught.value.problems
    assert [problem.key for problem in found] == [
        "typo",
        "modes.closed",
        "keys.current",
        "door.batch_max",
        "door.linger_ms",
        "sales.a.mode",
        "sales.a.skus",
        "sales.b.skus.c.units",
        "sales.b.skus.d.units",
    ]
    assert all(p[1].endswith(f"(in file-of-{p.key.split('.')[0]})") for p in found)
    assert str(caught.value).count("\n") == len(found) - 1


def test_long_values_are_cut_in_messages() -> None:
    """A message stays a line, however long the value."""
    assert len(problems({"log": {"level": "x" * 10_000}})["log.level"]) < 150


class Colour(Enum):
    """Two values, for a plugin's options."""

    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (int, "a whole number"),
        (float | None, "a number"),
        (bool, "true or false"),
        (str | None, "text"),
        (list[int], "a list"),
        (frozenset[str], "a list of texts"),
        (tuple[str, ...], "a list of texts"),
        (dict[str, int], "a table"),
        (Settings, "a table"),
        (int | str, "a whole number or text"),
        (Literal["a", "b"], "one of 'a', 'b'"),
        (Colour, "one of 'red', 'blue'"),
        (Annotated[int, msgspec.Meta(ge=1, lt=5)], "a whole number from 1 and below 5"),
        (Annotated[float, msgspec.Meta(gt=0, le=1)], "a number above 0 to 1"),
        (datetime, "another kind of value"),
    ],
)
def test_expectations_are_words(kind: Any, words: str) -> None:
    """What a field takes is said as people say it, for the core's fields and a plugin's."""
    assert expectation(kind) == words


JSON = st.recursive(
    st.sampled_from([None, True, 0, -1, 1, 2**70, 0.5, float("nan"), "", "...", "a", EIGHT,
                     date(2026, 1, 1), time(1, 2)]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["skus", "units", "mode", "use", "filter", "url", "a", "closed", "..."]),
        inner,
        max_size=3,
    ),
    max_leaves=10,
)  # fmt: skip


@UNHURRIED
@given(
    st.dictionaries(st.sampled_from([*Settings.__struct_fields__, "x"]), JSON, max_size=4)
    | st.fixed_dictionaries({"sales": st.fixed_dictionaries({"p": st.dictionaries(
        st.sampled_from([n.removesuffix("_ms") for n in SaleSettings.__struct_fields__]), JSON)})})
)  # fmt: skip
def test_any_tree_is_converted_or_told(tree: dict[str, Any]) -> None:
    """Whatever the tree, the answer is settings that can be shown, or a SettingError."""
    try:
        found = convert(tree)
    except SettingError:
        return
    json.dumps(describe(found), allow_nan=False)
    assert digest_of(found) == digest_of(convert(tree))


def test_settings_share_nothing_with_the_tree() -> None:
    """Changing the tree afterwards changes no settings."""
    tree: dict[str, Any] = {"plugins": {"a": {"x": [1]}}, "servers": {"r": {"y": [1]}}}
    found = convert(tree)
    tree["plugins"]["a"]["x"].append(2)
    tree["servers"]["r"]["y"].append(2)
    assert found.plugins["a"].options == {"x": [1]}
    assert found.servers["r"] == {"y": [1]}


def test_settings_are_frozen() -> None:
    """A section cannot be changed in place."""
    with pytest.raises(AttributeError, match="immutable"):
        Settings().door.batch_max = 5  # type: ignore[misc]


# ---------------------------------------------------------------- secrets (X9)

CANARY = "canary-0123456789"
SECRETS = f"""
[ledger]
url = "postgresql://app:{CANARY}@h/d?sslpassword={CANARY}"
[keys]
current = "{CANARY}"
[servers.redis]
url = "redis://:{CANARY}@h:6379/0"
password = "{CANARY}"
nodes = [{{ auth = "{CANARY}", host = "shown-host" }}]
[plugins.ticket]
signing_key = "{CANARY}"
api-token = "{CANARY}"
salt = 5550123
url = "https://u:{CANARY}@with@sign@h/p"
tokens_per_second = 5
[sales.p]
skus = {{ season-pass = 7, key = 8 }}
options = {{ secret = "{CANARY}" }}
[sales.p.plugins.ticket]
secret = ["{CANARY}"]
"""


def test_secrets_are_never_shown() -> None:
    """X9: not in ``repr``, not in rich's, not in ``config show``; what is no secret still is."""
    found = settings(SECRETS)
    shown = describe(found)
    rich = repr([found.__rich_repr__(), found.keys.__rich_repr__()])
    for text in (repr(found), str(found), repr(found.servers and found), rich, json.dumps(shown)):
        assert CANARY[:6] not in text
        assert "5550123" not in text
        assert "@with@sign" not in text
        assert "shown-host" in text or text is rich
    assert shown["keys"] == {"current": "***"}
    assert shown["ledger"]["url"] == "postgresql://app:***@h/d?sslpassword=***"
    assert shown["plugins"]["ticket"]["tokens_per_second"] == 5
    assert shown["sales"]["p"]["skus"] == {"season-pass": 7, "key": 8}
    assert found.keys.current == CANARY


@pytest.mark.parametrize(
    "text",
    [
        f"keys.current = ['{CANARY}']",
        f"keys.curent = '{CANARY}'",
        f"keys = '{CANARY}'",
        "keys.current = 'canary'",
        f"ledger.url = 'oracle://u:{CANARY}@h'",
        f"ledger.url = ['sqlite://u:{CANARY}@h']",
        f"ledger = 'postgresql://u:{CANARY}@h/d'",
        f"servers.redis = 'redis://:{CANARY}@h'",
        f"servers.'a b'.password = '{CANARY}'",
        f"plugins.x.use = {{ token = '{CANARY}' }}",
    ],
)
def test_secrets_are_never_in_messages(text: str) -> None:
    """X9: a problem with a secret tells the key, not the value."""
    with pytest.raises(SettingError) as caught:
        convert(tomllib.loads(text))
    assert "canary" not in f"{caught.value} {caught.value!r} {caught.value.problems}"


# ---------------------------------------------------------------- config show


def test_show_has_every_section_and_default() -> None:
    """``config show`` prints what is in force, written or not."""
    shown = describe(Settings())
    assert shown.keys() == set(Settings.__struct_fields__)
    assert shown["door"] == msgspec.structs.asdict(Settings().door)
    assert shown["pipeline"]["deduct"] == "db-atomic"
    assert shown["sales"] == {}
    json.dumps(shown)


def test_show_of_a_sale() -> None:
    """Skus with units, limits as config writes them, times in UTC, every mode's full stages."""
    found = settings(
        """
        [plugins.rate]
        per_second = 1
        burst = 9
        [modes.m]
        enqueue = "direct"
        [sales.p]
        opens_at = 2026-11-11T21:00:00.5+01:00
        mode = "m"
        options = { at = 2026-01-01 }
        per_buyer = { sku = 1, attempt = 2 }
        [sales.p.skus]
        black = 3
        white = { units = 4, per_buyer = 2, price_minor = 0, currency = "EUR" }
        [sales.p.plugins.rate]
        per_second = 2
        """
    )
    shown = describe(found)
    assert shown["modes"] == {"m": {"enqueue": "direct"}}
    sale = shown["sales"]["p"]
    assert sale.pop("modes").keys() == {"normal", "m"}
    assert sale == {
        "skus": {"black": 3, "white": 4},
        "per_buyer": {"sku": 1, "attempt": 2},
        "sku_per_buyer": {"white": 2},
        "prices": {"white": {"price_minor": 0, "currency": "EUR"}},
        "opens_at": "2026-11-11T20:00:00.500000Z",
        "closes_at": None,
        "mode": "m",
        "promise": None,
        "degrade_to": None,
        "options": {"at": "2026-01-01"},
        "plugins": {"rate": {"use": "rate", "per_second": 2, "burst": 9}},
    }


@pytest.mark.parametrize(("line", "shown"), [("", None), ("per_buyer = 2", 2),
                                             ("per_buyer = { sale = 2 }", 2),
                                             ("per_buyer = { sku = 2 }", {"sku": 2})])  # fmt: skip
def test_show_writes_limits_as_config_does(line: str, shown: Any) -> None:
    """A number is per sale; no limit is null."""
    found = settings(f"[sales.p]\nskus = {{ a = 1 }}\n{line}")
    assert describe(found)["sales"]["p"]["per_buyer"] == shown
