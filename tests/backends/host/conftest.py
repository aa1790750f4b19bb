"""A tree of files in the place of the machine's own."""

from pathlib import Path

import pytest

from accelmetrics.backends.kit.system import VARIABLE
from tests.backends.host.tree import HostTree


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostTree:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return HostTree(tmp_path)
