"""``demo``: the main job in small, in every mode, and what it does to files that are there."""

import io
import sqlite3

import pytest
from rich.console import Console

from doorbuster.cli.demo_sale import DEMO_URL
from doorbuster.cli.report import FAULTS, show

LAWS = ("oversold", "lost", "duplicates", "limit_breaches", "bad_rows")
SMALL = ("--stock", "200", "--attempts", "2000", "--concurrency", "64")


@pytest.mark.parametrize("mode", ["normal", "segments", "direct"])
def test_a_small_demo_sells_exactly_its_stock(cli, mode):
    """Repeats, over-limit tries and nonsense change no law, in any mode."""
    done = cli("demo", *SMALL, "--mode", mode, "--json")
    report = done.json
    assert done.code == 0, done.err
    assert {law: report[law] for law in LAWS} == dict.fromkeys(LAWS, 0)
    assert report["reconcile"] == {"balanced": True, "drift": 0}
    assert (report["sale"], report["stock"], report["mode"]) == ("demo", 200, mode)
    assert report["accepted"] == report["orders"] == 200
    assert report["attempts"] == sum(report["outcomes"].values()) == 2000
    assert {"SOLD_OUT", "OVER_LIMIT", "INVALID", "KEY_REUSED"} <= report["outcomes"].keys()
    assert set(report["latency_ms"]) == {"p50", "p95", "p99"}
    assert report["promise"] == "database"
    assert report["seconds"] > 0
    assert report["attempts_per_s"] > 0


def test_the_demo_ends_with_a_table_and_one_sentence(cli):
    """A person reads what callers heard, what the ledger holds, and a verdict."""
    done = cli("demo", "--stock", "20", "--attempts", "200")
    assert done.code == 0, done.err
    assert "sqlite:///doorbuster-demo.db" in done.err
    for text in ("SOLD_OUT", "oversold", "Every one of the 20 accepted attempts"):
        assert text in done.out


@pytest.mark.slow
def test_the_demo_starts_fresh_unless_it_is_kept(cli):
    """--keep goes on: an identity that was accepted gets its answer again, and no new order."""
    first = cli("demo", *SMALL, "--json").json
    fresh = cli("demo", *SMALL, "--json").json
    assert fresh["accepted"] == first["accepted"] == 200
    kept = cli("demo", *SMALL, "--keep", "--json").json
    assert (kept["accepted"], kept["orders"], kept["duplicates"]) == (200, 200, 0)
    with sqlite3.connect(cli.folder / "doorbuster-demo.db") as db:
        assert db.execute("SELECT count(*) FROM orders").fetchone() == (200,)
    db.close()


@pytest.mark.slow
def test_keep_refuses_a_mode_that_sells_from_another_place(cli):
    """A started sale keeps its deduct plugin; direct shares it with normal."""
    assert cli("demo", *SMALL, "--json").code == 0
    assert cli("demo", *SMALL, "--keep", "--mode", "direct", "--json").code == 0
    refused = cli("demo", *SMALL, "--keep", "--mode", "segments", "--json")
    assert refused.code == 2
    assert "--keep" in refused.json["error"]


@pytest.mark.slow
def test_a_named_database_is_never_deleted(cli):
    """With --url the demo begins a new run beside the old one, and both balance."""
    url = "sqlite:///mine.db"
    assert cli("demo", *SMALL, "--url", url, "--json").json["accepted"] == 200
    assert cli("demo", *SMALL, "--url", url, "--json").json["orders"] == 200
    checked = cli("reconcile", "--url", url, "--json").json
    assert [(sale["run"], sale["state"]) for sale in checked["sales"]] == [
        (1, "ended"),
        (2, "open"),
    ]
    assert checked["balanced"]


@pytest.mark.slow
def test_a_sale_of_that_name_which_no_demo_made_is_left_alone(cli, folder):
    """The demo ends only what a demo began."""
    (folder() / "sales" / "drop.toml").rename(cli.folder / "config" / "sales" / "demo.toml")
    assert cli("sale", "start", "demo").code == 0
    for keep in ((), ("--keep",)):
        refused = cli("demo", "--url", "sqlite:///doorbuster.db", "--json", *keep)
        assert refused.code == 2
        assert "not by a demo" in refused.json["error"]
    assert cli("sale", "status", "demo", "--json").json["state"] == "open"


