"""Which backends there are: built-in ones, those of other packages, and plug-ins that are broken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends import built_in, registry
from accelmetrics.backends.contract import Backend
from accelmetrics.schemas.errors import SourceError, UnknownNameError
from accelmetrics.testing import FakeBackend
from tests.support.waiting import HANG

PLUG_IN = """
from accelmetrics.backends.contract import Coverage, Detection, Reading
from accelmetrics.schemas.identity import DeviceIdentity

class Acme:
    name, kind, interval, source, machine_wide = "acme", "gpu", 0.0, "libacme", False
    devices = [DeviceIdentity("gpu", "acme", 0, uuid="GPU-acme-0")]
    def detect(self): return Detection(True, "one", 1)
    def open(self): return self
    def coverage(self): return Coverage({"powerWatts": "libacme"})
    def own_metrics(self): return ()
    def reader(self, options): return self
    def read(self, unit, progress): return Reading.of({"powerWatts": 12.5})
    def close(self): pass

backend = Acme()
"""


def install(directory: Path, name: str, target: str, code: str) -> None:
    """A distribution as pip leaves it: a module and its metadata."""
    module = target.partition(":")[0]
    (directory / f"{module}.py").write_text(code)
    info = directory / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[accelmetrics.backends]\n{name} = {target}\n")


def run(directory: Path, program: str) -> str:
    path = f"import sys; sys.path.insert(0, {str(directory)!r})\n"
    done = subprocess.run([sys.executable, "-c", path + program], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("code", [PLUG_IN, PLUG_IN.replace("backend = Acme()", "backend = Acme")])
def test_another_package_adds_a_backend(tmp_path: Path, code: str) -> None:
    install(tmp_path, "acme", "acme_metrics:backend", code)
    program = """
import accelmetrics
from accelmetrics.backends.registry import names
print(names()[-2:])
print({key: value for key, value in accelmetrics.sample().metrics.items() if key.startswith("gpu")})
print(accelmetrics.sample(["acme"], isolation="process").metrics)
"""
    assert run(tmp_path, program) == "('acme', 'host')\n{'gpu.0.powerWatts': 12.5}\n{'gpu.0.powerWatts': 12.5}\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ValueError('boom')", "ValueError: boom"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(1)", "SystemExit: 1"),
        ("", "has no attribute 'backend'"),
        ("backend = 42", "it is not a backend: it lacks name, kind, interval, detect, open, coverage, own_metrics"),
        (PLUG_IN.replace('"acme", "gpu"', '"nvidia", "gpu"'), "its name is 'nvidia', not 'acme'"),
        ("class Panic(BaseException): pass\ndef backend(): raise Panic('at the factory')", "Panic: at the factory"),
    ],
)
def test_a_broken_plug_in_is_reported_and_costs_nobody_else_anything(tmp_path: Path, code: str, words: str) -> None:
    install(tmp_path, "acme", "acme_metrics:backend", code)
    program = """
