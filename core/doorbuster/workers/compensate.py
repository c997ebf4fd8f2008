"""Role ``compensate``: holds go back, accepted units return (protocol.md 4.3, 4.4).

Its own lane (S0-60): a plugin's ``compensate`` is never called on the request side. Each step
is idempotent by order_no, whatever asked for it.
"""

from __future__ import annotations

from typing import Final

from doorbuster.ledger import Job, units
from doorbuster.model import Compensation, IntentState
from doorbuster.outcomes import Code, Compensated
from doorbuster.runtime import SaleRuntime
from doorbuster.tiers import Tier
from doorbuster.workers.role import Tools

__all__ = ["Compensate"]

_JOBS: Final = 200
_BACKOFF_MAX_S: Final = 30.0


class Compensate:
    """Leases jobs of the compensation lane and takes each to its end."""

    name = "compensate"
    hurries = True

    def __init__(self, tools: Tools) -> None:
        """Work on the sales of ``tools.world``."""
        self._tools = tools

    def run_once(self) -> bool:
        """Do one lease's worth of jobs; one that fails waits with back-off, alone."""
        tools = self._tools
        runtimes = tools.world.by_sid()
        jobs = tools.ledger.claim_jobs(
            {sid: runtime.id for sid, runtime in runtimes.items()},
            limit=_JOBS,
            lease_s=tools.settings.lease_s,
        )
        worked = False
        for job in jobs:
            try:
                done = self._do(runtimes[job.sid], job)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - it stops no other's turn
                tools.alarm("compensate-failed", "warning", runtimes[job.sid].id, error=repr(error))
                done = False
            worked |= done
            if not done:
                pause = min(_BACKOFF_MAX_S, 0.1 * 2 ** min(job.tries, 10))
                tools.ledger.retry_job(job, after_s=pause)
        return worked

    def _do(self, runtime: SaleRuntime, job: Job) -> bool:
        tools, item = self._tools, job.reservation
        if job.returned_as is not None:
            self._void(runtime, job)
            if tools.ledger.finish_return(job):
                self._returned(runtime, job, job.returned_as)
        places = tools.ledger.places_of(job.sid, item.epoch)
        backend = places.get(item.place) or next(iter(places.values()), None)
        if backend is None:
            return False
        bound = tools.world.deductor(runtime.id, backend)
        if bound is None:
            return False
        if bound.tier is Tier.ROUTER:
            tools.ledger.forget_job(job, backend_done=True)
            return True
        (answer,) = bound.hooks["compensate"]([_compensation(job)])
        if not isinstance(answer, Compensated):  # UNKNOWN: asked again, it is idempotent
            return False
        wrote = answer in (Compensated.DONE, Compensated.ALREADY)
        return tools.ledger.forget_job(job, backend_done=wrote, epoch=item.epoch)

    def _void(self, runtime: SaleRuntime, job: Job) -> None:
        """Make sure no order of a returned unit lives on, before the unit is free (4.4 b)."""
        attempt = job.reservation.attempt
        name = self._tools.ledger.persist_of(job.sid, attempt.buyer, attempt.request_id)
        if name is not None:
            hooks = self._tools.world.wiring.bound(runtime.id, name).hooks
            if "void" in hooks:
                hooks["void"](job.reservation)

    def _returned(self, runtime: SaleRuntime, job: Job, state: IntentState) -> None:
        attempt, sale = job.reservation.attempt, runtime.view.sale
        runtime.known.drop(attempt.buyer, attempt.request_id)
        tell = self._tools.world.tell
        tell("units_returned", sale.id, sale, sorted(units(attempt.lines)))
        tell("order_changed", sale.id, sale, job.reservation.order_no, "RETURNING", str(state))

    def waiting(self) -> int:
        """Count jobs of the sales this process knows."""
        return self._tools.ledger.jobs(list(self._tools.world.by_sid()))

    def finish(self) -> None:
        """Nothing is held between two rounds."""


def _compensation(job: Job) -> Compensation:
    """What the plugin is to write, and the units that come back by it (protocol.md 4.7)."""
    if job.returned_as is not None:  # funding brings an order's units back, not the backend
        return Compensation(job.reservation, "RETURNED", Code.ACCEPTED)
    need = units(job.reservation.attempt.lines)
    given = {sku: n - job.phantom.get(sku, 0) for sku, n in need.items()}
    state = "RETURNED" if job.code is Code.ACCEPTED else "ABORTED"
    return Compensation(job.reservation, state, job.code, {k: n for k, n in given.items() if n})
