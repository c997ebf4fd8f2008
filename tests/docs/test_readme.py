"""The README cannot lie: its files load, its code runs, its tables are the code's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
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


@pytest.mark.slow
@pytest.mark.parametrize("n", range(len(blocks("python"))))
def test_python_runs(shop: Path, n: int) -> None:
    """Each Python block runs as a program beside the folder that `init` wrote."""
    (shop / "program.py").write_text(blocks("python")[n], "utf-8")
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=shop, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert ("ACCEPTED" in done.stdout) is ("print(" in blocks("python")[n])


@pytest.mark.slow
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


def test_curl_lines_run(shop: Path) -> None:
    """The service starts as the README says; each curl line gets the answer printed below it."""
    begin, curls = (body for body in blocks("sh") if "serve" in body or "curl" in body)
    setup, serve = begin.partition("doorbuster serve")[::2]
    path = f"{DOORBUSTER.parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path}
    subprocess.run(["bash", "-euc", setup], cwd=shop, env=env, check=True)
    words = serve.partition("#")[0].split()
    with subprocess.Popen(
        [DOORBUSTER, "serve", *words, "--port", "0", "--json"],
        cwd=shop,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as served:
        try:
            assert served.stdout is not None
            url = json.loads(served.stdout.readline())["url"]
            pairs = re.findall(r"(curl [^#]*)\n# (.*)", curls)
            assert len(pairs) == len(re.findall(r"^curl", curls, re.MULTILINE))
            for asked, told in pairs:
                assert said(asked.replace("localhost:8000", url), told) == without_luck(told)
        finally:
            served.terminate()
    assert served.returncode == 0


def said(line: str, told: str) -> str:
    """What a curl line prints, once its order is written where the README says so."""
    give_up_s = time.monotonic() + 20
    while True:
        done = subprocess.run(["bash", "-euc", line], capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, (line, done.stderr)
        found = without_luck(done.stdout)
        if found == without_luck(told) or "CREATED" not in told or time.monotonic() > give_up_s:
            return found
        time.sleep(0.05)  # the child that serves writes orders in its own time


def without_luck(text: str) -> str:
    """An answer without what differs from run to run: order numbers and times."""
    return re.sub(r'"order_no":"[0-9a-f]{32}"|"server_time":"[^"]*Z"', "...", text)


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
