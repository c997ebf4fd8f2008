"""Laws of the layers: what covers what, what is refused, and what dynaconf is trusted with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from dynaconf import Dynaconf  # type: ignore[import-untyped]  # ships no types
from dynaconf.utils.parse_conf import converters  # type: ignore[import-untyped]  # as above
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doorbuster.errors import SettingError
from doorbuster.settings.convert import convert
from doorbuster.settings.layers import FILE_BYTES_MAX, read_layers
from doorbuster.settings.tree import is_deep, merge


def write(folder: Path, **files: str) -> Path:
    """Write ``NAME.toml`` files into a config folder."""
    (folder / "sales").mkdir(exist_ok=True)
    for name, text in files.items():
        target = folder / f"{name}.toml" if name != "dot_secrets" else folder / ".secrets.toml"
        target.write_text(text)
    return folder


def sale(folder: Path, sale_id: str, text: str) -> Path:
    (folder / "sales").mkdir(exist_ok=True)
    (folder / "sales" / f"{sale_id}.toml").write_text(text)
    return folder


def tree(folder: Path | None, environ: Mapping[str, str] | None = None, **overrides: Any) -> Any:
    return read_layers(folder, environ=environ or {}, overrides=overrides).tree


def problems(folder: Path | None, environ: Mapping[str, str] | None = None, **over: Any) -> str:
    with pytest.raises(SettingError) as caught:
        read_layers(folder, environ=environ or {}, overrides=over)
    return str(caught.value)


# ---------------------------------------------------------------- order


def test_each_layer_covers_the_one_below(tmp_path: Path) -> None:
    """settings, sales, secrets, .secrets, variables, command line: each wins over the former."""
    url = '[ledger]\nurl = "{}"\n'
    write(tmp_path, settings=url.format("1") + "[sales.a]\nmode = 'from-settings'\n")
    assert tree(tmp_path)["ledger"]["url"] == "1"
    sale(tmp_path, "a", 'mode = "from-sale"')
    assert tree(tmp_path)["sales"]["a"]["mode"] == "from-sale"
    write(tmp_path, secrets=url.format("2"))
    assert tree(tmp_path)["ledger"]["url"] == "2"
    write(tmp_path, dot_secrets=url.format("3"))
    assert tree(tmp_path)["ledger"]["url"] == "3"
    environ = {"DOORBUSTER_LEDGER__URL": "4", "DOORBUSTER_SALES__A__MODE": "from-variable"}
    found = tree(tmp_path, environ)
    assert (found["ledger"]["url"], found["sales"]["a"]["mode"]) == ("4", "from-variable")
    assert tree(tmp_path, environ, ledger={"url": "5"})["ledger"]["url"] == "5"


def test_tables_merge_lists_and_scalars_are_replaced(tmp_path: Path) -> None:
    """A table keeps what the layer above does not name; a list is the upper one alone."""
    write(
        tmp_path,
        settings='[pipeline]\nfilter = ["a", "b"]\nlimit = ["r"]\n',
        secrets='[pipeline]\nfilter = ["c"]\n',
    )
    assert tree(tmp_path) == {"pipeline": {"filter": ["c"], "limit": ["r"]}}


def test_everything_is_optional(tmp_path: Path) -> None:
    """No folder, an empty folder, an empty file: defaults."""
    assert tree(None) == {}
    assert tree(tmp_path) == {}
    write(tmp_path, settings="")
    assert tree(tmp_path) == {}


def test_an_override_that_is_none_is_not_set() -> None:
    """An option that was not given on the command line changes nothing."""
    assert tree(None, ledger={"url": None}, sales={"a": {"mode": "x", "options": None}}) == {
        "ledger": {},
        "sales": {"a": {"mode": "x"}},
    }


def test_layers_share_nothing_with_what_they_were_given() -> None:
    """Changing the overrides afterwards changes no tree."""
    given_lists = {"filter": ["a"]}
    found = read_layers(None, environ={}, overrides={"pipeline": given_lists})
    given_lists["filter"].append("b")
    assert found.tree == {"pipeline": {"filter": ["a"]}}


def test_per_buyer_shorthand_is_written_out_before_a_table_covers_it(tmp_path: Path) -> None:
    """``per_buyer = 1`` under ``{ attempt = 2 }`` keeps the limit of 1: no protection is lost."""
    sale(tmp_path, "a", "per_buyer = 1\nskus = { black = 10 }")
    environ = {
        "DOORBUSTER_SALES__A__PER_BUYER__ATTEMPT": "2",
        "DOORBUSTER_SALES__A__SKUS__BLACK__PER_BUYER": "3",
    }
    assert tree(tmp_path, environ)["sales"]["a"] == {
        "per_buyer": {"sale": 1, "attempt": 2},
        "skus": {"black": {"units": 10, "per_buyer": 3}},
    }
    assert tree(tmp_path, sales={"a": {"per_buyer": 5}})["sales"]["a"]["per_buyer"] == 5


TREES = st.recursive(
    st.integers() | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("aAbB"), inner, max_size=3),
    max_leaves=8,
)
TABLES = st.dictionaries(st.sampled_from("aAbB"), TREES, max_size=3)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # busy machines
@given(TABLES, TABLES, TABLES)
def test_merge_is_associative_and_idempotent(a: Any, b: Any, c: Any) -> None:
    """Covering in one step or two is the same, twice is once, and nothing covers with nothing."""
    assert merge(merge(a, a), {}) == a == merge({}, a)
    assert merge(merge(a, b), b) == merge(a, b)
    if not any(isinstance(x, dict) != isinstance(y, dict) for x, y in _shared(b, c)):
        assert merge(merge(a, b), c) == merge(a, merge(b, c))


def _shared(a: Any, b: Any) -> Any:
    for key in a.keys() & b.keys():
        yield a[key], b[key]
        if isinstance(a[key], dict) and isinstance(b[key], dict):
            yield from _shared(a[key], b[key])


# ---------------------------------------------------------------- ids


def test_case_of_ids_survives(tmp_path: Path) -> None:
    """Sale and sku ids are case-sensitive: ``Black``, ``black`` and ``BLACK`` are three skus."""
    sale(tmp_path, "Phone-X", "skus = { Black = 1, black = 2 }")
    sale(tmp_path, "phone-x", "skus = { BLACK = 3 }")
    write(tmp_path, secrets="[sales.Phone-X.skus]\nBLACK = 4\n")
    assert tree(tmp_path)["sales"] == {
        "Phone-X": {"skus": {"Black": 1, "black": 2, "BLACK": 4}},
        "phone-x": {"skus": {"BLACK": 3}},
    }


@pytest.mark.parametrize("name", ["phone x", "phone.x", "café", "a" * 65, "a+b"])
def test_a_sale_file_is_named_by_an_id(tmp_path: Path, name: str) -> None:
    """A file name outside the id charset is an error that names the file."""
    sale(tmp_path, name, "skus = { a = 1 }")
    assert f"{name}.toml: the file name is the sale id" in problems(tmp_path)


def test_working_files_of_editors_are_not_sales(tmp_path: Path) -> None:
    """Hidden files and other suffixes under sales/ are ignored."""
    for name in (".phone-x.toml", ".#a.toml", "README.md", "a.toml~", "a.toml.swp"):
        (write(tmp_path) / "sales" / name).write_text("not = = toml")
    assert tree(tmp_path) == {}


# ---------------------------------------------------------------- bad files


def test_a_named_folder_must_exist(tmp_path: Path) -> None:
    """A folder that is not there says how to make one."""
    missing = tmp_path / "nowhere"
    assert problems(missing) == (
        f"{missing}: config folder does not exist; `doorbuster init {missing}` writes one"
    )
    (tmp_path / "file").write_text("")
    assert "is not a folder" in problems(tmp_path / "file")


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        (b"[ledger]\nurl = \n", ":2", "not valid TOML"),
        (b"a = 1\na = 2\n", ":2", "not valid TOML"),
        (b"[ledger\n", ":1", "not valid TOML"),
        (b"\n\nx = 2026-02-30\n", ":3", "not valid TOML"),
        (b'x = """abc', ":1", "not valid TOML"),
        (b"a = 1\nb = '\xff\xfe'\n", ":2", "not UTF-8"),
        (b"\x00\x01\x02", ":1", "not valid TOML"),
        (b"\x89PNG\r\n\x1a\n", ":1", "not UTF-8"),
        ("a = 1".encode("utf-16"), ":1", "not UTF-8"),
        (b"x = " + b"[" * 5000, "", "nested too deep"),
        (b".".join([b"a"] * 5000) + b" = 1", "", "nested too deep"),
        (b"x = " + b"9" * 5000, "", "a number too long"),
        (b"#" * (FILE_BYTES_MAX + 1), "", "larger than"),
    ],
)
def test_bad_files_are_told_by_file_and_line(
    tmp_path: Path, content: bytes, line: str, says: str
) -> None:
    """G1: a file that is no TOML is refused with its name and line, in sales as in settings."""
    write(tmp_path)
    for file in (tmp_path / "settings.toml", tmp_path / "sales" / "a.toml"):
        file.write_bytes(content)
        told = problems(tmp_path)
        assert told.startswith(f"{file}{line}: ")
        assert says in told
        file.unlink()


