"""Which devices Slurm gave a job, by UUID or PCI address, from what its Prolog is told. No driver is loaded.

``SLURM_JOB_GPUS`` holds positions in the node's list of GPUs. That list is in ``gres.conf``, as device files; where it names none
(``AutoDetect``), it has the GPUs of the node in the order of their device files. The device file's number, which is no number of NVML's, is
looked up in ``/proc/driver/nvidia`` or ``/sys/class/drm``.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from accelmetrics.backends.kit.system import PCI_ADDRESS, link_name, list_directory, pci_address, read_text
from accelmetrics.backends.visible import number_range
from accelmetrics.visibility.attribution import DeviceRef

PROC_NVIDIA = "/proc/driver/nvidia/gpus"
DRM = "/sys/class/drm"
AMD = "0x1002"
GRES = ("/run/slurm/conf/gres.conf", "/etc/slurm/gres.conf", "/etc/slurm-llnl/gres.conf")
"""Where ``gres.conf`` is, unless it is beside the file that ``SLURM_CONF`` names."""
LARGEST_CONF = 1024 * 1024
MOST_DEVICES = 1024
UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,90}", re.ASCII)

_INFORMATION = re.compile(r"^(GPU UUID|Device Minor):\s*(\S+)\s*$", re.MULTILINE)
_PAIR = re.compile(r"(\w+)\s*=\s*(\"[^\"]*\"|\S+)")
_ELEMENTS = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_SPAN = re.compile(r"(\d{1,6})-(\d{1,6})", re.ASCII)
_NVIDIA_FILE = re.compile(r".*/nvidia(\d{1,4})", re.ASCII)
_DRM_FILE = re.compile(r".*/(renderD\d{1,4}|card\d{1,4})", re.ASCII)
_RENDER_NODE = re.compile(r"renderD(\d{1,4})", re.ASCII)


def devices_of(environment: Mapping[str, str]) -> tuple[DeviceRef, ...]:
    """Return the devices that Slurm gives a job.

    ``CUDA_VISIBLE_DEVICES`` counts where it holds UUIDs (MIG, Slurm 25.11): its numbers are those within the job.

    Args:
        environment: Of Prolog.
    """
    visible = [entry.strip() for entry in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if all(UUID.fullmatch(entry) for entry in visible):
        return tuple(DeviceRef("uuid", entry) for entry in dict.fromkeys(visible))
    given = environment.get("SLURM_JOB_GPUS", "")
    entries = [part for entry in given.split(",") for part in number_range(entry.strip())][:MOST_DEVICES]
    listed = [_of_file(file) for file in gpu_files(environment)] or _present()
    found: dict[DeviceRef, None] = {}
    for entry in entries:
        if UUID.fullmatch(entry):
            found[DeviceRef("uuid", entry)] = None
        elif entry.isascii() and entry.isdecimal():
            place = int(entry)
            # A number beyond the list is none of its positions: it can only be that of a device node.
            device = listed[place] if place < len(listed) else _of_link(f"renderD{place}") or _of_minor(str(place))
            if device is not None:
                found[device] = None
    return tuple(found)


def gpu_files(environment: Mapping[str, str]) -> list[str]:
    """Return the device files of this node's GPUs, in the order of ``gres.conf``; empty where that names none, or cannot be read.

    Args:
        environment: Of Prolog: where the configuration is, and what Slurm calls the node.
    """
    named = environment.get("SLURM_CONF", "")
    node = environment.get("SLURMD_NODENAME", "") or socket.gethostname().partition(".")[0]
    for path in ([str(Path(named).with_name("gres.conf"))] if named else []) + list(GRES):
        try:
            with Path(path).open(encoding="utf-8", errors="replace") as file:
                return list(_files(file.read(LARGEST_CONF), node))
        except OSError:
            continue
    return []


def _files(text: str, node: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        words = {name.lower(): value.strip('"') for name, value in _PAIR.findall(line.partition("#")[0])}
        if words.get("name", "").lower() == "gpu" and "file" in words and node in expanded(words.get("nodename", node)):
            yield from expanded(words["file"])


def expanded(listed: str) -> list[str]:
    """List what a host list of Slurm stands for: ``gpu[01-03,7],login`` gives ``gpu01``, ``gpu02``, ``gpu03``, ``gpu7``, ``login``."""
    found: list[str] = []
    for element in _ELEMENTS.findall(listed):
        inside = _BRACKETS.search(element)
        if inside is None:
            found.append(element)
            continue
        for part in inside[1].split(","):
            span = _SPAN.fullmatch(part.strip())
            few = span is not None and 0 <= int(span[2]) - int(span[1]) < MOST_DEVICES
            numbers = [f"{number:0{len(span[1])}}" for number in range(int(span[1]), int(span[2]) + 1)] if span and few else [part.strip()]
            found += [element[: inside.start()] + number + element[inside.end() :] for number in numbers]
    return found


def _of_file(file: str) -> DeviceRef | None:
    """Return the device of a device file; None for one that is no GPU's."""
    if found := _NVIDIA_FILE.fullmatch(file):
        return _of_minor(str(int(found[1])))
    if found := _DRM_FILE.fullmatch(file):
        return _of_link(found[1])
    return None


def _of_link(name: str) -> DeviceRef | None:
    address = link_name(f"{DRM}/{name}/device").lower()
    return DeviceRef("pci", pci_address(address)) if PCI_ADDRESS.fullmatch(address) else None


def _of_minor(minor: str) -> DeviceRef:
    """Return NVIDIA's GPU with this device node: by its number where the driver does not know the UUID yet."""
    uuid = _nvidia().get(minor, "")
    return DeviceRef("uuid", uuid) if uuid else DeviceRef("minor", minor)


def _present() -> Sequence[DeviceRef | None]:
    """List the GPUs of the node in the order of their device files: NVIDIA's, else AMD's."""
    if minors := sorted(_nvidia(), key=int):
        return [_of_minor(minor) for minor in minors]
    nodes = (found for found in map(_RENDER_NODE.fullmatch, list_directory(DRM)) if found)
    return [
        _of_link(found[0])
        for found in sorted(nodes, key=lambda found: int(found[1]))
        if read_text(f"{DRM}/{found[0]}/device/vendor") == AMD
    ]


def _nvidia() -> dict[str, str]:
    """Map the numbers of NVIDIA's device nodes to UUIDs, as the kernel's driver tells them; empty texts while it does not know them."""
    found: dict[str, str] = {}
    for address in list_directory(PROC_NVIDIA):
        about = dict(_INFORMATION.findall(read_text(f"{PROC_NVIDIA}/{address}/information") or ""))
        uuid, minor = about.get("GPU UUID", ""), about.get("Device Minor", "")
        if minor.isascii() and minor.isdecimal():
            found[str(int(minor))] = uuid if UUID.fullmatch(uuid) else ""  # before its first use it is GPU-????????
    return found
