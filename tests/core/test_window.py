"""State, mode and window are the core's: no list of gates can sell outside them."""

import datetime
import itertools

import pytest

from doorbuster.errors import ConfigError
from doorbuster.model import SaleState
from doorbuster.modes.control import request_mode
from doorbuster.outcomes import Code
from doorbuster.testing.clock import START_WALL_MS

OPENS, CLOSES = START_WALL_MS + 10_000, START_WALL_MS + 20_000
GATES = ("yes", "forward", "back")
LISTS = [
    list(chosen) for size in range(len(GATES) + 1) for chosen in itertools.permutations(GATES, size)
]


def moment(ms):
    """A TOML moment."""
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)


@pytest.fixture
def gates(plugins, clock):
    """A gate that says yes to all, and two that turn the clock inside the stage."""

    def turning(seconds):
        def answer(batch):
            clock.advance(seconds)
            return [None] * len(batch)

        return answer

    plugins.gate("yes", lambda batch: [None] * len(batch))
    plugins.gate("forward", turning(3600), on_fault="open")
    plugins.gate("back", turning(-7200), on_fault="open")


@pytest.fixture
def windowed(make_stand, gates):
    """A stand with a window, and one mode for each list of filters there can be."""

    def make(deduct="db-atomic"):
        return make_stand(
            {"gold": 100},
            pipeline={"deduct": deduct},
            modes={name_of(filters): {"filter": filters} for filters in LISTS},
            sale={"opens_at": moment(OPENS), "closes_at": moment(CLOSES)},
        )

    return make


def name_of(filters):
    return "_".join(["m", *filters])


def switch(stand, mode):
    """An operator's word, in force at once."""
    row = stand.ledger.require_sale("drop")
    request_mode(stand.ledger, stand.engine.settings, row, mode, "operator")
    stand.engine.world.refresh()


def test_no_filter_list_sells_outside_the_window(windowed, clock):
    """Before: NOT_STARTED with the time; after: ENDED; and the ledger has no intent."""
    stand = windowed()
    early = {"starts_at": "2023-11-14T22:13:30Z"}
    for filters in LISTS:
        switch(stand, name_of(filters))
        outcome = stand.buy("ann")
        assert (outcome.code, outcome.detail) == (Code.NOT_STARTED, early), filters
    clock.advance(20)
    for filters in LISTS:
        switch(stand, name_of(filters))
        assert stand.buy("ann").code is Code.ENDED, filters
    assert stand.rows("intents") == []
    assert stand.result("ann") is None


@pytest.mark.parametrize("deduct", ["db-atomic", "memory"])
def test_4_1_accept_judges_the_window_again(windowed, clock, deduct):
    """A gate that lets the window pass, or turns the clock back, sells nothing either."""
    stand = windowed(deduct)
    clock.advance(15)  # inside the window, until a gate turns the clock
    sold = 0
    for n, filters in enumerate(LISTS):
        switch(stand, name_of(filters))
        outcome = stand.buy(f"b{n}")
        turned = sum({"forward": 3600, "back": -7200, "yes": 0}[name] for name in filters)
        clock.advance(-turned)
        expected = Code.ACCEPTED if turned == 0 else Code.ENDED if turned > 0 else Code.NOT_STARTED
        assert outcome.code is expected, filters
        sold += expected is Code.ACCEPTED
    assert stand.drain() == 0
    assert list(stand.states().values()).count("CREATED") == sold == 2
    assert [s["consumed"] for s in stand.status()["skus"]] == [sold]
    assert stand.balanced()


@pytest.mark.parametrize(
    ("at_s", "code"),
    [(9.999, "NOT_STARTED"), (10, "ACCEPTED"), (19.999, "ACCEPTED"), (20, "ENDED")],
)
def test_the_window_is_half_open(windowed, clock, at_s, code):
    """The first millisecond sells, the last one does not."""
    stand = windowed()
    clock.advance(at_s)
    assert stand.buy("ann").name == code


def test_each_state_has_its_own_answer(make_stand, gates):
    """S0-62: created and warmed NOT_STARTED, paused CLOSED, ended ENDED, for good."""
    stand = make_stand(pipeline={"filter": ["yes"]}, start=False)
    sales = stand.engine.sales
    assert stand.buy("ann").code is Code.NOT_STARTED, "not even created"
    sales.create("drop", actor="test")
    assert stand.buy("ann").code is Code.NOT_STARTED
    sales.warm_up("drop", actor="test")
    assert stand.buy("ann").code is Code.NOT_STARTED
    sales.open("drop", actor="test")
    assert stand.buy("bob").code is Code.ACCEPTED
    sales.pause("drop", actor="test")
    outcome = stand.buy("ann")
    assert (outcome.code, outcome.detail) == (Code.CLOSED, {"reason": "paused"})
    assert stand.buy("bob").code is Code.ACCEPTED, "a known answer stays"
    sales.resume("drop", actor="test")
    assert stand.buy("cat").code is Code.ACCEPTED
    sales.end("drop", actor="test")
    assert stand.buy("ann").code is Code.ENDED
    for step in (sales.start, sales.create, sales.warm_up, sales.open, sales.pause, sales.resume):
        with pytest.raises(ConfigError, match=r"'drop' is ended for good; .* create drop --again"):
            step("drop", actor="test")
    assert stand.buy("ann").code is Code.ENDED, "ended is for good"
    assert set(stand.states()) == {("bob", "r1"), ("cat", "r1")}


def test_mode_closed_runs_no_stage(make_stand, plugins):
    """Every sale has it; deduct and journal stay, every attempt is CLOSED."""
    calls = []
    plugins.gate("count", lambda batch: calls.append(1) or [None] * len(batch))
    stand = make_stand(pipeline={"filter": ["count"]})
    switch(stand, "closed")
    outcome = stand.buy("ann")
    assert (outcome.code, outcome.detail) == (Code.CLOSED, {"reason": "mode"})
    assert calls == []
    assert stand.drain() == 0, "workers go on with the base pipeline"
    switch(stand, "normal")
    assert stand.buy("ann").code is Code.ACCEPTED


@pytest.mark.parametrize("deduct", ["db-atomic", "memory"])
@pytest.mark.parametrize(
    ("change", "code"), [("pause", Code.CLOSED), ("end", Code.ENDED), ("closed", Code.CLOSED)]
)
def test_4_1_a_change_during_the_stages_is_seen_by_accept(
    make_stand, plugins, deduct, change, code
):
    """Paused, ended or closed while a batch is between judge and accept: nothing is sold (G6)."""
    stand = None

    def turn(batch):
        row = stand.ledger.require_sale("drop")
        if change == "closed":
            request_mode(stand.ledger, stand.engine.settings, row, "closed", "op")
        else:
            to = SaleState.PAUSED if change == "pause" else SaleState.ENDED
            stand.ledger.set_state(row, allowed=(SaleState.OPEN,), to=to, actor="op")
        return [None] * len(batch)

    plugins.gate("turn", turn)
    stand = make_stand({"gold": 1}, pipeline={"filter": ["turn"], "deduct": deduct})
    assert stand.buy("ann").code is code
    assert stand.drain() == 0
    assert [s["consumed"] for s in stand.status()["skus"]] == [0]
    assert stand.balanced()


def test_a_retry_after_a_refusal_at_the_door_is_judged_anew(windowed, clock):
    """NOT_STARTED stores nothing: the same request_id buys when the window opens."""
    stand = windowed()
    assert stand.buy("ann").code is Code.NOT_STARTED
    clock.advance(12)
    assert stand.buy("ann").code is Code.ACCEPTED
