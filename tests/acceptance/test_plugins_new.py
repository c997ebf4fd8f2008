"""``plugins new``: from nothing to a plugin that keeps every law of its stage, in one command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from doorbuster.cli import scaffold
from doorbuster.errors import ConfigError

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


class Kind(NamedTuple):
    """One thing that can be scaffolded: its name, its options, and laws it surely keeps."""

    name: str
    words: tuple[str, ...]
    laws: int


KINDS = (
    Kind("red-list", ("--stage", "filter"), 10),
    Kind("pace", ("--stage", "limit"), 15),
    Kind("nearby", ("--stage", "deduct"), 12),
    Kind("shelf-stock", ("--stage", "deduct", "--tier", "holder"), 60),
    Kind("carrier", ("--stage", "enqueue"), 12),
    Kind("shop-orders", ("--stage", "persist"), 14),
)
LONGEST = "a-name-of-just-enough-length"

BUILD = """
import json, os, sys
from hatchling.build import build_wheel
folders, out = json.loads(sys.argv[1])
for folder in folders:
    os.chdir(folder)
    build_wheel(out)
"""
INFO = """
import json, sys
from doorbuster.cli import app
for name in sys.argv[1:]:
    assert app.run(["plugins", "info", name, "--json"]) == 0
"""


# ------------------------------------------------------------------ one command
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=kind.name, marks=() if kind is KINDS[0] else pytest.mark.slow)
        for kind in KINDS
    ],
)
def test_from_nothing_to_green_in_one_command(cli, kind: Kind) -> None:
    """Written, and its conformance test is run at once, by the interpreter that runs doorbuster."""
    done = cli("plugins", "new", kind.name, *kind.words, "--test", "--json")
    assert done.code == 0, done.err
    told = done.json
    assert told["test"]["failed"] == 0
    assert told["test"]["passed"] >= kind.laws
    assert told["folder"] == f"doorbuster-{kind.name}"
    package = f"doorbuster_{kind.name.replace('-', '_')}"
    written = {Path(name).relative_to(told["folder"]).as_posix() for name in told["written"]}
    assert written >= {
        "pyproject.toml",
        "README.md",
        f"{package}/__init__.py",
        f"{package}/plugin.py",
        f"{package}/py.typed",
        "tests/test_conformance.py",
    }
    there = {
        path.relative_to(cli.folder / told["folder"]).as_posix()
        for path in (cli.folder / told["folder"]).rglob("*")
        if path.is_file() and not {"__pycache__", ".pytest_cache", ".hypothesis"} & set(path.parts)
    }
    assert there == written
    project = tomllib.loads((cli.folder / told["folder"] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["doorbuster.plugins"] == {kind.name: told["class"]}
    text = "".join(Path(cli.folder, name).read_text() for name in told["written"])
    assert "$" not in text.replace("'$", ""), "a word of a template was left unfilled"


@pytest.mark.slow
def test_what_a_person_reads_says_what_to_do_next(cli) -> None:
    """Each file, the verdict and the next steps; pytest's own words are on stderr."""
    cli.env["PYTEST_ADDOPTS"] = "-k 'empty or align'"
    done = cli("plugins", "new", "mine", "--stage", "filter", "--into", "deep/er", "--test")
    assert done.code == 0, done.err
    assert "wrote deep/er/doorbuster-mine/pyproject.toml\n" in done.out
    assert "conformance: green; 2 laws kept, 0 broken, 0 declined\n" in done.out
    assert "  pip install --editable deep/er/doorbuster-mine\n" in done.out
    assert "2 passed" in done.err


@pytest.mark.slow
def test_a_broken_law_is_exit_1_and_is_said(cli) -> None:
    """The files stay, for whoever wants to see why; with --json pytest's words are on stderr."""
    cli.env["PYTEST_ADDOPTS"] = "-k empty -p no:doorbuster"  # without it there is no context
    done = cli("plugins", "new", "mine", "--stage", "filter", "--test", "--json")
    assert done.code == 1
    assert (done.json["test"]["passed"], done.json["test"]["failed"]) == (0, 1)
    assert "fixture" in done.err
    assert (cli.folder / "doorbuster-mine" / "README.md").exists()


