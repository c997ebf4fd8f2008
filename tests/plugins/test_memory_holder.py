"""Laws of a holder, shown on the in-memory one (protocol.md 3, 4.3, 4.7, 5, 6.6)."""

import time
from collections import Counter

import msgspec
import pytest

from doorbuster.plugin import (
    Code,
    Compensated,
    Compensation,
    Control,
    Funding,
    Line,
    PerBuyer,
    Rejection,
    Reservation,
    UnavailableError,
    stable_hash,
)
from doorbuster.testing.memory import MemoryHolder

DONE, ALREADY, KEPT, STALE = Compensated


@pytest.fixture
def make_holder(make_context):
    def make(state=None, **options):
        return MemoryHolder(
            msgspec.convert(options, MemoryHolder.Options), make_context(state=state)
        )

    return make


@pytest.fixture
def opened(make_holder, make_sale):
    """Build a holder with an open epoch 1 whose every place holds the given units."""

    def opened(sale=None, epoch=1, holder=None, state=None, places=1, **units):
        sale = sale or make_sale()
        holder = holder or make_holder(state, places=places)
        assert holder.prepare(sale, epoch)
        fund(holder, sale, epoch, **(units or {"gold": 10}))
        assert holder.open(sale, epoch)
        return holder

    return opened


def fund(holder, sale, epoch=1, tag="first", **units):
    fundings = [
        Funding(f"{tag}/{epoch}/{place}/{sku}", sale.id, sale.run, epoch, sku, place, n)
        for place in holder.places(sale)
        for sku, n in units.items()
    ]
    assert list(holder.credit(fundings)) == [funding.quantity for funding in fundings]


def left(holder, sale, epoch=1):
    """Units left and held, by sku, over all places."""
    free, held = Counter(), Counter()
    for count in holder.count(sale, epoch):
        free[count.sku] += count.left
        held[count.sku] += count.held
    return {sku: (free[sku], held[sku]) for sku in free}


def undo(reservation, code=Code.SOLD_OUT, **units):
    return Compensation(reservation, "ABORTED", code, units)


def returned(reservation, **units):
    return Compensation(reservation, "RETURNED", Code.ACCEPTED, units)


def codes(answers):
    return [a.code if isinstance(a, Rejection) else "HELD" for a in answers]


# ------------------------------------------------------------------ slots and their states
def test_3_1_seed_open_and_never_back(make_holder, make_sale, make_batch, make_attempt):
    """protocol.md 3.1: deducts and debits want OPEN, credits SEED or OPEN; open is one way."""
    sale, holder = make_sale(), make_holder()
    debit = Funding("d1", sale.id, 1, 1, "gold", "m0", 2)
    assert holder.prepare(sale, 1)
    fund(holder, sale, gold=5)
    assert list(holder.debit([debit])) == [0]
    (busy,) = holder.deduct(make_batch([make_attempt()]))
    assert (busy.code, busy.detail["reason"]) == (Code.BUSY, "not-ready")
    assert holder.open(sale, 1)
    assert holder.open(sale, 1)
    assert holder.prepare(sale, 1)  # does not close it again, nor empty it
    assert left(holder, sale) == {"gold": (5, 0)}
    assert codes(holder.deduct(make_batch([make_attempt()]))) == ["HELD"]
    fund(holder, sale, tag="second", gold=3)
    assert list(holder.debit([debit])) == [2]
    assert left(holder, sale) == {"gold": (5, 1)}


def test_3_1_a_missing_slot_is_not_ready(make_holder, make_sale, make_batch, make_attempt, alarms):
    """protocol.md 3.1: what nobody prepared answers BUSY with an alarm, never sold out."""
    sale, holder = make_sale(), make_holder()
    answers = holder.deduct(make_batch([make_attempt("ann"), make_attempt("bob")]))
    assert [(a.code, a.detail["reason"]) for a in answers] == [(Code.BUSY, "not-ready")] * 2
    assert all(100 <= a.retry_after_ms <= 300 for a in answers)
    assert alarms == [("stock-not-ready", "critical", "drop")]
    assert holder.open(sale, 1) is False
    assert list(holder.holds(sale, 1, 0)) == []
    with pytest.raises(UnavailableError):
        holder.count(sale, 1)


