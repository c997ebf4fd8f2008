"""The laws of gates, and the rule of this one: a fair share, the same lot at every try."""

import pytest
from doorbuster.plugin import Attempt, Batch, Context, Line, Sale, Sku
from doorbuster.testing import GateSuite

from doorbuster_lottery import Lottery


def attempts(*buyers: str) -> list[Attempt]:
    """One attempt of each buyer."""
    return [Attempt([Line("gold")], buyer, "r1") for buyer in buyers]


class TestConformance(GateSuite):
    """In the suite's sale some are drawn, and some are not."""

    @pytest.fixture
    def gate(self, context: Context) -> Lottery:
        """Half of the buyers."""
        return Lottery(Lottery.Options(share=0.5), context)

    @pytest.fixture
    def passing(self) -> list[Attempt]:
        """Buyers who were drawn."""
        return attempts("cid", "hal", "ida")

    @pytest.fixture
    def refused(self) -> list[Attempt]:
        """Buyers who were not."""
        return attempts("ann", "fay", "gil")


CROWD = [f"buyer{n}" for n in range(20_000)]
LUCKY = {"buyer14088", "buyer15855", "buyer17041", "buyer18649", "buyer2396", "buyer6909"}


def drawn(context: Context, share: float, word: str = "1", sale: str = "drop") -> set[str]:
    """Who of the crowd is let in."""
    gate = Lottery(Lottery.Options(share=share, round=word), context)
    batch = Batch(Sale(sale, {"gold": Sku("gold", 1)}), attempts(*CROWD), "normal", 1)
    verdicts = gate.filter(batch)
    return {buyer for buyer, verdict in zip(CROWD, verdicts, strict=True) if verdict is None}


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9])
def test_the_share_is_the_share(context: Context, share: float) -> None:
    """Of 20,000 buyers the share is let in, within a hundredth of the crowd."""
    assert abs(len(drawn(context, share)) - share * len(CROWD)) < 0.01 * len(CROWD)


def test_none_and_all(context: Context) -> None:
    """Share 0 lets nobody in, share 1 everybody."""
    assert drawn(context, 0) == set()
    assert drawn(context, 1) == set(CROWD)


def test_a_larger_share_keeps_who_was_in(context: Context) -> None:
    """Letting the rest in later takes nobody's lot away."""
    assert drawn(context, 0.2) < drawn(context, 0.6)


@pytest.mark.parametrize("other", [{"word": "2"}, {"sale": "drop-2"}])
def test_another_round_or_sale_draws_anew(context: Context, other: dict[str, str]) -> None:
    """Who was drawn is drawn again as often as anybody else: a fifth of a fifth."""
    both = drawn(context, 0.2) & drawn(context, 0.2, **other)
    assert abs(len(both) - 0.04 * len(CROWD)) < 0.01 * len(CROWD)


def test_a_lot_is_the_same_in_every_process(context: Context) -> None:
    """Known lots: a change of these would draw every running sale anew."""
    assert drawn(context, 0.0001) == LUCKY
