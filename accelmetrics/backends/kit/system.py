"""Files below ``/sys``, ``/proc`` and ``/dev``, and the hardware of this machine that they list.

``ACCELMETRICS_SYSROOT`` puts another directory in front of all of them: a mounted host root in a monitoring container
(``/host``), or a tree of fixtures in a test. It is read at every call, which is rare, because hot paths keep descriptors.

Reading with ``pread`` through a descriptor that stays open costs a third of open, read and close. A descriptor of ``/proc/<pid>/…``
also stays with its process: once the process has ended, it returns an error, even if another process has the number by then.
"""

from __future__ import annotations

import errno
import os
import re
import time
import weakref
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

from accelmetrics.backends.contract import Detection
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import pci_address
from accelmetrics.schemas.named_tuple import NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from accelmetrics.backends.built_in import Registration

VARIABLE = "ACCELMETRICS_SYSROOT"
PCI = "/sys/bus/pci/devices"
PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
"""A PCI address as the kernel writes it. :func:`~accelmetrics.schemas.identity.pci_address` converts other spellings to it."""
ASLEEP = ("suspended", "suspending")
"""``power/runtime_status`` of a suspended PCI device. Almost any call to its driver would wake it."""
BUS_LASTS = 1.0
"""Seconds for which a scan of the PCI bus is reused."""
# A page: the kernel returns most files of /sys in one.
_FIRST_SIZE = 4096


def sysroot() -> str:
    """Return the directory in front of ``/sys``, ``/proc`` and ``/dev``; empty for the machine's own."""
    return os.environ.get(VARIABLE, "").rstrip("/")


def system_path(path: str) -> Path:
    """Return the real path of an absolute system path."""
    from pathlib import Path  # a reading does not need it

    return Path(sysroot() + path)


def exists(path: str) -> bool:
    """Return whether a system path exists; False if a directory on the way may not be searched."""
    return os.path.exists(sysroot() + path)  # noqa: PTH110 - pathlib would slow every first reading


def list_directory(path: str) -> list[str]:
    """List the names in a system directory, sorted; empty if it cannot be listed."""
    try:
        return sorted(os.listdir(sysroot() + path))  # noqa: PTH208 - names alone are wanted
    except OSError:
        return []


def read_text(path: str) -> str | None:
    """Read the text of a system file, stripped; None if it does not exist or may not be read."""
    try:
        return read_once(path).decode("utf-8", "replace").strip()
    except OSError:
        return None


def read_once(path: str) -> bytes:
    """Read the content of a file that is too rarely read to keep a descriptor.

    Raises:
        OSError: It does not exist, or cannot be read.
    """
    fd = os.open(sysroot() + path, os.O_RDONLY)
    try:
        parts = [os.read(fd, _FIRST_SIZE)]
        while parts[-1]:
            parts.append(os.read(fd, _FIRST_SIZE))
    finally:
        os.close(fd)
    return b"".join(parts)


def link_name(path: str) -> str:
    """Return the last name in a system link's target, for example of a device's ``driver``; empty without a link."""
    try:
        return os.readlink(sysroot() + path).rpartition("/")[2]  # noqa: PTH115 - called at every reading, and a Path costs more
    except OSError:
        return ""


def inode(path: str) -> int:
    """Return a system file's inode, which differs from that of another file of the same name; 0 if it does not exist."""
    try:
        return os.stat(sysroot() + path).st_ino  # noqa: PTH116 - called at every reading, and a Path costs more
    except OSError:
        return 0


def reason_of(error: OSError | ValueError, what: str) -> Unavailable:
    """Return why a value is missing, from the exception of reading or parsing its file.

    Args:
        error: The exception.
        what: The file, or the value in words.
    """
    if isinstance(error, PermissionError):
        return Unavailable(Reason.NO_PERMISSION, f"{what} may not be read by this user")
    if isinstance(error, OSError):
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.EOPNOTSUPP):
            return Unavailable(Reason.NOT_SUPPORTED, f"{what} is not there")
        return Unavailable(Reason.DRIVER_ERROR, f"{what}: {error.strerror or error}")
    return Unavailable(Reason.PARSE_ERROR, f"{what}: {error}")