def test_3_1_an_unknown_sku_is_not_ready(opened, make_batch, make_attempt):
    """protocol.md 3.1: a sku that the slot never had is not a sku with zero units."""
    holder = opened()
    (busy,) = holder.deduct(make_batch([make_attempt(lines=(Line("gold"), Line("new")))]))
    assert (busy.code, busy.detail["reason"]) == (Code.BUSY, "not-ready")


def test_places_are_named_and_bounded(make_holder, make_sale):
    """One place unless configured, at most a thousand."""
    assert make_holder().places(make_sale()) == ("m0",)
    assert make_holder(places=3).places(make_sale()) == ("m0", "m1", "m2")
    for places in (0, 1001):
        with pytest.raises(msgspec.ValidationError, match="places"):
            make_holder(places=places)


def test_f6_a_buyers_home_is_the_stable_hash(opened, make_batch, make_attempt):
    """F6: all of a buyer lies in one place, by stable hash; answers align with attempts."""
    holder = opened(places=7, gold=100)
    attempts = [make_attempt(f"b{n}") for n in range(100)]
    answers = holder.deduct(make_batch(attempts))
    assert [a.attempt for a in answers] == attempts
    assert [a.place for a in answers] == [f"m{stable_hash(a.buyer) % 7}" for a in attempts]


def test_1_1_the_number_of_places_belongs_to_the_epoch(
    opened, make_holder, make_sale, make_batch, make_attempt
):
    """protocol.md 1.1: a reload with another number changes no open epoch, only the next."""
    state = {}
    opened(state=state, places=4, gold=5)
    reloaded = make_holder(state, places=2)
    attempts = [make_attempt(f"b{n}") for n in range(12)]
    answers = reloaded.deduct(make_batch(attempts))
    assert [a.place for a in answers] == [f"m{stable_hash(a.buyer) % 4}" for a in attempts]
    assert len(reloaded.places(make_sale())) == 2


def test_slots_survive_a_rebuild(opened, make_holder, make_sale, make_batch, make_attempt):
    """A reload loses no unit and no record."""
    state = {}
    first = opened(state=state).deduct(make_batch([make_attempt()]))
    rebuilt = make_holder(state)
    assert rebuilt.deduct(make_batch([make_attempt()])) == first
    assert left(rebuilt, make_sale()) == {"gold": (9, 1)}


def test_retire_forgets(opened, make_sale, make_batch, make_attempt):
    """A retired epoch is gone with its records; retiring twice is retiring once."""
    holder = opened()
    holder.deduct(make_batch([make_attempt()]))
    assert holder.retire(make_sale(), 1)
    assert holder.retire(make_sale(), 1)
    assert codes(holder.deduct(make_batch([make_attempt()]))) == [Code.BUSY]


# ------------------------------------------------------------------ deduct
def test_the_empty_batch_touches_nothing(make_holder, make_batch, alarms):
    """An empty batch answers empty, even where nothing is prepared."""
    assert list(make_holder().deduct(make_batch([]))) == []
    assert alarms == []


def test_3_3_later_items_see_earlier_ones(opened, make_sale, make_batch, make_attempt):
    """protocol.md 3.3: in one batch the same identity, buyer and stock are seen in order."""
    sale = make_sale(per_buyer=PerBuyer(sku=1))
    holder = opened(sale, gold=2)
    attempts = [
        make_attempt("ann", "r1"),
        make_attempt("ann", "r1"),
        make_attempt("ann", "r2"),
        make_attempt("bob", "r1"),
        make_attempt("cid", "r1"),
    ]
    answers = holder.deduct(make_batch(attempts, sale))
    assert codes(answers) == ["HELD", "HELD", Code.OVER_LIMIT, "HELD", Code.SOLD_OUT]
    assert answers[0] == answers[1]
    assert left(holder, sale) == {"gold": (0, 2)}