def test_unreadable_is_not_absent(tmp_path: Path) -> None:
    """A folder, a pipe, a dangling link in a file's place is an error, never "no file"."""
    write(tmp_path)
    (tmp_path / "settings.toml").mkdir()
    os.mkfifo(tmp_path / "sales" / "pipe.toml")
    (tmp_path / "secrets.toml").symlink_to(tmp_path / "nowhere")
    told = problems(tmp_path)
    assert f"{tmp_path / 'settings.toml'}: is not a file" in told
    assert f"{tmp_path / 'sales' / 'pipe.toml'}: is not a file" in told
    assert f"{tmp_path / 'secrets.toml'}: cannot be read" in told


def test_a_sales_file_in_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    """``sales`` that cannot be listed must not look like a configuration without sales."""
    (tmp_path / "sales").write_text("")
    assert f"{tmp_path / 'sales'}: cannot be read" in problems(tmp_path)


def test_all_bad_files_are_told_together(tmp_path: Path) -> None:
    """One run names every bad file and variable."""
    sale(write(tmp_path, settings="= 1", secrets="[x"), "a", "y y")
    told = problems(tmp_path, {"DOORBUSTER_NOPE": "1", "DOORBUSTER_LEDGER__URL": "@jinja x"})
    assert len(told.splitlines()) == 5


def test_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    """What Windows editors write is the same document."""
    write(tmp_path)
    (tmp_path / "settings.toml").write_bytes(b'\xef\xbb\xbfenvironment = "x"\r\n[door]\r\n')
    assert tree(tmp_path) == {"environment": "x", "door": {}}


# ---------------------------------------------------------------- tokens (X11)


@pytest.mark.parametrize("token", sorted(converters))
def test_tokens_are_refused_in_every_layer(tmp_path: Path, token: str) -> None:
    """X11: no document and no variable makes doorbuster read a file or evaluate a template."""
    text = f"{token} /etc/passwd"
    write(tmp_path, settings=f"[plugins.a]\nx = [{{ y = '{text}' }}]\n")
    told = problems(
        sale(tmp_path, "a", f"mode = '{token}'"),
        {"DOORBUSTER_LEDGER__URL": text, "DOORBUSTER_PIPELINE__FILTER": f'["{text}"]'},
        keys={"current": text},
    )
    assert len(told.splitlines()) == 5
    for key in ("plugins.a.x.0.y", "sales.a.mode", "keys.current"):
        assert f"{key}: {token} is not evaluated; write the value itself" in told
    assert "DOORBUSTER_LEDGER__URL: holds an @token" in told
    assert "DOORBUSTER_PIPELINE__FILTER: holds an @token" in told
    assert "passwd" not in told


