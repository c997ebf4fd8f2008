"""Laws of the accept transaction (protocol.md 2, 4.1, 6.1) on a real database."""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec
import pytest

from doorbuster.errors import UnavailableError, UnknownOutcomeError
from doorbuster.ledger import Limits, Short, schema
from doorbuster.model import GrantState, IntentState, Kind, PerBuyer, Reservation, SaleState
from doorbuster.outcomes import Code, Outcome
from doorbuster.testing.suites.base import Race
from doorbuster.testing.suites.cuts import failing_statement, lost_commits
from doorbuster.testing.suites.ledger_ground import LedgerGround, Open

__all__ = ["AcceptLaws"]

_OK: Final = Code.ACCEPTED
_YEAR_2100_MS: Final = 4_102_444_800_000


def _quantity(item: Reservation) -> int:
    return item.attempt.lines[0].quantity


def _is_short(answer: Outcome | Short) -> bool:
    return isinstance(answer, Short)


class AcceptLaws(LedgerGround):
    """What is accepted, what is refused, and that nothing lies in between."""

    # ------------------------------------------------------------------ one transaction
    @pytest.mark.parametrize("holds", [False, True])
    def test_4_1_accept_is_one_transaction(self, shop: Open, holds: bool) -> None:
        """Whichever statement fails: no intent, quota, unit, outbox row or undo of it is there."""
        one = shop(skus={"gold": 5, "silver": 5}, per_buyer=PerBuyer(sale=4), holds=holds)
        one.buy("old", lines={"gold": 1})
        asked = [
            one.ask("ann", lines={"gold": 2, "silver": 1}),
            one.ask("old", lines={"gold": 1}),
            one.ask("bob", lines={"silver": 1}),
            one.ask("eve", lines={"gold": 5}),
        ]
        before, answers, number = one.everything(), list[Code | None](), 0
        while not answers:
            number += 1
            assert one.everything() == before
            with (
                failing_statement(one.ledger.database, number) as hit,
                suppress(UnavailableError),
            ):
                answers = one.codes(*asked)
            assert hit() is not bool(answers)
        assert number > 6
        assert answers == [_OK, _OK, _OK, Code.OVER_LIMIT]
        assert [row["n"] for row in one.rows(schema.outbox)] == [1, 2]

    @pytest.mark.parametrize("applied", [False, True])
    @pytest.mark.parametrize("times", [1, 2])
    def test_4_1_an_unknown_commit_is_run_again(
        self, shop: Open, applied: bool, times: int
    ) -> None:
        """D8: whether it was applied or not, the new try answers the truth, and sells once."""
        one = shop(per_buyer=PerBuyer(sale=2))
        with lost_commits(one.ledger.database, applied=applied, times=times):
            answers = one.decide(one.ask("ann", quantity=2), one.ask("bob"), one.ask("ann", "r2"))
        assert [answer.code for answer in answers] == [_OK, _OK, Code.OVER_LIMIT]
        assert one.free() == 7
        assert len(one.work()) == 2

    @pytest.mark.parametrize("applied", [False, True])
    def test_4_1_a_commit_that_stays_unknown_is_told_as_unknown(
        self, shop: Open, applied: bool
    ) -> None:
        """Never "not applied" and never ACCEPTED: then the identity is asked, and says which."""
        one = shop()
        with (
            lost_commits(one.ledger.database, applied=applied, then_gone=True),
            pytest.raises(UnknownOutcomeError),
        ):
            one.accept(one.ask("ann"))
        (found,) = one.ledger.results(one.row, [("ann", "r1")])
        assert (found is not None) is applied
        assert one.buy("ann").code is _OK
        assert one.free() == 9

    # ------------------------------------------------------------------ identity
    def test_4_1_only_inserted_rows_count(self, shop: Open) -> None:
        """Replays beside new attempts: units and quotas are those of the new ones."""
        one = shop(per_buyer=PerBuyer(sale=3))
        for n in range(3):
            asked = [one.ask(f"buyer{k}", quantity=2) for k in range(n + 1)]
            assert one.codes(*asked) == [_OK] * (n + 1)
            assert one.free() == 10 - 2 * (n + 1)
        assert sorted(row["bought"] for row in one.rows(schema.quotas)) == [2, 2, 2]

    def test_4_1_a_replay_is_answered_from_what_is_stored(self, shop: Open) -> None:
        """The stored number (2.2) and the order's state now, also when the sale is closed."""
        one = shop()
        first = one.buy("ann")
        one.work()
        again = msgspec.structs.replace(one.ask("ann"), order_no="0" * 32)
        for state in (SaleState.OPEN, SaleState.PAUSED):
            one.ledger.set_state(one.row, allowed=[SaleState.OPEN], to=state, actor="suite")
            (answer,) = one.decide(again)
            assert answer == Outcome(_OK, order_no=first.order_no, order_state="CREATED")
        assert first.order_no == one.ask("ann").order_no

    def test_4_1_a_refused_hold_is_never_accepted_later(self, shop: Open) -> None:
        """A holder's refusal is a tombstone: its replay says the same, for good."""
        one = shop(per_buyer=PerBuyer(sale=1), holds=True)
        one.buy("ann")
        for _ in range(2):
            (refused,) = one.decide(one.ask("ann", "r2"))
            assert (refused.code, refused.final) == (Code.OVER_LIMIT, True)
        assert one.give_back("ann")
        assert one.codes(one.ask("ann", "r2")) == [Code.OVER_LIMIT]
        assert one.state("ann", "r2") == IntentState.ABORTED
        assert one.buy("ann", "r3").code is _OK

    def test_4_1_a_refused_routers_row_is_removed(self, shop: Open) -> None:
        """A router held nothing: what was refused is judged anew, and nothing of it is kept."""
        one = shop(per_buyer=PerBuyer(sale=1))
        one.buy("ann")
        refused, other = one.decide(one.ask("ann", "r2"), one.ask("bob"))
        assert (refused.code, refused.final, other.code) == (Code.OVER_LIMIT, False, _OK)
        assert one.state("ann", "r2") is None
        assert one.give_back("ann")
        assert one.codes(one.ask("ann", "r2")) == [_OK]

    @pytest.mark.parametrize("holds", [False, True])
    def test_2_3_other_content_is_key_reused(self, shop: Open, holds: bool) -> None:
        """The same identity with other lines is told so, and takes and gives nothing."""
        one = shop(skus={"gold": 5, "silver": 5}, holds=holds)
        one.buy("ann", lines={"gold": 1})
        before = one.everything()
        for lines in ({"gold": 2}, {"silver": 1}, {"gold": 1, "silver": 1}):
            assert one.codes(one.ask("ann", lines=lines)) == [Code.KEY_REUSED]
        after = one.everything()
        assert {name: rows for name, rows in after.items() if rows != before[name]} == {}
        assert one.codes(one.ask("bob", lines={"gold": 2})) == [_OK]  # another buyer's r1 (2.1)

    # ------------------------------------------------------------------ limits and units
    @pytest.mark.parametrize(
        ("per_buyer", "first", "refused", "taken"),
        [
            (PerBuyer(sale=2), {"gold": 1, "silver": 1}, {"gold": 1}, None),
            (PerBuyer(sku=1), {"gold": 1}, {"gold": 1, "silver": 1}, {"silver": 1}),
            (PerBuyer(attempt=2), {"gold": 1}, {"gold": 2, "silver": 1}, {"gold": 2}),
        ],
    )
    def test_i5_each_limit_holds_within_a_batch_and_after_it(
        self,
        shop: Open,
        per_buyer: PerBuyer,
        first: Mapping[str, int],
        refused: Mapping[str, int],
        taken: Mapping[str, int] | None,
    ) -> None:
        """Per sale, per sku and per attempt; later attempts of a batch see the earlier ones."""
        one = shop(skus={"gold": 9, "silver": 9}, per_buyer=per_buyer)
        ask = [one.ask("ann", f"r{n}", lines=lines) for n, lines in enumerate((first, refused))]
        assert one.codes(*ask) == [_OK, Code.OVER_LIMIT]
        assert one.codes(ask[1], one.ask("bob", lines=first)) == [Code.OVER_LIMIT, _OK]
        if taken is not None:
            assert one.codes(one.ask("ann", "r9", lines=taken)) == [_OK]

    def test_s0_14_the_limit_is_judged_before_stock(self, shop: Open) -> None:
        """Whoever is over the limit hears that, also when there is nothing left (S0-14)."""
        one = shop(skus={"gold": 2}, per_buyer=PerBuyer(sale=2))
        one.buy("ann", quantity=2)
        assert one.free() == 0
        assert one.codes(one.ask("ann", "r2"), one.ask("bob")) == [Code.OVER_LIMIT, None]

    def test_d2_lines_are_summed_before_they_are_judged(self, shop: Open) -> None:
        """All lines of a batch together meet the grant and the quota, not one by one."""
        one = shop(skus={"gold": 3, "silver": 1}, per_buyer=PerBuyer(sale=3))
        asked = [
            one.ask("ann", lines={"gold": 2}),
            one.ask("bob", lines={"gold": 1, "silver": 1}),
            one.ask("eve", lines={"silver": 1}),
            one.ask("ann", "r2", lines={"gold": 2}),
        ]
        assert one.codes(*asked) == [_OK, _OK, None, Code.OVER_LIMIT]

    def test_a_quantity_is_never_split(self, shop: Open) -> None:
        """Too few for an attempt: it gets none, names what is missing, and others go on."""
        one = shop(skus={"gold": 3, "silver": 5})
        big = one.ask("ann", lines={"gold": 4, "silver": 5})
        answers = one.accept(big, one.ask("bob", lines={"gold": 3}))
        assert answers[0] == Short({"gold": 4})
        assert isinstance(answers[1], Outcome)
        assert answers[1].code is _OK
        assert one.state("ann") is None
        assert one.free(sku="silver") == 5

    def test_4_3_a_short_hold_is_refused_with_its_phantom(self, shop: Open) -> None:
        """A holder held more than its grant has: BUSY, and the undo knows what never was."""
        one = shop(skus={"gold": 3}, holds=True)
        assert one.codes(one.ask("ann", quantity=2), one.ask("bob", quantity=3)) == [_OK, Code.BUSY]
        (job,) = one.jobs()
        assert job.reservation.attempt.buyer == "bob"
        assert dict(job.phantom) == {"gold": 2}
        assert job.code is Code.BUSY

    def test_an_unknown_sku_or_place_takes_nothing(self, shop: Open) -> None:
        """INVALID, or BUSY where there is no grant: never a unit of another sku or place."""
        one = shop()
        asked = [one.ask("ann", lines={"tin": 1}), one.ask("bob", place="nowhere")]
        assert one.codes(*asked) == [Code.INVALID, Code.BUSY]
        assert one.free() == 10

    # ------------------------------------------------------------------ fence and entrance
    @pytest.mark.parametrize("holds", [False, True])
    @pytest.mark.parametrize("over", ["epoch", "kind", "fence"])
    def test_6_1_a_stale_epoch_writes_nothing(self, shop: Open, holds: bool, over: str) -> None:
        """Another epoch or kind, or a fenced grant: BUSY and not final; replays are answered."""
        one = shop(holds=holds)
        one.buy("ann")
        terms: dict[str, Any] = {}
        if over == "epoch":
            one.next_epoch()
        elif over == "kind":
            terms = {"kind": Kind.J}
        else:
            one.fence()
        before = one.everything()
        known, new = one.decide(one.ask("ann"), one.ask("bob"), **terms)
        assert (known.code, known.order_no) == (_OK, one.ask("ann").order_no)
        assert (new.code, new.final) == (Code.BUSY, False)
        assert one.everything() == before

    @pytest.mark.parametrize(
        ("entrance", "code"),
        [
            ({"state": SaleState.WARMED}, Code.NOT_STARTED),
            ({"state": SaleState.PAUSED}, Code.CLOSED),
            ({"state": SaleState.ENDED}, Code.ENDED),
            ({"mode": "closed"}, Code.CLOSED),
            ({"opens_at_ms": _YEAR_2100_MS}, Code.NOT_STARTED),
            ({"closes_at_ms": 1}, Code.ENDED),
        ],
    )
    def test_6_6_the_entrance_is_judged_inside_the_transaction(
        self, shop: Open, entrance: Mapping[str, Any], code: Code
    ) -> None:
        """State, mode and window of the control row decide, whatever a node still believes."""
        one = shop(**entrance)
        (answer,) = one.decide(one.ask("ann"))
        assert answer.code is code
        assert one.free() == 10
        assert one.state("ann") is None

    def test_6_6_a_new_limit_is_in_force_at_once(self, shop: Open) -> None:
        """The next accept is judged by it; what was bought under a higher one stays bought."""
        one = shop(per_buyer=PerBuyer(sale=3))
        one.buy("ann", quantity=2)
        one.ledger.change_control(one.row, actor="suite", action="limits", limits=Limits(sale=1))
        assert one.codes(one.ask("ann", "r2"), one.ask("bob", quantity=2)) == [Code.OVER_LIMIT] * 2
        assert one.buy("bob", "r2").code is _OK

    # ------------------------------------------------------------------ at once
    def test_threads_never_oversell_and_never_undersell(self, shop: Open, race: Race) -> None:
        """Threads of batches against two places: just as many units as there were, each once."""
        one = shop(skus={"gold": 21}, places=2)

        def work(n: int) -> int:
            todo = [one.ask(f"t{n}-{k}", quantity=1 + k % 2) for k in range(6)]
            sold = 0
            while todo:
                answers = one.accept(*todo)
                short = [
                    item for item, found in zip(todo, answers, strict=True) if _is_short(found)
                ]
                sold += sum(map(_quantity, todo)) - sum(map(_quantity, short))
                todo = short
                left = one.ledger.left(one.sale)["gold"].free
                if left < min(map(_quantity, todo), default=0):
                    break
                one.ledger.gather(one.sale, 1, {(i.place, "gold"): _quantity(i) for i in todo})
            return sold

        sold = sum(race(work, 4))
        left = sum(one.ledger.free_units(one.row).values())
        assert sold == 21 - left
        assert left <= 1  # a single unit may be too few for those who want two

    def test_i5_threads_of_one_buyer_keep_the_limit(self, shop: Open, race: Race) -> None:
        """Eight requests of one buyer at once: just as many units as the limit says."""
        one = shop(skus={"gold": 50}, places=3, per_buyer=PerBuyer(sale=3))
        places = [f"p{n}" for n in range(3)]
        codes = race(lambda n: one.codes(one.ask("ann", f"r{n}", place=places[n % 3]))[0], 8)
        assert sorted(codes) == [Code.OVER_LIMIT] * 5 + [_OK] * 3

    def test_i4_threads_with_one_identity_are_one_attempt(self, shop: Open, race: Race) -> None:
        """A double click in every thread: one unit, and everybody hears of the same order."""
        one = shop(per_buyer=PerBuyer(sale=1))
        answers = race(lambda n: one.buy("ann"), 8)
        assert {(answer.code, answer.order_no) for answer in answers} == {
            (_OK, one.ask("ann").order_no)
        }
        assert one.free() == 9
        assert GrantState.ACTIVE in {row["state"] for row in one.rows(schema.grants)}
