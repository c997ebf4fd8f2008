"""Attempts from a file: JSONL or CSV, plain or gzipped, read row by row, never as a whole.

A row that can be an attempt is handed on with its values as they are: the engine judges them.
A row that cannot (no JSON object, another number of columns, no buyer or request_id) is bad: it
is noted with its line number, and reading goes on.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from doorbuster.cli.callers import Ask
from doorbuster.errors import ConfigError
from doorbuster.model import Line

__all__ = ["BAD_LINES_SHOWN", "AttemptsFile"]

BAD_LINES_SHOWN: Final = 20
"""Bad rows that a report names; all of them are counted."""

_LINE_BYTES_MAX: Final = 1 << 20  # a file without line ends must not fill the memory
_CUT: Final = b'{"\x00 a line longer than the bound'  # neither JSON nor the right columns
_DUE_MAX_S: Final = 7 * 24 * 3600.0  # a pace of weeks is a unit mistaken
_COLUMNS: Final = ("buyer", "request_id", "sku", "quantity", "lines", "at_ms")
_WHOLE_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")
_MISSING: Final = object()


class AttemptsFile:
    """One file of attempts. Iterate it once; close it after."""

    def __init__(self, path: Path, *, speed: float | None = None) -> None:
        """Open ``path``; ``-`` is stdin. ``speed`` 2.0 replays twice as fast as ``at_ms`` says.

        Without ``speed`` the column ``at_ms`` means nothing.

        Raises:
            ConfigError: the file cannot be opened.
        """
        self.bad_rows = 0
        self.bad_lines: list[dict[str, Any]] = []
        """The first bad rows: their ``line`` number and the ``problem``."""
        self._name = str(path)
        self._speed = speed
        self._first_ms: float | None = None
        try:
            self._raw = path.open("rb") if self._name != "-" else _stdin()
            self._stream = self._opened(self._raw)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error

    @staticmethod
    def _opened(raw: io.BufferedReader) -> io.BufferedReader:
        """See through gzip, which is known by its first bytes, not by the file's name."""
        if raw.peek(2)[:2] != b"\x1f\x8b":
            return raw
        return io.BufferedReader(cast("io.RawIOBase", gzip.GzipFile(fileobj=raw)))

    @property
    def size(self) -> int | None:
        """Bytes of the file as stored; ``None`` when it has no end yet."""
        if not self._raw.seekable():
            return None
        here = self._raw.tell()
        end = self._raw.seek(0, io.SEEK_END)
        self._raw.seek(here)
        return end

    def read_bytes(self) -> int:
        """Bytes read so far, of :attr:`size`."""
        return 0 if self._raw.closed or not self._raw.seekable() else self._raw.tell()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        self._raw.close()

    def __iter__(self) -> Iterator[Ask]:
        """Yield the attempts; note the bad rows.

        Raises:
            ConfigError: the file has no usable head, or breaks off (a damaged gzip).
        """
        try:
            yield from self._csv() if self._is_csv() else self._jsonl()
        except (OSError, EOFError) as error:
            raise ConfigError(f"{self._name}: cannot be read on: {error}") from error

    def _is_csv(self) -> bool:
        """By the file's name; else a first row that is no JSON object is a CSV head."""
        suffixes = [suffix for suffix in Path(self._name).suffixes if suffix != ".gz"]
        if suffixes and suffixes[-1] in (".csv", ".jsonl", ".ndjson"):
            return suffixes[-1] == ".csv"
        return not self._stream.peek(512).lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"["))

    # ------------------------------------------------------------------ rows
    def _jsonl(self) -> Iterator[Ask]:
        for number, line in enumerate(self._lines(), start=1):
            if not line.strip():
                continue
            try:
                row = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                reason = str(error).removeprefix("JSON is malformed: ")
                self._bad(number, f"not JSON: {reason}")
                continue
            if not isinstance(row, dict):
                self._bad(number, "not a JSON object")
                continue
            yield from self._ask(number, row)

    def _csv(self) -> Iterator[Ask]:
        """One line is one row, so that a stray quote spoils its own row and no other."""
        head: list[str] | None = None
        for number, line in enumerate(self._lines(), start=1):
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if not text:
                continue
            try:
                cells = next(csv.reader([text], strict=True))
            except csv.Error as error:
                self._bad(number, f"not CSV: {error}")
                continue
            if head is None:
                head = self._head(cells)
            elif len(cells) != len(head):
                self._bad(number, f"{len(cells)} columns; the head has {len(head)}")
            else:
                yield from self._ask(number, _from_cells(dict(zip(head, cells, strict=True))))

    def _head(self, cells: list[str]) -> list[str]:
        head = [name.strip() for name in cells]
        missing = [name for name in ("buyer", "request_id") if name not in head]
        if missing:
            raise ConfigError(
                f"{self._name}: the first row must name the columns ({', '.join(_COLUMNS)}); "
                f"it lacks {' and '.join(missing)}"
            )
        return head

    def _lines(self) -> Iterator[bytes]:
        """Lines without a byte order mark, none longer than the bound."""
        for number in itertools.count():
            line = self._stream.readline(_LINE_BYTES_MAX)
            if not line:
                return
            if len(line) == _LINE_BYTES_MAX and not line.endswith(b"\n"):
                while (cut := self._stream.readline(_LINE_BYTES_MAX)) and not cut.endswith(b"\n"):
                    pass
                line = _CUT  # its head might be a good row by itself: it is none
            yield line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line

    def _ask(self, number: int, row: Mapping[str, Any]) -> Iterable[Ask]:
        for name in ("buyer", "request_id"):
            if row.get(name) is None:
                self._bad(number, f"no {name}")
                return ()
        lines = row.get("lines", _MISSING)
        if lines is _MISSING or (lines is None and "sku" in row):
            wanted: Any = [Line(row.get("sku"), row.get("quantity", 1))]  # type: ignore[arg-type]  # raw values: the engine answers INVALID
        else:
            wanted = _lines_of(lines)
        return (Ask(row["buyer"], row["request_id"], wanted, self._due_s(row.get("at_ms"))),)

    def _due_s(self, at_ms: Any) -> float | None:
        if self._speed is None or isinstance(at_ms, bool) or not isinstance(at_ms, (int, float)):
            return None
        if self._first_ms is None:
            self._first_ms = at_ms
        try:
            due_s = (at_ms - self._first_ms) / 1000 / self._speed
        except OverflowError:
            return None  # no moment: it paces nothing
        return min(max(0.0, due_s), _DUE_MAX_S)

    def _bad(self, line: int, problem: str) -> None:
        self.bad_rows += 1
        if len(self.bad_lines) < BAD_LINES_SHOWN:
            self.bad_lines.append({"line": line, "problem": problem})


def _stdin() -> io.BufferedReader:
    """Stdin as bytes; closing it leaves the descriptor to its owner."""
    return os.fdopen(0, "rb", closefd=False)


def _from_cells(cells: Mapping[str, str]) -> dict[str, Any]:
    """Read cells: whole numbers where numbers belong, JSON in ``lines``, else the text itself.

    An empty cell of ``buyer``, ``request_id``, ``lines`` or ``at_ms`` is no value.
    """
    row: dict[str, Any] = {
        name: text
        for name, text in cells.items()
        if text or name not in ("buyer", "request_id", "lines", "at_ms")
    }
    for name in ("quantity", "at_ms"):
        if name in row and _WHOLE_NUMBER.fullmatch(row[name]):
            row[name] = int(row[name])
    if "lines" in row:
        # text that is not JSON stays: it is no list of lines, so the engine answers INVALID
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            row["lines"] = msgspec.json.decode(row["lines"])
    return row


def _lines_of(value: Any) -> Any:
    """Make lines of a list of tables; what is no such thing stays, for the engine to refuse."""
    if not isinstance(value, list):
        return value
    return [
        Line(item["sku"], item.get("quantity", 1), item.get("group"))
        if isinstance(item, dict) and "sku" in item
        else item
        for item in value
    ]
