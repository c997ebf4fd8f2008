"""Flash sales that never oversell and never lose an accepted order.

>>> from doorbuster import Engine, Attempt, Line, Code

Names are imported when first used, so that ``import doorbuster`` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from doorbuster.engine import Engine
    from doorbuster.model import Attempt, Line
    from doorbuster.outcomes import Code, Outcome

__all__ = ["Attempt", "Code", "Engine", "Line", "Outcome", "__version__"]
__version__ = "0.1.0"

_HOMES = {
    "Attempt": "doorbuster.model",
    "Code": "doorbuster.outcomes",
    "Engine": "doorbuster.engine",
    "Line": "doorbuster.model",
    "Outcome": "doorbuster.outcomes",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'doorbuster' has no attribute {name!r}")
