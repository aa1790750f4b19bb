"""A vendor's library whose constructor never returns: every other source answers, within the deadlines, and the program ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from accelmetrics.backends.nvidia import library_name
from tests.simulators import hanging
from tests.simulators.amdgpu import Tree, machines
from tests.support.programs import Program

SAMPLES = """
    import sys
    import accelmetrics
    vendor, isolation = sys.argv[1:]
    sampler = accelmetrics.Sampler([vendor, "host"], open_timeout=2.0, isolation=isolation)
    for _ in range(2):
        snapshot = sampler.sample()
        found = {status.name: status.status for status in snapshot.backends}
        tell(found["host"], found[vendor], vendor in snapshot.to_json())
    if isolation == "process":
        sampler.close()
"""
"""The program ends as any does, not by ``os._exit``."""


def nvidia(folder: Path) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(hanging.install(folder, library_name()))}


def graphcore(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(hanging.install(folder, f"gcipuinfo{EXTENSION_SUFFIXES[0]}"))}


def amd(folder: Path) -> dict[str, str]:
    machines.mi300x(Tree(folder / "root"))
    hanging.install(folder / "rocm" / "lib", "libamd_smi.so")
    return {"ACCELMETRICS_SYSROOT": str(folder / "root"), "ROCM_PATH": str(folder / "rocm")}


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("vendor", [nvidia, graphcore])
def test_other_sources_answer(vendor: Callable[[Path], dict[str, str]], isolation: str, tmp_path: Path) -> None:
    environment = {**os.environ, "ACCELMETRICS_VALIDATE": "0", **vendor(tmp_path)}
    with Program(SAMPLES, vendor.__name__, isolation, env=environment) as program:
        assert program.told() == ["ok", "timed_out", True]
        assert program.told() == ["ok", "timed_out", True]
        assert program.end() == 0, program.errors


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_what_a_kernel_driver_says_is_read_beside_its_library(isolation: str, tmp_path: Path) -> None:
    """After a while, in which the library may still be loaded; what would be asked of that says that it hangs."""
    program = """
        import sys
        import accelmetrics
        from accelmetrics.backends.amd import in_process
        in_process.FIRST_OPENING = 0.3
        sampler = accelmetrics.Sampler(["amd"], isolation=sys.argv[1])
        while "gpu.0.powerWatts" not in sampler.sample().metrics:
            pass
        snapshot = sampler.sample()
        tell(snapshot.backends[0].status, *snapshot.unavailable["gpu.0.fanSpeed"])
        if sys.argv[1] == "process":
            sampler.close()
    """
    with Program(program, isolation, env={**os.environ, "ACCELMETRICS_VALIDATE": "0", **amd(tmp_path)}) as running:
        status, reason, detail = running.told()
        assert (status, reason) == ("ok", "timed_out")
        assert detail.startswith(f"{tmp_path}/rocm/lib/libamd_smi.so has not answered since ")
        assert running.end() == 0, running.errors


def test_another_sampler_reads_what_was_read_before(tmp_path: Path) -> None:
    """Its modules are imported already: the system's loader, which waits for the library, is not asked."""
    program = """
        import accelmetrics
        host = ""
        while host != "ok":  # on a busy machine half a second may not be enough for it
            first = accelmetrics.sample(["nvidia", "host"], open_timeout=0.5)
            host = first.backends[1].status
        later = accelmetrics.sample(["host"])
        tell([status.status for status in (*first.backends, *later.backends)], first.backends[0].detail)
    """
    with Program(program, env={**os.environ, "ACCELMETRICS_VALIDATE": "0", **nvidia(tmp_path)}) as running:
        statuses, detail = running.told()
        assert statuses == ["timed_out", "ok", "ok"]
        assert detail.startswith(f"{library_name()} has not answered since ")
        assert running.end() == 0, running.errors


def test_what_another_sampler_opens_first_says_what_hangs_and_is_tried_again(tmp_path: Path) -> None:
    """No module can be imported beside the library; the program goes on, and all is read when that has been loaded at last."""
    program = """
        import accelmetrics
        from accelmetrics.backends import loading
        loading.PATIENCE = 0.5
        first = accelmetrics.Sampler(["nvidia"], open_timeout=0.5)
        first.sample()
        later = accelmetrics.Sampler(open_timeout=1.0)
        def fares():
            found = {status.name: status for status in later.sample().backends}
            return [(found[name].status, found[name].detail) for name in ("amd", "host")]
        tell(*fares())
        while {status for status, _ in fares()} != {"ok"}:
            pass
        tell("ok")
    """
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    environment = {**os.environ, "ACCELMETRICS_VALIDATE": "0", "HANGS_UNTIL": str(fifo), **nvidia(tmp_path)}
    machines.mi300x(Tree(tmp_path / "root"))
    with Program(program, env={**environment, "ACCELMETRICS_SYSROOT": str(tmp_path / "root")}) as running:
        for status, detail in running.told():
            assert status == "timed_out"
            assert detail.startswith(f"nothing can be loaded meanwhile: waiting for {library_name()}, which has not answered since ")
        fifo.write_text("")
        assert running.told() == ["ok"]
        assert running.end() == 0, running.errors
