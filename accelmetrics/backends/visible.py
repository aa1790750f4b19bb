"""The devices that a program sees, and their order, according to its environment. Loads no vendor library and starts no runtime.

One parser reads all lists (:func:`_chosen`). Each vendor has a function for the rules of its runtime, with the document that describes
them; :data:`VENDORS` lists the functions, and vendors on the kit add theirs. Devices of a vendor without a function are never hidden. If
the behaviour of a runtime is not documented, the result is unknown, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.schemas.identity import DeviceIdentity, pci_address
from accelmetrics.schemas.named_tuple import NamedTuple

Identities = Sequence[DeviceIdentity]
Environ = Mapping[str, str]


class VisibleList(NamedTuple):
    """A variable that hides or orders devices, as it is set.

    Attributes:
        variable: Its name: ``CUDA_VISIBLE_DEVICES``.
        value: Its unchanged value.
    """

    variable: str
    value: str


class VisibleSet(NamedTuple):
    """Devices of one vendor that a program sees.

    Attributes:
        devices: Their positions in the given sequence, in the program's order; None if unknown.
        ordered: Whether the order is the program's. If not, the devices are known, but not their numbers.
        lists: The variables that decide; empty if none is set and the program sees every device.
        caveats: Remarks on the result, or why there is none.
    """

    devices: tuple[int, ...] | None
    ordered: bool = True
    lists: tuple[VisibleList, ...] = ()
    caveats: tuple[str, ...] = ()


class Visibility(NamedTuple):
    """Devices of all vendors that a program sees.

    Attributes:
        visible: For each position in the given sequence whether the program sees the device; None if unknown.
        positions: For each position the number that the program uses for the device among its vendor's; None if hidden or unknown.
        lists: The variables that decide.
        caveats: Remarks on the result, or why there is none.
        order: Positions of the visible devices, vendor by vendor, each vendor's in the program's order; None if the visibility of a device
            is unknown.
    """

    visible: tuple[bool | None, ...]
    positions: tuple[int | None, ...]
    lists: tuple[VisibleList, ...] = ()
    caveats: tuple[str, ...] = ()
    order: tuple[int, ...] | None = None


See = Callable[[Environ, Identities], VisibleSet]
"""Function from an environment and a vendor's devices to the devices that a program sees."""


def visibility(environ: Environ, devices: Identities) -> Visibility:
    """Return which of the devices a program with this environment sees, and its numbers for them.

    Args:
        environ: The program's environment.
        devices: The machine's devices, of any vendors. For each vendor all devices are needed.
    """
    visible: list[bool | None] = [None] * len(devices)
    positions: list[int | None] = [None] * len(devices)
    lists: dict[VisibleList, None] = {}
    caveats: list[str] = []
    order: list[int] = []
    vendors: dict[tuple[str, str], list[int]] = {}
    for place, device in enumerate(devices):
        vendors.setdefault((device.kind, device.vendor), []).append(place)
    for (_, vendor), places in vendors.items():
        own = [devices[place] for place in places]
        _, see = VENDORS.get(vendor, ("", None))
        seen = see(environ, own) if see else VisibleSet(tuple(_by_number(own)))
        lists.update(dict.fromkeys(seen.lists))
        caveats += seen.caveats
        if seen.devices is not None:
            order += [places[number] for number in seen.devices]
            for number, place in enumerate(places):
                visible[place] = number in seen.devices
                positions[place] = seen.devices.index(number) if visible[place] and seen.ordered else None
    return Visibility(tuple(visible), tuple(positions), tuple(lists), tuple(caveats), None if None in visible else tuple(order))


# The parser


