"""Law 14: an instance that many threads share, and one that a fork took along."""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from doorbuster.testing.flow import SALE, Flow
from doorbuster.testing.probes import LedgerProbe
from doorbuster.testing.suites.base import Race, declined
from doorbuster.testing.suites.stock_desk import Desk, ask, batch_of, codes
from doorbuster.testing.suites.stock_ground import StockGround, finish, names
from doorbuster.tiers import Bound, Tier

__all__ = ["SharingLaws"]

OpenSale = Callable[..., Flow]


class SharingLaws(StockGround):
    """What holds when an instance is not alone."""

    def test_14_threads_do_everything_at_once(self, open_sale: OpenSale, race: Race) -> None:
        """14. Buying, replaying, returning and the workers at once: everybody gets an answer."""
        sale = open_sale(gold=9, per_buyer=2)

        def work(n: int) -> list[str]:
            if n == 0:
                return [str(finish(sale))]
            told = [sale.buy(f"b{n}", request_id=f"r{k % 2}") for k in range(3)]
            sale.give_back(f"b{n}", "r0")
            return names(told)

        told = {name for part in race(work, 4)[1:] for name in part}
        assert told <= {"ACCEPTED", "OVER_LIMIT", "BUSY"}
        assert finish(sale) == 0
        assert sum(LedgerProbe(sale.ledger).sold(SALE).values()) <= 6

    def test_14_an_instance_survives_a_fork(
        self, request: pytest.FixtureRequest, bound: Bound
    ) -> None:
        """14. Declared ``forks``: the child's calls reach the same backend as its parent's."""
        if not self.capabilities.forks:
            declined("declares no forks", "a forking server builds its plugins in each child")
        if bound.tier is Tier.ROUTER:
            batch = batch_of([f"b{n}" for n in range(20)])
            places = [item.place for item in bound.hooks["deduct"](batch)]
            assert _in_child(lambda: [i.place for i in bound.hooks["deduct"](batch)]) == places
            return
        desk: Desk = request.getfixturevalue("open_desk")(gold=5)
        hold = desk.hold(ask("ann"))
        assert _in_child(lambda: codes(desk.deduct(ask("ann"), ask("bob")))) == ["HELD", "HELD"]
        assert desk.held() == 2, "the child's hold is in the backend"
        assert desk.hold(ask("ann")) == hold
        desk.hold(ask("bob"))


def _in_child(work: Callable[[], list[Any]]) -> list[str]:
    """Run ``work`` in a forked child; answers what it answered, as texts."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        pid = os.fork()
    if not pid:  # the child: nothing of pytest may run in it
        try:
            os.write(write, "\n".join(map(str, work())).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read().decode()
    os.waitpid(pid, 0)
    return told.split("\n")
