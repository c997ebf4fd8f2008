"""The request side: a batch through gates, deduct and accept, whatever its plugins do."""

import msgspec
import pytest

from doorbuster.errors import (
    PermanentError,
    UnavailableError,
    UnknownOutcomeError,
)
from doorbuster.model import Attempt, Batch, Line, Reservation
from doorbuster.outcomes import UNKNOWN, Code, Outcome, Rejection
from doorbuster.pipeline import busy
from doorbuster.plugin import Delivery, Persisted, hookimpl
from doorbuster.testing.memory import MemoryHolder

BLOCKED = Rejection(Code.BLOCKED, {"reason": "test"})
FAULTS = [RuntimeError("x"), SystemExit(3), KeyboardInterrupt(), MemoryError(), UnavailableError()]


def raising(error):
    def answer(_batch):
        raise error

    return answer


def holder(deduct):
    """A memory holder whose deduct answers ``deduct(self, batch, held)``."""

    class Made(MemoryHolder):
        @hookimpl
        def deduct(self, batch):
            return deduct(self, batch, MemoryHolder.deduct(self, batch))

    return Made


def router(deduct):
    """A router with one place whose deduct answers ``deduct(batch)``."""

    class Made:
        def __init__(self, options, context):
            pass

        @hookimpl
        def deduct(self, batch):
            return deduct(batch)

    return Made


def to_all(batch):
    return [Reservation(attempt, "all") for attempt in batch]


# ------------------------------------------------------------------ values
def test_a_rejection_is_a_no_and_nothing_else():
    """ACCEPTED and PENDING cannot be said by a stage as a refusal."""
    for code in (Code.ACCEPTED, Code.PENDING):
        with pytest.raises(ValueError, match=f"{code.name} is not a rejection"):
            Rejection(code)
    assert repr(UNKNOWN) == "UNKNOWN"
    assert Outcome(Code.SOLD_OUT).name == "SOLD_OUT"
    assert busy("why", 5) == Outcome(Code.BUSY, retry_after_ms=5, detail={"reason": "why"})


# ------------------------------------------------------------------ gates
def test_gates_run_in_config_order_and_see_only_who_is_left(make_stand, plugins, names):
    """The core narrows: a plugin never sees a refused attempt, answers stay aligned (G9)."""
    seen = []

    def refuse(*buyers):
        def judge(batch):
            seen.append([a.buyer for a in batch])
            return [BLOCKED if a.buyer in buyers else None for a in batch]

        return judge

    plugins.gate("first", refuse("b0", "b3"))
    plugins.gate("second", refuse("b4"))
    plugins.gate("third", refuse("b1"), stage="limit")
    stand = make_stand(pipeline={"filter": ["second", "first"], "limit": ["third"]})
    outcomes = stand.crowd(6)
    assert seen == [
        ["b0", "b1", "b2", "b3", "b4", "b5"],
        ["b0", "b1", "b2", "b3", "b5"],
        ["b1", "b2", "b5"],
    ]
    assert names(outcomes) == ["BLOCKED", "BLOCKED", "ACCEPTED", "BLOCKED", "BLOCKED", "ACCEPTED"]
    assert outcomes[0].detail == {"reason": "test"}
    assert {buyer for buyer, _ in stand.states()} == {"b2", "b5"}


def test_a_batch_that_a_gate_empties_goes_no_further(make_stand, plugins, names):
    """No stage is called with an empty batch."""
    calls = []
    plugins.gate("all", lambda batch: [BLOCKED] * len(batch))
    plugins.gate("later", lambda batch: calls.append(len(batch)) or [None] * len(batch))
    stand = make_stand(pipeline={"filter": ["all", "later"]})
    assert names(stand.crowd(3)) == ["BLOCKED"] * 3
    assert calls == []
    assert stand.rows("intents") == []