def test_3_3_a_replay_comes_before_every_refusal(
    opened, make_sale, make_batch, make_attempt, clock
):
    """protocol.md 3.3: replay is judged before fence, deadline, limit and stock."""
    sale = make_sale(per_buyer=PerBuyer(sku=1))
    holder = opened(sale, gold=1)
    deadline_s = clock.monotonic_s() + 1
    batch = make_batch([make_attempt(deadline_s=deadline_s)], sale)
    first = holder.deduct(batch)
    clock.advance(5)
    holder.push(sale, 1, Control(1, PerBuyer(), {}, paused=True))
    assert holder.deduct(batch) == first
    opened(sale, epoch=2, holder=holder)
    assert holder.deduct(batch) == first


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("paused", Code.CLOSED),
        ("late", Code.BUSY),
        ("over", Code.OVER_LIMIT),
        ("empty", Code.SOLD_OUT),
    ],
)
def test_3_3_the_order_of_refusals(opened, make_sale, make_batch, make_attempt, clock, fault, code):
    """protocol.md 3.3: fence, then deadline, then limit, then stock: the first one answers."""
    order = ["paused", "late", "over", "empty"]
    bad = order[order.index(fault) :]
    sale = make_sale(per_buyer=PerBuyer(attempt=1 if "over" in bad else None))
    holder = opened(sale, gold=1)
    holder.push(sale, 1, Control(1, PerBuyer(), {}, paused="paused" in bad))
    deadline_s = clock.monotonic_s() - 0.001 if "late" in bad else clock.monotonic_s()
    attempt = make_attempt(gold=2, deadline_s=deadline_s)
    assert codes(holder.deduct(make_batch([attempt], sale))) == [code]
    assert left(holder, sale) == {"gold": (1, 0)}


def test_2_3_other_content_is_key_reused(opened, make_sale, make_batch, make_attempt):
    """protocol.md 2.3: the same identity with other lines is KEY_REUSED and holds nothing."""
    holder = opened()
    answers = holder.deduct(make_batch([make_attempt(gold=1), make_attempt(gold=2)]))
    assert codes(answers) == ["HELD", Code.KEY_REUSED]
    assert left(holder, make_sale()) == {"gold": (9, 1)}


def test_2_1_two_buyers_with_one_request_id_are_two(opened, make_batch, make_attempt):
    """protocol.md 2.1: the buyer is part of the identity."""
    attempts = [make_attempt("ann", "r1"), make_attempt("bob", "r1")]
    answers = opened().deduct(make_batch(attempts))
    assert [a.order_no for a in answers] == ["no-ann-r1", "no-bob-r1"]


def test_2_2_the_stored_order_no_is_answered(opened, make_batch, make_attempt):
    """protocol.md 2.2: keys may rotate; a replay gets the order number of the first time."""
    holder = opened()
    holder.deduct(make_batch([make_attempt()]))
    rotated = msgspec.structs.replace(make_attempt(), order_no="other")
    (again,) = holder.deduct(make_batch([rotated]))
    assert (again.order_no, again.epoch) == ("no-ann-r1", 1)


def test_all_lines_or_nothing(opened, make_sale, make_batch, make_attempt):
    """One short line refuses all lines; a quantity is never split; lines of a sku are summed."""
    sale = make_sale(gold=9, silver=9)
    holder = opened(sale, gold=3, silver=1)
    split = make_attempt("cid", lines=(Line("gold", 2, "a"), Line("gold", 2, "b")))
    attempts = [make_attempt("ann", gold=1, silver=2), make_attempt("bob", gold=4), split]
    answers = holder.deduct(make_batch(attempts, sale))
    assert codes(answers) == [Code.SOLD_OUT] * 3
    assert {a.detail["place"] for a in answers} == {"m0"}
    assert left(holder, sale) == {"gold": (3, 0), "silver": (1, 0)}
    assert codes(holder.deduct(make_batch([make_attempt(gold=3, silver=1)], sale))) == ["HELD"]
    assert left(holder, sale) == {"gold": (0, 3), "silver": (0, 1)}


