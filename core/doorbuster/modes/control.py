"""The mode of a sale: what config and operator request, what is effective.

A word that keeps deduct and journal takes effect with the next batch on every node. One that
changes either is a hand-over of units between backends; a sale that has grants refuses it.
"""

from __future__ import annotations

from typing import Final

from doorbuster.errors import WiringError, nearest
from doorbuster.ledger import Ledger, SaleRow
from doorbuster.settings import CLOSED, Settings, modes_of

__all__ = ["MODE_CLOSED", "follow_config", "request_mode"]

MODE_CLOSED: Final = CLOSED


def request_mode(
    ledger: Ledger, settings: Settings, row: SaleRow, word: str, actor: str
) -> SaleRow:
    """Set the requested mode and make it effective; clears a fuse, which it outranks.

    Raises:
        WiringError: an unknown mode, or one with another deduct or journal than the sale's
            grants are lent to.
    """
    modes = modes_of(settings, row.sale)
    if word != MODE_CLOSED:
        if word not in modes:
            known = [*modes, MODE_CLOSED]
            raise WiringError(
                f"sale {row.sale!r} has no mode {word!r}{nearest(word, known)}; "
                f"it has {', '.join(known)}",
                sale=row.sale,
            )
        stages = modes[word]
        if row.epoch and (stages.deduct, stages.journal) != (row.deduct, row.journal):
            raise WiringError(
                f"sale {row.sale!r} is started with deduct {row.deduct!r} and journal "
                f"{row.journal!r}; mode {word!r} has {stages.deduct!r} and {stages.journal!r}. "
                f"It stays in mode {row.effective!r}; end it, or choose a mode with the same pair",
                sale=row.sale,
            )
    return ledger.change_control(
        row,
        actor=actor,
        action="mode.request",
        requested=word,
        config_mode=word if actor == "config" else row.config_mode,
        fuse=None,
        effective=word,
    )


def follow_config(ledger: Ledger, settings: Settings, row: SaleRow) -> SaleRow:
    """Take config's mode word to the control row, only when the word itself changed.

    Raises:
        WiringError: the new word needs a hand-over; the sale keeps its mode.
    """
    word = settings.sales[row.sale].mode
    if word == row.config_mode:
        return row
    return request_mode(ledger, settings, row, word, "config")
