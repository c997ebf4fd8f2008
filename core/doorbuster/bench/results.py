"""What a bench answers: rows of results, and the machine and the versions that made them."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

__all__ = ["Report", "Result", "machine", "percentile", "report", "versions"]

_LIBRARIES: Final = ("doorbuster", "SQLAlchemy", "msgspec", "uvicorn", "uvloop", "httptools")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. Rates are per second, latencies in milliseconds.

    ``baseline`` names what was measured beside it in the same run, for ``ratio``. Of
    ``concurrency`` (closed loop: callers at once) and ``offered_per_s`` (open loop: attempts sent
    by the clock, whatever the answers do) the other one is ``None``. In an open loop a latency
    counts from the planned time of sending, so waiting in front of the door is part of it.
    """

    name: str
    ours_per_s: float
    baseline: str | None = None
    baseline_per_s: float | None = None
    ratio: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    loop: Literal["closed", "open"] = "closed"
    concurrency: int | None = None
    offered_per_s: float | None = None
    mix: str
    topology: str
    fsync: str
    us_per_attempt: float | None = None
    """Microseconds of this process's CPU per attempt, where the bench measures cost."""
    bar: str | None = None
    """The bar this row is held to, and whether it was met here."""


class Report(msgspec.Struct, frozen=True):
    """Everything one run measured."""

    bench: str
    results: Sequence[Result]
    machine: dict[str, Any]
    versions: dict[str, str]


def report(bench: str, results: Sequence[Result]) -> Report:
    """Put results and what made them together."""
    return Report(bench, list(results), machine(), versions())


def machine() -> dict[str, Any]:
    """What the results are of: processors, memory, kernel; no host name."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpus": os.cpu_count(),
        "cpu": _cpu(),
        "memory_gib": round(pages / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_1m_before": round(os.getloadavg()[0], 2),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")


def versions() -> dict[str, str]:
    """Python, SQLite, the libraries on the path, and the commit when there is one."""
    found = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    for name in _LIBRARIES:
        try:
            found[name.lower()] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    commit = _commit()
    return found | ({"commit": commit} if commit else {})


def _commit() -> str | None:
    """The commit this code is from, with ``+`` when the tree differs from it."""

    def git(*words: str) -> str:
        done = subprocess.run(  # noqa: S603 - fixed words
            ["git", *words],  # noqa: S607 - the one on the path
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "--short", "HEAD")
        return commit + ("+" if commit and git("status", "--porcelain", "-uno") else "") or None
    except (OSError, subprocess.SubprocessError):
        return None


def percentile(ordered: Sequence[float], q: float) -> float:
    """The value below which a share ``q`` of ``ordered`` lies; 0 for none."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))] if ordered else 0.0
