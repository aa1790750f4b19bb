"""The page shows the files that the tests beside this one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import REPOSITORY
from tests.monitors.machine import CONFIGURATIONS

PAGE = (REPOSITORY / "docs/other-monitors.md").read_text()
FILES = sorted(path for path in CONFIGURATIONS.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGURATIONS)))
def test_the_page_shows_each_file(path: Path) -> None:
    """Whole, or, where it is only imported, by a link."""
    link = f"](../deploy/monitors/{path.relative_to(CONFIGURATIONS)})"
    assert link in PAGE
    if path.name != "template.yaml":
        assert f"\n{path.read_text()}```\n" in PAGE


def test_the_page_shows_what_is_sent_to_netdata() -> None:
    """The option of the exporter that the test of Netdata gives, at the port where Netdata listens."""
    assert "accelmetrics serve --exporter 'statsd:127.0.0.1:8125?metrics=core'\n" in PAGE
