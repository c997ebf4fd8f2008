"""Laws of sources of settings: what arrives is put in force whole, or changes nothing.

    class TestMine(SourceSuite):
        @pytest.fixture
        def source(self, tmp_path):
            return MySource(tmp_path)

A source has ``store`` (a :class:`~doorbuster.settings.SettingsStore`), ``write(document)`` and
``remove()``. One whose changes arrive by themselves (a watcher, a remote document) also has
``arrive()``: let what was written last be seen, or refused. Without it the store is reloaded.
"""

# ruff: noqa: S101 - a law is an assertion
from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol

import pytest

from doorbuster.errors import SettingError
from doorbuster.settings import SettingsStore, Snapshot, digest_of
from doorbuster.testing.suites import base
from doorbuster.testing.suites.base import declined, racing

__all__ = ["Source", "SourceSuite"]

_GOOD: Final = """\
environment = "test"

[door]
batch_max = 64
linger_ms = 3

[sales.drop]
skus = { gold = 10 }
per_buyer = 2
"""

_CHANGED: Final = _GOOD.replace("64", "128").replace("linger_ms = 3", "linger_ms = 6")

_SAME: Final = """\
# the same settings, in other words
sales.drop = { per_buyer = 2, skus.gold = 10 }
door = { linger_ms = 3, batch_max = 64 }
environment = "test"
"""

_WRONG: Final = {
    "another type": (_GOOD.replace("64", '"many"'), "door.batch_max"),
    "out of bounds": (_GOOD.replace("64", "0"), "door.batch_max"),
    "an unknown key": (_GOOD.replace("linger_ms", "linger"), "door.linger"),
    "an unknown table": (_GOOD.replace("[door]", "[dor]"), "dor"),
    "a sale without skus": (_GOOD.replace("skus = { gold = 10 }\n", ""), "sales.drop.skus"),
    "a list for a table": (_GOOD.replace("{ gold = 10 }", "[10]"), "sales.drop.skus"),
}
"""Documents that parse and are wrong, and the dotted key that the refusal names."""

_MALFORMED: Final = {
    "not TOML": _GOOD.replace("[door]", "[door"),
    "a key twice": _GOOD.replace("linger_ms = 3", "batch_max = 64"),
    "another language": "<xml/>\n",
}
"""Texts that are no document at all."""


class Source(Protocol):
    """What an author's fixture gives."""

    @property
    def store(self) -> SettingsStore:
        """The store that the source feeds."""
        ...

    def write(self, document: Any) -> None:
        """Put a document there: TOML text, or tables where the source has no text."""
        ...


