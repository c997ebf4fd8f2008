"""The lottery, installed: a filter of somebody else's distribution."""

import pytest

pytestmark = pytest.mark.slow

WON, LOST = {"cid", "hal", "ida", "jon"}, {"ann", "bob", "dan", "eve"}
"""By lot in the sale ``drop``, round 1, at a share of 0.2."""


def test_it_is_found_and_described(run) -> None:
    """Its entry point is enough: doorbuster lists it and knows its options."""
    listed = {item["name"]: item for item in run("plugins", "list")["plugins"]}
    assert listed["lottery"]["distribution"] == "doorbuster-lottery 0.1.0"
    told = run("plugins", "info", "lottery")
    assert (told["stages"], told["on_fault"], told["promise"]) == (["filter"], "closed", None)
    assert (told["problems"], told["not_offered"]) == ([], [])
    share, word = told["options"]
    assert (share["name"], share["required"]) == ("share", True)
    assert (word["name"], word["default"]) == ("round", "1")


def test_a_sale_admits_its_share(run, config, ask) -> None:
    """By config only: who was not drawn is BLOCKED, the same ones each time, and the rest buys."""
    config('[pipeline]\nfilter = ["lottery"]\n[plugins.lottery]\nshare = 0.2\n')
    for _ in range(2):
        report = run("replay", ask(*sorted(WON | LOST)))
        assert report["outcomes"] == {"ACCEPTED": 4, "BLOCKED": 4}
        assert report["orders"] == 4
    assert {order["buyer"] for order in run("orders", "list")["orders"]} == WON


def test_a_share_that_is_none_is_refused_when_config_loads(run, config) -> None:
    """With its full key, and what is expected."""
    config('[pipeline]\nfilter = ["lottery"]\n[plugins.lottery]\nshare = 1.5\nrounds = "2"\n')
    error = run("config", "check", code=2)["error"]
    assert "plugins.lottery.share" in error
    assert "plugins.lottery.rounds" in error


def test_its_own_tests_pass(conformance) -> None:
    """The laws of gates, and its rule."""
    assert "passed" in conformance("doorbuster-lottery")
