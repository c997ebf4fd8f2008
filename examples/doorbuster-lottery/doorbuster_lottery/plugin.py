"""A buyer's lot is a stable hash, so that it needs no store and nobody gets a second one."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from doorbuster.plugin import (
    Batch,
    Code,
    Context,
    PluginOptions,
    Rejection,
    Verdicts,
    hookimpl,
    stable_hash,
)

__all__ = ["Lottery"]

_LOTS: Final = 1 << 32  # stable_hash answers 0 to this, less one


class Lottery:
    """Let a share of the buyers in by lot, the same ones at every try."""

    on_fault = "closed"  # who was not drawn must not get in by a fault

    class Options(PluginOptions):
        """Settings under ``[plugins.lottery]``."""

        share: Annotated[float, msgspec.Meta(ge=0, le=1)]
        """The share of buyers who are let in, 0 to 1; no default, for only the seller knows."""
        round: str = "1"
        """Another word draws anew; default "1". Another sale draws anew by itself."""

    def __init__(self, options: Options, context: Context) -> None:
        """Make the refusal once; who is drawn needs no memory."""
        self._drawn = round(options.share * _LOTS)
        self._round = options.round
        self._refused = Rejection(Code.BLOCKED, {"reason": "lottery", "round": options.round})

    @hookimpl
    def filter(self, batch: Batch) -> Verdicts:
        """Let each attempt pass whose buyer was drawn for this sale and round."""
        drum = f"{batch.sale.id}|{self._round}|"
        drawn, refused = self._drawn, self._refused
        return [None if stable_hash(drum + attempt.buyer) < drawn else refused for attempt in batch]
