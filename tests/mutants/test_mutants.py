"""The suites tell faults: each planted mutant is killed by the law that names it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .table import MUTANTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CLASSES = {
    "check then act": "check then act",
    "limit after stock": "limit after stock",
    "non-idempotent return": "a return is not idempotent",
    "release row not unique": "release row not unique",
    "counting requested rows": "requested rows are counted",
    "lost remainder of 10,000 over 32": "10,000 over 32",
    "undo without tombstone": "undo without tombstone",
    "mark on one empty place": "sold out as soon as one place is empty",
    "mark of more than was read": "a mark on one sku",
    "epoch not checked": "the epoch is not checked",
    "ABORTED read as accepted": "ABORTED is read as accepted",
    "replay holds twice": "replay holds again",
    "other content accepted": "other content is accepted",
    "a split quantity": "a quantity is split",
    "non-idempotent undo": "undo not idempotent",
    "non-idempotent credit": "credit not idempotent by id",
    "debit of what is not there": "debit takes what is not there",
    "answers misaligned": "answers misaligned",
    "outbox row missing": "leaves no outbox row",
    "batch settled while RESERVED": "a batch is done when it was read",
    "persist without compare and set": "persist revives a returned order",
    "void is not final": "persist revives a void order",
    "bucket above burst": "the bucket is not capped",
    "negative time trusted": "a clock set back refills",
    "rate by request": "a rate per buyer is kept by request",
    "deny-list open": "deny-list: who hides",
    "queue loses": "what was received is gone",
    "queue settles others": "settle commits everything before it",
    "equal content published": "equal content is published",
    "malformed content taken": "a malformed document is taken",
    "funding moved twice": "a funding moves again",
    "planned taken for debited": "what was planned moves",
    "reserve handed out": "the reserve is handed out",
    "restock applied twice": "a restock is applied twice",
    "lease ignored": "a lease is not looked at",
    "lease for ever": "a lease is for ever",
    "kind of sale not checked": "the kind is not checked",
    "fence not looked at": "a grant that is fenced still accepts",
    "hold kept that nothing justifies": "a hold of another grant is kept",
    "hold undone that is justified": "an accepted hold is undone",
    "backend done in another epoch": "backend_done is set for an old epoch",
    "identity without its buyer": "request_id alone is the identity",
    "refusal stored": "refusal stored",
    "phantom given back": "an undo gives the phantom back",
    "another order compensated": "order_no not compared",
    "control overtaken": "older control overwrites newer",
    "deadline not judged": "deadline not judged",
    "unknown read as certain": "a vanished deduct is BUSY",
    "certain read as an answer": "an unavailable deduct is SOLD_OUT",
    "nobody settles": "what is PENDING is taken into nobody's custody",
    "settled too early": "settled before its deadline",
    "refusal costs a token": "refused attempts take tokens",
    "state lost by a reload": "a reload fills the bucket",
    "sales share a state": "one bucket for all sales",
    "retry told too early": "retry_after is too short",
    "sent is not there": "what a broken broker never got is SENT",
    "order of a buyer turned": "the newest comes first",
    "one poisons all": "one poisoned order stops its batch",
    "one listener silences all": "a subscriber that raises silences",
}
"""Kinds of fault that must be among the mutants, and how each begins."""


def name_of(mutant):
    """What is planted, and the law that tells it."""
    return f"{mutant.why} => {mutant.law}".replace(" ", "-")


@pytest.fixture(scope="session")
def verdicts(tmp_path_factory):
    """Verdicts by mutant; several test processes share one run of the driver."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    kept = folder / "mutants.json"
    with (folder / "mutants.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            driver = Path(__file__).with_name("driver.py")
            done = subprocess.run(
                [sys.executable, driver], capture_output=True, text=True, timeout=390, check=False
            )
            assert done.returncode == 0, done.stderr
            kept.write_text(done.stdout.splitlines()[-1], "utf-8")
    return json.loads(kept.read_text("utf-8"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=name_of)
def test_a_planted_mutant_is_killed_by_its_law(verdicts, mutant):
    """Stale: the code has changed, and the mutant must follow. Survived: the law is not sharp."""
    assert verdicts[mutant.why] == "killed", (mutant.law, mutant.file)


def test_without_a_mutant_every_law_passes(verdicts):
    """A law that always fails would kill everything."""
    assert verdicts["control"] == []


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_of_fault_is_planted(kind):
    """The table names what must be in it."""
    assert any(CLASSES[kind] in mutant.why for mutant in MUTANTS)
    assert len(MUTANTS) >= 100
    assert len({mutant.why for mutant in MUTANTS}) == len(MUTANTS)
