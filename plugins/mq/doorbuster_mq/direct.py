"""Persist orders in the request, right after the accept commit.

The buyer's answer waits for the order row, so there is no backlog while persist keeps up. It
changes no promise: the attempt is durable by its accept, the outbox row is leased to the
request that wrote it, and whatever that request leaves (a fault, a crash, a shed) is claimed by
a worker like any other batch. Journal ``ledger`` only.
"""

from __future__ import annotations

from typing import Final

from doorbuster.plugin import Context, Delivery, PluginOptions

__all__ = ["Direct"]


class Direct:
    """Delivery inline. No hooks: the core calls ``persist`` after the commit."""

    delivery: Final = Delivery.INLINE

    def __init__(self, options: PluginOptions, context: Context) -> None:
        """Take no options and keep nothing."""
