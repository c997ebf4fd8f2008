"""Bad input, and equal identities: each gets its outcome, and changes nothing it must not."""

import asyncio

import pytest

from doorbuster.admission import coalesce
from doorbuster.identity import Receipt
from doorbuster.model import Attempt, Line
from doorbuster.outcomes import Code

BAD_LINES = [
    ([], "no-lines"),
    ((), "no-lines"),
    (None, "bad-lines"),
    ("gold", "bad-lines"),
    ({"gold": 1}, "bad-lines"),
    (iter([Line("gold")]), "bad-lines"),
    ([("gold", 1)], "bad-lines"),
    ([None], "bad-lines"),
    ([Line("gold", 0)], "bad-quantity"),
    ([Line("gold", -5)], "bad-quantity"),
    ([Line("gold", 1.0)], "bad-quantity"),
    ([Line("gold", True)], "bad-quantity"),
    ([Line("gold", "1")], "bad-quantity"),
    ([Line("gold", "1e3")], "bad-quantity"),
    ([Line("gold", None)], "bad-quantity"),
    ([Line("gold", 10**12)], "bad-quantity"),
    ([Line("gold", 10**9)], "bad-quantity"),
    ([Line("gold", 999_999_999), Line("gold", 1)], "bad-quantity"),
    ([Line("gold", 1), Line("gold", -1)], "bad-quantity"),
    ([Line("", 1)], "bad-sku"),
    ([Line("go ld", 1)], "bad-sku"),
    ([Line("a}b{c", 1)], "bad-sku"),
    ([Line("x" * 65, 1)], "bad-sku"),
    ([Line(None, 1)], "bad-sku"),
    ([Line(7, 1)], "bad-sku"),
    ([Line("silver", 1)], "unknown-sku"),
    ([Line("gold", 1), Line("silver", 1)], "unknown-sku"),
    ([Line("gold", 1, "")], "bad-group"),
    ([Line("gold", 1, "a b")], "bad-group"),
    ([Line("gold", 1, 4)], "bad-group"),
    ([Line(f"s{n}", 1) for n in range(17)], "too-many-lines"),
]


class _Loud:
    """It cannot even be written down."""

    def __format__(self, _spec):
        raise RuntimeError("no text")

    __repr__ = __str__ = __format__


@pytest.fixture(scope="module")
def bad_ids():
    return [
        _Loud(),
        "",
        "a b",
        "x" * 65,
        "a|b",
        "a\n",
        "\u0430nn",
        "a\x00b",
        "x" * 65536,
        None,
        7,
        b"ann",
        [],
    ]


def test_bad_lines_are_invalid_with_a_reason(make_stand):
    """X8, R15: strict numbers, strict ids, never a traceback; and nothing is written."""
    stand = make_stand({"gold": 10**9 - 1})

    async def ask(lines):
        return await stand.engine.attempt("drop", None, lines=lines, buyer="ann", request_id="r1")

    for lines, reason in BAD_LINES:
        (outcome,) = stand.batch(Attempt(lines, "ann", "r1"))
        assert (outcome.code, outcome.detail["reason"]) == (Code.INVALID, reason), lines
        assert asyncio.run(ask(lines)).code is Code.INVALID, lines
    assert stand.rows("intents") == []


def test_bad_ids_are_invalid_with_a_reason(make_stand, bad_ids):
    """X3-X5: the charset is checked at the edge, in full, on every door."""
    stand = make_stand()
    for bad in bad_ids:
        outcomes = stand.batch(
            Attempt([Line("gold")], bad, "r1"), Attempt([Line("gold")], "ann", bad)
        )
        assert [o.code for o in outcomes] == [Code.INVALID] * 2
        assert [o.detail["reason"] for o in outcomes] == ["bad-buyer", "bad-request-id"]
        assert stand.result(bad) is None
        assert stand.result("ann", bad) is None
    assert stand.rows("intents") == []


def test_what_is_no_attempt_is_invalid_and_disturbs_nobody(make_stand, names):
    """One caller's nonsense is its own answer; the rest of the batch is sold."""
    stand = make_stand()
    good = stand.attempt("ann")
    odd = [
        None,
        {"buyer": "bob"},
        Attempt([Line("gold")], "bob", "r1", deadline_s="soon"),
        Attempt([Line("gold")], "bob", "r1", ticket=5),
        Attempt([Line("gold")], "bob", "r1", facts=None),
        Attempt([Line("gold")], "bob", "r1", facts={"ip": 5}),
    ]
    outcomes = stand.batch(*odd, good)
    assert names(outcomes) == ["INVALID"] * 6 + ["ACCEPTED"]
    reasons = [outcome.detail["reason"] for outcome in outcomes[:-1]]
    assert reasons == [
        "bad-attempt",
        "bad-attempt",
        "bad-deadline",
        "bad-ticket",
        "bad-facts",
        "bad-facts",
    ]


