"""The pytest plugin of ``doorbuster[testing]``: the fixtures ``context`` and ``kit``.

Registered by the entry point ``pytest11``; it imports nothing of doorbuster until a test asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from doorbuster.context import Context
    from doorbuster.testing.kit import Kit

__all__ = ["context", "kit"]


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
