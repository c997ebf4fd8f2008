"""Laws of the overlays: base, then sale, then mode; plugin tables by key."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as bounds
from hypothesis import strategies as st

from doorbuster.errors import UnknownSaleError
from doorbuster.settings import (
    PluginSettings,
    SaleSettings,
    Settings,
    StageOverlay,
    StageSettings,
    convert,
    modes_of,
    plugin_of,
)

BASE = """
[pipeline]
filter = ["deny-list", "sold-out"]
limit = ["rate"]
deduct = "redis-stock"
enqueue = "kafka"
"""


def modes(text: str) -> dict[str, StageSettings]:
    found = convert(tomllib.loads(f"{BASE}\n[sales.p]\nskus = {{ a = 1 }}\n{text}"))
    return dict(modes_of(found, "p"))


def test_every_sale_has_normal_and_never_closed() -> None:
    """``normal`` is [pipeline]; ``closed`` runs no stage, so there is nothing to answer."""
    assert modes("") == {
        "normal": StageSettings(
            filter=("deny-list", "sold-out"), limit=("rate",), deduct="redis-stock", enqueue="kafka"
        )
    }


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ('["..."]', ("deny-list", "sold-out")),
        ('["...", "members"]', ("deny-list", "sold-out", "members")),
        ('["members", "..."]', ("members", "deny-list", "sold-out")),
        ('["a", "...", "b"]', ("a", "deny-list", "sold-out", "b")),
        ('["members"]', ("members",)),
        ("[]", ()),
    ],
)
@pytest.mark.parametrize("table", ["sales.p.pipeline", "sales.p.modes.m", "modes.m"])
def test_inherited_lists(table: str, listed: str, expected: tuple[str, ...]) -> None:
    """``"..."`` is replaced by the inherited list where it stands; an empty list is empty."""
    name = "normal" if table.endswith("pipeline") else "m"
    found = modes(f"[{table}]\nfilter = {listed}")
    assert found[name].filter == expected
    assert found[name].limit == ("rate",)


def test_order_is_base_sale_shared_mode_own_mode() -> None:
    """Each layer sees what all below it left, and a mode of both kinds is one mode."""
    found = modes(
        """
        [sales.p.pipeline]
        filter = ["...", "sale"]
        persist = "own-orders"
        [modes.m]
        filter = ["...", "shared"]
        enqueue = "outbox"
        deduct = "db-segments"
        [sales.p.modes.m]
        filter = ["...", "own"]
        enqueue = "direct"
        [sales.p.modes.only-here]
        journal = "stream"
        """
    )
    assert list(found) == ["normal", "m", "only-here"]
    assert found["normal"].filter == ("deny-list", "sold-out", "sale")
    assert found["m"] == StageSettings(
        filter=("deny-list", "sold-out", "sale", "shared", "own"),
        limit=("rate",),
        deduct="db-segments",
        enqueue="direct",
        persist="own-orders",
    )
    assert found["only-here"].journal == "stream"
    assert found["only-here"].deduct == "redis-stock"


def test_a_mode_does_not_lie_over_another_mode() -> None:
    """Every mode starts from ``normal``."""
    found = modes("[modes.a]\nlimit = ['x']\n[modes.b]\nenqueue = 'outbox'")
    assert found["b"].limit == ("rate",)


def test_sales_do_not_see_each_other() -> None:
    """One sale's overlays change nothing for another."""
    found = convert(
        tomllib.loads(
            "[sales.p]\nskus = { a = 1 }\n[sales.p.pipeline]\ndeduct = 'x'\n[sales.p.modes.m]\n"
            "[sales.q]\nskus = { a = 1 }\n"
        )
    )
    assert modes_of(found, "q") == {"normal": StageSettings()}


GATES = st.lists(st.sampled_from(["a", "b", "c"]), max_size=3).map(tuple)
OVERLAYS = st.builds(
    StageOverlay,
    filter=st.none() | GATES | st.tuples(GATES, GATES).map(lambda two: (*two[0], "...", *two[1])),
    deduct=st.none() | st.sampled_from(["x", "y"]),
    journal=st.none() | st.sampled_from(["ledger", "stream"]),
)


@bounds(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # busy machines
@given(GATES, OVERLAYS, OVERLAYS, OVERLAYS)
def test_overlays_compose(
    base: tuple[str, ...], own: StageOverlay, shared: StageOverlay, last: StageOverlay
) -> None:
    """A stage is what the last layer that names it says; no ``"..."`` is ever left over."""
    sale = SaleSettings(id="p", skus={}, pipeline=own, modes={"m": last})
    pipeline = StageSettings(filter=base)
    found = modes_of(Settings(pipeline=pipeline, modes={"m": shared}, sales={"p": sale}), "p")
    layers = (own, shared, last)
    for stage in ("deduct", "journal", "enqueue"):
        said = [getattr(o, stage) for o in layers if getattr(o, stage) is not None]
        assert getattr(found["m"], stage) == (said or [getattr(pipeline, stage)])[-1]
    expected = list(base)
    for overlay in layers:
        if overlay.filter is not None:
            expected = [
                gate for name in overlay.filter for gate in (expected if name == "..." else [name])
            ]
    assert list(found["m"].filter) == expected
    assert "..." not in found["m"].filter


# ---------------------------------------------------------------- plugins

PLUGINS = """
[plugins.rate]
per_second = 1
burst = 9
nested = { a = 1, b = [1, 2] }
[plugins.rate-strict]
use = "rate"
per_second = 5
[sales.q]
skus = { a = 1 }
[sales.p]
skus = { a = 1 }
[sales.p.plugins.rate]
per_second = 2
nested = { b = [3] }
[sales.p.plugins.rate-strict]
per_second = 6
[sales.p.plugins.mine]
x = 1
[sales.p.plugins.swapped]
use = "acme.other"
y = 1
[plugins.swapped]
x = 1
"""


@pytest.mark.parametrize(
    ("sale", "name", "use", "options", "owner"),
    [
        ("q", "unknown", "unknown", {}, None),
        ("q", "rate", "rate", {"per_second": 1, "burst": 9, "nested": {"a": 1, "b": [1, 2]}}, None),
        ("q", "rate-strict", "rate", {"per_second": 5}, None),
        ("p", "unknown", "unknown", {}, None),
        ("p", "rate", "rate", {"per_second": 2, "burst": 9, "nested": {"a": 1, "b": [3]}}, "p"),
        ("p", "rate-strict", "rate", {"per_second": 6}, "p"),
        ("p", "mine", "mine", {"x": 1}, "p"),
        ("p", "swapped", "acme.other", {"y": 1}, "p"),
    ],
)
def test_plugins_of_a_sale(
    sale: str, name: str, use: str, options: dict[str, object], owner: str | None
) -> None:
    """A sale's own table is its own instance and covers the shared one by key.

    With another entry point it starts from nothing; a name without a table is its entry point.
    """
    found = convert(tomllib.loads(PLUGINS))
    assert plugin_of(found, sale, name) == (PluginSettings(use=use, options=options), owner)


def test_an_unknown_sale_is_told_with_the_nearest() -> None:
    """Asking for a sale that is not configured names those that are."""
    found = convert(tomllib.loads(PLUGINS.replace("sales.p", "sales.phone-x")))
    for ask in (lambda: modes_of(found, "phone-y"), lambda: plugin_of(found, "phone-y", "rate")):
        with pytest.raises(UnknownSaleError, match="did you mean 'phone-x'"):
            ask()