def test_a_refused_attempt_stores_nothing(opened, make_sale, make_batch, make_attempt):
    """A refusal before a hold is judged anew the next time."""
    sale = make_sale()
    holder = opened(gold=1)
    assert codes(holder.deduct(make_batch([make_attempt(gold=2)]))) == [Code.SOLD_OUT]
    fund(holder, sale, tag="second", gold=1)
    assert codes(holder.deduct(make_batch([make_attempt(gold=2)]))) == ["HELD"]


@pytest.mark.parametrize(
    ("per_buyer", "own", "expected"),
    [
        (PerBuyer(sku=2), {}, {"limit": 2, "bought": 2}),
        (PerBuyer(sku=9), {"gold": 2}, {"limit": 2, "bought": 2}),
        (PerBuyer(sale=3), {}, {"limit": 3, "bought": 3}),
        (PerBuyer(attempt=1), {}, {"limit": 1, "scope": "attempt"}),
    ],
)
def test_limits_of_sku_sale_and_attempt(
    opened, make_sale, make_batch, make_attempt, per_buyer, own, expected
):
    """Each scope is its own quota, a sku's own before the sale's default; details say which."""
    sale = make_sale(per_buyer=per_buyer, sku_limits=own, gold=9, silver=9)
    holder = opened(sale, gold=9, silver=9)
    holder.deduct(make_batch([make_attempt("ann", "r1", silver=1)], sale))
    for n in range(2):
        holder.deduct(make_batch([make_attempt("ann", f"g{n}", gold=1)], sale))
    attempt = make_attempt("ann", "r2", gold=2)
    (over,) = holder.deduct(make_batch([attempt], sale))
    assert (over.code, over.detail) == (Code.OVER_LIMIT, expected)


def test_s0_14_limit_before_stock(opened, make_sale, make_batch, make_attempt):
    """S0-14: who is over the limit hears that, also when nothing is left."""
    sale = make_sale(per_buyer=PerBuyer(sku=1))
    holder = opened(sale, gold=1)
    holder.deduct(make_batch([make_attempt("ann", "r1")], sale))
    answers = holder.deduct(make_batch([make_attempt("ann", "r2"), make_attempt("bob")], sale))
    assert codes(answers) == [Code.OVER_LIMIT, Code.SOLD_OUT]


def test_1_1_another_kind_is_fenced(opened, make_sale, make_batch, make_attempt):
    """protocol.md 1.1: this holder is kind H; a batch of kind J holds nothing."""
    holder = opened()
    (busy,) = holder.deduct(make_batch([make_attempt()], kind="J"))
    assert (busy.code, busy.detail["reason"]) == (Code.BUSY, "kind")
    assert left(holder, make_sale()) == {"gold": (10, 0)}


def test_a_stale_epoch_is_refused(opened, make_sale, make_batch, make_attempt, alarms):
    """Once a later epoch is open the earlier one holds nothing more, retired or not."""
    holder = opened()
    opened(epoch=2, holder=holder)
    assert holder.open(make_sale(), 1) is False
    for _ in range(2):
        (busy,) = holder.deduct(make_batch([make_attempt()], epoch=1))
        assert (busy.code, busy.detail["reason"]) == (Code.BUSY, "stale-epoch")
        holder.retire(make_sale(), 1)
    assert alarms == []
    assert codes(holder.deduct(make_batch([make_attempt()], epoch=2))) == ["HELD"]