@pytest.mark.parametrize("stage", ["filter", "limit"])
def test_a_gates_fault_of_any_kind_follows_on_fault(make_stand, plugins, names, stage):
    """Open: attempts pass. Closed: BUSY, never SOLD_OUT, and nothing is held (L13, G9)."""
    error = [None]

    def fail(_batch):
        raise error[0]

    plugins.gate("loose", fail, stage=stage, on_fault="open")
    plugins.gate("strict", fail, stage=stage, on_fault="closed")
    stand = make_stand(
        {"gold": 100}, pipeline={stage: ["loose"]}, modes={"strict": {stage: ["strict"]}}
    )
    strict = stand.runtime.view.pipelines["strict"]
    for n, fault in enumerate(FAULTS):
        error[0] = fault
        outcomes = stand.batch(stand.attempt("ann", f"r{n}"), stand.attempt("bob", f"r{n}"))
        assert names(outcomes) == ["ACCEPTED"] * 2, fault
        batch = Batch(stand.runtime.view.sale, [admitted(stand, "zoe")], "strict", 1)
        (outcome,) = strict.run(batch)
        assert (outcome.code, outcome.detail) == (Code.BUSY, {"reason": f"{stage}-fault"}), fault
        assert outcome.retry_after_ms
    assert ("zoe", "r1") not in stand.states()
    assert set(stand.alarm_names()) == {f"{stage}-fault"}


def admitted(stand, buyer, request_id="r1", **need):
    found = stand.runtime.admit(stand.attempt(buyer, request_id, **need), None)
    assert isinstance(found, Attempt)
    return found


BROKEN_VERDICTS = {
    "few": lambda batch: [None],
    "many": lambda batch: [None] * 9,
    "none": lambda batch: None,
    "generator": lambda batch: (None for _ in batch),
    "bool": lambda batch: [True] * len(batch),
    "unknown": lambda batch: [UNKNOWN] * len(batch),
    "bare code": lambda batch: [Rejection(-7)] * len(batch),
    "bare detail": lambda batch: [Rejection(Code.BLOCKED, "members only")] * len(batch),
    "a word to wait": lambda batch: [Rejection(Code.BUSY, retry_after_ms="soon")] * len(batch),
    "less than now": lambda batch: [Rejection(Code.BUSY, retry_after_ms=-1)] * len(batch),
    "part of a ms": lambda batch: [Rejection(Code.BUSY, retry_after_ms=0.5)] * len(batch),
    "for ever": lambda batch: [Rejection(Code.BUSY, retry_after_ms=10**400)] * len(batch),
}


def test_a_gate_that_breaks_its_contract_is_a_fault_of_that_gate(make_stand, plugins, clock):
    """Wrong count or kind: a critical alarm, and on_fault decides for the whole batch."""
    answer = [None]
    plugins.gate("odd", lambda batch: answer[0](batch))
    stand = make_stand(pipeline={"filter": ["odd"]})
    for what, broken in BROKEN_VERDICTS.items():
        answer[0] = broken
        stand.alarms.clear()
        clock.advance(2)
        outcomes = stand.crowd(2)
        reasons = [(o.code, o.detail["reason"]) for o in outcomes]
        assert reasons == [(Code.BUSY, "filter-fault")] * 2, what
        (alarm,) = stand.alarms
        assert (alarm.name, alarm.detail["plugin"]) == ("filter-fault", "odd")
        expected = "critical" if alarm.detail["error"] == "ContractError" else "warning"
        assert alarm.severity == expected, what
    assert stand.rows("intents") == []


