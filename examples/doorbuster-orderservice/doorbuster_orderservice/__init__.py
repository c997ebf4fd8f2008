"""``order-service``, a plugin of doorbuster: write orders into a team's own service."""

from doorbuster_orderservice.plugin import OrderService

__all__ = ["OrderService"]