def test_runs_are_apart(opened, make_sale, make_batch, make_attempt):
    """A sale created again starts with its own units, quotas and records."""
    first, second = make_sale(run=1), make_sale(run=2)
    holder = opened(first, gold=1)
    opened(second, holder=holder, gold=1)
    for sale in (first, second):
        assert codes(holder.deduct(make_batch([make_attempt()], sale))) == ["HELD"]
        assert left(holder, sale) == {"gold": (0, 1)}


# ------------------------------------------------------------------ control
def test_6_6_the_smaller_limit_counts(opened, make_sale, make_batch, make_attempt):
    """protocol.md 6.6: of the pushed limit and the batch's the smaller is used, per scope."""
    wide = make_sale(per_buyer=PerBuyer(sku=5, sale=5, attempt=5))
    for n, control in enumerate(
        [
            Control(1, PerBuyer(sku=1), {}, paused=False),
            Control(1, PerBuyer(sku=9), {"gold": 1}, paused=False),
            Control(1, PerBuyer(sale=1), {}, paused=False),
            Control(1, PerBuyer(attempt=1), {}, paused=False),
        ]
    ):
        holder = opened(wide)
        assert list(holder.push(wide, 1, control)) == []
        attempt = make_attempt("ann", f"r{n}", gold=2)
        assert codes(holder.deduct(make_batch([attempt], wide))) == [Code.OVER_LIMIT]
    narrow = make_sale(per_buyer=PerBuyer(sku=1))
    holder = opened(narrow)
    holder.push(narrow, 1, Control(1, PerBuyer(sku=9), {}, paused=False))
    assert codes(holder.deduct(make_batch([make_attempt(gold=2)], narrow))) == [Code.OVER_LIMIT]


def test_6_6_an_older_version_never_overwrites(opened, make_sale, make_batch, make_attempt):
    """protocol.md 6.6: control values are ordered by version; a late push changes nothing."""
    sale, holder = make_sale(), opened()
    holder.push(sale, 1, Control(5, PerBuyer(), {}, paused=True))
    holder.push(sale, 1, Control(4, PerBuyer(), {}, paused=False))
    (closed,) = holder.deduct(make_batch([make_attempt()]))
    assert (closed.code, closed.detail) == (Code.CLOSED, {"reason": "paused"})
    holder.push(sale, 1, Control(6, PerBuyer(), {}, paused=False))
    assert codes(holder.deduct(make_batch([make_attempt()]))) == ["HELD"]


def test_6_6_places_not_reached_are_named(make_holder, make_sale):
    """protocol.md 6.6: a push to slots that are not there says which places missed it."""
    holder = make_holder(places=2)
    control = Control(1, PerBuyer(), {}, paused=False)
    assert list(holder.push(make_sale(), 1, control)) == ["m0", "m1"]
    holder.prepare(make_sale(), 1)
    assert list(holder.push(make_sale(), 1, control)) == []


# ------------------------------------------------------------------ compensate
def test_4_3_an_undo_gives_units_and_quota_back_once(opened, make_sale, make_batch, make_attempt):
    """protocol.md 4.3: HELD -> ABORTED gives stock and limit back, idempotent by order_no."""
    sale = make_sale(per_buyer=PerBuyer(sku=2, sale=2))
    holder = opened(sale, gold=2)
    (held,) = holder.deduct(make_batch([make_attempt(gold=2)], sale))
    assert holder.compensate([undo(held, gold=2), undo(held, gold=2)]) == [DONE, ALREADY]
    assert left(holder, sale) == {"gold": (2, 0)}
    assert codes(holder.deduct(make_batch([make_attempt("ann", "r2", gold=2)], sale))) == ["HELD"]


def test_3_2_an_aborted_record_replays_its_code_for_good(opened, make_batch, make_attempt):
    """protocol.md 3.2, 4.3: ABORTED replays its code, final; another request_id is judged."""
    holder = opened()
    (held,) = holder.deduct(make_batch([make_attempt()]))
    holder.compensate([undo(held, Code.OVER_LIMIT, gold=1)])
    (again, other) = holder.deduct(make_batch([make_attempt(), make_attempt(request_id="r2")]))
    assert (again.code, again.detail) == (Code.OVER_LIMIT, {"final": True})
    assert codes([other]) == ["HELD"]


