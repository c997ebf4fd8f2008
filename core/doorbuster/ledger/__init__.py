"""The durable truth of units, intents and orders. Start at :mod:`doorbuster.ledger.ledger`."""

from doorbuster.ledger.accept import Accepted
from doorbuster.ledger.control import Limits, SaleRow, judge
from doorbuster.ledger.fundings import UNALLOCATED, FundingRow
from doorbuster.ledger.grants import Left, Needs
from doorbuster.ledger.invariants import Report
from doorbuster.ledger.ledger import Ledger
from doorbuster.ledger.outbox import Claim
from doorbuster.ledger.returns import Job
from doorbuster.ledger.room import Short
from doorbuster.ledger.stored import outcome_of, units

__all__ = [
    "UNALLOCATED",
    "Accepted",
    "Claim",
    "FundingRow",
    "Job",
    "Ledger",
    "Left",
    "Limits",
    "Needs",
    "Report",
    "SaleRow",
    "Short",
    "judge",
    "outcome_of",
    "units",
]
