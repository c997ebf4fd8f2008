"""What an operator can do wrong with ``ledger.url``, and what each mistake is told.

A message is one line. It names ``ledger.url``, what it says, and what to do; and no secret (X9).
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
import structlog

from doorbuster.cli import app
from doorbuster.errors import ConfigError, UnavailableError
from doorbuster.ledger import Ledger
from doorbuster.ledger.database import Database
from doorbuster.ledger.url import file_of, read_url
from doorbuster.testing.clock import ManualClock

SECRET = "S3CRET"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder to be in, since paths may be relative."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


@pytest.fixture
def opened():
    """Open ledgers that are closed at the end."""
    ledgers = []

    def make(url, *, wait_ms=20):
        ledgers.append(Ledger.open(url, ManualClock(), wait_ms=wait_ms))
        return ledgers[-1]

    yield make
    for ledger in ledgers:
        ledger.close()


def told(url, error, *words):
    """The message, after it was seen to be one line with the key, the value and the words."""
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith("ledger.url"), text
    assert repr(url) in text
    assert SECRET not in text
    for word in words:
        assert str(word) in text, text
    return text


# ------------------------------------------------------------------ the URL
REFUSED = [
    # what it says, what is shown of it, what to do
    ("nonsense", "nonsense", "a file is written 'sqlite:///nonsense'"),
    ("shop/door.db", "shop/door.db", "a file is written 'sqlite:///shop/door.db'"),
    ("/var/door.db", "/var/door.db", "a file is written 'sqlite:////var/door.db'"),
    ("", "", "a file is written 'sqlite:///doorbuster.db'"),
    ("oracle://h/d", "oracle://h/d", "the ledger runs on SQLite, for example 'sqlite:///"),
    (f"postgresql://u:{SECRET}@h/d", "postgresql://u:***@h/d", "the ledger runs on SQLite"),
    (f"postgresql://h/d?password={SECRET}", "postgresql://h/d", "the ledger runs on SQLite"),
    (f"mysql+pymysql://u:{SECRET}@h", "mysql+pymysql://u:***@h", "the ledger runs on SQLite"),
    ("mariadb://h", "mariadb://h", "the ledger runs on SQLite"),
    ("SQLite:///x.db", "SQLite:///x.db", "the ledger runs on SQLite"),
    ("sqlite+aiosqlite:///x.db", "sqlite+aiosqlite:///x.db", "write 'sqlite:///x.db'"),
    ("sqlite+nope:///x.db", "sqlite+nope:///x.db", "write 'sqlite:///x.db'"),
    (f"sqlite+pysqlcipher://:{SECRET}@/x", "sqlite+pysqlcipher://:***@/x", "write 'sqlite:///x'"),
    ("sqlite://x.db", "sqlite://x.db", "write three slashes"),
    (f"sqlite://u:{SECRET}@h/x", "sqlite://u:***@h/x", "write three slashes"),
    ("sqlite:///a\0b", "sqlite:///a\0b", "no NUL"),
    ("sqlite:///x.db?timeout=5", "sqlite:///x.db?timeout=5", "set ledger.wait_ms"),
    ("sqlite:///x.db?timeout=soon", "sqlite:///x.db?timeout=soon", "set ledger.wait_ms"),
    ("sqlite:///file:x?timeout=5&uri=true", "sqlite:///file:x?timeout=5&uri=true", "wait_ms"),
    (f"sqlite:///x.db?key={SECRET}", "sqlite:///x.db", "'key' is not an option"),
    ("sqlite:///x.db?isolation_level=DEFERRED", "sqlite:///x.db", "leave it out"),
    ("sqlite:///x.db?check_same_thread=true", "sqlite:///x.db", "leave it out"),
    ("sqlite:///x.db?mode=ro", "sqlite:///x.db?mode=ro", "write 'sqlite:///file:"),
    ("sqlite:///x.db?uri=true", "sqlite:///x.db?uri=true", "write 'sqlite:///file:"),
    ("sqlite:///x.db?mode=ro&uri=true", "sqlite:///x.db?mode=ro&uri=true", "write 'sqlite:///file"),
    ("sqlite:///file:x.db", "sqlite:///file:x.db", "write 'sqlite:///file:"),
    ("sqlite:///file:x.db?mode=ro", "sqlite:///file:x.db?mode=ro", "write 'sqlite:///file:"),
    ("sqlite:///file:x?uri=maybe", "sqlite:///file:x?uri=maybe", "write one of true"),
    ("sqlite:///file:x?uri=true&mode=w", "sqlite:///file:x?uri=true&mode=w", "one of ro, rw, rwc"),
    (
        "sqlite:///file:x?uri=true&mode=ro&mode=rw",
        "sqlite:///file:x?uri=true&mode=ro&mode=rw",
        "one of ro, rw, rwc",
    ),
    (
        "sqlite:///file:x?uri=true&cache=shared",
        "sqlite:///file:x?uri=true&cache=shared",
        "leave it out",
    ),
    *(
        (f"sqlite:///file:x?uri=true&{option}=1", "sqlite:///file%3Ax", f"'{option}' is not")
        for option in ("immutable", "nolock", "vfs")
    ),
]


@pytest.mark.parametrize(("url", "shown", "remedy"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_url_that_cannot_be_obeyed_is_refused_with_what_to_write(url, shown, remedy, folder):
    """Before anything is opened or made: nothing of it is dropped in silence."""
    with pytest.raises(ConfigError) as error:
        Ledger.open(url, ManualClock())
    told(shown, error, remedy)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [f"sqlite:u:{SECRET}@h", f"postgres//u:{SECRET}@h/d", f"://{SECRET}", f"sqlite://h:{SECRET}"],
)
def test_x9_a_malformed_url_is_told_without_its_text(url):
    """It may hold a password anywhere, also where a port is expected; the remedy is told."""
    with pytest.raises(ConfigError) as error:
        read_url(url)
    assert str(error.value) == (
        "ledger.url is not a database URL; a file is written 'sqlite:///doorbuster.db'"
    )
    assert error.value.__suppress_context__, "nor does the traceback show it"


@pytest.mark.parametrize("url", [row[0] for row in REFUSED if row[0]])
def test_a_message_names_no_database_that_is_not_supported(url):
    """But the one that was asked for."""
    with pytest.raises(ConfigError) as error:
        read_url(url)
    for name in ("postgres", "mysql", "mariadb", "oracle"):
        assert name in url or name not in str(error.value).lower()


def tables_of(connection):
    return {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}


ACCEPTED = [
    ("sqlite:///shop.db", "shop.db"),
    ("sqlite+pysqlite:///shop.db", "shop.db"),
    ("sqlite:///a shop.db", "a shop.db"),
    ("sqlite:///file:shop.db?uri=true", "shop.db"),
    ("sqlite:///file:shop.db?mode=rwc&uri=true", "shop.db"),
    ("sqlite:///file:shop.db?mode=rw&uri=true", "shop.db"),
    ("sqlite:///file:shop.db?cache=private&uri=true", "shop.db"),
    ("sqlite:///file:a%2520shop%253F.db?uri=true", "a shop?.db"),
]


@pytest.mark.parametrize(("url", "name"), ACCEPTED)
@pytest.mark.parametrize("absolute", [False, True])
def test_a_checkpoint_opens_the_same_file_as_the_ledger(
    url, name, absolute, folder, tmp_path, blank, opened, monkeypatch
):
    """With its options, wherever the process goes meanwhile; and no other file is made."""
    file = folder / name
    shutil.copy(blank, file)
    if absolute:
        head, tail = url.split("file:") if "file:" in url else url.rsplit("/", 1)
        url = f"{head}{'file:' if 'file:' in url else '/'}{folder}/{tail}"
    ledger = opened(url)
    assert ledger.database.file == file
    assert not ledger.database.in_memory
    monkeypatch.chdir(tmp_path)
    assert ledger.migrate()[0] > 0, "it is the ledger that was there"
    with closing(ledger.database._connect_driver()) as connection:
        assert connection.execute("PRAGMA database_list").fetchone()[2] == str(file)
        assert "intents" in tables_of(connection)
        assert connection.execute("PRAGMA busy_timeout").fetchone() == (20,)
    with ledger.database.read() as reader:
        (row,) = reader.exec_driver_sql("PRAGMA database_list")
        assert row[2] == str(file)
    assert {path.name.removesuffix("-wal").removesuffix("-shm") for path in folder.iterdir()} == {
        name
    }


def test_a_checkpoint_of_a_read_only_url_cannot_write(folder, blank, opened):
    """The mode of the URL is that of every connection."""
    shutil.copy(blank, folder / "shop.db")
    database = opened("sqlite:///file:shop.db?mode=ro&uri=true").database
    with (
        closing(database._connect_driver()) as connection,
        pytest.raises(sqlite3.OperationalError, match="readonly"),
    ):
        connection.execute("CREATE TABLE t (x)")


def test_a_checkpoint_that_cannot_connect_leaves_nothing_open(folder, blank, opened, monkeypatch):
    """The connection it got is closed again."""
    shutil.copy(blank, folder / "shop.db")
    database = opened("sqlite:///shop.db").database
    refused = []

    def refuse(connection, _record):
        refused.append(connection)
        raise ConfigError

    monkeypatch.setattr(database, "_on_connect", refuse)
    with pytest.raises(ConfigError):
        database._connect_driver()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        refused[0].execute("SELECT 1")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?uri=true",
        "sqlite:///file::memory:?cache=shared&uri=true",
        "sqlite:///file:q?mode=memory&cache=shared&uri=true",
    ],
)
def test_a_database_without_a_file_is_in_memory(url, opened, folder):
    """However its URL is written; one connection is all of it, and no file is made."""
    ledger = opened(url)
    assert ledger.database.in_memory
    assert file_of(read_url(url)) is None
    ledger.migrate()
    assert ledger.sales() == []
    assert list(folder.iterdir()) == []


def test_a_file_uri_without_a_path_is_refused(opened):
    """SQLite would make a file of its own for each connection."""
    url = "sqlite:///file:?uri=true"
    with pytest.raises(ConfigError) as error:
        opened(url).sales()
    told(url, error, "WAL is needed", "name a file that can be written")


# ------------------------------------------------------------------ the file
def other_program(folder, *tables):
    """A database that another program made."""
    with closing(sqlite3.connect(folder / "it.db")) as connection:
        for table in tables:
            connection.execute(f"CREATE TABLE {table} (version TEXT)")
            connection.execute(f"INSERT INTO {table} VALUES ('abc')")
        connection.commit()


def damaged(folder):
    file = folder / "it.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE t (x)")
    with file.open("r+b") as stream:
        stream.seek(100)
        stream.write(b"\xff" * 200)


PLAIN, RO, RW = (
    "sqlite:///it.db",
    "sqlite:///file:it.db?mode=ro&uri=true",
    ("sqlite:///file:it.db?mode=rw&uri=true"),
)
FILES = {
    "the folder is missing": (
        lambda folder: None,
        "sqlite:///no/such/it.db",
        UnavailableError,
        ("unable to open", "folder {here}/no/such does not exist: make it", "sqlite:////"),
    ),
    "the folder is a file": (
        lambda folder: (folder / "no").touch(),
        "sqlite:///no/it.db",
        UnavailableError,
        ("unable to open", "{here}/no is not a folder: name a file in one"),
    ),
    "it is a folder": (
        lambda folder: (folder / "it.db").mkdir(),
        PLAIN,
        UnavailableError,
        ("unable to open", "{here}/it.db is a folder: name a file in it"),
    ),
    "a folder that nobody can write": (
        lambda folder: None,
        "sqlite:////proc/it.db",
        UnavailableError,
        ("unable to open", "let this process write /proc/it.db and its folder", "ulimit -n"),
    ),
    "a name that no disk can have": (
        lambda folder: None,
        f"sqlite:///{'x' * 300}.db",
        UnavailableError,
        ("unable to open", "or name another file"),
    ),
    "it is read only": (
        lambda folder: sqlite3.connect(folder / "it.db").close(),
        RO,
        UnavailableError,
        ("mode=ro is for looking only: leave it out of ledger.url",),
    ),
    "it is missing, to read": (
        lambda folder: None,
        RO,
        UnavailableError,
        ("unable to open", "{here}/it.db does not exist, and mode=ro makes none"),
    ),
    "it is missing, to write": (
        lambda folder: None,
        RW,
        UnavailableError,
        ("unable to open", "{here}/it.db does not exist, and mode=rw makes none: leave mode out"),
    ),
    "a host in a file URI": (
        lambda folder: None,
        "sqlite:///file://far/it.db?uri=true",
        UnavailableError,
        ("look at",),
    ),
    "no database": (
        lambda folder: (folder / "it.db").write_text("a letter to my aunt, " * 99),
        PLAIN,
        UnavailableError,
        ("file is not a database", "{here}/it.db is a file of another kind", "move it away"),
    ),
    "damaged": (
        damaged,
        PLAIN,
        UnavailableError,
        ("malformed", "{here}/it.db is damaged", "restore a backup"),
    ),
    "another program's": (
        lambda folder: other_program(folder, "customers"),
        PLAIN,
        ConfigError,
        ("{here}/it.db is the database of another program (it holds customers)", "of the ledger's"),
    ),
    "another program's, with names of ours": (
        lambda folder: other_program(folder, "orders", "sales", "schema_version", "stock"),
        PLAIN,
        ConfigError,
        ("(it holds orders, sales, schema_version, ...)", "name a file of the ledger's own"),
    ),
}


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("act", [Ledger.migrate, Ledger.sales])
def test_a_file_that_cannot_be_the_ledger_is_told_with_the_remedy(case, act, folder, opened):
    """By the first call, reading or writing; the path is absolute, for the URL's is often not."""
    make, url, kind, words = FILES[case]
    make(folder)
    with pytest.raises(kind) as error:
        act(opened(url))
    told(url, error, *(word.format(here=folder) for word in words))


