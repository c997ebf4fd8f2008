"""Worker roles: accepted attempts become orders, holds and units come back, whatever fails."""

import threading

import msgspec
import pytest
import sqlalchemy as sa

from doorbuster import settlement
from doorbuster.errors import UnavailableError
from doorbuster.ledger import schema
from doorbuster.model import Attempt, Batch, IntentState, Kind, Line, Reservation
from doorbuster.outcomes import UNKNOWN, Code, Outcome
from doorbuster.pipeline import Unsettled
from doorbuster.plugin import Persisted, hookimpl
from doorbuster.testing.memory import MemoryHolder
from doorbuster.workers.runner import ROLES, Runner


class Outside:
    """A persist plugin with a shop of its own: it moves no intents, the core does."""

    orders: dict
    fault = None

    def __init__(self, options, context):
        self.orders = context.state.setdefault("orders", {})

    @hookimpl
    def persist(self, reservations):
        if Outside.fault is not None:
            raise Outside.fault
        return [self._one(item) for item in reservations]

    def _one(self, item):
        if item.attempt.buyer.startswith("bad") or self.orders.get(item.order_no) == "VOID":
            return Persisted.REFUSED
        if item.order_no in self.orders:
            return Persisted.EXISTS
        self.orders[item.order_no] = item.attempt.buyer
        return Persisted.CREATED

    @hookimpl
    def void(self, reservation):
        self.orders[reservation.order_no] = "VOID"
        return Persisted.REFUSED


@pytest.fixture(autouse=True)
def outside(plugins):
    Outside.fault = None
    plugins["outside"] = Outside
    return Outside


def shop(stand):
    return stand.engine.wiring.bound("drop", "outside").instance.orders


# ------------------------------------------------------------------ persist
def test_s0_32_accepted_attempts_become_orders_once(make_stand):
    """Many batches in one claim; running again changes nothing."""
    stand = make_stand({"gold": 30})
    for n in range(3):
        stand.batch(*(stand.attempt(f"b{n}-{i}") for i in range(10)))
    assert stand.role("persist").waiting() == 3
    assert stand.drain() == 0
    assert stand.drain() == 0
    assert len(stand.rows("orders")) == 30
    assert set(stand.states().values()) == {"CREATED"}
    assert [row["done"] for row in stand.rows("outbox")] == [1] * 3
    assert stand.balanced()


def test_4_5_a_persist_plugin_without_creating_is_moved_on_by_the_core(make_stand):
    """Its answers CREATED and EXISTS both mean the order is there."""
    stand = make_stand(pipeline={"persist": "outside"})
    stand.crowd(3)
    numbers = [row["order_no"] for row in stand.rows("intents")]
    shop(stand)[numbers[0]] = "b0"  # an earlier worker wrote it and died
    assert stand.drain() == 0
    assert set(stand.states().values()) == {"CREATED"}
    assert sorted(shop(stand)) == sorted(numbers)


def test_4_5_refused_is_a_dead_letter_and_an_alarm_and_no_loop(make_stand):
    """The intent stays RESERVED for a person; the batch is closed; the others go on."""
    stand = make_stand(pipeline={"persist": "outside"})
    stand.batch(stand.attempt("bad"), stand.attempt("ann"))
    assert stand.drain() == 0
    assert stand.states() == {("bad", "r1"): "RESERVED", ("ann", "r1"): "CREATED"}
    assert [row["order_no"] for row in stand.rows("dead_letters")] == [stand.result("bad").order_no]
    assert [row["done"] for row in stand.rows("outbox")] == [1]
    assert stand.alarm_names() == ["persist-refused"]
    assert str(stand.alarms[0].severity) == "critical"
    assert stand.role("persist").run_once() is False


def test_o4_an_expired_lease_is_taken_over(make_stand, tmp_path, clock):
    """A worker that died with a lease delays its batches, and loses none."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    dead, alive = make_stand(url=url), make_stand(url=url, start=False)
    dead.crowd(3)
    claims = dead.ledger.claim(owner="dead", rows=100, lease_s=10)
    assert len(claims) == 1
    assert alive.role("persist").run_once() is False
    assert alive.role("persist").waiting() == 1
    clock.advance(10)
    assert alive.role("persist").run_once() is True
    assert alive.drain() == 0
    assert len(alive.rows("orders")) == 3
    assert alive.balanced()


def test_draining_waits_for_the_lease_of_a_dead_process(make_stand, tmp_path, clock):
    """``--drain`` ends when nothing is left, not when nothing is claimable."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    stand = make_stand(url=url, workers={"lease_s": 2})
    stand.crowd(2)
    stand.ledger.claim(owner="dead", rows=100, lease_s=2)
    before = clock.monotonic_s()
    assert stand.drain() == 0
    assert clock.monotonic_s() - before >= 2
    assert len(stand.rows("orders")) == 2


