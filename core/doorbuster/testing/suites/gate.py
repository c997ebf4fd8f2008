"""Laws of gates: plugins that offer ``filter`` or ``limit``, hold nothing and may refuse.

class TestMine(GateSuite):
    @pytest.fixture
    def gate(self, context):
        return Mine(Mine.Options(members={"ann"}), context)

    @pytest.fixture
    def passing(self):
        return [attempt("ann")]

    @pytest.fixture
    def refused(self):
        return [attempt("bob")]
"""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pytest

from doorbuster.model import Attempt, Batch, Sale
from doorbuster.outcomes import Code, Outcome, Rejection
from doorbuster.testing.faults import Flaky
from doorbuster.testing.flow import SALE, Flow, given
from doorbuster.testing.kit import Kit
from doorbuster.testing.suites.base import close_twice, declined, racing
from doorbuster.testing.suites.gate_rates import RateLaws

__all__ = ["GateSuite"]

_ROUNDS: Final = 12  # of threads that ask a rate at once: a race does not show every time
_ODD_TEXTS: Final = (
    "",
    " ",
    "0",
    "-1",
    "nan",
    "a}b{c:\n",
    "\x00",
    "\u202eevil",
    "\ud800",
    "300.300.300.300",
    "::ffff:10.0.0.1%eth0",
    "1e3",
    "." * 65_536,
)
"""What clients send where a ticket or an address should be (X2, X3, X5)."""


