"""Which AMD devices a program sees: ``ROCR_VISIBLE_DEVICES`` first, then ``HIP_VISIBLE_DEVICES`` among what that leaves.

The rules, and where they are from:

- ``ROCR_VISIBLE_DEVICES``, where set, even empty: numbers as ``strtol`` reads them in base 0, and ``GPU-…`` ids or unique
  beginnings of them, spaces and case aside. An invalid entry, or a device named again, ends the list.
  (ROCr, ``amd_filter_device.cpp``)
- ``HIP_VISIBLE_DEVICES``, else ``CUDA_VISIBLE_DEVICES``, unless empty: numbers exactly as printed, among the devices that
  ROCr left, or a part of a ``GPU-…`` id. An invalid entry ends the list; a device named again counts once.
  (ROCclr, ``device/rocm/rocdevice.cpp``, ``Device::init``)
- ``GPU_DEVICE_ORDINAL``: ROCm's documentation says OpenCL and HIP
  (https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html), ROCclr's code reads it for OpenCL alone. It is heeded
  where no other list is set, and said to be doubtful.

ROCr numbers the GPUs as the compute driver's topology does, which is the order of rocm-smi's numbers;
partitions of a card stand in its place, and share its id, which therefore names none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from accelmetrics.backends.visible_lists import Devices, Sight, VisibleList, by_number, plain_number, whole_number_any_base

ROCR = "ROCR_VISIBLE_DEVICES"
HIP = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
ORDINAL = "GPU_DEVICE_ORDINAL"
DOUBTFUL = f"{ORDINAL} is read by OpenCL programs; whether HIP programs heed it, ROCm's documentation and code disagree"
VARIABLES = (ROCR, *HIP, ORDINAL)
_ID_LENGTHS = range(5, 21)


def see(environ: Mapping[str, str], devices: Devices) -> Sight:
    """What HIP would enumerate.

    Args:
        environ: The program's environment.
        devices: AMD's devices.
    """
    left: Sequence[int] = _agents(devices)
    lists: list[VisibleList] = []
    caveats: list[str] = []
    if ROCR in environ:
        lists.append(VisibleList(ROCR, environ[ROCR]))
        left = _by_rocr(environ[ROCR], left, devices, caveats)
    variable = next((name for name in (*HIP, ORDINAL) if environ.get(name) and (name != ORDINAL or not lists)), "")
    if variable:
        lists.append(VisibleList(variable, environ[variable]))
        left = _by_hip(lists[-1], left, devices, caveats)
    if variable == ORDINAL:
        caveats.append(DOUBTFUL)
    return Sight(tuple(left), True, tuple(lists), tuple(caveats))


def _agents(devices: Devices) -> list[int]:
    """What ROCr lists: the cards, and in place of one that is split its partitions."""
    agents: list[int] = []
    order = by_number(devices)
    for place in order:
        if not devices[place].parent:
            agents += [other for other in order if devices[other].parent == devices[place].anchor] or [place]
    return agents


def _by_rocr(value: str, present: Sequence[int], devices: Devices, caveats: list[str]) -> list[int]:
    entries = [entry.strip() for entry in value.split(",")] if value else []

    def find(entry: str) -> int | None:
        if entry[:1].upper() == "G":
            named = [number for number, place in enumerate(present) if _id(devices[place].uuid).startswith(entry.upper())]
            return named[0] if len(named) == 1 and len(entry) in _ID_LENGTHS else None
        return whole_number_any_base(entry)

    chosen = _chosen(ROCR, entries, len(present), find, caveats)
    firsts = next((count for count, number in enumerate(chosen) if number in chosen[:count]), len(chosen))
    if firsts < len(chosen):
        caveats.append(f"{ROCR} ends where it names a device for the second time")
    return [present[number] for number in chosen[:firsts]]


def _by_hip(listed: VisibleList, present: Sequence[int], devices: Devices, caveats: list[str]) -> list[int]:
    entries = listed.value.removesuffix(",").split(",")

    def find(entry: str) -> int | None:
        if "GPU-" in entry:
            return next((number for number, place in enumerate(present) if entry in _id(devices[place].uuid, "016x")), None)
        return plain_number(entry)

    chosen = _chosen(listed.variable, entries, len(present), find, caveats)
    return [present[number] for number in dict.fromkeys(chosen)]


def _chosen(variable: str, entries: Sequence[str], count: int, find: Callable[[str], int | None], caveats: list[str]) -> list[int]:
    """The numbers that the entries name, up to the first that is invalid."""
    chosen: list[int] = []
    for entry in entries:
        number = find(entry)
        if number is None or not 0 <= number < count:
            if entry not in {"", "-1"}:
                caveats.append(f"{variable} ends at {entry!r}, which names none of the {count} devices that it chooses from")
            break
        chosen.append(number)
    return chosen


def _id(printed: str, form: str = "016X") -> str:
    """ROCr's id, ``GPU-`` and sixteen digits, of what AMD's tools print as ``0x5c88007d1d4c92fa``; empty without one."""
    digits = printed.lower().removeprefix("gpu-").removeprefix("0x")
    try:
        return f"GPU-{int(digits, 16):{form}}" if digits else ""
    except ValueError:
        return ""
