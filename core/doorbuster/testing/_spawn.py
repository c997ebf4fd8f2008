"""Start one process that the watcher knows before its program runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from doorbuster.testing import _processes

__all__ = ["lock", "open_gate", "spawn"]

_LOCK_S: Final = 1.0  # the kernel may close the log of a killed process a moment later
_PAUSE_S: Final = 0.005

_GATE: Final = 'read -r word && exec "$@" </dev/null'
"""The shell waits for a word before it becomes the program. If the process that starts it dies
before the watcher is told, there is no word, and no server."""


def lock(log: IO[bytes]) -> bool:
    """Lock an open log; answer whether nobody else has it.

    What is started with this log as its output inherits the lock, so it lasts as long as any
    part of a server lives, also when the process that started it is gone.
    """
    deadline_s = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_PAUSE_S)
        else:
            return True


def spawn(
    command: Sequence[str], *, folder: Path, log: IO[bytes], env: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], _processes.Process]:
    """Start ``command`` behind the gate, in its own session, with its output in ``log``.

    Raises:
        FileNotFoundError: there is no such program.
    """
    program = shutil.which(command[0], path=env.get("PATH", os.defpath))
    if program is None:
        raise FileNotFoundError(f"no program {command[0]!r}")
    process = subprocess.Popen(  # noqa: S603 - the test's own command
        ["/bin/sh", "-c", _GATE, "gate", os.path.abspath(program), *command[1:]],
        cwd=folder,
        env=env,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    leader = _processes.look(process.pid)
    assert leader is not None  # noqa: S101 - it is not reaped yet, so it is there
    return process, leader


def open_gate(process: subprocess.Popen[bytes], leader: _processes.Process) -> None:
    """Tell the watcher, then let the program run."""
    _processes.watcher.add(leader)
    assert process.stdin is not None  # noqa: S101 - spawn asked for a pipe
    with contextlib.suppress(BrokenPipeError), process.stdin as gate:  # it may be dead already
        gate.write(b"go\n")
