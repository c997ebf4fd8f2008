"""Plants each mutant in a process of its own and runs the law that must tell it.

    python tests/mutants/driver.py            prints one JSON object: verdicts by mutant

Every law is collected once; a child is forked per mutant, two at a time, and swaps the code of
the mutated file's functions where they are, so whoever holds one holds the mutant. Verdicts:
``killed``, ``survived``, ``stale`` (its text is not there once), ``broken`` (no law ended).

Only the named law can kill, and only by its own failing: what fails in a set-up, or in the checks
after a law, or by running out of time, is no kill.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import io
import json
import os
import sys
import types
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

from table import MUTANTS  # noqa: E402 - found by the line above

CHILDREN = 2
TOO_LATE = "from pytest-timeout"
SUITES = ("gates", "ledger", "persist", "queues", "sources", "stock")


class Verdict:
    """Hears how laws ended."""

    def __init__(self):
        self.passed, self.failed = Counter(), Counter()

    def pytest_runtest_logreport(self, report):
        """A law is told by its own failing."""
        name = report.nodeid.rpartition("::")[2].partition("[")[0]
        if report.when == "call" and TOO_LATE not in report.longreprtext:
            self.passed[name] += report.passed
            self.failed[name] += report.failed


class Judge:
    """Takes the place of pytest's own loop: all laws are collected, and each mutant is judged."""

    verdicts = None

    def pytest_runtestloop(self, session):
        """Nothing is judged by laws of which some could not be collected."""
        if not session.testsfailed:
            gc.freeze()  # children then share what was collected
            self.verdicts = judge_all(session.items)
        return True


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
    if path.name == "schema.py":
        return plant_schema(module, text)
    codes = codes_of(compile(text, module.__file__, "exec"), {})
    for function in functions_of(module):
        code = codes.get(function.__qualname__)
        if code is not None and len(code.co_freevars) == len(function.__code__.co_freevars):
            function.__code__ = code
    return True


def plant_schema(module, text):
    """Databases are made of the mutant's tables; statements name them as they did."""
    found = {}
    exec(compile(text, module.__file__, "exec"), found)
    module.METADATA = found["METADATA"]
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


def run(items, suite, names, *, until_failed=False):
    """Run laws of a suite in every class of its tests; how they ended, by law.

    Names are exact, for a law whose name only begins alike is another law; files repeat what
    memory told.
    """
    mine = [
        item
        for item in items
        if item.path.stem == f"test_{suite}"
        and item.originalname in names
        and "File" not in item.cls.__name__
    ]
    verdict = Verdict()
    plugins = items[0].config.pluginmanager
    plugins.register(verdict)
    for item, following in pairwise([*mine, None]):
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        if until_failed and verdict.failed.total():
            break
    plugins.unregister(verdict)
    return verdict


def control(items):
    """The laws that do not pass although no fault is planted."""
    for mutant in {mutant.file: mutant for mutant in MUTANTS}.values():
        plant(mutant._replace(new=mutant.old))  # swapping alone must change nothing
    wrong = []
    for suite in SUITES:
        names = {mutant.law.partition(":")[2] for mutant in MUTANTS if mutant.suite == suite}
        found = run(items, suite, names)
        wrong += sorted(name for name in names if found.failed[name] or not found.passed[name])
    return wrong


def judge(n, items):
    """In a child: the verdict of mutant ``n``; of ``-1`` the laws that fail without one."""
    if n < 0:
        return control(items)
    mutant = MUTANTS[n]
    if not plant(mutant):
        return "stale"
    name = mutant.law.partition(":")[2]
    found = run(items, mutant.suite, {name}, until_failed=True)
    if found.failed[name]:
        return "killed"
    return "survived" if found.passed[name] else "broken"


def fork(n, items):
    """Start a child; its process id and the pipe it answers through."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    try:
        answer = judge(n, items)
    except BaseException as error:
        answer = f"broken: {error!r}"
    with os.fdopen(writing, "w") as out:
        json.dump(answer, out)
    os._exit(0)


def judge_all(items):
    """Judge every mutant, and every named law without one."""
    left, under_way, verdicts = [-1, *range(len(MUTANTS))], {}, {}
    while left or under_way:
        while left and len(under_way) < CHILDREN:
            n = left.pop(0)
            pid, reading = fork(n, items)
            under_way[pid] = n, reading
        pid, _ = os.wait()
        n, reading = under_way.pop(pid)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        verdicts["control" if n < 0 else MUTANTS[n].why] = json.loads(text or '"broken"')
    return verdicts


def main():
    """Print the verdicts."""
    for mutant in MUTANTS:
        if mutant.file.endswith(".py"):
            module_of(mutant.file)
    os.chdir(ROOT)
    words = [f"{ROOT}/tests/conformance/test_{suite}.py" for suite in SUITES]
    # children would share one file of captured output; only what Python prints is kept apart
    words += ["-q", "--capture=sys", "--tb=no", "--timeout=30", f"--rootdir={ROOT}"]
    words += ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:faulthandler"]
    # modules imported before pytest could rewrite their asserts assert all the same
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    judge, said = Judge(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        pytest.main(words, plugins=[judge])
    if judge.verdicts is None:
        sys.exit(said.getvalue())
    print(json.dumps(judge.verdicts))


if __name__ == "__main__":
    main()
