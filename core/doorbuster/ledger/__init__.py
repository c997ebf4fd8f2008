"""The durable truth of units, intents and orders. Start at :mod:`doorbuster.ledger.ledger`."""

from doorbuster.ledger.accept import Accepted, Short, outcome_of, units
from doorbuster.ledger.control import Limits, SaleRow, judge
from doorbuster.ledger.grants import UNALLOCATED, FundingRow, Left
from doorbuster.ledger.ledger import Ledger
from doorbuster.ledger.outbox import Claim
from doorbuster.ledger.returns import Job

__all__ = [
    "UNALLOCATED",
    "Accepted",
    "Claim",
    "FundingRow",
    "Job",
    "Ledger",
    "Left",
    "Limits",
    "SaleRow",
    "Short",
    "judge",
    "outcome_of",
    "units",
]
