"""What a proxy keeps of one connection: two flows of bytes, whose turn it is, what was lost."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from typing import Final

__all__ = ["READ_BYTES", "Drop", "Flow", "Link", "reset"]

READ_BYTES: Final = 65_536
_QUEUE_BYTES_MAX: Final = 1_048_576  # a delayed flow reads no further ahead than this
_REQUEST_BYTES_MAX: Final = 1_048_576  # where `matching` is looked for
_END: Final = b""


class Drop:
    """A rule: lose the next ``left`` turns (None: every byte) of requests with ``matching``."""

    def __init__(self, left: int | None = 0, matching: bytes = b"", *, cut: bool = False) -> None:
        """Lose nothing by default."""
        if left is not None and left < 0:
            raise ValueError(f"n is {left}; it is a count, or None for all")
        self.left = left
        self.matching = matching
        self.cut = cut

    def takes(self, request: bytes | bytearray, *, begins: bool) -> bool:
        """Whether a turn is lost from this read on; ``begins``: it may be counted as one."""
        if self.left == 0 or self.matching not in request or not (begins or self.left is None):
            return False
        if self.left is not None:
            self.left -= 1
        return True


class Flow:
    """Bytes on their way from one socket to the other, each with the time it is due."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        """Join two non-blocking sockets in one direction."""
        self.source = source
        self.sink = sink
        self.is_read_out = False
        """The source said that nothing more comes."""
        self.is_over = False
        """The sink was told so too."""
        self.is_blocked = False
        """The sink takes no more for now."""
        self._queue: deque[tuple[float, bytes]] = deque()
        self._bytes = 0

    @property
    def is_hungry(self) -> bool:
        """Whether to read more from the source."""
        return not self.is_read_out and self._bytes < _QUEUE_BYTES_MAX

    @property
    def due_s(self) -> float | None:
        """When the next bytes are due; None when there are none, or the sink decides."""
        return self._queue[0][0] if self._queue and not self.is_blocked else None

    def put(self, data: bytes, due_s: float) -> None:
        """Queue ``data``; however early it is due, what was queued before goes first."""
        self._queue.append((due_s, data))
        self._bytes += len(data)

    def put_end(self, due_s: float) -> None:
        """Queue the end of the flow."""
        self.is_read_out = True
        self.put(_END, due_s)

    def hasten(self) -> None:
        """Make everything due now."""
        self._queue = deque((0.0, data) for _, data in self._queue)

    def pump(self, now_s: float) -> None:
        """Send what is due.

        Raises:
            OSError: the sink is gone.
        """
        self.is_blocked = False
        while self._queue and self._queue[0][0] <= now_s:
            due_s, data = self._queue.popleft()
            if data == _END:
                self.is_over = True
                self.sink.shutdown(socket.SHUT_WR)
                return
            try:
                sent = self.sink.send(data)
            except BlockingIOError:
                sent = 0
            self._bytes -= sent
            if sent < len(data):
                self._queue.appendleft((due_s, data[sent:]))
                self.is_blocked = True
                return


class Link:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        """Pair the two sockets; the connection to the server may still be under way."""
        self.client = client
        self.server = server
        self.requests = Flow(client, server)
        self.replies = Flow(server, client)
        self.is_connected = False
        self.is_holed = False
        """Bytes were lost in the middle of the connection."""
        self._request = bytearray()
        self._speaker: Flow | None = None
        self._losing: Flow | None = None  # the flow whose present turn is being lost

    def hear(self, flow: Flow, data: bytes, rule: Drop) -> tuple[bool, bool]:
        """Judge bytes that were read from ``flow``: are they lost, and does a loss begin?"""
        is_request = flow is self.requests
        fresh = self._speaker is not flow
        self._speaker = flow
        if fresh and is_request:
            self._request.clear()
        if is_request and len(self._request) < _REQUEST_BYTES_MAX:
            self._request += data
        if fresh and self._losing is flow:
            self._losing = None
        begins = fresh or (is_request and bool(rule.matching))
        if self._losing is flow:
            return True, False
        if not rule.takes(self._request, begins=begins):
            return False, False
        self._losing, self.is_holed = flow, True
        return True, True


def reset(end: socket.socket) -> None:
    """Close a connection as a crash does: the other end gets a reset, at once."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
