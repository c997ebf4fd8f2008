"""``plugins new``: write a distribution with one plugin that passes its conformance test.

Its files are templates in ``templates/plugin``: those beside its folders belong to every plugin,
those in a folder to one kind. ``$word`` in them is filled in by :class:`string.Template`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from enum import StrEnum
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from doorbuster.cli.options import Json
from doorbuster.cli.output import Output

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from rich.console import Console

    from doorbuster.errors import ConfigError

__all__ = ["Stage", "TierWord", "new", "render"]

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_NAME_MAX: Final = 28  # a name becomes part of a class, a module, and lines of at most 100


class Stage(StrEnum):
    """The stages a new plugin may serve."""

    FILTER = "filter"
    LIMIT = "limit"
    DEDUCT = "deduct"
    ENQUEUE = "enqueue"
    PERSIST = "persist"


class TierWord(StrEnum):
    """The tiers of a deduct plugin, simplest first."""

    ROUTER = "router"
    HOLDER = "holder"
    JOURNAL = "journal"


class _Kind(NamedTuple):
    suffix: str  # ends the class's name, so that it meets none that the plugin imports
    what: str


_KINDS: Final[Mapping[str, _Kind]] = {
    "filter": _Kind("Filter", "A filter"),
    "limit": _Kind("Limit", "A limit"),
    "router": _Kind("Stock", "A stock router"),
    "holder": _Kind("Stock", "A stock holder"),
    "enqueue": _Kind("Queue", "A queue"),
    "persist": _Kind("Orders", "An order store"),
}


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The word that config will use for it.")
    ],
    stage: Annotated[Stage, typer.Option("--stage", help="The stage it serves.")],
    tier: Annotated[
        TierWord | None,
        typer.Option(
            "--tier",
            help="For deduct: who decides. A router holds nothing, a holder keeps units, a "
            "journal accepts by itself. Default: router.",
            show_default=False,
        ),
    ] = None,
    into: Annotated[
        Path, typer.Option("--into", metavar="DIR", help="The folder to write it in.")
    ] = Path(),
    test: Annotated[
        bool, typer.Option("--test", help="Run its conformance test right away.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a plugin to start from: a distribution with one class, its options, its test.

    It works as written and keeps every law of its stage; then make it yours. Nothing that exists
    is overwritten. Exit 1 when --test finds a law broken.
    """
    from doorbuster.errors import ConfigError

    output = Output(as_json=as_json)
    kind = _kind(stage, tier)
    _check_name(name)
    if test and (missing := [word for word in ("pytest", "hypothesis") if not find_spec(word)]):
        raise ConfigError(
            f"--test needs {' and '.join(missing)}: pip install 'doorbuster[testing]'; "
            "nothing was written"
        )
    files = render(name, stage, kind)
    folder = into / f"doorbuster-{name}"
    _write(folder, files)
    steps = [f"pip install --editable {folder}", f"doorbuster plugins info {name}"]
    if not test:
        steps.insert(0, f"cd {folder} && {Path(sys.executable).name} -m pytest")
    result: dict[str, Any] = {
        "name": name,
        "stage": stage.value,
        "tier": kind if stage is Stage.DEDUCT else None,
        "folder": str(folder),
        "class": f"doorbuster_{name.replace('-', '_')}:{_class_name(name, kind)}",
        "written": [str(folder / file) for file in files],
        "test": _run_test(folder, output) if test else None,
        "next": steps,
    }
    output.result(result, lambda console: _show(console, result))
    if test and result["test"]["exit"]:
        raise typer.Exit(1)


def render(name: str, stage: Stage, kind: str) -> dict[Path, str]:
    """Fill in the templates of one kind; answer texts by path within the distribution.

    Args:
        name: the word that config uses.
        stage: the stage it serves.
        kind: the folder of its templates: the stage, or for deduct the tier.
    """
    from doorbuster import __version__

    root = resources.files("doorbuster.cli") / "templates" / "plugin"
    package = f"doorbuster_{name.replace('-', '_')}"
    words = {
        "name": name,
        "stage": stage.value,
        "what": _KINDS[kind].what,
        "distribution": f"doorbuster-{name}",
        "package": package,
        "cls": _class_name(name, kind),
        "version": __version__,
    }
    words["about"] = _fill(root / kind / "about.md.tmpl", words).rstrip()
    places = {
        "pyproject.toml": Path(),
        "README.md": Path(),
        "gitignore": Path(),
        "__init__.py": Path(package),
    }
    files = {
        (where / file).with_name(file.replace("gitignore", ".gitignore")): _fill(
            root / f"{file}.tmpl", words
        )
        for file, where in places.items()
    }
    files[Path(package, "py.typed")] = ""
    for template in sorted((root / kind).iterdir(), key=lambda found: found.name):
        file = template.name.removesuffix(".tmpl")
        if file.endswith(".py"):
            where = "tests" if file.startswith("test_") else package
            files[Path(where, file)] = _fill(template, words)
    return files


def _fill(template: Traversable, words: Mapping[str, str]) -> str:
    return Template(template.read_text(encoding="utf-8")).substitute(words)


