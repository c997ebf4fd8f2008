"""What a door may keep in its own memory: the sold-out mark."""

from doorbuster_local_cache.sold_out import SoldOut

__all__ = ["SoldOut"]
