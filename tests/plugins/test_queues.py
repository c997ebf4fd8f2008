"""Laws of the queue plugins that need no broker."""

import pluggy
import pytest

from doorbuster import hookspecs
from doorbuster.plugin import Delivery, PluginOptions
from doorbuster_mq import Direct, Outbox


@pytest.mark.parametrize(
    ("plugin", "delivery"), [(Outbox, Delivery.CLAIM), (Direct, Delivery.INLINE)]
)
def test_delivery_is_declared_on_the_class(plugin, delivery):
    """The class attribute ``delivery`` says how orders travel, before anything is built."""
    assert plugin.delivery is delivery


@pytest.mark.parametrize("plugin", [Outbox, Direct])
def test_only_a_broker_has_methods(plugin, make_context):
    """Outbox and direct carry nothing, so they cannot be the only copy of an order (F9)."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    for group in (hookspecs.Stages, hookspecs.Broker, hookspecs.Observers):
        manager.add_hookspecs(group)
    built = plugin(PluginOptions(), make_context())
    manager.register(built)
    assert manager.get_hookcallers(built) == []