def test_other_words_with_an_at_sign_are_plain_text(tmp_path: Path) -> None:
    """Only tokens are refused."""
    write(tmp_path, settings='[plugins.a]\nx = ["@bob", "a@b", "@integer"]\n')
    assert tree(tmp_path)["plugins"]["a"]["x"] == ["@bob", "a@b", "@integer"]


# ---------------------------------------------------------------- environment


@pytest.mark.parametrize(
    ("name", "text", "path", "value"),
    [
        ("LEDGER__ACCEPTS_MAX", "3", "ledger.accepts_max", 3),
        ("LEDGER__URL", "sqlite:///x.db", "ledger.url", "sqlite:///x.db"),
        ("ledger__url", "x", "ledger.url", "x"),
        ("DOOR__LINGER_MS", "0.5", "door.linger_ms", 0.5),
        ("ENVIRONMENT", "prod", "environment", "prod"),
        ("ENVIRONMENT", "007", "environment", "007"),
        ("ENVIRONMENT", "2026", "environment", "2026"),
        ("ENVIRONMENT", "true", "environment", "true"),
        ("KEYS__CURRENT", "1234567890123456", "keys.current", "1234567890123456"),
        ("KEYS__CURRENT", '"quoted"', "keys.current", "quoted"),
        ("HTTP__BUYER_HEADER", "X-Buyer", "http.buyer_header", "X-Buyer"),
        ("PIPELINE__FILTER", '["a", "b"]', "pipeline.filter", ["a", "b"]),
        ("PIPELINE__FILTER", '["a"', "pipeline.filter", '["a"'),
        ("PIPELINE__DEDUCT", "db-segments", "pipeline.deduct", "db-segments"),
        ("SERVERS__REDIS__URL", "redis://h", "servers.redis.url", "redis://h"),
        ("SERVERS__REDIS__TLS", "true", "servers.redis.tls", True),
        ("SERVERS__REDIS__TLS", "True", "servers.redis.tls", True),
        ("PLUGINS__RATE__PER_SECOND", "5", "plugins.rate.per_second", 5),
        ("PLUGINS__BUYER_RATE__PER_SECOND", "5", "plugins.buyer-rate.per_second", 5),
        ("PLUGINS__DB_SEGMENTS__SEGMENTS", "4", "plugins.db-segments.segments", 4),
        ("PLUGINS__DB_ATOMIC__X", "1", "plugins.db-atomic.x", 1),
        ("MODES__NO_BROKER__ENQUEUE", "direct", "modes.no-broker.enqueue", "direct"),
        ("SALES__PHONE_X__MODE", "closed", "sales.Phone-X.mode", "closed"),
        ("SALES__PHONE_X__MODE", "2", "sales.Phone-X.mode", "2"),
        ("SALES__phone-x__SKUS__BLACK__UNITS", "7", "sales.Phone-X.skus.Black.units", 7),
        ("SALES__PHONE_X__SKUS", "{ Red = 1, red = 2 }", "sales.Phone-X.skus.red", 2),
        ("SALES__PHONE_X__PLUGINS__BUYER_RATE__X", "1", "sales.Phone-X.plugins.buyer-rate.x", 1),
        ("SALES__NEW__SKUS", "{ A = 1 }", "sales.new.skus.A", 1),
    ],
)
def test_variables_find_their_keys(
    tmp_path: Path, name: str, text: str, path: str, value: Any
) -> None:
    """Names nest by ``__`` and find keys whatever their case and ``-``; values are cast."""
    settings = (
        '[pipeline]\nlimit = ["buyer-rate"]\n[modes.no-broker]\nenqueue = "outbox"\n'
        '[modes.no-redis]\ndeduct = "db-segments"\n'
    )
    sale(write(tmp_path, settings=settings), "Phone-X", "skus = { Black = 1 }")
    variable = f"DOORBUSTER_{name}"
    layers = read_layers(tmp_path, environ={variable: text})
    found: Any = layers.tree
    for key in path.split("."):
        found = found[key]
    assert found == value
    assert type(found) is type(value)
    assert layers.origin(tuple(path.split("."))) == variable


def test_a_variable_can_hold_a_moment() -> None:
    """Dates with an offset arrive as such, from TOML form and from quoted text."""
    found = tree(None, {"DOORBUSTER_SALES__A__OPENS_AT": "2026-11-11T20:00:00Z"})
    assert found["sales"]["a"]["opens_at"] == datetime(2026, 11, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("DOORBUSTER_LEGDER__URL", "did you mean 'ledger'?"),
        ("DOORBUSTER_", "names no setting"),
        ("DOORBUSTER_X", "known: environment, ledger"),
        ("DOORBUSTER_LEDGER____URL", "names no setting"),
        ("DOORBUSTER_SETTINGS_MODULE", "names no setting"),
        ("DOORBUSTER_TESTING", "names no setting"),
    ],
)
def test_a_variable_that_names_nothing_is_an_error(name: str, says: str) -> None:
    """A typo in a variable is told, with the nearest section, and never ignored."""
    assert problems(None, {name: "1"}).startswith(f"{name}: ")
    assert says in problems(None, {name: "1"})


def test_a_variable_with_an_unknown_key_is_an_error_that_names_it() -> None:
    """The conversion names the key, the nearest one and the variable."""
    layers = read_layers(None, environ={"DOORBUSTER_LEDGER__ACCEPT_MAX": "1"})
    with pytest.raises(SettingError) as caught:
        convert(layers.tree, layers.origin)
    assert str(caught.value) == (
        "ledger.accept_max: unknown key (did you mean 'accepts_max'?) "
        "(in DOORBUSTER_LEDGER__ACCEPT_MAX)"
    )


def test_other_variables_are_not_settings() -> None:
    """Variables of the test suites, of dynaconf and of other programs change nothing."""
    environ = {
        "DOORBUSTER_TEST_REDIS_URL": "redis://h",
        "DYNACONF_LEDGER__URL": "evil",
        "doorbuster_environment": "x",
        "PATH": "/bin",
    }
    assert tree(None, environ) == {}


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``environ`` the process's own variables are read."""
    monkeypatch.setenv("DOORBUSTER_ENVIRONMENT", "from-process")
    assert read_layers(None).tree["environment"] == "from-process"


def test_an_ambiguous_variable_is_an_error_unless_it_is_the_very_key(tmp_path: Path) -> None:
    """Two sales that differ in case only: the very key is found, anything else is refused."""
    sale(tmp_path, "A-b", "")
    sale(tmp_path, "a_b", "")
    told = problems(tmp_path, {"DOORBUSTER_SALES__A_B__MODE": "x"})
    assert "A_B may be any of A-b, a_b; write the very key" in told
    found = tree(tmp_path, {"DOORBUSTER_SALES__A-b__MODE": "x"})
    assert found["sales"] == {"A-b": {"mode": "x"}, "a_b": {}}


def test_two_variables_for_one_key_are_an_error() -> None:
    """Which of them would win is nobody's guess."""
    told = problems(None, {"DOORBUSTER_LEDGER__URL": "a", "DOORBUSTER_ledger__URL": "b"})
    assert told == (
        "DOORBUSTER_ledger__URL: is ledger.url, and so is DOORBUSTER_LEDGER__URL; keep one"
    )


def test_variables_cover_in_the_order_of_their_names() -> None:
    """A table and a key inside it: the key covers the table, however the system lists them."""
    first = {"DOORBUSTER_SALES__A__SKUS": "{ Black = 1, b = 2 }"}
    second = {"DOORBUSTER_SALES__A__SKUS__BLACK": "9"}
    expected = {"sales": {"a": {"skus": {"Black": 9, "b": 2}}}}
    assert tree(None, first | second) == tree(None, second | first) == expected


@pytest.mark.parametrize(
    "hostile",
    [
        {"AUTO_CAST_FOR_DYNACONF": "false"},
        {"SETTINGS_FILE_FOR_DYNACONF": "settings.toml"},
        {"INCLUDES_FOR_DYNACONF": "['settings.toml']"},
        {"PRELOAD_FOR_DYNACONF": "['settings.toml']"},
        {"SECRETS_FOR_DYNACONF": "settings.toml"},
        {"NESTED_SEPARATOR_FOR_DYNACONF": "_"},
        {"ENVVAR_PREFIX_FOR_DYNACONF": "EVIL", "EVIL_X": "1"},
        {"LOADERS_FOR_DYNACONF": "['dynaconf.loaders.env_loader']", "DYNACONF_X": "1"},
    ],
)
def test_nothing_else_configures_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: dict[str, str]
) -> None:
    """A ``.env``, a ``settings.toml`` in the working folder, dynaconf's own variables: all mute."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.toml").write_text('environment = "evil"\n')
    (tmp_path / ".env").write_text("DOORBUSTER_ENVIRONMENT=evil\n")
    for name, value in hostile.items():
        monkeypatch.setenv(name, value)
    assert tree(None, {"DOORBUSTER_DOOR__BATCH_MAX": "5"}) == {"door": {"batch_max": 5}}


# ---------------------------------------------------------------- why not dynaconf (decision 0003)


def test_dynaconf_would_lose_case_and_lists(tmp_path: Path) -> None:
    """Decision 0003: dynaconf's merge ignores case and joins lists, so it may not merge here."""
    (tmp_path / "a.toml").write_text(
        "[s]\nskus = { black = 1 }\nlist = [1]\nat = 2026-01-01T00:00:00Z"
    )
    (tmp_path / "b.toml").write_text("[s]\nskus = { BLACK = 10 }\nlist = [2]\n")
    files = [str(tmp_path / "a.toml"), str(tmp_path / "b.toml")]
    options: dict[str, Any] = {"settings_files": files, "envvar_prefix": None, "load_dotenv": False}
    merged = Dynaconf(merge_enabled=True, **options).as_dict()["S"]
    assert merged["skus"] == {"black": 10}
    assert merged["list"] == [1, 2]
    assert merged["at"] == datetime(2026, 1, 1, tzinfo=UTC)
    assert "at" not in Dynaconf(merge_enabled=False, **options).as_dict()["S"]


def test_dynaconf_would_evaluate_tokens_of_a_file(tmp_path: Path) -> None:
    """Decision 0003, X11: a file read by dynaconf can read any other file."""
    (tmp_path / "prey").write_text("canary")
    (tmp_path / "a.toml").write_text(f'x = "@read_file {tmp_path / "prey"}"\n')
    reader = Dynaconf(
        settings_files=[str(tmp_path / "a.toml")], envvar_prefix=None, load_dotenv=False
    )
    assert reader.as_dict()["X"] == "canary"


def test_depth_is_bounded() -> None:
    """Thirty-two tables within each other are not deep, one more is."""
    value: Any = 1
    for _ in range(32):
        value = {"a": value}
    assert not is_deep(value)
    assert is_deep([value])


def test_what_holds_secrets_has_no_repr_of_them(tmp_path: Path) -> None:
    """X9: layers and file texts do not print themselves."""
    write(tmp_path, settings="[keys]\ncurrent = 'canary-canary-canary'\n")
    layers = read_layers(tmp_path, environ={})
    assert "canary" not in repr(layers) + repr(layers.files)