# ------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("Red_List", "--stage", "filter"), ("'Red_List'", "'red-list'", "a to z")),
        (("3ds", "--stage", "filter"), ("'3ds'", "a letter first")),
        (("a--b", "--stage", "filter"), ("'a--b'", "'a-b'")),
        (("x" * 29, "--stage", "filter"), ("at most 28",)),
        (("../up", "--stage", "filter"), ("'../up'", "'up'")),
        (("", "--stage", "filter"), ("''",)),
        (("doorbuster-x", "--stage", "filter"), ("distribution", "'x'")),
        (("rate", "--stage", "limit"), ("'rate'", "doorbuster_limiter:Rate", "another name")),
        (("limiter", "--stage", "limit"), ("doorbuster_limiter", "another name")),
        (("x", "--stage", "filter", "--tier", "holder"), ("--tier holder", "leave --tier out")),
        (("x", "--stage", "deduct", "--tier", "journal"), ("--tier journal", "--tier holder")),
        (("x", "--stage", "filtr"), ("filtr", "filter")),
        (("x",), ("--stage",)),
        (("x", "--stage", "filter", "--into", "file"), ("file is no folder", "--into DIR")),
        (("x", "--stage", "filter", "--into", "file/a/b"), ("file is no folder", "--into DIR")),
        (("x", "--stage", "filter", "--into", "n" * 300), ("doorbuster-x: ", "--into DIR")),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(cli, words, said) -> None:
    """Exit 2; the message names the value and the way out."""
    (cli.folder / "file").write_text("mine")
    done = cli("plugins", "new", *words, "--json")
    assert done.code == 2
    for part in said:
        assert part in done.json["error"]
    assert [path.name for path in cli.folder.iterdir()] == ["file"]


@pytest.mark.parametrize("there", ["folder", "empty", "file", "link"])
def test_nothing_is_overwritten(cli, there: str) -> None:
    """Whatever stands at the place stays as it is: exit 2, and another place is named."""
    place = cli.folder / "doorbuster-mine"
    if there == "file":
        place.write_text("mine")
    elif there == "link":
        place.symlink_to("nowhere")
    else:
        place.mkdir()
    if there == "folder":
        (place / "README.md").write_text("mine")
    before = sorted(path.name for path in cli.folder.rglob("*"))
    done = cli("plugins", "new", "mine", "--stage", "filter", "--json")
    assert done.code == 2
    assert "doorbuster-mine: exists; nothing was written" in done.json["error"]
    assert "--into DIR" in done.json["error"]
    assert sorted(path.name for path in cli.folder.rglob("*")) == before


