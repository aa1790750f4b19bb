"""Which NVIDIA devices a program sees: ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER``.

The rules, and where they are from:

- Unset: every GPU. Empty: none. Numbers, UUIDs and unique beginnings of UUIDs, in the order of the list; an entry that is
  invalid ends it. (CUDA Programming Guide, "CUDA Environment Variables":
  https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html)
- Numbers are read as ``strtol`` reads them, so that ``1gpu`` is 1 and a space before one is nothing; the first entry says
  whether the list is one of numbers, of GPUs' UUIDs or of MIG UUIDs; a device that is named twice leaves the program none.
  (Not documented by NVIDIA; found out by PyTorch, ``torch.cuda._parse_visible_devices`` and its test.)
- A program has either whole GPUs or one MIG instance: the first instance that it may see, and then no whole GPU beside it.
  (MIG User Guide, "CUDA Device Enumeration": https://docs.nvidia.com/datacenter/tesla/mig-user-guide/)
- Numbers count fastest first unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. Which of several models CUDA takes for faster is not
  to be known without starting it; among equal ones the order is that of their PCI addresses, and UUIDs need no order.

``NVIDIA_VISIBLE_DEVICES`` is the container runtime's: it decides which devices there are in a container, before CUDA looks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from accelmetrics.backends.visible_lists import Devices, Sight, VisibleList, by_number, by_pci_address, leading_number

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
PCI_ORDER = "PCI_BUS_ID"
UNORDERED = (
    f"the GPUs are of several models and {ORDER} is not {PCI_ORDER}: CUDA numbers the fastest first, and which that is "
    f"cannot be known without starting it; set {ORDER}={PCI_ORDER}, or list UUIDs"
)
ONE_INSTANCE = "a program has one MIG instance, the first that it may see, and no whole GPU beside it"
_LEGACY = re.compile(r"MIG-(GPU-[^/]+)/\d+/\d+")


def see(environ: Mapping[str, str], devices: Devices) -> Sight:
    """What CUDA would enumerate.

    Args:
        environ: The program's environment.
        devices: NVIDIA's devices, the MIG instances among them.
    """
    value = environ.get(VARIABLE)
    lists = () if value is None else (VisibleList(VARIABLE, value),)
    wholes = [place for place, device in enumerate(devices) if not device.parent]
    order = _numbering(environ, devices, wholes)
    if value is None:
        everything = wholes if order is None else order
        return _enumerated(everything, devices, Sight((), order is not None, lists, () if order is not None else (UNORDERED,)))
    entries = [entry.strip() for entry in value.split(",")]
    if entries[0].startswith(("GPU-", "MIG-")):
        return _by_uuid(entries, devices, lists)
    return _by_number(entries, devices, wholes, order, lists)


def _numbering(environ: Mapping[str, str], devices: Devices, wholes: Sequence[int]) -> list[int] | None:
    """The GPUs in the order of CUDA's numbers, None where that cannot be known."""
    models = {devices[place].name for place in wholes}
    if environ.get(ORDER) != PCI_ORDER and (len(models) > 1 or ("" in models and len(wholes) > 1)):
        return None
    return [wholes[place] for place in by_pci_address([devices[place] for place in wholes])]


def _by_number(
    entries: Sequence[str], devices: Devices, wholes: Sequence[int], order: Sequence[int] | None, lists: tuple[VisibleList, ...]
) -> Sight:
    numbers: list[int] = []
    caveats: list[str] = []
    for entry in entries:
        number = leading_number(entry)
        if number is None or not 0 <= number < len(wholes):
            caveats += _ended(entry)
            break
        if number in numbers:
            return Sight((), True, lists, (_twice(entry),))
        numbers.append(number)
    if order is not None:
        return _enumerated([order[number] for number in numbers], devices, Sight((), True, lists, tuple(caveats)))
    if not numbers:
        return Sight((), True, lists, tuple(caveats))
    caveats.append(UNORDERED)
    if len(numbers) < len(wholes):
        return Sight(None, False, lists, tuple(caveats))
    return _enumerated(wholes, devices, Sight((), False, lists, tuple(caveats)))


def _by_uuid(entries: Sequence[str], devices: Devices, lists: tuple[VisibleList, ...]) -> Sight:
    kind = entries[0][:4]
    chosen: list[int] = []
    caveats: list[str] = []
    for entry in entries:
        found = [place for place, device in enumerate(devices) if entry.startswith(kind) and device.uuid.startswith(entry)]
        if not found and _may_be_unlisted(entry, devices):
            return Sight(None, False, lists, (f"{entry!r} names a MIG instance, and which one cannot be told by what is listed here",))
        if len(found) != 1:
            caveats += _ended(entry)
            break
        if found[0] in chosen:
            return Sight((), True, lists, (_twice(entry),))
        chosen.append(found[0])
    return _enumerated(chosen, devices, Sight((), True, lists, tuple(caveats)))


def _may_be_unlisted(entry: str, devices: Devices) -> bool:
    """Whether an entry may be an instance that is not listed under this name.

    So it is where no instances are listed, and for the form that drivers before R470 gave them, with the numbers of the GPU
    and compute instance, which are not in the UUIDs of later ones.
    """
    legacy = _LEGACY.fullmatch(entry)
    parents = {device.parent for device in devices} - {""}
    return entry.startswith("MIG-") and (not parents or (legacy is not None and legacy[1] in parents))


def _enumerated(chosen: Sequence[int], devices: Devices, sight: Sight) -> Sight:
    """The chosen devices, with the one MIG instance that stands for them where there is one."""
    split = [place for place in chosen if _instances(place, devices)]
    if not sight.ordered and len(split) > 1:
        return sight._replace(devices=None)
    for place in chosen:
        instances = [place] if devices[place].parent else _instances(place, devices)
        if instances:
            alone = len(chosen) == len(instances) == 1
            return sight._replace(devices=(instances[0],), ordered=True, caveats=sight.caveats + (() if alone else (ONE_INSTANCE,)))
    return sight._replace(devices=tuple(chosen))


def _instances(place: int, devices: Devices) -> list[int]:
    uuid = devices[place].uuid
    return [other for other in by_number(devices) if uuid and devices[other].parent == uuid]


def _ended(entry: str) -> list[str]:
    """What to say of the entry that ended the list; -1 is the customary way to end it."""
    return [] if entry in {"", "-1"} else [f"{VARIABLE} ends at {entry!r}, which names no device here"]


def _twice(entry: str) -> str:
    return f"{VARIABLE} names a device twice ({entry!r}): CUDA then shows none"
