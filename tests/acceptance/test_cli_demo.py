"""``demo``: the main job in small, in every mode, and what it does to files that are there."""

import sqlite3

import pytest

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
    folder()  # a folder about something else changes nothing
    assert cli("worker", "--drain", *url, "--json").json["drained"]
    assert cli("sale", "list", *url, "--json").json["sales"][0]["sale"] == "demo"


def test_a_database_that_cannot_be_written_is_one_clear_line(cli):
    """No traceback and no storm of tries: one line that says what is wrong."""
    (cli.folder / "taken.db").mkdir()
    done = cli("demo", *SMALL, "--url", "sqlite:///taken.db")
    assert done.code == 1
    assert done.out == ""
    assert [line for line in done.err.splitlines() if not line.startswith("ledger: ")] == [
        "doorbuster: the ledger's database is not available: unable to open database file"
    ]
