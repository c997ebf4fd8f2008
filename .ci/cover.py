"""Run the tests under branch coverage and hold the floor where a missed branch costs units.

Threads are measured as they are; child processes of a test too, through coverage's subprocess
patch. A child that is killed outright takes its own numbers with it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOOR_PERCENT = 95.0
GUARDED = ("core/doorbuster/pipeline", "core/doorbuster/ledger", "core/doorbuster/outcomes")


def measure() -> int:
    """Run every test except the soak forms; answer pytest's exit code."""
    cov = coverage.Coverage(data_suffix=True)
    cov.set_option("run:parallel", True)
    cov.set_option("run:patch", ["subprocess"])
    cov.erase()
    cov.start()
    code = int(pytest.main(["-q", "-m", "not soak"]))
    cov.stop()
    cov.save()
    return code


def files() -> dict[str, dict[str, int]]:
    """Combine what every process measured, print the table; answer the counts of each file."""
    cov = coverage.Coverage()
    cov.combine()
    cov.save()
    cov.report(skip_covered=True, show_missing=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "coverage.json"
        cov.json_report(outfile=str(out))
        measured = json.loads(out.read_text())["files"]
    return {name: entry["summary"] for name, entry in measured.items()}


def shortfall(prefix: str, measured: dict[str, dict[str, int]]) -> str | None:
    """Say what is below the floor in the module or package ``prefix``, or ``None``."""
    counts = [
        summary
        for name, summary in measured.items()
        if name == f"{prefix}.py" or name.startswith(f"{prefix}/")
    ]
    if not counts:
        return f"{prefix}: no such file was measured"
    bad = []
    for what, hit, of in (
        ("lines", "covered_lines", "num_statements"),
        ("branches", "covered_branches", "num_branches"),
    ):
        total = sum(count[of] for count in counts)
        covered = sum(count[hit] for count in counts)
        percent = 100.0 * covered / total if total else 100.0
        if percent < FLOOR_PERCENT:
            bad.append(f"{percent:.1f} % of {total} {what}")
    return f"{prefix}: {' and '.join(bad)} covered, below {FLOOR_PERCENT} %" if bad else None


def main() -> int:
    """Run, report, judge; exit code 0 good, 1 below the floor, else pytest's own."""
    os.chdir(ROOT)
    code = measure()
    measured = files()
    problems = [text for text in (shortfall(prefix, measured) for prefix in GUARDED) if text]
    for text in problems:
        sys.stderr.write(f"{text}\n")
    return code or bool(problems)


if __name__ == "__main__":
    sys.exit(main())
