"""New connections: a crowd that comes at once is let in at once, and a refusal is survived."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import closing

import pytest
import uvloop

from doorbuster.http import listener
from doorbuster.http.listener import Listener


class Told(asyncio.Protocol):
    """A connection that knows whether it was told to end."""

    def __init__(self, made):
        self.was_told = False
        made.append(self)

    def connection_made(self, transport):
        self.transport = transport

    def shutdown(self):
        self.was_told = True
        self.transport.close()


@pytest.fixture
def taken():
    with closing(socket.create_server(("127.0.0.1", 0), backlog=512)) as found:
        yield found


@pytest.fixture
def crowd(taken):
    """``crowd(n)``: n connections that wait to be taken."""
    there = []

    def come(n):
        address = taken.getsockname()
        there.extend(socket.create_connection(address, timeout=10) for _ in range(n))

    yield come
    for one in there:
        one.close()


def listening(taken, work):
    """Run ``work(listener, made)`` on uvloop, as the service does."""

    async def run():
        made = []
        found = Listener(taken, lambda: Told(made), 512)
        try:
            return await work(found, made)
        finally:
            found.close()
            await found.wait_closed()
            for one in made:
                one.transport.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


async def turns(n):
    for _ in range(n):
        await asyncio.sleep(0)


def test_l4_a_crowd_is_taken_in_a_few_turns_of_the_loop(taken, crowd):
    """Not one per turn, since each turn serves all who are inside before it (S0-40)."""
    crowd(200)

    async def work(_, made):
        await turns(12)
        return len(made)

    assert listening(taken, work) == 200


def test_too_many_open_files_is_a_pause_not_an_end(taken, crowd, monkeypatch):
    """Who waits in the system's queue is taken when there is room again."""
    monkeypatch.setattr(listener, "_PAUSE_S", 0.01)
    full = [True, True]

    class Full:
        """The socket, while the system refuses."""

        def __getattr__(self, name):
            return getattr(taken, name)

        def accept(self):
            if full:
                full.pop()
                raise OSError(errno.EMFILE, "Too many open files")
            return taken.accept()

    crowd(3)

    async def work(_, made):
        while len(made) < 3:  # noqa: ASYNC110 - the listener has nobody to tell
            await asyncio.sleep(0.005)
        return True

    async def run():
        return await asyncio.wait_for(asyncio.to_thread(lambda: listening(Full(), work)), 10)

    assert asyncio.run(run())
    assert not full


def test_closing_while_it_pauses_is_closing(taken, crowd):
    """The timer of the pause does not listen again."""
    crowd(1)

    async def work(found, made):
        found._loop.remove_reader(taken)
        found._again = found._loop.call_later(0.01, found._resume)
        found.close()
        await asyncio.sleep(0.03)
        return made

    assert listening(taken, work) == []


def test_who_becomes_a_connection_after_the_close_is_told_to_end(taken, crowd):
    """Else the drain would wait for somebody who was never told."""
    crowd(5)

    async def work(found, made):
        found._take()
        found.close()
        await found.wait_closed()
        return [one.was_told for one in made]

    assert listening(taken, work) == [True] * 5