@pytest.mark.parametrize("fault", [UnavailableError("down"), RuntimeError("x"), SystemExit(1)])
def test_a_persist_that_fails_is_tried_again_within_its_lease(make_stand, clock, fault):
    """And by whoever claims it after; draining gives up in bounded time and says what is left."""
    stand = make_stand(pipeline={"persist": "outside"}, workers={"lease_s": 1})
    stand.crowd(2)
    Outside.fault = fault
    role = stand.role("persist")
    with pytest.raises(type(fault)):
        role.run_once()
    assert role.run_once() is False, "not at once again"
    Outside.fault = None
    clock.advance(0.3)
    assert role.run_once() is True, "the same lease"
    assert stand.drain() == 0
    stand.crowd(5)
    Outside.fault = fault
    assert stand.drain() == 1
    assert "role-persist-failed" in stand.alarm_names()
    Outside.fault = None
    assert stand.drain() == 0
    assert set(stand.states().values()) == {"CREATED"}


def test_a_batch_that_keeps_failing_calls_a_person(make_stand, clock):
    """Lease after lease: an alarm of its own, and it is still tried."""
    stand = make_stand(pipeline={"persist": "outside"})
    stand.crowd(1)
    Outside.fault = UnavailableError("down")
    for _ in range(6):
        with pytest.raises(UnavailableError):
            stand.role("persist").run_once()
        clock.advance(11)
    assert "batch-keeps-failing" in stand.alarm_names()
    Outside.fault = None
    assert stand.drain() == 0


def test_one_sales_broken_persist_keeps_no_other_sale_waiting(make_stand):
    """Each sale by itself: the fault of one is not the backlog of all."""
    stand = make_stand(
        pipeline={"persist": "outside"},
        sales={"zz": {"skus": {"x": 9}, "pipeline": {"persist": "orders"}}},
    )
    stand.engine.sales.start("zz", actor="test")
    stand.crowd(1)
    Outside.fault = RuntimeError("broken")
    for n in range(3):
        stand.engine.attempt_batch("zz", [Attempt([Line("x")], f"b{n}", "r1")])
        assert stand.role("persist").run_once() is True
    assert len(stand.rows("orders")) == 3
    assert stand.states()[("b0", "r1")] in ("RESERVED", "CREATED")
    Outside.fault = None
    assert stand.drain() == 0


@pytest.mark.parametrize("answer", [[], [None], [Persisted.CREATED] * 3, ["CREATED"]])
def test_a_persist_that_breaks_its_contract_moves_nothing(make_stand, plugins, answer):
    """Wrong count or kind: the intents stay RESERVED, the batch open."""

    class Odd:
        def __init__(self, options, context):
            pass

        @hookimpl
        def persist(self, reservations):
            return answer

    plugins["odd"] = Odd
    stand = make_stand(pipeline={"persist": "odd"}, workers={"lease_s": 0.5})
    stand.crowd(1)
    assert stand.drain() == 1
    assert set(stand.states().values()) == {"RESERVED"}


def test_a_sale_that_is_not_configured_here_is_left_to_others(make_stand, tmp_path):
    """An alarm says that it waits; its batches are not leased away from who can persist them."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    extra = {"extra": {"skus": {"x": 5}}}
    there = make_stand(url=url, sales=extra)
    there.engine.sales.start("extra", actor="test")
    there.engine.attempt_batch("extra", [Attempt([Line("x")], "ann", "r1")])
    here = make_stand(url=url, start=False)
    assert here.drain() == 0, "it is not this process's work"
    assert [(a.name, a.sale) for a in here.alarms] == [("sale-not-configured", "extra")]
    assert there.role("persist").run_once() is True, "without waiting for a lease"
    assert len(there.rows("orders")) == 1


def test_two_environments_in_one_database_do_not_meet(make_stand, tmp_path, names):
    """The environment is part of every key: units, orders and leases are its own."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    prod = make_stand({"gold": 2}, url=url, environment="prod")
    test = make_stand({"gold": 1}, url=url, environment="test")
    assert names(prod.crowd(3)) == ["ACCEPTED", "ACCEPTED", "SOLD_OUT"]
    assert names(test.crowd(3)) == ["ACCEPTED", "SOLD_OUT", "SOLD_OUT"]
    assert test.drain() == 0
    assert {row["environment"] for row in prod.rows("orders")} == {"test"}
    assert prod.role("persist").run_once() is True
    assert prod.drain() == 0
    assert len(prod.rows("orders")) == 3
    assert prod.balanced()
    assert test.balanced()