import accelmetrics
snapshot = accelmetrics.sample()
found = {status.name: status for status in snapshot.backends}
print(found["host"].status, found["acme"].status)
print(found["acme"].detail)
"""
    statuses, detail = run(tmp_path, program).splitlines()
    assert statuses == "ok failed"
    assert detail.startswith("the plug-in acme_metrics:backend could not be loaded: ")
    assert words in detail


def test_a_plug_in_cannot_take_a_built_in_name(tmp_path: Path) -> None:
    install(tmp_path, "nvidia", "acme_metrics:backend", "raise ValueError('boom')")
    assert run(tmp_path, "from accelmetrics.backends.registry import load; print(type(load('nvidia')).__name__)") == "NvidiaBackend\n"


def test_every_built_in_backend_loads_under_its_own_name() -> None:
    for name in built_in.BUILT_IN:
        assert registry.load(name).name == name


def test_makers_are_written_as_they_write_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In what detection says of a machine without their devices, as in the documentation."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    documented = (Path(__file__).parents[2] / "docs" / "vendors.md").read_text("utf-8")
    said = {name: re.match(r"no device of (.*) \(0x", registry.load(name).detect().evidence) for name in built_in.BUILT_IN}
    makers = {name: found[1] for name, found in said.items() if found is not None}
    assert {"MetaX", "T-Head", "DEEPX", "Moore Threads", "FuriosaAI", "Huawei"} <= set(makers.values())
    assert [maker for maker in makers.values() if not re.search(rf"\b{re.escape(maker)}\b", documented)] == []


def test_the_host_comes_last_and_others_between_in_the_order_of_their_names() -> None:
    chosen = registry.select(["host", FakeBackend("zeta"), "amd", FakeBackend("alpha"), "nvidia"])
    assert [backend.name for backend in chosen] == ["nvidia", "amd", "alpha", "zeta", "host"]


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown backend 'hots'. Did you mean 'host'\? Known: all, accelerators, nvidia, amd"):
        registry.load("hots")


def test_a_broken_backend_fails_to_open_with_its_words() -> None:
    broken = registry.BrokenBackend("acme", "acme:backend could not be loaded: boom")
    with pytest.raises(SourceError, match="acme:backend could not be loaded: boom"):
        broken.open()
    with Sampler([broken]) as sampler:
        assert sampler.sample().backends[0].status == "failed"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 500 functions on its PCI bus, as large servers have, eight GPUs among them."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    for number in range(500):
        function = tmp_path / f"sys/bus/pci/devices/0000:{number // 8:02x}:00.{number % 8}"
        function.mkdir(parents=True)
        (function / "vendor").write_text("0x10de\n" if number % 64 == 63 else "0x8086\n")
        (function / "class").write_text("0x030200\n" if number % 64 == 63 else "0x060400\n")


def files_of(backends: Iterable[Backend], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many files are opened when all of them look for hardware, and the bus was not looked at yet."""
    opened: list[object] = []
    really = os.open

    def noted(path: str, flags: int, *rest: int) -> int:
        opened.append(path)
        return really(path, flags, *rest)

    loaded = list(backends)
    with monkeypatch.context() as patched:
        patched.setattr("accelmetrics.backends.kit.system._BUS", {})
        patched.setattr(os, "open", noted)
        for backend in loaded:
            backend.detect()
    return len(opened)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("name", built_in.BUILT_IN)
def test_detection_of_every_built_in_backend_is_cheap_on_a_large_server(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One small file a function, and a few more, even of the backend that comes first."""
    assert files_of([registry.load(name)], monkeypatch) < 550


@pytest.mark.usefixtures("server")
def test_detection_of_all_backends_looks_at_the_bus_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All together cost little more than one."""
    assert files_of([registry.load(name) for name in built_in.BUILT_IN], monkeypatch) < 600


def test_detection_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process and no thread, of no built-in backend; what is not there is said without the vendor's module."""
    monkeypatch.setattr("subprocess.Popen", None)
    monkeypatch.setattr("threading.Thread.start", None)
    for name in built_in.BUILT_IN:
        assert registry.load(name).detect().evidence


@pytest.mark.parametrize("code", [PLUG_IN.replace("backend = Acme()", "backend = Acme"), "raise ValueError('boom')"])
def test_a_plug_in_is_one_object_for_all_samplers(tmp_path: Path, code: str) -> None:
    install(tmp_path, "acme", "acme_metrics:backend", code)
    program = """
from accelmetrics.backends.registry import forget, is_registered, load
first = load("acme")
print(load("acme") is first, is_registered(first))
forget()
print(load("acme") is first, is_registered(first))
"""
    assert run(tmp_path, program) == "True True\nFalse False\n"


ACCELERATORS = [row.name for row in built_in.BUILT_IN.values() if row.kind is not None]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("all", [*ACCELERATORS, "host"]),
        ("accelerators", ACCELERATORS),
        ("-host", ACCELERATORS),
        ("accelerators, -amd", [name for name in ACCELERATORS if name != "amd"]),
        (["-amd", "-tpu"], [name for name in (*ACCELERATORS, "host") if name not in ("amd", "tpu")]),
        (["accelerators", "host"], [*ACCELERATORS, "host"]),
        ("host,nvidia", ["nvidia", "host"]),
        ("nvidia,host,-host", ["nvidia"]),
        ("-accelerators", ["host"]),
    ],
)
def test_groups_and_exclusions(selection: str | list[str], expected: list[str]) -> None:
    assert [backend.name for backend in registry.select(selection)] == expected


