"""The README cannot lie: its files load, its code runs, its tables are the code's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from doorbuster.outcomes import HTTP_STATUS, Code
from doorbuster.settings import SettingsStore

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
DOORBUSTER = Path(sys.executable).with_name("doorbuster")


def blocks(kind: str) -> list[str]:
    return [body for found, body in BLOCKS if found == kind]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder in which `doorbuster init` ran."""
    subprocess.run([DOORBUSTER, "init"], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


def test_the_sale_file_is_complete(tmp_path: Path) -> None:
    """The sale in the README loads as it stands, beside the settings shown."""
    sale, settings = blocks("toml")
    (tmp_path / "sales").mkdir()
    (tmp_path / "sales" / "phone-x.toml").write_text(sale, "utf-8")
    (tmp_path / "settings.toml").write_text(settings, "utf-8")
    loaded = SettingsStore(tmp_path, environ={}).load().settings
    assert loaded.sales["phone-x"].skus["black"].units == 10000
    assert "segments" in loaded.modes


@pytest.mark.parametrize("n", range(len(blocks("python"))))
def test_python_runs(shop: Path, n: int) -> None:
    """Each Python block runs as a program beside the folder that `init` wrote."""
    (shop / "program.py").write_text(blocks("python")[n], "utf-8")
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=shop, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert ("ACCEPTED" in done.stdout) is ("print(" in blocks("python")[n])


def test_shell_lines_run(tmp_path: Path) -> None:
    """The shell block runs as it stands, line after line, but for entering the environment."""
    script = "\n".join(line for line in blocks("sh")[1].splitlines() if "activate" not in line)
    path = f"{DOORBUSTER.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "ann" in done.stdout


def test_the_outcome_table_is_the_enum() -> None:
    """Codes, names and HTTP statuses in the README are those of the code."""
    rows = re.findall(r"^\| (-?\d) \| ([A-Z_]+) \| .* \| (\d{3})", README, re.MULTILINE)
    assert {(int(n), name): int(http) for n, name, http in rows} == {
        (int(code), code.name): HTTP_STATUS[code] for code in Code
    }


def test_the_plugin_table_is_what_is_installed() -> None:
    """Every plugin that the README lists is an entry point, and none is left out."""
    table = README.partition("| stage | plugins")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z-]+)`", table))
    installed = {
        point.name
        for point in entry_points(group="doorbuster.plugins")
        if point.dist is not None
        and point.dist.name == "doorbuster"
        and not point.value.startswith("doorbuster.testing")
    }
    assert named == installed