# ------------------------------------------------------------------ deduct
def test_c3_a_plugin_that_uses_its_list_again_mixes_nobody_up(make_stand, plugins, monkeypatch):
    """What was checked stays so while accept waits, whatever the plugin does to its list."""
    mine = []

    def deduct(batch):
        mine[:] = [Reservation(a, "all", a.order_no, batch.epoch) for a in batch.attempts]
        return mine

    plugins["reuses"] = router(deduct)
    stand = make_stand({"gold": 5}, pipeline={"deduct": "reuses"})
    ann, eve, bob, cid = (admitted(stand, name) for name in ("ann", "eve", "bob", "cid"))
    accept = stand.ledger.accept

    def late(batch, items, **how):
        deduct(msgspec.structs.replace(batch, attempts=[bob, cid]))
        return accept(batch, items, **how)

    monkeypatch.setattr(stand.ledger, "accept", late)
    told = stand.batch(stand.attempt("ann"), stand.attempt("eve"))
    assert [outcome.order_no for outcome in told] == [ann.order_no, eve.order_no]
    assert set(stand.states()) == {("ann", "r1"), ("eve", "r1")}


def test_any_sized_answer_of_deduct_is_taken(make_stand, plugins, names):
    """A view of a dict has no index, and is one answer per attempt all the same."""
    plugins["views"] = router(
        lambda batch: {
            a.buyer: Reservation(a, "all", a.order_no, batch.epoch) for a in batch.attempts
        }.values()
    )
    stand = make_stand({"gold": 5}, pipeline={"deduct": "views"})
    assert names(stand.crowd(3)) == ["ACCEPTED"] * 3


@pytest.mark.parametrize("error", [UnavailableError("down"), PermanentError("no")])
def test_a_deduct_that_surely_did_nothing_is_busy_and_holds_nothing(make_stand, plugins, error):
    """Surely not applied: BUSY, no intent, no undo; the next try sells."""
    broken = [True]

    class Down(MemoryHolder):
        @hookimpl
        def deduct(self, batch):
            if broken[0]:
                raise error
            return MemoryHolder.deduct(self, batch)

    plugins["down"] = Down
    stand = make_stand(pipeline={"deduct": "down"})
    outcome = stand.buy("ann")
    assert (outcome.code, outcome.detail) == (Code.BUSY, {"reason": "deduct-unavailable"})
    assert len(stand.engine.custody.settlements) == 0
    broken[0] = False
    assert stand.buy("ann").code is Code.ACCEPTED
    assert stand.drain() == 0
    assert stand.balanced()


DEDUCT_FAULTS = [
    UnknownOutcomeError("lost"),
    RuntimeError("bug"),
    SystemExit(1),
    KeyboardInterrupt(),
    MemoryError(),
]


def test_4_6_a_holders_fault_after_it_held_is_pending_and_settled(make_stand, plugins):
    """Maybe applied: PENDING with a receipt; then ABORTED for good, and the unit sells again."""
    error = [None]

    def deduct(_self, _batch, held):
        if error[0] is not None:
            raise error[0]
        return held

    plugins["lost"] = holder(deduct)
    stand = make_stand({"gold": 1}, pipeline={"deduct": "lost"}, sale={"per_buyer": 1})
    for n, fault in enumerate(DEDUCT_FAULTS):
        error[0], request_id = fault, f"r{n}"
        outcome = stand.buy("ann", request_id)
        assert outcome.code is Code.PENDING, fault
        assert outcome.receipt
        assert stand.buy("ann", request_id) == outcome, "the same again is answered from memory"
        assert stand.drain() == 0
        assert stand.states()["ann", request_id] == "ABORTED"
        error[0] = None
        settled = stand.buy("ann", request_id)
        assert (settled.code, settled.final) == (Code.BUSY, True)
    assert stand.buy("ann", "last").code is Code.ACCEPTED, "unit and quota are back, each time"
    assert stand.drain() == 0
    assert stand.balanced()


def test_a_routers_fault_is_busy_because_it_holds_nothing(make_stand, plugins):
    """A router cannot have applied anything."""
    error = [None]

    def fail(_batch):
        raise error[0]

    plugins["way"] = router(fail)
    stand = make_stand(pipeline={"deduct": "way"})
    for fault in DEDUCT_FAULTS:
        error[0] = fault
        outcome = stand.buy("ann")
        assert (outcome.code, outcome.detail) == (Code.BUSY, {"reason": "deduct-fault"}), fault
    assert stand.rows("intents") == []
    assert len(stand.engine.custody.settlements) == 0


