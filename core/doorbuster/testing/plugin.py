"""The pytest plugin of ``doorbuster[testing]``: fixtures, and what suites tell at the end.

Registered by the entry point ``pytest11``; it imports nothing of doorbuster until a test asks.
Fixtures are ``context`` and ``kit``. A law that a backend declined is reported as ``declined``,
not as skipped, and the run ends with who declined which laws, and what that costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from doorbuster.context import Context
    from doorbuster.testing.kit import Kit

__all__ = ["context", "kit"]

pytest.register_assert_rewrite("doorbuster.testing.suites", "doorbuster.testing.machine")

_DECLINED: Final = "declined: "  # as doorbuster.testing.suites.base has it
_SUITES: Final = "doorbuster.testing.suites"
_NAMED_MAX: Final = 10  # laws of one reason that are named without being asked


@pytest.fixture
def kit() -> Iterator[Kit]:
    """A ledger in memory and a manual clock, new for each test; see :class:`Kit`."""
    from doorbuster.testing.kit import Kit

    found = Kit()
    yield found
    found.close()


@pytest.fixture
def context(kit: Kit) -> Context:
    """All that a plugin's ``__init__`` needs beside its options."""
    return kit.context()


# ------------------------------------------------------------------ soak forms of laws
def pytest_configure(config: pytest.Config) -> None:
    """Know the marker of the laws that run for long."""
    config.addinivalue_line("markers", "soak: the full count of a law; run it with -m soak")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the soak forms of suites out unless ``-m`` says anything: they take minutes."""
    if config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("soak") and _is_law(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _is_law(item: pytest.Item) -> bool:
    cls = getattr(item, "cls", None)
    return cls is not None and any(base.__module__.startswith(_SUITES) for base in cls.__mro__)


# ------------------------------------------------------------------ declined laws
def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """A declined law is its own category, so that nobody looks for it among skipped tests."""
    return ("declined", "d", "DECLINED") if _reason(report) else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print for each suite class which laws it declined, and what the missing hook costs."""
    told: dict[tuple[str, str], list[str]] = {}
    for report in terminalreporter.stats.get("declined", []):
        where, _, law = report.nodeid.rpartition("::")
        told.setdefault((where, _reason(report)), []).append(law)
    if not told:
        return
    terminalreporter.section("declined laws")
    for (where, reason), laws in sorted(told.items()):
        terminalreporter.write_line(f"{where} {reason}")
        shown = ", ".join(sorted(laws))
        if len(laws) > _NAMED_MAX and terminalreporter.verbosity < 1:
            numbers = Counter(law.removeprefix("test_")[:2] for law in laws)
            by = ", ".join(f"{number} x{n}" for number, n in sorted(numbers.items()))
            are = f", by their numbers {by}" if all(map(str.isdigit, numbers)) else ""
            shown = f"{len(laws)} laws{are}; -v names them"
        terminalreporter.write_line(f"    {shown}")


def _reason(report: Any) -> str:
    """Why a law was declined; nothing for any other report."""
    found = getattr(report, "longrepr", None)
    if not getattr(report, "skipped", False) or not isinstance(found, tuple):
        return ""
    text = str(found[2]).removeprefix("Skipped: ")
    return text.removeprefix(_DECLINED) if text.startswith(_DECLINED) else ""
