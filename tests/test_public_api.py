"""What users import: the names, their price, their types, and what a missing package does."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import accelmetrics
import accelmetrics.testing
from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.backends.registry import GROUP
from tests.support.waiting import HANG

PUBLIC = {
    "AccelMetricsError",
    "Allocation",
    "AllocationFinding",
    "BackendStatus",
    "CannotTell",
    "Connection",
    "Device",
    "DeviceIdentity",
    "DeviceInfo",
    "DeviceProcess",
    "DocumentError",
    "DriverGoneError",
    "Energy",
    "Exporter",
    "Finding",
    "Findings",
    "InvalidOptionError",
    "MetricSelection",
    "MissingDependencyError",
    "Monitor",
    "MonitorStatus",
    "PartitionRemovedError",
    "ProcessInfo",
    "ProcessListing",
    "Reason",
    "Record",
    "Rule",
    "Sampler",
    "Snapshot",
    "SourceError",
    "Step",
    "Summary",
    "SupportedClocks",
    "Topology",
    "TrainingRun",
    "Unavailable",
    "UnknownNameError",
    "Visibility",
    "Window",
    "Worker",
    "__version__",
    "allocation",
    "asample",
    "devices",
    "diagnose",
    "process_labels",
    "processes",
    "recordings",
    "sample",
    "topology",
    "training",
    "version_info",
    "visibility",
    "visible_devices",
}
"""What users may import: a name that goes breaks their programs, and one that comes is a promise."""


def run(program: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_public_names_are_exactly_these() -> None:
    """None goes and none comes without this list being changed by hand; each leads to something."""
    assert set(accelmetrics.__all__) == PUBLIC
    assert len(accelmetrics.__all__) == len(PUBLIC), "a name is listed twice"
    assert accelmetrics.__dir__() == sorted(PUBLIC)
    names = {"DemoBackend", "FakeBackend", "FakeClock", "FakeDevice", "Recorder", "Recording", "ReplayBackend"}
    assert set(accelmetrics.testing.__all__) == names
    for name in PUBLIC:
        assert getattr(accelmetrics, name) is not None
    public = {name for name in vars(accelmetrics) if not name.startswith("_")} - PUBLIC
    rooms = {folder.parent.name for folder in Path(accelmetrics.__file__).parent.glob("*/__init__.py")}
    assert public <= {"annotations", "TYPE_CHECKING", "Any", *rooms}


def test_the_reference_describes_each_of_them() -> None:
    """Once, on its page of the documentation."""
    page = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
    described = re.findall(r"^\.\. auto(?:function|class|exception|data):: (\w+)$", page, re.MULTILINE)
    assert sorted(described) == sorted(PUBLIC - {"__version__", "version_info"})


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'smaple'"):
        accelmetrics.smaple  # noqa: B018 - the access is the test


def test_the_import_loads_nothing() -> None:
    program = """
        import sys
        before = set(sys.modules)
        import accelmetrics
        print(*sorted(set(sys.modules) - before))
    """
    assert run(program).split() == ["__future__", "accelmetrics", "accelmetrics._version"]


MONITOR = 'with accelmetrics.Monitor(backends=["host"]) as monitor, monitor.window("epoch"): pass'


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ('accelmetrics.Sampler(["host"]).sample()', "pydantic pynvml rich"),
        # Looking for all vendors' hardware and for plug-ins is a part of every first reading.
        (
            "accelmetrics.sample()",
            "pydantic pynvml importlib.metadata email subprocess tempfile pathlib socket urllib.parse traceback logging shutil",
        ),
        # A Monitor and what it loads are 6 MiB, for as long as a program runs; a program that iterates over one has an event loop.
        (MONITOR, "asyncio ssl uuid platform subprocess pathlib socket concurrent.futures importlib.metadata pydantic psutil pynvml"),
    ],
    ids=["host", "everything", "monitor"],
)
def test_no_more_is_loaded_than_is_needed(code: str, heavy: str) -> None:
    program = f"""
        import os, sys
        os.environ.pop("ACCELMETRICS_VALIDATE", None)
        import accelmetrics
        {code}
        print(sorted(set({heavy.split()}) & set(sys.modules)))
    """
    assert run(program) == "[]\n"


def test_the_registry_and_the_entry_points_name_the_same_backends() -> None:
    registered = {point.name: point.value for point in entry_points(group=GROUP) if point.value.startswith("accelmetrics.")}
    if not registered:
        pytest.skip("platform: the package is not installed here, only on the path")
    assert registered == {name: row.target for name, row in BUILT_IN.items()}


@pytest.mark.parametrize("missing", ["psutil", "pynvml", "pydantic"])
def test_a_package_that_is_missing_costs_only_what_needs_it(missing: str) -> None:
    said = run(f"""
        import os, sys
        os.environ.pop("ACCELMETRICS_VALIDATE", None)

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == {missing!r}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, Absent())
        import accelmetrics
        snapshot = accelmetrics.sample(["nvidia", "host"])
        print("memory_percent" in snapshot.metrics, [status.status for status in snapshot.backends][1])
    """)
    assert said == "True ok\n"


def test_the_readme_shows_what_there_is() -> None:
    root = Path(__file__).parents[1]
    readme = (root / "README.md").read_text(encoding="utf-8")
    links = {"ARCHITECTURE.md", *(f"docs/{page}.md" for page in ("metrics", "sampling", "backends"))}
    assert [words for words in ("make dump", "make test", "accelmetrics.sample()", *links) if words not in readme] == []
    assert [link for link in (*links, "docs/wandb-differences.md", "docs/hardware.md") if not (root / link).is_file()] == []


def test_the_version_as_numbers_is_that_of_the_text() -> None:
    assert accelmetrics.__version__.startswith(".".join(map(str, accelmetrics.version_info)))
    assert accelmetrics.version_info >= (0, 1)


def test_a_typed_view_builds_no_schema() -> None:
    """Which would cost half as much again as importing pydantic does."""
    loaded = run("""
        import os, sys
        os.environ.pop("ACCELMETRICS_VALIDATE", None)
        from accelmetrics import Sampler
        from accelmetrics.testing import FakeBackend
        backend = FakeBackend("nvidia")
        backend.device(0).set(powerWatts=4)
        snapshot = Sampler([backend]).sample()
        assert snapshot.devices[0].metrics.power_watts == 4.0
        assert snapshot.host.memory_percent is None
        print(*[type(view).__pydantic_complete__ for view in (snapshot.devices[0].metrics, snapshot.host)])
    """)
    assert loaded == "False False\n"