def test_4_3_a_phantom_is_not_given_back(opened, make_sale, make_batch, make_attempt):
    """protocol.md 4.3: only the units that the ledger says were real come back."""
    sale = make_sale()
    holder = opened(gold=3)
    (held,) = holder.deduct(make_batch([make_attempt(gold=3)]))
    assert holder.compensate([undo(held, gold=1)]) == [DONE]
    assert left(holder, sale) == {"gold": (1, 0)}


def test_4_7_an_undo_before_the_hold_keeps_it_out(opened, make_sale, make_batch, make_attempt):
    """protocol.md 4.7: without a record the ABORTED one is written, and nothing given back."""
    sale, holder = make_sale(), opened()
    ahead = Reservation(make_attempt(), "m0", "no-ann-r1", 1)
    assert holder.compensate([undo(ahead, Code.BUSY, gold=1)]) == [DONE]
    assert holder.compensate([undo(ahead, Code.BUSY, gold=1)]) == [ALREADY]
    (late,) = holder.deduct(make_batch([make_attempt()]))
    assert (late.code, late.detail) == (Code.BUSY, {"final": True})
    assert left(holder, sale) == {"gold": (10, 0)}


def test_4_4_a_return_gives_quota_back_and_no_stock(opened, make_sale, make_batch, make_attempt):
    """protocol.md 4.4: RETURNED lowers bought once; the units come back as funding."""
    sale = make_sale(per_buyer=PerBuyer(sku=1))
    holder = opened(sale, gold=2)
    (held,) = holder.deduct(make_batch([make_attempt()], sale))
    assert holder.compensate([returned(held), returned(held)]) == [DONE, ALREADY]
    assert left(holder, sale) == {"gold": (1, 0)}
    answers = holder.deduct(
        make_batch([make_attempt(request_id="r2"), make_attempt(request_id="r3")], sale)
    )
    assert codes(answers) == ["HELD", Code.OVER_LIMIT]


def test_3_2_a_returned_record_replays_as_a_reservation(opened, make_batch, make_attempt):
    """protocol.md 3.2: a returned attempt gets its first answer; the ledger adds the state."""
    holder = opened()
    first = holder.deduct(make_batch([make_attempt()]))
    holder.compensate([returned(first[0])])
    assert holder.deduct(make_batch([make_attempt()])) == first


def test_4_4_a_return_without_a_record_lowers_nothing(opened, make_sale, make_batch, make_attempt):
    """protocol.md 4.4: in an epoch that never saw the buyer, RETURNED is written, no more."""
    sale = make_sale(per_buyer=PerBuyer(sku=1))
    holder = opened(sale)
    elsewhere = Reservation(make_attempt(), "m0", "no-ann-r1", 1)
    assert holder.compensate([returned(elsewhere)]) == [DONE]
    assert holder.compensate([returned(elsewhere)]) == [ALREADY]
    answers = holder.deduct(
        make_batch(
            [make_attempt(), make_attempt(request_id="r2"), make_attempt(request_id="r3")], sale
        )
    )
    assert codes(answers) == ["HELD", "HELD", Code.OVER_LIMIT]
    assert left(holder, sale) == {"gold": (9, 1)}


def test_4_3_a_hold_of_an_attempt_accepted_elsewhere(opened, make_sale, make_batch, make_attempt):
    """protocol.md 4.3: it is given back by RETURNED with its units; the ledger still answers."""
    sale = make_sale(per_buyer=PerBuyer(sku=1))
    holder = opened(sale)
    first = holder.deduct(make_batch([make_attempt()], sale))
    assert holder.compensate([returned(first[0], gold=1)]) == [DONE]
    assert left(holder, sale) == {"gold": (10, 0)}
    assert holder.deduct(make_batch([make_attempt()], sale)) == first


