"""Faults at the database's seam: a COMMIT whose answer is lost, a statement that fails.

Both work on any database the ledger runs on: they go through the dialect and its driver's own
errors, so the ledger translates them as it would real ones (failures.md D4, D8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

from doorbuster.ledger.database import Database

__all__ = ["failing_statement", "lost_commits"]


@contextmanager
def lost_commits(
    database: Database, *, applied: bool, times: int = 1, then_gone: bool = False
) -> Iterator[None]:
    """Within the block the first ``times`` write transactions lose the answer of their COMMIT.

    ``applied``: it had really committed; else it had not. ``then_gone``: every write transaction
    after these fails at its begin.
    """
    left = times

    def around(connection: sa.Connection) -> Callable[[], None]:
        nonlocal left
        if not left:
            if then_gone:
                raise _gone()
            return lambda: None
        left -= 1
        dialect: Any = connection.dialect
        real = dialect.do_commit

        def cut(driver: Any) -> None:
            if applied:
                real(driver)
            raise dialect.dbapi.OperationalError("the connection was lost")

        dialect.do_commit = cut
        return lambda: setattr(dialect, "do_commit", real)

    with _transactions(database, around):
        yield


@contextmanager
def failing_statement(database: Database, number: int) -> Iterator[Callable[[], bool]]:
    """Within the block statement ``number`` (from 1) of every write transaction fails.

    Gives a call that answers whether any transaction came that far.
    """
    hit = False

    def around(connection: sa.Connection) -> Callable[[], None]:
        run = 0

        def fail(*_: Any) -> None:
            nonlocal run, hit
            run += 1
            if run == number:
                hit = True
                raise _gone()

        event.listen(connection, "before_cursor_execute", fail)
        return lambda: event.remove(connection, "before_cursor_execute", fail)

    with _transactions(database, around):
        yield lambda: hit


def _gone() -> exc.OperationalError:
    return exc.OperationalError("a statement", {}, Exception("the server is gone"))


@contextmanager
def _transactions(
    database: Database, around: Callable[[sa.Connection], Callable[[], None]]
) -> Iterator[None]:
    """Call ``around`` at the begin of each write transaction; its answer undoes it at the end."""
    real = database.transaction

    @contextmanager
    def transaction() -> Iterator[sa.Connection]:
        with ExitStack() as undo, real() as connection:
            undo.callback(around(connection))
            yield connection

    database.transaction = transaction  # type: ignore[method-assign]  # the seam of every write
    try:
        yield
    finally:
        database.transaction = real  # type: ignore[method-assign]  # as it was
