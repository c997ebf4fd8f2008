"""Laws of the sold-out mark (protocol.md 7)."""

import threading

import msgspec
import pytest

from doorbuster.plugin import Code, Outcome, SoldOutRead, UnavailableError
from doorbuster_local_cache import SoldOut


class Reads:
    """A ledger that answers one read; ``during`` runs while the read is under way."""

    def __init__(self, clock):
        self.clock = clock
        self.skus, self.epoch, self.version = frozenset({"gold"}), 1, 1
        self.count = 0
        self.fails = None
        self.during = lambda: None

    def sold_out(self, sale):
        self.count += 1
        read = SoldOutRead(self.skus, self.epoch, self.version, self.clock.monotonic_s())
        self.during()
        if self.fails is not None:
            raise self.fails
        return read


@pytest.fixture
def ledger(clock):
    return Reads(clock)


@pytest.fixture
def make_gate(make_context, ledger):
    def make(state=None, **options):
        context = make_context(state=state, ledger=ledger)
        return SoldOut(msgspec.convert(options, SoldOut.Options), context)

    return make


@pytest.fixture
def settle(make_batch, make_attempt):
    """Tell the gate of a batch with these outcome codes."""

    def settle(gate, *codes, epoch=1, sale=None, **need):
        attempts = [make_attempt(f"b{n}", **need) for n in range(len(codes))]
        batch = make_batch(attempts, sale, epoch=epoch)
        gate.batch_settled(batch, [Outcome(code) for code in codes])

    return settle


@pytest.fixture
def ask(make_batch, make_attempt):
    """Ask for one attempt; answer its code, or ``None`` when it passes."""

    def ask(gate, epoch=1, sale=None, **need):
        (verdict,) = gate.filter(make_batch([make_attempt(**need)], sale, epoch=epoch))
        return None if verdict is None else verdict.code

    return ask


def test_without_a_mark_everybody_passes(make_gate, ask, make_batch, ledger):
    """A gate that knows nothing refuses nobody and asks nobody."""
    gate = make_gate()
    assert ask(gate) is None
    assert list(gate.filter(make_batch([]))) == []
    assert ledger.count == 0


def test_7_1_one_read_sets_the_mark(make_gate, settle, ask, ledger, make_batch, make_attempt):
    """protocol.md 7.1: a SOLD_OUT outcome asks the ledger once; what it says is the mark."""
    gate = make_gate()
    settle(gate, Code.ACCEPTED, Code.SOLD_OUT, Code.SOLD_OUT)
    assert ledger.count == 1
    (verdict,) = gate.filter(make_batch([make_attempt()]))
    assert (verdict.code, verdict.detail) == (Code.SOLD_OUT, {"sku": "gold", "remaining": 0})


def test_f16_the_outcome_alone_sets_nothing(make_gate, settle, ask, ledger):
    """F16, L4, 7.2: a short place or "too few for you" is no mark when units are left."""
    ledger.skus = frozenset()
    gate = make_gate()
    settle(gate, Code.SOLD_OUT)
    assert ledger.count == 1
    assert ask(gate) is None


def test_f16_other_refusals_do_not_even_ask(make_gate, settle, ledger):
    """F16: only SOLD_OUT asks; a limit, a rate or a shed says nothing about units."""
    settle(make_gate(), *[code for code in Code if code is not Code.SOLD_OUT])
    assert ledger.count == 0


def test_only_marked_skus_are_refused(make_gate, settle, ask):
    """The mark is per sku; an attempt with one marked line is refused whole."""
    gate = make_gate()
    settle(gate, Code.SOLD_OUT)
    assert ask(gate, silver=1) is None
    assert ask(gate, gold=1, silver=1) is Code.SOLD_OUT


def test_s0_38_the_mark_expires(make_gate, settle, ask, clock):
    """S0-38, R14: a mark lives ``life_s`` and no longer, with no news at all."""
    gate = make_gate(life_s=1.25)
    settle(gate, Code.SOLD_OUT)
    clock.advance(1.24)
    assert ask(gate) is Code.SOLD_OUT
    clock.advance(0.01)
    assert ask(gate) is None


def test_7_1_life_runs_from_the_read(make_gate, settle, ask, clock, ledger):
    """protocol.md 7.1: a read that took long leaves a shorter mark, or none."""
    ledger.during = lambda: clock.advance(1.0)
    gate = make_gate(life_s=1.5)
    settle(gate, Code.SOLD_OUT)
    clock.advance(0.4)
    assert ask(gate) is Code.SOLD_OUT
    clock.advance(0.1)
    assert ask(gate) is None
    ledger.during = lambda: clock.advance(2.0)
    settle(gate, Code.SOLD_OUT)
    assert ask(gate) is None


def test_l3_the_mark_belongs_to_its_epoch(make_gate, settle, ask):
    """L3: after a hand-over the old epoch's mark says nothing."""
    gate = make_gate()
    settle(gate, Code.SOLD_OUT)
    assert ask(gate, epoch=2) is None
    assert ask(gate, epoch=1) is Code.SOLD_OUT


def test_a_mark_belongs_to_one_run_of_one_sale(make_gate, settle, ask, make_sale):
    """Another sale, and the same sale created again, start without a mark."""
    gate = make_gate()
    settle(gate, Code.SOLD_OUT)
    assert ask(gate, sale=make_sale("other")) is None
    assert ask(gate, sale=make_sale(run=2)) is None


