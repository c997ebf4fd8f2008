"""The ground of :class:`~doorbuster.testing.suites.gate.GateSuite`: fixtures, a spy at deduct."""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import pytest

from doorbuster.hookspecs import Verdicts, hookimpl
from doorbuster.model import Attempt, Batch, Reservation, Sale
from doorbuster.testing.flow import Flow, given
from doorbuster.testing.kit import Kit
from doorbuster.testing.suites import base
from doorbuster.testing.suites.ground import attempt, hooks_of, sale_of

__all__ = ["GateGround", "Seen"]

_STAGES: Final = ("filter", "limit")


class Seen:
    """A router that notes what reaches deduct."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self.attempts: list[tuple[str, str]] = []

    @hookimpl
    def deduct(self, batch: Batch) -> Sequence[Reservation]:
        """Serve everything at one place."""
        self.attempts += [(asked.buyer, asked.request_id) for asked in batch]
        return [Reservation(asked, "all") for asked in batch]


class GateGround(base.Suite):
    """Fixtures of the laws of gates; an author overrides ``gate``, ``passing``, ``refused``."""

    class Capabilities(base.Capabilities, frozen=True, kw_only=True):
        """What a gate declares."""

        per_second: float | None = None
        """It passes so many attempts per second in the long run, and refuses by that only."""
        burst: int = 1
        """So many pass at once after a pause."""
        per_buyer: bool = False
        """Each buyer has a rate; else a sale has."""
        per_sale: bool = False
        """What it has seen of one sale refuses nobody in another. A rate always keeps that."""
        as_singles: bool = True
        """One batch of n is answered as n batches of one are."""

    capabilities: ClassVar[Capabilities] = Capabilities()
    stage: ClassVar[str | None] = None
    """``filter`` or ``limit``; found by the hooks unless a gate offers both."""
    skus: ClassVar[Mapping[str, int]] = {"gold": 10}
    """Units of the sale that attempts are for, by sku."""

    # ------------------------------------------------------------------ an author's part
    @pytest.fixture
    def gate(self, context: Any) -> Any:
        """The plugin instance under test, built with ``context``. To be overridden."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture 'gate'")

    @pytest.fixture
    def passing(self) -> Sequence[Attempt]:
        """Attempts it lets pass, each of another buyer."""
        return [attempt(f"buyer{n}") for n in range(5)]

    @pytest.fixture
    def refused(self) -> Sequence[Attempt]:
        """Attempts it refuses whenever they are asked; none for a rate."""
        return ()

    @pytest.fixture
    def rebuild(self) -> Callable[[], Any] | None:
        """Build the gate again with the same ``context``, as a reload does."""
        return None

    # ------------------------------------------------------------------ the suite's part
    @pytest.fixture
    def sale(self) -> Sale:
        """The sale of the attempts."""
        return sale_of(self.skus)

    @pytest.fixture
    def hooks(self, gate: Any) -> dict[str, Callable[..., Any]]:
        """The gate's hooks by name."""
        return hooks_of(gate)

    @pytest.fixture
    def word(self, hooks: Mapping[str, Any]) -> str:
        """The stage under test."""
        found = self.stage or next((stage for stage in _STAGES if stage in hooks), None)
        assert found is not None, "it offers neither filter nor limit"
        assert found in hooks, f"it offers no {found}"
        return found

    @pytest.fixture
    def ask(self, hooks: Mapping[str, Any], word: str, sale: Sale) -> Callable[..., Verdicts]:
        """Ask for the verdicts of some attempts; one each, or the test fails."""

        def ask(attempts: Sequence[Attempt], of: Sale = sale, by: Any = None) -> Verdicts:
            call = hooks[word] if by is None else getattr(by, word)
            batch = Batch(of, tuple(attempts), "normal", 1)
            verdicts: Verdicts = call(batch)
            assert len(verdicts) == len(batch)
            return verdicts

        return ask

    @pytest.fixture
    def seen(self) -> Any:
        """What reached deduct in ``flow``: (buyer, request_id) pairs."""
        return Seen()

    @pytest.fixture
    def flow(self, kit: Kit, gate: Any, word: str, seen: Any) -> Iterator[Flow]:
        """An open sale behind the gate."""
        plugins = {"gate": given(gate), "seen": given(seen)}
        stages: dict[str, Any] = {word: ["gate"], "deduct": "seen"}
        with kit.flow(plugins=plugins, skus=self.skus, **stages) as opened:
            yield opened

    def expected(self, attempts: Sequence[Attempt], passing: Sequence[Attempt]) -> list[bool]:
        """Who passes a gate that was asked nothing for a long time, on a clock that stands."""
        if self.capabilities.per_second is None:
            known = {(item.buyer, item.request_id) for item in passing}
            return [(item.buyer, item.request_id) in known for item in attempts]
        asked: Counter[str] = Counter()
        answers = []
        for item in attempts:
            key = item.buyer if self.capabilities.per_buyer else ""
            answers.append(asked[key] < self.capabilities.burst)
            asked[key] += 1
        return answers
