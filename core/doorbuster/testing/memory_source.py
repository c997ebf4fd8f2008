"""Sources of settings for tests: a folder of files, and a tree in memory.

Each is what :class:`~doorbuster.testing.SourceSuite` drives: ``write`` puts a document there,
``remove`` takes it away, ``store`` is the :class:`~doorbuster.settings.SettingsStore` behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doorbuster.settings import SettingsStore
from doorbuster.testing.clock import ManualClock

__all__ = ["FolderSource", "MemorySource"]


class FolderSource:
    """``settings.toml`` of a config folder, replaced whole by renaming, as an editor does."""

    def __init__(self, folder: Path) -> None:
        """Watch ``folder``; nothing is written yet."""
        self._file = folder / "settings.toml"
        self.store = SettingsStore(folder, environ={}, clock=ManualClock())

    def write(self, document: str) -> None:
        """Replace the document by this text."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(document, encoding="utf-8")
        draft.replace(self._file)

    def remove(self) -> None:
        """Remove the document."""
        self._file.unlink()


class MemorySource:
    """Tables that a program lays over every other layer, as the command line's options are."""

    def __init__(self) -> None:
        """Start with no tables."""
        self._tree: dict[str, Any] = {}
        self.store = SettingsStore(None, overrides=self._tree, environ={}, clock=ManualClock())

    def write(self, document: Mapping[str, Any]) -> None:
        """Replace the tables by these."""
        self._tree.clear()
        self._tree.update(document)