@pytest.mark.parametrize(
    "answer",
    [
        lambda batch: to_all(batch)[:-1],
        lambda batch: [None] * len(batch),
        lambda batch: [Outcome(Code.ACCEPTED, order_no="x")] * len(batch),
        lambda batch: to_all(batch)[::-1],
    ],
    ids=["few", "none", "outcome", "misaligned"],
)
def test_a_deduct_that_breaks_its_contract_sells_nothing(make_stand, plugins, answer):
    """Wrong count, wrong kind, another buyer's reservation (C3): the batch is not accepted."""
    plugins["odd"] = router(answer)
    stand = make_stand(pipeline={"deduct": "odd"})
    assert [o.code for o in stand.crowd(2)] == [Code.BUSY] * 2
    assert stand.rows("intents") == []
    assert [(a.name, str(a.severity)) for a in stand.alarms] == [("deduct-fault", "critical")]


def test_an_equal_copy_of_the_attempt_is_the_same_attempt(make_stand, plugins):
    """A plugin may rebuild what it was given; only other content is another attempt."""
    plugins["copies"] = router(
        lambda batch: [Reservation(msgspec.structs.replace(a), "all") for a in batch]
    )
    assert make_stand(pipeline={"deduct": "copies"}).buy("ann").code is Code.ACCEPTED


def test_one_unknown_item_is_pending_and_the_others_are_decided(make_stand, plugins, names):
    """UNKNOWN is per item; its unit comes back, its neighbours' answers stand."""
    plugins["some"] = holder(
        lambda _self, batch, held: [
            UNKNOWN if a.buyer == "b1" else item for a, item in zip(batch, held, strict=True)
        ]
    )
    stand = make_stand({"gold": 3}, pipeline={"deduct": "some"})
    outcomes = stand.crowd(3)
    assert names(outcomes) == ["ACCEPTED", "PENDING", "ACCEPTED"]
    assert stand.drain() == 0
    assert stand.buy("zoe").code is Code.ACCEPTED
    assert stand.drain() == 0
    assert stand.balanced()


def test_a_rejection_of_deduct_is_the_answer(make_stand, plugins):
    """Nobody re-wraps a code; a replayed end state is final."""
    plugins["no"] = router(
        lambda batch: [Rejection(Code.OVER_LIMIT, {"limit": 1, "final": True}, 70) for _ in batch]
    )
    outcome = make_stand(pipeline={"deduct": "no"}).buy("ann")
    assert outcome.code is Code.OVER_LIMIT
    assert outcome.detail["limit"] == 1
    assert outcome.retry_after_ms == 70
    assert outcome.final


def test_7_1_a_plugin_cannot_say_sold_out_for_the_ledger(make_stand, plugins):
    """SOLD_OUT of a deduct is a dry place: with units left in the ledger the answer is BUSY."""
    plugins["dry"] = router(lambda batch: [Rejection(Code.SOLD_OUT) for _ in batch])
    stand = make_stand({"gold": 5}, pipeline={"deduct": "dry"})
    outcome = stand.buy("ann")
    assert (outcome.code, outcome.detail) == (Code.BUSY, {"reason": "units-moving"})


# ------------------------------------------------------------------ accept
def fail_once(stand, monkeypatch, error, *, after_commit=False):
    """Let the accept transaction fail one time, before or after it was applied."""
    real, left = stand.ledger.accept, [1]

    def accept(*args, **kwargs):
        if not left:
            return real(*args, **kwargs)
        left.pop()
        if after_commit:
            real(*args, **kwargs)
        raise error

    monkeypatch.setattr(stand.ledger, "accept", accept)