def _chosen(
    variable: str,
    entries: Iterable[str],
    find: Callable[[str], int | None],
    *,
    invalid: Literal["ends", "passed over", "unknown"] = "ends",
    repeated: Literal["ends", "counts once", "hides all", "unknown"] = "counts once",
    among: str = "here",
) -> tuple[list[int] | None, list[str]]:
    """Read a list entry by entry.

    Args:
        variable: Name of the variable, for messages.
        entries: The entries, split as the runtime splits the value.
        find: Returns the device that an entry names; None if it names none.
        invalid: How the runtime treats an entry that names no device.
        repeated: How the runtime treats an entry that repeats a device.
        among: The devices from which the list selects, for messages.

    Returns:
        The selected devices in the order of the list, and remarks. None for the devices if the runtime's behaviour is not documented.
    """
    chosen: list[int] = []
    for entry in entries:
        device = find(entry)
        fault = invalid if device is None else repeated if device in chosen else ""
        if device is not None and not fault:
            chosen.append(device)
        elif fault == "unknown":
            return None, [f"{variable} has {entry!r}: its effect is not documented"]
        elif fault == "hides all":
            return [], [f"{variable} names a device twice ({entry!r}): the runtime hides all devices"]
        elif fault == "ends" and device is not None:
            return chosen, [f"{variable} ends at {entry!r}, which names a device for the second time"]
        elif fault == "ends":  # -1 is the usual way to end a list
            return chosen, [] if entry in {"", "-1"} else [f"{variable} ends at {entry!r}, which names no device {among}"]
    return chosen, []


# Patterns are texts, compiled on first use: most programs set none of these variables.
_DECIMAL = r"(?a:[+-]?\d{1,4000})"
"""Limited to 4,000 digits: Python converts no longer numbers, and no device has so large a number."""


def leading_number(text: str) -> int | None:
    """Return the decimal number that C's ``strtol`` reads at the beginning of the text; None without a digit."""
    found = re.match(_DECIMAL, text.lstrip())
    return int(found[0]) if found else None


def whole_number_any_base(text: str) -> int | None:
    """Return the number that ``strtol`` reads with base 0 (``0x1``, ``010``); None if text is left over."""
    for pattern, base in ((r"(?ai:[+-]?0x[0-9a-f]+)", 16), (r"[+-]?0[0-7]*", 8)):
        if re.fullmatch(pattern, text):
            return int(text, base)
    return int(text) if re.fullmatch(_DECIMAL, text) and text.lstrip("+-")[0] != "0" else None


def plain_number(text: str) -> int | None:
    """Return a number in the form that C prints: no sign, no space, no leading zero. None for other text."""
    return int(text) if re.fullmatch(_DECIMAL, text) and text == str(int(text)) and text[0] != "-" else None


def _by_number(devices: Identities) -> list[int]:
    """Return the positions in the order of the vendor's numbers."""
    return sorted(range(len(devices)), key=lambda place: devices[place].vendor_index)


def _by_pci_address(devices: Identities) -> list[int]:
    """Return the positions in the order of PCI addresses, or of the vendor's numbers if a device has no address."""
    addresses = [pci_address(device.pci_bus_id).rjust(16, "0") for device in devices]  # as long as an address with a domain of eight digits
    return sorted(range(len(devices)), key=addresses.__getitem__) if all(device.pci_bus_id for device in devices) else _by_number(devices)


def _within(number: int | None, count: int) -> int | None:
    return number if number is not None and 0 <= number < count else None


def _first_set(environ: Environ, *variables: str) -> VisibleList | None:
    """Return the first of these variables that is set."""
    return next((VisibleList(variable, environ[variable]) for variable in variables if variable in environ), None)


def _entries(value: str) -> list[str]:
    return [entry.strip() for entry in value.split(",")]


def _numbers_alone(
    listed: VisibleList | None,
    devices: Identities,
    known: Mapping[int, int] | None = None,
    entries: Sequence[str] | None = None,
    ascending: bool = False,
) -> VisibleSet:
    """Apply a list of numbers. If it has any other entry, the result is unknown.

    Args:
        listed: The list; None if it is not set, and the program sees every device.
        devices: The vendor's devices.
        known: Positions of the devices by the numbers that the list uses; by default the vendor's numbers.
        entries: The entries of the list, if it is more than numbers between commas.
        ascending: Whether the program sees the devices in ascending order of numbers, rather than in the list's order.
    """
    if listed is None:
        return VisibleSet(tuple(_by_number(devices)))
    places = {device.vendor_index: place for place, device in enumerate(devices)} if known is None else known
    numbers, caveats = _chosen(
        listed.variable,
        _entries(listed.value) if entries is None else entries,
        lambda entry: int(entry) if re.fullmatch(r"(?a:\d{1,6})", entry) and int(entry) in places else None,
        invalid="unknown",
        repeated="unknown",
    )
    if numbers is None:
        return VisibleSet(None, False, (listed,), tuple(caveats))
    return VisibleSet(tuple(places[number] for number in (sorted(numbers) if ascending else numbers)), True, (listed,))