def test_a_ledger_that_is_opened_read_only_is_read_and_told_when_it_is_written(
    folder, blank, opened
):
    """Reading is what it is for."""
    shutil.copy(blank, folder / "it.db")
    ledger = opened(RO)
    assert ledger.sales() == []
    with pytest.raises(UnavailableError) as error:
        ledger.server_key(None)
    told(RO, error, "readonly", "mode=ro is for looking only: leave it out of ledger.url")


@pytest.mark.parametrize("tables", [["customers"], ["sales", "orders"], ["schema_version"]])
def test_the_database_of_another_program_is_left_as_it_was(tables, folder, opened):
    """Not a byte: no table, no other journal, no file beside it."""
    other_program(folder, *tables)
    before = (folder / "it.db").read_bytes()
    with pytest.raises(ConfigError, match="another program"):
        opened(PLAIN).migrate()
    assert (folder / "it.db").read_bytes() == before
    assert [file.name for file in folder.iterdir()] == ["it.db"]


def test_a_ledger_with_tables_of_plugins_is_a_ledger(folder, blank, opened):
    """A persist plugin may keep its own beside ours."""
    shutil.copy(blank, folder / "it.db")
    with closing(sqlite3.connect(folder / "it.db")) as connection:
        connection.execute("CREATE TABLE coupons (id INTEGER PRIMARY KEY AUTOINCREMENT)")
        connection.commit()
    assert opened(PLAIN).sales() == []