@pytest.mark.parametrize("error", [UnavailableError("down"), PermanentError("constraint")])
@pytest.mark.parametrize("deduct", ["db-atomic", "memory"])
def test_4_1_accept_that_did_nothing_is_busy_and_holds_go_back(
    make_stand, monkeypatch, deduct, error
):
    """Surely not applied: BUSY; the resolver writes the tombstone, and the hold is undone."""
    stand = make_stand({"gold": 1}, pipeline={"deduct": deduct})
    fail_once(stand, monkeypatch, error)
    outcome = stand.buy("ann")
    assert (outcome.code, outcome.detail) == (Code.BUSY, {"reason": "ledger-unavailable"})
    holds = deduct == "memory"
    assert len(stand.engine.custody.settlements) == (1 if holds else 0)
    assert stand.drain() == 0
    assert stand.states() == ({("ann", "r1"): "ABORTED"} if holds else {})
    assert stand.buy("zoe").code is Code.ACCEPTED, "the unit is sellable again"
    assert stand.drain() == 0
    assert stand.balanced()


def test_4_1_a_retry_that_comes_before_the_undo_keeps_the_hold(make_stand, monkeypatch):
    """BUSY is not final: the same identity may be accepted first, then nothing is undone."""
    stand = make_stand({"gold": 1}, pipeline={"deduct": "memory"})
    fail_once(stand, monkeypatch, UnavailableError("down"))
    assert stand.buy("ann").code is Code.BUSY
    assert stand.buy("ann").code is Code.ACCEPTED
    assert stand.drain() == 0
    assert stand.states() == {("ann", "r1"): "CREATED"}
    assert stand.buy("zoe").code is Code.SOLD_OUT
    assert stand.balanced()


@pytest.mark.parametrize("error", [UnknownOutcomeError("lost"), SystemExit()])
@pytest.mark.parametrize("after_commit", [False, True])
@pytest.mark.parametrize("deduct", ["db-atomic", "memory"])
def test_4_1_an_unknown_commit_is_pending_and_the_truth_follows(
    make_stand, monkeypatch, deduct, after_commit, error
):
    """PENDING until the identity is settled: accepted where it was committed, else aborted."""
    stand = make_stand({"gold": 1}, pipeline={"deduct": deduct})
    fail_once(stand, monkeypatch, error, after_commit=after_commit)
    outcome = stand.buy("ann")
    assert outcome.code is Code.PENDING
    assert outcome.receipt
    asked = stand.result("ann")
    assert asked.code is (Code.ACCEPTED if after_commit else Code.PENDING)
    assert stand.drain() == 0
    told = stand.buy("ann")
    if after_commit:
        assert told.code is Code.ACCEPTED
        assert stand.buy("zoe").code is Code.SOLD_OUT
    else:
        assert (told.code, told.final) == (Code.BUSY, True)
        assert stand.buy("zoe").code is Code.ACCEPTED
    assert stand.drain() == 0
    assert stand.balanced()


def test_a_stale_epoch_or_kind_is_busy_and_writes_nothing(make_stand):
    """A batch decided under another epoch never commits (protocol.md 6.1)."""
    stand = make_stand()
    view = stand.runtime.view
    pipeline = view.pipelines["normal"]
    batch = Batch(view.sale, [admitted(stand, "ann")], "normal", epoch=2)
    (outcome,) = pipeline.run(batch)
    assert (outcome.code, outcome.detail) == (Code.BUSY, {"reason": "stale-epoch"})
    (outcome,) = pipeline.run(msgspec.structs.replace(batch, epoch=1, kind="J"))
    assert outcome.code is Code.BUSY
    assert stand.rows("intents") == []


# ------------------------------------------------------------------ dry places
def test_5_3_a_dry_place_is_refilled_and_tried_again_in_the_same_batch(make_stand, names):
    """10 segments with 5 units sell exactly 5, whoever asks (D10)."""
    stand = make_stand({"gold": 5}, pipeline={"deduct": "db-segments"})
    assert sorted(names(stand.crowd(12))) == ["ACCEPTED"] * 5 + ["SOLD_OUT"] * 7
    assert stand.balanced()


