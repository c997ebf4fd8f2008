"""The tree, the tables of pyproject.toml and the wheel say the same."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
GROUP = "doorbuster.plugins"
ENTRY_POINTS: dict[str, str] = PROJECT["project"]["entry-points"][GROUP]

MADE = {"__pycache__", "build", "dist"}
"""Folders that tools make, whose names do not begin with a dot."""


def walk(folder: Path) -> list[Path]:
    """List the files below ``folder``, without what tools make."""
    found: list[Path] = []
    for base, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if name not in MADE and (not name.startswith(".") or name == ".ci")
        )
        found += [Path(base, name) for name in sorted(files) if not name.endswith((".pyc", ".db"))]
    return found


def project_files() -> list[Path]:
    """List the project's files: what git has or would take, or a walk where there is no git."""
    git = shutil.which("git")
    if git:
        command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        names = listed.stdout.split("\0")
        # an unpacked sdist may lie in an ignored folder of some other repository
        if listed.returncode == 0 and "pyproject.toml" in names:
            return [ROOT / name for name in names if name and (ROOT / name).is_file()]
    return walk(ROOT)


def relative(paths: Iterable[Path]) -> list[str]:
    """Name ``paths`` from the root, for messages and comparisons."""
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


def test_packages_table_lists_every_import_package() -> None:
    """A plugin folder and the wheel's ``packages`` name the same import packages."""
    folders = [path.parent for path in ROOT.glob("plugins/*/doorbuster_*/__init__.py")]
    assert relative([*folders, ROOT / "core/doorbuster"]) == sorted(PACKAGES)


@pytest.mark.parametrize("tool", ["mypy_path", "extraPaths", "src", "source_pkgs", "root_packages"])
def test_every_tool_sees_every_package(tool: str) -> None:
    """Types, lint, coverage and contracts leave no package out."""
    tools = PROJECT["tool"]
    roots = sorted(Path(package).parent.as_posix() for package in PACKAGES)
    names = sorted(Path(package).name for package in PACKAGES)
    told, expected = {
        "mypy_path": (tools["mypy"]["mypy_path"], roots),
        "extraPaths": (tools["pyright"]["extraPaths"], roots),
        "src": (tools["ruff"]["src"], roots),
        "source_pkgs": (tools["coverage"]["run"]["source_pkgs"], names),
        "root_packages": (tools["importlinter"]["root_packages"], names),
    }[tool]
    assert sorted(told) == expected


def test_every_plugin_package_has_an_entry_point() -> None:
    """A plugin package without an entry point cannot be named by any configuration."""
    served = {target.partition(":")[0].partition(".")[0] for target in ENTRY_POINTS.values()}
    assert served == {Path(package).name for package in PACKAGES}


@pytest.mark.parametrize("name", sorted(ENTRY_POINTS))
def test_entry_point_is_an_importable_class(name: str) -> None:
    """Each word that a configuration may use stands for a class."""
    module, _, attribute = ENTRY_POINTS[name].partition(":")
    assert isinstance(getattr(importlib.import_module(module), attribute), type)


def test_installed_entry_points_are_those_of_the_table() -> None:
    """Entry points are read at installation: after a change of the table, ``make venv``."""
    installed = {
        point.name: point.value
        for point in importlib.metadata.distribution("doorbuster").entry_points
        if point.group == GROUP
    }
    assert installed == ENTRY_POINTS


@pytest.mark.parametrize("pattern", ["core", "plugins", "plugins/*", "config", "config/*"])
def test_no_python_beside_an_import_package(pattern: str) -> None:
    """Whatever stands beside a package is importable in an editable install: nothing does."""
    folders = [path for path in ROOT.glob(pattern) if path.is_dir()]
    assert folders
    assert relative(path for folder in folders for path in folder.glob("*.py")) == []


def test_a_plugin_folder_holds_its_package_and_a_readme() -> None:
    """A plugin's tests live in the top-level tests/, not beside its package."""
    strange = [
        path
        for path in ROOT.glob("plugins/*/*")
        if not re.fullmatch(r"doorbuster_[a-z_]+|README\.md|__pycache__", path.name)
    ]
    assert relative(strange) == []


def test_every_package_is_typed() -> None:
    """Each import package carries py.typed, or its users' type checkers see nothing of it."""
    assert relative(ROOT / p for p in PACKAGES if not (ROOT / p / "py.typed").is_file()) == []


