"""Laws of the worker side of the ledger (protocol.md 4.5): leases, orders, dead letters."""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from doorbuster.errors import ContractError, PermanentError, UnknownOutcomeError
from doorbuster.ledger import schema
from doorbuster.model import Batch, IntentState, Reservation
from doorbuster.outcomes import Persisted
from doorbuster.testing.suites.base import Race
from doorbuster.testing.suites.cuts import lost_commits
from doorbuster.testing.suites.ground import OpenSale
from doorbuster.testing.suites.ledger_ground import LedgerGround, Open

__all__ = ["OrderLaws"]

_CREATED: Final = Persisted.CREATED
_EXISTS: Final = Persisted.EXISTS
_REFUSED: Final = Persisted.REFUSED


def _items(one: OpenSale, buyers: Sequence[str]) -> list[Reservation]:
    """Accept one batch and read its intents back, as a worker does."""
    one.accept(*(one.ask(buyer) for buyer in buyers))
    return one.waiting()


class OrderLaws(LedgerGround):
    """From accepted to created, once."""

    # ------------------------------------------------------------------ leases
    def test_o4_a_batch_is_leased_to_one_worker(self, shop: Open) -> None:
        """While a lease runs nobody else gets the batch; when it is over the next one does."""
        one = shop()
        one.buy("ann")
        one.buy("bob")
        first = one.claim("worker1", lease_s=30)
        assert [claim.n for claim in first] == [1, 1]
        assert one.claim("worker2") == []
        one.buy("eve")
        (new,) = one.claim("worker2", lease_s=0)
        assert new.batch not in [claim.batch for claim in first]
        (taken,) = one.claim("worker3", lease_s=0)
        assert (taken.batch, taken.tries, taken.persist) == (new.batch, 1, "orders")

    def test_o4_threads_claim_each_batch_once(self, shop: Open, race: Race) -> None:
        """Workers that claim at once share the batches out, none gets one twice."""
        one = shop()
        for n in range(8):
            one.buy(f"buyer{n}")
        claims = race(lambda n: one.claim(f"worker{n}"), 4)
        batches = [claim.batch for part in claims for claim in part]
        assert len(batches) == len(set(batches)) == 8

    def test_4_1_a_lease_of_the_accept_keeps_the_batch(self, shop: Open) -> None:
        """Delivery INLINE: the request that committed has it first; its lease is no promise."""
        one = shop()
        asked = one.ask("ann")
        batch = Batch(one.sale, [asked.attempt], "normal", 1)
        lease = ("a request", one.ledger.now_ms() + 30_000)
        found = one.ledger.accept(batch, [asked], holds=False, lease=lease)
        assert one.claim() == []
        assert found.batch is not None
        assert [i.order_no for i in one.ledger.reservations_of([found.batch], one.sale)] == [
            asked.order_no
        ]

    def test_4_5_a_batch_is_done_when_none_of_it_is_reserved(self, shop: Open) -> None:
        """Not when it was read, nor when part of it was created: then it can be claimed again."""
        one = shop()
        one.accept(one.ask("ann"), one.ask("bob"), one.ask("eve"))
        (claim,) = one.claim(lease_s=0)
        items = one.ledger.reservations_of([claim.batch], one.sale)
        assert one.create(items[:2]) == [_CREATED, _CREATED]
        assert one.ledger.settle([claim.batch]) == 0
        (again,) = one.claim(lease_s=0)
        rest = one.ledger.reservations_of([again.batch], one.sale)
        assert [item.order_no for item in rest] == [items[2].order_no]
        assert one.create(rest) == [_CREATED]
        assert one.ledger.settle([claim.batch]) == 1
        assert one.ledger.settle([claim.batch]) == 0
        assert one.claim(lease_s=0) == []

    # ------------------------------------------------------------------ orders
    def test_4_5_an_order_is_created_once_with_its_intent(self, shop: Open) -> None:
        """CREATED, then EXISTS; in a batch of both each is answered in its place."""
        one = shop()
        items = _items(one, ["ann", "bob", "eve"])
        assert one.create(items[1:2]) == [_CREATED]
        assert one.create(items[::-1]) == [_CREATED, _EXISTS, _CREATED]
        assert one.create(items) == [_EXISTS] * 3
        assert len(one.rows(schema.orders)) == 3

    def test_4_5_orders_and_intents_move_together_or_not_at_all(self, shop: Open) -> None:
        """A persist that raises, or whose COMMIT is lost: both are as they were, or both moved."""
        one = shop()
        items = _items(one, ["ann", "bob"])
        broken = [one.order(items[0]), one.order(items[1]) | {"order_no": None}]
        with pytest.raises(PermanentError), one.ledger.creating(items) as creating:
            creating.execute(schema.orders.insert(), broken)
        assert (one.rows(schema.orders), one.state("ann")) == ([], IntentState.RESERVED)
        for applied in (False, True):
            with (
                lost_commits(one.ledger.database, applied=applied),
                pytest.raises(UnknownOutcomeError),
            ):
                one.create(items)
            assert len(one.rows(schema.orders)) == (2 if applied else 0)
        assert one.create(items) == [_EXISTS, _EXISTS]

    def test_4_5_threads_create_an_order_once(self, shop: Open, race: Race) -> None:
        """Two workers with the same batch (its lease ran out): one of them creates each order."""
        one = shop()
        items = _items(one, [f"buyer{n}" for n in range(6)])
        answers = race(lambda n: one.create(items), 4)
        assert sorted(part.count(_CREATED) for part in answers) == [0, 0, 0, 6]
        assert len(one.rows(schema.orders)) == 6

    def test_4_5_a_returned_intent_is_never_created(self, shop: Open) -> None:
        """The return won the compare-and-set: REFUSED, before it is finished and after."""
        one = shop()
        items = _items(one, ["ann", "bob"])
        assert one.begin_return("ann") is not None
        assert one.create(items) == [_REFUSED, _CREATED]
        (job,) = one.jobs()
        assert one.ledger.finish_return(job)
        assert one.create(items) == [_REFUSED, _EXISTS]
        assert one.state("ann") == IntentState.RELEASED
        assert one.begin_return("bob") is None  # it is CREATED: released is not its way back

    def test_4_5_a_foreign_order_is_settled_by_compare_and_set(self, shop: Open) -> None:
        """A persist plugin elsewhere answered: RESERVED moves on, RETURNING stays what it is."""
        one = shop()
        items = _items(one, ["ann", "bob", "eve"])
        one.begin_return("bob")
        assert one.ledger.settle_persisted(one.sale, items[:2], [_EXISTS, _CREATED]) == []
        assert (one.state("ann"), one.state("bob")) == (IntentState.CREATED, IntentState.RETURNING)
        assert one.create(items[2:]) == [_CREATED]
        with one.ledger.database.transaction() as connection:
            connection.execute(schema.orders.insert(), [one.order(items[0])])
        (job,) = one.jobs()
        assert one.ledger.finish_return(job)

    def test_o11_a_refused_order_is_one_dead_letter(self, shop: Open) -> None:
        """Its intent stays RESERVED, its batch is closed, and a return answers the letter."""
        one = shop()
        one.accept(one.ask("ann"), one.ask("bob"))
        (claim,) = one.claim(lease_s=0)
        items = one.ledger.reservations_of([claim.batch], one.sale)
        one.create(items[1:])
        for expected in (1, 0):
            letters = one.ledger.settle_persisted(one.sale, items[:1], [_REFUSED])
            assert len(letters) == expected
        assert one.state("ann") == IntentState.RESERVED
        assert one.ledger.settle([claim.batch]) == 1
        assert one.ledger.reservations_of([claim.batch], one.sale) == []
        assert one.give_back("ann")
        assert one.rows(schema.dead_letters) == []

    def test_a_reservation_without_its_intent_is_a_defect(self, shop: Open) -> None:
        """No order is written for what the ledger does not know."""
        one = shop()
        items = _items(one, ["ann"])
        with pytest.raises(ContractError, match="intent"):
            one.create([items[0], one.ask("mallory")])
        assert one.rows(schema.orders) == []
        assert one.state("ann") == IntentState.RESERVED