def test_7_2_too_few_for_the_quantity_says_how_many_remain(make_stand):
    """SOLD_OUT with ``remaining`` is no mark: who wants fewer still buys."""
    stand = make_stand({"gold": 5, "blue": 1}, pipeline={"deduct": "db-segments"})
    assert stand.buy("ann", gold=3).code is Code.ACCEPTED
    outcome = stand.buy("bob", gold=3)
    assert (outcome.code, outcome.detail) == (Code.SOLD_OUT, {"sku": "gold", "remaining": 2})
    assert stand.buy("cat", gold=1, blue=1).code is Code.ACCEPTED
    outcome = stand.buy("dan", gold=1, blue=1)
    assert (outcome.code, outcome.detail) == (Code.SOLD_OUT, {"sku": "blue"})
    assert stand.buy("eve", gold=1).code is Code.ACCEPTED
    assert stand.buy("fay", gold=1).detail == {"sku": "gold"}


def test_7_1_units_on_their_way_are_busy_not_sold_out(make_stand):
    """An open funding may still bring units: nobody says SOLD_OUT meanwhile."""
    stand = make_stand({"gold": 1})
    assert stand.buy("ann").code is Code.ACCEPTED
    row = stand.ledger.require_sale("drop")
    stand.ledger.plan_funding(row, "f1", sku="gold", kind="topup", source="", target="all", units=1)
    outcome = stand.buy("bob")
    assert (outcome.code, outcome.detail) == (Code.BUSY, {"reason": "units-moving"})
    assert stand.drain() == 0, "nothing was there to move: the row is cancelled"
    assert stand.buy("bob").code is Code.SOLD_OUT


@pytest.mark.parametrize("method", ["gather", "left"])
def test_without_the_ledgers_truth_a_dry_place_is_busy(make_stand, monkeypatch, method):
    """A fault of the refill leaves it to the truth; without the truth nobody says SOLD_OUT."""
    stand = make_stand({"gold": 2})
    assert stand.buy("ann").code is Code.ACCEPTED

    def fail(*_):
        raise UnavailableError("down")

    monkeypatch.setattr(stand.ledger, method, fail)
    outcome = stand.buy("bob", gold=2)
    if method == "left":
        assert (outcome.code, outcome.detail) == (Code.BUSY, {"reason": "ledger-unavailable"})
    else:
        assert outcome.code is Code.SOLD_OUT
        assert "funding-fault" in stand.alarm_names()


def test_a_sold_out_sale_is_asked_once_and_never_refilled(make_stand, monkeypatch):
    """Where the ledger has no unit anywhere there is nothing to move: one read answers."""
    stand = make_stand({"gold": 1})
    assert stand.buy("ann").code is Code.ACCEPTED
    asked = []
    left = stand.ledger.left
    monkeypatch.setattr(stand.ledger, "left", lambda sale: asked.append(sale) or left(sale))
    monkeypatch.setattr(stand.ledger, "gather", lambda *_: asked.append("gather"))
    assert [outcome.code for outcome in stand.crowd(3)] == [Code.SOLD_OUT] * 3
    assert len(asked) == 1


def test_refilling_is_tried_a_bounded_number_of_times(make_stand, monkeypatch):
    """Units that always go to others end in an answer, not in a loop."""
    stand = make_stand({"gold": 2})
    assert stand.buy("ann").code is Code.ACCEPTED
    pipeline = stand.runtime.view.pipelines["normal"]
    calls = []
    greedy = msgspec.structs.replace(pipeline, refill=lambda *args: calls.append(args) or True)
    batch = Batch(stand.runtime.view.sale, [admitted(stand, "bob", gold=2)], "normal", 1)
    (outcome,) = greedy.run(batch)
    assert outcome.detail == {"sku": "gold", "remaining": 1}
    assert [wants for _, _, wants in calls] == [{("all", "gold"): 2}] * 2


