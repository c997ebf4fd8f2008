"""A load generator for HTTP that is not the bottleneck: prepared bytes, one epoll, no parsing.

It runs beside the server on the same machine. A request costs it a write, a read and a search
for two marks (some 8 us), so one core of it can ask faster than one core of Python can answer.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator, Sequence

from doorbuster.bench.loops import Measured

__all__ = ["Connection", "load"]

_PATIENCE_S = 30.0


class Connection:
    """One keep-alive connection with one request under way."""

    def __init__(self, port: int) -> None:
        """Connect to this machine."""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = -1
        self.sent_s = 0.0
        self._got = b""

    def send(self, number: int, request: bytes) -> None:
        """Send request ``number``."""
        self.number = number
        self.sent_s = time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> bytes | None:
        """Take what is there; the whole answer when it is complete.

        Raises:
            ConnectionError: the server closed.
        """
        part = self.socket.recv(65536)
        if not part:
            raise ConnectionError("the server closed the connection")
        got = self._got + part
        head = got.find(b"\r\n\r\n")
        at = got.lower().find(b"content-length:", 0, head) if head >= 0 else -1
        if at < 0:
            self._got = got
            return None
        length = int(got[at + 15 : got.index(b"\r\n", at)])
        if len(got) < head + 4 + length:
            self._got = got
            return None
        self._got = b""
        return got


def load(port: int, requests: Sequence[bytes], *, connections: int) -> Measured[bytes]:
    """Send every request once, one at a time on each connection (a closed loop).

    Answers are whole responses, in the order of the requests.

    Raises:
        ConnectionError: the server closed a connection, or answered nothing for 30 s.
    """
    answers: list[bytes] = [b""] * len(requests)
    latencies: list[float] = []
    numbers = iter(range(len(requests)))
    open_ = [Connection(port) for _ in range(min(connections, len(requests)))]
    poll = select.epoll()
    by_file = {one.socket.fileno(): one for one in open_}
    began = time.perf_counter()
    try:
        for one in open_:
            poll.register(one.socket, select.EPOLLIN)
            _next(one, numbers, requests)
        left = len(requests)
        while left:
            ready = poll.poll(_PATIENCE_S)
            if not ready:
                raise ConnectionError(f"no answer for {_PATIENCE_S:g} s; {left} are left")
            for file, _ in ready:
                one = by_file[file]
                answer = one.receive()
                if answer is not None:
                    latencies.append(1000 * (time.perf_counter() - one.sent_s))
                    answers[one.number] = answer
                    left -= 1
                    _next(one, numbers, requests)
    finally:
        poll.close()
        for one in open_:
            one.socket.close()
    return Measured(answers, time.perf_counter() - began, sorted(latencies))


def _next(one: Connection, numbers: Iterator[int], requests: Sequence[bytes]) -> None:
    number = next(numbers, None)
    if number is not None:
        one.send(number, requests[number])