def test_4_7_the_first_end_state_stands(opened, make_sale, make_batch, make_attempt):
    """protocol.md 4.7: a returned record is no hold to undo, an aborted one none to return."""
    holder = opened()
    answers = holder.deduct(make_batch([make_attempt("ann"), make_attempt("bob")]))
    holder.compensate([returned(answers[0]), undo(answers[1], gold=1)])
    assert holder.compensate([undo(answers[0], gold=1), returned(answers[1])]) == [KEPT, ALREADY]
    assert left(holder, make_sale()) == {"gold": (9, 0)}


def test_4_7_another_order_no_is_another_order(opened, make_sale, make_batch, make_attempt):
    """protocol.md 4.7: keyed by identity and order_no; a late undo of another run is kept off."""
    holder = opened()
    (held,) = holder.deduct(make_batch([make_attempt()]))
    other = msgspec.structs.replace(held, order_no="no-of-run-0")
    assert holder.compensate([undo(other, gold=1)]) == [KEPT]
    assert left(holder, make_sale()) == {"gold": (9, 1)}


def test_a_stale_epoch_is_not_compensated(opened, make_sale, make_batch, make_attempt):
    """STALE_EPOCH where the epoch is unknown, over or retired; nothing is written."""
    holder = opened()
    (held,) = holder.deduct(make_batch([make_attempt()]))
    unknown = msgspec.structs.replace(held, epoch=7)
    assert holder.compensate([undo(unknown, gold=1)]) == [STALE]
    opened(epoch=2, holder=holder)
    assert holder.compensate([undo(held, gold=1)]) == [STALE]
    assert left(holder, make_sale(), 1) == {"gold": (9, 1)}
    holder.retire(make_sale(), 1)
    assert holder.compensate([undo(held, gold=1)]) == [STALE]
    assert list(holder.compensate([])) == []


# ------------------------------------------------------------------ fundings, counts, holds
def test_5_2_once_per_funding_id(opened, make_sale):
    """protocol.md 5.2: credit and debit act once per id and answer what that id moved."""
    sale, holder = make_sale(), opened(gold=5)
    credit = Funding("c", sale.id, 1, 1, "gold", "m0", 4)
    debit = Funding("d", sale.id, 1, 1, "gold", "m0", 100)
    assert list(holder.credit([credit, credit])) == [4, 4]
    assert left(holder, sale) == {"gold": (9, 0)}
    assert list(holder.debit([debit])) == [9]
    holder.credit([Funding("c2", sale.id, 1, 1, "gold", "m0", 3)])
    assert list(holder.debit([debit])) == [9]
    assert left(holder, sale) == {"gold": (3, 0)}


def test_5_2_a_missing_slot_moves_nothing(opened, make_sale):
    """A credit or debit that names a missing slot applies nothing of its call."""
    sale, holder = make_sale(), opened(gold=5)
    good = Funding("c", sale.id, 1, 1, "gold", "m0", 4)
    for bad in (
        Funding("x", sale.id, 1, 1, "gold", "m9", 4),
        Funding("x", sale.id, 1, 2, "gold", "m0", 4),
        Funding("x", sale.id, 2, 1, "gold", "m0", 4),
    ):
        for move in (holder.credit, holder.debit):
            with pytest.raises(UnavailableError):
                move([good, bad])
    assert left(holder, sale) == {"gold": (5, 0)}


def test_5_2_a_debit_takes_free_units_only(opened, make_sale, make_batch, make_attempt):
    """protocol.md 5.2: held units cannot be debited."""
    sale, holder = make_sale(), opened(gold=5)
    holder.deduct(make_batch([make_attempt(gold=3)]))
    assert list(holder.debit([Funding("d", sale.id, 1, 1, "gold", "m0", 5)])) == [2]
    assert left(holder, sale) == {"gold": (0, 3)}