def test_a_file_that_is_swapped_while_it_is_used_is_a_fault_of_the_backend(folder, blank, opened):
    """Config was right when it was read: attempts hear BUSY, not a defect."""
    shutil.copy(blank, folder / "it.db")
    ledger = opened(PLAIN)
    assert ledger.sales() == []
    ledger.database._reader.dispose()
    for file in folder.iterdir():
        file.unlink()
    other_program(folder, "customers")
    with pytest.raises(UnavailableError) as error:
        ledger.sales()
    told(PLAIN, error, "no such table", "run 'doorbuster migrate'")


# ------------------------------------------------------------------ the disk and its neighbours
def test_a_full_disk_is_told_with_what_to_free(folder, blank, opened):
    """At a statement, and it goes on by itself."""
    shutil.copy(blank, folder / "it.db")
    ledger = opened(PLAIN)

    def fill(connection):
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        connection.exec_driver_sql("CREATE TABLE much (x)")
        for _ in range(50):
            connection.exec_driver_sql("INSERT INTO much VALUES (zeroblob(4000))")

    with pytest.raises(UnavailableError) as error:
        ledger.database.transact(fill, tries=1)
    told(PLAIN, error, "full", f"make room on the disk of {folder / 'it.db'}", "by itself")


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_lock_of_another_process_is_told_with_who_may_hold_it(begin, folder, blank, opened):
    """And with the setting that says how long it is waited for."""
    shutil.copy(blank, folder / "it.db")
    with closing(sqlite3.connect(folder / "it.db", isolation_level=None)) as other:
        other.execute(begin)
        with pytest.raises(UnavailableError) as error:
            opened(PLAIN).database.transact(lambda connection: None)
    told(PLAIN, error, "locked", "another process", "ledger.wait_ms (20)", "end what holds it")


