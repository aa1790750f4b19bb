"""What tests of the W&B exporter share."""

import os
from pathlib import Path

import pytest

from tests.exporters.wandb_file import environment


@pytest.fixture(autouse=True)
def nobody_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each test of a module that imports this: no account, no network, no home but the test's directory."""
    for name in set(os.environ) | set(environment(tmp_path)):
        value = environment(tmp_path).get(name)
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
