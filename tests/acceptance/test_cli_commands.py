"""The other commands: init, sale, config, plugins, worker; help, JSON and exit codes."""

import json
import re
import sqlite3
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from doorbuster.cli.app import EXAMPLES


def test_init_writes_a_sale_that_can_be_started_at_once(cli):
    """From nothing to an open sale in two commands."""
    done = cli("init", "--json")
    assert done.code == 0, done.err
    assert done.json["written"] == ["config/settings.toml", "config/sales/phone-x.toml"]
    for name in done.json["written"]:
        assert tomllib.loads((cli.folder / name).read_text())
    assert cli("config", "check", "--json").json["ok"]
    shown = cli("sale", "start", "phone-x", "--json").json
    assert (shown["state"], shown["promise"]) == ("open", "database")
    assert shown["skus"][0]["total"] == 10_000


def test_init_never_overwrites(cli):
    """A file that is there is named, nothing is written, exit 2."""
    sales = cli.folder / "mine" / "sales"
    sales.mkdir(parents=True)
    (sales / "phone-x.toml").write_text("# mine\n")
    done = cli("init", "mine", "--json")
    assert done.code == 2
    assert "mine/sales/phone-x.toml" in done.json["error"]
    assert (sales / "phone-x.toml").read_text() == "# mine\n"
    assert not (cli.folder / "mine" / "settings.toml").exists()
    assert "doorbuster config check --config mine" in done.err, "and what to do next"


def test_init_offers_the_modes_of_the_example_config():
    """Who starts from either has the same words to switch to."""
    here = Path(__file__).parents[2] / "config" / "settings.toml"
    template = resources.files("doorbuster.cli") / "templates" / "settings.toml"
    modes = [tomllib.loads(file.read_text())["modes"] for file in (here, template)]
    assert modes[0] == modes[1]
    assert modes[0].keys() == {"segments", "direct"}


def test_a_ledger_without_sales_is_said_and_not_made(cli, folder):
    """There is nothing to be good about: no table of seven oks, and no file."""
    folder()
    for words in (("worker", "--drain"), ("reconcile",), ("orders", "list"), ("alarms",)):
        done = cli(*words)
        assert (done.code, done.out) == (0, "no sales in sqlite:///doorbuster.db\n"), words
        assert cli(*words, "--json").code == 0
    checked = cli("reconcile", "--json").json
    assert (checked["balanced"], checked["sales"]) == (True, [])
    assert cli("orders", "list", "--sale", "drop", "--json").code == 2
    assert not (cli.folder / "doorbuster.db").exists()
    assert cli("worker", "--drain", "--roles", "persst", "--json").code == 2


@pytest.mark.slow
def test_the_life_of_a_sale(cli, folder):
    """Each step is safe to run twice; what a sale cannot do is refused with exit 2."""
    folder(skus="{ black = 5 }")
    assert cli("sale", "list", "--json").json["sales"] == [
        {
            "sale": "drop",
            "state": "not started",
            "run": None,
            "mode": "normal",
            "units": {"black": 5},
            "configured": True,
        }
    ]
    assert cli("sale", "open", "drop", "--json").code == 2
    for words, state in (
        (("create",), "created"),
        (("warmup",), "warmed"),
        (("warmup",), "warmed"),
        (("open",), "open"),
        (("start",), "open"),
        (("pause",), "paused"),
        (("pause",), "paused"),
        (("resume",), "open"),
        (("status",), "open"),
        (("end",), "ended"),
        (("create", "--again"), "created"),
        (("start", "--actor", "ann"), "open"),
    ):
        done = cli("sale", words[0], "drop", *words[1:], "--json")
        assert (done.code, done.json["state"]) == (0, state), (words, done)
    assert done.json["run"] == 2
    assert "open" in cli("sale", "status", "drop").out
    cli("sale", "end", "drop")
    for step in ("start", "create", "warmup", "open", "pause", "resume"):
        refused = cli("sale", step, "drop", "--json")
        assert refused.code == 2, step
        assert "doorbuster sale create drop --again, then sale start drop" in refused.json["error"]
    assert cli("sale", "start", "drp", "--json").code == 2


@pytest.mark.slow
def test_restock_up_and_down(cli, folder):
    """+N and -N need their sign; the same --id is applied once."""
    folder(skus="{ black = 5 }")
    cli("sale", "start", "drop")

    def total(*words):
        return cli("sale", "restock", "drop", "black", *words, "--json").json["skus"][0]["total"]

    assert total("+7") == 12
    assert total("-2") == 10
    assert total("+5", "--id", "monday") == 15
    assert total("+5", "--id", "monday") == 15
    for words in (("black", "7"), ("black", "+0"), ("black", "-99"), ("blck", "+1")):
        refused = cli("sale", "restock", "drop", *words, "--json")
        assert refused.code == 2, refused
        assert refused.json["error"]