def test_objects_stand_beside_groups_and_can_be_excluded() -> None:
    """One that was made by hand takes the place of the registered one of its name."""
    own, amd = FakeBackend("own"), FakeBackend("amd")
    chosen = registry.select(["accelerators", own, amd])
    assert own in chosen
    assert [backend for backend in chosen if backend.name == "amd"] == [amd]
    assert registry.select([own, amd, "-amd"]) == (own,)


def test_what_a_group_stands_for_is_not_opened_without_hardware() -> None:
    """As one named by itself is."""
    assert registry.named("accelerators,host,-amd") == {"host", "-amd"}
    with Sampler("all,graphcore,-nvidia,-amd") as sampler:
        found = {status.name: status for status in sampler.sample().backends}
    assert "no python module" not in found["rebellions"].detail.lower()
    assert found["rebellions"].status == "absent"


def test_a_vendor_that_the_user_switched_off_is_absent_with_the_reason(tmp_path: Path) -> None:
    """In programs that name it, too: nothing of it is looked for or loaded; a child process knows."""
    program = """
import os, sys
os.environ["ACCELMETRICS_DISABLE"] = "amd, graphcore"
import accelmetrics
for options in ({}, {"backends": ["amd", "graphcore", "host"]}, {"backends": ["amd", "host"], "isolation": "process"}):
    snapshot = accelmetrics.sample(**options)
    assert "memory_percent" in snapshot.metrics
    off = [status for status in snapshot.backends if status.name in ("amd", "graphcore")]
    print(*[f"{status.name}: {status.status}, {status.detail}" for status in off], sep="; ")
print([name for name in sys.modules if name.startswith("accelmetrics.backends.graphcore") or name.endswith("amd.in_process")])
"""
    off = "absent, switched off by ACCELMETRICS_DISABLE"
    assert run(tmp_path, program).splitlines() == [f"amd: {off}; graphcore: {off}"] * 2 + [f"amd: {off}", "[]"]


def test_a_name_that_switches_nothing_off_is_warned_of_once(tmp_path: Path) -> None:
    """The others act. An endpoint and a plug-in of another package may be named, too."""
    program = """
import os, sys, warnings
os.environ["ACCELMETRICS_DISABLE"] = "amd, nvidai,accelerators, openmetrics:http://127.0.0.1:1/metrics"
import accelmetrics
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for backends in ("amd,host", "host", "-nvidia"):
        accelmetrics.sample(backends)
print(*[str(warning.message).partition(" Known:")[0] for warning in seen], sep="\\n")
print([status.detail for status in accelmetrics.sample("amd").backends])
"""
    head = "accelmetrics: ACCELMETRICS_DISABLE: unknown backend"
    assert run(tmp_path, program).splitlines() == [
        f"{head} 'accelerators'.",
        f"{head} 'nvidai'. Did you mean 'nvidia'?",
        "['switched off by ACCELMETRICS_DISABLE']",
    ]


@pytest.mark.parametrize("selection", ["-nvidai", "nvidai", "nvidia,", ""])
def test_an_unknown_name_is_refused_with_a_sign_before_it_too(selection: str) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown backend '(nvidai'\. Did you mean 'nvidia'|')"):
        registry.select(selection)
