"""The demo's own sale: complete in itself, so that it runs without a folder or beside one."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["DEMO_SALE", "DEMO_SKU", "DEMO_URL", "MODES", "demo_overrides"]

DEMO_SALE: Final = "demo"
DEMO_SKU: Final = "unit"
DEMO_URL: Final = "sqlite:///doorbuster-demo.db"
"""The demo's own database, in the working folder."""

_STAGES: Final = {
    "filter": [],
    "limit": [],
    "deduct": "db-atomic",
    "journal": "ledger",
    "enqueue": "outbox",
    "persist": "orders",
}
MODES: Final = {
    "segments": _STAGES | {"deduct": "db-segments"},
    "direct": _STAGES | {"enqueue": "direct"},
}
"""The demo's modes beside ``normal``, each with every stage named."""


def demo_overrides(
    *, stock: int, limit: int | None, mode: str, url: str | None = None
) -> dict[str, Any]:
    """Make the tables that describe the demo's sale, to lay over any configuration.

    Args:
        stock: units of its one sku.
        limit: units per buyer; ``None``: no limit.
        mode: ``normal`` or one of :data:`MODES`.
        url: the ledger's database; ``None``: what the configuration says.
    """
    sale: dict[str, Any] = {
        "skus": {DEMO_SKU: stock},
        "mode": mode,
        "pipeline": _STAGES,
        "modes": MODES,
    }
    if limit is not None:
        sale["per_buyer"] = limit
    tables: dict[str, Any] = {"sales": {DEMO_SALE: sale}}
    if url is not None:
        tables["ledger"] = {"url": url}
    return tables
