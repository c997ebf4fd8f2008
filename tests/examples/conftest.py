"""The examples as their users have them: built, installed into a folder, found by entry point."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.conftest import Cli, starter

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def installed(need: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which both distributions are installed, without a network, once per run."""
    need("hatchling")
    need("httpx")
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # one folder for all workers
    target = base / "installed-examples"
    with (base / "installed-examples.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            folders = [str(path.parent) for path in sorted(EXAMPLES.glob("*/pyproject.toml"))]
            assert len(folders) == 2
            words = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
            command = [sys.executable, "-m", "pip", "install", *words, "--target", str(target)]
            done = subprocess.run([*command, *folders], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
    return target


def found_in(installed: Path) -> dict[str, str]:
    """What the environment of a Python says that finds what is installed there."""
    return {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="session")
def forks(installed: Path) -> Iterator[subprocess.Popen[str]]:
    """The process that starts commands; its Python finds what is installed there."""
    with starter(**found_in(installed)) as parent:
        yield parent


@pytest.fixture
def run(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, forks: subprocess.Popen[str]
) -> Callable[..., dict[str, Any]]:
    """``run("plugins", "list")`` runs a command in an empty folder; answers its JSON."""
    cli = Cli(tmp_path, tmp_path_factory.mktemp("scratch"), forks)

    def run(*words: str, code: int = 0) -> dict[str, Any]:
        done = cli(*words, "--json")
        assert done.code == code, done
        return done.json

    return run


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], None]:
    """Write a config folder with the sale ``drop``: five of black."""

    def config(settings: str, sale: str = "skus = { black = 5 }\n") -> None:
        (tmp_path / "config" / "sales").mkdir(parents=True, exist_ok=True)
        (tmp_path / "config" / "settings.toml").write_text(settings)
        (tmp_path / "config" / "sales" / "drop.toml").write_text(sale)

    return config


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., str]:
    """Write a file of attempts, one of each buyer; answers its name."""

    def ask(*buyers: str) -> str:
        rows = [{"buyer": buyer, "request_id": "r1", "sku": "black"} for buyer in buyers]
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return "a.jsonl"

    return ask


@pytest.fixture
def conformance(tmp_path: Path, installed: Path) -> Callable[[str], str]:
    """Run an example's own tests against what is installed, far from its sources."""

    def conformance(name: str) -> str:
        (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
        (tmp_path / "tests").symlink_to(EXAMPLES / name / "tests")
        words = ["-q", "-p", "no:cacheprovider", "-rN", "tests"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DOORBUSTER_")}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=tmp_path,
            env=kept | found_in(installed),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr
        return done.stdout

    return conformance
