"""Several processes on one ledger, and a process that dies: real ones, killed for real."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from doorbuster.clock import SystemClock
from doorbuster.ledger.schema import orders

pytestmark = pytest.mark.slow

ACCEPT = """
    import sys
    from doorbuster.clock import SystemClock
    from doorbuster.identity import ServerKey, canonical_lines
    from doorbuster.ledger import Ledger
    from doorbuster.model import Attempt, Batch, Line, Reservation, Sale, Sku

    path, identities = sys.argv[1], int(sys.argv[2])
    sale = Sale("drop", {"black": Sku("black", 10_000)})
    key = ServerKey(b"a key that only tests know", "dev")
    ledger = Ledger.open(f"sqlite:///{path}", SystemClock(), wait_ms=30_000)
    ledger.migrate()
    lines = (Line("black"),)

    def item(n):
        number = key.order_no("drop", 1, f"b{n}", "r1")
        attempt = Attempt(lines, f"b{n}", "r1", "drop", None, {}, None, number,
                          canonical_lines(lines))
        return Reservation(attempt, "p0", number, 1)

    def accept(numbers):
        items = [item(n) for n in numbers]
        batch = Batch(sale, [one.attempt for one in items], "normal", 1)
        return ledger.accept(batch, items, holds=False)
"""


def start(*scripts, arguments):
    """Run scripts, one after the other, in one new process."""
    text = "".join(textwrap.dedent(script) for script in (ACCEPT, *scripts))
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )


def finish(process):
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def test_4_1_two_processes_accept_the_same_identities_once(shop):
    """Each identity is fresh in exactly one of them, and accepted in both."""
    one = shop(skus={"black": 10_000}, clock=SystemClock())
    script = """
        fresh = accepted = 0
        for start in range(0, identities, 20):
            done = accept(range(start, start + 20))
            fresh += len(done.fresh)
            accepted += sum(answer.code.name == "ACCEPTED" for answer in done.answers)
        print(fresh, accepted)
    """
    running = [start(script, arguments=(one.path, 400)) for _ in range(2)]
    told = [tuple(map(int, finish(process).split())) for process in running]
    assert sum(fresh for fresh, _ in told) == 400
    assert [accepted for _, accepted in told] == [400, 400]
    assert one.free()["p0", "black"] == 10_000 - 400
    one.persist()
    assert one.report().balanced


def test_many_processes_open_a_new_ledger_at_once(tmp_path):
    """Whoever comes first makes the tables; nobody fails."""
    path = tmp_path / "new.db"
    running = [start("print(len(ledger.sales()))", arguments=(path, 0)) for _ in range(4)]
    assert [finish(process) for process in running] == ["0\n"] * 4


DIE = """
    import os, signal
    import sqlalchemy as sa
    from doorbuster.ledger.schema import orders

    statement = sys.argv[3]

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def after(connection, cursor, text, parameters, context, executemany):
        if text.lstrip().startswith(statement):
            die()

    def arm():
        if statement == "COMMIT":
            commit = ledger.database._commit
            ledger.database._commit = lambda *them: (commit(*them), die())
        else:
            sa.event.listen(ledger.database._writer, "after_cursor_execute", after)
"""

ACTS = {
    "accept": """
    arm()
    accept(range(3))
    """,
    "creating": """
    with ledger.database.read() as connection:
        batches = connection.exec_driver_sql("SELECT batch FROM outbox").scalars().all()
    items = ledger.reservations_of(batches, sale)
    arm()
    with ledger.creating(items) as creating:
        creating.execute(orders.insert(), [dict(
            order_no=item.order_no, environment="dev", sale="drop", buyer=item.attempt.buyer,
            request_id="r1", lines="black=1", state="CREATED", created_at_ms=0)
            for item in creating.won])
    """,
    "return": """
    (job,) = ledger.claim_jobs({1: "drop"}, limit=1, lease_s=0)
    arm()
    ledger.finish_return(job)
    """,
}

STATEMENTS = {
    "accept": ["INSERT INTO intents", "INSERT INTO quotas", "UPDATE grants", "INSERT INTO outbox"],
    "creating": ["UPDATE intents", "INSERT INTO orders"],
    "return": [
        "UPDATE intents",
        "UPDATE quotas",
        "UPDATE grants",
        "UPDATE stock",
        "INSERT INTO releases",
        "DELETE FROM dead_letters",
        "INSERT INTO audit",
    ],
}


@pytest.mark.parametrize(
    ("act", "statement"),
    [(act, one) for act, some in STATEMENTS.items() for one in (*some, "COMMIT")],
)
def test_9_a_process_killed_between_statements_leaves_nothing_half(shop, act, statement):
    """SIGKILL right after each statement of a transaction, or right after its COMMIT."""
    one = shop(skus={"black": 10_000}, clock=SystemClock())
    one.buy("ann")
    if act == "return":
        one.ledger.begin_return(one.row, "ann", "r1", to="RELEASED", reason="why", actor="op")
    before = one.report()
    process = start(DIE, ACTS[act], arguments=(one.path, 0, statement))
    _, err = process.communicate(timeout=60)
    assert process.returncode == -9, err
    after = one.report()
    assert after.balanced
    assert (after != before) is (statement == "COMMIT")
    one.finish()
    one.persist()
    assert one.report().balanced
    assert one.report().counts["reserved"] == one.report().counts["returning"] == 0


def test_o7_one_reservation_twice_in_a_batch_is_one_order(shop):
    """A broker may deliver it twice at once: the second is EXISTS, not a failed batch."""
    one = shop()
    one.buy("ann")
    batches = [claim.batch for claim in one.ledger.claim(owner="w", rows=9, lease_s=30)]
    (item,) = one.ledger.reservations_of(batches, one.sale)
    with one.ledger.creating([item, item]) as creating:
        assert [answer.name for answer in creating.answers] == ["CREATED", "EXISTS"]
        creating.execute(orders.insert(), [one.order(won) for won in creating.won])
    assert one.count("orders") == 1