@pytest.mark.slow
def test_a_demo_database_needs_no_config_folder(cli, folder):
    """Every command that works on a ledger finds the demo's settings, and says so."""
    url = ("--url", "sqlite:///doorbuster-demo.db")
    assert cli("demo", *SMALL, "--json").code == 0
    for words in (
        ("reconcile",),
        ("worker", "--drain"),
        ("orders", "list"),
        ("alarms",),
        ("sale", "status", "demo"),
        ("sale", "list"),
    ):
        done = cli(*words, *url, "--json")
        assert done.code == 0, (words, done)
        assert "built-in settings" in done.err
        assert done.json
        assert cli(*words, "--json").json == done.json, "found without --url"
    folder()  # a folder about something else changes nothing
    assert cli("worker", "--drain", *url, "--json").json["drained"]
    assert cli("sale", "list", *url, "--json").json["sales"][0]["sale"] == "demo"


@pytest.mark.slow
def test_a_stopped_demo_is_found_beside_a_ledger_without_sales(cli, folder):
    """Looking and draining without --url go to the demo's ledger, and one line names it."""
    done = cli("demo", *SMALL, "--json")
    assert f"if this is stopped: doorbuster worker --drain --url {DEMO_URL}" in done.err
    folder()
    (cli.folder / "doorbuster.db").touch()  # there, but empty
    assert len(cli("orders", "list", "--json").json["orders"]) == 20
    assert cli("worker", "--drain", "--json").json["drained"]
    assert [sale["sale"] for sale in cli("reconcile", "--json").json["sales"]] == ["demo"]
    shown = cli("alarms")
    assert shown.out == "no alarms\n"
    assert [line for line in shown.err.splitlines() if DEMO_URL in line] == [shown.err.strip()]
    assert cli("sale", "status", "demo", "--json").json["sale"] == "demo"
    assert cli("sale", "list", "--json").json["sales"][0]["sale"] == "drop", "the folder's own"
    assert cli("sale", "end", "demo", "--json").code == 2, "what changes a sale names its ledger"
    assert cli("reconcile", "--sale", "drop", "--json").code == 2
    assert cli("sale", "start", "drop").code == 0
    assert [sale["sale"] for sale in cli("reconcile", "--json").json["sales"]] == ["drop"]


@pytest.mark.slow
def test_a_kept_demo_that_was_ended_sells_in_its_next_run(cli):
    """An ended sale sells nothing more; the demo makes its next run by itself."""
    assert cli("demo", *SMALL, "--json").code == 0
    assert cli("sale", "end", "demo", "--url", DEMO_URL).code == 0
    kept = cli("demo", *SMALL, "--keep", "--json")
    assert (kept.code, kept.json["accepted"]) == (0, 200)


@pytest.mark.parametrize(
    ("busy", "url", "sentence"),
    [
        (0, None, None),
        (1, None, "1 attempt got no decision: run it again."),
        (2, "sqlite:///x.db", "3,002 attempts got no decision: run it again, with --keep."),
    ],
)
def test_attempts_without_a_decision_are_said_at_the_end(busy, url, sentence):
    """BUSY and PENDING are no answers: the closing words say what to do."""
    outcomes = {"ACCEPTED": 5, "BUSY": busy, "PENDING": 3000 if busy > 1 else 0}
    times = {"p50": 1.0, "p95": 1.0, "p99": 1.0}
    report = dict.fromkeys((*FAULTS, "bad_rows", "unfinished", "stock", "orders", "attempts"), 0)
    report |= {"accepted": 5, "outcomes": outcomes, "latency_ms": times, "seconds": 1.0}
    report |= {"attempts_per_s": 1, "mode": "normal", "promise": "database"}
    report |= {"reconcile": {"balanced": True, "drift": 0}} | ({"url": url} if url else {})
    text = io.StringIO()
    show(Console(file=text, width=120), report, next_step="orders list")
    if sentence is None:
        assert "no decision" not in text.getvalue()
    else:
        assert f"\n{sentence}\n" in text.getvalue()


def test_a_database_that_cannot_be_written_is_one_clear_line(cli):
    """No traceback and no storm of tries: one line that says what is wrong."""
    (cli.folder / "taken.db").mkdir()
    done = cli("demo", *SMALL, "--url", "sqlite:///taken.db")
    assert done.code == 1
    assert done.out == ""
    beside = ("ledger: ", "if this is stopped: ")
    told = f"unable to open database file; {cli.folder}/taken.db is a folder: name a file in it"
    assert [line for line in done.err.splitlines() if not line.startswith(beside)] == [
        f"doorbuster: ledger.url 'sqlite:///taken.db' is not available: {told}"
    ]
