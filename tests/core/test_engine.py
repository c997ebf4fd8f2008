"""The engine as a library: both colours, results, receipts, modes, opening and closing."""

import asyncio
import threading

import pytest
import structlog

import doorbuster
from doorbuster.clock import SystemClock
from doorbuster.engine import Engine
from doorbuster.errors import ConfigError, UnavailableError, UnknownSaleError, WiringError
from doorbuster.model import Attempt, IntentState, Line, SaleState
from doorbuster.modes.control import request_mode
from doorbuster.outcomes import Code, Outcome, Rejection
from doorbuster.plugin import UNKNOWN, hookimpl
from doorbuster.settings.convert import convert
from doorbuster.testing.clock import ManualClock
from doorbuster.testing.memory import MemoryHolder
from doorbuster.windows import Counters, Windows


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'shop.db'}"


# ------------------------------------------------------------------ the signatures of design 8
def test_the_library_use_of_the_readme_with_asyncio(tmp_path, url):
    """``async with Engine.open(...)``: attempt, result, with workers running."""
    (tmp_path / "config" / "sales").mkdir(parents=True)
    (tmp_path / "config" / "sales" / "phone-x.toml").write_text("skus = { black = 3 }\n")

    async def shop():
        overrides = {"ledger": {"url": url}, "workers": {"idle_ms": 1}}
        async with Engine.open(tmp_path / "config", overrides=overrides) as engine:
            engine.sales.start("phone-x", actor="test")
            outcome = await engine.attempt("phone-x", "black", buyer="ann", request_id="r1")
            lines = [Line("black", 1), Line("black", 1)]
            more = await engine.attempt("phone-x", buyer="bob", request_id="r1", lines=lines)
            for _ in range(2000):
                found = await engine.result("phone-x", buyer="ann", request_id="r1")
                if found.order_state == "CREATED":
                    break
                await asyncio.sleep(0.001)
            nothing = await engine.result("phone-x", buyer="zoe", request_id="r1")
            return outcome, more, found, nothing

    outcome, more, found, nothing = asyncio.run(shop())
    assert outcome.code is Code.ACCEPTED
    assert more.code is Code.ACCEPTED
    assert (found.order_no, found.order_state) == (outcome.order_no, "CREATED")
    assert nothing is None


def test_the_library_use_of_the_readme_with_plain_calls(url):
    """``with``: attempt_batch and result_batch; answers align, in chunks of ``batch_max``."""
    settings = convert(
        {
            "ledger": {"url": url},
            "sales": {"drop": {"skus": {"gold": 10}}},
            "door": {"batch_max": 4},
        }
    )
    with Engine(settings) as engine:
        engine.sales.start("drop", actor="test")
        attempts = [Attempt([Line("gold")], f"b{n}", "r1") for n in range(12)]
        attempts[5] = Attempt([Line("gold", 0)], "b5", "r1")
        outcomes = engine.attempt_batch("drop", iter(attempts))
        answers = engine.result_batch("drop", [(f"b{n}", "r1") for n in range(12)])
        assert engine.attempt_batch("drop", []) == []
        assert engine.result_batch("drop", []) == []
    assert [o.name for o in outcomes].count("ACCEPTED") == 10
    assert outcomes[5].code is Code.INVALID
    for outcome, answer in zip(outcomes, answers, strict=True):
        if outcome.code is Code.ACCEPTED:
            assert answer.order_no == outcome.order_no
        else:
            assert answer is None


def test_the_package_exports_what_a_team_needs():
    """Engine, Attempt and Code are at hand."""
    assert doorbuster.Engine is Engine
    assert doorbuster.Attempt is Attempt
    assert doorbuster.Code is Code


def test_a_request_id_has_no_default(make_stand):
    """A retry needs it, so forgetting it must not work once."""
    engine = make_stand().engine
    with pytest.raises(TypeError):
        asyncio.run(engine.attempt("drop", "gold", buyer="ann"))


