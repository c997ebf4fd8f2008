"""Process families on Linux: look at them, signal them, and end them when this process dies.

Only stdlib and no import of doorbuster: this file also runs as a script, the watcher.

A *family* is a process that was started as leader of its own session, everything in that
session, and all their descendants. Descendants count because some servers give each worker its
own session (PostgreSQL does): a signal to the process group would miss them. What escapes is a
daemon, which leaves both the session and its parent; run servers in the foreground.

A process is named by its number **and** the time it began, and a signal goes through a handle
that was opened before that time was compared. A number that was given to somebody else in
the meantime is therefore never signalled.

The watcher exists because the kernel's own death signal (``PR_SET_PDEATHSIG``) follows the
*thread* that forked, reaches only the direct child, and needs code between fork and exec. It
reads a pipe that only this process can write to; when that ends, however this process ended, it
kills the families that were not taken off its list.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

__all__ = ["Process", "Watcher", "end", "family", "freeze", "look", "send", "thaw", "watcher"]

_DEAD: Final = "ZXx"
_STOPPED: Final = "Tt"
_PAUSE_S: Final = 0.002
_FREEZE_S: Final = 1.0  # before a kill: long enough to stop what runs, short for what cannot
_END_S: Final = 10.0  # SIGKILL waits only for the kernel (a disk that hangs)


class Process(NamedTuple):
    """One process as ``/proc`` shows it. ``pid`` and ``began`` name it; the rest may change."""

    pid: int
    began: int
    """Clock ticks since boot."""
    state: str
    parent: int
    session: int

    def is_same(self, other: Process | None) -> bool:
        """Whether both are the same process, looked at twice."""
        return other is not None and (self.pid, self.began) == (other.pid, other.began)


def look(pid: int) -> Process | None:
    """Read process ``pid``; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # a program may have any name, even "x) R 1"
    return Process(pid, int(fields[19]), fields[0], int(fields[1]), int(fields[3]))


def _is_alive(process: Process) -> bool:
    now = look(process.pid)
    return now is not None and process.is_same(now) and now.state not in _DEAD


def family(leader: Process) -> list[Process]:
    """All living processes of the session that ``leader`` began, and their descendants.

    Works after the leader died too: its number is not given away while its session has members.
    """
    now = look(leader.pid)
    if now is not None and not leader.is_same(now):
        return []
    seen = [look(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    everyone = [process for process in seen if process is not None]
    members = {process.pid for process in everyone if process.session == leader.pid}
    members.add(leader.pid)
    while more := {process.pid for process in everyone if process.parent in members} - members:
        members |= more
    return [one for one in everyone if one.pid in members and one.state not in _DEAD]


def send(process: Process, number: int) -> bool:
    """Signal ``process`` if it is still the same one and alive; answer whether it was."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel without handles: the comparison below is then all there is
        handle = None
    try:
        if not _is_alive(process):
            return False
        if handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def freeze(leader: Process, wait_s: float) -> bool:
    """Stop a whole family; answer whether all of it stood still within ``wait_s``.

    Members that appear meanwhile are stopped too.
    """
    deadline_s = time.monotonic() + wait_s
    told: set[tuple[int, int]] = set()
    while True:
        members = family(leader)
        fresh = [one for one in members if (one.pid, one.began) not in told]
        for one in fresh:
            send(one, signal.SIGSTOP)
            told.add((one.pid, one.began))
        if not fresh and all(one.state in _STOPPED for one in members):
            return True
        if time.monotonic() > deadline_s:
            return False
        if not fresh:
            time.sleep(_PAUSE_S)


def thaw(leader: Process) -> list[Process]:
    """Let a whole family go on; answer its members."""
    members = family(leader)
    for one in members:
        send(one, signal.SIGCONT)
    return members


def end(leader: Process, also: Iterable[Process] = ()) -> bool:
    """Kill a whole family and those of ``also`` that still live; answer whether all are gone.

    The family is stopped first: a stopped process neither forks nor reaps, so none is missed.
    """
    freeze(
        leader, _FREEZE_S
    )  # one that cannot stop now, waiting for a disk, is killed all the same
    doomed = [*family(leader), *also]
    for one in doomed:
        send(one, signal.SIGKILL)
    deadline_s = time.monotonic() + _END_S
    while any(map(_is_alive, doomed)):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_PAUSE_S)
    return True


class Watcher:
    """The list of families that must not outlive this process, kept by a process of its own."""

    def __init__(self) -> None:
        """Start nothing yet: the process is started with the first family."""
        self._lock = threading.Lock()
        self._listed: dict[int, Process] = {}
        self._pipe: int | None = None
        os.register_at_fork(after_in_child=self._forget)

    def add(self, leader: Process) -> None:
        """Put a family on the list."""
        with self._lock:
            self._listed[leader.pid] = leader
            self._tell(f"+ {leader.pid} {leader.began}")

    def remove(self, leader: Process) -> None:
        """Take a family off the list."""
        with self._lock:
            if self._listed.pop(leader.pid, None) is not None:
                self._tell(f"- {leader.pid} {leader.began}")

    def _tell(self, line: str) -> None:
        if self._pipe is not None:
            try:
                os.write(self._pipe, f"{line}\n".encode())
            except BrokenPipeError:  # somebody ended it; the next one gets the whole list
                os.close(self._pipe)
            else:
                return
        self._pipe = _start_watcher()
        for one in self._listed.values():
            os.write(self._pipe, f"+ {one.pid} {one.began}\n".encode())

    def _forget(self) -> None:
        """In a forked child: these families are the parent's, whose death must end the pipe."""
        if self._pipe is not None:
            os.close(self._pipe)
        self._lock, self._pipe, self._listed = threading.Lock(), None, {}


def _start_watcher() -> int:
    """Start this file as a script in its own session; answer the pipe to it."""
    inlet, outlet = os.pipe()
    silent = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    try:
        os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", __file__],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, inlet, 0), *silent],
            setsid=True,
        )
    except BaseException:
        os.close(outlet)
        raise
    finally:
        os.close(inlet)
    return outlet


def _watch() -> None:
    """Keep the list from stdin; at its end, end what is left of it."""
    os.chdir("/")  # no folder of a test is held
    listed: dict[int, Process] = {}
    for line in sys.stdin:
        sign, pid, began = line.split()
        if sign == "+":
            listed[int(pid)] = Process(int(pid), int(began), "?", 0, int(pid))
        else:
            listed.pop(int(pid), None)
    for leader in listed.values():
        end(leader)


watcher: Final = Watcher()
"""The one watcher of this process."""

if __name__ == "__main__":
    _watch()
