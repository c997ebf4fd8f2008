"""``replay``: the main job from a file, twice, with everything a file can have wrong."""

import gzip
import json
import sqlite3
import subprocess
import sys

import pytest

LAWS = ("oversold", "lost", "duplicates", "limit_breaches")


def rows(n):
    """``n`` buyers ask once each, then each asks for one more; some repeat themselves."""
    first = [
        {"buyer": f"b{k}", "request_id": "r1", "sku": "black", "quantity": 1} for k in range(n)
    ]
    return [*first, *first[: n // 2], *[row | {"request_id": "r2"} for row in first]]


def write_jsonl(path, found):
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def write_csv(path, found):
    lines = ["buyer,request_id,sku,quantity"]
    lines += [",".join(map(str, row.values())) for row in found]
    path.write_text("\n".join(lines) + "\n")
    return path


def orders_in(cli):
    with sqlite3.connect(cli.folder / "doorbuster.db") as db:
        found = db.execute("SELECT buyer, request_id, order_no FROM orders").fetchall()
    db.close()
    return sorted(found)


@pytest.mark.parametrize("write", [write_jsonl, write_csv])
def test_a_file_is_replayed_and_a_second_run_changes_nothing(cli, folder, write):
    """The sale is started by itself; identities that were accepted get their orders again."""
    folder(skus="{ black = 30 }")
    file = write(cli.folder / f"attempts.{write.__name__[6:]}", rows(40))
    first = cli("replay", file, "--json")
    assert first.code == 0, first.err
    report = first.json
    assert {law: report[law] for law in LAWS} == dict.fromkeys(LAWS, 0)
    assert (report["sale"], report["stock"], report["attempts"]) == ("drop", 30, 100)
    assert report["accepted"] == report["orders"] == 30
    assert report["bad_rows"] == 0
    assert report["reconcile"] == {"balanced": True, "drift": 0}
    before = orders_in(cli)
    again = cli("replay", file, "--json").json
    assert again["accepted"] == again["orders"] == 30
    assert orders_in(cli) == before


def test_bad_rows_are_named_and_the_rest_goes_on(cli, folder):
    """A row that is no attempt has a line number; one with odd values is INVALID, or sells."""
    folder(skus="{ black = 5, white = 5 }", per_buyer=None)
    lines = [
        "{nonsense",
        json.dumps({"buyer": "a", "request_id": "r", "sku": "black", "quantity": 2}),
        "[1, 2]",
        json.dumps({"request_id": "r", "sku": "black"}),
        json.dumps({"buyer": "a", "sku": "black"}),
        "",
        json.dumps({"buyer": "b", "request_id": "r", "sku": "nope", "quantity": 1}),
        json.dumps({"buyer": "c", "request_id": "r", "sku": "black", "quantity": "1e3"}),
        json.dumps({"buyer": "c", "request_id": "r", "sku": "black", "quantity": True}),
        json.dumps({"buyer": "c", "request_id": "r", "sku": "black", "quantity": -1}),
        json.dumps({"buyer": "c", "request_id": "r", "sku": "black", "quantity": 1.0}),
        json.dumps({"buyer": "c", "request_id": "r", "sku": "black", "quantity": 10**12}),
        json.dumps({"buyer": "not an id", "request_id": "r", "sku": "black", "quantity": 1}),
        json.dumps({"buyer": "c", "request_id": "r", "lines": []}),
        json.dumps({"buyer": "c", "request_id": "r", "lines": ["black"]}),
        json.dumps(
            {
                "buyer": "d",
                "request_id": "r",
                "lines": [{"sku": "black", "quantity": 1}, {"sku": "white", "quantity": 2}],
            }
        ),
    ]
    (cli.folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    done = cli("replay", "a.jsonl", "--json")
    report = done.json
    assert done.code == 0, done.err
    assert [bad["line"] for bad in report["bad_lines"]] == [1, 3, 4, 5]
    assert report["bad_rows"] == 4
    assert report["outcomes"] == {"INVALID": 9, "ACCEPTED": 2}
    assert report["accepted"] == report["orders"] == 2
    assert "a.jsonl:4: no buyer" in done.err


def test_bad_rows_of_a_csv(cli, folder):
    """A stray quote or a missing column spoils its own row; numbers are read strictly."""
    folder(skus="{ black = 5, white = 5 }", per_buyer=None)
    text = "\n".join(
        [
            "buyer,request_id,sku,quantity,lines",
            "a,r,black,1,",
            "b,r,black",
            '"c,r,black,1,',
            ",r,black,1,",
            "d,r,black,1e3,",
            "e,r,black,+1,",
            "f,r,black,,",
            'g,r,,,"[{""sku"": ""white"", ""quantity"": 2}, {""sku"": ""black""}]"',
            "h,r,,,not json",
        ]
    )
    (cli.folder / "a.csv").write_text("\ufeff" + text)  # no line end at the end of the file
    report = cli("replay", "a.csv", "--json").json
    assert [bad["line"] for bad in report["bad_lines"]] == [3, 4, 5]
    assert report["outcomes"] == {"INVALID": 4, "ACCEPTED": 2}
    assert report["orders"] == 2


def test_only_the_first_bad_rows_are_named_but_all_are_counted(cli, folder):
    """A file of nonsense does not fill the report."""
    folder()
    (cli.folder / "a.jsonl").write_text("x\n" * 50)
    done = cli("replay", "a.jsonl", "--json")
    assert done.json["bad_rows"] == 50
    assert len(done.json["bad_lines"]) == 20
    assert "30 more" in done.err


@pytest.mark.slow
def test_a_file_may_come_from_stdin_and_be_gzipped(cli, folder):
    """The format is known by the content when the name does not say it."""
    folder()
    found = rows(2)
    text = "".join(json.dumps(row) + "\n" for row in found)
    assert cli("replay", "-", "--json", stdin=text).json["accepted"] == 2
    (cli.folder / "a.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    assert cli("replay", "a.jsonl.gz", "--json").json["accepted"] == 2
    csv_text = write_csv(cli.folder / "x", found).read_text()
    assert cli("replay", "-", "--json", stdin=csv_text).json["accepted"] == 2


@pytest.mark.slow
def test_at_ms_paces_only_with_speed(cli, folder):
    """Without --speed a file of an hour takes no time; with it, its time divided by the speed."""
    folder()
    found = [row | {"at_ms": n * 1000} for n, row in enumerate(rows(4)[:4])]
    file = write_jsonl(cli.folder / "a.jsonl", found)
    assert cli("replay", file, "--json").json["seconds"] < 1
    paced = cli("replay", file, "--speed", "10", "--json").json
    assert 0.3 <= paced["seconds"] < 2


def test_a_sale_that_somebody_else_created_is_not_opened(cli, folder):
    """It starts what the ledger lacks; what an operator holds back stays NOT_STARTED."""
    folder()
    file = write_jsonl(cli.folder / "a.jsonl", rows(2)[:2])
    assert cli("sale", "create", "drop").code == 0
    assert cli("replay", file, "--json").json["outcomes"] == {"NOT_STARTED": 2}
    assert cli("sale", "status", "drop", "--json").json["state"] == "created"


@pytest.mark.slow
def test_which_sale_must_be_clear(cli, folder):
    """One sale in the config needs no name; of several, one is named; a wrong one is refused."""
    config = folder()
    (config / "sales" / "other.toml").write_text("skus = { black = 1 }\n")
    file = write_jsonl(cli.folder / "a.jsonl", rows(1)[:1])
    unclear = cli("replay", file, "--json")
    assert unclear.code == 2
    assert "drop, other" in unclear.json["error"]
    assert cli("replay", file, "--sale", "othr", "--json").code == 2
    assert cli("replay", file, "--sale", "other", "--json").json["sale"] == "other"
    assert cli("replay", "no-such-file", "--sale", "other", "--json").code == 2


def test_a_csv_must_name_its_columns(cli, folder):
    """Without a head nobody knows which column is the buyer: refused, nothing is sold."""
    folder()
    (cli.folder / "a.csv").write_text("ann,r1,black,1\n")
    done = cli("replay", "a.csv", "--json")
    assert done.code == 2
    assert "buyer and request_id" in done.json["error"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "law"),
    [
        ("DELETE FROM orders WHERE buyer = 'b0'", "lost"),
        ("UPDATE orders SET order_no = 'another' WHERE buyer = 'b0'", "lost"),
        (
            """INSERT INTO orders (order_no, environment, sale, buyer, request_id, lines, state,
            created_at_ms) SELECT 'second', environment, sale, buyer, request_id, lines, state,
            created_at_ms FROM orders WHERE buyer = 'b0'""",
            "duplicates",
        ),
        ("UPDATE stock SET total = total - 1", "oversold"),
        ("UPDATE intents SET buyer = 'b1', request_id = 'x' WHERE buyer = 'b0'", "limit_breaches"),
    ],
)
def test_a_broken_law_is_counted_and_exits_1(cli, folder, spoil, law):
    """Counts come from the rows themselves: whoever spoils one is found out."""
    folder(skus="{ black = 2 }")
    file = write_jsonl(cli.folder / "a.jsonl", rows(2)[:2])
    assert cli("replay", file, "--json").code == 0
    with sqlite3.connect(cli.folder / "doorbuster.db") as db:
        db.execute(spoil)
    db.close()
    done = cli("replay", file, "--json")
    assert done.code == 1
    assert done.json[law] == 1
    assert cli("reconcile").code == 1


def test_a_line_beyond_the_bound_is_a_bad_row(cli):
    """Its head may look like a good row: nothing of it is asked."""
    assert cli("init").code == 0
    row = json.dumps({"buyer": "ann", "request_id": "r1", "sku": "black"})
    (cli.folder / "long.jsonl").write_text(f"{row}{' ' * (1 << 20)}junk\n{row}\n", "utf-8")
    done = cli("replay", "long.jsonl", "--json").json
    assert (done["attempts"], done["bad_rows"], done["accepted"]) == (1, 1, 1)


def test_a_stdout_that_is_full_ends_in_one_line_on_stderr(cli):
    """No traceback, and exit code 1."""
    assert cli("init").code == 0
    words = [
        sys.executable,
        "-c",
        "from doorbuster.cli import main; main()",
        "sale",
        "list",
        "--json",
    ]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, cwd=cli.folder, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "doorbuster: No space left on device\n"