def test_finishing_closes_what_was_persisted(make_stand):
    """A clean stop leaves no lease for others to wait for."""
    stand = make_stand()
    stand.crowd(1)
    role = stand.role("persist")
    assert role.run_once() is True
    assert [row["done"] for row in stand.rows("outbox")] == [0]
    role.finish()
    role.finish()
    assert [row["done"] for row in stand.rows("outbox")] == [1]


def test_a_failed_claim_forgets_nothing(make_stand, monkeypatch):
    """What was persisted is closed by the next claim that works."""
    stand = make_stand()
    stand.crowd(1)
    role = stand.role("persist")
    role.run_once()

    def down(**_):
        raise UnavailableError("down")

    with monkeypatch.context() as patch:
        patch.setattr(stand.ledger, "claim", down)
        with pytest.raises(UnavailableError):
            role.run_once()
    role.run_once()
    assert [row["done"] for row in stand.rows("outbox")] == [1]


# ------------------------------------------------------------------ the return arc
def give_back(stand, buyer, to):
    return stand.engine.release("drop", buyer, "r1", reason="changed my mind", actor="ann", to=to)


@pytest.mark.parametrize("deduct", ["db-atomic", "db-segments", "memory"])
@pytest.mark.parametrize("persist", ["orders", "outside"])
@pytest.mark.parametrize("created", [False, True])
def test_4_4_a_return_gives_units_and_quota_back_once(make_stand, names, deduct, persist, created):
    """Before its order RELEASED, after it CANCELLED; the unit sells again, the buyer may buy."""
    stand = make_stand(
        {"gold": 2}, pipeline={"deduct": deduct, "persist": persist}, sale={"per_buyer": 1}
    )
    assert names(stand.crowd(2)) == ["ACCEPTED"] * 2
    if created:
        assert stand.drain() == 0
    to = IntentState.CANCELLED if created else IntentState.RELEASED
    assert give_back(stand, "b0", to)
    assert stand.states()[("b0", "r1")] == "RETURNING"
    assert stand.buy("zoe").code is not Code.ACCEPTED, "not yet"
    assert stand.drain() == 0
    assert stand.states()[("b0", "r1")] == str(to)
    assert not give_back(stand, "b0", to), "once"
    (release,) = stand.rows("releases")
    assert (release["reason"], release["actor"], release["backend_done"]) == (
        "changed my mind",
        "ann",
        1,
    )
    first = stand.result("b0")
    assert (first.code, first.order_state) == (Code.ACCEPTED, str(to)), "its answer stays"
    assert stand.buy("b0").code is Code.ACCEPTED, "a replay of the returned attempt"
    assert stand.buy("b0", "r2").code is Code.ACCEPTED, "unit and quota are back"
    assert stand.buy("zoe", "r2").code is Code.SOLD_OUT, "exactly the one unit"
    assert stand.drain() == 0
    if persist == "orders":
        assert stand.balanced()
        dead = next(row for row in stand.rows("orders") if row["order_no"] == first.order_no)
        assert dead["state"] == ("CANCELLED" if created else "VOID")
    else:
        assert shop(stand)[first.order_no] == "VOID"


def test_4_5_a_late_persist_never_revives_a_returned_unit(make_stand):
    """It held the reservation while the return won: REFUSED, no dead letter, no alarm."""
    stand = make_stand(pipeline={"persist": "outside"})
    stand.crowd(1)
    claims = stand.ledger.claim(owner="slow", rows=10, lease_s=1)
    late = stand.ledger.reservations_of([claims[0].batch], stand.runtime.view.sale)
    assert give_back(stand, "b0", IntentState.RELEASED)
    assert stand.role("compensate").run_once() is True
    persist = stand.runtime.view.pipelines["normal"].persist
    assert persist(late) == [Persisted.REFUSED]
    stand.ledger.settle_persisted(stand.runtime.view.sale, late, [Persisted.REFUSED])
    assert stand.drain() == 0
    assert stand.states() == {("b0", "r1"): "RELEASED"}
    assert stand.rows("dead_letters") == []
    assert "persist-refused" not in stand.alarm_names()
    assert stand.balanced()


