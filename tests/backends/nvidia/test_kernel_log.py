"""The kernel's log: what is read of it, without waiting; and what rules make of errors of before the start."""

from __future__ import annotations

import errno
import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from accelmetrics.backends.nvidia import kernel_log
from accelmetrics.backends.nvidia.kernel_log import KernelError, KernelLog
from accelmetrics.monitor import measures
from accelmetrics.monitor.findings import FindingEngine
from accelmetrics.monitor.rules import rules_of
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.ring import row_of
from accelmetrics.schemas.xid import KnownXids
from accelmetrics.testing import FakeBackend

GPU, SWITCH = "0000:c1:00.0", "0000:05:00.0"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for ``/dev/kmsg``."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    (tmp_path / "dev").mkdir()
    return tmp_path / "dev" / "kmsg"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> KnownXids:
    """The errors of the process, as a new one has them."""
    made = KnownXids()
    monkeypatch.setattr(measures, "KNOWN_XIDS", made)
    return made


def codes(errors: list[KernelError]) -> list[tuple[str, int, bool]]:
    return [(error.address, error.code, error.switch) for error in errors]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("NVRM: Xid (PCI:0000:c1:00): 79, pid=1234, GPU has fallen off the bus.", (GPU, 79, False)),
        ("NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.", (GPU, 79, False)),
        ("NVRM: Xid (0000:c1:00): 31, Ch 00000010, engmask 00000101", (GPU, 31, False)),
        ("NVRM: Xid (PCI:0000:C1:00 GPU-I:05): 43, pid=7, name=python, Ch 00000008", (GPU, 43, False)),
        ("NVRM: Xid (PCI:00000000:c1:00): 13", (GPU, 13, False)),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 28002, Non-fatal, Link 46 Therm Warn Deactivated", (SWITCH, 28002, True)),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 24007, Fatal, Link 46 sourcetrack timeout error (First)", (SWITCH, 24007, True)),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 24007, Severity 1 Engine instance 46 Sub-engine instance 0", None),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 24007, Data {0x00000000, 0x00000000}", None),
        ("NVRM: GPU at PCI:0000:c1:00: GPU-66996444-9bdd-5afb-886e-704b2ada7c2b", None),
        ("python: NVRM: Xid (PCI:0000:c1:00): 79", None),
        ("NVRM: Xid (PCI:0000:c1:00): 123456", None),
    ],
)
def test_forms(path: Path, words: str, expected: tuple[str, int, bool] | None) -> None:
    """Each error once, however many lines it has."""
    path.write_text(f"4,1,1,-;{words}\n SUBSYSTEM=pci\n")
    with closing(KernelLog()) as log:
        assert codes(log.read()) == ([expected] if expected else [])


def test_records_are_read_once_and_those_of_programs_not_at_all(path: Path) -> None:
    """From behind the last known one; facility 1 is that of programs that write there."""
    error = "NVRM: Xid (PCI:0000:c1:00): {}, x"
    path.write_text("".join(f"{priority},{number},1,-;{error.format(number)}\n" for number, priority in enumerate([4, 4, 12, 2, 4])))
    log = KernelLog(after=0)
    assert [error.code for error in log.read()] == [1, 3, 4]
    assert (log.read(), log.sequence) == ([], 4)
    with path.open("a") as file:
        file.write(f"4,5,1,-;{error.format(5)}")
    assert log.read() == []
    with path.open("a") as file:
        file.write("\n")
    assert [error.code for error in log.read()] == [5]
    log.close()


def test_nothing_waits(path: Path) -> None:
    """A pipe in which a writer holds nothing ready: as the kernel's log is when it was read to its end."""
    os.mkfifo(path)
    log = KernelLog()
    with os.fdopen(os.open(path, os.O_WRONLY), "wb", buffering=0) as writer:
        assert log.read() == []
        writer.write(b"4,1,1,-;NVRM: Xid (PCI:0000:c1:00): 79, x\n")
        assert codes(log.read()) == [(GPU, 79, False)]
    log.close()


def test_overwritten_records_and_a_broken_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel answers EPIPE once where it has overwritten records; any other error ends the look."""
    path.touch()
    answers: list[int | bytes] = [errno.EPIPE, b"4,9,1,-;NVRM: Xid (PCI:0000:c1:00): 79, x\n", errno.EIO, b"4,10,1,-;never\n"]

    def read(file: int, size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer

    log = KernelLog()
    monkeypatch.setattr(os, "read", read)
    assert codes(log.read()) == [(GPU, 79, False)]
    assert len(answers) == 1
    monkeypatch.undo()
    log.close()


def test_a_flood_is_gone_through_a_little_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look has its time, and the next one goes on."""
    path.write_text("".join(f"4,{number},1,-;NVRM: Xid (PCI:0000:c1:00): 79, {'x' * 100}\n" for number in range(1000)))
    monkeypatch.setattr(kernel_log, "LONGEST_LOOK", 0.0)
    log = KernelLog()
    assert log.read() == []
    monkeypatch.setattr(kernel_log, "LONGEST_LOOK", 10.0)
    assert len(log.read()) == 1000
    log.close()


def test_an_error_counts_once() -> None:
    """What NVML reports is in the log too; of what was counted before this start neither has anything."""
    known = KnownXids()
    known.before = {GPU: {31: 4}}
    for code in (79, 31, 79):
        known.add(GPU, 1.0, code)
    assert known.total(GPU, {}) == {31: 5, 79: 2}
    assert known.total(GPU, {79: 2, 13: 1}) == {13: 1, 31: 5, 79: 2}
    assert known.total(GPU, {79: 3}) == {31: 5, 79: 3}
    assert list(known.total(GPU, {13: 1}))[-1] == 79
    assert known.total("0000:00:00.0", {}) == {}


def test_an_old_error_is_no_finding(known: KnownXids) -> None:
    """Rules look at the last hour: by when it was, and not by when it was read first."""
    backend = FakeBackend("nvidia", devices=2)
    for number in range(2):
        device = backend.device(number)
        device.identity = device.identity._replace(pci_bus_id=f"0000:0{number}:00.0")
        device.set(**{"xidErrors": 1, "lastXid": 79, "xid.79.errors": 1})
    known.note("0000:00:00.0", time.time() - 4000, 79)
    known.note("0000:01:00.0", time.time() - 3000, 79)
    engine = FindingEngine(rules_of(["xid_hardware"]), 1.0, {})
    with Sampler([backend]) as sampler:
        snapshot = sampler.sample()
        assert [one.key for one in engine.judge(snapshot, row_of(snapshot, 10_000.0), (), True)] == ["gpu.1"]
        assert [one.key for one in engine.judge(snapshot, row_of(snapshot, 10_700.0), (), True)] == []
