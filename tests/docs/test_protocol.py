"""Every numbered law of docs/protocol.md has a test named after it, or a reason why not yet."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULES = set(
    re.findall(r"^\W*(\d\.\d) ", (ROOT / "docs" / "protocol.md").read_text("utf-8"), re.MULTILINE)
)

NOT_BUILT = {
    "3.4": "deadlines by the time of a Redis server",
    "3.5": "error replies of a Redis server",
    "3.6": "incarnations of a Redis server",
    "4.2": "apply, of journal 'stream'",
    "6.0": "the hand-over's control row",
    "6.2": "the hand-over's drain",
    "6.3": "the hand-over's close",
    "6.4": "the hand-over's seed",
    "6.5": "the hand-over's open",
}


def rules_named() -> set[str]:
    names = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    return {f"{a}.{b}" for a, b in re.findall(r"def test_(\d)_(\d)_", names)}


def test_every_law_has_a_test_named_after_it() -> None:
    """`test_4_3_...` is a test of rule 4.3; a rule without one says what is not built yet."""
    assert len(RULES) >= 30
    assert RULES - rules_named() == NOT_BUILT.keys()


def test_no_test_names_a_law_that_is_not_there() -> None:
    """A number in a test's name is a rule, or one of the sections without numbered rules."""
    assert {rule for rule in rules_named() if rule[0] not in "89"} <= RULES
