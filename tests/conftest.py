"""What every test shares.

Skips: a test may skip only for what the machine is, and its reason begins with the word that says so:

- ``hardware: ...``, the accelerator it needs is not here;
- ``platform: ...``, the operating system or the interpreter cannot do it.

Anything else a test needs (a compiler, a server, an optional package) is installed by ``.ci/run``. On a developer's machine its
absence skips the test; with ``ACCELMETRICS_CI=1`` such a skip is a failure, so that no check goes silently missing.
"""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from accelmetrics.backends.kit import processes
from tests.support import threads
from tests.support.missing import MissingHere

# Every snapshot that a test takes, here or in a process of its own, is held to the whole schema.
os.environ["ACCELMETRICS_VALIDATE"] = "1"

# Programs of one user hear each other's steps there, and doctor lists their readings: those of this process's tests alone.
RUNTIME = tempfile.mkdtemp(prefix="accelmetrics-tests-")
os.environ["XDG_RUNTIME_DIR"] = RUNTIME

# How fast inputs are made says how busy the machine is.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# A job in the background of a shell inherits these as ignored, and so would every command that a test starts.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# Simulated drivers list processes of these tests, which hold no device open: where the tests run in a container, its PID namespace is
# taken for the machine's. Commands in processes of their own do without.
_OWN_NAMESPACE, _MACHINE = processes.namespace_of("self"), processes.WHOLE_MACHINE


def _namespace_of(pid: int | str, kind: str = "pid") -> str:
    found = _real_namespace_of(pid, kind)
    return _MACHINE if kind == "pid" and found == _OWN_NAMESPACE else found


_real_namespace_of = processes.namespace_of
processes.namespace_of = _namespace_of


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands in front of ``/sys``, ``/proc`` and ``/dev``: an empty directory."""
    made = tmp_path / "root"
    made.mkdir()
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(made))
    return made


def pytest_unconfigure() -> None:
    shutil.rmtree(RUNTIME, ignore_errors=True)


ALLOWED_SKIPS = ("hardware:", "platform:")


def _forbidden_skip(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """The reason of a skip that continuous integration does not accept."""
    if os.environ.get("ACCELMETRICS_CI") != "1" or not report.skipped or hasattr(report, "wasxfail"):
        return None
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    return None if reason.startswith(ALLOWED_SKIPS) else reason


def _fail_forbidden_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = _forbidden_skip(report)
    if reason is not None:
        report.outcome = "failed"
        report.longrepr = f"skipped under ACCELMETRICS_CI=1: {reason!r}; an accepted reason begins with {' or '.join(ALLOWED_SKIPS)}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a forbidden skip of a test into its failure."""
    report = yield
    _fail_forbidden_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn a forbidden skip of a whole module into its failure."""
    report = yield
    _fail_forbidden_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Generator[None, object, object]:
    """Skip a test whose fixture finds that something is missing on this machine."""
    try:
        return (yield)
    except MissingHere as missing:
        pytest.skip(str(missing))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Skip a test that finds so itself."""
    try:
        return (yield)
    except MissingHere as missing:
        pytest.skip(str(missing))


@pytest.fixture(autouse=True, scope="session")
def _published_schema() -> Generator[None, None, None]:
    """Hold the snapshots that tests take in this process to the published JSON Schema too."""
    from tests.support.published_schema import validate_fully

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("accelmetrics.schemas.validation.validate", validate_fully)
        yield


@pytest.fixture(autouse=True, scope="module")
def _numbering() -> Generator[None, None, None]:
    """Have the devices of other files' simulated machines forgotten: in one process they would be listed as lost."""
    from accelmetrics.sampling import sampler
    from accelmetrics.sampling.sources import SourceRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "SHARED", SourceRegistry())
        yield
        sampler._shared.cache_clear()  # its samplers have it still


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """With ``-n auto``: two workers a core, since tests wait for other processes about as long as they compute."""
    return 2 * len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2 * (os.cpu_count() or 1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Threads of ours that other tests left do not count in this one."""
    threads.remember()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slow tests, those of one file in one process: each process begins with an equal share of the list (``worksteal``)."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if item.get_closest_marker("slow") is not None]
    if workers == 1 or not slow:
        return
    files = sorted({item.path for item in slow})
    quick = iter([item for item in items if item.get_closest_marker("slow") is None])
    ordered: list[pytest.Item] = []
    for number in range(workers):
        first = [item for item in slow if files.index(item.path) % workers == number]
        share = (len(items) - len(ordered)) // (workers - number)
        ordered += [*first, *islice(quick, max(0, share - len(first)))]
    items[:] = [*ordered, *quick]


def pytest_collection_finish() -> None:
    """What collecting made stays until the end: the garbage collector need not look at it at each of its rounds."""
    gc.collect()
    gc.freeze()