# NVIDIA

CUDA, CUDA_ORDER, PCI_ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PCI_BUS_ID"


def see_cuda(environ: Environ, devices: Identities) -> VisibleSet:
    """Apply ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER``.

    - Unset: every GPU. Empty: none. Otherwise numbers, UUIDs or unique beginnings of UUIDs, in the order of the list. An invalid entry ends
      the list. (CUDA Programming Guide, "CUDA Environment Variables":
      https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html)
    - Numbers are parsed as by ``strtol``: ``1gpu`` is 1, and spaces before a number are ignored. The first entry decides whether the list
      has numbers, UUIDs of GPUs or UUIDs of MIG instances. If a device is repeated, the program sees no device. (Not documented by NVIDIA;
      found by PyTorch, ``torch.cuda._parse_visible_devices`` and its test.)
    - A program sees either whole GPUs or one MIG instance: the first instance that it may see, and then no whole GPU. (MIG User Guide,
      "CUDA Device Enumeration": https://docs.nvidia.com/datacenter/tesla/mig-user-guide/)
    - CUDA numbers the fastest GPU first unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. If there are several models, it is unknown without
      starting CUDA which one is the fastest. GPUs of one model are in the order of their PCI addresses. UUIDs need no order.

    ``NVIDIA_VISIBLE_DEVICES`` belongs to the container runtime: it decides which devices a container has, before CUDA starts.
    """
    listed = _first_set(environ, CUDA)
    gpus = [place for place, device in enumerate(devices) if not device.parent]
    models = {devices[place].name for place in gpus}
    unordered = (
        f"{'a GPU does not report its model' if len(models - {''}) < 2 else 'the GPUs are of several models'} and {CUDA_ORDER} is not "
        f"{PCI_ORDER}: CUDA numbers the fastest GPU first, and only CUDA knows which one that is; "
        f"set {CUDA_ORDER}={PCI_ORDER}, or list UUIDs"
    )
    known = environ.get(CUDA_ORDER) == PCI_ORDER or len(gpus) < 2 or (len(models) == 1 and "" not in models)
    order = [gpus[place] for place in _by_pci_address([devices[place] for place in gpus])] if known else gpus
    if listed is None:
        return _one_instance(order, devices, VisibleSet((), known, caveats=() if known else (unordered,)))
    entries = _entries(listed.value)
    if entries[0].startswith(("GPU-", "MIG-")):
        return _by_uuid(entries, devices, listed)
    numbers, caveats = _chosen(CUDA, entries, lambda entry: _within(leading_number(entry), len(gpus)), repeated="hides all")
    if not known and numbers:
        caveats.append(unordered)
        if len(numbers) < len(gpus):
            return VisibleSet(None, False, (listed,), tuple(caveats))
        # The list names all GPUs, so only their order is unknown.
        numbers = list(range(len(gpus)))
    seen = VisibleSet((), known or not numbers, (listed,), tuple(caveats))
    return _one_instance([order[number] for number in numbers or ()], devices, seen)


