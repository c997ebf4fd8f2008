"""Laws of gates that count attempts: never more than ``burst + per_second * t`` pass in ``t``."""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pytest

from doorbuster.model import Attempt
from doorbuster.testing.kit import Kit
from doorbuster.testing.suites.base import declined
from doorbuster.testing.suites.gate_ground import GateGround

__all__ = ["RateLaws"]

_SLACK: Final = 1e-6  # of one attempt: readings of a clock are floats
_STEPS: Final = 120
_JUMPS: Final = (0.0, 0.1, 0.4, 1.0, 1.0, 2.5, -0.5, -3.0, 3600.0, -3600.0)
"""Steps of a clock in intervals of the rate; the large ones are an hour's jump (L5)."""


class RateLaws(GateGround):
    """The part of :class:`~doorbuster.testing.suites.gate.GateSuite` that is about rates."""

    @property
    def pause_s(self) -> float:
        """Seconds after which a rate has forgotten everybody; 0 for other gates."""
        rate = self.capabilities.per_second
        return 0.0 if rate is None else 2.0 * (self.capabilities.burst + 1) / rate

    @property
    def interval_s(self) -> float:
        """Seconds from one token of a rate to the next; the law is declined for other gates."""
        rate = self.capabilities.per_second
        if rate is None:
            declined("declares no per_second", "it counts nobody")
        return 1.0 / rate

    def crowd(self, passing: Sequence[Attempt]) -> list[Attempt]:
        """More attempts of the first buyer than a rate lets pass at once; none for other gates."""
        if self.capabilities.per_second is None:
            return []
        n = self.capabilities.burst + 3
        return [msgspec.structs.replace(passing[0], request_id=f"crowd{k}") for k in range(n)]

    @pytest.fixture
    def passes(self, ask: Any, passing: Sequence[Attempt]) -> Any:
        """Ask for ``n`` attempts of the first buyer in one batch; answer how many pass."""

        def passes(n: int) -> int:
            assert self.interval_s > 0
            asked = [msgspec.structs.replace(passing[0], request_id=f"n{k}") for k in range(n)]
            return sum(verdict is None for verdict in ask(asked))

        return passes

    def test_l5_never_more_than_burst_and_rate(self, passes: Any, kit: Kit) -> None:
        """L5: within any span, at most ``burst`` and the rate times what the clock went forward.

        Also when the clock is set back, by a little or by an hour, and comes forward again.
        """
        interval_s, burst = self.interval_s, self.capabilities.burst
        for seed in range(4):
            rng = random.Random(seed)
            passed, forward_s, lowest = 0, 0.0, 0.0
            for _ in range(_STEPS):
                step_s = rng.choice(_JUMPS) * interval_s
                kit.clock.advance(step_s)
                forward_s += max(0.0, step_s)
                lowest = min(lowest, passed - forward_s / interval_s)
                passed += passes(rng.randint(1, burst + 2))
                assert passed - forward_s / interval_s - lowest <= burst + _SLACK
            kit.clock.advance(self.pause_s)

    def test_l5_a_clock_that_only_jumps_gives_nothing(self, passes: Any, kit: Kit) -> None:
        """L5: set back while nobody asks and forward again, the same moment has no new tokens."""
        assert passes(self.capabilities.burst + 3) == self.capabilities.burst
        for jump_s in (0.5 * self.interval_s, 3600.0):
            kit.clock.advance(-jump_s)
            kit.clock.advance(jump_s)
            assert passes(3) == 0

    def test_refusals_take_no_token(self, passes: Any, kit: Kit) -> None:
        """However often a crowd knocks, the next token comes in its own time and passes one."""
        passes(self.capabilities.burst + 3)
        passed = 0
        for _ in range(40):
            kit.clock.advance(self.interval_s / 4)
            passed += passes(3)
        assert 9 <= passed <= 10  # ten intervals; the last may be a rounding away
        assert passes(200) <= 1
        kit.clock.advance(self.pause_s)
        assert passes(self.capabilities.burst + 3) == self.capabilities.burst

    def test_a_pause_refills_to_burst_and_no_further(self, passes: Any, kit: Kit) -> None:
        """A night of silence gives what a pause gives: ``burst`` at once."""
        for pause_s in (self.pause_s, 86_400.0 + self.pause_s):
            kit.clock.advance(pause_s)
            assert passes(10 * self.capabilities.burst + 3) == self.capabilities.burst

    def test_who_comes_when_told_passes(
        self, ask: Any, passes: Any, kit: Kit, passing: Sequence[Attempt]
    ) -> None:
        """``retry_after_ms`` of a refusal is long enough: whoever keeps to it passes (S0-62)."""
        passes(self.capabilities.burst + 3)
        (verdict,) = ask(passing[:1])
        assert verdict is not None
        kit.clock.advance(verdict.retry_after_ms / 1000)
        assert passes(1) == 1
