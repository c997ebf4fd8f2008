"""Real servers for tests: start, stop, kill, freeze and proxy them, and leave nothing behind.

    def test_a_lost_reply(tmp_path):
        command = [need("redis-server"), "--port", "{port}", "--dir", "{folder}"]
        with Server(command, name="redis", folder=tmp_path, ready=listening()) as redis:
            with Proxy(redis.port) as proxy:
                proxy.drop_replies(1)

Every server has its own ports, its own folder and its own session. It ends with the test, and
when the test process is killed a watcher ends it (``kill -9`` included). Only processes that a
server started are ever signalled: a number that was given to another process is told apart by
the time its process began.

Servers are started on Linux only, which has what this stands on (``/proc``, process handles). On
another system, or where a program is missing, point the tests at a running server: see
:func:`required`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self, TypeAlias

from doorbuster.errors import DoorbusterError
from doorbuster.testing import _processes
from doorbuster.testing._needs import need, required
from doorbuster.testing._ports import free_ports, release_later
from doorbuster.testing._spawn import lock, open_gate, spawn
from doorbuster.testing.proxy import Counts, Proxy

__all__ = [
    "Counts",
    "Proxy",
    "Ready",
    "Server",
    "ServerError",
    "free_ports",
    "listening",
    "logged",
    "need",
    "required",
]

_PAUSE_S: Final = 0.005
_CONNECT_S: Final = 0.5
_FREEZE_S: Final = 5.0
_TAIL_BYTES_MAX: Final = 65_536

Ready: TypeAlias = Callable[["Server"], bool]
"""Whether a server that is starting can be used. It is asked again and again: it answers soon,
and an exception it raises means "not yet" (the last one is the cause of the error)."""


class ServerError(DoorbusterError):
    """A test server did not do what it was told."""


def listening(port: str | int = "port") -> Ready:
    """Ready when ``port`` (a name of the server's ports, or a number) takes a connection."""

    def ready(server: Server) -> bool:
        number = server.ports[port] if isinstance(port, str) else port
        with socket.create_connection(("127.0.0.1", number), timeout=_CONNECT_S):
            return True

    return ready


def logged(text: str) -> Ready:
    """Ready when the server has written ``text`` since it was started."""
    return lambda server: server.said(text)


class Server:
    """One real server process with its own ports and folder; a context manager that runs it.

    Args:
        command: the program and its arguments. It must stay in the foreground. ``{folder}`` and
            the names of the ports in braces (``{port}``) are filled in, in ``env`` too; other
            braces stay as they are.
        name: what errors call it.
        folder: its own folder and working directory, made when missing. The log lies in it, so a
            program that wants an empty folder gets ``{folder}/data``. No two running servers
            have the same one.
        ports: names, to draw free ports for; or names with numbers. They stay the same over
            restarts.
        ready: when it can be used: :func:`listening`, :func:`logged` or a function of your own.
        stop_signal: what asks the process to end (PostgreSQL's fast one is SIGINT). Only the
            process itself gets it; descendants that outlive it are killed.
        start_s: seconds within which it must be ready.
        stop_s: seconds it has after ``stop_signal``, before SIGKILL.
        env: variables on top of this process's own.

    Methods may be called from several threads.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        name: str,
        folder: Path,
        ports: Sequence[str] | Mapping[str, int] = ("port",),
        ready: Ready,
        stop_signal: signal.Signals = signal.SIGTERM,
        start_s: float = 10.0,
        stop_s: float = 10.0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Draw the ports and fill in the command; start nothing."""
        if isinstance(ports, Mapping):
            numbers = dict(ports)
        else:
            drawn = free_ports(len(ports))
            numbers = dict(zip(ports, drawn, strict=True))
            weakref.finalize(self, release_later, drawn).atexit = False
        self.name = name
        self.folder = folder.absolute()
        self.ports: Mapping[str, int] = MappingProxyType(numbers)
        self.log = self.folder / "server.log"
        """What it writes to stdout and stderr, over all its starts."""
        self.command = tuple(self._fill(str(word)) for word in command)
        self._env = {key: self._fill(value) for key, value in (env or {}).items()}
        self._ready = ready
        self._stop_signal = stop_signal
        self._start_s, self._stop_s = start_s, stop_s
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._leader: _processes.Process | None = None  # None: not started, or ended and reaped
        self._log_begin = 0

    def _fill(self, text: str) -> str:
        for name, value in {**self.ports, "folder": self.folder}.items():
            text = text.replace(f"{{{name}}}", str(value))
        return text

    def __repr__(self) -> str:
        """Name, ports, and what the process does."""
        state = f"pid {self.pid}" if self.is_running else f"returncode {self.returncode}"
        return f"<Server {self.name} {dict(self.ports)} {state}>"

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.stop()

    @property
    def port(self) -> int:
        """The first of ``ports``."""
        return next(iter(self.ports.values()))

    @property
    def pid(self) -> int:
        """The running process; a number that is gone may be another's, so none is given.

        Raises:
            ServerError: it is not running.
        """
        return self._running().pid

    @property
    def returncode(self) -> int | None:
        """None while it runs and before its first start, else as of ``Popen``: -9 for SIGKILL."""
        with self._lock:
            return None if self.is_running or self._process is None else self._process.returncode

    @property
    def is_running(self) -> bool:
        """Whether its process lives, frozen ones too. Ends what an ended one left behind."""
        with self._lock:
            if self._process is None or self._leader is None:
                return False
            try:
                ended = os.waitid(os.P_PID, self._leader.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # a fork's view of it, or reaped by a stranger: hands off
                self._process.wait()  # which reads as returncode 0
                self._leader = None
                return False
            if ended is None:
                return True
            self._reap()
            return False

    def start(self) -> Self:
        """Start it, and wait until it is ready.

        Raises:
            ServerError: it runs already, its program or folder cannot be used, it ended early, or
                it was not ready within ``start_s``: with its command, its exit code and the end
                of its log. It is not left running.
        """
        with self._lock:
            if self.is_running:
                raise ServerError(f"server {self.name!r} is running already")
            try:
                self._spawn()
            except BaseException:
                self.kill()
                raise
        try:
            self._await_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """End it with ``stop_signal``, after ``stop_s`` with SIGKILL. One that ended: nothing.

        A frozen server is thawed first.

        Raises:
            ServerError: even SIGKILL did not end it.
        """
        with self._lock:
            if not self.is_running:
                return
            leader = self._running()
            started = _processes.thaw(leader)
            _processes.send(leader, self._stop_signal)
        deadline_s = time.monotonic() + self._stop_s
        while self.is_running and time.monotonic() < deadline_s:
            time.sleep(_PAUSE_S)  # the lock is free here: another thread may kill it meanwhile
        self.kill()
        if not _processes.end(leader, started):
            raise ServerError(self._told("left processes that could not be ended"))

    def kill(self) -> None:
        """Kill it and its descendants (SIGKILL), as a crash of its host would. Ended: nothing.

        Raises:
            ServerError: SIGKILL did not end it within ten seconds.
        """
        with self._lock:
            if self.is_running and not self._reap():
                raise ServerError(self._told("could not be killed"))

    def restart(self) -> Self:
        """``stop()`` and ``start()``: same ports, same folder. After a kill, use ``start()``."""
        self.stop()
        return self.start()

    def freeze(self) -> None:
        """Stop time for it and its descendants (SIGSTOP); when this returns, none runs.

        Its sockets stay: the kernel goes on taking connections and bytes for it.

        Raises:
            ServerError: it is not running, or did not stand still within five seconds.
        """
        with self._lock:
            if not _processes.freeze(self._running(), _FREEZE_S):
                raise ServerError(self._told("could not be frozen"))

    def thaw(self) -> None:
        """Let a frozen server go on (SIGCONT). One that is not frozen or not running: nothing."""
        with self._lock:
            if self.is_running:
                _processes.thaw(self._running())

    def said(self, text: str) -> bool:
        """Whether ``text`` is in what it wrote since its last start."""
        with self.log.open("rb") as log:
            log.seek(self._log_begin)
            return text.encode() in log.read()

    def tail(self, n: int = 20) -> str:
        """The last ``n`` lines of its log (of its last 64 KiB); empty when there is none."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES_MAX))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-n:] if n > 0 else [])

    def _running(self) -> _processes.Process:
        if not self.is_running or self._leader is None:
            raise ServerError(f"server {self.name!r} is not running")
        return self._leader

    def _spawn(self) -> None:
        if sys.platform != "linux":
            raise ServerError("test servers are started on Linux only; see servers.required")
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            if not lock(log):
                raise ServerError(self._told("shares its folder with another running server"))
            self._log_begin = log.seek(0, os.SEEK_END)
            env = {**os.environ, **self._env}
            try:
                started = spawn(self.command, folder=self.folder, log=log, env=env)
            except OSError as error:
                raise ServerError(self._told(f"cannot be started: {error}")) from error
        self._process, self._leader = started
        open_gate(*started)

    def _await_ready(self) -> None:
        deadline_s = time.monotonic() + self._start_s
        fault: Exception | None = None
        while self.is_running:
            try:
                if self._ready(self) and self.is_running:  # not another program's listener
                    return
                fault = None
            except Exception as error:  # noqa: BLE001 - any client's "cannot connect" is "not yet"
                fault = error
            if time.monotonic() > deadline_s:
                told = self._told(f"was not ready within {self._start_s:g} s")
                raise ServerError(told) from fault
            time.sleep(_PAUSE_S)
        raise ServerError(self._told("ended before it was ready")) from fault

    def _reap(self) -> bool:
        """Kill what lives of the family, then let go of its number. Answer whether all ended."""
        assert self._process is not None  # noqa: S101 - callers looked
        assert self._leader is not None  # noqa: S101 - callers looked
        # Before the leader is reaped its number, and so its session, cannot be another's.
        if not _processes.end(self._leader):
            return False
        self._process.wait()
        _processes.watcher.remove(self._leader)
        self._leader = None
        return True

    def _told(self, what: str) -> str:
        """A message with all that helps: command, exit code, last log lines."""
        code = "running" if self._leader else "never started"
        if self._leader is None and self._process is not None:
            code = f"exit code {self._process.returncode}"
        lines = "".join(f"\n    {line}" for line in self.tail().splitlines()) or " empty"
        return (
            f"server {self.name!r} {what} ({code})\n"
            f"  command: {' '.join(self.command)}\n  log {self.log}:{lines}"
        )
