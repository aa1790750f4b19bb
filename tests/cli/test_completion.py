"""What the completion scripts complete, in a real shell."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from accelmetrics.backends import registry as backends
from accelmetrics.backends.amd import SOURCES
from accelmetrics.dialects import registry as dialects
from accelmetrics.exporters import registry as exporters
from accelmetrics.schemas.catalogue import find
from accelmetrics.schemas.selection import PRESETS, MetricSelection
from tests.cli.shell import call, environment
from tests.cli.terminals import shell

pytest.importorskip("shtab")
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
"$(complete -p accelmetrics | sed 's/.*-F \\([^ ]*\\).*/\\1/')" 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What bash is given."""
    path = tmp_path_factory.mktemp("bash") / "accelmetrics"
    path.write_text(call("completion", "bash").stdout)
    return path


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last word of a command line."""
    done = subprocess.run(["bash", "-c", ASK, "bash", script, "accelmetrics", *words], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["dump", "--metrics", "st"], ["standard"]),
        (["dump", "--metrics", "powerW"], ["powerWatts"]),
        (["dump", "--metrics", "gpu.0.enf"], ["gpu.0.enforcedPowerLimitWatts"]),
        (["record", "--metrics", "core,gpu.13.enf"], ["core,gpu.13.enforcedPowerLimitWatts"]),
        (["record", "--metrics", "gpu.*.enf"], ["gpu.*.enforcedPowerLimitWatts"]),
        (["report", "--metrics", "core,-powerW"], ["core,-powerWatts"]),
        (["watch", "--metrics", "tpu.1.dutyC"], ["tpu.1.dutyCycle"]),
        (["serve", "--metrics", "memory.usedB"], ["memory.usedBytes"]),
        (["dump", "--metrics", "=", "powerW"], ["powerWatts"]),
        (["dump", "--metrics", "=", "-gpu.7.enf"], ["-gpu.7.enforcedPowerLimitWatts"]),
        (["ps", "--amd-source", "="], list(SOURCES)),
        (["metrics", "gpu.2.energyJ"], ["gpu.2.energyJoules"]),
        (["metrics", "--preset", "w"], ["wandb"]),
        (["metrics", "--backend", "neu"], ["neuron"]),
        (["list", "--backends", "nvidia,ho"], ["nvidia,host"]),
        (["ps", "--amd-source", ""], list(SOURCES)),
        (["record", "--exporter", ""], list(exporters.BUILT_IN)),
        (["dump", "--keys", ""], list(dialects.BUILT_IN)),
        (["metrics", "--backend", ""], list(backends.names())),
        (["record", "--rules", "default,-throt"], ["default,-throttled"]),
        (["run", "--no-su"], ["--no-summary"]),
        (["conf"], ["config"]),
        (["serve", "--config", "/etc/passw"], ["/etc/passwd"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_bash_offers(script: Path, words: list[str], offered: list[str]) -> None:
    """Of names all; of lists what may follow; of keys those of the device that is written."""
    assert [word for word in completed(script, *words) if not word.endswith("-")] == offered


def test_a_tab_in_bash(script: Path) -> None:
    """As it is typed: the words of a list are one word, whose last item is completed."""
    with shell(columns=140) as terminal:
        terminal.type(f"source {script} && echo 'sour'ced\r", r"^sourced\n\$$")
        terminal.type("accelmetrics dump --metrics core,gpu.3.enf\t")
        terminal.until(r"^\$ accelmetrics dump --metrics core,gpu\.3\.enforcedPowerLimitWatts$")
        terminal.type(" --backends=nvid\t", "Watts +--backends=nvidia$")


def test_every_word_that_is_offered_is_taken(script: Path) -> None:
    """Each is a selection; of `accelmetrics metrics` each is a metric, or a word that its key has."""
    words = completed(script, "dump", "--metrics", "")
    assert set(PRESETS) < set(words)
    assert len(words) > 300
    for word in words:
        MetricSelection(word)
    keys = completed(script, "metrics", "")
    assert {"gpu.0.temp", "tpu.0.dutyCycle", "cpu.0.cpu_percent", "memory_percent"} <= set(keys)
    for key in keys:
        if key.startswith(("gpu.", "tpu.", "trn.", "ipu.", "npu.", "cpu.", "disk.")):
            assert find(key)


def test_zsh_is_told_three_parts_of_each_option() -> None:
    """What it says, how its value is called and what completes that, between colons: the name of a value has none."""
    specs = re.findall(r'^  "[^"[]*\[(?:\\.|[^]\\])*\]:(.*)"$', call("completion", "zsh").stdout, re.MULTILINE)
    assert "NAME:(" + " ".join(exporters.BUILT_IN) + ")" in specs
    assert "HOST:" in specs
    assert [spec for spec in specs if spec.count(":") != 1] == []


@pytest.mark.parametrize(("command", "names"), [("exporters", exporters.BUILT_IN), ("dialects", dialects.BUILT_IN)])
def test_lists_for_programs(command: str, names: dict[str, str]) -> None:
    """The lines of the table as JSON."""
    entries = json.loads(call(command, "--json").stdout)
    assert [entry["name"] for entry in entries] == list(names)
    assert all(entry["summary"] for entry in entries)
    lines = call(command, env=environment(COLUMNS="200")).stdout.splitlines()[1:]
    for entry, line in zip(entries, lines, strict=True):
        assert line.split()[0] == entry["name"]
        assert line.endswith(entry["needs"] or entry["summary"])