def _by_uuid(entries: Sequence[str], devices: Identities, listed: VisibleList) -> VisibleSet:
    parents = {device.parent for device in devices} - {""}
    unlisted: list[str] = []

    def find(entry: str) -> int | None:
        named = [place for place, device in enumerate(devices) if entry.startswith(entries[0][:4]) and device.uuid.startswith(entry)]
        legacy = re.fullmatch(r"MIG-(GPU-[^/]+)/\d+/\d+", entry)
        # The entry may name an instance that is not listed. Drivers before R470 named instances by the GPU and two numbers, which
        # later UUIDs do not contain.
        if not named and entry.startswith("MIG-") and (not parents or (legacy is not None and legacy[1] in parents)):
            unlisted.append(entry)
        return named[0] if len(named) == 1 else None  # a beginning that several UUIDs share names none

    chosen, caveats = _chosen(CUDA, entries, find, repeated="hides all")
    if unlisted:
        return VisibleSet(
            None, False, (listed,), (f"{unlisted[0]!r} names a MIG instance that cannot be identified from the devices listed here",)
        )
    return _one_instance(chosen or [], devices, VisibleSet((), True, (listed,), tuple(caveats)))


def _one_instance(chosen: Sequence[int], devices: Identities, seen: VisibleSet) -> VisibleSet:
    """Return the chosen devices, or the one MIG instance that the program sees instead of them."""
    order = _by_number(devices)
    instances = {
        place: [place] if devices[place].parent else [part for part in order if devices[part].parent == devices[place].uuid != ""]
        for place in chosen
    }
    split = [place for place in chosen if instances[place]]
    if not split:
        return seen._replace(devices=tuple(chosen))
    # Without the order it is unknown which of the divided GPUs comes first.
    if not seen.ordered and len(split) > 1:
        return seen._replace(devices=None)
    first = instances[split[0]]
    caveats = () if len(chosen) == len(first) == 1 else ("a program sees one MIG instance, the first that is visible, and no whole GPU",)
    return seen._replace(devices=(first[0],), ordered=True, caveats=(*seen.caveats, *caveats))


# AMD and Hygon

ROCR, HIP, ORDINAL = "ROCR_VISIBLE_DEVICES", ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), "GPU_DEVICE_ORDINAL"


def see_rocm(environ: Environ, devices: Identities) -> VisibleSet:
    """Apply ``ROCR_VISIBLE_DEVICES``, and then ``HIP_VISIBLE_DEVICES`` to the remaining devices.

    - ``ROCR_VISIBLE_DEVICES``, if set, even if empty: numbers as parsed by ``strtol`` with base 0, and ``GPU-…`` ids or unique beginnings
      of them, without regard to spaces and case. An invalid entry or a repeated device ends the list. (ROCr, ``amd_filter_device.cpp``)
    - ``HIP_VISIBLE_DEVICES``, else ``CUDA_VISIBLE_DEVICES``, unless empty: numbers exactly as printed, among the devices that ROCr left, or
      a part of a ``GPU-…`` id. An invalid entry ends the list; a repeated device counts once. (ROCclr, ``device/rocm/rocdevice.cpp``,
      ``Device::init``)
    - ``GPU_DEVICE_ORDINAL``: according to ROCm's documentation for OpenCL and HIP
      (https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html), according to ROCclr's code for OpenCL only. It is applied if no
      other list is set, with a caveat.

    ROCr numbers the GPUs in the order of the compute driver's topology, which is the order of rocm-smi's numbers. Partitions of a card take
    the card's place. They share its id, so the id identifies none of them.
    """
    order = _by_number(devices)
    left: list[int] = []
    for card in order:
        if not devices[card].parent:
            left += [part for part in order if devices[part].parent == devices[card].anchor] or [card]
    lists: list[VisibleList] = []
    caveats: tuple[str, ...] = ()

    def by_id(entry: str) -> int | None:
        if entry[:1].upper() != "G":
            return _within(whole_number_any_base(entry), len(left))
        named = [number for number, place in enumerate(left) if _rocm_id(devices[place].uuid).startswith(entry.upper())]
        return named[0] if len(named) == 1 and 5 <= len(entry) <= 20 else None

    def by_part_of_id(entry: str) -> int | None:
        if "GPU-" not in entry:
            return _within(plain_number(entry), len(left))
        return next((number for number, place in enumerate(left) if entry in _rocm_id(devices[place].uuid, "016x")), None)

    if ROCR in environ:
        lists.append(VisibleList(ROCR, environ[ROCR]))
        numbers, remarks = _chosen(ROCR, _entries(environ[ROCR]) if environ[ROCR] else (), by_id, repeated="ends")
        left, caveats = [left[number] for number in numbers or ()], (*remarks,)
    variable = next((name for name in (*HIP, ORDINAL) if environ.get(name) and (name != ORDINAL or not lists)), "")
    if variable:
        among = f"among the {len(left)} that {ROCR} leaves" if lists else "here"
        lists.append(VisibleList(variable, environ[variable]))
        numbers, remarks = _chosen(variable, environ[variable].removesuffix(",").split(","), by_part_of_id, among=among)
        left, caveats = [left[number] for number in numbers or ()], (*caveats, *remarks)
    if variable == ORDINAL:
        caveats += (f"OpenCL programs read {ORDINAL}; ROCm's documentation and code disagree on whether HIP programs read it",)
    return VisibleSet(tuple(left), True, tuple(lists), caveats)


def _rocm_id(printed: str, digits: str = "016X") -> str:
    """Return the id that ROCr derives from an id printed by AMD's tools (``0x5c88007d1d4c92fa``); empty without one."""
    bare = printed.lower().removeprefix("gpu-").removeprefix("0x")
    try:
        return f"GPU-{int(bare, 16):{digits}}" if bare else ""
    except ValueError:
        return ""


# Intel

ONEAPI = "ONEAPI_DEVICE_SELECTOR"
LEVEL_ZERO, HIERARCHY, LEVEL_ZERO_ORDER = "ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY", "ZE_ENABLE_PCI_ID_DEVICE_ORDER"


def see_level_zero(environ: Environ, devices: Identities) -> VisibleSet:
    """Apply ``ZE_AFFINITY_MASK``, a mask that hides devices and does not change their order.

    Discrete GPUs come first, in the order of PCI addresses; with ``ZE_ENABLE_PCI_ID_DEVICE_ORDER=1`` the addresses alone decide. An entry
    beyond the last device is ignored. ``X.Y`` selects a tile of a card in the hierarchy ``COMPOSITE``. It is ignored in the flat
    hierarchies, in which a card with two tiles counts as two devices. (compute-runtime, ``execution_environment.cpp``,
    ``parseAffinityMask``; https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/PROG.html#environment-variables)
    """
    order = _by_pci_address(devices)
    if environ.get(LEVEL_ZERO_ORDER, "0") != "1":
        order.sort(key=lambda place: devices[place].unified)
    listed = _first_set(environ, LEVEL_ZERO)
    if listed is None or listed.value in {"", "default"}:
        return VisibleSet(tuple(order))
    flat = environ.get(HIERARCHY) != "COMPOSITE"
    # Data Center GPU Max 1450 and 1550 have two tiles.
    if flat and any(re.search(r"(?a:\bMax 1[45]\d\d\b)", device.name) for device in devices):
        return VisibleSet(None, False, (listed,), (f"{LEVEL_ZERO} counts tiles unless {HIERARCHY}=COMPOSITE, and a card here has several",))
    entries = listed.value.split(",")
    names = {str(number): number for number in range(len(order))}
    numbers, _ = _chosen(
        LEVEL_ZERO, entries, lambda entry: None if flat and "." in entry else names.get(entry.partition(".")[0]), invalid="passed over"
    )
    unknown = [entry for entry in entries if not re.fullmatch(r"\d+(\.\d+)*", entry)]
    caveats = (f"{LEVEL_ZERO} has {unknown[0]!r}, which is no number",) if unknown else ()
    return VisibleSet(tuple(order[number] for number in sorted(numbers or ())), True, (listed,), caveats)


