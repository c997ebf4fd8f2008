"""Plants each mutant in a process of its own and runs the law that must tell it.

    python tests/mutants/driver.py            prints one JSON object: verdicts by mutant

Everything is imported once; a child is forked per mutant, two at a time, and swaps the code of
the mutated file's functions where they are, so whoever holds one holds the mutant. Verdicts:
``killed``, ``survived``, ``stale`` (its text is not there once), ``broken`` (no law ended).

Only the named law can kill, and only by its own failing: what fails in a set-up, or in the checks
after a law, or by running out of time, is no kill.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import os
import sys
import types
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

from table import MUTANTS  # noqa: E402 - found by the line above

CHILDREN = 2
TOO_LATE = "from pytest-timeout"
SUITES = ("gates", "ledger", "persist", "queues", "sources", "stock")


class Verdict:
    """Selects laws by their exact names and hears how each ended, in every class that runs it."""

    def __init__(self, names):
        self.names, self.passed, self.failed = names, Counter(), Counter()

    def pytest_collection_modifyitems(self, items):
        """A law whose name only begins alike is another law; files repeat what memory told."""
        items[:] = [
            item
            for item in items
            if item.originalname in self.names and "File" not in item.cls.__name__
        ]

    def pytest_runtest_logreport(self, report):
        """A law is told by its own failing."""
        name = report.nodeid.rpartition("::")[2].partition("[")[0]
        if report.when == "call" and TOO_LATE not in report.longreprtext:
            self.passed[name] += report.passed
            self.failed[name] += report.failed


def module_of(file):
    """The live module of a source file."""
    parts = Path(file).with_suffix("").parts
    start = next(n for n, part in enumerate(parts) if part.startswith("doorbuster"))
    return importlib.import_module(".".join(parts[start:]))


def codes_of(code, found):
    """Every function's code in ``code``, by qualified name."""
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found[const.co_qualname] = const
            codes_of(const, found)
    return found


def functions_of(module):
    """Every function and method that the module defines, unwrapped."""
    todo, seen = list(vars(module).values()), set()
    while todo:
        item = inspect.unwrap(todo.pop()) if callable(todo[-1]) else todo.pop()
        item = getattr(item, "__func__", getattr(item, "fget", item))
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, type) and item.__module__ == module.__name__:
            todo.extend(vars(item).values())
        elif isinstance(item, types.FunctionType) and item.__module__ == module.__name__:
            yield item


def plant(mutant):
    """Swap the mutant in; False when its text is not there just once."""
    path = ROOT / mutant.file
    text = path.read_text("utf-8")
    if text.count(mutant.old) != 1:
        return False
    text = text.replace(mutant.old, mutant.new)
    if path.suffix == ".sql":
        return plant_sql(path.stem, text)
    module = module_of(mutant.file)
    codes = codes_of(compile(text, module.__file__, "exec"), {})
    for function in functions_of(module):
        code = codes.get(function.__qualname__)
        if code is not None and len(code.co_freevars) == len(function.__code__.co_freevars):
            function.__code__ = code
    return True


def plant_sql(name, text):
    """Named statements are read once: read the mutant's instead."""
    from doorbuster.ledger import queries

    class Files:
        """A package whose one file is the mutant."""

        def joinpath(self, *_):
            return self

        def read_text(self, _):
            return text

    queries.load.cache_clear()
    queries.files = lambda _: Files()
    queries.load(name)
    return True


def run(suite, names, *extra):
    """Run laws of a suite in every class of its tests; the verdict's counts by law."""
    verdict = Verdict(names)
    words = [f"{ROOT}/tests/conformance/test_{suite}.py", "-q", *extra]
    quiet = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:faulthandler", "--tb=no"]
    # the suites were imported before pytest could rewrite their asserts; they assert all the same
    quiet += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        pytest.main([*words, *quiet, "--timeout=30", f"--rootdir={ROOT}"], plugins=[verdict])
    return verdict


def control():
    """The laws that do not pass although no fault is planted."""
    for mutant in MUTANTS:  # the same text again: swapping alone must change nothing
        plant(mutant._replace(new=mutant.old))
    wrong = []
    for suite in SUITES:
        names = {mutant.law.partition(":")[2] for mutant in MUTANTS if mutant.suite == suite}
        found = run(suite, names)
        wrong += sorted(name for name in names if found.failed[name] or not found.passed[name])
    return wrong


def judge(n):
    """In a child: the verdict of mutant ``n``; of ``-1`` the laws that fail without one."""
    if n < 0:
        return control()
    mutant = MUTANTS[n]
    if not plant(mutant):
        return "stale"
    name = mutant.law.partition(":")[2]
    found = run(mutant.suite, {name}, "-x")
    if found.failed[name]:
        return "killed"
    return "survived" if found.passed[name] else "broken"


def fork(n):
    """Start a child; its process id and the pipe it answers through."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    try:
        answer = judge(n)
    except BaseException as error:
        answer = f"broken: {error!r}"
    with os.fdopen(writing, "w") as out:
        json.dump(answer, out)
    os._exit(0)


def main():
    """Judge every mutant, and every named law without one."""
    for suite in SUITES:  # what every child needs is imported before the first is made
        importlib.import_module(f"doorbuster.testing.suites.{suite.removesuffix('s')}")
    for mutant in MUTANTS:
        if mutant.file.endswith(".py"):
            module_of(mutant.file)
    os.chdir(ROOT)
    left, under_way, verdicts = [-1, *range(len(MUTANTS))], {}, {}
    while left or under_way:
        while left and len(under_way) < CHILDREN:
            n = left.pop(0)
            pid, reading = fork(n)
            under_way[pid] = n, reading
        pid, _ = os.wait()
        n, reading = under_way.pop(pid)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        verdicts["control" if n < 0 else MUTANTS[n].why] = json.loads(text or '"broken"')
    print(json.dumps(verdicts))


if __name__ == "__main__":
    main()