def _class_name(name: str, kind: str) -> str:
    """``red-list`` as a filter is ``RedListFilter``; a suffix that is there is not repeated."""
    words = "".join(word.capitalize() for word in name.split("-"))
    suffix = _KINDS[kind].suffix
    return words if words.endswith(suffix) and words != suffix else words + suffix


# ------------------------------------------------------------------ checks
def _kind(stage: Stage, tier: TierWord | None) -> str:
    from doorbuster.errors import ConfigError

    if stage is not Stage.DEDUCT:
        if tier is not None:
            raise ConfigError(
                f"--tier {tier.value} is for --stage deduct, and this is --stage {stage.value}; "
                "leave --tier out"
            )
        return stage.value
    if tier is TierWord.JOURNAL:
        raise ConfigError(
            "--tier journal: no backend of this tier comes with doorbuster yet, so there is none "
            "to start from whose laws are proven; begin with --tier holder, to which a journal "
            "adds freeze, seed, read and trim"
        )
    return (tier or TierWord.ROUTER).value


def _check_name(name: str) -> None:
    """Refuse a name that config, Python or an installed plugin cannot have.

    Raises:
        ConfigError: what is wrong with it, and what would be right.
    """
    from doorbuster.errors import ConfigError
    from doorbuster.loading import find_entry_points

    if not _NAME.fullmatch(name) or len(name) > _NAME_MAX:
        better = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_NAME_MAX].strip("-")
        hint = f" (perhaps {better!r}?)" if _NAME.fullmatch(better) else ""
        raise ConfigError(
            f"NAME: {name!r} is no name for a plugin{hint}; expected a to z and 0 to 9 in words "
            f"joined by '-', a letter first, at most {_NAME_MAX} characters"
        )
    if name.startswith("doorbuster-"):
        raise ConfigError(
            f"NAME: {name!r} is the name of a distribution; its plugin would be "
            f"{name.removeprefix('doorbuster-')!r}"
        )
    taken = find_entry_points().get(name)
    if taken is not None:
        owner = taken.dist.name if taken.dist else "something else"
        raise ConfigError(
            f"NAME: a plugin {name!r} is installed already, from {owner} ({taken.value}); "
            "choose another name"
        )
    package = f"doorbuster_{name.replace('-', '_')}"
    if find_spec(package) is not None:
        raise ConfigError(
            f"NAME: a package {package!r} is installed already, and {name!r} would have the same; "
            "choose another name"
        )


# ------------------------------------------------------------------ files and the test
def _write(folder: Path, files: Mapping[Path, str]) -> None:
    """Write a new folder, whole or not at all.

    Raises:
        ConfigError: it is there already, or cannot be written.
    """
    from doorbuster.errors import ConfigError

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()  # of two who try, one makes it
    except OSError as error:
        if os.path.lexists(folder):
            raise ConfigError(
                f"{folder}: exists; nothing was written. Choose another NAME, or another folder "
                "with --into DIR"
            ) from error
        raise _cannot_be_written(folder, error) from error
    try:
        for name, text in files.items():
            file = folder / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)  # it was made above, so all in it is ours
        raise _cannot_be_written(folder, error) from error


def _cannot_be_written(folder: Path, error: OSError) -> ConfigError:
    """Say what is in the way: something that is no folder, else what the system says."""
    from doorbuster.errors import ConfigError

    way = (folder.parent, *folder.parent.parents)
    blocked = [path for path in way if os.path.lexists(path) and not os.path.isdir(path)]
    why = f"{blocked[-1]} is no folder" if blocked else error.strerror
    return ConfigError(
        f"{folder}: cannot be written: {why}; nothing was written. Name a folder that you may "
        "write in with --into DIR"
    )


def _run_test(folder: Path, output: Output) -> dict[str, int]:
    """Run the new test with this interpreter; its own words go to stderr.

    Answers pytest's exit code, and how many laws passed, failed and were declined.
    """
    import xml.etree.ElementTree as ET

    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}"]
        done = subprocess.run(  # noqa: S603 - every word of it is ours
            command,
            cwd=folder,
            stdout=subprocess.PIPE if output.as_json else sys.stderr,
            stderr=subprocess.STDOUT if output.as_json else None,
            text=True,
            check=False,
        )
        suite = None
        if report.exists():  # not where pytest could not even begin
            suite = ET.parse(report).getroot().find("testsuite")  # noqa: S314 - pytest wrote it
    if output.as_json and done.returncode:
        output.note(done.stdout)
    told = {} if suite is None else suite.attrib
    total, skipped = int(told.get("tests", 0)), int(told.get("skipped", 0))
    failed = int(told.get("failures", 0)) + int(told.get("errors", 0))
    return {
        "exit": done.returncode,
        "passed": total - skipped - failed,
        "failed": failed,
        "declined": skipped,
    }


def _show(console: Console, result: Mapping[str, Any]) -> None:
    for file in result["written"]:
        console.print(f"wrote {file}", markup=False)
    tested = result["test"]
    if tested is not None:
        good = not tested["exit"]
        verdict = "green" if good else "RED"
        console.print(
            f"\nconformance: {verdict}; {tested['passed']} laws kept, {tested['failed']} broken, "
            f"{tested['declined']} declined",
            style="green" if good else "bold red",
        )
    console.print("\nNext:", style="bold")
    for step in result["next"]:
        console.print(f"  {step}", markup=False)