def see_intel(environ: Environ, devices: Identities) -> VisibleSet:
    """Apply ``ZE_AFFINITY_MASK``, and then SYCL's ``ONEAPI_DEVICE_SELECTOR`` to the remaining devices.

    Supported forms are ``level_zero:0,2``, ``level_zero:gpu``, ``*:*``, and several of them separated by ``;``. Numbers are those of Level
    Zero's order. Not resolved are numbers of other backends (``opencl:1``), exclusions (``!``) and parts of cards (``0.1``). No variable is
    known for NPUs. (intel/llvm, ``sycl/doc/EnvironmentVariables.md``; Ray, ``accelerators/intel_gpu.py``)
    """
    if any(device.kind != "gpu" for device in devices):
        return VisibleSet(tuple(_by_number(devices)))
    masked, selector = see_level_zero(environ, devices), environ.get(ONEAPI, "")
    if not selector:
        return masked
    lists = (*masked.lists, VisibleList(ONEAPI, selector))
    chosen: set[int] = set()
    for term in selector.lower().split(";"):
        found = re.fullmatch(r"(?a:(?:level_zero|\*):(\*|gpu|\d{1,6}(?:,\d{1,6})*))", term.strip())
        if found is None or masked.devices is None:
            caveats = masked.caveats or (f"{ONEAPI} has {term.strip()!r}, which is not resolved to GPUs",)
            return VisibleSet(None, False, lists, caveats)
        named = range(len(masked.devices)) if found[1] in ("*", "gpu") else map(int, found[1].split(","))
        chosen.update(masked.devices[number] for number in named if number < len(masked.devices))
    return VisibleSet(tuple(place for place in masked.devices or () if place in chosen), True, lists, masked.caveats)


# Google, AWS, Huawei

TPU = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
CORES, CORE_COUNT = "NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES"
ASCEND = "ASCEND_RT_VISIBLE_DEVICES"


def see_tpu(environ: Environ, devices: Identities) -> VisibleSet:
    """Apply ``TPU_VISIBLE_CHIPS``: numbers of this host's chips. The program sees them in ascending order.

    PyTorch/XLA and Ray set this name; ``TPU_VISIBLE_DEVICES`` is the older one (``torch_xla/core/xla_env_vars.py``;
    https://gist.github.com/skye/f82ba45d2445bb19d53545538754f9a3). On v2 and v3 a chip has two devices.
    """
    listed = _first_set(environ, *TPU)
    if listed is not None and any(re.search(r"(?ai:\bv[23]\b)", f"{device.name} {device.architecture}") for device in devices):
        return VisibleSet(None, False, (listed,), (f"{listed.variable} counts chips, and a chip of TPU v2 or v3 is two devices",))
    return _numbers_alone(listed, devices, dict(enumerate(_by_number(devices))), ascending=True)


def see_neuron(environ: Environ, devices: Identities) -> VisibleSet:
    """Apply ``NEURON_RT_VISIBLE_CORES``, cores and ranges of cores, else ``NEURON_RT_NUM_CORES``, a number of cores.

    (https://awsdocs-neuron.readthedocs-hosted.com/en/latest/neuron-runtime/nrt-configurable-parameters.html)
    """
    if CORES in environ:
        listed = VisibleList(CORES, environ[CORES])
        entries = [part for entry in _entries(listed.value) for part in number_range(entry)]
        return _numbers_alone(listed, devices, entries=entries, ascending=True)
    wanted = environ.get(CORE_COUNT, "0")
    lists = (VisibleList(CORE_COUNT, wanted),) if CORE_COUNT in environ else ()
    if wanted in {"0", str(len(devices))}:
        return VisibleSet(tuple(_by_number(devices)), True, lists)
    # The runtime takes the cores that are free when the program starts.
    return VisibleSet(
        None, False, lists, (f"{CORE_COUNT}={wanted} is a number of cores: which ones is known only after the program starts",)
    )


def number_range(entry: str) -> Sequence[str]:
    """Return the entries of a range (``0-3``), or the entry itself if it is no range of at most 4,096 numbers."""
    found = re.fullmatch(r"(?a:(\d{1,6})-(\d{1,6}))", entry)
    if found is None or not 0 <= int(found[2]) - int(found[1]) < 4096:
        return (entry,)
    return [str(number) for number in range(int(found[1]), int(found[2]) + 1)]