# ------------------------------------------------------------------ results and receipts
def test_known_answers_come_before_the_gates(make_stand, plugins):
    """An accepted identity is answered again from memory, whatever the gates say now."""
    open_ = [True]
    blocked = Rejection(Code.BLOCKED)
    plugins.gate("door", lambda batch: [None if open_[0] else blocked] * len(batch))
    stand = make_stand(pipeline={"filter": ["door"]}, door={"known_max": 2})
    first = stand.buy("ann")
    open_[0] = False
    assert stand.buy("ann") == first
    assert stand.buy("bob").code is Code.BLOCKED
    open_[0] = True
    stand.crowd(2)
    assert len(stand.runtime.known._answers) == 2, "bounded, the newest stay"
    open_[0] = False
    assert stand.buy("ann").code is Code.BLOCKED, "a gate says nothing about the earlier answer"
    assert stand.result("ann").order_no == first.order_no


def unknown_first(plugins, times=1):
    """A holder that loses its first replies."""
    left = [times]

    class Lossy(MemoryHolder):
        @hookimpl
        def deduct(self, batch):
            answers = MemoryHolder.deduct(self, batch)
            if left[0]:
                left[0] -= 1
                return [UNKNOWN] * len(batch)
            return answers

    plugins["lossy"] = Lossy


def test_4_6_a_receipt_settles_once_its_deadline_is_over(make_stand, plugins, clock):
    """Before: PENDING again with the receipt; after deadline and margin: final, unit back."""
    unknown_first(plugins)
    stand = make_stand({"gold": 1}, pipeline={"deduct": "lossy"})
    engine = stand.engine
    admitted = stand.runtime.admit(stand.attempt("ann"), clock.monotonic_s() + 2)
    (outcome,) = engine._decide(stand.runtime, [admitted])
    assert outcome.code is Code.PENDING
    early = stand.result("ann", receipt=outcome.receipt)
    assert (early.code, early.receipt) == (Code.PENDING, outcome.receipt)
    clock.advance(2.5)
    assert stand.result("ann", receipt=outcome.receipt).code is Code.PENDING, "margin"
    assert stand.states() == {}, "asking early writes nothing"
    assert stand.result("ann").code is Code.PENDING, "asking without it never writes"
    clock.advance(1)
    settled = stand.result("ann", receipt=outcome.receipt)
    assert (settled.code, settled.final) == (Code.BUSY, True)
    assert stand.states() == {("ann", "r1"): "ABORTED"}
    assert stand.drain() == 0
    assert stand.buy("zoe").code is Code.ACCEPTED
    assert stand.drain() == 0
    assert stand.balanced()


def test_4_6_another_process_settles_by_the_receipt(make_stand, plugins, clock, url):
    """The one that answered PENDING is gone; the signed receipt is enough."""
    unknown_first(plugins)
    dead = make_stand({"gold": 1}, pipeline={"deduct": "lossy"}, url=url)
    outcome = dead.buy("ann")
    assert outcome.code is Code.PENDING
    alive = make_stand({"gold": 1}, pipeline={"deduct": "lossy"}, url=url, start=False)
    assert alive.result("ann") is None, "without the receipt nobody here knows it"
    clock.advance(5)
    settled = alive.result("ann", receipt=outcome.receipt)
    assert (settled.code, settled.final) == (Code.BUSY, True)
    assert dead.drain() == 0, "both commit the same tombstone"
    assert dead.balanced()


def test_a_receipt_when_the_ledger_cannot_be_asked_stays_pending(make_stand, monkeypatch, clock):
    """BUSY for the query, PENDING for the settlement: neither is an exception."""
    stand = make_stand()
    admitted = stand.runtime.admit(stand.attempt("ann"), None)
    (outcome,) = stand.engine.custody.undecided(
        stand.runtime, [admitted], RuntimeError("x"), holds=False
    )
    clock.advance(5)

    def down(*_args, **_kwargs):
        raise UnavailableError("down")

    with monkeypatch.context() as patch:
        patch.setattr(stand.ledger, "tombstone", down)
        answer = stand.result("ann", receipt=outcome.receipt)
        assert (answer.code, answer.receipt) == (Code.PENDING, outcome.receipt)
        with pytest.raises(UnavailableError):
            stand.engine.custody.settlements.run_once()
        assert len(stand.engine.custody.settlements) == 1, "what a fault meets stays queued"
        patch.setattr(stand.ledger, "results", down)
        assert stand.result("ann").detail == {"reason": "ledger-unavailable"}
    assert stand.drain() == 0
    assert stand.result("ann").final


def test_a_receipt_that_cannot_be_made_costs_nobody_else_theirs(make_stand, monkeypatch, clock):
    """One defective attempt of a batch is PENDING without a receipt; it is settled all the same."""
    stand = make_stand()
    admitted = [stand.runtime.admit(stand.attempt(buyer), None) for buyer in ("ann", "bob")]

    whole = stand.engine.custody._key.sign

    def sign(receipt):
        if receipt.buyer == "ann":
            raise TypeError("not a receipt")
        return whole(receipt)

    monkeypatch.setattr(stand.engine.custody._key, "sign", sign)
    ann, bob = stand.engine.custody.undecided(
        stand.runtime, admitted, RuntimeError("x"), holds=False
    )
    assert (ann.code, ann.receipt, bob.code) == (Code.PENDING, None, Code.PENDING)
    assert bob.receipt
    clock.advance(5)
    assert stand.drain() == 0
    assert stand.result("ann").final
    assert stand.result("bob").final


@pytest.mark.parametrize("error", [RuntimeError("bug"), SystemExit(1)])
def test_a_defect_of_the_core_is_pending_and_settled(make_stand, monkeypatch, error, names):
    """Every caller is answered, an alarm says so, and the identities are settled."""
    stand = make_stand({"gold": 2}, pipeline={"deduct": "memory"})

    def broken(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(stand.runtime, "decide", broken)
        assert names(stand.crowd(2)) == ["PENDING", "PENDING"]
    assert "decide-failed" in stand.alarm_names()
    assert stand.drain() == 0
    assert set(stand.states().values()) == {"ABORTED"}
    assert stand.buy("zoe").code is Code.ACCEPTED


def test_before_a_sale_exists_a_defect_is_busy(make_stand, monkeypatch):
    """There is no identity to settle."""
    stand = make_stand(start=False)
    monkeypatch.setattr(stand.runtime, "decide", lambda _: 1 / 0)
    assert stand.buy("ann").detail == {"reason": "not-decided"}
    assert stand.result("ann") is None


# ------------------------------------------------------------------ closing
def test_closing_twice_is_closing_once(url):
    """Started or not; nothing is left running."""
    settings = convert({"ledger": {"url": url}, "sales": {"drop": {"skus": {"gold": 1}}}})
    engine = Engine(settings)
    with engine:
        assert engine.start() is engine, "starting twice is once"
    engine.close()
    assert not engine._poller.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        engine.start()
    never = Engine(settings)
    never.close()
    never.close()


def test_leaving_answers_everybody_inside(url):
    """``async with`` drains: no caller is left without an answer."""
    settings = convert(
        {
            "ledger": {"url": url},
            "sales": {"drop": {"skus": {"gold": 100}}},
            "door": {"linger_ms": 1000, "batch_max": 1000},
        }
    )

    async def shop():
        async with Engine(settings) as engine:
            engine.sales.start("drop", actor="test")
            tasks = [
                asyncio.create_task(engine.attempt("drop", "gold", buyer=f"b{n}", request_id="r1"))
                for n in range(50)
            ]
            await asyncio.sleep(0)
        return await asyncio.gather(*tasks)

    assert {o.code for o in asyncio.run(shop())} == {Code.ACCEPTED}


def test_a_ledger_that_cannot_be_opened_is_closed_again(tmp_path):
    """The error names the cause; no thread and no connection stays."""
    settings = convert({"ledger": {"url": f"sqlite:///{tmp_path}/no/such/dir/a.db"}})
    with pytest.raises(UnavailableError):
        Engine(settings, clock=ManualClock())
    with pytest.raises(ConfigError, match="migrate"):
        Engine(convert({"ledger": {"url": "sqlite://"}}), migrate=False)
    with pytest.raises(ConfigError, match="no role 'persit'"):
        Engine(convert({"ledger": {"url": "sqlite://"}}), roles=["persit"])


def test_the_control_poll_sees_what_another_process_did(make_stand, url):
    """A pause by another process is in force here after a poll; a failed poll is no end."""
    here = make_stand(url=url)
    there = make_stand(url=url, start=False)
    there.engine.sales.pause("drop", actor="other")
    assert here.runtime.view.row.state is SaleState.OPEN
    polls = []

    class Polls(ManualClock):
        def wait(self, event, seconds):
            polls.append(seconds)
            return len(polls) > 2

    def fail_once():
        if len(polls) == 1:
            raise UnavailableError("down")
        real()

    real, here.engine.world.refresh = here.engine.world.refresh, fail_once
    here.engine.clock = Polls()
    here.engine._poll()
    assert polls == [0.2] * 3
    assert here.runtime.view.row.state is SaleState.PAUSED


# ------------------------------------------------------------------ modes
MODES = {"direct": {"enqueue": "direct"}, "segments": {"deduct": "db-segments"}}


def test_1_2_a_mode_that_keeps_the_pair_takes_effect_on_open(make_stand, url):
    """Config's new word goes to the control row; observers hear of it."""
    make_stand(url=url, modes=MODES)
    stand = make_stand(url=url, modes=MODES, sale={"mode": "direct"}, start=False)
    assert stand.status()["mode"] == {"requested": "direct", "fuse": None, "effective": "direct"}
    assert stand.buy("ann").code is Code.ACCEPTED
    assert len(stand.rows("orders")) == 1, "delivery inline"


def test_1_2_a_mode_that_changes_the_pair_is_refused_and_the_sale_keeps_its_own(make_stand, url):
    """Until a hand-over exists: an alarm, and the sale sells on in its mode."""
    make_stand(url=url, modes=MODES)
    stand = make_stand(url=url, modes=MODES, sale={"mode": "segments"}, start=False)
    alarms = stand.ledger.alarms()
    assert [alarm["name"] for alarm in alarms] == ["mode-refused"]
    assert "mode 'segments' has 'db-segments'" in alarms[0]["detail"]["error"]
    assert stand.status()["mode"]["effective"] == "normal"
    assert stand.buy("ann").code is Code.ACCEPTED


def test_config_writes_its_word_only_when_it_changed(make_stand, url):
    """An operator's word outlives a restart with the same config (design: mode)."""
    stand = make_stand(url=url, modes=MODES)
    row = stand.ledger.require_sale("drop")
    request_mode(stand.ledger, stand.engine.settings, row, "direct", "operator")
    again = make_stand(url=url, modes=MODES, start=False)
    assert again.status()["mode"]["effective"] == "direct"


def test_an_unknown_mode_is_named_with_the_nearest(make_stand):
    """The message lists what there is, ``closed`` too."""
    stand = make_stand(modes=MODES)
    row = stand.ledger.require_sale("drop")
    with pytest.raises(WiringError) as caught:
        request_mode(stand.ledger, stand.engine.settings, row, "diret", "op")
    assert "has no mode 'diret' (did you mean 'direct'?)" in str(caught.value)
    assert str(caught.value).endswith("it has normal, direct, segments, closed")


def test_1_2_a_mode_defined_anew_keeps_the_pair_of_a_started_sale(make_stand, url):
    """The word is the same, its deduct is another: the sale goes on with what its units are in."""
    make_stand({"gold": 3}, url=url)
    stand = make_stand({"gold": 3}, url=url, pipeline={"deduct": "db-segments"}, start=False)
    assert [alarm["name"] for alarm in stand.ledger.alarms()] == ["mode-refused"]
    assert stand.buy("ann").code is Code.ACCEPTED
    assert stand.status()["deduct"] == "db-atomic"
    assert stand.balanced()


def test_a_mode_that_config_no_longer_has_keeps_selling(make_stand, url):
    """With the stages of ``normal`` and the pair of the sale."""
    make_stand({"gold": 3}, url=url, modes=MODES, sale={"mode": "segments"})
    stand = make_stand({"gold": 3}, url=url, start=False)
    assert {alarm["name"] for alarm in stand.ledger.alarms()} == {"mode-refused"}
    assert stand.status()["mode"]["effective"] == "segments"
    assert stand.buy("ann").code is Code.ACCEPTED


def test_a_backend_that_is_gone_is_an_alarm_and_its_work_waits(make_stand, plugins, url):
    """The engine opens, other sales sell; this one is BUSY, never sold out."""
    other = {"other": {"skus": {"x": 1}, "pipeline": {"deduct": "db-atomic"}}}
    plugins["gone"] = MemoryHolder
    make_stand(url=url, pipeline={"deduct": "gone"}, sales=other)
    del plugins["gone"]
    stand = make_stand(url=url, sales=other, start=False)
    assert {alarm["name"] for alarm in stand.ledger.alarms()} == {"mode-refused", "plugin-missing"}
    outcome = stand.buy("ann")
    assert (outcome.code, outcome.detail) == (Code.BUSY, {"reason": "mode-not-here"})
    stand.engine.sales.start("other", actor="test")
    (sold,) = stand.engine.attempt_batch("other", [Attempt([Line("x")], "ann", "r1")])
    assert sold.code is Code.ACCEPTED


def test_a_mode_chosen_elsewhere_that_this_node_lacks_is_busy(make_stand, url):
    """Nodes apply config at different times; the ledger decides, nobody guesses (G6)."""
    here = make_stand(url=url)
    there = make_stand(url=url, modes=MODES, sale={"mode": "direct"}, start=False)
    here.engine.world.refresh()
    assert here.buy("ann").detail == {"reason": "mode-not-here"}
    assert there.buy("ann").code is Code.ACCEPTED


def test_the_pair_follows_config_until_the_sale_is_warmed_up(make_stand, url):
    """Nothing is lent yet, so a change costs nothing."""
    first = make_stand(url=url, modes=MODES, start=False)
    first.engine.sales.create("drop", actor="test")
    stand = make_stand(url=url, modes=MODES, sale={"mode": "segments"}, start=False).start()
    assert (stand.status()["deduct"], stand.status()["journal"]) == ("db-segments", "ledger")
    assert stand.buy("ann").code is Code.ACCEPTED
    assert stand.balanced()


@pytest.mark.parametrize(("before", "after"), [(2, 6), (6, 2)])
def test_another_number_of_segments_needs_no_hand_over(make_stand, url, names, before, after):
    """A router holds nothing: every unit is sold, also those in places it no longer names."""

    def table(n):
        return {"db-segments": {"segments": n}}

    pipeline = {"deduct": "db-segments"}
    make_stand({"gold": 12}, url=url, pipeline=pipeline, plugin_tables=table(before))
    stand = make_stand(
        {"gold": 12}, url=url, pipeline=pipeline, plugin_tables=table(after), start=False
    )
    outcomes = names(stand.crowd(20))
    assert (outcomes.count("ACCEPTED"), outcomes.count("SOLD_OUT")) == (12, 8)
    assert stand.balanced()


# ------------------------------------------------------------------ the control plane
def test_commands_are_idempotent_and_say_what_is_wrong(make_stand, names):
    """Each again goes on where it stopped, and none overwrites live stock (S4-18, S4-34, Y5)."""
    stand = make_stand({"gold": 5}, start=False)
    sales = stand.engine.sales
    with pytest.raises(UnknownSaleError, match="no sale 'drpo' \\(did you mean 'drop'"):
        sales.create("drpo", actor="test")
    with pytest.raises(UnknownSaleError):
        sales.warm_up("drop", actor="test")
    sales.create("drop", actor="test")
    with pytest.raises(ConfigError, match="run 'sale warmup drop'"):
        sales.open("drop", actor="test")
    with pytest.raises(ConfigError, match="sale 'drop' is created, not open"):
        sales.pause("drop", actor="test")
    for _ in range(3):
        sales.start("drop", actor="test")
    stand.crowd(2)
    for _ in range(3):
        sales.create("drop", actor="test")
        sales.warm_up("drop", actor="test")
        sales.pause("drop", actor="test")
        sales.pause("drop", actor="test")
        sales.resume("drop", actor="test")
        sales.resume("drop", actor="test")
    assert stand.status()["skus"][0]["free"] == 3
    with pytest.raises(ConfigError, match="end it before it is created again"):
        sales.create("drop", actor="test", again=True)
    sales.end("drop", actor="test")
    sales.end("drop", actor="test")
    with pytest.raises(ConfigError, match="run 'worker --drain' before it is created again"):
        sales.create("drop", actor="test", again=True)
    assert stand.drain() == 0
    assert sales.create("drop", actor="test", again=True).run == 2
    sales.start("drop", actor="test")
    assert names(stand.crowd(2)) == ["ACCEPTED"] * 2, "another run, another identity"
    assert stand.status()["skus"][0]["free"] == 3


def test_restock_up_sells_on_and_down_takes_only_what_is_free(make_stand, names):
    """5.5: accepted units are never touched; each restock_id once."""
    stand = make_stand({"gold": 4})
    sales = stand.engine.sales
    assert names(stand.crowd(3)) == ["ACCEPTED"] * 3
    sales.restock("drop", "gold", -3, actor="test", restock_id="a")
    sales.restock("drop", "gold", -3, actor="test", restock_id="a")
    (sku,) = stand.status()["skus"]
    assert (sku["total"], sku["wanted"], sku["free"]) == (3, 2, 0)
    assert stand.buy("zoe").code is Code.SOLD_OUT
    sales.restock("drop", "gold", 1, actor="test")
    assert stand.drain() == 0
    assert stand.balanced()
    with pytest.raises(ConfigError, match="no sku 'gld'"):
        sales.restock("drop", "gld", 1, actor="test")
    with pytest.raises(ConfigError, match="0 units"):
        sales.restock("drop", "gold", 0, actor="test")


def test_restock_before_warm_up_changes_the_first_total(make_stand, names):
    """There are no grants yet: up and down are at once."""
    stand = make_stand({"gold": 4}, start=False)
    stand.engine.sales.create("drop", actor="test")
    stand.engine.sales.restock("drop", "gold", -3, actor="test")
    stand.engine.sales.restock("drop", "gold", 1, actor="test")
    stand.start()
    assert names(stand.crowd(3)).count("ACCEPTED") == 2


def test_release_needs_a_void_and_an_order_that_may_return(make_stand, plugins):
    """Else a returned unit could have a living order (4.4)."""
    stand = make_stand()
    stand.buy("ann")
    ask = {"reason": "test", "actor": "test"}
    release = stand.engine.release
    assert not release("drop", "zoe", "r1", **ask), "nothing there"
    assert not release("drop", "ann", "r1", to=IntentState.CANCELLED, **ask), "no order yet"
    assert release("drop", "ann", "r1", to=IntentState.RELEASED, **ask)
    assert not release("drop", "ann", "r1", to=IntentState.RELEASED, **ask), "once"
    with pytest.raises(UnknownSaleError):
        release("nope", "ann", "r1", **ask)

    class NoVoid:
        def __init__(self, options, context):
            pass

        @hookimpl
        def persist(self, reservations):
            return []

    plugins["plain"] = NoVoid
    plain = make_stand(pipeline={"persist": "plain"})
    plain.buy("ann")
    with pytest.raises(WiringError, match="'plain' offers no void"):
        plain.engine.release("drop", "ann", "r1", **ask)


# ------------------------------------------------------------------ alarms and counters
def test_an_alarm_is_heard_by_all_and_never_raises(make_stand, clock):
    """Log, row, observers; equal ones in a second are counted; a deaf sink stops nobody."""
    stand = make_stand()
    alarms = stand.engine.alarms

    def deaf(_alarm):
        raise SystemExit("deaf")

    alarms.add(deaf)
    heard = []
    alarms.add(heard.append)
    for _ in range(3):
        alarms("odd", "no-such-severity", "drop", event=object())
    clock.advance(1)
    alarms("odd", "info", "drop")
    assert [(a.name, str(a.severity)) for a in heard] == [("odd", "critical"), ("odd", "info")]
    assert heard[1].detail == {"repeated": 2}
    assert [row["name"] for row in stand.ledger.alarms()] == ["odd"], "an object is no row"


def test_windows_count_outcomes_errors_and_latencies(make_stand, clock):
    """What fuses will read: the mix, the share of BUSY and PENDING, p50 and p99."""
    stand = make_stand({"gold": 1})
    stand.crowd(3)
    window = stand.engine.windows.last("drop", 10)
    assert (window.attempts, window.outcomes) == (3, {"ACCEPTED": 1, "SOLD_OUT": 2})
    assert window.error_rate == 0.0
    clock.advance(30)
    empty = stand.engine.windows.last("drop", 10)
    assert (empty.attempts, empty.error_rate, empty.p99_ms) == (0, 0.0, 0.0)
    windows = Windows(clock, seconds=2)
    for ms in range(1000):
        windows.record("s", [Outcome(Code.BUSY), Outcome(Code.ACCEPTED)], float(ms))
    found = windows.last("s", 1)
    assert (found.attempts, found.error_rate) == (2000, 0.5)
    assert found.p50_ms < found.p99_ms < 512, "a bounded number of samples a second"
    for _ in range(5):
        clock.advance(1)
        windows.record("s", [Outcome(Code.ACCEPTED)], 1.0)
    assert windows.last("s", 100).attempts == 2, "a bounded number of seconds"


def test_counters_are_bounded_by_label_sets():
    """X17: one more label set than the bound is counted under ``other``."""
    counters = Counters()
    counters.count("hits", kind="a")
    counters.count("hits", 2, kind="a")
    counters.observe("ms", 1.5)
    counters.observe("ms", 2.5)
    assert counters.read() == {"hits{kind=a}": 3, "ms_count": 2, "ms_sum": 4.0}
    for n in range(1200):
        counters.count("flood", buyer=str(n))
    found = counters.read()
    assert len(found) == Counters._SERIES_MAX + 1
    assert found["flood{label=other}"] > 100


def test_the_system_clock_is_the_hosts():
    """Monotonic seconds, wall milliseconds, and a wait that ends."""
    clock = SystemClock()
    before = clock.monotonic_s()
    assert not clock.wait(threading.Event(), 0.001)
    assert clock.monotonic_s() > before
    assert abs(clock.wall_ms() - SystemClock().wall_ms()) < 1000


def test_a_closed_engine_sells_nothing(make_stand):
    """Both colours answer BUSY, nothing is written, and it cannot be started again."""
    stand = make_stand()
    stand.engine.close()
    assert stand.buy("ann").code is Code.BUSY
    late = asyncio.run(stand.engine.attempt("drop", "gold", buyer="bob", request_id="r1"))
    assert (late.code, late.detail) == (Code.BUSY, {"reason": "engine-closed"})
    with pytest.raises(RuntimeError, match="closed"):
        stand.engine.start()


def test_the_library_never_prints_to_stdout(capsys):
    """Whoever pipes a program's output gets the program's lines only; warnings go to stderr."""
    structlog.reset_defaults()
    with Engine.open(None, overrides={"ledger": {"url": "sqlite://"}}) as engine:
        engine.alarms("something", "critical", None, why="test")
    told = capsys.readouterr()
    assert told.out == ""
    assert "something" in told.err
