"""Ports for servers and proxies, drawn so that nobody else takes them before they are used.

A port is free when nothing is bound to it on any IPv4 address. Between that look and the
server's own bind there is a gap, which three rules make as narrow as it can be:

* ports lie below the range from which the kernel picks ports for outgoing connections and for
  binds to port 0, so neither takes one by chance (nor does a client connect to itself);
* a drawn port is marked by a socket name that is unique on this host and disappears with the
  process (Linux), so two test processes never draw the same one;
* a process never draws the same port twice while it holds it.

What is left: a program that does not follow these rules may bind the port in the gap. The server
then ends before it is ready, and its log says why.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

__all__ = ["free_ports", "release_later", "release_ports"]

_FIRST: Final = 10_000
_LAST: Final = 32_767  # below the kernel's default range, which begins at 32768
_DRAWS_MAX: Final = 1_000  # a range so full that this many draws fail has no port to give
_RANGE_FILE: Final = "/proc/sys/net/ipv4/ip_local_port_range"

_draw = random.SystemRandom().randint  # a test that seeds `random` changes nothing here
_lock = threading.Lock()
_held: dict[int, int | None] = {}  # port -> descriptor of its mark, open until the process ends
_unwanted: deque[int] = deque()


def free_ports(n: int = 1, *, offsets: Sequence[int] = ()) -> tuple[int, ...]:
    """Draw ``n`` distinct free loopback TCP ports and hold them while this process lives.

    Holding keeps other callers of this function away, in this and in other processes; the port
    itself stays unbound, so that the server can bind it. See the module for what that leaves.

    Args:
        n: how many ports; 0 answers ``()``.
        offsets: other ports a server takes, counted from each answered one, free and held too:
            ``(1,)`` for a broker that uses PORT and PORT + 1.

    Raises:
        OSError: there are no such ports.
    """
    with _lock:
        while _unwanted:
            _let_go([_unwanted.popleft()])
        drawn: list[int] = []
        for _ in range(n):
            base = _draw_one(offsets)
            if base is None:
                _let_go(port + offset for port in drawn for offset in (0, *offsets))
                raise OSError(f"no {n} free ports with offsets {tuple(offsets)}")
            drawn.append(base)
        return tuple(drawn)


def release_ports(ports: Iterable[int]) -> None:
    """Hold ``ports`` no longer; ports that are not held are passed over."""
    with _lock:
        _let_go(ports)


def release_later(ports: Iterable[int]) -> None:
    """Hold ``ports`` no longer, from the next draw on.

    For finalizers: the collector runs them where it likes, in a draw that has the lock too, so
    this takes none.
    """
    _unwanted.extend(ports)


def _let_go(ports: Iterable[int]) -> None:
    for port in ports:
        mark = _held.pop(port, None)
        if mark is not None:
            os.close(mark)


def _draw_one(offsets: Sequence[int]) -> int | None:
    """Hold a port and its offsets, or nothing."""
    first, last = _bounds()
    first, last = first - min(0, *offsets, 0), last - max(0, *offsets, 0)
    for _ in range(_DRAWS_MAX if first <= last else 0):
        base = _draw(first, last)
        taken: list[int] = []
        for port in dict.fromkeys((base, *(base + offset for offset in offsets))):
            if not _hold(port):
                _let_go(taken)
                break
            taken.append(port)
        else:
            return base
    return None


def _bounds() -> tuple[int, int]:
    """First and last port to draw: below the kernel's range, if that leaves enough of them."""
    try:
        with open(_RANGE_FILE) as file:
            kernels = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return _FIRST, _LAST
    return _FIRST, kernels - 1 if kernels > _FIRST + _DRAWS_MAX else _LAST


def _hold(port: int) -> bool:
    if port in _held:
        return False
    mark: socket.socket | None = None
    if sys.platform == "linux":
        mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            mark.bind(f"\0doorbuster-test-port-{port}")
        except OSError:  # another process holds it
            mark.close()
            return False
    if not _is_free(port):
        if mark is not None:
            mark.close()
        return False
    _held[port] = None if mark is None else mark.detach()
    return True


def _is_free(port: int) -> bool:
    """Whether no address has ``port``: some servers listen on all of them, whatever one says."""
    with socket.socket() as sample:
        try:
            sample.bind(("", port))
        except OSError:
            return False
    return True
