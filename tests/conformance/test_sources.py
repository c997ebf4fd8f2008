"""Files and tables keep the laws of sources."""

import pytest

from doorbuster.testing import SourceSuite
from doorbuster.testing.memory_source import FolderSource, MemorySource


class TestFolder(SourceSuite):
    """A config folder."""

    @pytest.fixture
    def source(self, tmp_path):
        return FolderSource(tmp_path)


class TestMemory(SourceSuite):
    """Tables of the program."""

    capabilities = SourceSuite.Capabilities(text=False, removable=False)

    @pytest.fixture
    def source(self):
        return MemorySource()