class KeptFile:
    """A file that is read repeatedly through one descriptor.

    Args:
        path: The absolute system path, without the root in front of it.
        pieces: Whether the kernel returns the file a page at a time (lists of devices), cut between two lines. The end is then an
            empty read, or a read after which a whole line would have fitted. Most files of ``/proc`` and ``/sys`` come in one read.
    """

    __slots__ = ("__weakref__", "_fd", "_pieces", "_size", "path")

    def __init__(self, path: str, pieces: bool = False) -> None:
        self.path = path
        self._pieces = pieces
        self._size = _FIRST_SIZE
        self._fd = -1

    def read(self) -> bytes:
        """Read the file's content.

        Raises:
            OSError: It does not exist, or cannot be read. The descriptor is closed, so that the next call opens the file again.
        """
        if self._fd < 0:
            self._fd = os.open(sysroot() + self.path, os.O_RDONLY)
        try:
            data = os.pread(self._fd, self._size, 0)
            # A read that leaves room has reached the end, so the usual file costs one call. A page cut between two lines has less room
            # than a line, and no line is half a page.
            if len(data) < (_FIRST_SIZE // 2 if self._pieces else self._size):
                return data
            whole = data
            while data:
                data = os.pread(self._fd, self._size, len(whole))
                whole += data
            self._size = max(self._size, 2 * len(whole))
            return whole
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptor. A later ``read`` opens the file again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Close the descriptor. Nothing closes a reader, so its descriptor is closed with the last reference to it."""
        self.close()


class Files:
    """The open files of one driver: shared by its readers, closed with it."""

    __slots__ = ("_files",)

    def __init__(self) -> None:
        # Weak, so that a file closes with its last reader.
        self._files: weakref.WeakValueDictionary[str, KeptFile] = weakref.WeakValueDictionary()

    def keep(self, path: str, pieces: bool = False) -> KeptFile:
        """Return the file of this path: the same object for all its users."""
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = KeptFile(path, pieces)
        return file

    def close(self) -> None:
        """Close all descriptors."""
        for file in list(self._files.values()):
            file.close()


def count(word: bytes) -> int:
    """Parse an unsigned number of at most 64 bits, as the kernel prints it.

    Raises:
        ValueError: It is anything else; the message quotes it.
    """
    # No number of 64 bits has more than 20 digits.
    if not word.isdigit() or len(word) > 20 or (value := int(word)) >= 1 << 64:
        raise ValueError(f"not a number of 64 bits: {word[:32]!r}")
    return value


class Memory(NamedTuple):
    """The host's memory in bytes. Swap is None if the system does not report it."""

    total: int
    available: int
    swap_total: int | None
    swap_free: int | None


def parse_meminfo(data: bytes) -> Memory:
    """Parse ``/proc/meminfo``.

    Raises:
        ValueError: Total or free memory is missing or impossible.
    """
    lines = b"\n" + data

    def field(name: bytes) -> int | None:
        # One search for each line costs a fifth of a regular expression over all of them.
        _, there, rest = lines.partition(b"\n" + name + b":")
        return count(rest.partition(b" kB")[0].strip()) * 1024 if there else None

    total, available = field(b"MemTotal"), field(b"MemAvailable")
    if available is None and (free := field(b"MemFree")) is not None:
        # Kernels before 3.14 have no MemAvailable, so it is estimated here.
        available = free + (field(b"Cached") or 0) + (field(b"SReclaimable") or 0)
    if not total or available is None:
        raise ValueError("MemTotal, or both MemAvailable and MemFree, is missing")
    return Memory(total, min(available, total), field(b"SwapTotal"), field(b"SwapFree"))


_BUS: dict[object, tuple[float, dict[str, list[str]]]] = {}
"""The latest scan of the PCI bus: when it expires, and its result."""


def pci_functions() -> dict[str, list[str]]:
    """Return the addresses of each vendor's functions on the PCI bus, in order, by vendor id. Callers must not change it.

    A server has hundreds of functions, and each vendor id is a file. So one scan serves every backend that detects within
    ``BUS_LASTS`` seconds. A function that is added or removed is seen at once; one that takes over another's address is seen after
    that time.
    """
    # No lock, because a fork could copy it in its locked state. At worst two threads scan at the same time.
    addresses = list_directory(PCI)
    # The addresses are part of the key, so that an added or removed function is seen at once.
    key, now = (os.getpid(), sysroot(), *addresses), time.monotonic()
    until, found = _BUS.get(key, (now, {}))
    if now >= until:
        found = {}
        for address in addresses:
            found.setdefault(read_text(f"{PCI}/{address}/vendor") or "", []).append(address)
        _BUS.clear()
        _BUS[key] = (now + BUS_LASTS, found)
    return found


def pci_devices(vendor: str, classes: tuple[str, ...] = ()) -> list[str]:
    """List the PCI addresses of one vendor's devices, in address order.

    Args:
        vendor: The vendor id as sysfs writes it: ``0x10de``.
        classes: Prefixes of the class codes to accept, for example ``("0x03", "0x12")``; all if empty.
    """
    found = pci_functions().get(vendor, [])
    return [address for address in found if not classes or (read_text(f"{PCI}/{address}/class") or "").startswith(classes)]


def find_pci(ids: Sequence[str]) -> list[str]:
    """Find the PCI addresses of the devices with one of these ids, in address order, without virtual functions.

    Args:
        ids: ``vendor:device`` or ``vendor:device:class`` in hexadecimal. The device may be ``*``, and a class may be abbreviated to
            its first digits: ``1eff:*``, ``1ded:6001``, ``1d94:*:0302``.
    """
    found = {
        address
        for vendor, device, *beginning in (id_.split(":") for id_ in ids)
        for address in pci_devices(f"0x{vendor}", tuple(f"0x{each}" for each in beginning))
        if fnmatchcase(read_text(f"{PCI}/{address}/device") or "0x", f"0x{device}")
    }
    # Only a virtual function has a physfn link. The physical function is listed anyway.
    return sorted(address for address in found if not exists(f"{PCI}/{address}/physfn"))


def pci_slot(address: str) -> tuple[int | None, str]:
    """Read the location of a PCI device.

    Args:
        address: Its PCI address in any spelling: ``00000000:C1:00.0``, ``0000:c1:00.0``, ``c1:00.0``.

    Returns:
        Its NUMA node, None if the machine has none; and the CPUs near to it, as ranges (``0-31,64-95``), empty if the kernel does
        not report them.
    """
    address = pci_address(address)
    if PCI_ADDRESS.fullmatch(address) is None:
        return None, ""
    # The node is -1 on a machine that has none.
    node, cpus = (read_text(f"{PCI}/{address}/{name}") or "" for name in ("numa_node", "local_cpulist"))
    is_list = re.fullmatch(r"(?a:\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?){0,1023})", cpus)
    return int(node) if re.fullmatch(r"(?a:\d{1,4})", node) else None, cpus if is_list else ""


def upstream(address: str) -> tuple[str, ...]:
    """Return the path to a PCI device: the host bridge, each bridge below it, the device. Empty if the kernel does not show it."""
    names = os.path.realpath(f"{sysroot()}{PCI}/{address}").split("/") if PCI_ADDRESS.fullmatch(address) else []
    start = next((place for place, name in enumerate(names) if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", name)), len(names))
    return tuple(names[start:])


def is_asleep(address: str) -> bool:
    """Return whether a PCI device is suspended; False if the kernel does not report it."""
    return read_text(f"{PCI}/{address}/power/runtime_status") in ASLEEP


def let_sleep(addresses: Iterable[str], tool: str) -> None:
    """Make sure that no device is suspended before running a tool that reads all of them and would wake it.

    Raises:
        SourceError: One is suspended (``suspended``).
    """
    if asleep := list(filter(is_asleep, addresses)):
        raise SourceError(Reason.SUSPENDED, f"{tool} is not run while {', '.join(asleep)} is suspended: it would wake it")


def find_nodes(patterns: Sequence[str]) -> list[str]:
    """Find the device nodes of these names; ``*`` matches a number: ``/dev/ipu*`` is ``/dev/ipu0``, not ``/dev/ipu0_mem``."""
    found = []
    for directory, _, name in (pattern.rpartition("/") for pattern in patterns):
        form = re.compile(re.escape(name).replace(r"\*", "[0-9]+"))
        found += [f"{directory}/{entry}" for entry in list_directory(directory) if form.fullmatch(entry)]
    return found


def find_driven(drivers: Sequence[str]) -> dict[str, str]:
    """Find the devices that kernel drivers drive. Returns the driver by the device's directory.

    Args:
        drivers: Each driver after a class of devices or the platform bus: ``drm/xe``, ``accel/intel_vpu``, ``platform/v3d``.
    """
    found = {}
    for place, driver in (each.split("/") for each in drivers):
        base = "/sys/bus/platform/devices" if place == "platform" else f"/sys/class/{place}"
        for name in list_directory(f"/sys/bus/platform/drivers/{driver}" if place == "platform" else base):
            # The class drm also has connectors and render nodes of each card.
            below = "driver" if place == "platform" else "device/driver"
            if (place != "drm" or re.fullmatch(r"card\d+", name)) and link_name(f"{base}/{name}/{below}") == driver:
                found[f"{base}/{name}"] = driver
    return found


def find_hardware(
    vendor: str,
    kind: str,
    pci: Sequence[str] = (),
    nodes: Sequence[str] = (),
    python_module: str = "",
    pass_nodes: str = "",
    drivers: Sequence[str] = (),
) -> Detection:
    """Look for a vendor's devices by PCI ids, device nodes, kernel drivers, or an importable Python module.

    Args:
        vendor: The vendor, as it writes itself.
        kind: The kind of its devices: ``npu``.
        pci: Ids as :func:`find_pci` takes them.
        nodes: Device nodes as :func:`find_nodes` takes them. Each is evidence by itself, so none may be shared by several vendors.
        python_module: A module of the vendor that is evidence by itself. It is looked for, not imported.
        pass_nodes: How to start a container with the device nodes, if ``--device`` is not the way.
        drivers: Kernel drivers as :func:`find_driven` takes them. Cards on the PCI bus that another driver has, for example to pass
            them through to a virtual machine, then do not count.
    """
    cards, there, driven = find_pci(pci), find_nodes(nodes), find_driven(drivers)
    names = dict.fromkeys(each.partition("/")[2] for each in drivers)
    others = {card: driver for card in cards if names and (driver := link_name(f"{PCI}/{card}/driver")) not in ("", *names)}
    cards = [card for card in cards if card not in others]
    importable = bool(python_module) and PathFinder.find_spec(python_module) is not None
    words, advice = [], ""
    if cards:
        words.append(f"{len(cards)} {kind.upper()}{'' if len(cards) == 1 else 's'} on the PCI bus ({', '.join(cards)})")
    elif importable and not there:
        words.append("none on this PCI bus (they may be reached over the network)")
    elif pci and not (there or others):
        vendors = ", ".join(dict.fromkeys(f"0x{each.partition(':')[0]}" for each in pci))
        words.append(f"no device of {vendor} ({vendors}) on the PCI bus")
    words += [f"{card} is driven by {driver}, which does not expose its values" for card, driver in others.items()]
    words += [f"{path.rpartition('/')[2]} driven by {driver}" for path, driver in driven.items()]
    words += there
    if nodes and not there and (cards or not importable):
        words.append(f"no {', no '.join(nodes)}")
    if cards and nodes and not there:
        how = pass_nodes or f"--device={nodes[0].replace('*', '0')}"
        advice = f"{'' if pass_nodes else 'load the kernel driver; '}in a container, start it with {how}"
    if names and not driven and (cards or not pci):
        words.append(f"no {kind.upper()} driven by {' or '.join(names)}")
        advice = f"load the kernel driver: sudo modprobe {' or '.join(names)}" if cards else ""
    if python_module:
        words = [f"Python module {python_module}", *words] if importable else [*words, f"no Python module {python_module}"]
    found = max(len(cards), len(there), len(driven))
    return Detection(bool(found or importable), ", ".join(words), found, advice)


def find_registered(row: Registration) -> Detection:
    """Look for the devices of a built-in backend, as its registration describes them."""
    return find_hardware(row.maker, row.kind or "", row.pci, row.nodes, row.python_module, row.pass_nodes, row.drivers)
