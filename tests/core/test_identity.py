"""Names of attempts: stable hashes, order numbers, canonical lines, signed receipts."""

import base64
import collections
import hashlib
import hmac

import msgspec
import pytest

from doorbuster.identity import (
    Receipt,
    ServerKey,
    canonical_lines,
    check,
    is_id,
    parse_lines,
    stable_hash,
)
from doorbuster.model import Attempt, Line

SECRET = b"sixteen bytes at least"

# Published: another implementation of a door, or another release, answers the same.
HASHES = {
    "": 0,
    "a": 3016885943,
    "ann": 1613523017,
    "buyer-1": 1833446367,
    "buyer-2": 1071694514,
    "u0000001": 265233502,
    "0123456789abcdef": 350674617,
}
ORDER_NUMBERS = {
    ("drop", 1, "ann", "r1"): "eec154972d96f6f97fc34fae2816204f",
    ("phone-x", 2, "buyer-1", "0123456789abcdef"): "3d0e2bff5add8734001edb9540a97e71",
}


@pytest.mark.parametrize(("text", "number"), HASHES.items())
def test_2_the_stable_hash_has_published_vectors(text, number):
    """Equal in every process and release, never Python's ``hash`` (F6)."""
    assert stable_hash(text) == number


@pytest.mark.parametrize("form", ["{}", "u{:07}", "buyer-{}", "{:x}"])
@pytest.mark.parametrize("places", [2, 10, 32])
def test_2_the_stable_hash_spreads_sequential_ids(form, places):
    """No place gets a tenth more or less than its share of 50,000 ids that only count up."""
    n = 50_000
    found = collections.Counter(stable_hash(form.format(i)) % places for i in range(n))
    assert len(found) == places
    assert min(found.values()) > 0.9 * n / places
    assert max(found.values()) < 1.1 * n / places


@pytest.mark.parametrize("secret", [SECRET, b"x" * 16, b"y" * 64, b"z" * 65, b"long" * 100])
@pytest.mark.parametrize("environment", ["dev", "prod"])
def test_2_2_the_order_number_is_a_keyed_hash_of_the_identity(secret, environment):
    """128 bits of keyed BLAKE2s: equal in every door, and cannot be guessed (decision 0008)."""
    key = ServerKey(secret, environment)
    text = f"{environment}|drop|3|ann|r1".encode()
    derived = hmac.new(secret, b"order_no", hashlib.sha256).digest()
    expected = hashlib.blake2s(text, key=derived, digest_size=16).hexdigest()
    assert key.order_no("drop", 3, "ann", "r1") == expected


def test_2_2_the_order_number_has_published_vectors():
    """A change of its text would give replays of a running sale another number."""
    key = ServerKey(SECRET, "dev")
    for identity, expected in ORDER_NUMBERS.items():
        assert key.order_no(*identity) == expected


def test_2_1_every_part_of_the_identity_makes_another_order_number():
    """(environment, sale, run, buyer, request_id): two buyers with one request_id are two."""
    key = ServerKey(SECRET, "dev")
    numbers = {
        key.order_no("drop", 1, "ann", "r1"),
        key.order_no("dros", 1, "ann", "r1"),
        key.order_no("drop", 2, "ann", "r1"),
        key.order_no("drop", 1, "bob", "r1"),
        key.order_no("drop", 1, "ann", "r2"),
        ServerKey(SECRET, "test").order_no("drop", 1, "ann", "r1"),
        ServerKey(SECRET + b"x", "dev").order_no("drop", 1, "ann", "r1"),
    }
    assert len(numbers) == 7


def test_a_server_key_is_long_enough_and_never_shown():
    """X9, X16."""
    with pytest.raises(ValueError, match="at least 16 bytes"):
        ServerKey(b"x" * 15, "dev")
    assert repr(ServerKey(SECRET, "dev")) == "ServerKey(...)"


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("a", True),
        ("A-z_09", True),
        ("x" * 64, True),
        ("x" * 65, False),
        ("", False),
        ("a b", False),
        ("a\n", False),
        ("a|b", False),
        ("a}b{c", False),
        ("a:b", False),
        ("na\u00efve", False),
        ("\u0430nn", False),
        ("a\x00", False),
        (1, False),
        (None, False),
        (b"a", False),
    ],
)
def test_ids_are_strict_ascii_and_never_normalised(text, good):
    """X3, X4, X5: homoglyphs, separators, hash tags and line ends are refused, not repaired."""
    assert is_id(text) is good


def test_canonical_lines_are_read_back_as_they_were():
    """Equal content has one text, and the text holds the whole content (2.3)."""
    asked = [Line("b", 2), Line("a", 1, "t1"), Line("a", 3), Line("b", 1), Line("a", 1, "t1")]
    lines = check(Attempt(asked, "ann", "r1"), 16)
    assert canonical_lines(lines) == "a=3,a=2@t1,b=3"
    assert parse_lines(canonical_lines(lines)) == lines
    assert canonical_lines([]) == ""
    assert parse_lines("") == ()
    other = check(Attempt(asked[::-1], "ann", "r1"), 16)
    assert other == lines


RECEIPT = Receipt("drop", 1, "ann", "r1", "gold=1", 1, "m0", "H", 1_700_000_000_000)


def test_4_6_a_receipt_is_read_back_by_its_key_only():
    """Signed by the server key, so nobody can settle another's attempt."""
    key = ServerKey(SECRET, "dev")
    text = key.sign(RECEIPT)
    assert key.verify(text) == RECEIPT
    assert ServerKey(SECRET + b"x", "dev").verify(text) is None
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_4_6_a_receipt_that_was_touched_is_none():
    """Truncated, longer, another body under an old signature, not base64: never an exception."""
    key = ServerKey(SECRET, "dev")
    text = key.sign(RECEIPT)
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    body = msgspec.json.encode(msgspec.structs.replace(RECEIPT, buyer="bob"))
    forged = base64.urlsafe_b64encode(raw[:16] + body).decode()
    for bad in (forged, text[:-3], text[:20], text[:1], text + "AAAA", "", "?", "\u00e4", "\ud800"):
        assert key.verify(bad) is None
    for n in range(len(text) - 1):  # the last character may hold bits that mean nothing
        touched = text[:n] + ("A" if text[n] != "A" else "B") + text[n + 1 :]
        assert key.verify(touched) is None


def test_4_6_a_receipts_signature_is_no_order_number():
    """Keys of different uses are different: a receipt's body never signs itself as an order."""
    key = ServerKey(SECRET, "dev")
    mac = hmac.new(SECRET, msgspec.json.encode(RECEIPT), hashlib.sha256).digest()[:16]
    plain = base64.urlsafe_b64encode(mac + msgspec.json.encode(RECEIPT)).decode()
    assert key.verify(plain) is None
