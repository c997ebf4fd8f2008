"""A TCP proxy for tests of unknown outcomes: it delays, loses and cuts what passes through.

    with Proxy(server.port) as proxy:
        proxy.drop_replies(1, cut=True)  # the effect happens, its answer never arrives

One thread serves all connections, and every control runs in that thread: when it returns, it
holds for every byte that the proxy reads from then on.

A *request* is what a client sends until the server speaks, a *reply* is what the server sends
until the client speaks again. That is exact for protocols in turns (SQL, Redis). Where several
requests are under way on one connection, they count as one, and so do their replies. What a
server says first (a greeting) is a reply too.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Self

import msgspec

from doorbuster.testing._links import Drop
from doorbuster.testing._ports import free_ports, release_ports
from doorbuster.testing._relay import HOST, Relay

__all__ = ["Counts", "Proxy"]


class Counts(msgspec.Struct, frozen=True):
    """What a proxy has seen since it was made."""

    connections: int = 0
    """Connections taken."""
    open: int = 0
    """Connections there are now."""
    request_bytes: int = 0
    """Bytes read from clients and not dropped."""
    reply_bytes: int = 0
    """Bytes read from the server and not dropped."""
    dropped_requests: int = 0
    dropped_replies: int = 0
    dropped_bytes: int = 0


class Proxy:
    """Listens on a free loopback port and passes every connection on to ``target_port``.

    It works from the moment it is made until :meth:`close`; a context manager closes it. The
    target need not be up: a client then sees its connection reset. Methods may be called from
    several threads; after ``close`` all but ``close``, ``port`` and ``counts`` raise ValueError.

    Args:
        target_port: the server's port.
        target_host: the server's address.
    """

    def __init__(self, target_port: int, *, target_host: str = HOST) -> None:
        """Listen and start the thread."""
        self._target = (target_host, target_port)
        (self.port,) = free_ports(1)
        self._relay = Relay(self.port, self._target)
        self._closing = threading.Lock()
        self._thread = threading.Thread(
            target=self._relay.run, name=f"proxy-{self.port}", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        """Nothing more to do."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Where it listens and leads to."""
        return f"<Proxy {HOST}:{self.port} -> {self._target[0]}:{self._target[1]}>"

    @property
    def counts(self) -> Counts:
        """What it has seen so far; after ``close``, in the end."""
        with contextlib.suppress(ValueError):
            return self._relay.call(self._count)
        return self._count()

    def _count(self) -> Counts:
        return Counts(open=len(self._relay.links), **self._relay.tally)

    def delay(self, ms: float, replies_ms: float | None = None) -> None:
        """Hold requests for ``ms``, and replies for ``replies_ms`` (default: the same); 0: pass.

        Order is kept. Bytes that are held already stay held as long as they were to be.
        """
        delays_s = (ms / 1000, (ms if replies_ms is None else replies_ms) / 1000)
        self._relay.call(lambda: setattr(self._relay, "delays_s", delays_s))

    def drop_requests(
        self, n: int | None = None, *, matching: bytes = b"", cut: bool = False
    ) -> None:
        """Swallow what clients send, so that it has no effect. Replaces an earlier rule.

        Args:
            n: the next ``n`` requests, over all connections; None: every byte from now on.
            matching: only requests that contain this. One that is larger than a read of 64 KiB
                may have passed in part before the text was seen.
            cut: also cut the connection, so that the client knows at once.

        Raises:
            ValueError: ``n`` is negative.
        """
        rule = Drop(n, matching, cut=cut)
        relay = self._relay
        relay.call(lambda: setattr(relay, "drops", (rule, relay.drops[1])))

    def drop_replies(
        self, n: int | None = None, *, matching: bytes = b"", cut: bool = False
    ) -> None:
        """Pass requests on and swallow the server's answers: the effect happens, nobody hears.

        Replaces an earlier rule.

        Args:
            n: the next ``n`` replies that begin from now on, over all connections; None: every
                byte from now on.
            matching: only replies to requests that contain this (``b"COMMIT"``).
            cut: cut the connection when the reply arrives here, so that the client knows at once.

        Raises:
            ValueError: ``n`` is negative.
        """
        rule = Drop(n, matching, cut=cut)
        relay = self._relay
        relay.call(lambda: setattr(relay, "drops", (relay.drops[0], rule)))

    def cut(self, *, refuse: bool = False) -> None:
        """Reset all connections now, with all that is held; ``refuse``: and all new ones.

        Refused clients get "connection refused" until :meth:`heal`.
        """
        self._relay.call(functools.partial(self._relay.cut, refuse=refuse))

    def heal(self) -> None:
        """End all faults: no delay, no drops, new connections are taken again.

        Held bytes go on at once. Connections that lost bytes are cut: a TCP connection with a
        hole in it does not exist.

        Raises:
            OSError: another program took the port while connections were refused.
        """
        self._relay.call(self._relay.heal)

    def close(self) -> None:
        """Cut all connections, end the thread, let go of the port. Again: nothing."""
        with self._closing:
            if not self._thread.is_alive():
                return
            self.cut(refuse=True)
            self._relay.stop()
            self._thread.join()
            release_ports((self.port,))