@pytest.mark.parametrize("sale", ["nope", "", "a b", None, 5, ["drop"]])
def test_an_unknown_sale_is_invalid(make_stand, sale):
    """Of any type and by every way in; a query for it knows nothing."""
    stand = make_stand()
    engine = stand.engine
    (outcome,) = engine.attempt_batch(sale, [stand.attempt("ann")])
    assert (outcome.code, outcome.detail["reason"]) == (Code.INVALID, "unknown-sale")
    again = asyncio.run(engine.attempt(sale, "gold", buyer="ann", request_id="r1"))
    assert again == outcome
    assert engine.result_batch(sale, [("ann", "r1")]) == [None]


class _Text(str):
    """As numpy.str_, Markup or a StrEnum: equal to plain text, and refused by every driver."""

    __slots__ = ()


class _Whole(int):
    """As a numpy integer or an IntEnum."""


class _Line(Line, frozen=True):
    """A caller's own kind of line."""


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (Attempt([Line("gold")], _Text("bob"), "r1"), "bad-buyer"),
        (Attempt([Line("gold")], "bob", _Text("r1")), "bad-request-id"),
        (Attempt([Line(_Text("gold"))], "bob", "r1"), "bad-sku"),
        (Attempt([Line("gold", 1, _Text("g1"))], "bob", "r1"), "bad-group"),
        (Attempt([Line("gold", _Whole(1))], "bob", "r1"), "bad-quantity"),
        (Attempt([Line(_Text("gold")), Line(_Text("gold"))], "bob", "r1"), "bad-sku"),
        (Attempt([Line("gold")], "bob", "r1", ticket=_Text("t")), "bad-ticket"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_subclass_of_text_or_number_is_invalid_and_poisons_nobody(make_stand, names, odd, reason):
    """It equals plain text, so a cache would hand it to every other buyer; INVALID at the edge."""
    stand = make_stand()
    first = stand.batch(odd, stand.attempt("ann"))
    assert names(first) == ["INVALID", "ACCEPTED"]
    assert first[0].detail["reason"] == reason
    assert names(stand.batch(stand.attempt("cid"), odd)) == ["ACCEPTED", "INVALID"]
    assert asyncio.run(_ask(stand.engine, odd)).code is Code.INVALID
    assert stand.result(_Text("ann")) is None
    assert stand.drain() == 0


async def _ask(engine, attempt):
    return await engine.attempt(
        "drop",
        lines=attempt.lines,
        buyer=attempt.buyer,
        request_id=attempt.request_id,
        ticket=attempt.ticket,
    )


def test_a_callers_own_line_is_not_kept(make_stand):
    """What later attempts are served from is the engine's own object, of the plain type."""
    stand = make_stand()
    mine = _Line("gold", 1)
    stand.batch(Attempt([mine], "ann", "r1"))
    runtime = stand.engine.world.runtimes["drop"]
    for buyer in ("bob", "cid"):
        (line,) = runtime.admit(stand.attempt(buyer), None).lines
        assert type(line) is Line


def test_lines_of_one_sku_are_summed_before_any_check(make_stand):
    """D2: two lines of 1 are 2, for the limit of an attempt and for the stock."""
    stand = make_stand({"gold": 3}, sale={"per_buyer": {"attempt": 2}})
    two = [Line("gold", 1), Line("gold", 1)]
    three = [*two, Line("gold", 1)]
    assert stand.batch(Attempt(three, "ann", "r1"))[0].code is Code.OVER_LIMIT
    assert stand.batch(Attempt(two, "ann", "r2"))[0].code is Code.ACCEPTED
    (outcome,) = stand.batch(Attempt(two, "bob", "r1"))
    assert (outcome.code, outcome.detail["remaining"]) == (Code.SOLD_OUT, 1)
    assert stand.rows("intents")[0]["lines"] == "gold=2"
    again = stand.batch(Attempt([Line("gold", 2)], "ann", "r2"))[0]
    assert again.code is Code.ACCEPTED, "equal content is the same attempt, however it is written"


def test_the_number_of_lines_is_bounded_by_a_setting(make_stand):
    """Rule: bound everything."""
    skus = {f"s{n}": 5 for n in range(4)}
    stand = make_stand(skus, door={"lines_max": 3})
    lines = [Line(sku) for sku in skus]
    (outcome,) = stand.batch(Attempt(lines, "ann", "r1"))
    assert outcome.detail == {"reason": "too-many-lines", "lines_max": 3}
    assert stand.batch(Attempt(lines[:3], "ann", "r1"))[0].code is Code.ACCEPTED


def test_2_1_two_buyers_with_one_request_id_are_two_attempts(make_stand, names):
    """Both are served, and a query answers each its own."""
    stand = make_stand()
    outcomes = stand.batch(stand.attempt("ann", "r1"), stand.attempt("bob", "r1"))
    assert names(outcomes) == ["ACCEPTED"] * 2
    assert outcomes[0].order_no != outcomes[1].order_no
    assert stand.result("ann").order_no == outcomes[0].order_no
    assert stand.result("bob").order_no == outcomes[1].order_no


@pytest.mark.parametrize("known_max", [0, 100])
@pytest.mark.parametrize("deduct", ["db-atomic", "memory"])
def test_2_3_the_same_identity_with_other_content_is_key_reused(
    make_stand, names, deduct, known_max
):
    """In a later batch and inside one; a refused identity is judged anew instead."""
    stand = make_stand({"gold": 9}, pipeline={"deduct": deduct}, door={"known_max": known_max})
    assert stand.buy("ann", "r1", gold=1).code is Code.ACCEPTED
    assert stand.buy("ann", "r1", gold=2).code is Code.KEY_REUSED
    outcomes = stand.batch(
        stand.attempt("bob", "r1", gold=2),
        stand.attempt("bob", "r1", gold=3),
        stand.attempt("bob", "r1", gold=2),
    )
    assert names(outcomes) == ["ACCEPTED", "KEY_REUSED", "ACCEPTED"]
    outcomes = stand.batch(stand.attempt("cat", "r1", gold=8), stand.attempt("cat", "r1", gold=1))
    assert names(outcomes) == ["SOLD_OUT", "ACCEPTED"]
    assert stand.drain() == 0
    assert stand.balanced()


def test_2_4_equal_identities_of_a_batch_share_one_result():
    """One attempt is decided, every caller gets its answer; other content waits its turn."""
    a = Attempt([Line("g")], "ann", "r1", fingerprint="g=1")
    b = Attempt([Line("g", 2)], "ann", "r1", fingerprint="g=2")
    c = Attempt([Line("g")], "bob", "r1", fingerprint="g=1")
    found = coalesce(list(enumerate([a, c, a, b, a])))
    assert found.attempts == [a, c]
    assert found.sharers == [[0, 2, 4], [1]]
    assert found.later == [3]
    empty = coalesce([])
    assert (list(empty.attempts), list(empty.later)) == ([], [])


def test_the_cache_of_canonical_texts_is_bounded(make_stand, monkeypatch):
    """Hostile variety of quantities costs no memory, and changes no answer."""
    stand = make_stand({"gold": 100})
    admission = stand.runtime._admission
    monkeypatch.setattr(type(admission), "_CACHE_MAX", 2)
    admission._texts.clear()
    texts = [stand.runtime.admit(stand.attempt("ann", gold=n), None) for n in (1, 2, 3, 3)]
    assert [t.fingerprint for t in texts] == ["gold=1", "gold=2", "gold=3", "gold=3"]
    assert len(admission._texts) == 2


# ------------------------------------------------------------------ receipts
def receipt(stand, key=None, **changes):
    fields = {
        "sale": "drop",
        "run": 1,
        "buyer": "ann",
        "request_id": "r9",
        "fingerprint": "gold=1",
        "epoch": 1,
        "place": "",
        "kind": "H",
        "deadline_ms": 0,
    }
    return (key or stand.engine._key).sign(Receipt(**(fields | changes)))


def test_4_6_a_receipt_of_anybody_else_is_invalid(make_stand):
    """Forged, truncated, another key's, another buyer's, another sale's or run's: never settled."""
    stand = make_stand()
    other = make_stand(keys={"current": "another key, long enough"}).engine._key
    good = receipt(stand)
    bad = [
        receipt(stand, other),
        good[:-4],
        "x",
        "",
        receipt(stand, buyer="bob"),
        receipt(stand, request_id="r8"),
        receipt(stand, sale="other"),
        receipt(stand, run=2),
    ]
    for text in bad:
        outcome = stand.result("ann", "r9", text)
        assert (outcome.code, outcome.detail) == (Code.INVALID, {"reason": "bad-receipt"})
    assert stand.rows("intents") == []
    settled = stand.result("ann", "r9", good)
    assert (settled.code, settled.final) == (Code.BUSY, True)
    assert stand.states() == {("ann", "r9"): "ABORTED"}
    assert stand.result("ann", "r9", "x").code is Code.BUSY, "what is stored needs no receipt"
