"""Laws of the deny-list."""

import msgspec
import pytest

from doorbuster.plugin import Code
from doorbuster_limiter import DenyList


@pytest.fixture
def make_list(make_context):
    """Build from what TOML gives: lists and strings."""

    def make(**options):
        return DenyList(msgspec.convert(options, DenyList.Options), make_context())

    return make


@pytest.fixture
def ask(make_batch, make_attempt):
    """Ask for one attempt; answer its reason, or ``None`` when it passes."""

    def ask(deny, buyer="ann", ip=None):
        facts = {} if ip is None else {"ip": ip}
        (verdict,) = deny.filter(make_batch([make_attempt(buyer, facts=facts)]))
        if verdict is None:
            return None
        assert verdict.code is Code.BLOCKED
        return verdict.detail["reason"]

    return ask


def test_listed_buyers_are_blocked(make_list, make_batch, make_attempt):
    """Listed buyers are BLOCKED with the reason, the others pass, in order."""
    deny = make_list(buyers=["bob", "eve"])
    verdicts = deny.filter(make_batch([make_attempt(b) for b in ("ann", "bob", "cid", "eve")]))
    assert [v and (v.code, v.detail) for v in verdicts] == [
        None,
        (Code.BLOCKED, {"reason": "deny-list"}),
        None,
        (Code.BLOCKED, {"reason": "deny-list"}),
    ]


def test_an_empty_list_and_an_empty_batch_pass(make_list, make_batch, ask):
    """Nothing listed: everybody passes. The empty batch answers empty."""
    assert ask(make_list(), ip="10.0.0.1") is None
    assert list(make_list(ips=["10.0.0.0/8"]).filter(make_batch([]))) == []


@pytest.mark.parametrize(
    ("ip", "reason"),
    [
        ("192.0.2.7", "deny-list"),
        ("192.0.2.8", None),
        ("10.255.0.1", "deny-list"),
        ("11.0.0.1", None),
        ("2001:db8:0::1", "deny-list"),
        ("2001:db9::1", None),
        ("::ffff:10.1.2.3", "deny-list"),
        ("::a01:203", None),
        ("nonsense", "bad-ip"),
        ("", "bad-ip"),
        (None, None),
    ],
)
def test_addresses_and_networks(make_list, ask, ip, reason):
    """The fact ``ip`` is compared as an address, never as text; one that is none is refused."""
    deny = make_list(buyers=["bob"], ips=["192.0.2.7", "10.0.0.0/8", "2001:db8::/32"])
    assert ask(deny, ip=ip) == reason
    assert ask(deny, "bob", ip=ip) == "deny-list"


def test_the_whole_world_can_be_listed(make_list, ask):
    """A network of prefix length 0 matches every address of its version, and no other."""
    deny = make_list(ips=["0.0.0.0/0"])
    assert ask(deny, ip="203.0.113.9") == "deny-list"
    assert ask(deny, ip="::1") is None


def test_a_file_of_buyers(make_list, ask, tmp_path):
    """One buyer per line beside ``buyers``; blank lines and comments are skipped."""
    file = tmp_path / "deny.txt"
    file.write_bytes(b"\xef\xbb\xbfbob\r\n\n  # resellers\n eve \n")
    deny = make_list(buyers=["mal"], file=str(file))
    assert [ask(deny, buyer) for buyer in ("bob", "eve", "mal")] == ["deny-list"] * 3
    assert ask(deny, "ann") is None


def test_an_unreadable_file_is_named(make_list, tmp_path):
    """A file that cannot be read is an error at build that names its path."""
    for path in (tmp_path / "absent.txt", tmp_path):
        with pytest.raises(ValueError, match=f"file: cannot read '{path}'"):
            make_list(file=str(path))


def test_a_file_that_is_not_text_is_named(make_list, tmp_path):
    """Bytes that are not UTF-8 are an error at build that names the path."""
    file = tmp_path / "deny.bin"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=f"file: cannot read '{file}'"):
        make_list(file=str(file))


def test_a_word_that_can_match_nobody_is_an_error(make_list, tmp_path):
    """A mistyped entry must not pass silently: the message names option, or path and line."""
    file = tmp_path / "deny.txt"
    file.write_text("bob\neve mallory\n")
    with pytest.raises(ValueError, match=f"file: {file}, line 2: 'eve mallory'"):
        make_list(file=str(file))
    with pytest.raises(ValueError, match="buyers: 'b@b'"):
        make_list(buyers=["b@b"])
    for ip in ("10.0.0.1/8", "10.0.0", "host"):
        with pytest.raises(ValueError, match=f"ips: .*{ip}"):
            make_list(ips=[ip])


def test_the_fault_of_a_deny_list_is_closed():
    """A list that cannot be asked must not let its members in."""
    assert DenyList.on_fault == "closed"
