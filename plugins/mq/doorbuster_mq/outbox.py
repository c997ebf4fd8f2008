"""Leave accepted orders in the ledger's outbox, where workers claim them: no queue server.

The accept transaction writes one outbox row per committed batch (protocol.md 4.1, F9), so
nothing has to be carried and nothing can be lost on the way. Workers lease whole batches; a
lease that runs out is claimed by another worker (S0-30, O4).
"""

from __future__ import annotations

from typing import Final

from doorbuster.plugin import Context, Delivery, PluginOptions

__all__ = ["Outbox"]


class Outbox:
    """Delivery by claim (default). No hooks: the core's worker does all of it."""

    delivery: Final = Delivery.CLAIM

    def __init__(self, options: PluginOptions, context: Context) -> None:
        """Take no options and keep nothing."""