def test_config_check_names_every_problem_and_exits_2(cli, folder):
    """All problems at once, each with its full dotted key; nothing is written."""
    folder(skus='{ black = "ten" }', more='mode = "segmnts"\n', base="[door]\nbatch_mx = 3\n")
    done = cli("config", "check", "--json")
    assert done.code == 2
    for key in ("sales.drop.skus.black", "sales.drop.mode", "door.batch_mx"):
        assert key in done.json["error"]
        assert key in done.err
    folder(base='[pipeline]\ndeduct = "db-atomc"\n')
    assert "db-atomic" in cli("config", "check", "--json").json["error"]
    assert not list(cli.folder.glob("*.db"))
    assert cli("config", "check", "--config", "nowhere", "--json").code == 2


@pytest.mark.slow
def test_config_check_tells_promises_and_where_the_ledger_differs(cli, folder):
    """Config's units are the first total only: what the ledger has now is said."""
    folder(skus="{ black = 5 }", base='[modes.direct]\nenqueue = "direct"\n')
    good = cli("config", "check", "--json").json
    assert good["promises"] == {"drop": {"normal": "database", "direct": "database"}}
    assert good["differs"] == []
    assert not list(cli.folder.glob("*.db"))
    cli("sale", "start", "drop")
    folder(skus="{ black = 9 }", per_buyer="2", base='[modes.direct]\nenqueue = "direct"\n')
    found = cli("config", "check", "--json").json["differs"]
    assert {(item["what"], json.dumps(item["ledger"])) for item in found} == {
        ("units of black", "5"),
        ("per_buyer", '{"sale": 1}'),
    }
    text = " ".join(cli("config", "check").out.split())
    assert "per_buyer is { sale = 1 } in the ledger, { sale = 2 } in the config" in text
    assert "restock" in text
    assert "drop normal database yes yes drop direct database drop closed -" in text
    folder(skus="{ white = 9 }", per_buyer=None, more="opens_at = 2026-11-11T20:00:00Z\n")
    text = " ".join(cli("config", "check").out.split())
    assert "black is not in the config any more" in text
    assert "white is not in the ledger" in text
    assert 'opens_at is not set in the ledger, "2026-11-11 20:00:00 UTC" in the config' in text
    assert "None" not in text


def test_config_show_has_every_default_and_no_secret(cli, folder):
    """``sales`` maps an id to its units, limit and mode; what people read is TOML."""
    config = folder(skus="{ black = 5, white = { units = 2, per_buyer = 1 } }")
    (config / "secrets.toml").write_text('[keys]\ncurrent = "a very secret key indeed"\n')
    done = cli("config", "show", "--json")
    sale = done.json["sales"]["drop"]
    assert (sale["skus"], sale["per_buyer"], sale["mode"]) == (
        {"black": 5, "white": 2},
        1,
        "normal",
    )
    assert done.json["keys"]["current"] == "***"
    shown = tomllib.loads(cli("config", "show").out)
    assert shown["sales"]["drop"]["skus"] == {"black": 5, "white": 2}


def test_plugins_are_listed_and_described(cli):
    """Stages, tier, delivery, and each option with its type, default and text."""
    found = {item["name"]: item for item in cli("plugins", "list", "--json").json["plugins"]}
    assert found["db-atomic"]["tier"] == "router"
    assert found["direct"]["delivery"] == "inline"
    assert "enqueue" in found["outbox"]["stages"]
    assert found["memory"]["tier"] == "holder"
    info = cli("plugins", "info", "db-segments", "--json").json
    (option,) = info["options"]
    assert (option["name"], option["default"], option["required"]) == ("segments", 10, False)
    assert "whole number" in option["takes"]
    assert option["doc"]
    assert info["class"] == "doorbuster_db_stock:SegmentedStock"
    assert "segments" in cli("plugins", "info", "db-segments").out
    unknown = cli("plugins", "info", "db-atomc", "--json")
    assert unknown.code == 2
    assert "db-atomic" in unknown.json["error"]


def test_what_operators_read_of_plugins_has_no_marks_and_no_codes(cli):
    """Codes of rules and marks of markup are for those who read the source."""
    listed = cli("plugins", "list")
    assert "kind" in listed.out
    for item in json.loads(cli("plugins", "list", "--json").out)["plugins"]:
        told = cli("plugins", "info", item["name"], "--json").json
        assert told["problems"] == []
        for text in (told["summary"], *(option["doc"] for option in told["options"])):
            assert not re.search(r"`|\b[A-Z]\d+-\d+|\bF\d+|\.md", text), text


WRONG = """
from doorbuster.plugin import hookimpl

class Typo:
    @hookimpl
    def filtr(self, batch): ...

class Later:
    @hookimpl
    async def limit(self, batch): ...

class Half:
    @hookimpl
    def deduct(self, batch): ...
    @hookimpl
    def compensate(self, items): ...
"""


