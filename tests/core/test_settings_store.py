"""Laws of the store: one whole snapshot at a time, and the last good one stays (G1-G4)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from doorbuster.errors import ConfigError, SettingError, WiringError
from doorbuster.settings import Settings, SettingsStore, Snapshot, digest_of
from doorbuster.settings.store import HISTORY_MAX

SALE = "skus = { black = 10 }\nper_buyer = 1\n"
BASE = "[door]\nbatch_max = 100\nlines_max = 8\n"


class ManualClock:
    """A clock that stands still until it is told."""

    now_ms = 1_794_427_200_000

    def monotonic_s(self) -> float:
        return self.now_ms / 1000

    def wall_ms(self) -> int:
        return self.now_ms

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.is_set()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A config folder with one sale."""
    (tmp_path / "sales").mkdir()
    (tmp_path / "settings.toml").write_text(BASE)
    (tmp_path / "sales" / "p.toml").write_text(SALE)
    return tmp_path


def loaded(folder: Path | None, **options: Any) -> SettingsStore:
    store = SettingsStore(folder, environ=options.pop("environ", {}), **options)
    store.load()
    return store


# ---------------------------------------------------------------- first load


def test_first_load_is_version_one(folder: Path) -> None:
    """A snapshot has version, digest, settings and the time it was loaded."""
    store = SettingsStore(folder, environ={}, clock=ManualClock())
    snapshot = store.load()
    assert snapshot is store.snapshot
    assert snapshot.version == 1
    assert snapshot.settings.door.batch_max == 100
    assert snapshot.digest == digest_of(snapshot.settings)
    assert len(snapshot.digest) == 64
    assert snapshot.loaded_at == datetime(2026, 11, 11, 20, tzinfo=UTC)
    assert store.load() is snapshot
    assert store.error is None


def test_first_load_raises_and_keeps_why(tmp_path: Path) -> None:
    """Without a last good one there is nothing to keep: the first load raises."""
    (tmp_path / "settings.toml").write_text("[door]\nbatch_max = 0\n")
    store = SettingsStore(tmp_path, environ={})
    with pytest.raises(SettingError, match=r"door\.batch_max"):
        store.load()
    assert isinstance(store.error, SettingError)
    with pytest.raises(RuntimeError, match="load"):
        _ = store.snapshot
    with pytest.raises(RuntimeError, match="load"):
        store.reload()
    (tmp_path / "settings.toml").write_text(BASE)
    assert store.load().version == 1
    assert store.error is None


def test_no_folder_is_the_defaults() -> None:
    """The embedded default needs no file."""
    assert loaded(None).snapshot.settings == Settings()


def test_overrides_stay_above_every_reload(folder: Path) -> None:
    """What the command line says outlives an edit of the file."""
    store = loaded(folder, overrides={"door": {"batch_max": 7}})
    (folder / "settings.toml").write_text("[door]\nbatch_max = 200\nlines_max = 9\n")
    assert store.reload()
    door = store.snapshot.settings.door
    assert (door.batch_max, door.lines_max) == (7, 9)


# ---------------------------------------------------------------- digest


def test_a_digest_is_of_the_settings_and_not_of_the_text(folder: Path) -> None:
    """Comments, order and shorthand change nothing; a value does; a secret does."""
    first = loaded(folder).snapshot.digest
    (folder / "settings.toml").write_text("# note\n[door]\nlines_max = 8\nbatch_max = 100\n")
    (folder / "sales" / "p.toml").write_text("per_buyer.sale = 1\nskus.black.units = 10\n")
    assert loaded(folder).snapshot.digest == first
    seen = {first}
    for variable in ("DOORBUSTER_DOOR__BATCH_MAX", "DOORBUSTER_SALES__P__PER_BUYER"):
        seen.add(loaded(folder, environ={variable: "9"}).snapshot.digest)
    for key in ("a" * 16, "b" * 16):
        seen.add(loaded(folder, environ={"DOORBUSTER_KEYS__CURRENT": key}).snapshot.digest)
    assert len(seen) == 5


def test_equal_settings_publish_nothing(folder: Path) -> None:
    """The same settings, whatever the text, make no version and disturb nobody."""
    validated: list[Settings] = []
    told: list[Snapshot] = []
    store = loaded(folder, validate=validated.append)
    store.subscribe(told.append)
    before = store.snapshot
    (folder / "settings.toml").write_text("# only a comment\n" + BASE)
    assert store.reload() is False
    assert store.snapshot is before
    assert told == []
    assert len(validated) == 1