class SourceSuite(base.Suite):
    """Override ``source``. Its document is a whole configuration, written as TOML."""

    class Capabilities(base.Capabilities, frozen=True, kw_only=True):
        """What a source declares."""

        text: bool = True
        """It takes text, which may be malformed, blank or cut off; else tables."""
        removable: bool = True
        """Its document can go away without anybody meaning it."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    @pytest.fixture
    def source(self) -> Source:
        """The source under test, empty, with a store that has loaded nothing. To be overridden."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture 'source'")

    @pytest.fixture
    def put(self, source: Any) -> Callable[[str], Snapshot]:
        """Write a document and let it arrive; answer what is in force then."""

        def put(document: str) -> Snapshot:
            source.write(document if self.capabilities.text else tomllib.loads(document))
            return self.arrive(source)

        return put

    @pytest.fixture
    def heard(self, source: Source, put: Any) -> list[Snapshot]:
        """What a subscriber hears after the first load of the good document."""
        put(_GOOD)
        found: list[Snapshot] = []
        source.store.subscribe(found.append)
        return found

    def arrive(self, source: Any) -> Snapshot:
        """Let what was written be seen; answer what is in force then."""
        store: SettingsStore = source.store
        if not store.history:
            return store.load()
        if hasattr(source, "arrive"):
            source.arrive()
        else:
            store.reload()
        return store.snapshot

    def kept(self, source: Source, heard: list[Snapshot], why: str = "") -> bool:
        """Whether the first snapshot is still in force, silently, and the refusal says why."""
        assert source.store.snapshot.version == 1
        assert source.store.snapshot.settings.door.batch_max == 64
        assert source.store.snapshot.settings.sales["drop"].per_buyer.sale == 2
        assert heard == []
        assert source.store.error is not None
        assert why in str(source.store.error)
        return True

    # ------------------------------------------------------------------ load and change
    def test_the_first_load_puts_it_in_force(self, source: Source, put: Any) -> None:
        """Version 1, the digest of what it says, no error."""
        found = put(_GOOD)
        assert (found.version, found.digest) == (1, digest_of(found.settings))
        assert found.settings.environment == "test"
        assert (found.settings.door.batch_max, found.settings.door.linger_ms) == (64, 3)
        assert source.store.error is None
        assert source.store.load() is found

    @pytest.mark.parametrize("document", [doc for doc, _ in _WRONG.values()], ids=list(_WRONG))
    def test_a_wrong_first_document_is_no_configuration(
        self, source: Source, put: Any, document: str
    ) -> None:
        """There is nothing to keep: the load raises, and a better one is loaded later."""
        with pytest.raises(SettingError):
            put(document)
        with pytest.raises(RuntimeError):
            _ = source.store.snapshot
        assert put(_GOOD).version == 1

    def test_a_change_is_heard_once_and_whole(
        self, source: Source, put: Any, heard: list[Snapshot]
    ) -> None:
        """Every subscriber hears the new snapshot, which is in force by then."""
        found = put(_CHANGED)
        assert heard == [found]
        assert found is source.store.snapshot
        assert (found.version, found.settings.door.batch_max) == (2, 128)
        assert put(_GOOD).version == 3
        assert [snapshot.version for snapshot in source.store.history] == [1, 2, 3]
        assert source.store.history[0].digest == source.store.history[2].digest

    def test_the_same_content_is_silent(
        self, source: Source, put: Any, heard: list[Snapshot]
    ) -> None:
        """Written again, in other words or another order: nothing is published."""
        first = source.store.snapshot
        for document in (_GOOD, _SAME, _GOOD):
            assert put(document) is first
        assert heard == []
        assert source.store.error is None

    def test_g2_a_key_that_is_gone_is_its_default_again(
        self, put: Any, heard: list[Snapshot]
    ) -> None:
        """G2: a document replaces the one before it, nothing of that is merged in."""
        found = put(_GOOD.replace("linger_ms = 3\n", "").replace("per_buyer = 2\n", ""))
        assert found.settings.door.linger_ms != 3
        assert found.settings.sales["drop"].per_buyer.sale is None
        assert heard == [found]

    # ------------------------------------------------------------------ what is refused
    @pytest.mark.parametrize(("document", "key"), list(_WRONG.values()), ids=list(_WRONG))
    def test_g1_a_wrong_document_keeps_the_old_one(
        self, source: Source, put: Any, heard: list[Snapshot], document: str, key: str
    ) -> None:
        """G1: the last good settings stay, the refusal names the full dotted key; then it heals."""
        put(document)
        assert self.kept(source, heard, key)
        assert put(_CHANGED).version == 2
        assert source.store.error is None

    def test_all_problems_are_told_at_once(
        self, source: Source, put: Any, heard: list[Snapshot]
    ) -> None:
        """Whoever mends one mends all: every key is in the refusal."""
        put(_GOOD.replace("64", "0").replace("linger_ms", "linger").replace("= 10", "= -1"))
        for key in ("door.batch_max", "door.linger", "sales.drop.skus"):
            assert self.kept(source, heard, key)

    @pytest.mark.parametrize("document", list(_MALFORMED.values()), ids=list(_MALFORMED))
    def test_g1_a_malformed_document_keeps_the_old_one(
        self, source: Source, put: Any, heard: list[Snapshot], document: str
    ) -> None:
        """G1: what cannot be read changes nothing."""
        self.must_take_text()
        put(document)
        assert self.kept(source, heard)

    @pytest.mark.parametrize("blank", ["", "\n", "# nothing\n", " \t\n\n"])
    def test_g1_a_blank_document_keeps_the_old_one(
        self, source: Source, put: Any, heard: list[Snapshot], blank: str
    ) -> None:
        """G1: a document that sets nothing any more takes no protection away."""
        self.must_take_text()
        put(blank)
        assert self.kept(source, heard)

    def test_g1_a_document_cut_inside_a_line_keeps_the_old_one(
        self, source: Source, put: Any, heard: list[Snapshot]
    ) -> None:
        """G1: half-written at whichever byte, it is refused, also where it still is TOML."""
        self.must_take_text()
        for n in range(1, len(_GOOD)):
            if _GOOD[n - 1] != "\n" and _GOOD[n] != "\n":
                put(_GOOD[:n])
                assert self.kept(source, heard)
        put(_GOOD)
        assert (heard, source.store.error) == ([], None)

    def test_g1_a_removed_document_keeps_the_old_one(
        self, source: Any, put: Any, heard: list[Snapshot]
    ) -> None:
        """G1: gone is a fault, not a configuration; when it is back it counts again."""
        if not self.capabilities.removable:
            declined("declares removable=False", "an emptied tree is a configuration of its own")
        source.remove()
        self.arrive(source)
        assert self.kept(source, heard)
        assert put(_CHANGED).version == 2

    def must_take_text(self) -> None:
        """Decline the law for a source of tables."""
        if not self.capabilities.text:
            declined("declares text=False", "its document cannot be malformed, only wrong")

    # ------------------------------------------------------------------ who listens
    def test_a_subscriber_that_raises_silences_nobody(
        self, source: Source, put: Any, heard: list[Snapshot]
    ) -> None:
        """One listener's exception stops neither the others nor the next change (T10)."""
        calls = []

        def broken(snapshot: Snapshot) -> None:
            calls.append(snapshot.version)
            raise RuntimeError("a listener of a plugin")

        later: list[Snapshot] = []
        source.store.subscribe(broken)
        source.store.subscribe(later.append)
        put(_CHANGED)
        put(_GOOD)
        versions = [snapshot.version for snapshot in heard]
        assert calls == versions == [snapshot.version for snapshot in later] == [2, 3]

    def test_a_cancelled_subscriber_hears_no_more(self, source: Source, put: Any) -> None:
        """What subscribes can let go; cancelling twice is cancelling once."""
        put(_GOOD)
        found: list[Snapshot] = []
        cancel = source.store.subscribe(found.append)
        put(_CHANGED)
        cancel()
        cancel()
        put(_GOOD)
        assert [snapshot.version for snapshot in found] == [2]

    def test_g4_a_reader_sees_one_document_at_a_time(self, source: Source, put: Any) -> None:
        """G4: two keys that change together are read together, whatever is being loaded."""
        put(_GOOD)

        def work(n: int) -> set[tuple[int, float]]:
            seen = set()
            for k in range(12):
                if n == 0:
                    put((_GOOD, _CHANGED)[k % 2])
                for _ in range(50):
                    door = source.store.snapshot.settings.door
                    seen.add((door.batch_max, door.linger_ms))
            return seen

        with racing() as race:
            seen = set().union(*race(work, 3))
        assert seen <= {(64, 3), (128, 6)}
        assert len(seen) == 2