def test_4_4_a_void_that_fails_gives_nothing_back_yet(make_stand, monkeypatch):
    """First the order is surely dead, then the unit is free; any worker resumes it."""
    stand = make_stand({"gold": 1})
    stand.crowd(1)
    assert stand.drain() == 0
    assert give_back(stand, "b0", IntentState.CANCELLED)

    def down(*_):
        raise UnavailableError("down")

    with monkeypatch.context() as patch:
        patch.setattr(stand.ledger, "voiding", down)
        orders = stand.engine.wiring.bound("drop", "orders").instance
        patch.setattr(orders._context.ledger, "voiding", down)
        assert stand.role("compensate").run_once() is False
        assert stand.states() == {("b0", "r1"): "RETURNING"}
        assert stand.rows("releases") == []
    assert stand.drain() == 0
    assert stand.states() == {("b0", "r1"): "CANCELLED"}
    assert stand.buy("zoe").code is Code.ACCEPTED


@pytest.mark.parametrize("fault", [UnavailableError("x"), SystemExit(1), ValueError("x")])
def test_a_job_that_fails_waits_alone(make_stand, plugins, fault):
    """The lane goes on with the other jobs; the failing one comes again with back-off."""
    broken = {"b0"}

    class Sore(MemoryHolder):
        @hookimpl
        def compensate(self, items):
            if items[0].reservation.attempt.buyer in broken:
                raise fault
            return MemoryHolder.compensate(self, items)

    plugins["sore"] = Sore
    stand = make_stand({"gold": 2}, pipeline={"deduct": "sore"})
    stand.crowd(2)
    assert stand.drain() == 0
    for buyer in ("b0", "b1"):
        assert give_back(stand, buyer, IntentState.CANCELLED)
    assert stand.role("compensate").run_once() is True
    assert stand.role("compensate").waiting() == 1
    assert set(stand.states().values()) == {"CANCELLED"}, "the ledger's part is done"
    assert "compensate-failed" in stand.alarm_names()
    broken.clear()
    assert stand.drain() == 0
    assert stand.role("compensate").waiting() == 0
    assert stand.balanced()


@pytest.mark.parametrize("answers", [[UNKNOWN], [], [None]])
def test_4_7_an_undo_without_a_clear_answer_is_asked_again(make_stand, plugins, answers):
    """Whether it was done nobody knows; it is idempotent by order_no, so it is asked again."""
    said = [answers]

    class Mute(MemoryHolder):
        @hookimpl
        def compensate(self, items):
            return said.pop() if said else MemoryHolder.compensate(self, items)

    plugins["mute"] = Mute
    stand = make_stand({"gold": 1}, pipeline={"deduct": "mute"}, sale={"per_buyer": 1})
    stand.crowd(1)
    assert stand.drain() == 0
    assert give_back(stand, "b0", IntentState.CANCELLED)
    assert stand.drain() == 0
    assert not said
    assert stand.buy("b0", "r2").code is Code.ACCEPTED, "the holder gave the quota back"
    assert stand.buy("zed").code is Code.SOLD_OUT
    assert stand.drain() == 0
    assert stand.balanced()


# ------------------------------------------------------------------ the memory holder
@pytest.mark.parametrize("places", [1, 3])
def test_a_holder_sells_exactly_its_units(make_stand, names, places):
    """Top-ups, gathers and transfers move units; whoever asks, exactly N are sold."""
    stand = make_stand(
        {"gold": 40},
        pipeline={"deduct": "memory"},
        plugin_tables={"memory": {"places": places}},
    )
    sold = 0
    for n in range(12):
        outcomes = names(stand.batch(*(stand.attempt(f"x{n}-{i}") for i in range(5))))
        sold += outcomes.count("ACCEPTED")
        if n % 3 == 0:
            assert stand.drain() == 0
    assert sold == 40
    assert names(stand.crowd(3)) == ["SOLD_OUT"] * 3
    assert stand.drain() == 0
    assert stand.balanced()


@pytest.mark.parametrize("places", [1, 3])
def test_5_3_top_ups_come_in_tranches_and_leave_the_reserve(make_stand, places):
    """A first tranche at warm-up, rounds when a place runs low; 5 % stay for dry places."""
    stand = make_stand(
        {"gold": 1000},
        pipeline={"deduct": "memory"},
        plugin_tables={"memory": {"places": places}},
    )
    (sku,) = stand.status()["skus"]
    assert 0 < sku["free"] <= 250
    assert stand.drain() == 0
    (sku,) = stand.status()["skus"]
    assert sku["unallocated"] >= 50
    free = stand.ledger.free_units(stand.ledger.require_sale("drop"))
    assert len(free) == places
    assert max(free.values()) - min(free.values()) <= 1
    stand.batch(*(stand.attempt(f"b{n}") for n in range(200)))
    assert stand.drain() == 0
    assert min(stand.ledger.free_units(stand.ledger.require_sale("drop")).values()) > 0
    assert stand.balanced()