# ---------------------------------------------------------------- reload


def test_a_good_change_is_put_in_force(folder: Path) -> None:
    """A reload publishes the whole new configuration as the next version."""
    store = loaded(folder)
    told: list[Snapshot] = []
    store.subscribe(told.append)
    (folder / "sales" / "p.toml").write_text(SALE + "mode = 'closed'\n")
    assert store.reload() is True
    assert store.snapshot.version == 2
    assert store.snapshot.settings.sales["p"].mode == "closed"
    assert told == [store.snapshot]


def test_a_removed_key_falls_back_to_its_default(folder: Path) -> None:
    """G2: nothing of the old document survives in the new one."""
    store = loaded(folder)
    (folder / "settings.toml").write_text("[door]\nbatch_max = 100\n")
    assert store.reload() is True
    assert store.snapshot.settings.door.lines_max == Settings().door.lines_max
    (folder / "sales" / "p.toml").write_text("skus = { white = 5 }\n")
    assert store.reload() is True
    sale = store.snapshot.settings.sales["p"]
    assert sale.skus.keys() == {"white"}
    assert sale.per_buyer.sale is None


def test_a_removed_variable_falls_back(folder: Path) -> None:
    """The environment is read again each time."""
    environ = {"DOORBUSTER_DOOR__BATCH_MAX": "5"}
    store = loaded(folder, environ=environ)
    assert store.snapshot.settings.door.batch_max == 5
    environ.clear()
    assert store.reload() is True
    assert store.snapshot.settings.door.batch_max == 100


def test_a_new_sale_appears(folder: Path) -> None:
    """A file that comes is a sale that comes."""
    store = loaded(folder)
    (folder / "sales" / "Q.toml").write_text(SALE)
    assert store.reload() is True
    assert store.snapshot.settings.sales.keys() == {"p", "Q"}


def blank(folder: Path) -> None:
    (folder / "settings.toml").write_text("")


def comments_only(folder: Path) -> None:
    (folder / "settings.toml").write_text("# [door]\n")


def gone(folder: Path) -> None:
    (folder / "settings.toml").unlink()


def sale_blank(folder: Path) -> None:
    (folder / "sales" / "p.toml").write_text("")


def sale_gone(folder: Path) -> None:
    (folder / "sales" / "p.toml").unlink()


def sales_gone(folder: Path) -> None:
    (folder / "sales" / "p.toml").unlink()
    (folder / "sales").rmdir()


