"""The ground of :class:`~doorbuster.testing.suites.persist.PersistSuite`: fixtures."""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pytest

from doorbuster.model import Reservation
from doorbuster.outcomes import Code, Persisted
from doorbuster.testing.faults import Flaky
from doorbuster.testing.flow import Flow, given
from doorbuster.testing.kit import Kit
from doorbuster.testing.suites.base import Suite, must_offer
from doorbuster.testing.suites.ground import OpenSale, hooks_of

__all__ = ["SKUS", "PersistGround"]

SKUS: Final[Mapping[str, int]] = {"gold": 12, "silver": 12}
"""Units of the sales that orders are written for, by sku."""


class PersistGround(Suite):
    """Fixtures of the laws of persist; an author overrides ``persist``, and ``find``."""

    # ------------------------------------------------------------------ an author's part
    @pytest.fixture
    def persist(self, context: Any) -> Any:
        """The plugin instance under test, built with ``context``. To be overridden."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture 'persist'")

    @pytest.fixture
    def find(self) -> Callable[[str], int] | None:
        """Count the valid orders of an ``order_no`` in the store, without the plugin: 0 or 1.

        A cancelled order and a tombstone are none.
        """
        return None

    # ------------------------------------------------------------------ the suite's part
    @pytest.fixture
    def hooks(self, persist: Any) -> dict[str, Callable[..., Any]]:
        """The plugin's hooks by name."""
        found = hooks_of(persist)
        assert "persist" in found, "it offers no persist"
        return found

    @pytest.fixture
    def write(self, hooks: Mapping[str, Any]) -> Callable[..., list[Persisted]]:
        """Call ``persist``: one answer each, or the test fails."""

        def write(items: Sequence[Reservation]) -> list[Persisted]:
            answers = list(hooks["persist"](items))
            assert len(answers) == len(items)
            return answers

        return write

    @pytest.fixture
    def void(self, hooks: Mapping[str, Any]) -> Callable[[Reservation], Persisted]:
        """Call ``void`` as the core does: the return has begun before."""

        def void(item: Reservation) -> Persisted:
            must_offer("void", hooks)
            answer: Persisted = hooks["void"](item)
            return answer

        return void

    @pytest.fixture
    def valid(self, find: Callable[[str], int] | None) -> Callable[..., bool]:
        """``valid(n, *items)``: whether each has ``n`` valid orders, as far as ``find`` can see."""

        def valid(n: int, *items: Reservation) -> bool:
            return find is None or {find(item.order_no) for item in items} <= {n}

        return valid

    @pytest.fixture
    def drop(self, kit: Kit) -> OpenSale:
        """A sale in the ledger of ``context``."""
        return OpenSale(kit.ledger, skus=SKUS)

    @pytest.fixture
    def items(self, drop: OpenSale) -> list[Reservation]:
        """Six accepted attempts as a worker reads them, of several skus and quantities."""
        asked = [drop.ask(f"buyer{n}", lines={"gold": 1 + n % 2, "silver": 1}) for n in range(4)]
        assert drop.codes(*asked) == [Code.ACCEPTED] * 4
        drop.buy("buyer0", "r2")
        drop.buy("buyer5", "r1", 3)
        found = drop.waiting()
        assert len(found) == 6
        return found

    @pytest.fixture
    def flaky(self, persist: Any) -> Flaky:
        """The plugin in ``flow``, which fails on order."""
        return Flaky(persist)

    @pytest.fixture
    def flow(self, kit: Kit, flaky: Flaky) -> Iterator[Flow]:
        """An open sale whose orders the plugin writes."""
        brief = {"workers": {"lease_s": 1}}  # a fault is tried again within the drain
        plugins = {"mine": given(flaky)}
        with kit.flow(plugins=plugins, skus=SKUS, tables=brief, persist="mine") as opened:
            yield opened
