"""How accepted orders reach a worker: claimed from the ledger, or persisted in the request."""

from doorbuster_mq.direct import Direct
from doorbuster_mq.outbox import Outbox

__all__ = ["Direct", "Outbox"]
