"""What every suite stands on: laws that nobody overrides in silence, and laws that are declined.

A suite is a plain class. Its laws are methods named ``test_`` whose docstring is the sentence;
their names are public API. An author derives from it, names the plugin by a fixture, and adds
nothing else. What a plugin does not offer is *declined*: the law is skipped, the reason names
what is missing and what that costs, and the run prints it at its end.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, Protocol

import msgspec
import pytest

from doorbuster.testing.suites.kits import SuiteKit
from doorbuster.testing.threads import together
from doorbuster.tiers import COSTS

__all__ = [
    "DECLINED",
    "Capabilities",
    "Race",
    "Suite",
    "broken_laws",
    "close_twice",
    "declined",
    "must_offer",
    "racing",
]

DECLINED: Final = "declined: "
"""How the reason of a declined law begins."""

_SHIPPED: Final = "doorbuster.testing."
_GUARD: Final = "test_00_no_law_is_overridden"
_SWITCH_S: Final = 1e-6
_TESTING: Final = Path(__file__).parent.parent
_OURS: Final = tuple(str(_TESTING / name) for name in ("suites", "clock.", "flow.", "faults."))
"""What is no subject, although a subject may lie beside it: it would only cost time."""

_STEP_ASIDE: Final = 0.25  # of the lines of the code under test


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an author declares where no hook can say it; a suite nests its own, with fields."""


class Race(Protocol):
    """Run ``work(n)`` for n in 0..count-1 in threads that start at once; answers in order."""

    def __call__(self, work: Callable[[int], Any], count: int = 16) -> list[Any]:
        """Answer what each call returned.

        Raises:
            AssertionError: a thread raised, or did not end within a minute.
        """
        ...


def declined(lacks: str, cost: str) -> NoReturn:
    """Skip the law that runs now: the plugin ``lacks`` something, which has a ``cost``.

    ``declined("offers no count", "drift waits for the next epoch")``.
    """
    pytest.skip(f"{DECLINED}{lacks}: {cost}")


def must_offer(hook: str, hooks: Container[str]) -> None:
    """Decline the law that runs now unless the optional ``hook`` is among those offered."""
    if hook not in hooks:
        declined(f"offers no {hook}", COSTS[hook])


def close_twice(plugin: Any) -> None:
    """Close a plugin, and close it again; decline the law where there is nothing to close."""
    close = getattr(plugin, "close", None)
    if close is None:
        declined("offers no close", "it may hold nothing that has to be let go of")
    close()
    close()


@contextmanager
def racing(subject: Any = None) -> Iterator[Race]:
    """Threads that change as often as can be, so that a check before an act shows.

    ``subject`` is the object under test: its threads also step aside between the lines of its
    module and of those in the same folder, which is where the interpreter alone would rarely
    change threads.
    """
    interval_s = sys.getswitchinterval()
    found = sys.modules.get(type(subject).__module__)
    where = getattr(found, "__file__", None) if subject is not None else None
    folder = str(Path(where).parent) if where else None

    def race(work: Callable[[int], Any], count: int = 16) -> list[Any]:
        if folder is not None:
            threading.settrace(_stepping_aside(folder))
        try:
            return together(work, count)
        finally:
            threading.settrace(None)

    if folder is None:  # stepping aside changes threads where it matters, and costs less
        sys.setswitchinterval(_SWITCH_S)
    try:
        yield race
    finally:
        sys.setswitchinterval(interval_s)


def _stepping_aside(folder: str) -> Callable[[FrameType, str, Any], Any]:
    """A trace function: between lines of code in ``folder`` another thread may run."""
    chance = random.Random(folder)

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and chance.random() < _STEP_ASIDE:
            time.sleep(0)
        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        return line if name.startswith(folder) and not name.startswith(_OURS) else None

    return call


class Suite:
    """Base of every suite."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Keep the guard itself.

        Raises:
            TypeError: the subclass overrides the law that no law is overridden.
        """
        super().__init_subclass__(**options)
        if _GUARD in vars(cls):
            raise TypeError(f"{cls.__name__} overrides {_GUARD}: that law guards all others")

    @pytest.fixture
    def kit(self) -> Iterator[SuiteKit]:
        """The ground of each law, new for each; fixture ``context`` is built from it."""
        found = SuiteKit()
        yield found
        found.close()

    @pytest.fixture
    def race(self) -> Iterator[Race]:
        """Run ``work(n)`` in threads that start at once and change often."""
        with racing() as run:
            yield run

    def test_00_no_law_is_overridden(self) -> None:
        """Style of suites: a law is kept, or marked ``xfail`` with the reason it is not."""
        broken = broken_laws(type(self))
        if broken:
            raise AssertionError(
                f"{', '.join(broken)}: overridden in silence. Keep the law, or override it under "
                "@pytest.mark.xfail(reason=...) so that every run says what does not hold"
            )


def broken_laws(cls: type[Any]) -> list[str]:
    """Name what of its suites ``cls`` overrides without saying why: laws and their checks.

    A law is any ``test_`` method of a class shipped here, a check any autouse fixture (named
    with an underscore first). An override marked ``xfail`` with a reason says why.
    """
    shipped = {
        name
        for base in cls.__mro__
        if base.__module__.startswith(_SHIPPED)
        for name in vars(base)
        if name.startswith("test_") or (name.startswith("_") and not name.startswith("__"))
    }
    return sorted(
        f"{own.__name__}.{name}"
        for own in cls.__mro__
        if not own.__module__.startswith(_SHIPPED)
        for name, law in vars(own).items()
        if name in shipped and not _says_why(law)
    )


def _says_why(law: Any) -> bool:
    marks = getattr(law, "pytestmark", ())
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks)
