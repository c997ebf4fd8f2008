"""Read the layers of a configuration into one tree.

From below: ``settings.toml``, ``sales/ID.toml`` (the table ``sales.ID``), ``secrets.toml`` and
``.secrets.toml``, the ``DOORBUSTER_*`` variables, and what the caller overrides (``--url``,
``--mode``). Each is optional; a folder that is named must exist.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Final

from doorbuster.errors import SettingError, SettingProblem
from doorbuster.model import ID_PATTERN
from doorbuster.settings.environment import is_token, table_at, variables
from doorbuster.settings.tree import Path, Tree, dotted, is_deep, merge, nodes

__all__ = ["FILE_BYTES_MAX", "Layers", "SourceFile", "read_layers"]

FILE_BYTES_MAX: Final = 1 << 20
"""Largest settings file in bytes: a wrong file named ``x.toml`` must not fill the memory."""

_SECRETS: Final = ("secrets.toml", ".secrets.toml")


@dataclass(frozen=True, slots=True, repr=False)  # no repr: it holds secrets
class SourceFile:
    """One file as read: its text, and whether it sets nothing at all."""

    text: str
    blank: bool


@dataclass(slots=True, repr=False)  # as above
class Layers:
    """The layers merged: the tree, the files behind it, and where each value came from."""

    tree: Tree = field(default_factory=dict)
    files: dict[str, SourceFile] = field(default_factory=dict)
    origins: dict[Path, str] = field(default_factory=dict)

    def put(self, table: Mapping[str, Any], origin: str) -> None:
        """Lay ``table`` over the tree and note ``origin`` for everything in it."""
        self.tree = merge(self.tree, table)
        self.origins.update((path, origin) for path, _ in nodes(table))

    def origin(self, path: Path) -> str | None:
        """Name the file or variable that set ``path``, or the nearest table around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return None


def read_layers(
    folder: FilePath | str | None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Layers:
    """Read and merge all layers.

    Args:
        folder: the config folder; ``None``: no files at all.
        environ: the environment; ``None``: this process's.
        overrides: nested tables above everything else; a ``None`` in them is not set.

    Raises:
        SettingError: a folder that is not there; files that cannot be read, are not UTF-8, not
            TOML, or too large (file and line); ``@tokens`` (X11); variables that name nothing or
            the same key twice. All of them together.
    """
    layers = Layers()
    problems: list[SettingProblem] = []
    if folder is not None:
        _read_folder(FilePath(folder), layers, problems)
    for name, path, value in variables(
        os.environ if environ is None else environ, layers.tree, problems
    ):
        layers.put(table_at(path, value), name)
    given = _given(overrides or {})
    _refuse_tokens(given, "the command line", problems)
    layers.put(given, "the command line")
    if problems:
        raise SettingError(problems)
    return layers


def _read_folder(folder: FilePath, layers: Layers, problems: list[SettingProblem]) -> None:
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        text = f"config folder {what}; `doorbuster init {folder}` writes one"
        problems.append(SettingProblem(str(folder), text))
        return
    for file, prefix in _documents(folder, problems):
        table = _read_file(file, layers, problems)
        if table is not None:
            document = table_at(prefix, table)
            _refuse_tokens(document, str(file), problems)
            layers.put(document, str(file))


def _documents(folder: FilePath, problems: list[SettingProblem]) -> Iterator[tuple[FilePath, Path]]:
    """List the files that are there, lowest layer first, each with the table it fills."""
    if _is_there(folder / "settings.toml"):
        yield folder / "settings.toml", ()
    for file in _sale_files(folder / "sales", problems):
        if ID_PATTERN.fullmatch(file.stem):
            yield file, ("sales", file.stem)
        else:
            text = "the file name is the sale id: 1-64 of A-Z a-z 0-9 _ -, then .toml"
            problems.append(SettingProblem(str(file), text))
    for name in _SECRETS:
        if _is_there(folder / name):
            yield folder / name, ()


def _sale_files(folder: FilePath, problems: list[SettingProblem]) -> list[FilePath]:
    try:
        files = sorted(folder.iterdir()) if _is_there(folder) else []
    except OSError as error:  # unreadable must not look like "no sales"
        text = f"cannot be read: {error.strerror or type(error).__name__}"
        problems.append(SettingProblem(str(folder), text))
        return []
    # Names that start with a dot are editors' and mounts' own working files.
    return [file for file in files if file.suffix == ".toml" and not file.name.startswith(".")]


def _is_there(file: FilePath) -> bool:
    return file.exists() or file.is_symlink()  # a dangling link is a fault, not an absence


def _read_file(file: FilePath, layers: Layers, problems: list[SettingProblem]) -> Tree | None:
    """Read one TOML file; what is wrong goes to ``problems`` as ``FILE:LINE``."""
    if file.exists() and not file.is_file():  # opening a pipe would wait for ever
        problems.append(SettingProblem(str(file), "is not a file"))
        return None
    try:
        with file.open("rb") as stream:
            raw = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        text = f"cannot be read: {error.strerror or type(error).__name__}"
        problems.append(SettingProblem(str(file), text))
        return None
    if len(raw) > FILE_BYTES_MAX:
        problems.append(SettingProblem(str(file), f"is larger than {FILE_BYTES_MAX} bytes"))
        return None
    try:
        content = raw.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        problems.append(SettingProblem(f"{file}:{line}", "is not UTF-8 text"))
        return None
    try:
        table = tomllib.loads(content)
        if is_deep(table):
            raise RecursionError
    except tomllib.TOMLDecodeError as error:
        problems.append(_toml_problem(file, content, str(error)))
        return None
    except (RecursionError, ValueError) as error:  # ValueError: more digits than int() reads
        what = "nested too deep" if isinstance(error, RecursionError) else "a number too long"
        problems.append(SettingProblem(str(file), f"is not usable TOML: {what}"))
        return None
    layers.files[str(file)] = SourceFile(content, not table)
    return table


def _toml_problem(file: FilePath, content: str, message: str) -> SettingProblem:
    """Move the line out of tomllib's message, to where editors and people look for it."""
    what, _, position = message.partition(" (at ")
    words = position.rstrip(")").replace(",", "").split()  # "line 3 column 5" or "end of document"
    line = words[1] if words[:1] == ["line"] else str(content.count("\n") + 1)
    return SettingProblem(f"{file}:{line}", f"is not valid TOML: {what}")


def _given(overrides: Mapping[str, Any]) -> Tree:
    """Drop every ``None``: an option of the command line that was not given."""
    return {
        key: _given(value) if isinstance(value, Mapping) else value
        for key, value in overrides.items()
        if value is not None
    }


def _refuse_tokens(table: Mapping[str, Any], origin: str, problems: list[SettingProblem]) -> None:
    """Refuse what looks like a dynaconf token: evaluated nowhere, it would only mislead (X11)."""
    for path, value in nodes(table):
        if is_token(value):
            token = value.partition(" ")[0]
            text = f"{token} is not evaluated; write the value itself (in {origin})"
            problems.append(SettingProblem(dotted(path), text))