def folder_gone(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def syntax(folder: Path) -> None:
    (folder / "settings.toml").write_text("[door]\nbatch_max = \n")


def binary(folder: Path) -> None:
    (folder / "settings.toml").write_bytes(b"\xff\xfe\x00")


def wrong_type(folder: Path) -> None:
    (folder / "settings.toml").write_text("[door]\nbatch_max = true\n")


def unknown_key(folder: Path) -> None:
    (folder / "sales" / "p.toml").write_text(SALE + "per_byer = 1\n")


def unknown_mode(folder: Path) -> None:
    (folder / "sales" / "p.toml").write_text(SALE + "mode = 'nope'\n")


def wrong_document(folder: Path) -> None:
    (folder / "sales" / "p.toml").write_text("[project]\nname = 'x'\n")


def cut_in_a_line(folder: Path) -> None:
    (folder / "settings.toml").write_text("[door]\nbatch_max = 10")  # of 100: valid TOML


def cut_in_a_sale(folder: Path) -> None:
    (folder / "sales" / "p.toml").write_text("skus = { black = 10 }\nper_buyer = ")


def a_directory(folder: Path) -> None:
    (folder / "settings.toml").unlink()
    (folder / "settings.toml").mkdir()


SPOILERS = [
    blank, comments_only, gone, sale_blank, sale_gone, sales_gone, folder_gone, syntax, binary,
    wrong_type, unknown_key, unknown_mode, wrong_document, cut_in_a_line, cut_in_a_sale,
    a_directory,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILERS)
def test_a_bad_document_changes_nothing(folder: Path, spoil: Callable[[Path], None]) -> None:
    """G1: blank, gone, half-written, wrong: the last good stays, loudly; the next good is taken."""
    config = folder / "config"
    config.mkdir()
    for name in ("settings.toml", "sales"):
        (folder / name).rename(config / name)
    store = loaded(config)
    told: list[Snapshot] = []
    store.subscribe(told.append)
    good = store.snapshot
    spoil(config)
    with capture_logs() as logs:
        assert store.reload() is False
    assert store.snapshot is good
    assert isinstance(store.error, SettingError)
    assert told == []
    assert [(e["log_level"], e["event"], e["kept_version"]) for e in logs] == [
        ("error", "settings refused", 1)
    ]
    assert logs[0]["error"] == str(store.error)


def test_a_refusal_is_forgotten_with_the_next_good(folder: Path) -> None:
    """The error stays while the document is bad, and goes when it is good again."""
    store = loaded(folder)
    syntax(folder)
    assert store.reload() is False
    assert store.reload() is False
    (folder / "settings.toml").write_text(BASE)
    assert store.reload() is False  # the same settings as before the accident
    assert store.error is None
    (folder / "settings.toml").write_text("[door]\nbatch_max = 1\nlines_max = 8\n")
    assert store.reload() is True
    assert store.snapshot.version == 2


def test_a_file_that_was_always_blank_may_stay_so(folder: Path) -> None:
    """Only a loss is refused: what never set anything can go on doing so."""
    (folder / "settings.toml").write_text("")
    store = loaded(folder)
    (folder / "settings.toml").write_text("# still nothing\n")
    (folder / "sales" / "p.toml").write_text(SALE + "mode = 'closed'\n")
    assert store.reload() is True


def test_shortening_a_file_at_a_line_is_an_edit(folder: Path) -> None:
    """A file that ends where a line ended before is taken, with or without the last newline."""
    for text in ("[door]\nbatch_max = 100", "[door]\n", "[door]\nbatch_max = 12\n"):
        (folder / "settings.toml").write_text(BASE)
        store = loaded(folder)
        (folder / "settings.toml").write_text(text)
        store.reload()
        assert store.error is None


def test_a_secrets_file_that_goes_is_a_loss(folder: Path) -> None:
    """The server key may not change because a mount is late."""
    secrets = folder / "secrets.toml"
    secrets.write_text("[keys]\ncurrent = 'canary-0123456789'\n")
    store = loaded(folder)
    secrets.unlink()
    with capture_logs() as logs:
        assert store.reload() is False
    assert store.snapshot.settings.keys.current == "canary-0123456789"
    assert "canary" not in f"{logs} {store.error} {store.snapshot!r}"


# ---------------------------------------------------------------- validate


@pytest.mark.parametrize("error", [WiringError("two deducts"), ConfigError("x"), ValueError("bug")])
def test_what_does_not_compile_is_not_put_in_force(folder: Path, error: Exception) -> None:
    """G3: the wiring compiles before the swap; whatever it raises keeps the last good."""
    fails: list[Exception] = [error]
    seen: list[int] = []

    def validate(settings: Settings) -> None:
        seen.append(settings.door.batch_max)
        if fails:
            raise fails[0]

    store = SettingsStore(folder, environ={}, validate=validate)
    with pytest.raises(type(error)):
        store.load()
    fails.clear()
    good = store.load()
    fails.append(error)
    (folder / "settings.toml").write_text("[door]\nbatch_max = 5\n")
    assert store.reload() is False
    assert store.error is error
    assert store.snapshot is good
    fails.clear()
    assert store.reload() is True
    assert store.error is None
    assert seen == [100, 100, 5, 5]


def test_validate_sees_the_old_snapshot_in_force(folder: Path) -> None:
    """The swap comes after the validation, never before."""
    versions: list[int] = []
    store: SettingsStore

    def validate(settings: Settings) -> None:
        if settings.door.batch_max == 5:
            versions.append(store.snapshot.version)

    store = loaded(folder, validate=validate)
    (folder / "settings.toml").write_text("[door]\nbatch_max = 5\n")
    assert store.reload() is True
    assert versions == [1]


# ---------------------------------------------------------------- subscribers, history


def test_a_subscriber_that_raises_stops_nobody() -> None:
    """It is logged; the others hear, and the swap stands."""
    environ = {"DOORBUSTER_DOOR__BATCH_MAX": "1"}
    store = loaded(None, environ=environ)
    told: list[int] = []

    def broken(snapshot: Snapshot) -> None:
        raise ValueError("broken")

    store.subscribe(broken)
    store.subscribe(lambda snapshot: told.append(snapshot.version))
    environ["DOORBUSTER_DOOR__BATCH_MAX"] = "2"
    with capture_logs() as logs:
        assert store.reload() is True
    assert told == [2]
    assert store.error is None
    assert [e["event"] for e in logs if e["log_level"] == "error"] == ["settings subscriber failed"]


def test_a_subscriber_can_leave() -> None:
    """What ``subscribe`` answers stops the calls, as often as it is called."""
    environ = {"DOORBUSTER_DOOR__BATCH_MAX": "1"}
    store = loaded(None, environ=environ)
    told: list[Snapshot] = []
    cancel = store.subscribe(told.append)
    cancel()
    cancel()
    environ["DOORBUSTER_DOOR__BATCH_MAX"] = "2"
    assert store.reload() is True
    assert told == []


def test_history_keeps_the_last_eight() -> None:
    """Bounded, oldest first, the one in force last."""
    environ: dict[str, str] = {}
    store = SettingsStore(None, environ=environ)
    for n in range(1, 12):
        environ["DOORBUSTER_DOOR__BATCH_MAX"] = str(n)
        if n == 1:
            store.load()
        else:
            store.reload()
    assert [s.version for s in store.history] == list(range(12 - HISTORY_MAX, 12))
    assert store.history[-1] is store.snapshot


def test_going_back_is_a_new_version_with_the_old_digest(folder: Path) -> None:
    """Versions only rise; equal settings have equal digests."""
    store = loaded(folder)
    first = store.snapshot
    for text in ("[door]\nbatch_max = 5\n", BASE):
        (folder / "settings.toml").write_text(text)
        assert store.reload() is True
    assert store.snapshot.version == 3
    assert store.snapshot.digest == first.digest


# ---------------------------------------------------------------- racing readers (G4)


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Let threads change places a hundred times more often than usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 100)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("eager_threads")
def test_a_reader_never_sees_a_mixed_snapshot(folder: Path) -> None:
    """G4: keys of two files and the environment flip together, bad documents in between or not."""
    environ: dict[str, str] = {}

    def write(n: int) -> None:
        (folder / "settings.toml").write_text(f"[door]\nbatch_max = {n}\nlines_max = {n}\n")
        (folder / "sales" / "p.toml").write_text(f"skus = {{ black = {n}, white = {n} }}\n")
        environ["DOORBUSTER_WORKERS__IDLE_MS"] = str(n)

    write(1)
    store = loaded(folder, environ=environ)
    stop = threading.Event()
    wrong: list[str] = []
    reads = [0, 0]

    def read(reader: int) -> None:
        last = 0
        while not stop.is_set():
            snapshot = store.snapshot
            found = snapshot.settings
            skus = found.sales["p"].skus
            seen = {
                found.door.batch_max, found.door.lines_max, found.workers.idle_ms,
                skus["black"].units, skus["white"].units,
            }  # fmt: skip
            if len(seen) != 1 or snapshot.version < last:
                wrong.append(f"{seen} after version {last}")
            last = snapshot.version
            reads[reader] += 1

    readers = [threading.Thread(target=read, args=(n,)) for n in range(2)]
    for reader in readers:
        reader.start()
    with capture_logs():
        for n in range(2, 20):
            if n % 3 == 0:
                (folder / "settings.toml").write_text("[door\n")
                assert store.reload() is False
            write(n)
            assert store.reload() is True
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert min(reads) > 0
    assert store.snapshot.version == 19


def test_racing_reloads_make_one_version_per_change() -> None:
    """Many threads that reload at once publish a change once, and subscribers hear in order."""
    environ = {"DOORBUSTER_DOOR__BATCH_MAX": "1"}
    store = loaded(None, environ=environ)
    told: list[int] = []
    store.subscribe(lambda snapshot: told.append(snapshot.version))
    with capture_logs():
        for n in range(2, 6):
            environ["DOORBUSTER_DOOR__BATCH_MAX"] = str(n)
            threads = [threading.Thread(target=store.reload) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert told == [2, 3, 4, 5]