# ------------------------------------------------------------------ observers
def test_an_observer_sees_everything_and_changes_nothing(make_stand, plugins, names):
    """Its exception of any kind is logged; the answers stand."""
    seen, error = [], [None]

    class Watcher:
        def __init__(self, options, context):
            pass

        @hookimpl
        def filter(self, batch):
            return [None] * len(batch)

        @hookimpl
        def batch_settled(self, batch, outcomes):
            seen.append([(a.buyer, o.name) for a, o in zip(batch, outcomes, strict=True)])
            if isinstance(outcomes, list):
                outcomes.reverse()
            raise error[0]

        @hookimpl
        def alarm(self, alarm):
            raise error[0]

    plugins["watcher"] = Watcher
    stand = make_stand({"gold": 6}, pipeline={"filter": ["watcher"]})
    for n, fault in enumerate(FAULTS):
        error[0] = fault
        assert names(stand.batch(stand.attempt(f"b{n}"), stand.attempt(f"c{n}", gold=9))) == [
            "ACCEPTED",
            "SOLD_OUT",
        ]
        assert seen[n] == [(f"b{n}", "ACCEPTED"), (f"c{n}", "SOLD_OUT")]
    assert "batch_settled-fault" in stand.alarm_names()


# ------------------------------------------------------------------ delivery INLINE
def test_inline_writes_the_order_before_the_answer(make_stand):
    """``direct``: the order row is there when the caller has its answer, and the batch closed."""
    stand = make_stand(pipeline={"enqueue": "direct"})
    assert stand.buy("ann").code is Code.ACCEPTED
    assert [row["buyer"] for row in stand.rows("orders")] == ["ann"]
    assert stand.states() == {("ann", "r1"): "CREATED"}
    assert [row["done"] for row in stand.rows("outbox")] == [1]
    stand.buy("ann")
    assert len(stand.rows("outbox")) == 1, "a replay makes no batch"


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(1), UnknownOutcomeError("x")])
def test_inline_a_fault_of_persist_leaves_the_batch_to_workers(make_stand, plugins, clock, error):
    """The accept stands; after the lease any worker takes the batch over."""
    broken = [True]

    class Weak:
        def __init__(self, options, context):
            pass

        @hookimpl
        def persist(self, reservations):
            if broken[0]:
                raise error
            return [Persisted.CREATED for _ in reservations]

    plugins["weak"] = Weak
    stand = make_stand(pipeline={"enqueue": "direct", "persist": "weak"})
    assert stand.buy("ann").code is Code.ACCEPTED
    assert stand.states() == {("ann", "r1"): "RESERVED"}
    assert "inline-persist-failed" in stand.alarm_names()
    broken[0] = False
    assert stand.role("persist").run_once() is False, "the request's lease is not over"
    clock.advance(stand.engine.settings.workers.lease_s + 1)
    assert stand.role("persist").run_once() is True
    assert stand.states() == {("ann", "r1"): "CREATED"}


def test_claim_leaves_the_order_to_workers(make_stand):
    """``outbox``: accepted first, the order follows."""
    stand = make_stand()
    assert stand.runtime.view.pipelines["normal"].delivery is Delivery.CLAIM
    assert stand.buy("ann").code is Code.ACCEPTED
    assert stand.rows("orders") == []
    assert stand.drain() == 0
    assert len(stand.rows("orders")) == 1


def test_lines_of_one_attempt_are_all_or_nothing(make_stand):
    """A shortage of one sku takes nothing of the other."""
    stand = make_stand({"gold": 1, "blue": 5})
    attempt = Attempt([Line("blue", 2), Line("gold", 2)], "ann", "r1")
    (outcome,) = stand.batch(attempt)
    assert outcome.code is Code.SOLD_OUT
    assert {s["sku"]: s["consumed"] for s in stand.status()["skus"]} == {"gold": 0, "blue": 0}
