"""Every built-in queue, and the broker in memory, keep the laws of queues."""

import pytest

from doorbuster.plugin import PluginOptions
from doorbuster.testing import MemoryQueue, QueueSuite
from doorbuster_mq import Direct, Outbox


class TestOutbox(QueueSuite):
    """``outbox``: workers claim."""

    @pytest.fixture
    def queue(self, context):
        return Outbox(PluginOptions(), context)


class TestDirect(QueueSuite):
    """``direct``: persist in the request."""

    @pytest.fixture
    def queue(self, context):
        return Direct(PluginOptions(), context)


class TestMemoryQueue(QueueSuite):
    """The broker in memory: what the laws of brokers are run against first."""

    @pytest.fixture
    def queue(self, context):
        return MemoryQueue(MemoryQueue.Options(), context)

    @pytest.fixture
    def reopen(self, context, kit):
        def reopen():
            kit.clock.advance(30)
            return MemoryQueue(MemoryQueue.Options(), context)

        return reopen

    @pytest.fixture(params=["refusing", "mute"])
    def outage(self, request, queue, context):
        return getattr(context.state["broker"], request.param)
