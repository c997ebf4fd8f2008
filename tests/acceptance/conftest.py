"""The command line as people run it: a process of its own, in an empty folder."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

COMMAND = "from doorbuster.cli import main; main()"


class Done(NamedTuple):
    """What a command left: its exit code, its output, and its one JSON object if it had one."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout; anything beside it fails the test."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        assert self.out.count("\n") == 1, self.out
        return found


FORK = """
import contextlib, io, json, os, sys
from doorbuster.cli import app
with contextlib.redirect_stdout(io.StringIO()):
    for words in ("plugins info orders", "plugins list --json", "init --help"):
        app.run(words.split())
import gc, rich.progress, sqlalchemy.dialects.sqlite, typer.main, doorbuster.engine
known = typer.main.get_command(app.app)
typer.main.get_command = lambda _: known
gc.freeze()
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    raise SystemExit
os.chdir(job["cwd"])
os.environ.clear()
os.environ.update(job["env"])
for number, name in enumerate(job["files"]):
    os.dup2(os.open(name, os.O_RDWR), number)
sys.argv = ["doorbuster", *job["words"]]
from doorbuster.cli import main
main()
"""
"""A process that has imported everything and read the words of every command, and forks one that
runs each command: a process of its own, as on a shell, but it starts in a tenth of the time."""


@contextmanager
def starter(**env: str) -> Iterator[subprocess.Popen[str]]:
    """A process that starts commands, with ``env`` added to its environment."""
    with subprocess.Popen(
        [sys.executable, "-X", "utf8", "-c", FORK],
        env=os.environ | env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        yield parent


@pytest.fixture(scope="session")
def forks() -> Iterator[subprocess.Popen[str]]:
    """The process that starts commands."""
    with starter() as parent:
        yield parent


class Cli:
    """Runs ``doorbuster`` in one folder."""

    def __init__(self, folder: Path, scratch: Path, forks: subprocess.Popen[str]) -> None:
        self.folder = folder
        self._scratch = scratch
        self._forks = forks
        self.told = scratch / "told"
        """What the command started last says on stderr."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DOORBUSTER_")}
        # A lease outlives its owner; a short one makes a drain after a kill short.
        self.env = kept | {"DOORBUSTER_WORKERS__LEASE_S": "0.5", "COLUMNS": "100"}

    def __call__(self, *words: str | Path, stdin: str = "") -> Done:
        """Run a command to its end."""
        files = [self._scratch / name for name in ("stdin", "stdout", "stderr")]
        for file, text in zip(files, (stdin, "", ""), strict=True):
            file.write_text(text)
        job = {
            "words": list(map(str, words)),
            "cwd": str(self.folder),
            "env": self.env,
            "files": list(map(str, files)),
        }
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        self._forks.stdin.write(json.dumps(job) + "\n")
        self._forks.stdin.flush()
        code = int(self._forks.stdout.readline())
        done = Done(code, files[1].read_text(), files[2].read_text())
        assert "Traceback" not in done.err, done.err
        return done

    def start(self, *words: str | Path, file_bytes_max: int | None = None) -> subprocess.Popen[str]:
        """Start a command and leave it running; no file it writes grows above the bound."""

        def bound() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max or 0, -1))

        with self.told.open("w") as told:  # the child has its own copy of the descriptor
            return subprocess.Popen(
                [sys.executable, "-c", COMMAND, *map(str, words)],
                cwd=self.folder,
                env=self.env,
                stdout=subprocess.DEVNULL,
                stderr=told,
                text=True,
                preexec_fn=bound if file_bytes_max else None,
            )


@pytest.fixture
def cli(tmp_path: Path, forks: subprocess.Popen[str]) -> Cli:
    """``cli("demo", "--json")`` runs a command in an empty folder."""
    folder, scratch = tmp_path / "here", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    return Cli(folder, scratch, forks)


@pytest.fixture
def folder(cli: Cli) -> Callable[..., Path]:
    """``folder(skus=..., per_buyer=...)`` writes a config folder with one sale, ``drop``."""

    def write(
        *, skus: str = "{ black = 5 }", per_buyer: str | None = "1", more: str = "", base: str = ""
    ) -> Path:
        config = cli.folder / "config"
        (config / "sales").mkdir(parents=True, exist_ok=True)
        (config / "settings.toml").write_text(base)
        limit = "" if per_buyer is None else f"per_buyer = {per_buyer}\n"
        (config / "sales" / "drop.toml").write_text(f"skus = {skus}\n{limit}{more}")
        return config

    return write
