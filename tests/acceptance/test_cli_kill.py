"""The kill -9 law: what a killed process said ACCEPTED to has exactly one order in the end."""

import json
import random
import signal
import sqlite3
import time

import pytest

URL = "sqlite:///killed.db"


def told(file):
    """Order numbers by identity, from whole lines only: the last may be cut by the kill."""
    if not file.exists():
        return {}
    whole = file.read_text().rpartition("\n")[0].splitlines()
    rows = [json.loads(line) for line in whole]
    return {(row["buyer"], row["request_id"]): row["order_no"] for row in rows}


def kill_once(cli, answers, after_s, *more):
    """Start a demo, let it answer for ``after_s``, and kill it with no warning."""
    size = answers.stat().st_size if answers.exists() else 0
    running = cli.start(
        *("demo", "--keep", "--url", URL, "--answers", answers),
        *("--stock", "30000", "--attempts", "400000", "--buyers", "400000", *more),
    )
    give_up_s = time.monotonic() + 30
    while not answers.exists() or answers.stat().st_size <= size:
        assert running.poll() is None, "the demo ended before it was killed"
        assert time.monotonic() < give_up_s, "the demo answers nothing"
        time.sleep(0.01)  # until the child that is to be killed works
    time.sleep(after_s)  # and works on; then it is killed
    running.send_signal(signal.SIGKILL)
    assert running.wait(timeout=30) == -signal.SIGKILL


def check(cli, answers):
    """Drain, reconcile, and compare every answer with the orders."""
    drained = cli("worker", "--drain", "--url", URL, "--json")
    assert drained.code == 0, drained
    assert drained.json["drained"]
    checked = cli("reconcile", "--url", URL, "--json")
    assert checked.code == 0, checked
    assert checked.json["balanced"]
    assert checked.json["drift"] == 0
    assert all(checked.json["invariants"].values())
    with sqlite3.connect(cli.folder / "killed.db") as db:
        rows = db.execute("SELECT buyer, request_id, order_no FROM orders").fetchall()
    db.close()
    orders = {(buyer, request_id): order_no for buyer, request_id, order_no in rows}
    assert len(orders) == len(rows), "an identity has two orders"
    accepted = told(answers)
    assert {key: orders.get(key) for key in accepted} == accepted
    return len(accepted)


def kill_loop(cli, kills, mode, seed):
    draw = random.Random(seed)
    answers = cli.folder / "answers.jsonl"
    for n in range(kills):
        kill_once(cli, answers, draw.uniform(0.0, 0.6), *(("--mode", mode) if n == 0 else ()))
        assert check(cli, answers) > 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["normal", "segments", "direct"])
def test_kill_9_loses_nothing_and_doubles_nothing(cli, mode):
    """The bounded form: a kill in each mode; then the demo goes on to a good end."""
    kill_loop(cli, 1, mode, seed=mode)
    done = cli("demo", "--keep", "--url", URL, "--attempts", "3000", "--json")
    assert done.code == 0, done
    assert done.json["lost"] == done.json["duplicates"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["normal", "segments", "direct"])
def test_50_kills_lose_nothing_and_double_nothing(cli, mode):
    """The full form: 50 kills at random moments under load, on one database."""
    kill_loop(cli, 50, mode, seed=mode)


@pytest.mark.slow
def test_a_killed_drain_is_drained_by_the_next(cli):
    """A worker may die too: its leases run out and another one takes its work."""
    answers = cli.folder / "answers.jsonl"
    kill_once(cli, answers, 0.3)
    worker = cli.start("worker", "--url", URL)
    time.sleep(0.8)  # the child is killed somewhere in its work
    worker.kill()
    worker.wait(timeout=30)
    assert check(cli, answers) > 0


@pytest.mark.soak
def test_a_full_disk_loses_nothing(cli):
    """The engine's own full-disk law is in test_faults; this is the whole command on one.

    When no file may grow, callers hear BUSY or PENDING; what was accepted is kept.
    """
    answers = cli.folder / "answers.jsonl"
    words = ("demo", "--keep", "--url", URL, "--answers", answers)
    full = cli.start(*words, "--stock", "5000", "--attempts", "800", file_bytes_max=400_000)
    assert full.wait(timeout=100) in (0, 1)  # 1 when orders or answers still wait for room
    accepted = check(cli, answers)
    assert 0 < accepted < 700, "the disk was not full"
    done = cli(*words, "--attempts", "1500", "--json")
    assert done.code == 0, done
    assert done.json["accepted"] > accepted


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_ends_gracefully_when_asked(cli, number):
    """SIGTERM and SIGINT end a worker with exit code 0, its leases handed in."""
    assert cli("demo", "--stock", "50", "--attempts", "200", "--url", URL, "--json").code == 0
    worker = cli.start("worker", "--url", URL)
    give_up_s = time.monotonic() + 30
    while "working: persist" not in cli.told.read_text():
        assert worker.poll() is None
        assert time.monotonic() < give_up_s, "the worker does not start"
        time.sleep(0.05)  # until the child that is to be ended works
    worker.send_signal(number)
    assert worker.wait(timeout=30) == 0
