"""What every test may use, and what the whole run must leave behind: nothing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _need(tool: str) -> str:
    beside = Path(sys.executable).with_name(tool)
    found = shutil.which(tool) or (str(beside) if beside.exists() else None)
    if found is None and tool.isidentifier() and importlib.util.find_spec(tool):
        found = tool
    if found is None:
        reason = f"{tool} is neither a program on PATH nor a module of this Python"
        # locally a missing server is a fact of the machine; a build server has them all
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}, and CI=true promises it", pytrace=False)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="session")
def need() -> Callable[[str], str]:
    """``need(tool)``: the path of a program, or the name of an importable module.

    Where there is neither, the test is skipped with the reason, and with ``CI=true`` it fails.
    """
    return _need


@pytest.fixture(scope="session", autouse=True)
def _no_database_left_behind() -> Iterator[None]:
    """Fail the run when a test made the default database in the repository: it has tmp_path."""
    before = set(ROOT.glob("doorbuster.db*"))
    yield
    left = sorted(path.name for path in set(ROOT.glob("doorbuster.db*")) - before)
    assert not left, f"a test left {', '.join(left)} in {ROOT.name}; give it a url in tmp_path"
