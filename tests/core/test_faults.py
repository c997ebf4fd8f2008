"""The database full, read-only, locked or gone: BUSY, a clear log, and recovery by itself."""

import json
import sqlite3
import threading

import pytest
import sqlalchemy as sa

from doorbuster.errors import PermanentError, UnavailableError, UnknownOutcomeError
from doorbuster.outcomes import Code


@pytest.fixture
def stand(make_stand, tmp_path):
    """A stand on a file, with one order already there; waits are short."""
    found = make_stand(
        {"gold": 1000},
        url=f"sqlite:///{tmp_path / 'shop.db'}",
        ledger={"wait_ms": 50},
        workers={"lease_s": 1},
    )
    assert found.buy("first").code is Code.ACCEPTED
    return found


def pragma(stand, text):
    """Set a pragma on the one connection that writes."""
    driver = stand.ledger.database._writer.raw_connection()
    try:
        return driver.cursor().execute(f"PRAGMA {text}").fetchone()
    finally:
        driver.close()


def fill(stand):
    """Let the file take no page more, and fill the pages it has."""
    pages = pragma(stand, "page_count")[0]
    pragma(stand, f"max_page_count = {pages}")
    for number in range(100):
        batch = [stand.attempt(f"fill{number}-{n}") for n in range(50)]
        if any(outcome.code is Code.BUSY for outcome in stand.batch(*batch)):
            return
    raise AssertionError("the disk never became full")


FAULTS = {
    "full": (fill, lambda stand: pragma(stand, "max_page_count = 1000000")),
    "read-only": (
        lambda stand: pragma(stand, "query_only = 1"),
        lambda stand: pragma(stand, "query_only = 0"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("deduct", ["db-atomic", "memory"])
def test_a_full_or_read_only_database_is_busy_and_recovers(
    make_stand, tmp_path, names, capsys, fault, deduct
):
    """No attempt sees a traceback or SOLD_OUT; reads still answer; nothing is lost or doubled."""
    stand = make_stand(
        {"gold": 6000},
        url=f"sqlite:///{tmp_path / 'shop.db'}",
        ledger={"wait_ms": 50},
        pipeline={"deduct": deduct},
        workers={"lease_s": 1},
    )
    stand.drain()
    first = stand.buy("first")
    assert first.code is Code.ACCEPTED
    break_it, mend_it = FAULTS[fault]
    break_it(stand)
    before = stand.rows("intents")
    assert set(names(stand.crowd(60))) == {"BUSY"}
    assert stand.buy("first") == first, "what is known is answered"
    assert stand.result("first").code is Code.ACCEPTED
    assert stand.rows("intents") == before
    stand.drain()  # roles fail and back off, and nothing ends
    log = capsys.readouterr().err
    assert "not available" in log
    assert "Traceback" not in log
    assert "'b0'" not in log, "no buyer id in clear"
    mend_it(stand)
    assert stand.drain() == 0
    outcomes = stand.batch(*(stand.attempt(f"b{n}", "again") for n in range(60)))
    assert set(names(outcomes)) == {"ACCEPTED"}
    assert stand.drain() == 0
    assert stand.balanced()


@pytest.mark.parametrize("error", [UnavailableError("x"), PermanentError("x")])
def test_a_ledger_whose_transactions_raise_is_busy(stand, monkeypatch, names, error):
    """Whatever the reason: surely not applied is BUSY."""

    def transact(*_args, **_kwargs):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(stand.ledger.database, "transact", transact)
        outcomes = stand.crowd(3)
        assert names(outcomes) == ["BUSY"] * 3
        assert {o.detail["reason"] for o in outcomes} == {"ledger-unavailable"}
        assert all(o.retry_after_ms for o in outcomes)
        assert stand.drain() >= 1, "nothing could be done, and it says so"
    assert names(stand.crowd(3)) == ["ACCEPTED"] * 3
    assert stand.drain() == 0
    assert stand.balanced()


def test_d8_a_commit_that_fails_with_its_outcome_unknown_is_settled(stand, monkeypatch, names):
    """Every try's COMMIT is lost after it was applied: PENDING, then the truth: accepted once."""
    real = stand.ledger.database._commit
    lost = [True]

    def commit(connection, transaction):
        real(connection, transaction)
        if lost[0]:
            raise UnknownOutcomeError("the answer of COMMIT was lost")

    monkeypatch.setattr(stand.ledger.database, "_commit", commit)
    outcomes = stand.crowd(2)
    lost[0] = False
    assert set(names(outcomes)) <= {"PENDING", "ACCEPTED"}
    assert stand.drain() == 0
    assert names(stand.crowd(2)) == ["ACCEPTED"] * 2
    assert len(stand.rows("orders")) == 3
    assert stand.balanced()


def test_d6_a_writer_of_another_process_is_waited_for_then_busy(stand, tmp_path):
    """Within ``wait_ms``; afterwards the same attempt is accepted."""
    other = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    outcome = stand.buy("ann")
    assert (outcome.code, outcome.detail["reason"]) == (Code.BUSY, "ledger-unavailable")
    other.execute("ROLLBACK")
    other.close()
    assert stand.buy("ann").code is Code.ACCEPTED


def test_a_control_row_that_cannot_be_read_keeps_the_last_one(stand, monkeypatch):
    """A sale goes on as it was; the poll says so and tries again."""

    def down(*_args):
        raise UnavailableError("down")

    with monkeypatch.context() as patch:
        patch.setattr(stand.ledger, "sales", down)
        with pytest.raises(UnavailableError):
            stand.engine.world.refresh()
        assert stand.buy("ann").code is Code.ACCEPTED


def test_alarms_of_a_ledger_that_is_down_stop_nothing(stand, clock):
    """The row cannot be written; everybody else hears it, and the attempt is answered."""
    pragma(stand, "query_only = 1")
    assert stand.buy("ann").code is Code.BUSY
    assert stand.alarm_names() == ["accept-fault"]
    assert stand.ledger.alarms() == []
    pragma(stand, "query_only = 0")
    clock.advance(2)
    stand.engine.alarms("better", "info", "drop")
    assert [row["name"] for row in stand.ledger.alarms()] == ["better"]


def test_an_alarm_raised_inside_a_ledger_transaction_does_not_hang(stand):
    """The row is given up at once instead of waiting for the lock its own thread holds."""
    done = threading.Event()

    def work():
        with stand.ledger.database.transaction() as connection:
            stand.engine.alarms("inside", "warning", "drop")
            connection.execute(sa.text("SELECT 1"))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert done.is_set()
    assert stand.alarm_names() == ["inside"]
    assert stand.ledger.alarms() == []


def test_lines_of_an_intent_survive_as_they_were_asked(stand):
    """A replay after any recovery is compared with the whole content."""
    stand.buy("ann", "r1", gold=3)
    (row,) = [row for row in stand.rows("intents") if row["buyer"] == "ann"]
    assert row["lines"] == "gold=3"
    assert json.loads(json.dumps(stand.status(), default=str))["balanced"]