def test_4_3_holds_are_listed_by_age(opened, make_sale, make_batch, make_attempt, clock):
    """protocol.md 4.3: the sweeper sees HELD records of an age, and no ended ones."""
    holder = opened(places=3)
    old = holder.deduct(make_batch([make_attempt("ann"), make_attempt("bob")]))
    clock.advance(10)
    (young,) = holder.deduct(make_batch([make_attempt("cid")]))
    holder.compensate([undo(old[1], gold=1)])
    assert [(h.reservation, h.age_s) for h in holder.holds(make_sale(), 1, 10)] == [(old[0], 10)]
    all_held = {h.reservation.order_no for h in holder.holds(make_sale(), 1, 0)}
    assert all_held == {old[0].order_no, young.order_no}
    assert list(holder.holds(make_sale(), 1, 10.5)) == []


# ------------------------------------------------------------------ many threads
class Yielding(dict):
    """Lets another thread run after every look-up, where a check before an act would race."""

    def __getitem__(self, key):
        """Look up, then step aside."""
        found = super().__getitem__(key)
        time.sleep(0)
        return found


@pytest.mark.parametrize("places", [1, 5])
def test_never_oversells_under_64_threads(
    opened, make_sale, make_batch, make_attempt, in_threads, places
):
    """64 threads, batches of 8, few units: exactly the units there are get held."""
    sale = make_sale()
    holder = opened(places=places, gold=20)
    for slot in holder._store.epochs[sale.id, 1, 1].slots:
        slot.left = Yielding(slot.left)

    def work(n):
        attempts = [make_attempt(f"b{n}-{k}") for k in range(8)]
        return codes(holder.deduct(make_batch(attempts, sale)))

    answers = [code for batch in in_threads(work) for code in batch]
    assert Counter(answers) == {"HELD": 20 * places, Code.SOLD_OUT: 512 - 20 * places}
    assert left(holder, sale) == {"gold": (0, 20 * places)}


def test_limit_exact_under_64_threads(opened, make_sale, make_batch, make_attempt, in_threads):
    """L1, L7: 64 parallel attempts of one buyer with limit 1 hold exactly one unit."""
    sale = make_sale(per_buyer=PerBuyer(sale=1))
    holder = opened(sale, gold=100)
    answers = in_threads(
        lambda n: codes(holder.deduct(make_batch([make_attempt("ann", f"r{n}")], sale)))
    )
    assert Counter(code for (code,) in answers) == {"HELD": 1, Code.OVER_LIMIT: 63}
    assert left(holder, sale) == {"gold": (99, 1)}


def test_one_identity_holds_once_under_64_threads(
    opened, make_sale, make_batch, make_attempt, in_threads
):
    """The same attempt from 64 threads holds once and answers the same to all."""
    holder = opened(gold=100)
    answers = in_threads(lambda n: holder.deduct(make_batch([make_attempt()])))
    assert all(answer == answers[0] for answer in answers)
    assert left(holder, make_sale()) == {"gold": (99, 1)}


def test_conservation_under_64_threads(opened, make_sale, make_batch, make_attempt, in_threads):
    """Holds, undos and debits at once: left + held + debited is what was credited."""
    sale = make_sale()
    holder = opened(places=3, gold=50)

    def work(n):
        held = [
            answer
            for answer in holder.deduct(make_batch([make_attempt(f"b{n}-{k}") for k in range(4)]))
            if isinstance(answer, Reservation)
        ]
        back = [undo(reservation, gold=1) for reservation in held[::2]]
        assert holder.compensate([*back, *back]) == [DONE] * len(back) + [ALREADY] * len(back)
        (taken,) = holder.debit([Funding(f"d{n}", sale.id, 1, 1, "gold", f"m{n % 3}", 1)])
        return taken, len(held) - len(back)

    done = in_threads(work)
    free, held = left(holder, sale)["gold"]
    assert held == sum(kept for _, kept in done)
    assert free + held + sum(taken for taken, _ in done) == 150
