"""All IPUs are reported, unless a process was named: then those that it holds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.contract import SYSTEM_CLOCK
from accelmetrics.schemas.errors import Reason
from tests.simulators.graphcore import GcipuinfoStandIn, c600, m2000


def given(sampler: Sampler) -> set[str]:
    """The IPUs that give values."""
    return {key.rpartition(".average")[0] for key in sampler.sample().metrics if ".average die" in key}


def test_all_ipus_are_reported_to_whoever_samples(stand_in: GcipuinfoStandIn, sampler: Sampler) -> None:
    stand_in.behave([c600(0), c600(1, user_process_id=str(os.getpid())), m2000(2)])
    assert given(sampler) == {"ipu.0", "ipu.1", "ipu.2"}


def test_a_process_that_was_named_is_shown_its_own(stand_in: GcipuinfoStandIn) -> None:
    stand_in.behave([c600(0), c600(1, user_process_id="777"), m2000(2)])
    with Sampler(["graphcore"], pid=777, clock=SYSTEM_CLOCK) as sampler:
        snapshot = sampler.sample()
        assert given(sampler) == {"ipu.1"}
    assert snapshot.unavailable["ipu.0.clock (MHz)"] == (Reason.NOT_IN_USE, "the watched process 777 does not use this IPU")
    assert snapshot.unavailable["ipu.2.speed (GT/s)"].reason == Reason.NOT_IN_USE
    assert [len(device.processes or ()) for device in snapshot.devices] == [1, 1, 0]


@pytest.mark.parametrize(("children", "shown"), [(True, {"ipu.0", "ipu.1"}), (False, {"ipu.0"})])
def test_descendants_count_where_they_are_watched(stand_in: GcipuinfoStandIn, root: Path, children: bool, shown: set[str]) -> None:
    (root / "proc").symlink_to("/proc")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        holders = (str(os.getpid()), str(child.pid), "1", str(2**22 + 9))
        stand_in.behave([c600(number, user_process_id=pid) for number, pid in enumerate(holders)])
        with Sampler(["graphcore"], pid=os.getpid(), children=children, clock=SYSTEM_CLOCK) as sampler:
            assert given(sampler) == shown
        child.communicate(b"\n")


@pytest.mark.parametrize(("printed", "pids"), [("38641", [38641]), (" 7 ", [7]), ("N/A", []), ("", []), ("someone", None)])
def test_a_user_that_is_no_number_is_no_process(stand_in: GcipuinfoStandIn, sampler: Sampler, printed: str, pids: list[int] | None) -> None:
    stand_in.behave([c600(0, user_process_id=printed)])
    found = sampler.sample().devices[0].processes
    assert (None if found is None else [process.pid for process in found]) == pids