def test_4_3_refused_holds_are_undone(make_stand, names):
    """The ledger refuses what the holder let through: stock and quota go back, the code stays."""
    stand = make_stand({"gold": 3}, pipeline={"deduct": "memory"}, sale={"per_buyer": 1})
    ledger_row = stand.ledger.require_sale("drop")
    holder = stand.engine.wiring.bound("drop", "memory")
    assert stand.buy("ann").code is Code.ACCEPTED
    slot = next(iter(holder.instance._store.epochs.values())).slots[0]
    slot.bought.clear()  # the holder forgot ann; the ledger did not
    outcome = stand.buy("ann", "r2")
    assert (outcome.code, outcome.final) == (Code.OVER_LIMIT, True)
    assert stand.drain() == 0
    assert stand.states()[("ann", "r2")] == "ABORTED"
    assert stand.buy("ann", "r2").code is Code.OVER_LIMIT
    counts = holder.hooks["count"](stand.runtime.view.sale, 1)
    free = stand.ledger.free_units(ledger_row)
    assert {(c.place, c.sku): c.left for c in counts} == free
    assert stand.balanced()


def test_4_3_a_phantom_is_not_given_back(make_stand):
    """Units a holder had and its grant did not: BUSY, and only they vanish."""
    stand = make_stand({"gold": 20}, pipeline={"deduct": "memory"})
    assert stand.drain() == 0
    holder = stand.engine.wiring.bound("drop", "memory")
    slot = next(iter(holder.instance._store.epochs.values())).slots[0]
    stand.crowd(2)
    have = slot.left["gold"]
    assert have > 0
    slot.left["gold"] += 1  # a unit from nowhere
    outcome = stand.buy("zoe", gold=have + 1)
    assert (outcome.code, outcome.detail["reason"]) == (Code.BUSY, "phantom-hold")
    assert stand.drain() == 0
    free = stand.ledger.free_units(stand.ledger.require_sale("drop"))
    assert slot.left["gold"] == free["m0", "gold"] >= have, "the real ones are back"
    assert stand.balanced()


def test_4_3_the_sweeper_gives_back_a_hold_whose_process_died(make_stand, clock):
    """After ``hold_age_s`` without an intent; an accepted hold stays, and is judged once."""
    stand = make_stand({"gold": 2}, pipeline={"deduct": "memory"})
    assert stand.buy("ann").code is Code.ACCEPTED
    assert stand.drain() == 0
    clock.advance(5)
    sale, holder = stand.runtime.view.sale, stand.engine.wiring.bound("drop", "memory")
    lost = stand.runtime.admit(stand.attempt("bob"), None)
    batch = Batch(sale, [lost], "normal", 1)
    (hold,) = holder.hooks["deduct"](batch)  # and then its process dies
    assert isinstance(hold, Reservation)
    assert stand.buy("zoe").code is not Code.ACCEPTED
    resolve = stand.role("resolve")
    resolve._next_sweep_s = 0.0
    assert resolve.run_once() is False, "too young"
    clock.advance(stand.engine.settings.workers.hold_age_s + 1)
    assert resolve.run_once() is True
    assert stand.states()[("bob", "r1")] == "ABORTED"
    assert stand.drain() == 0
    assert stand.states()[("ann", "r1")] == "CREATED"
    assert stand.buy("cat").code is Code.ACCEPTED
    calls = []
    real = stand.ledger.tombstone
    stand.ledger.tombstone = lambda *args, **kw: calls.append(len(args[2])) or real(*args, **kw)
    clock.advance(60)
    resolve.run_once()
    clock.advance(60)
    resolve.run_once()
    assert calls == [1], "cat's hold once; what was judged before is not read again"
    assert stand.drain() == 0
    assert stand.balanced()


