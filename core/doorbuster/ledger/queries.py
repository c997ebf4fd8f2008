"""Named statements from the ``.sql`` files beside this module, and how to run them in bulk.

The driver gives the interpreter lock back and takes it again for every step of a statement: once
per row of an executemany, once per row of a SELECT. Beside a second busy thread each of those
may wait for a whole switch interval (measured: 125k rows/s became 3k). So a hot statement takes
all its rows at once, and answers them as one JSON text.

They run on the driver's own cursor, in a transaction that SQLAlchemy began: 2 us each instead of
32 (measured). Where somebody listens to statements, a tracer or a test, SQLAlchemy runs them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain
from types import GenericAlias
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy import exc

__all__ = ["array", "insert_many", "load", "read_array", "run"]

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_VALUES = re.compile(r"\bVALUES (\([^)]*\))")
_ROWS_MAX: Final = 256  # rows of one statement; sizes are powers of two, so few texts are prepared


@cache
def load(name: str) -> Mapping[str, str]:
    """Read ``sql/NAME.sql``: statements by the name in their ``-- name:`` line."""
    text = files("doorbuster.ledger").joinpath("sql", f"{name}.sql").read_text("utf-8")
    names_and_bodies = _NAME.split(text)[1:]
    return {
        name: "\n".join(
            line for line in body.strip().splitlines() if not line.startswith("--")
        ).rstrip(";")
        for name, body in zip(names_and_bodies[::2], names_and_bodies[1::2], strict=True)
    }


@cache
def _repeated(statement: str, n: int) -> str:
    """``statement`` with its one row of ``VALUES`` written ``n`` times."""
    return _VALUES.sub(lambda row: "VALUES " + ",".join([row[1]] * n), statement, count=1)


def run(connection: sa.Connection, statement: str, values: Sequence[Any] = ()) -> Any:
    """Run one statement of a ``.sql`` file; answer the driver's cursor, to read from.

    Raises:
        DBAPIError: as SQLAlchemy would raise it, without the values (X9).
    """
    heard: Any = connection.dispatch
    if heard.before_cursor_execute or heard.after_cursor_execute:
        return connection.exec_driver_sql(statement, tuple(values))
    cursor = connection.connection.cursor()
    try:
        cursor.execute(statement, values)
    except Exception as error:
        driver: Any = connection.dialect.loaded_dbapi
        raise exc.DBAPIError.instance(
            statement,
            None,
            error,
            driver.Error,
            hide_parameters=True,
            dialect=connection.dialect,
        ) from error
    return cursor


def insert_many(
    connection: sa.Connection, statement: str, rows: Sequence[Sequence[Any]], *tail: Any
) -> int:
    """Run ``INSERT ... VALUES (row) ...`` for all rows; answer how many were written.

    ``tail`` are the values of the parameters after the row's.
    """
    written = start = 0
    while start < len(rows):
        n = min(_ROWS_MAX, 1 << (len(rows) - start).bit_length() - 1)
        values = (*chain.from_iterable(rows[start : start + n]), *tail)
        written += run(connection, _repeated(statement, n), values).rowcount
        start += n
    return written


def array(values: Sequence[Any]) -> str:
    """Write values as the JSON array that ``json_each(?)`` of a statement reads."""
    return msgspec.json.encode(values).decode()


def read_array(
    connection: sa.Connection, statement: str, values: tuple[Any, ...], row: Any
) -> list[Any]:
    """Run a statement that answers one JSON array of arrays; each becomes a ``row`` (a type)."""
    (text,) = run(connection, statement, values).fetchone()
    rows: list[Any] = _decoder(row).decode(text)
    return rows


@cache
def _decoder(row: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(GenericAlias(list, (row,)))
