"""What an operator does about a fault of the ledger's database, by the driver's code."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

import sqlalchemy as sa

__all__ = ["remedy"]

_REMEDIES: Final = {
    sqlite3.SQLITE_BUSY: "another process has held its lock for longer than ledger.wait_ms "
    "({wait_ms}): end what holds it, such as a shell or a backup, or raise ledger.wait_ms",
    sqlite3.SQLITE_CORRUPT: "{file} is damaged: stop all that use it, and restore a backup",
    sqlite3.SQLITE_FULL: "make room on the disk of {file}; it then goes on by itself",
    sqlite3.SQLITE_IOERR: "look at the disk of {file}: it may be full, broken or a network's",
    sqlite3.SQLITE_NOTADB: "{file} is a file of another kind: name another one, or move it away",
}


def remedy(cause: BaseException | None, file: Path | None, url: sa.URL, wait_ms: int) -> str:
    """The remedy for ``cause``, a driver's error; ``file`` is the ledger's, ``None`` in memory."""
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # an extended one is of its first kind
    mode = str(url.query.get("mode", ""))
    if file is not None and code == sqlite3.SQLITE_CANTOPEN:
        return _cannot_open(file, mode)
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        if mode == "ro":
            return "mode=ro is for looking only: leave it out of ledger.url"
        return _let_write(file or Path("the database in memory"))
    if str(cause).startswith(("no such table", "no such column")):
        return "its tables are not this release's: run 'doorbuster migrate'"
    if code == sqlite3.SQLITE_LOCKED:
        code = sqlite3.SQLITE_BUSY
    text = _REMEDIES.get(code, "look at {file}, its folder and its disk")
    return text.format(file=file or "the database in memory", wait_ms=wait_ms)


def _cannot_open(file: Path, mode: str) -> str:
    """Why SQLite cannot open ``file``; it says the same of every reason."""
    folder = file.parent
    # os.path, since the methods of Path raise where this process has no rights
    if os.path.isdir(file):
        return f"{file} is a folder: name a file in it"
    if not os.path.exists(folder):
        return (
            f"folder {folder} does not exist: make it, or name another file "
            "(an absolute path has four slashes: sqlite:////var/doorbuster.db)"
        )
    if not os.path.isdir(folder):
        return f"{folder} is not a folder: name a file in one"
    if mode in ("ro", "rw") and not os.path.lexists(file):
        return f"{file} does not exist, and mode={mode} makes none: leave mode out of ledger.url"
    return f"{_let_write(file)}; if it may, raise its limit of open files (ulimit -n)"


def _let_write(file: Path) -> str:
    return f"let this process write {file} and its folder, or name another file"
