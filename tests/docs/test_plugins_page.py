"""The page on writing plugins says what the code says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from doorbuster import hookspecs, testing, tiers
from doorbuster.cli.scaffold import Stage

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text("utf-8")


def section(title: str) -> str:
    """The text under one ``##`` title."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def hooks(group: type) -> set[str]:
    """The hooks of one group of specs."""
    return {name for name in vars(group) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("stage", "suite", "needed"),
    [
        ("filter", "GateSuite", {"filter"}),
        ("limit", "GateSuite", {"limit"}),
        ("deduct", "StockSuite", {"deduct", "compensate"} | hooks(hookspecs.Holder)),
        ("enqueue", "QueueSuite", {"enqueue"} | hooks(hookspecs.Broker)),
        ("persist", "PersistSuite", {"persist"} | hooks(hookspecs.PersistExtras)),
    ],
)
def test_each_stage_has_its_hooks_and_its_suite(stage: str, suite: str, needed: set[str]) -> None:
    """Nothing that a stage may offer is left out, and the suite that is named is there."""
    text = section(stage)
    tables = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    told = set(re.findall(r"`([a-z_]+)(?:\([^)`]*\))?`", tables))
    assert needed <= told
    assert f"**{suite}**" in text
    assert inspect.isclass(getattr(testing, suite))


def test_there_is_a_section_for_each_stage() -> None:
    """And for the observers, each of which is named."""
    assert all(section(stage.value) for stage in Stage)
    assert hooks(hookspecs.Observers) <= set(re.findall(r"`([a-z_]+)`", section("Watch")))


def test_what_a_missing_hook_costs_is_said_the_same_everywhere() -> None:
    """On the page as in the one table of ``plugins info`` and the suites; for every such hook."""
    table = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE))
    assert table == tiers.COSTS
    optional = hooks(hookspecs.Holder) - {*tiers._HOLDER_NEEDS} | hooks(hookspecs.PersistExtras)
    assert tiers.COSTS.keys() == optional
