"""Which devices a program sees of Intel, Google, AWS and Huawei; each rule says where it is from.

Where a runtime's behaviour is not documented, the answer is that it cannot be told, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from accelmetrics.backends.visible_lists import Devices, Sight, VisibleList, by_number, by_pci_address, leading_number

LEVEL_ZERO, HIERARCHY, PCI_ORDER = "ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY", "ZE_ENABLE_PCI_ID_DEVICE_ORDER"
TPU = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
CORES, CORE_COUNT = "NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES"
ASCEND = "ASCEND_RT_VISIBLE_DEVICES"
LARGEST_RANGE = 4096
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)
_TILED = re.compile(r"\bMax 1[45]\d\d\b", re.ASCII)
_TWO_PER_CHIP = re.compile(r"\bv[23]\b", re.IGNORECASE | re.ASCII)


def see_level_zero(environ: Mapping[str, str], devices: Devices) -> Sight:
    """Intel: a mask, which hides devices and does not change their order.

    Discrete GPUs come first, by PCI address (by that alone with ``ZE_ENABLE_PCI_ID_DEVICE_ORDER=1``); an entry beyond the last
    device is passed over; ``X.Y`` names a tile of a card in the hierarchy ``COMPOSITE`` and is passed over in the flat ones,
    where a card of two tiles counts as two. (compute-runtime, ``execution_environment.cpp``, ``parseAffinityMask``;
    https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/PROG.html#environment-variables)
    """
    order = by_pci_address(devices)
    if environ.get(PCI_ORDER, "0") != "1":
        order.sort(key=lambda place: devices[place].unified)
    value = environ.get(LEVEL_ZERO, "")
    if value in {"", "default"}:
        return Sight(tuple(order))
    lists = (VisibleList(LEVEL_ZERO, value),)
    flat = environ.get(HIERARCHY) != "COMPOSITE"
    if flat and any(_TILED.search(device.name) for device in devices):
        return Sight(None, False, lists, (f"{LEVEL_ZERO} counts tiles unless {HIERARCHY}=COMPOSITE, and a card here has several",))
    entries = value.split(",")
    roots = {entry.partition(".")[0] for entry in entries if not (flat and "." in entry)}
    unknown = [entry for entry in entries if not re.fullmatch(r"\d+(\.\d+)*", entry)]
    caveats = (f"{LEVEL_ZERO} has {unknown[0]!r}, which is no number",) if unknown else ()
    return Sight(tuple(place for number, place in enumerate(order) if str(number) in roots), True, lists, caveats)


def see_tpu(environ: Mapping[str, str], devices: Devices) -> Sight:
    """Google: numbers of this host's chips; a program of ours sees them in the order of their numbers.

    ``TPU_VISIBLE_CHIPS`` is the name that PyTorch/XLA and Ray set, ``TPU_VISIBLE_DEVICES`` the older one
    (``torch_xla/core/xla_env_vars.py``; https://gist.github.com/skye/f82ba45d2445bb19d53545538754f9a3). On v2 and v3 a chip is
    two devices.
    """
    variable = next((name for name in TPU if name in environ), "")
    if not variable:
        return Sight(tuple(by_number(devices)))
    lists = (VisibleList(variable, environ[variable]),)
    if any(_TWO_PER_CHIP.search(f"{device.name} {device.architecture}") for device in devices):
        return Sight(None, False, lists, (f"{variable} counts chips, and a chip of TPU v2 or v3 is two devices",))
    return _numbered(lists, dict(enumerate(by_number(devices))), environ[variable], ranges=False)


def see_neuron(environ: Mapping[str, str], devices: Devices) -> Sight:
    """AWS: ``NEURON_RT_VISIBLE_CORES`` lists cores and ranges of them; ``NEURON_RT_NUM_CORES`` says only how many.

    (https://awsdocs-neuron.readthedocs-hosted.com/en/latest/neuron-runtime/nrt-configurable-parameters.html) Which cores a
    program gets that asks for a number of them is decided when it starts, by what is free then.
    """
    cores = {device.vendor_index: place for place, device in enumerate(devices)}
    if CORES in environ:
        return _numbered((VisibleList(CORES, environ[CORES]),), cores, environ[CORES], ranges=True)
    wanted = environ.get(CORE_COUNT, "0")
    everything = tuple(by_number(devices))
    if wanted in {"0", str(len(devices))}:
        return Sight(everything, True, () if CORE_COUNT not in environ else (VisibleList(CORE_COUNT, wanted),))
    return Sight(None, False, (VisibleList(CORE_COUNT, wanted),), (f"{CORE_COUNT}={wanted} says how many cores, not which",))


def _numbered(lists: tuple[VisibleList, ...], known: Mapping[int, int], value: str, ranges: bool) -> Sight:
    """A list that its runtime refuses to start with unless every entry is a device."""
    numbers = _numbers(value, ranges)
    variable = lists[0].variable
    if numbers is None or len(set(numbers)) < len(numbers) or not set(numbers) <= known.keys():
        return Sight(None, False, lists, (f"{variable}={value!r} is not a list of devices here: its runtime's answer is not documented",))
    return Sight(tuple(known[number] for number in sorted(numbers)), True, lists)


def _numbers(value: str, ranges: bool) -> list[int] | None:
    numbers: list[int] = []
    for entry in value.split(","):
        found = _RANGE.fullmatch(entry.strip())
        if found is None or (found[2] and not ranges):
            return None
        first, last = int(found[1]), int(found[2] or found[1])
        if not 0 <= last - first < LARGEST_RANGE:
            return None
        numbers += range(first, last + 1)
    return numbers


def see_ascend(environ: Mapping[str, str], devices: Devices) -> Sight:
    """Huawei: numbers in rising order, separated by commas and nothing else; what is anything else ends the list.

    (https://www.hiascend.com/document/detail/en/canncommercial/850/maintenref/envvar/envref_07_0028.html: ``1, 2,3`` is 1.)
    """
    value = environ.get(ASCEND)
    order = by_number(devices)
    if value is None:
        return Sight(tuple(order))
    lists = (VisibleList(ASCEND, value),)
    chosen, ended = _until_invalid(value.split(","), len(order))
    if not chosen and value == "":
        return Sight(None, False, lists, (f"what an empty {ASCEND} does is not documented",))
    if sorted(set(chosen)) != chosen:
        return Sight(None, False, lists, (f"{ASCEND}={value!r} is not in rising order, which alone is documented",))
    caveats = (f"{ASCEND} ends at {ended!r}, which names no device here",) if ended else ()
    return Sight(tuple(order[number] for number in chosen), True, lists, caveats)


def _until_invalid(entries: Sequence[str], count: int) -> tuple[list[int], str]:
    chosen: list[int] = []
    for entry in entries:
        number = leading_number(entry) if entry.isascii() and entry.isdecimal() else None
        if number is None or number >= count:
            return chosen, entry
        chosen.append(number)
    return chosen, ""
