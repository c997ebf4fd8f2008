"""A bench says what it measured, measures what it says, and fails when it sold nothing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from doorbuster.bench import core, embedded, http, loops, results
from doorbuster.bench.bare import application
from doorbuster.bench.loops import Measured
from doorbuster.bench.memory import MemoryLedger
from doorbuster.bench.sale import attempts_of
from doorbuster.identity import canonical_lines
from doorbuster.ledger import Short
from doorbuster.model import Attempt, Batch, Line, Reservation, Sale, Sku
from doorbuster.outcomes import Code, Outcome

DOORBUSTER = Path(sys.executable).with_name("doorbuster")
KEYS = {
    *("name", "ours_per_s", "baseline", "baseline_per_s", "ratio", "p50_ms", "p99_ms", "loop"),
    *("concurrency", "offered_per_s", "mix", "topology", "fsync", "us_per_attempt", "bar"),
}


def run(*words):
    done = subprocess.run(
        [DOORBUSTER, "bench", *words], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def check(report, name):
    assert report["bench"] == name
    assert set(report) == {"bench", "results", "machine", "versions"}
    assert {"cpus", "cpu", "memory_gib", "system"} <= set(report["machine"])
    assert {"python", "sqlite", "doorbuster", "msgspec"} <= set(report["versions"])
    for row in report["results"]:
        assert set(row) == KEYS
        assert row["ours_per_s"] > 0
        assert (row["concurrency"] is None) != (row["offered_per_s"] is None)
        if row["p99_ms"] is not None:
            assert 0 < row["p50_ms"] <= row["p99_ms"]


# ------------------------------------------------------------------ the commands
@pytest.mark.slow
def test_bench_core_measures_pipeline_and_door(tmp_path):
    """Both tiers, batches beside single attempts, the door's own cost; kept where it is told."""
    done = run("core", "--attempts", "1024", "--json", "--save", str(tmp_path))
    report = json.loads(done.stdout)
    check(report, "core")
    assert [row["name"] for row in report["results"]] == [
        "Pipeline.run, router, batch 256",
        "Pipeline.run, holder, batch 256",
        "door alone",
    ]
    assert all(row["us_per_attempt"] > 0 for row in report["results"])
    (kept,) = tmp_path.glob("core-*.json")
    assert json.loads(kept.read_text("utf-8")) == report


@pytest.mark.slow
def test_bench_embedded_counts_orders_that_are_there(tmp_path):
    """A fresh file and one with orders in it, plain calls and the door, for people to read."""
    words = ["--attempts", "1024", "--orders", "1000", "--callers", "64"]
    done = run("embedded", *words, "--folder", str(tmp_path))
    for text in ("plain calls, fresh file", "door, 1,000 orders in it", "15,000 durable accepts/s"):
        assert text in done.stdout
    assert not list(tmp_path.iterdir())  # it takes its databases away


@pytest.mark.slow
def test_bench_http_measures_a_crowd_beside_a_bare_handler(tmp_path, monkeypatch):
    """The rush: its answers are what its mix says, else the bench fails."""
    monkeypatch.setattr(http, "CROWDS", {"a rush": http.CROWDS["a rush"]})
    told = []
    (row,) = http.bench(tmp_path, requests=1000, connections=8, rounds=1, progress=told.append)
    assert (row.name, told) == ("a rush", ["a rush, round 1 of 1"])
    assert row.ratio == pytest.approx(row.ours_per_s / row.baseline_per_s, abs=0.02)
    assert 0 < row.p50_ms <= row.p99_ms


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path):
    """Nothing is measured that could not be kept."""
    done = subprocess.run(
        [DOORBUSTER, "bench", "core", "--save", str(tmp_path / "none")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "there is no such folder" in done.stderr


# ------------------------------------------------------------------ how it measures
def test_an_open_loop_charges_a_stall_to_everybody_who_came_meanwhile():
    """A latency counts from the planned time of sending, not from when the door had time."""

    async def stalls(n):
        if n == 0:
            time.sleep(0.1)  # noqa: ASYNC251 - the whole loop stands still
        return n

    measured = asyncio.run(loops.open_loop(list(range(50)), stalls, per_s=1000))
    assert measured.answers == list(range(50))
    assert sum(latency > 40 for latency in measured.latencies_ms) >= 30


def test_a_closed_loop_never_has_more_callers_than_told():
    """Concurrency is what the result says."""
    inside, most = 0, 0

    async def ask(n):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        return n

    measured = asyncio.run(loops.closed_loop(list(range(100)), ask, concurrency=7))
    assert (most, measured.answers) == (7, list(range(100)))
    assert len(measured.latencies_ms) == 100


def test_refusals_are_no_result():
    """A bench that sold nothing would be the fastest: it fails instead."""
    busy = Outcome(Code.BUSY)
    with pytest.raises(RuntimeError, match="0 of 1 attempts"):
        core._require_accepted([busy], 1)
    with pytest.raises(RuntimeError, match="0 of 1 attempts"):
        embedded._all_accepted(Measured([busy], 1.0, [1.0]), 1)
    with pytest.raises(RuntimeError, match="expected 1 of 1 accepted"):
        http._require(Measured([b'{"code":-6}'], 1.0, [1.0]), accepted=1, asked=1)


def test_the_memory_ledger_decides_as_the_accept_transaction_does():
    """Replay, other content, limit before stock, units: else the pipeline would have less to do."""
    ledger = MemoryLedger(units=3, per_buyer=2)
    sale = Sale("drop", {"gold": Sku("gold", 3)})

    def ask(buyer, request_id, n):
        lines = (Line("gold", n),)
        number = f"{buyer} {request_id}"
        attempt = Attempt(
            lines, buyer, request_id, order_no=number, fingerprint=canonical_lines(lines)
        )
        batch, item = Batch(sale, [attempt], "normal", 1), Reservation(attempt, "all", number, 1)
        return ledger.accept(batch, [item], holds=False).answers[0]

    assert ask("ann", "r1", 2).code is Code.ACCEPTED
    assert ask("ann", "r1", 2).code is Code.ACCEPTED
    assert ask("ann", "r1", 1).code is Code.KEY_REUSED
    assert ask("ann", "r2", 1).code is Code.OVER_LIMIT
    assert isinstance(ask("bob", "r1", 2), Short)
    assert ask("bob", "r2", 1).code is Code.ACCEPTED
    assert sum(ledger.outbox) == 2


def test_the_crowd_is_distinct_and_random():
    """Counted-up names would all fall on one page of an index."""
    buyers = [attempt.buyer for attempt in attempts_of(1000, seed=1)]
    assert len(set(buyers)) == 1000
    assert buyers != sorted(buyers)
    assert set(buyers).isdisjoint(one.buyer for one in attempts_of(1000, seed=2))


def test_the_bare_handler_reads_and_answers():
    """The baseline takes the body too, in as many parts as it comes."""
    events = iter([{"more_body": True}, {"more_body": False}])
    sent = []

    async def receive():
        return next(events)

    async def send(event):
        sent.append(event["type"])

    asyncio.run(application({"type": "http"}, receive, send))
    assert sent == ["http.response.start", "http.response.body"]
    assert next(events, None) is None


def test_percentiles_of_few_values():
    """Of nothing 0; of one value that one."""
    assert results.percentile([], 0.5) == 0
    assert results.percentile([3.0], 0.99) == 3.0
    assert results.percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
