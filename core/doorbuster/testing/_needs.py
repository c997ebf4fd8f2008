"""What a test needs from its machine: a program, or a variable that points at a server."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["need", "required"]


def need(program: str, env: Mapping[str, str] | None = None) -> str:
    """The path of ``program``, or its name if it is an importable module; else skip the test.

    It is looked for on ``PATH`` and beside this Python. With ``CI=true`` a missing one fails the
    test: locally a missing server is a fact of the machine, a build server promises them all.

    Args:
        program: a program or module name.
        env: where ``PATH`` and ``CI`` are read; default: this process's variables.
    """
    import pytest  # only tests call this, and only they have it

    env = os.environ if env is None else env
    beside = Path(sys.executable).with_name(program)
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None and beside.exists():
        return str(beside)
    if found is None and program.isidentifier() and importlib.util.find_spec(program):
        return program
    if found is None:
        reason = f"{program} is neither a program on PATH nor a module of this Python"
        if env.get("CI") == "true":
            pytest.fail(f"{reason}, and CI=true promises it", pytrace=False)
        pytest.skip(reason)
    return found


def required(variable: str, env: Mapping[str, str] | None = None) -> str:
    """The value of ``variable``, which points at a running server; absent: skip the test.

    Present means *must run*: the caller lets every later fault fail, and a blank value fails here.

    Args:
        variable: for example ``DOORBUSTER_TEST_REDIS_URL``.
        env: where it is read; default: this process's variables.
    """
    import pytest  # only tests call this, and only they have it

    value = (os.environ if env is None else env).get(variable)
    if value is None:
        pytest.skip(f"{variable} is not set: it points at a running server")
    if not value.strip():
        pytest.fail(f"{variable} is set but blank; unset it to skip", pytrace=False)
    return value
