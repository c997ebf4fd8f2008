"""What a built plugin is, and what the compiler asks of the one that a stage names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from doorbuster.errors import SettingError, SettingProblem, WiringError, nearest
from doorbuster.hookspecs import Delivery
from doorbuster.identity import is_id
from doorbuster.model import Sale

__all__ = [
    "PROMISES",
    "Bound",
    "Tier",
    "check_delivery",
    "check_fault",
    "check_places",
    "check_tier",
]

PROMISES: Final = ("none", "relaxed", "host", "quorum", "database")
"""What ACCEPTED may survive, weakest first (design: promises)."""

_HOLDER_NEEDS: Final = ("compensate", "prepare", "credit", "open", "retire")
_HOLDER_OPTIONAL: Final = ("debit", "count", "holds", "adopt", "push")
_JOURNAL_NEEDS: Final = ("freeze", "seed", "read", "trim")
_BROKER_NEEDS: Final = ("enqueue", "receive", "settle")


class Tier(StrEnum):
    """Who decides with a deduct plugin, by the hooks it offers (design: tiers)."""

    ROUTER = "router"
    HOLDER = "holder"
    JOURNAL = "journal"


class Bound(msgspec.Struct, frozen=True):
    """A built plugin: its instance and its bound hook methods."""

    name: str
    use: str
    sale: str | None
    instance: Any
    hooks: Mapping[str, Callable[..., Any]]
    on_fault: str

    @property
    def tier(self) -> Tier:
        """The tier of a deduct plugin."""
        if all(hook in self.hooks for hook in (*_HOLDER_NEEDS, *_JOURNAL_NEEDS)):
            return Tier.JOURNAL
        return Tier.HOLDER if "compensate" in self.hooks else Tier.ROUTER

    @property
    def delivery(self) -> Delivery | None:
        """How orders reach a worker, for an enqueue plugin."""
        found = getattr(self.instance, "delivery", None)
        return found if isinstance(found, Delivery) else None

    def places(self, sale: Sale) -> list[str]:
        """The places that warm-up funds; one when the plugin names none."""
        return list(self.hooks["places"](sale)) if "places" in self.hooks else ["all"]


def check_fault(value: Any, cls: type[Any], table: str) -> str:
    """Answer the ``on_fault`` word of a plugin.

    Raises:
        SettingError: it is neither ``open`` nor ``closed``, nor one the class adds.
    """
    allowed = ("open", "closed", *getattr(cls, "on_fault_values", ()))
    if value not in allowed:
        raise SettingError(
            [
                SettingProblem(
                    f"{table}.on_fault",
                    f"{value!r} is not one of {', '.join(allowed)}{nearest(str(value), allowed)}",
                )
            ]
        )
    return str(value)


def check_tier(deduct: Bound, where: str) -> None:
    """A deduct plugin is a router, or offers all that a holder needs (design: tiers)."""
    offered = [hook for hook in (*_HOLDER_NEEDS, *_HOLDER_OPTIONAL) if hook in deduct.hooks]
    if offered and (missing := _missing(_HOLDER_NEEDS, deduct.hooks)):
        raise WiringError(
            f"{where}: {deduct.name!r} offers {', '.join(offered)} but lacks "
            f"{', '.join(missing)}; a holder needs them all, a router none",
            stage="deduct",
            plugin=deduct.name,
        )
    journal = [hook for hook in _JOURNAL_NEEDS if hook in deduct.hooks]
    needed = (*_JOURNAL_NEEDS, *_HOLDER_NEEDS)
    if journal and (missing := _missing(needed, deduct.hooks)):
        raise WiringError(
            f"{where}: {deduct.name!r} offers {', '.join(journal)} but lacks "
            f"{', '.join(missing)}; tier journal needs them all",
            stage="deduct",
            plugin=deduct.name,
        )


def check_places(deduct: Bound, sale: Sale, where: str) -> None:
    """Places are distinct ids, and several of them need ``debit``: else units strand (5.3)."""
    places = deduct.places(sale)
    bad = [place for place in places if not is_id(place)]
    if not places or bad or len(set(places)) != len(places):
        raise WiringError(
            f"{where}: {deduct.name!r} names places {places!r}; expected distinct names of 1-64 of "
            "A-Z a-z 0-9 _ -",
            stage="deduct",
            plugin=deduct.name,
        )
    if deduct.tier is not Tier.ROUTER and len(places) > 1 and "debit" not in deduct.hooks:
        raise WiringError(
            f"{where}: {deduct.name!r} holds units in {len(places)} places but offers no debit, "
            "so units of one cannot reach another; offer debit, or name one place",
            stage="deduct",
            plugin=deduct.name,
        )


def check_delivery(enqueue: Bound, journal: str, where: str) -> Delivery:
    """Answer how an enqueue plugin delivers, and check what that asks of it.

    Raises:
        WiringError: no delivery, missing hooks, or INLINE with journal ``stream``.
    """
    delivery = enqueue.delivery
    if delivery is None:
        raise WiringError(
            f"{where}: {enqueue.name!r} has no class attribute 'delivery'; "
            "set it to Delivery.CLAIM, INLINE or BROKER, or name an enqueue plugin",
            stage="enqueue",
            plugin=enqueue.name,
        )
    if delivery is Delivery.BROKER and (missing := _missing(_BROKER_NEEDS, enqueue.hooks)):
        raise WiringError(
            f"{where}: {enqueue.name!r} has delivery BROKER but lacks {', '.join(missing)}",
            stage="enqueue",
            plugin=enqueue.name,
        )
    if delivery is Delivery.INLINE and journal == "stream":
        raise WiringError(
            f"{where}: {enqueue.name!r} persists in the request, which journal 'stream' has no "
            "commit for; use journal = 'ledger' or another enqueue",
            stage="enqueue",
            plugin=enqueue.name,
        )
    return delivery


def _missing(needed: Iterable[str], hooks: Mapping[str, Any]) -> list[str]:
    return [hook for hook in needed if hook not in hooks]
