"""Which devices a program sees, and in which order, by its environment: a pure function, no vendor's library is loaded.

Each vendor's rule is a function from the environment and the vendor's devices to a :class:`~accelmetrics.backends.visible_lists.Sight`;
the table below says whose is whose. A vendor without a rule hides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from accelmetrics.backends import cuda_list, other_lists, rocm_list
from accelmetrics.backends.visible_lists import Devices, Sight, VisibleList, by_number


class Rule(NamedTuple):
    """How a vendor's devices are chosen: the function, and the variable to name to somebody who has set none."""

    see: Callable[[Mapping[str, str], Devices], Sight]
    variable: str


VENDORS: Mapping[str, Rule] = {
    "nvidia": Rule(cuda_list.see, cuda_list.VARIABLE),
    "amd": Rule(rocm_list.see, rocm_list.ROCR),
    "hygon": Rule(rocm_list.see, rocm_list.HIP[0]),
    "intel": Rule(other_lists.see_level_zero, other_lists.LEVEL_ZERO),
}
KINDS: Mapping[str, Rule] = {
    "tpu": Rule(other_lists.see_tpu, other_lists.TPU[0]),
    "trn": Rule(other_lists.see_neuron, other_lists.CORES),
    "npu": Rule(other_lists.see_ascend, other_lists.ASCEND),
}


class Visibility(NamedTuple):
    """What a program sees of all the devices it was asked about.

    Attributes:
        visible: By place in the sequence that was given: whether the program sees the device; None where it cannot be told.
        positions: By place: the number that the program has for it among its vendor's; None if hidden or not to be told.
        lists: The variables that decide.
        caveats: What to know about the answer, or why there is none.
    """

    visible: tuple[bool | None, ...]
    positions: tuple[int | None, ...]
    lists: tuple[VisibleList, ...] = ()
    caveats: tuple[str, ...] = ()


def rule(kind: str, vendor: str) -> Rule | None:
    """The rule for a device."""
    return VENDORS.get(vendor) or KINDS.get(kind)


def visibility(environ: Mapping[str, str], devices: Devices) -> Visibility:
    """Which of the devices a program with this environment sees, and under which numbers.

    Args:
        environ: The program's environment.
        devices: The machine's devices, of any vendors, all of each.
    """
    visible: list[bool | None] = [None] * len(devices)
    positions: list[int | None] = [None] * len(devices)
    lists: list[VisibleList] = []
    caveats: list[str] = []
    for places in _by_vendor(devices):
        sight = _see(environ, [devices[place] for place in places])
        lists += [listed for listed in sight.lists if listed not in lists]
        caveats += sight.caveats
        if sight.devices is None:
            continue
        for number, place in enumerate(places):
            visible[place] = number in sight.devices
            positions[place] = sight.devices.index(number) if visible[place] and sight.ordered else None
    return Visibility(tuple(visible), tuple(positions), tuple(lists), tuple(caveats))


def nothing_known(count: int, why: str) -> Visibility:
    """The answer where a program's environment cannot be read."""
    return Visibility((None,) * count, (None,) * count, (), (why,))


def _by_vendor(devices: Devices) -> list[list[int]]:
    groups: dict[tuple[str, str], list[int]] = {}
    for place, device in enumerate(devices):
        groups.setdefault((device.kind, device.vendor), []).append(place)
    return list(groups.values())


def _see(environ: Mapping[str, str], devices: Devices) -> Sight:
    found = rule(devices[0].kind, devices[0].vendor)
    return found.see(environ, devices) if found else Sight(tuple(by_number(devices)))
