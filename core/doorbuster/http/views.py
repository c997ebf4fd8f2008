"""What anybody may know of a sale, from memory: no request reads the ledger.

Nothing here counts stock: a number that is right for a moment invites polling, and the answer to
an attempt is the only one that holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from doorbuster.http.replies import json_bytes
from doorbuster.model import SaleState, Sku
from doorbuster.runtime import SaleRuntime, View
from doorbuster.settings import CLOSED

__all__ = ["SaleViews", "iso"]


def iso(at_ms: int) -> str:
    """Write ledger milliseconds as ISO 8601 in UTC: ``2026-11-11T20:00:00.000Z``."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class SaleViews:
    """Public views of sales, each written once per change of its control row."""

    def __init__(self) -> None:
        """Write each view when it is first asked for."""
        self._written: dict[str, tuple[View, bytes]] = {}

    def body(self, runtime: SaleRuntime, now_ms: int) -> bytes:
        """The view of one sale as JSON; ``now_ms`` is ledger time, so that clients can count down.

        ``state`` is created, warmed, open, paused or ended. An open sale is judged by its window;
        one that the ledger does not have yet is created, and one in mode ``closed`` paused: that
        is what an attempt would meet.
        """
        view = runtime.view  # one reference: a refresh between two reads would mix two views
        written = self._written.get(runtime.id)
        if written is None or written[0] is not view:
            written = (view, json_bytes(_described(view))[:-1])
            self._written[runtime.id] = written
        return b'%s,"server_time":"%s"}' % (written[1], iso(now_ms).encode())


def _described(view: View) -> dict[str, Any]:
    sale, row = view.sale, view.row
    state = SaleState.CREATED if row is None else row.state
    if row is not None and state is SaleState.OPEN and row.effective == CLOSED:
        state = SaleState.PAUSED
    return {
        "id": sale.id,
        "state": str(state),
        "opens_at": None if sale.opens_at_ms is None else iso(sale.opens_at_ms),
        "closes_at": None if sale.closes_at_ms is None else iso(sale.closes_at_ms),
        "per_buyer": _set(msgspec.structs.asdict(sale.per_buyer)),
        "skus": [_sku(sku) for sku in sale.skus.values()],
    }


def _sku(sku: Sku) -> dict[str, Any]:
    return _set(
        {
            "id": sku.id,
            "per_buyer": sku.per_buyer,
            "price_minor": sku.price_minor,
            "currency": sku.currency,
        }
    )


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
