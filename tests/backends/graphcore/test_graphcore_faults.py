"""Everything the vendor's module may do wrong, and what comes of it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from accelmetrics import Sampler, Snapshot
from accelmetrics.schemas.catalogue import expected_names
from accelmetrics.schemas.errors import Reason
from accelmetrics.visibility.doctor import diagnose
from tests.simulators.graphcore import GcipuinfoStandIn, Mode, c600
from tests.support.waiting import wait_for

C600_NAMES = expected_names("graphcore")
KEYS = len(C600_NAMES)


def reasons(snapshot: Snapshot) -> set[str]:
    return {why.reason for why in snapshot.unavailable.values()}


def eventually(sampler: Sampler, condition: Callable[[Snapshot], bool]) -> Snapshot:
    """The first snapshot for which something is true; it must come."""
    found: list[Snapshot] = []

    def come() -> bool:
        found.append(sampler.sample())
        return condition(found[-1])

    wait_for(come, what=lambda: found[-1].backends)
    return found[-1]


def test_a_machine_without_the_module_says_what_to_install(root: Path) -> None:
    del root
    (found,) = diagnose(["graphcore"]).backends
    assert (found.status, found.reason) == ("absent", Reason.DRIVER_UNAVAILABLE)
    assert "No module named 'gcipuinfo'" in found.problem
    assert "Poplar SDK" in found.advice


@pytest.mark.parametrize("at", ["import", "gcipuinfo", "getDevices"])
@pytest.mark.parametrize(
    ("mode", "words"),
    [("raise", "RuntimeError: ipuof: no response"), ("permission", "Permission denied"), ("exit", "SystemExit: 3")],
)
def test_a_library_that_does_not_start_is_said_and_tried_again(
    stand_in: GcipuinfoStandIn, sampler: Sampler, at: str, mode: Mode, words: str
) -> None:
    stand_in.behave([c600(0)], mode=mode, at=at)
    (status,) = sampler.sample().backends
    assert status.status == "failed"
    assert words in status.detail
    stand_in.behave([c600(0)])
    assert "ipu.0.clock (MHz)" in eventually(sampler, lambda snapshot: bool(snapshot.metrics)).metrics


def test_no_permission_is_told_apart(stand_in: GcipuinfoStandIn, sampler: Sampler) -> None:
    stand_in.behave([c600(0)])
    sampler.sample()
    stand_in.behave([c600(0)], mode="permission")
    snapshot = sampler.sample()
    assert reasons(snapshot) == {Reason.NO_PERMISSION}
    assert len(snapshot.unavailable) == KEYS


def test_a_library_without_ipus_points_to_the_partition(stand_in: GcipuinfoStandIn, sampler: Sampler) -> None:
    stand_in.behave([])
    (status,) = sampler.sample().backends
    assert (status.status, status.detail) == ("failed", "gcipuinfo lists no IPU")


def test_failures_that_are_not_in_a_row_open_nothing_again(stand_in: GcipuinfoStandIn, sampler: Sampler) -> None:
    stand_in.behave([c600(0)])
    sampler.sample()
    modes: tuple[Mode, ...] = ("raise", "raise", "normal", "raise", "normal")
    given = []
    for mode in modes:
        stand_in.behave([c600(0)], mode=mode)
        given.append(len(sampler.sample().metrics))
    assert given == [0, 0, 8, 0, 8]
    assert stand_in.calls.count(["gcipuinfo"]) == 1


def test_an_attribute_that_comes_and_goes_opens_nothing_again(stand_in: GcipuinfoStandIn, sampler: Sampler) -> None:
    stand_in.behave([c600(0)])
    sampler.sample()
    stand_in.behave([c600(0, pci_id="N/A")])
    assert len(sampler.sample().metrics) == 8
    assert stand_in.calls.count(["gcipuinfo"]) == 1


ISOLATED = """
import sys, time
from accelmetrics import Sampler
from pathlib import Path
sys.path.insert(0, sys.argv[1])
behaviour = Path(sys.argv[1], "behaviour.json")
good = behaviour.read_text()
with Sampler(["graphcore"], isolation="process") as sampler:
    print(len(sampler.sample().metrics))
    behaviour.write_text(good.replace('"normal"', '"die"'))
    snapshot = sampler.sample()
    print(len(snapshot.metrics), {str(why.reason) for why in snapshot.unavailable.values()})
    behaviour.write_text(good)
    end = time.monotonic() + 20
    while not (metrics := sampler.sample().metrics) and time.monotonic() < end:
        time.sleep(0.1)
    print(len(metrics))
"""


def test_a_library_that_ends_the_process_takes_only_the_child_with_it(stand_in: GcipuinfoStandIn, root: Path) -> None:
    stand_in.behave([c600(0)])
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "ACCELMETRICS_SYSROOT": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", ISOLATED, str(stand_in.directory)], capture_output=True, text=True, env=environment, timeout=40
    )
    assert done.stdout.splitlines() == ["8", "0 {'driver_unavailable'}", "8"], done.stderr
