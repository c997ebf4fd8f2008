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
from doorbuster.settings import StageSettings

__all__ = [
    "COSTS",
    "PROMISES",
    "Bound",
    "Problems",
    "Tier",
    "UnfitError",
    "check_fault",
    "delivery_problem",
    "one_line",
    "pair_problem",
    "places_problem",
    "promise_of",
    "promise_problem",
    "tier_problem",
]

PROMISES: Final = ("none", "relaxed", "host", "quorum", "database")
"""What ACCEPTED may survive, weakest first (design: promises)."""

COSTS: Final[Mapping[str, str]] = {
    "places": "it has one place",
    "debit": "it has one place, and a restock down takes only units that are not lent",
    "count": "drift waits for the next epoch",
    "holds": "a leaked hold waits for the next epoch",
    "adopt": "a lost server means a new epoch",
    "push": "a raised quota or a pause waits for the next epoch at its places",
    "void": "an accepted attempt cannot be given back",
}
"""What the absence of an optional hook costs; never exactness."""

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


class UnfitError(WiringError):
    """Several things do not fit together: a line each."""

    def __init__(self, problems: Iterable[SettingProblem], *, sale: str | None = None) -> None:
        """Collect ``problems``; one without a key stands wherever the plugin is named."""
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems), sale=sale)


class Problems:
    """What is wrong, collected; equal problems are told once, each on one line."""

    def __init__(self) -> None:
        """Nothing is wrong yet."""
        self._found: dict[SettingProblem, bool] = {}  # does it concern more than options?

    def __bool__(self) -> bool:
        """Answer whether anything is wrong."""
        return bool(self._found)

    def add(self, key: str, text: str | None) -> None:
        """Note ``text`` for ``key``; ``None`` is no problem."""
        if text is not None:
            self._found.setdefault(SettingProblem(key, one_line(text)), True)

    def take(self, error: SettingError | UnfitError, key: str = "") -> None:
        """Note all problems of ``error``; those without a key stand at ``key``."""
        wiring = not isinstance(error, SettingError)
        for problem in error.problems:
            found = SettingProblem(problem.key or key, one_line(problem[1]))
            self._found[found] = self._found.get(found, False) or wiring

    def refusal(self, sale: str | None = None) -> SettingError | UnfitError:
        """All of them as one exception; a ``WiringError`` unless they are about options only."""
        if any(self._found.values()):
            return UnfitError(self._found, sale=sale)
        return SettingError(self._found)


def one_line(text: str) -> str:
    """Others' messages have line breaks, and here a line is a problem."""
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


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


def tier_problem(deduct: Bound) -> str | None:
    """A deduct plugin is a router, or offers all that a holder needs (design: tiers)."""
    offered = [hook for hook in (*_HOLDER_NEEDS, *_HOLDER_OPTIONAL) if hook in deduct.hooks]
    if offered and (missing := _missing(_HOLDER_NEEDS, deduct.hooks)):
        return (
            f"{deduct.name!r} offers {', '.join(offered)} but lacks "
            f"{', '.join(missing)}; a holder needs them all, a router none"
        )
    journal = [hook for hook in _JOURNAL_NEEDS if hook in deduct.hooks]
    needed = (*_JOURNAL_NEEDS, *_HOLDER_NEEDS)
    if journal and (missing := _missing(needed, deduct.hooks)):
        return (
            f"{deduct.name!r} offers {', '.join(journal)} but lacks "
            f"{', '.join(missing)}; tier journal needs them all"
        )
    return None


def places_problem(deduct: Bound, sale: Sale) -> str | None:
    """Places are distinct ids, and several of them need ``debit``: else units strand (5.3)."""
    places = deduct.places(sale)
    bad = [place for place in places if not is_id(place)]
    if not places or bad or len(set(places)) != len(places):
        return (
            f"{deduct.name!r} names places {places!r}; expected distinct names of 1-64 of "
            "A-Z a-z 0-9 _ -"
        )
    if deduct.tier is not Tier.ROUTER and len(places) > 1 and "debit" not in deduct.hooks:
        return (
            f"{deduct.name!r} holds units in {len(places)} places but offers no debit, "
            "so units of one cannot reach another; offer debit, or name one place"
        )
    return None


def pair_problem(deduct: Bound, journal: str) -> str | None:
    """A journal of its own is for a plugin that accepts by itself (design: tiers)."""
    if journal != "stream" or deduct.tier is Tier.JOURNAL:
        return None
    return (
        "journal 'stream' needs a deduct plugin of tier journal, "
        f"{deduct.name!r} is a {deduct.tier}; use journal = 'ledger'"
    )


def promise_of(deduct: Bound | None, journal: str, *, in_memory: bool) -> str | None:
    """Answer what ACCEPTED survives; ``None`` where only a plugin that does not fit could say."""
    if journal == "ledger":
        return "none" if in_memory else "database"
    if deduct is None or deduct.tier is not Tier.JOURNAL:
        return None
    return str(getattr(deduct.instance, "promise", "none"))


def promise_problem(mode: str, stages: StageSettings, promise: str, least: str) -> str | None:
    """A mode promises no less than its sale asks for (design: promises)."""
    if PROMISES.index(promise) >= PROMISES.index(least):
        return None
    return (
        f"mode {mode!r} has {stages.deduct!r} with journal {stages.journal!r}, which promises "
        f"{promise!r}, less than {least!r}; lower it or change the pair"
    )


def delivery_problem(enqueue: Bound) -> str | None:
    """An enqueue plugin says how it delivers, and a broker has its methods (design.md 2)."""
    if enqueue.delivery is None:
        return (
            f"{enqueue.name!r} has no class attribute 'delivery'; "
            "set it to Delivery.CLAIM, INLINE or BROKER, or name an enqueue plugin"
        )
    missing = _missing(_BROKER_NEEDS, enqueue.hooks)
    if enqueue.delivery is Delivery.BROKER and missing:
        return f"{enqueue.name!r} has delivery BROKER but lacks {', '.join(missing)}"
    return None


def _missing(needed: Iterable[str], hooks: Mapping[str, Any]) -> list[str]:
    return [hook for hook in needed if hook not in hooks]