def fault(code, text="the driver's words"):
    error = sqlite3.OperationalError(text)
    if code is not None:
        error.sqlite_errorcode = code
    return error


CODES = [
    (sqlite3.SQLITE_BUSY, "another process"),
    (sqlite3.SQLITE_BUSY_SNAPSHOT, "another process"),
    (sqlite3.SQLITE_LOCKED, "another process"),
    (sqlite3.SQLITE_READONLY, "let this process write {file} and its folder"),
    (sqlite3.SQLITE_READONLY_DIRECTORY, "let this process write {file} and its folder"),
    (sqlite3.SQLITE_PERM, "let this process write {file} and its folder"),
    (sqlite3.SQLITE_FULL, "make room on the disk of {file}"),
    (sqlite3.SQLITE_IOERR, "look at the disk of {file}"),
    (sqlite3.SQLITE_IOERR_FSYNC, "look at the disk of {file}"),
    (sqlite3.SQLITE_CORRUPT, "{file} is damaged"),
    (sqlite3.SQLITE_NOTADB, "{file} is a file of another kind"),
    (sqlite3.SQLITE_CANTOPEN, "let this process write {file} and its folder"),
    (sqlite3.SQLITE_ERROR, "look at {file}, its folder and its disk"),
    (None, "look at {file}, its folder and its disk"),
]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(("code", "remedy"), CODES)
def test_every_error_of_the_driver_has_a_remedy(code, remedy, wrapped, folder, blank, opened):
    """Also those of a machine without rights, which no test can make: raw or through SQLAlchemy."""
    shutil.copy(blank, folder / "it.db")
    error = fault(code)
    raised = sa.exc.OperationalError("SELECT 1", None, error) if wrapped else error

    def work(_connection):
        raise raised

    with pytest.raises(UnavailableError) as found:
        opened(PLAIN).database.transact(work, tries=1)
    told(PLAIN, found, "the driver's words", remedy.format(file=folder / "it.db"))
    assert found.value.__cause__ is raised