def see_ascend(environ: Environ, devices: Identities) -> VisibleSet:
    """Apply ``ASCEND_RT_VISIBLE_DEVICES``: ascending numbers separated by commas. Any other entry ends the list.

    (https://www.hiascend.com/document/detail/en/canncommercial/850/maintenref/envvar/envref_07_0028.html: ``1, 2,3`` is 1.)
    """
    listed, order = _first_set(environ, ASCEND), _by_number(devices)
    if listed is None:
        return VisibleSet(tuple(order))
    if listed.value == "":
        return VisibleSet(None, False, (listed,), (f"the effect of an empty {ASCEND} is not documented",))

    def find(entry: str) -> int | None:
        return _within(leading_number(entry), len(order)) if entry.isascii() and entry.isdecimal() else None

    numbers, caveats = _chosen(ASCEND, listed.value.split(","), find, repeated="unknown")
    if numbers is None or numbers != sorted(numbers):
        why = f"{ASCEND}={listed.value!r} is not in ascending order: the effect of another order is not documented"
        return VisibleSet(None, False, (listed,), (why,))
    return VisibleSet(tuple(order[number] for number in numbers), True, (listed,), tuple(caveats))


# Gaudi

GAUDI = ("HLS_MODULE_ID", "HABANA_VISIBLE_MODULES")


def see_gaudi(environ: Environ, devices: Identities) -> VisibleSet:
    """Apply ``HLS_MODULE_ID``, the module of a process, else ``HABANA_VISIBLE_MODULES``, a module for each rank.

    Modules are numbered differently from ``hl-smi``. ``HABANA_VISIBLE_DEVICES`` belongs to the container runtime.
    (https://docs.habana.ai/en/latest/PyTorch/PyTorch_Scaling_Guide/Gaudi_Assignment.html)
    """
    listed = _first_set(environ, *GAUDI)
    known = {device.module_id: place for place, device in enumerate(devices) if device.module_id is not None}
    if listed is not None and len(known) < len(devices):
        return VisibleSet(
            None, False, (listed,), (f"{listed.variable} counts modules: the module of each device is known only with hl-smi",)
        )
    return _numbers_alone(listed, devices, known)


# Kunlunxin

