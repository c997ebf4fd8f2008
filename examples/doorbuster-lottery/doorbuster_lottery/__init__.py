"""``lottery``, a plugin of doorbuster: let a share of buyers in by lot."""

from doorbuster_lottery.plugin import Lottery

__all__ = ["Lottery"]