def test_a_sweep_that_fails_stops_no_other_sale(make_stand, plugins, clock):
    """Also when the plugin exits; its alarm names the sale."""

    class Blind(MemoryHolder):
        @hookimpl
        def holds(self, sale, epoch, older_than_s):
            raise SystemExit(1)

    plugins["blind"] = Blind
    stand = make_stand(
        {"gold": 1},
        pipeline={"deduct": "blind"},
        sales={"zz": {"skus": {"x": 1}, "pipeline": {"deduct": "memory"}}},
    )
    stand.engine.sales.start("zz", actor="test")
    runtime = stand.engine.world.runtimes["zz"]
    lost = runtime.admit(Attempt([Line("x")], "bob", "r1"), None)
    batch = Batch(runtime.view.sale, [lost], "normal", 1)
    stand.engine.wiring.bound("zz", "memory").hooks["deduct"](batch)
    clock.advance(20)
    assert stand.role("resolve").run_once() is True
    assert [(a.name, a.sale) for a in stand.alarms] == [("sweep-failed", "drop")]
    assert stand.states() == {("bob", "r1"): "ABORTED"}


def test_5_5_a_restock_down_takes_units_out_of_a_holders_places(make_stand, names):
    """Planned as fundings, debited by the plugin, taken off the total in the same move."""
    stand = make_stand(
        {"gold": 20}, pipeline={"deduct": "memory"}, plugin_tables={"memory": {"places": 3}}
    )
    assert stand.drain() == 0
    stand.crowd(2)
    stand.engine.sales.restock("drop", "gold", -17, actor="test")
    (sku,) = stand.status()["skus"]
    assert sku["wanted"] > 0, "what is in places comes step by step"
    assert stand.drain() == 0
    (sku,) = stand.status()["skus"]
    assert (sku["total"], sku["wanted"], sku["consumed"]) == (3, 0, 2)
    outcomes = names(stand.batch(*(stand.attempt(f"y{n}") for n in range(6))))
    assert (outcomes.count("ACCEPTED"), outcomes.count("SOLD_OUT")) == (1, 5)
    stand.engine.sales.restock("drop", "gold", -2, actor="test")
    assert stand.drain() == 0
    (sku,) = stand.status()["skus"]
    assert (sku["total"], sku["wanted"]) == (3, 2), "accepted units are never touched"
    assert stand.balanced()


def test_5_1_a_place_that_is_down_keeps_no_other_waiting(make_stand, plugins):
    """Its funding stays MOVED and is credited, once, when it answers again."""
    down = set()

    class Partly(MemoryHolder):
        @hookimpl
        def credit(self, fundings):
            if fundings[0].place in down:
                raise UnavailableError("down")
            return MemoryHolder.credit(self, fundings)

    plugins["partly"] = Partly
    stand = make_stand(
        {"gold": 10}, pipeline={"deduct": "partly"}, plugin_tables={"partly": {"places": 3}}
    )
    assert stand.drain() == 0
    row = stand.ledger.require_sale("drop")
    before = stand.ledger.free_units(row)
    down.add("m0")
    for n, place in enumerate(("m0", "m1", "m2")):
        stand.ledger.plan_funding(
            row, f"f{n}", sku="gold", kind="topup", source="", target=place, units=1
        )
    stand.engine.sales.restock("drop", "gold", 3, actor="test")
    with pytest.raises(UnavailableError):
        stand.role("topup").run_once()
    assert stand.role("topup").waiting() >= 1
    states = {f["id"]: f["state"] for f in stand.rows("fundings") if f["id"].startswith("f")}
    assert states == {"f0": "MOVED", "f1": "CREDITED", "f2": "CREDITED"}
    down.clear()
    assert stand.drain() == 0
    holder = stand.engine.wiring.bound("drop", "partly")
    counts = holder.hooks["count"](stand.runtime.view.sale, 1)
    free = stand.ledger.free_units(row)
    assert {(c.place, c.sku): c.left for c in counts} == free
    assert all(free[key] > before[key] for key in free)
    assert stand.balanced()


def test_6_6_control_is_pushed_until_every_place_has_it(make_stand, plugins):
    """A pause or limit that did not arrive is an alarm, and role topup goes on."""
    deaf, got = [True], []

    class Slow(MemoryHolder):
        @hookimpl
        def push(self, sale, epoch, control):
            if deaf[0]:
                return ["m0"]
            got.append((control.version, control.paused))
            return MemoryHolder.push(self, sale, epoch, control)

    plugins["slow"] = Slow
    stand = make_stand(pipeline={"deduct": "slow"})
    assert "control-not-pushed" in stand.alarm_names()
    topup = stand.role("topup")
    topup.run_once()
    deaf[0] = False
    topup.run_once()
    topup.run_once()
    version = stand.ledger.require_sale("drop").version
    assert got == [(version, False)], "once it arrived, it is not pushed again"
    stand.engine.sales.pause("drop", actor="test")
    assert got[-1] == (version + 1, True)
    stand.engine.sales.pause("drop", actor="test")
    assert got[-1] == (version + 1, True)