@pytest.mark.parametrize(
    ("name", "problem"),
    [("Typo", "filtr"), ("Later", "a stage is synchronous"), ("Half", "lacks prepare, credit")],
)
def test_a_plugin_that_does_not_fit_is_told_before_config_uses_it(cli, name, problem):
    """A hook with a typo, an async stage, half a holder: exit 1, in words."""
    (cli.folder / "wrongly.py").write_text(WRONG)
    about = cli.folder / "wrongly-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: wrongly\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[doorbuster.plugins]\nwrong = wrongly:{name}\n")
    done = cli("plugins", "info", "wrong", "--json")
    assert done.code == 1
    (told,) = done.json["problems"]
    assert problem in told
    assert problem in " ".join(cli("plugins", "info", "wrong").out.split())


@pytest.mark.slow
def test_drain_says_what_it_could_not_do(cli, folder):
    """Work of a sale that config lacks is not forgotten: exit 1 names it."""
    config = folder(skus="{ black = 5 }")
    (cli.folder / "a.jsonl").write_text('{"buyer": "a", "request_id": "r", "sku": "black"}\n')
    assert cli("replay", "a.jsonl").code == 0
    assert cli("worker", "--drain", "--json").json["drained"]
    with sqlite3.connect(cli.folder / "doorbuster.db") as db:
        db.execute("UPDATE outbox SET done = 0")
    db.close()
    (config / "sales" / "drop.toml").rename(config / "sales" / "other.toml")
    done = cli("worker", "--drain", "--json")
    assert done.code == 1
    assert done.json["unfinished"] == [{"sale": "drop", "run": 1, "batches": 1, "jobs": 0}]
    assert cli("worker", "--drain", "--roles", "persst", "--json").code == 2


@pytest.mark.slow
def test_orders_and_alarms_can_be_read(cli, folder):
    """An order is found by buyer and by number; what is not there is said."""
    folder(skus="{ black = 5 }")
    (cli.folder / "a.jsonl").write_text('{"buyer": "a", "request_id": "r", "sku": "black"}\n')
    cli("replay", "a.jsonl")
    (order,) = cli("orders", "list", "--buyer", "a", "--json").json["orders"]
    assert (order["sale"], order["lines"], order["state"]) == ("drop", "black=1", "CREATED")
    shown = cli("orders", "show", order["order_no"], "--json").json
    assert (shown["intent_state"], shown["release"]) == ("CREATED", None)
    cli.env["COLUMNS"] = "80"
    (cli.folder / "b.jsonl").write_text(
        json.dumps({"buyer": "z" * 40, "request_id": "r", "sku": "black"}) + "\n"
    )
    cli("replay", "b.jsonl")
    listed = cli("orders", "list", "--sale", "drop").out
    assert order["order_no"] in listed
    assert listed.count("z") == 40, "a long value is folded, not cut"
    assert "\u2026" not in listed
    lines = listed.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines == [line.rstrip() for line in lines]
    assert cli("orders", "list", "--buyer", "b", "--json").json == {"orders": []}
    assert cli("orders", "show", "0" * 32, "--json").code == 1
    assert cli("orders", "list", "--sale", "nope", "--json").code == 2
    assert cli("alarms", "--json").json == {"alarms": []}


def test_migrate_twice_is_migrate_once(cli, folder):
    """The first brings the schema, the second finds nothing to do."""
    folder()
    first = cli("migrate", "--json").json
    assert first["before"] == 0
    assert cli("migrate", "--json").json == {"before": first["after"], "after": first["after"]}


def test_without_a_config_the_way_out_is_named(cli):
    """Exit 2, and the command that writes one."""
    done = cli("sale", "start", "phone-x")
    assert done.code == 2
    assert done.out == ""
    assert "doorbuster init" in done.err


def test_usage_errors_exit_2_and_with_json_are_one_object(cli):
    """Also what is wrong with the command line itself."""
    assert cli("demo", "--stock", "many").code == 2
    done = cli("demo", "--stok", "3", "--json")
    assert done.code == 2
    assert "--stok" in done.json["error"]
    assert cli("nonsense").code == 2


def test_help_is_grouped(cli):
    """Start, Sell, Operate, Recover, Build, in this order."""
    text = cli("--help").out
    at = [text.index(f"─ {panel} ─") for panel in ("Start", "Sell", "Operate", "Recover", "Build")]
    assert at == sorted(at)
    assert re.search(r"doorbuster \d", cli("--version").out)


@pytest.mark.slow
@pytest.mark.parametrize("words", sorted(EXAMPLES))
def test_every_command_has_help_with_an_example(cli, words):
    """What is not explained does not exist."""
    done = cli(*words.split(), "--help")
    assert done.code == 0
    assert "Example: doorbuster" in done.out
    assert EXAMPLES[words].startswith(f"doorbuster {words}")


def test_help_breaks_its_lines_only_where_the_terminal_ends(cli):
    """Lines of the source are not lines of the help."""
    cli.env["COLUMNS"] = "80"
    lines = [line.strip() for line in cli("replay", "--help").out.splitlines()]
    at = next(n for n, line in enumerate(lines) if line.startswith("The sale is created"))
    for line, following in zip(lines[at : at + 2], lines[at + 1 :], strict=False):
        assert len(line) + 1 + len(following.split()[0]) > 78, line
