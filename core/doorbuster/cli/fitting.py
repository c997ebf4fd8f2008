"""Does a plugin's class fit the hooks? Asked of the class alone, without building it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pluggy

    from doorbuster.tiers import Bound

__all__ = ["problems"]


def problems(cls: type[Any], bound: Bound) -> list[str]:
    """Everything that would stop config from using the class, in words; empty when it fits.

    Args:
        cls: the plugin's class.
        bound: its name and its marked methods, with the class as the instance.
    """
    from doorbuster.loading import find_hooks
    from doorbuster.tiers import delivery_problem, tier_problem

    _, found = find_hooks(_manager(), cls, bound.name, bound.use)
    if found:  # a hook with a typo would be reported again, as one that is missing
        return found
    asked = [
        tier_problem(bound) if "deduct" in bound.hooks else None,
        delivery_problem(bound) if "enqueue" in bound.hooks or bound.delivery else None,
    ]
    return [problem for problem in asked if problem is not None]


def _manager() -> pluggy.PluginManager:
    import pluggy

    from doorbuster import hookspecs

    manager = pluggy.PluginManager(hookspecs.PROJECT)
    for spec in (
        hookspecs.Stages,
        hookspecs.Holder,
        hookspecs.Journal,
        hookspecs.Broker,
        hookspecs.PersistExtras,
        hookspecs.Observers,
    ):
        manager.add_hookspecs(spec)
    return manager