def test_open_fundings_of_an_ended_sale_are_brought_to_their_end(make_stand):
    """``--drain`` must not wait for ever; no new round is planned."""
    stand = make_stand({"gold": 100}, pipeline={"deduct": "memory"})
    row = stand.ledger.require_sale("drop")
    stand.ledger.plan_funding(row, "f", sku="gold", kind="topup", source="", target="m0", units=1)
    stand.engine.sales.end("drop", actor="test")
    assert stand.drain() == 0
    assert stand.balanced()


# ------------------------------------------------------------------ settlement
def unsettled(stand, buyer, **changes):
    view = stand.runtime.view
    attempt = stand.runtime.admit(stand.attempt(buyer), None)
    item = Reservation(attempt, "", attempt.order_no, 1)
    fields = {"sale": view.sale, "epoch": 1, "kind": Kind.H, "reservation": item, "holds": False}
    return Unsettled(**(fields | changes), answer=Outcome(Code.PENDING))


def test_4_6_the_queue_is_bounded_and_loud(make_stand, monkeypatch):
    """Beyond the bound receipts and the sweeper settle; an alarm says so."""
    stand = make_stand()
    monkeypatch.setattr(settlement, "_QUEUE_MAX", 2)
    stand.engine.custody.settlements.add([unsettled(stand, f"b{n}") for n in range(5)])
    assert len(stand.engine.custody.settlements) == 2
    assert [(a.name, a.detail["left"]) for a in stand.alarms] == [("settlement-overflow", 3)]
    assert stand.role("resolve").waiting() == 2
    assert stand.drain() == 0


def test_4_3_after_the_fence_nothing_is_written_and_nothing_is_final(make_stand):
    """A tombstone of an epoch that is over never commits; the answer is BUSY."""
    stand = make_stand()
    heard = []
    stand.engine.custody.settlements._on_settled = lambda item, outcome: heard.append(outcome)
    stand.engine.custody.settlements.add([unsettled(stand, "ann", epoch=7)])
    assert stand.drain() == 0
    assert [(o.code, o.final, o.detail) for o in heard] == [
        (Code.BUSY, False, {"reason": "stale-epoch"})
    ]
    assert stand.states() == {}


def test_an_item_of_an_earlier_run_is_no_poison(make_stand):
    """Its run is over: BUSY, and the queue goes on."""
    stand = make_stand()
    sale = msgspec.structs.replace(stand.runtime.view.sale, run=9)
    stand.engine.custody.settlements.add(
        [unsettled(stand, "ann", sale=sale), unsettled(stand, "bob")]
    )
    assert stand.drain() == 0
    assert stand.states() == {("bob", "r1"): "ABORTED"}


def test_no_fault_loses_what_is_queued(make_stand, monkeypatch):
    """One group fails, in whatever way: the others are settled, it stays."""
    stand = make_stand()
    real = stand.ledger.tombstone

    def fail_holds(*args, holds, **kw):
        if holds:
            raise RuntimeError("bug")
        return real(*args, holds=holds, **kw)

    stand.engine.custody.settlements.add(
        [unsettled(stand, "ann", holds=True), unsettled(stand, "bob")]
    )
    with monkeypatch.context() as patch:
        patch.setattr(stand.ledger, "tombstone", fail_holds)
        assert stand.engine.custody.settlements.run_once() is True
        assert len(stand.engine.custody.settlements) == 1
        with pytest.raises(RuntimeError):
            stand.engine.custody.settlements.run_once()
    assert stand.drain() == 0
    assert set(stand.states().values()) == {"ABORTED"}


# ------------------------------------------------------------------ reconcile and the runner
def test_s0_55_drift_is_an_alarm(make_stand, clock):
    """Role reconcile checks the invariants of every sale when it is time."""
    stand = make_stand()
    role = stand.role("reconcile")
    role.run_once()
    clock.advance(61)
    assert role.run_once() is False
    assert stand.alarms == []
    with stand.ledger.database.transaction() as connection:
        stock = schema.stock
        connection.execute(sa.update(stock).values(total=stock.c.total + 1))
    role.run_once()
    assert stand.alarms == [], "not before it is time again"
    clock.advance(61)
    role.run_once()
    (alarm,) = stand.alarms
    assert (alarm.name, alarm.sale, str(alarm.severity)) == ("drift", "drop", "critical")
    assert alarm.detail["violations"]
    assert role.waiting() == 0


