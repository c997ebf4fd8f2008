"""Gates that refuse by rate or by name: a token bucket, a rate per buyer, a deny-list."""

from doorbuster_limiter.buyer_rate import BuyerRate
from doorbuster_limiter.deny_list import DenyList
from doorbuster_limiter.rate import Rate

__all__ = ["BuyerRate", "DenyList", "Rate"]