KUNLUNXIN = ("XPULINK_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def see_kunlunxin(environ: Environ, devices: Identities) -> VisibleSet:
    """Apply ``XPU_VISIBLE_DEVICES``, else ``CUDA_VISIBLE_DEVICES``: numbers, in the program's order. An empty list hides all.

    ``XPULINK_VISIBLE_DEVICES`` takes precedence over both. (PaddlePaddle, ``_get_xpu_device`` and ``phi/backends/xpu/xpu_info.cc``)
    """
    listed = _first_set(environ, *KUNLUNXIN)
    if listed is not None and not listed.value.strip():
        return VisibleSet((), lists=(listed,))
    return _numbers_alone(listed, devices)


# Rebellions, Tenstorrent, FuriosaAI, MetaX

REBELLIONS = ("RBLN_VISIBLE_DEVICES", "RBLN_DEVICES")
TENSTORRENT = "TT_VISIBLE_DEVICES"
FURIOSA = "FURIOSA_DEVICES"
METAX = ("MACA_VISIBLE_DEVICES", CUDA)


def see_rebellions(environ: Environ, devices: Identities) -> VisibleSet:
    """Apply ``RBLN_VISIBLE_DEVICES`` (SDK 0.11.1), else ``RBLN_DEVICES``: numbers, in the program's order. Empty means unset.

    (https://docs.rbln.ai/latest/software/rbln_pytorch/environment_variables.html; vllm-rbln and torch-rbln, ``test``)
    """
    return _numbers_alone(_first_set({name: value for name, value in environ.items() if value}, *REBELLIONS), devices)


def see_tenstorrent(environ: Environ, devices: Identities) -> VisibleSet:
    """Apply ``TT_VISIBLE_DEVICES``: positions in the order of PCI addresses, or parts of addresses, which select all matching devices.

    The program numbers its devices in the order of addresses. An empty list hides all. An entry that names no device ends the program. Some
    releases count positions in the order of the driver's numbers: if the two orders differ, a position is not resolved. (tt-umd,
    ``docs/TT_VISIBLE_DEVICES.md`` and ``pci_device.cpp``)
    """
    order = _by_pci_address(devices)
    listed = _first_set(environ, TENSTORRENT)
    if listed is None:
        return VisibleSet(tuple(order))
    chosen: set[int] = set()
    for entry in filter(None, _entries(listed.value)):
        position = _within(plain_number(entry), len(order))
        if position is not None and order != _by_number(devices):
            why = f"{TENSTORRENT} has {entry!r}: some releases count by PCI address, others by the driver's number, and these differ here"
            return VisibleSet(None, False, (listed,), (why,))
        named = [place for place in order if not entry.isdecimal() and entry in pci_address(devices[place].pci_bus_id)]
        if position is None and not named:
            return VisibleSet(None, False, (listed,), (f"{TENSTORRENT} has {entry!r}, which names no device: the program fails",))
        chosen.update(named if position is None else [order[position]])
    return VisibleSet(tuple(place for place in order if place in chosen), True, (listed,))


def see_furiosa(environ: Environ, devices: Identities) -> VisibleSet:
    """Apply ``FURIOSA_DEVICES``: ``npu:0``, ``npu:0:0-3`` for some of its cores, older ``npu0pe0-1``, or bare numbers (Ray).

    A number of devices without their names (``warboy(2)*1``) is not resolved. (furiosa-ai/device-api, ``config/inner.rs``; Ray,
    ``accelerators/furiosa.py``)
    """
    listed = _first_set(environ, FURIOSA)
    form = r"(?a:(?:npu:?)?(\d{1,6})(?:(?::|pe)\d{1,6}(?:-\d{1,6})?)?)"
    # Several entries may name cores of one device.
    entries = dict.fromkeys(re.sub(f"^{form}$", r"\1", entry) for entry in _entries(environ.get(FURIOSA, "")))
    return _numbers_alone(listed, devices, entries=list(entries))


def see_metax(environ: Environ, devices: Identities) -> VisibleSet:
    """Apply ``MACA_VISIBLE_DEVICES``, or ``CUDA_VISIBLE_DEVICES`` (for CUDA programs on MACA): numbers, in the program's order.

    If they differ, the result is unknown, since no document says which one decides. (RLinf, ``accelerators/metax_gpu.py``; gpustack, Ray)
    """
    lists = tuple(VisibleList(name, environ[name]) for name in METAX if name in environ)
    if len({listed.value for listed in lists}) > 1:
        return VisibleSet(None, False, lists, (f"{METAX[0]} and {CUDA} differ: which one decides is not documented",))
    return _numbers_alone(lists[0] if lists else None, devices)


# Vendors whose list holds device numbers and nothing else


def _plain_list(variable: str) -> tuple[str, See]:
    """Return the rule of a runtime with a list of device numbers in the program's order. Other entries are not resolved."""
    return variable, lambda environ, devices: _numbers_alone(_first_set(environ, variable), devices)


def declare_list(vendor: str, variable: str) -> None:
    """Register the plain list of a vendor that has no rule here. Its backend calls this when its module is imported."""
    VENDORS.setdefault(vendor, _plain_list(variable))


VENDORS: dict[str, tuple[str, See]] = {
    "nvidia": (CUDA, see_cuda),
    "amd": (ROCR, see_rocm),
    "hygon": (HIP[0], see_rocm),
    "intel": (LEVEL_ZERO, see_intel),
    "google": (TPU[0], see_tpu),
    "aws": (CORES, see_neuron),
    "huawei": (ASCEND, see_ascend),
    "habana": (GAUDI[1], see_gaudi),
    "kunlunxin": (KUNLUNXIN[1], see_kunlunxin),
    "rebellions": (REBELLIONS[0], see_rebellions),
    "tenstorrent": (TENSTORRENT, see_tenstorrent),
    "furiosa": (FURIOSA, see_furiosa),
    "metax": (METAX[0], see_metax),
    **{row.name: _plain_list(row.visible) for row in BUILT_IN.values() if row.visible},
}
"""For each vendor the variable to set, and the rule by which its runtime selects devices."""