class GateSuite(RateLaws):
    """Override ``gate``; name attempts it lets pass and attempts it refuses, unless it counts.

    A gate that counts attempts (a rate) declares it: ``capabilities =
    GateSuite.Capabilities(per_second=10, burst=3)``, and its laws follow from these numbers.
    """

    # ------------------------------------------------------------------ answers
    def test_an_empty_batch_answers_empty(
        self, ask: Any, kit: Kit, passing: Sequence[Attempt]
    ) -> None:
        """An empty batch answers empty, and takes nothing from the next one."""
        assert [list(ask(())) for _ in range(3)] == [[], [], []]
        assert [v is None for v in ask(passing)] == self.expected(passing, passing)

    def test_answers_align_with_attempts_in_order(
        self, ask: Any, passing: Sequence[Attempt], refused: Sequence[Attempt], kit: Kit
    ) -> None:
        """Each verdict is that of the attempt in its place, however they are mixed."""
        mixed = [*passing, *refused]
        for seed in range(4):
            kit.clock.advance(self.pause_s)
            random.Random(seed).shuffle(mixed)
            verdicts = ask(mixed)
            assert [v is None for v in verdicts] == self.expected(mixed, passing)

    def test_verdicts_are_none_or_rejections_that_travel(
        self, ask: Any, word: str, passing: Sequence[Attempt], refused: Sequence[Attempt]
    ) -> None:
        """A "no" is a Rejection that can be sent to a buyer; a limit says RATE_LIMITED and when."""
        for verdict in ask([*passing, *refused, *self.crowd(passing)]):
            if verdict is None:
                continue
            assert isinstance(verdict, Rejection)
            assert isinstance(verdict.code, Code)
            assert msgspec.json.decode(msgspec.json.encode(verdict.detail)) == verdict.detail
            if word == "limit":
                assert verdict.code is Code.RATE_LIMITED
                assert verdict.retry_after_ms is not None
            assert verdict.retry_after_ms is None or verdict.retry_after_ms > 0

    def test_one_batch_is_answered_as_batches_of_one(
        self, ask: Any, passing: Sequence[Attempt], refused: Sequence[Attempt], kit: Kit
    ) -> None:
        """How attempts are gathered into batches decides nothing."""
        if not self.capabilities.as_singles:
            declined("declares as_singles=False", "its answers depend on how attempts are gathered")
        asked = [*passing, *refused, *self.crowd(passing)]
        together = [v is None for v in ask(asked)]
        kit.clock.advance(self.pause_s)
        assert [ask([one])[0] is None for one in asked] == together

    def test_a_refusal_changes_nothing(
        self, ask: Any, passing: Sequence[Attempt], refused: Sequence[Attempt]
    ) -> None:
        """Whoever is refused, however often, is refused in the same way, and nobody else is."""
        if not refused:
            declined("names no refused attempt", "what its refusals leave behind is not checked")
        first = [msgspec.structs.replace(v, retry_after_ms=None) for v in ask(refused)]
        for _ in range(20):
            verdicts = ask([*refused, *refused])
            again = [msgspec.structs.replace(v, retry_after_ms=None) for v in verdicts]
            assert again == [*first, *first]
        assert [v is None for v in ask(passing)] == self.expected(passing, passing)

    def test_odd_tickets_and_facts_are_answered(
        self, ask: Any, passing: Sequence[Attempt], kit: Kit
    ) -> None:
        """What a client writes into a ticket or a fact is judged, and never raises."""
        for text in _ODD_TEXTS:
            odd = [
                msgspec.structs.replace(passing[0], ticket=text),
                msgspec.structs.replace(passing[0], facts={"ip": text, "device": text, text: ""}),
                msgspec.structs.replace(passing[0], facts={}, ticket=None),
            ]
            kit.clock.advance(self.pause_s)
            assert all(v is None or isinstance(v, Rejection) for v in ask(odd))

    # ------------------------------------------------------------------ time and threads
    def test_it_never_waits(
        self, ask: Any, passing: Sequence[Attempt], kit: Kit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A gate answers at once: it neither sleeps nor lets time pass on its clock."""

        def forbidden(seconds: float) -> None:
            raise AssertionError(f"slept for {seconds} s")

        before_s = kit.clock.monotonic_s()
        with monkeypatch.context() as patch:
            patch.setattr(time, "sleep", forbidden)
            ask(self.crowd(passing))
        assert kit.clock.monotonic_s() == before_s

    def test_threads_get_what_one_thread_would(
        self, ask: Any, gate: Any, passing: Sequence[Attempt], refused: Sequence[Attempt], kit: Kit
    ) -> None:
        """Batches of several threads at once: every answer in its place, no token taken twice."""
        mixed = [*passing, *refused]
        rate = self.capabilities.per_second is not None
        with racing(gate) as race:
            for _ in range(_ROUNDS if rate else 1):
                kit.clock.advance(self.pause_s)
                answers = race(lambda n: [v is None for v in ask(mixed)], 8)
                if rate:
                    assert sum(map(sum, answers)) == sum(self.expected(mixed * 8, passing))
                else:
                    assert answers == [self.expected(mixed, passing)] * 8

    # ------------------------------------------------------------------ in a sale
    def test_a_refused_attempt_never_reaches_deduct(
        self,
        flow: Flow,
        seen: Any,
        passing: Sequence[Attempt],
        refused: Sequence[Attempt],
        ask: Any,
        kit: Kit,
    ) -> None:
        """The core narrows the batch: deduct sees who passed, and nobody re-wraps a refusal."""
        asked = [*refused, *passing, *self.crowd(passing)]
        seen.attempts.clear()
        outcomes = flow.batch(*asked)
        passed = self.expected(asked, [*passing, *self.crowd(passing)])
        names = [(item.buyer, item.request_id) for item in asked]
        assert seen.attempts == [name for name, ok in zip(names, passed, strict=True) if ok]
        kit.clock.advance(self.pause_s)
        fresh = flow.engine.world.runtimes[SALE].view.sale
        for outcome, verdict, ok in zip(outcomes, ask(asked, fresh), passed, strict=True):
            assert (verdict is None) is ok
            if not ok:
                assert (outcome.code, outcome.detail) == (verdict.code, verdict.detail)
        assert flow.balanced

    @pytest.mark.parametrize("configured", [False, True])
    def test_its_own_fault_follows_on_fault(
        self,
        kit: Kit,
        gate: Any,
        word: str,
        seen: Any,
        passing: Sequence[Attempt],
        configured: bool,
    ) -> None:
        """``open`` lets attempts pass, ``closed`` refuses them with BUSY; config may turn it."""
        flaky = Flaky(gate)
        opened = getattr(gate, "on_fault", "closed") == "open"
        options: dict[str, dict[str, str]] = {}
        if configured:
            opened = not opened
            options = {"gate": {"on_fault": "open" if opened else "closed"}}
        stages: dict[str, Any] = {word: ["gate"], "deduct": "seen"}
        plugins = {"gate": given(flaky), "seen": given(seen)}
        with kit.flow(plugins=plugins, skus=self.skus, options=options, **stages) as sale:
            flaky.refuse(word)
            outcome = sale.batch(passing[0])[0]
            assert len(seen.attempts) == opened
            assert outcome.code is (Code.ACCEPTED if opened else Code.BUSY)
            assert opened or outcome.retry_after_ms
            assert f"{word}-fault" in [alarm.name for alarm in sale.alarms]

    def test_what_it_saw_of_one_sale_is_of_that_sale(
        self, ask: Any, passing: Sequence[Attempt], refused: Sequence[Attempt], sale: Sale
    ) -> None:
        """A gate that serves several sales does not mix them up."""
        if self.capabilities.per_second is None and not self.capabilities.per_sale:
            declined("declares no per_sale", "its refusals are alike in every sale")
        ask(self.crowd(passing))
        other = msgspec.structs.replace(sale, id="another")
        asked = [*refused, *passing]
        moved = [msgspec.structs.replace(item, sale=other.id) for item in asked]
        assert [v is None for v in ask(moved, other)] == self.expected(moved, moved)

    # ------------------------------------------------------------------ life
    def test_its_state_survives_a_rebuild(
        self,
        ask: Any,
        passing: Sequence[Attempt],
        refused: Sequence[Attempt],
        rebuild: Callable[[], Any] | None,
    ) -> None:
        """A reload builds it anew over ``context.state``: whoever was refused still is."""
        if rebuild is None:
            declined("names no rebuild", "whether a reload forgets what it knew is not checked")
        crowd = self.crowd(passing)
        ask(crowd)
        before = [v is None for v in ask([*refused, *crowd])]
        assert not all(before), "nothing is refused: name refused attempts"
        after = ask([*refused, *crowd], by=rebuild())
        assert [v is None for v in after] == before

    def test_observers_of_any_outcome_never_raise(
        self, gate: Any, hooks: Mapping[str, Any], sale: Sale, passing: Sequence[Attempt]
    ) -> None:
        """What a gate watches it only watches: every code is heard, also of an unknown sale."""
        if "batch_settled" not in hooks:
            declined("offers no batch_settled", "it learns nothing from outcomes")
        for of in (sale, msgspec.structs.replace(sale, id="nowhere")):
            batch = Batch(of, tuple(passing[:1]), "normal", 1)
            for code in Code:
                hooks["batch_settled"](batch, [Outcome(code)])

    def test_close_twice_is_close_once(self, gate: Any) -> None:
        """Closing again changes nothing and raises nothing."""
        close_twice(gate)