def test_every_folder_of_modules_is_a_package() -> None:
    """A folder without __init__.py drops out of the import contracts without a word."""
    modules = [path for p in PACKAGES for path in walk(ROOT / p) if path.suffix == ".py"]
    folders = {path.parent for path in modules}
    assert relative(f for f in folders if not (f / "__init__.py").is_file()) == []


@pytest.fixture(scope="module")
def wheel(
    need: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[zipfile.ZipFile]:
    """The wheel, built once by the backend in this environment, without a network."""
    need("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        yield archive


@pytest.mark.slow
def test_wheel_holds_every_file_of_every_package(wheel: zipfile.ZipFile) -> None:
    """What runs from the checkout is in the wheel: modules, py.typed, .sql and .lua files."""
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to((ROOT / package).parent).as_posix()
        for package in PACKAGES
        for path in walk(ROOT / package)
    }
    assert packed == expected
    scripts = ROOT.glob("core/doorbuster/ledger/sql/*.sql")
    assert packed >= {f"doorbuster/ledger/sql/{path.name}" for path in scripts}
    assert packed >= {f"{Path(package).name}/py.typed" for package in PACKAGES}


@pytest.mark.slow
def test_wheel_carries_entry_points_and_license(wheel: zipfile.ZipFile) -> None:
    """An installed doorbuster finds its command and its plugins by the wheel's own table."""
    info = f"doorbuster-{PROJECT['project']['version']}.dist-info"
    table = ConfigParser(delimiters=("=",))
    table.optionxform = str  # type: ignore[assignment, method-assign]  # names keep their case
    table.read_string(wheel.read(f"{info}/entry_points.txt").decode())
    assert dict(table[GROUP]) == ENTRY_POINTS
    assert dict(table["console_scripts"]) == PROJECT["project"]["scripts"]
    assert f"{info}/licenses/LICENSE" in wheel.namelist()


def test_no_file_names_a_machine() -> None:
    """The project speaks of itself only: no path of the machine that somebody worked on."""
    folders = ("work", "root", "home", "Users")
    # joined here, so that this file does not find itself
    marks = ["/" + folder + "/" for folder in folders]
    pattern = re.compile(r"(?<![\w.*}])(?:" + "|".join(marks) + ")")
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in project_files()
        if (match := pattern.search(path.read_text(errors="replace")))
    ]
    assert found == []


def test_every_decision_is_in_its_index() -> None:
    """The index of docs/decisions names each page, and the numbers run without a gap."""
    folder = ROOT / "docs/decisions"
    pages = sorted(path.name for path in folder.glob("[0-9]*.md"))
    index = (folder / "README.md").read_text()
    indexed = re.findall(r"^\| \[\d{4}\]\(([^)]+)\)", index, re.MULTILINE)
    assert indexed == pages
    assert [page[:4] for page in pages] == [f"{n:04}" for n in range(1, len(pages) + 1)]


def test_every_decision_that_code_refers_to_exists() -> None:
    """A comment that says "docs/decisions/NNNN" sends nobody to a missing page."""
    pages = {path.name[:4] for path in (ROOT / "docs/decisions").glob("[0-9]*.md")}
    missing = [
        f"{path.relative_to(ROOT)}: {number}"
        for path in project_files()
        if path.suffix in {".py", ".sql", ".lua", ".toml"}
        for number in re.findall(r"decisions/(\d{4})", path.read_text())
        if number not in pages
    ]
    assert missing == []


def test_changelog_has_a_section_for_what_is_here() -> None:
    """The changelog is open for the next change, or speaks of this version."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    titles = re.findall(r"^## \[([^\]]+)\]", changelog, re.MULTILINE)
    assert {"Unreleased", PROJECT["project"]["version"]} & set(titles)


CODE = re.compile(r"^```.*?^```|^ {4}.*?$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)|^\[[^\]]+\]: +(\S+)", re.MULTILINE)


def test_every_relative_link_resolves() -> None:
    """A page never sends its reader to a file that is not there."""
    pages = [path for path in project_files() if path.suffix == ".md"]
    assert pages
    broken = []
    for page in pages:
        for inline, reference in LINK.findall(CODE.sub("", page.read_text())):
            link = (inline or reference).partition("#")[0]
            if link and not re.match(r"[a-z]+:", link) and not (page.parent / link).exists():
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []
