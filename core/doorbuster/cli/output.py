"""What a command says: one JSON object, or tables for a person; errors in one clear message.

stdout holds the result and nothing else. Notes, progress and errors go to stderr.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

__all__ = ["Output", "grid", "print_error", "print_json", "table"]

_PIPE_WIDTH: Final = 160


class Output:
    """One command's voice."""

    def __init__(self, *, as_json: bool) -> None:
        """Speak JSON or to a person."""
        self.as_json = as_json

    def result(self, data: Mapping[str, Any], human: Callable[[Console], None]) -> None:
        """Print the result: ``data`` as one JSON object, or what ``human`` prints."""
        if self.as_json:
            print_json(data)
            return
        from rich.console import Console

        if sys.stdout.isatty():
            human(Console(highlight=False))
            return
        # a pipe has no width: rows stay whole for the program that reads them, unless it says
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdecimal() and int(columns) else _PIPE_WIDTH
        text = io.StringIO()
        human(Console(file=text, highlight=False, width=width))
        for line in text.getvalue().splitlines():
            print(line.rstrip())  # noqa: T201 - this is where commands speak
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Say something beside the result, on stderr."""
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is where commands speak

    def progress(self) -> Progress:
        """A progress bar on stderr; silent with ``--json`` or when nobody watches."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=self.as_json or not sys.stderr.isatty(),
        )


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout. Values that JSON lacks are printed as text."""
    print(json.dumps(data, default=str, ensure_ascii=False), flush=True)  # noqa: T201 - as above


def print_error(message: str, *, as_json: bool) -> None:
    """Print an error on stderr; with ``--json`` also as the one object on stdout."""
    if as_json:
        print_json({"error": message})
    from rich.console import Console
    from rich.text import Text

    first, _, rest = message.partition("\n")
    text = Text.assemble(("doorbuster: ", "bold red"), first)
    if rest:  # several problems: each on a line of its own
        text = Text.assemble(("doorbuster: ", "bold red"), f"{len(rest.splitlines()) + 1} problems")
        for line in message.splitlines():
            text.append(f"\n  - {line}")
    Console(stderr=True, highlight=False, soft_wrap=True).print(text)


def table(*columns: str, title: str | None = None) -> Table:
    """Make a table; ``>`` before a column's head aligns it right, ``=`` keeps it in one line."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    for column in columns:
        made.add_column(
            column.lstrip(">="),
            justify="right" if column.startswith(">") else "left",
            no_wrap=column.startswith("="),
            overflow="fold",  # a value that is too long goes on below: nothing is cut off
        )
    return made


def grid(rows: Mapping[str, Any]) -> Table:
    """Make a table of names and values."""
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        made.add_row(Text(name, style="dim"), value if isinstance(value, Text) else str(value))
    return made
