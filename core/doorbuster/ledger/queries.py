"""Named statements from the ``.sql`` files beside this module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

__all__ = ["load"]

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def load(dialect: str) -> Mapping[str, str]:
    """Read ``sql/DIALECT.sql``: statements by the name in their ``-- name:`` line."""
    text = files("doorbuster.ledger").joinpath("sql", f"{dialect}.sql").read_text("utf-8")
    names_and_bodies = _NAME.split(text)[1:]
    return {
        name: "\n".join(
            line for line in body.strip().splitlines() if not line.startswith("--")
        ).rstrip(";")
        for name, body in zip(names_and_bodies[::2], names_and_bodies[1::2], strict=True)
    }
