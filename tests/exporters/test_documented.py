"""docs/exporters.md speaks of every exporter and of every option that there is, and of none besides."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from accelmetrics.dialects import registry as dialects
from accelmetrics.exporters import registry

DOCS = Path(__file__).parents[2] / "docs"
NOT_IN_STRINGS = {"stream"}
"""Parameters that take an object."""
COMMON = {"metrics"}
"""Options that every exporter has."""


def sections() -> dict[str, str]:
    """By exporter, the section whose heading has its name."""
    parts = re.split(r"^(?=#{2,3} )", (DOCS / "exporters.md").read_text(), flags=re.MULTILINE)
    found: dict[str, str] = {}
    heading = ""
    for part in parts:
        names = re.findall(r"`([\w-]+)`", part.splitlines()[0])
        heading = heading if not names or names[0] not in registry.BUILT_IN else " ".join(names)
        for name in heading.split():
            found[name] = found.get(name, "") + part
    return found


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_every_option_is_documented(name: str) -> None:
    """What can be set is in the exporter's section."""
    options = [one.name for one in inspect.signature(registry.load(name)).parameters.values() if one.kind is inspect.Parameter.KEYWORD_ONLY]
    section = sections()[name]
    assert [option for option in options if f"`{option}`" not in section and option not in NOT_IN_STRINGS | COMMON] == []
    assert set(options) >= COMMON


def test_common_options_are_documented_once() -> None:
    """With what each exporter is given unless told otherwise."""
    part = (DOCS / "exporters.md").read_text().partition("## Metrics of each exporter")[2].partition("\n## ")[0]
    rows = {
        name: preset
        for names, preset in re.findall(r"^\| (`.*`) \| `(\w+)`", part, re.MULTILINE)
        for name in re.findall(r"`([\w-]+)`", names)
    }
    defaults = {name: inspect.signature(registry.load(name)).parameters["metrics"].default for name in registry.BUILT_IN}
    assert rows == {name: str(default) for name, default in defaults.items()}


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_every_exporter_has_an_example(name: str) -> None:
    """In Python or as a command, in its own section; ``tests/test_examples.py`` runs them."""
    examples = re.findall(r"^ *```(?:python)?\n(.*?)^ *```$", sections()[name], re.MULTILINE | re.DOTALL)
    assert any(re.search(rf"""(exporters=\["|--exporter "?){name}\b""", text) for text in examples)


@pytest.mark.parametrize("name", dialects.BUILT_IN)
def test_every_dialect_is_documented(name: str) -> None:
    """What can be chosen is in docs/dialects.md."""
    assert f"`{name}`" in (DOCS / "dialects.md").read_text()


def test_no_alert_takes_a_state_for_throttling() -> None:
    """Idle GPUs give ``accel_throttle_active{reason="gpu_idle"}``: what alerts count is the seconds, or leaves that reason out."""
    root = DOCS.parent
    texts = [file.read_text() for file in (*DOCS.glob("*.md"), root / "README.md", *(root / "deploy").rglob("*.yml"))]
    alerts = [line for text in texts for line in text.splitlines() if re.match(r"( *expr: )?\w.*\baccel_throttle_", line)]
    assert any("accel_throttle_seconds_total" in line for line in alerts)
    assert [line for line in alerts if "accel_throttle_active" in line and not re.search(r'reason!=?~?"[^"]*gpu_idle', line)] == []