def test_test_without_pytest_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing is known before anything is written, with what to install."""
    real = scaffold.find_spec
    found = {"pytest": None}
    monkeypatch.setattr(scaffold, "find_spec", lambda name: found.get(name, name) and real(name))
    with pytest.raises(ConfigError, match=r"needs pytest: pip install 'doorbuster\[testing\]'"):
        scaffold.new("mine", scaffold.Stage.FILTER, None, tmp_path, test=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("into", ["there", "not/there/yet"])
def test_a_folder_that_may_not_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, into: str
) -> None:
    """The path, what the system says, and the way out; simulated, since root may write anywhere."""
    (tmp_path / "there").mkdir()
    real = os.mkdir

    def refused(path: Any, *words: Any) -> None:
        if Path(path).name in ("doorbuster-mine", "not"):
            raise PermissionError(13, "Permission denied", str(path))
        real(path, *words)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", refused)
        with pytest.raises(ConfigError) as caught:
            scaffold.new("mine", scaffold.Stage.FILTER, None, tmp_path / into)
    place = tmp_path / into / "doorbuster-mine"
    assert str(caught.value) == (
        f"{place}: cannot be written: Permission denied; nothing was written. Name a folder that "
        "you may write in with --into DIR"
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


@pytest.mark.parametrize("target", ["nowhere", "link"])
def test_a_link_that_leads_nowhere_is_no_folder(tmp_path: Path, target: str) -> None:
    """Nor one that leads to itself; what it is called is said, and it stays."""
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(ConfigError, match=r"link is no folder; nothing was written.*--into DIR"):
        scaffold.new("mine", scaffold.Stage.FILTER, None, tmp_path / "link" / "deep")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_a_disk_that_is_full_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole or not at all."""

    def full(self: Path, *words: Any, **more: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(ConfigError, match=r"No space left on device; nothing .* --into DIR"):
            scaffold.new("mine", scaffold.Stage.FILTER, None, tmp_path)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ what was written
@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of every kind, and one with the longest name there may be."""
    folder = tmp_path_factory.mktemp("made")
    longest = [Kind(LONGEST, kind.words, 0) for kind in KINDS]
    for kinds, where in ((KINDS, folder), (longest, folder / "long")):
        for kind in kinds:
            place = where if kinds is KINDS else where / "-".join(kind.words).strip("-")
            tier = scaffold.TierWord(kind.words[3]) if kind.words[2:] else None
            scaffold.new(kind.name, scaffold.Stage(kind.words[1]), tier, place, as_json=True)
    return folder


@pytest.mark.slow
def test_what_is_written_is_clean(made: Path, need: Callable[[str], str]) -> None:
    """By the rules of doorbuster itself: neither ruff nor its formatter nor strict mypy complains.

    Also with the longest name, which moves no line over its end. The examples are taken along.
    """
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    tests = ["S101", *rules["per-file-ignores"]["tests/**"]]
    assert len(LONGEST) == scaffold._NAME_MAX
    examples = sorted((ROOT / "examples").glob("doorbuster-*"))
    projects = [*sorted(path.parent for path in made.rglob("pyproject.toml")), *examples]
    assert len(projects) == 2 * len(KINDS) + 2
    for project in projects:
        lint = ["--select", ",".join(rules["select"]), "--ignore", ",".join(rules["ignore"])]
        lint += ["--config", 'lint.pydocstyle.convention="google"']
        lint += ["--per-file-ignores", ",".join(f"tests/*:{code}" for code in tests)]
        for words in (["check", "--no-cache", *lint], ["format", "--check", "--no-cache"]):
            done = subprocess.run(
                [need("ruff"), *words, "."], cwd=project, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{project.name}: {done.stdout}{done.stderr}"
    together = made / "together"  # one run for all of them: test files need names of their own
    together.mkdir()
    for project in made.glob("doorbuster-*"):
        package = project.name.replace("-", "_")
        (together / package).symlink_to(project / package)
        (together / f"test_{package}.py").symlink_to(project / "tests" / "test_conformance.py")
    for example in examples:
        package = example.name.replace("-", "_")
        (together / package).symlink_to(example / package)
        for file in (example / "tests").glob("*.py"):
            (together / file.name.replace("conformance", package)).symlink_to(file)
    cache = ROOT / ".mypy_cache" / "scaffold"
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}"]
    done = subprocess.run([*command, "."], cwd=together, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def target(made: Path, need: Callable[[str], str]) -> Path:
    """A folder into which all of them are built and installed, without a network."""
    need("hatchling")
    folders = sorted(str(path) for path in made.glob("doorbuster-*"))
    wheels = made / "wheels"
    words = [sys.executable, "-c", BUILD, json.dumps([folders, str(wheels)])]
    built = subprocess.run(words, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    words = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(made / "target")]
    found = [str(path) for path in sorted(wheels.glob("*.whl"))]
    assert len(found) == len(KINDS)
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, *found], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return made / "target"


@pytest.fixture
def env(target: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DOORBUSTER_")}
    return kept | {"PYTHONPATH": str(target)}


@pytest.mark.slow
def test_what_is_installed_is_known(env: dict[str, str], tmp_path: Path) -> None:
    """``plugins info`` says each one's stage, options and tier, and finds no problem."""
    names = [kind.name for kind in KINDS]
    words = [sys.executable, "-c", INFO, *names]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for kind, line in zip(KINDS, done.stdout.splitlines(), strict=True):
        told = json.loads(line)
        stage, tier = kind.words[1], kind.words[3] if kind.words[2:] else "router"
        assert stage in told["stages"]
        assert told["tier"] == (tier if stage == "deduct" else None)
        assert told["distribution"] == f"doorbuster-{kind.name} 0.1.0"
        assert told["summary"]
        assert all(option["doc"] for option in told["options"])
        lacks = {item["hook"]: item["costs"] for item in told["not_offered"]}
        assert lacks.keys() == ({"places", "adopt"} if tier == "holder" else set())
        assert all(lacks.values())


@pytest.mark.slow
@pytest.mark.parametrize("deduct", ["nearby", "shelf-stock"])
def test_a_sale_runs_on_nothing_but_what_was_scaffolded(
    env: dict[str, str], tmp_path: Path, deduct: str
) -> None:
    """Each in its stage, by config: sold exactly, persisted, balanced."""
    (tmp_path / "config" / "sales").mkdir(parents=True)
    (tmp_path / "config" / "settings.toml").write_text(
        '[pipeline]\nfilter = ["red-list"]\nlimit = ["pace"]\nenqueue = "carrier"\n'
        f'persist = "shop-orders"\ndeduct = "{deduct}"\n[plugins.red-list]\nbuyers = ["b0"]\n'
    )
    (tmp_path / "config" / "sales" / "drop.toml").write_text("skus = { gold = 5 }\n")
    rows = [{"buyer": f"b{n}", "request_id": "r1", "sku": "gold"} for n in range(9)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = "from doorbuster.cli import main; main()"
    words = [sys.executable, "-c", command, "replay", "a.jsonl", "--json"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["outcomes"] == {"ACCEPTED": 5, "SOLD_OUT": 3, "BLOCKED": 1}
    assert report["reconcile"] == {"balanced": True, "drift": 0}
    assert (tmp_path / "shop-orders.db").exists()


@pytest.mark.slow
def test_the_lines_of_the_readme_run(tmp_path: Path) -> None:
    """Scaffold, install, look: as they stand, only that pip installs into a folder.

    And not editable, for which hatchling needs a package more than the tests have.
    """
    (block,) = [
        body for body in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if "plugins new" in body
    ]
    here = Path(sys.executable).parent
    folder = tmp_path / "doorbuster-blocked"
    env = os.environ | {
        "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
        "PIP_TARGET": str(tmp_path / "target"),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # this is how pip spells it
        "PYTHONPATH": f"{tmp_path / 'target'}{os.pathsep}{folder}",
    }
    words = ["bash", "-euc", block.replace("--editable ", "./")]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "conformance: green" in done.stdout
    assert "doorbuster-blocked 0.1.0 (doorbuster_blocked:BlockedFilter)" in done.stdout