@pytest.mark.parametrize("code", [row[0] for row in CODES])
def test_every_error_of_a_database_in_memory_is_told_too(code, opened):
    """It has no path to name."""

    def work(_connection):
        raise fault(code)

    with pytest.raises(UnavailableError) as error:
        opened("sqlite://").database.transact(work, tries=1)
    assert "None" not in told("sqlite://", error, "the driver's words; ")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (sqlite3.SQLITE_FULL, "make room on the disk of {file}"),
        (sqlite3.SQLITE_BUSY, "end what holds it"),
        (sqlite3.SQLITE_READONLY, "let this process write {file}"),
    ],
)
def test_a_commit_that_was_refused_is_told_with_the_remedy(
    code, remedy, folder, blank, opened, monkeypatch
):
    """As an error of any other statement is."""
    shutil.copy(blank, folder / "it.db")
    ledger = opened(PLAIN)

    def refuse(*_):
        raise fault(code)

    monkeypatch.setattr(ledger.database._writer.dialect, "do_commit", refuse)
    with pytest.raises(UnavailableError, match="COMMIT was refused") as error:
        ledger.database.transact(lambda connection: None, tries=1)
    told(PLAIN, error, "the driver's words", remedy.format(file=folder / "it.db"))


def test_a_pool_that_is_empty_is_told_with_the_setting(folder, blank, opened):
    """D5: a jam is no fault of the database, and is not shown as one of SQLAlchemy's."""
    shutil.copy(blank, folder / "it.db")
    database = opened(PLAIN).database
    held = [database._reader.connect() for _ in range(20)]
    with pytest.raises(UnavailableError) as error, database.read():
        pass
    for connection in held:
        connection.close()
    text = told(PLAIN, error, "no connection was free for 20 ms", "ledger.wait_ms")
    assert "sqlalche.me" not in text


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"sqlite_version": "3.34.0"}, ("SQLite 3.34.0 is too old", "use a newer Python build")),
        ({"json_extract": sqlite3.OperationalError("no such function")}, ("without JSON", "use a")),
        ({"journal_mode": "delete"}, ("journal mode 'delete'", "name a file that can be written")),
    ],
)
def test_a_sqlite_that_cannot_do_it_is_told_with_what_to_use(answers, words):
    """By what it says of itself, at the first connect."""

    class Cursor:
        answer = "3.40.0"

        def execute(self, statement):
            for word, answer in answers.items():
                if word in statement:
                    if isinstance(answer, Exception):
                        raise answer
                    self.answer = answer
            return self

        def fetchone(self):
            return (self.answer,)

        def __iter__(self):
            return iter(())

    class Driver:
        cursor = Cursor

    database = Database(PLAIN, ManualClock())
    with pytest.raises(ConfigError) as error:
        database._on_connect(Driver(), None)
    told(PLAIN, error, *words)