class Scripted:
    """A role that does what it is told, then stops the runner."""

    name = "scripted"

    def __init__(self, steps, *, hurries=True):
        self.steps = list(steps)
        self.hurries = hurries
        self.left = 0
        self.finished = 0
        self.done = threading.Event()

    def run_once(self):
        if not self.steps:
            self.done.set()
            return False
        step = self.steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step

    def waiting(self):
        if isinstance(self.left, BaseException):
            raise self.left
        return self.left

    def finish(self):
        self.finished += 1


@pytest.fixture
def run(make_stand):
    """A runner over scripted roles."""

    def make(*roles):
        stand = make_stand(start=False)
        return stand, Runner(roles, stand.engine.runner._tools)

    return make


def test_a_role_survives_whatever_it_meets(run):
    """SystemExit, KeyboardInterrupt, MemoryError in its thread: backed off, and tried again."""
    role = Scripted([SystemExit(1), KeyboardInterrupt(), MemoryError(), RuntimeError(), True])
    other = Scripted([True])
    stand, runner = run(role, other)
    runner.start()
    assert role.done.wait(10)
    assert other.done.wait(10)
    runner.stop()
    runner.stop()
    assert role.steps == []
    assert (role.finished, other.finished) == (1, 1)
    assert "role-scripted-failed" in stand.alarm_names()


@pytest.mark.parametrize(("hurries", "pauses"), [(True, 0), (False, 5)])
def test_a_role_that_does_not_hurry_rests_after_each_piece(run, hurries, pauses):
    """Company comes meanwhile; one that hurries goes on at once, until there is nothing."""
    role = Scripted([True] * 5, hurries=hurries)
    stand, runner = run(role)
    rests = []
    wait = stand.clock.wait

    def counted(event, seconds):
        rests.append(len(role.steps))
        return wait(event, seconds)

    stand.clock.wait = counted
    runner.start()
    assert role.done.wait(10)
    runner.stop()
    assert rests[:pauses] == [4, 3, 2, 1, 0][:pauses]
    assert not any(rests[pauses:]), "the rest is of an idle role"


def test_persist_hurries_only_after_a_lease_at_least_half_full(make_stand):
    """A lease has two commits, so a small one waits ``idle_ms`` for company (S0-32)."""
    stand = make_stand({"gold": 99}, workers={"persist_rows": 8})
    (role,) = [role for role in stand.engine.runner._roles if role.name == "persist"]
    assert not role.hurries
    for n, hurries in ((3, False), (4, True), (8, True), (1, False)):
        crowd = [stand.attempt(f"b{i}", f"r{n}") for i in range(n)]
        assert {outcome.code for outcome in stand.batch(*crowd)} == {Code.ACCEPTED}
        assert role.run_once()
        assert role.hurries is hurries, n
    assert not role.run_once()
    assert not role.hurries


def test_a_finish_that_fails_ends_the_process_all_the_same(run):
    """What a crash may skip cannot hold a stop up."""
    role = Scripted([])
    role.finish = lambda: 1 / 0
    stand, runner = run(role)
    runner.start()
    runner.stop()
    assert "role-scripted-failed" in stand.alarm_names()


def test_draining_ends_when_nothing_is_left_or_says_what_is(run):
    """It stops after a lease and a half without progress; counting may fail too."""
    stand, runner = run(Scripted([True, True, RuntimeError(), True]))
    told = []
    assert runner.drain(progress=told.append) == 0
    assert told[-1] == 0
    stuck = Scripted([])
    stuck.left = 3
    stand, runner = run(stuck)
    before = stand.clock.monotonic_s()
    assert runner.drain() == 3
    assert 16 <= stand.clock.monotonic_s() - before < 25
    blind = Scripted([])
    blind.left = UnavailableError("down")
    _, runner = run(blind)
    assert runner.drain() == 1
    stopped = Scripted([])
    stopped.left = 2
    _, runner = run(stopped)
    runner.stop()
    assert runner.drain() == 2


def test_ctrl_c_stops_draining(run):
    """A person at the terminal is no fault of a plugin."""
    _, runner = run(Scripted([KeyboardInterrupt()]))
    with pytest.raises(KeyboardInterrupt):
        runner.drain()


def test_every_role_has_its_name():
    """``--roles`` takes these words."""
    assert list(ROLES) == ["persist", "compensate", "topup", "resolve", "reconcile"]
    assert [role.name for role in ROLES.values()] == list(ROLES)
