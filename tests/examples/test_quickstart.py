"""The shortest useful program is one."""

import subprocess
import sys
from pathlib import Path

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


def test_quickstart_sells_what_there_is(tmp_path: Path) -> None:
    """Three units, five buyers, one retry: three orders, and nothing is left behind."""
    done = subprocess.run(
        [sys.executable, QUICKSTART],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum("ACCEPTED" in line for line in lines[:5]) == 3
    assert sum("SOLD_OUT" in line for line in lines[:5]) == 2
    assert lines[5:] == ["ann again: ACCEPTED, the same order: True", "orders: 3, balanced: True"]
    assert list(tmp_path.iterdir()) == []
