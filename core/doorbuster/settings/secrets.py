"""What must not be shown: in messages, in ``repr``, in ``config show`` (X9).

A value is secret by its key (``password``, ``token``, ``*_key`` ...), and so is the password
inside a URL, wherever that URL stands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["HIDDEN", "is_secret", "mask"]

HIDDEN: Final = "***"
"""What is shown in place of a secret."""

_WORDS: Final = frozenset(
    {
        *("auth", "credential", "credentials", "key", "keys", "pass", "passwd", "password"),
        *("private", "pwd", "salt", "secret", "secrets", "token"),
    }
)
_SECRET_KEYS: Final = frozenset({"current"})  # [keys] current
_SPLIT: Final = re.compile(r"[^a-z0-9]+")
# Greedy to the last "@": a password with a raw "@" in it must not leak its tail.
_URL_PASSWORD: Final = re.compile(r"(://[^:/?#\s]*:)\S*@")
_URL_QUERY: Final = re.compile(
    r"([?&;][^=&\s]*(?:pass|passwd|password|secret|token|key)=)[^&\s]*", re.IGNORECASE
)


def is_secret(key: str) -> bool:
    """Answer whether the value under ``key`` is never shown: its last word names a secret."""
    lowered = key.lower()
    return lowered in _SECRET_KEYS or _SPLIT.split(lowered)[-1] in _WORDS


def mask(key: str, value: Any) -> Any:
    """Copy ``value`` with every secret in it replaced by ``***``.

    Args:
        key: the key that ``value`` stands under; a secret key hides any text or number.
        value: a scalar, or lists and mappings of them; other objects are left as they are.
    """
    if isinstance(value, Mapping):
        return {name: mask(str(name), item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(mask(key, item) for item in value)
    if isinstance(value, (str, int, float)) and not isinstance(value, bool) and is_secret(key):
        return HIDDEN
    if isinstance(value, str):
        return _URL_QUERY.sub(rf"\1{HIDDEN}", _URL_PASSWORD.sub(rf"\1{HIDDEN}@", value))
    return value
