"""The side of a proxy that runs in its thread: sockets, connections, and what happens to bytes.

Every method of :class:`Relay` but ``call`` and ``stop`` runs in that one thread, so nothing here
is locked.
"""

from __future__ import annotations

import errno
import functools
import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from doorbuster.testing._links import READ_BYTES, Drop, Flow, Link, reset

__all__ = ["HOST", "Relay"]

T = TypeVar("T")

HOST: Final = "127.0.0.1"
_BACKLOG: Final = 512
_CALL_S: Final = 10.0  # a control takes microseconds; without its thread it must not hang


class Relay:
    """Takes connections on ``port`` and passes their bytes on to ``target``, as told."""

    def __init__(self, port: int, target: tuple[str, int]) -> None:
        """Listen; nothing is served until :meth:`run`.

        Raises:
            OSError: the port is not free.
        """
        self.delays_s = (0.0, 0.0)
        """How long requests and replies are held."""
        self.drops = (Drop(), Drop())
        """Which requests and replies are lost."""
        self.links: dict[Link, None] = {}  # in the order they came
        self.tally: Counter[str] = Counter()
        """Counts by the names of ``proxy.Counts``."""
        self._port = port
        self._target = target
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._listener: socket.socket | None = None
        try:
            self._listen()
        except OSError:
            self.stop()
            self._woken.close()
            self._selector.close()
            raise
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._answer_calls)

    def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the thread of :meth:`run`; answer what it answers.

        Raises:
            ValueError: the thread was told to end.
        """
        future: Future[T] = Future()
        self._calls.append((future, work))
        try:
            self._waker.send(b"!")
        except OSError as error:
            raise ValueError(f"the proxy on port {self._port} is closed") from error
        return future.result(_CALL_S)

    def stop(self) -> None:
        """Tell the thread to end."""
        self._waker.close()

    def run(self) -> None:
        """Serve until :meth:`stop`."""
        while self._woken.fileno() >= 0:
            for key, events in self._selector.select(self._wait_s()):
                key.data(events)
            now_s = time.monotonic()
            for link in list(self.links):
                self._pump(link, now_s)
        self._selector.close()

    def cut(self, *, refuse: bool) -> None:
        """Reset all connections; ``refuse``: and stop listening."""
        self._accept()  # a client whose connection waits here believes that it has one
        for link in list(self.links):
            self._reset(link)
        if refuse and self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def heal(self) -> None:
        """No faults; what was held goes on, what has a hole is reset."""
        self.delays_s, self.drops = (0.0, 0.0), (Drop(), Drop())
        for link in list(self.links):
            if link.is_holed:
                self._reset(link)
            else:
                link.requests.hasten()
                link.replies.hasten()
        if self._listener is None:
            self._listen()

    def _answer_calls(self, _: int) -> None:
        if not self._woken.recv(READ_BYTES):
            self._selector.unregister(self._woken)
            self._woken.close()
        while self._calls:
            future, work = self._calls.popleft()
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 - raised in the caller's thread
                future.set_exception(error)

    def _wait_s(self) -> float | None:
        flows = (flow for link in self.links for flow in (link.requests, link.replies))
        due_s = min((flow.due_s for flow in flows if flow.due_s is not None), default=None)
        return None if due_s is None else max(0.0, due_s - time.monotonic())

    def _listen(self) -> None:
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind((HOST, self._port))
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def _accept(self, _: int = 0) -> None:
        """Take every connection that waits."""
        while self._listener is not None:
            try:
                client, _address = self._listener.accept()
            except OSError:  # none left, or it is gone already
                return
            self.tally["connections"] += 1
            server = socket.socket()
            for end in (client, server):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(client, server)
            self.links[link] = None
            if server.connect_ex(self._target) in (0, errno.EINPROGRESS):
                self._set_interest(link)
            else:
                self._reset(link)

    def _set_interest(self, link: Link) -> None:
        """Ask for just the events that can be served: others would come again and again."""
        for end, reads, writes in (
            (link.client, link.requests, link.replies),
            (link.server, link.replies, link.requests),
        ):
            if link.is_connected:
                events = selectors.EVENT_READ if reads.is_hungry else 0
                events |= selectors.EVENT_WRITE if writes.is_blocked else 0
            else:  # a client waits in its own socket until there is a server to talk to
                events = selectors.EVENT_WRITE if end is link.server else 0
            known = self._selector.get_map().get(end)
            if known is None and events:
                serve = functools.partial(self._serve, link, reads)
                self._selector.register(end, events, serve)
            elif known is not None and not events:
                self._selector.unregister(end)
            elif known is not None and known.events != events:
                self._selector.modify(end, events, known.data)

    def _serve(self, link: Link, flow: Flow, events: int) -> None:
        """Read from ``flow``'s source. What can be written, ``run`` writes after each round."""
        if link not in self.links:  # reset earlier in this round
            return
        if not link.is_connected:
            if link.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._reset(link)
            else:
                link.is_connected = True
        elif events & selectors.EVENT_READ:
            try:
                data = flow.source.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                self._reset(link)
                return
            self._pass_on(link, flow, data)

    def _pass_on(self, link: Link, flow: Flow, data: bytes) -> None:
        side = 0 if flow is link.requests else 1
        due_s = time.monotonic() + self.delays_s[side]
        if not data:
            flow.put_end(due_s)
            return
        rule = self.drops[side]
        lost, begins = link.hear(flow, data, rule)
        if not lost:
            self.tally[("request_bytes", "reply_bytes")[side]] += len(data)
            flow.put(data, due_s)
            return
        self.tally["dropped_bytes"] += len(data)
        self.tally[("dropped_requests", "dropped_replies")[side]] += begins
        if rule.cut and begins:
            self._reset(link)

    def _pump(self, link: Link, now_s: float) -> None:
        try:
            link.requests.pump(now_s)
            link.replies.pump(now_s)
        except OSError:
            self._reset(link)
            return
        if link.requests.is_over and link.replies.is_over:
            self._forget(link)
            link.client.close()  # not a reset: the kernel may still be delivering
            link.server.close()
        else:
            self._set_interest(link)

    def _reset(self, link: Link) -> None:
        self._forget(link)
        reset(link.client)
        reset(link.server)

    def _forget(self, link: Link) -> None:
        del self.links[link]
        for end in (link.client, link.server):
            if end in self._selector.get_map():
                self._selector.unregister(end)
