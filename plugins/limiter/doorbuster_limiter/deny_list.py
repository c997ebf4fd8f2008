"""Refuse listed buyers and addresses: BLOCKED, before anything is spent on them.

Lists are read once, when the plugin is built; change the configuration to read them again.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from doorbuster.plugin import (
    Attempt,
    Batch,
    Code,
    Context,
    PluginOptions,
    Rejection,
    Verdicts,
    hookimpl,
)

__all__ = ["DenyList"]

DENIED: Final = Rejection(Code.BLOCKED, {"reason": "deny-list"})
"""The answer to a listed buyer or address."""

BAD_IP: Final = Rejection(Code.BLOCKED, {"reason": "bad-ip"})
"""The answer where addresses are listed and the attempt's is not one: it cannot be cleared."""

_BUYER: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # any other word could never match a buyer

_Networks = Mapping[int, Mapping[int, frozenset[int]]]
"""IP version -> bits to cut off -> what is left of the listed networks."""


class DenyList:
    """``deny-list``: refuse by buyer id and by the fact ``ip``."""

    on_fault = "closed"  # a list that cannot be asked must not let its members in

    class Options(PluginOptions):
        """Settings under ``[plugins.deny-list]``."""

        buyers: frozenset[str] = frozenset()
        """Buyer ids; default none."""
        ips: frozenset[str] = frozenset()
        """Addresses (``192.0.2.7``, ``2001:db8::1``) and networks (``10.0.0.0/8``), compared
        with the attempt's fact ``ip``; default none."""
        file: str | None = None
        """A text file with one buyer id per line; blank lines and lines that begin with ``#``
        are skipped. Default none."""

    def __init__(self, options: Options, context: Context) -> None:
        """Read the lists.

        Raises:
            ValueError: an entry is not a buyer id, address or network, or the file cannot be
                read; the message names the option or the path and line.
        """
        buyers = {_checked(buyer, "buyers") for buyer in options.buyers}
        if options.file is not None:
            buyers |= _read(Path(options.file))
        self._buyers = frozenset(buyers)
        self._networks = _index(options.ips)

    @hookimpl
    def filter(self, batch: Batch) -> Verdicts:
        """Answer BLOCKED for listed attempts. One without the fact ``ip`` has no address."""
        if not self._networks:
            buyers = self._buyers
            return [DENIED if attempt.buyer in buyers else None for attempt in batch]
        return [self._judge(attempt) for attempt in batch]

    def _judge(self, attempt: Attempt) -> Rejection | None:
        if attempt.buyer in self._buyers:
            return DENIED
        text = attempt.facts.get("ip")
        if text is None:
            return None
        try:
            address = _plain(ipaddress.ip_address(text))
        except ValueError:
            return BAD_IP
        number = int(address)
        for cut, networks in self._networks.get(address.version, {}).items():
            if number >> cut in networks:
                return DENIED
        return None


def _plain(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An IPv4 address dressed as IPv6 (``::ffff:10.0.0.1``) is that IPv4 address."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _checked(buyer: str, where: str) -> str:
    if not _BUYER.fullmatch(buyer):
        raise ValueError(f"{where}: {buyer!r} is not a buyer id; expected 1-64 of A-Z a-z 0-9 _ -")
    return buyer


def _read(path: Path) -> set[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"file: cannot read {str(path)!r}: {error}") from error
    words = ((n, line.strip()) for n, line in enumerate(lines, start=1))
    return {
        _checked(word, f"file: {path}, line {n}")
        for n, word in words
        if word and not word.startswith("#")
    }


def _index(ips: Iterable[str]) -> _Networks:
    """Index by prefix length: a look-up costs one step per length, not one per network."""
    index: dict[int, dict[int, set[int]]] = {}
    for text in sorted(ips):
        try:
            network = ipaddress.ip_network(text)
        except ValueError as error:
            raise ValueError(f"ips: {error}; expected an address or a network") from error
        cut = network.max_prefixlen - network.prefixlen
        cuts = index.setdefault(network.version, {})
        cuts.setdefault(cut, set()).add(int(network.network_address) >> cut)
    return {
        version: {cut: frozenset(found) for cut, found in cuts.items()}
        for version, cuts in index.items()
    }