def test_f20_returned_units_lift_at_once(make_gate, settle, ask, ledger, make_sale):
    """F20: units that come back lift their sku's mark at once and leave the others."""
    ledger.skus = frozenset({"gold", "silver"})
    gate = make_gate()
    settle(gate, Code.SOLD_OUT)
    gate.units_returned(make_sale(), ["gold"])
    assert ask(gate, gold=1) is None
    assert ask(gate, silver=1) is Code.SOLD_OUT
    gate.units_returned(make_sale(), ["silver"])
    assert ask(gate, silver=1) is None


def test_f20_a_lift_without_a_mark_is_harmless(make_gate, ask, make_sale):
    """News of units for a sale never seen changes nothing."""
    gate = make_gate()
    gate.units_returned(make_sale(), ["gold"])
    assert ask(gate) is None


def test_l9_a_read_that_began_before_the_lift_sets_nothing(
    make_gate, settle, ask, ledger, make_sale, clock
):
    """L9: a read under way while units come back must not set the mark again; a later may."""
    gate = make_gate()
    ledger.during = lambda: gate.units_returned(make_sale(), ["gold"])
    settle(gate, Code.SOLD_OUT)
    assert ask(gate) is None
    ledger.during = lambda: None
    clock.advance(0.2)
    settle(gate, Code.SOLD_OUT)
    assert ask(gate) is Code.SOLD_OUT


def test_l3_an_older_version_never_replaces_a_newer(make_gate, settle, ask, ledger, clock):
    """L3: a read of an older epoch or version does not replace the mark of a newer."""
    ledger.epoch, ledger.version = 2, 7
    gate = make_gate()
    settle(gate, Code.SOLD_OUT, epoch=2)
    clock.advance(0.5)
    ledger.version, ledger.skus = 6, frozenset({"silver"})
    settle(gate, Code.SOLD_OUT, epoch=2, silver=1)
    assert ledger.count == 2
    assert ask(gate, epoch=2, gold=1) is Code.SOLD_OUT
    assert ask(gate, epoch=2, silver=1) is None


def test_a_newer_read_replaces_the_mark(make_gate, settle, ask, ledger, clock):
    """What the newest read says stands, also when it says that nothing is sold out."""
    gate = make_gate()
    settle(gate, Code.SOLD_OUT)
    clock.advance(0.5)
    ledger.skus = frozenset()
    settle(gate, Code.SOLD_OUT, silver=1)
    assert ask(gate) is None


def test_reads_are_bounded(make_gate, settle, ledger, clock):
    """However many are told SOLD_OUT, ten reads within one life at most."""
    ledger.skus = frozenset()
    gate = make_gate(life_s=1.0)
    for _ in range(200):
        settle(gate, Code.SOLD_OUT, Code.SOLD_OUT)
        clock.advance(1 / 128)
    assert 8 <= ledger.count <= 16


def test_the_marks_own_refusals_ask_nothing(make_gate, settle, ledger, clock):
    """A refusal by a fresh mark is no news: the ledger is left alone."""
    gate = make_gate(life_s=2)
    settle(gate, Code.SOLD_OUT)
    clock.advance(1.9)
    settle(gate, Code.SOLD_OUT, Code.SOLD_OUT)
    assert ledger.count == 1


def test_l8_single_flight(make_gate, settle, ledger, in_threads):
    """L8: while one read is under way, 64 threads that also saw SOLD_OUT start none."""
    gate = make_gate()
    gate_open = threading.Event()

    def during():
        assert gate_open.wait(30)

    ledger.during = during
    done = []

    def work(n):
        settle(gate, Code.SOLD_OUT)
        done.append(n)
        if len(done) >= 63:  # all but the reader are through
            gate_open.set()

    in_threads(work)
    assert ledger.count == 1


def test_single_flight_also_when_the_read_is_slow(make_gate, settle, ledger, clock):
    """A read slower than the pause between reads still runs alone."""
    gate = make_gate()

    def during():
        clock.advance(10)
        settle(gate, Code.SOLD_OUT)

    ledger.during = during
    settle(gate, Code.SOLD_OUT)
    assert ledger.count == 1


@pytest.mark.parametrize("error", [UnavailableError("down"), RuntimeError("bug")])
def test_a_read_that_raises_leaves_no_mark(make_gate, settle, ask, ledger, clock, error):
    """A fault of the read neither raises nor marks, and the next one is tried."""
    ledger.fails = error
    gate = make_gate()
    settle(gate, Code.SOLD_OUT)
    assert ask(gate) is None
    ledger.fails = None
    clock.advance(0.2)
    settle(gate, Code.SOLD_OUT)
    assert ask(gate) is Code.SOLD_OUT


def test_marks_survive_a_rebuild(make_gate, settle, ask, make_sale):
    """A reload keeps the mark, and the new instance can lift it."""
    state = {}
    settle(make_gate(state), Code.SOLD_OUT)
    rebuilt = make_gate(state, life_s=1.0)
    assert ask(rebuilt) is Code.SOLD_OUT
    rebuilt.units_returned(make_sale(), ["gold"])
    assert ask(rebuilt) is None


@pytest.mark.parametrize("life_s", [0.9, 2.1, 0])
def test_s0_38_life_is_one_to_two_seconds(make_gate, life_s):
    """S0-38: a shorter life saves nothing, a longer one blocks a restock."""
    with pytest.raises(msgspec.ValidationError, match="life_s"):
        make_gate(life_s=life_s)


def test_the_fault_of_a_mark_is_open():
    """Without the mark the ledger answers."""
    assert SoldOut.on_fault == "open"