# ------------------------------------------------------------------ the command line
@pytest.fixture
def command(folder, capsys):
    """Run a command in this process, in a folder with a config; answer code, stdout, stderr."""
    assert app.run(["init"]) == 0
    capsys.readouterr()

    def run(*words):
        code = app.run(words)
        out, err = capsys.readouterr()
        return code, out, err

    yield run
    structlog.reset_defaults()


MIGRATE = ("migrate", "--config", "config")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("demo",), MIGRATE], ids=["demo", "migrate"])
@pytest.mark.parametrize("case", FILES)
def test_a_command_says_it_in_one_line(case, words, folder, command):
    """On stderr alone: no traceback, no storm of tries, no word of a worker to be started."""
    make, url, kind, parts = FILES[case]
    make(folder)
    code, out, err = command(*words, "--url", url)
    assert (code, out) == (2 if kind is ConfigError else 1, "")
    (line,) = err.splitlines()
    assert line.startswith(f"doorbuster: ledger.url {url!r}")
    for part in parts:
        assert part.format(here=folder) in line


@pytest.mark.slow
@pytest.mark.parametrize(("url", "shown", "remedy"), REFUSED, ids=[row[0] for row in REFUSED])
def test_the_demo_refuses_a_url_in_one_line(url, shown, remedy, command):
    """Before a password of it is shown, and before the demo's own database is removed."""
    Path("doorbuster-demo.db").touch()
    code, out, err = command("demo", "--url", url)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"doorbuster: ledger.url {shown!r}")
    assert remedy in line
    assert SECRET not in err
    assert Path("doorbuster-demo.db").exists()


@pytest.mark.parametrize("words", [("demo", "--keep"), MIGRATE], ids=["demo", "migrate"])
def test_a_command_whose_ledger_is_locked_says_by_whom(words, folder, blank, command, monkeypatch):
    """As of any other mistake: one line."""
    monkeypatch.setenv("DOORBUSTER_LEDGER__WAIT_MS", "20")
    with closing(sqlite3.connect(folder / "it.db", isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("BEGIN IMMEDIATE")
        code, out, err = command(*words, "--url", PLAIN)
    assert (code, out) == (1, "")
    assert "ledger.wait_ms (20): end what holds it" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_a_newer_schema_is_no_mistake(folder, blank, command):
    """Steps only add, so the release before keeps running beside the new one."""
    shutil.copy(blank, folder / "it.db")
    with closing(sqlite3.connect(folder / "it.db")) as connection:
        connection.execute("INSERT INTO schema_version VALUES (99, 0)")
        connection.commit()
    assert command(*MIGRATE, "--url", PLAIN) == (
        0,
        "the ledger is at version 99; nothing to do\n",
        "",
    )


@pytest.mark.parametrize("name", ["doorbuster-demo.db", "doorbuster-demo.db-wal"])
def test_a_demo_that_cannot_start_fresh_says_what_is_in_its_way(name, folder, command):
    """The path, the reason, and two ways out."""
    (folder / name).mkdir()
    code, out, err = command("demo")
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("doorbuster: ledger.url 'sqlite:///doorbuster-demo.db'")
    assert f"{folder / name} cannot be removed" in line
    assert "move it away, or name another database with --url" in line
    assert (folder / name).is_dir()


def test_the_next_steps_of_a_demo_can_be_typed_as_they_stand(command):
    """A URL with ``&`` in it is quoted for the shell."""
    url = "sqlite:///file:my shop.db?mode=rwc&uri=true"
    code, out, err = command("demo", "--stock", "1", "--attempts", "2", "--url", url)
    assert code == 0
    assert f"ledger: {url}\n" in err
    assert f"doorbuster worker --drain --url '{url}'\n" in err
    assert f"doorbuster orders list --url '{url}'\n" in out
    assert Path("my shop.db").is_file()
