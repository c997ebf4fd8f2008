"""``ledger.url``: what it may say, and the file it names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import sqlalchemy as sa
from sqlalchemy import exc

from doorbuster.errors import ConfigError

__all__ = ["file_of", "read_url"]

_EXAMPLE: Final = "sqlite:///doorbuster.db"
_PLAIN: Final = re.compile(r"[\w ./\\~-]{0,80}")  # no ':', '@' or '=': not a URL with a password
# What a URL may say to SQLite. The rest is ours to set, or makes two processes lose rows (nolock).
_OPTIONS: Final = {
    "uri": ("true",),
    "mode": ("ro", "rw", "rwc", "memory"),
    "cache": ("private", "shared"),
}


def read_url(url: str) -> sa.URL:
    """Parse ``ledger.url``. What this ledger cannot obey is refused, not dropped in silence.

    A message shows no password, and of a query only what is known to be none (X9).

    Raises:
        ConfigError: the URL is malformed, its database is not supported, or it asks SQLite for
            what the ledger sets itself. The message names the key, the value and the remedy.
    """
    try:
        parsed = sa.make_url(url)
    except (exc.ArgumentError, ValueError):  # the latter: a port that is no number
        shown, path = ("", _EXAMPLE)
        if _PLAIN.fullmatch(url):
            shown, path = f" {url!r}", f"sqlite:///{url}" if url.strip() else _EXAMPLE
        # from None, and the text only if it is a word or a path: it may hold a password (X9)
        raise ConfigError(
            f"ledger.url{shown} is not a database URL; a file is written {path!r}"
        ) from None
    reason = _refusal(parsed)
    if reason is not None:
        raise ConfigError(f"ledger.url {_shown(url, parsed)!r}: {reason}")
    return parsed


def _shown(url: str, parsed: sa.URL) -> str:
    """A URL as its writer knows it, without what may be a secret (X9)."""
    known = {*_OPTIONS, "timeout"}
    if parsed.get_backend_name() == "sqlite" and "@" not in url and known >= set(parsed.query):
        return url
    return parsed.set(query={}).render_as_string(hide_password=True)


def _refusal(url: sa.URL) -> str | None:
    """What is wrong with a URL and what to write instead; ``None`` if it can be obeyed."""
    name = url.database or ""
    if url.get_backend_name() != "sqlite":
        return (
            f"{url.get_backend_name()!r} is not supported by this release; the ledger runs on "
            f"SQLite, for example {_EXAMPLE!r}"
        )
    if url.drivername not in ("sqlite", "sqlite+pysqlite"):
        return f"{url.drivername!r} is not supported; write 'sqlite:///{name}'"
    if url.host or url.port or url.username or url.password:
        return (
            "a file has no host and no user; write three slashes before a relative path, "
            f"{_EXAMPLE!r}, and four before an absolute one"
        )
    if "\0" in name:
        return f"a path has no NUL in it; write for example {_EXAMPLE!r}"
    for option, value in url.query.items():
        if option == "timeout":
            return "'timeout' is not the URL's to say; leave it out and set ledger.wait_ms"
        if option not in _OPTIONS:
            known = ", ".join(sorted(_OPTIONS))
            return f"{option!r} is not an option of the ledger; leave it out (known: {known})"
        if value not in _OPTIONS[option]:
            return f"{option}={value!r} is not known; write one of {', '.join(_OPTIONS[option])}"
    if len({bool(url.query), name.startswith("file:"), "uri" in url.query}) > 1:  # all or none
        return (
            "a path with options starts with 'file:' and says uri=true: write "
            "'sqlite:///file:doorbuster.db?mode=rw&uri=true', or a path alone"
        )
    if url.query.get("cache") == "shared" and file_of(url) is not None:
        return "cache=shared locks readers out of a file; leave it out"
    return None


def file_of(url: sa.URL) -> Path | None:
    """The file of an SQLite URL that :func:`read_url` has read, absolute; ``None`` in memory."""
    name = url.database or ""
    if "uri" in url.query:
        if url.query.get("mode") == "memory":
            return None
        name = unquote(re.sub(r"^file:(//(localhost)?(?=/))?", "", name))
    return None if name in ("", ":memory:") else Path(os.path.abspath(name))
