"""The ledger on SQLite, in a file and in memory, keeps the laws of the ledger."""

import pytest

from doorbuster.testing import LedgerSuite


class TestSqliteMemory(LedgerSuite):
    """Without a file: one connection, shared by readers and the writer."""

    @pytest.fixture
    def ledger_url(self):
        return "sqlite://"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ledger")


@pytest.mark.slow  # the same laws as the class above
class TestSqliteFile(LedgerSuite):
    """In a file: readers beside the one writer."""

    @pytest.fixture
    def ledger_url(self, folder):
        return f"sqlite:///{folder / 'ledger.db'}"
