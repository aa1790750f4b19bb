"""Which devices Slurm gave a job, and the files of jobs and their devices: our own, and those of DCGM's exporter.

Ours is ``<job>.json``, which Prolog and Epilog write and remove, with the job's UUIDs, PCI addresses, or minor numbers where no UUID was
found. A job that has ended stays there with the moment of its end until its Epilog has its summary. In DCGM's folder a file is called after
the number that NVIDIA's driver gives a GPU (``0``, ``2.1`` for a GPU instance) and has a job's id on each line.

Only files of root and of this user are believed: the labels go to everyone's dashboards.

What Prolog is told in ``SLURM_JOB_GPUS`` are positions in the node's list of GPUs. That list is in ``gres.conf``, as device files; where it
names none (``AutoDetect``), it has the GPUs of the node in the order of their device files. The device file's number, which is no number of
NVML's, is looked up in ``/proc/driver/nvidia`` or ``/sys/class/drm``. No driver is loaded.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from accelmetrics.backends.kit.system import PCI_ADDRESS, link_name, list_directory, read_text
from accelmetrics.backends.visible import number_range
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.identity import pci_address
from accelmetrics.visibility.attribution import Claim, ClaimSource, DeviceRef, Listing

INTERVAL = 0.5
"""Seconds between two looks at the files: how late a job's beginning and end may be noticed."""
VERSION = 1
LARGEST_FILE = 64 * 1024
MOST_FILES = 4096
MOST_LINKS = 40
LONGEST_LABEL = 128
LABELS = {"user": "SLURM_JOB_USER", "partition": "SLURM_JOB_PARTITION", "account": "SLURM_JOB_ACCOUNT", "cluster": "SLURM_CLUSTER_NAME"}
"""What is told of a job, and the variable of Prolog that says it."""

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
_JOB_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._+-]{0,63}", re.ASCII)
_JOB_FILE = re.compile(_JOB_ID.pattern + r"\.json", re.ASCII)
_GPU_FILE = re.compile(r"\d{1,4}(\.\d{1,4})?", re.ASCII)


class Job(NamedTuple):
    """One job on this machine.

    Attributes:
        job_id: Its id.
        scheduler: What gave it the devices.
        labels: What else is told of it: ``user``, ``partition``, ``account``, ``cluster``.
        devices: What it was given.
        began: When its Prolog ran, in seconds since 1970.
        ended: When its Epilog ran; None until then.
    """

    job_id: str
    scheduler: str
    labels: Mapping[str, str]
    devices: tuple[DeviceRef, ...]
    began: float
    ended: float | None = None

    @property
    def claim(self) -> Claim:
        """What it holds."""
        return "job", {"scheduler": self.scheduler, "job_id": self.job_id, **self.labels}, self.devices


# Written by Prolog and Epilog


@contextmanager
def open_folder(path: str, *, owned: bool, make: bool = False) -> Iterator[int]:
    """Open a directory in which root may work though others may write beside it: the daemon's user owns ``/run/accelmetrics``.

    A link is followed only where it and the directory that it is in belong to root or this user, as ``/var/run`` does: nobody else can
    have put it there, or moved it there, since a link keeps its owner.

    Args:
        path: The directory.
        owned: Whether it must be root's or this user's, and writable by nobody else.
        make: Whether to make what is missing of it.

    Yields:
        Its descriptor, for ``dir_fd``.

    Raises:
        OSError: It is not there, or cannot be made.
        ValueError: It belongs to somebody else, or another user's link leads there.
    """
    mine = {0, os.geteuid()}
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    parts, links = list(Path(path).absolute().parts[:0:-1]), 0
    at = os.open("/", flags)
    try:
        while parts:
            name = parts.pop()
            try:
                step = os.open(name, flags, dir_fd=at)
            except FileNotFoundError:
                if not make:
                    raise
                os.mkdir(name, 0o755, dir_fd=at)
                step = os.open(name, flags, dir_fd=at)
            except OSError as error:
                found = os.lstat(name, dir_fd=at)
                links += 1
                if not stat.S_ISLNK(found.st_mode) or links > MOST_LINKS:
                    error.filename = path
                    raise
                if not {found.st_uid, os.fstat(at).st_uid} <= mine:
                    raise ValueError(f"{name} is a link of user {found.st_uid}, which is not followed") from None
                target = Path(os.readlink(name, dir_fd=at))
                parts += target.parts[: 0 if target.is_absolute() else None : -1]
                step = os.open("/" if target.is_absolute() else ".", flags, dir_fd=at)
            os.close(at)
            at = step
        found = os.fstat(at)
        if owned and (found.st_uid not in mine or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            raise ValueError(
                f"it is neither root's nor this user's alone: user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}: remove it"
            )
        yield at
    finally:
        os.close(at)


def write_in(folder: int, name: str, text: str) -> None:
    """Put a file in the place of another in an open directory, at once; no link is followed.

    Raises:
        OSError: It cannot be written; what was there stays.
    """
    new = f".{name}.{os.urandom(8).hex()}"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    with ExitStack() as undo:
        undo.callback(os.unlink, new, dir_fd=folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fchmod(descriptor, 0o644)
            os.fsync(descriptor)
        os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        undo.pop_all()


def job_of(environment: Mapping[str, str], began: float) -> Job:
    """Describe the job whose Prolog or Epilog has this environment.

    Args:
        environment: Slurm's variables.
        began: When it began.

    Raises:
        InvalidOptionError: They name no job.
    """
    job_id = environment.get("SLURM_JOB_ID", "")
    if not _JOB_ID.fullmatch(job_id):
        said = f"is {job_id[:LONGEST_LABEL]!r}, and no job's number" if job_id else "is not set"
        raise InvalidOptionError(f"SLURM_JOB_ID {said}: this is to be run by Slurm's Prolog and Epilog")
    labels = {name: value[:LONGEST_LABEL] for name, variable in LABELS.items() if (value := environment.get(variable, ""))}
    return Job(job_id, "slurm", labels, devices_of(environment), began)


def job_text(job: Job) -> str:
    """Write a job as its file has it."""
    document = {
        "version": VERSION,
        "job_id": job.job_id,
        "scheduler": job.scheduler,
        "labels": dict(job.labels),
        "devices": [dict([device]) for device in job.devices],
        "began": job.began,
        "ended": job.ended,
    }
    return json.dumps(document) + "\n"


def devices_of(environment: Mapping[str, str]) -> tuple[DeviceRef, ...]:
    """Return the devices that Slurm gives a job.

    ``CUDA_VISIBLE_DEVICES`` counts where it holds UUIDs (MIG, Slurm 25.11): its numbers are those within the job.

    Args:
        environment: Of Prolog.
    """
    visible = [entry.strip() for entry in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if all(UUID.fullmatch(entry) for entry in visible):
        return tuple(("uuid", entry) for entry in dict.fromkeys(visible))
    given = environment.get("SLURM_JOB_GPUS", "")
    entries = [part for entry in given.split(",") for part in number_range(entry.strip())][:MOST_DEVICES]
    listed = [_of_file(file) for file in gpu_files(environment)] or _present()
    found: dict[DeviceRef, None] = {}
    for entry in entries:
        if UUID.fullmatch(entry):
            found[("uuid", entry)] = None
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
        with suppress(OSError), Path(path).open(encoding="utf-8", errors="replace") as file:
            text = file.read(LARGEST_CONF)
            break
    else:
        return []
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        words = {name.lower(): value.strip('"') for name, value in _PAIR.findall(line.partition("#")[0])}
        if words.get("name", "").lower() == "gpu" and "file" in words and node in expanded(words.get("nodename", node)):
            found += expanded(words["file"])
    return found


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
    found = _DRM_FILE.fullmatch(file)
    return _of_link(found[1]) if found else None


def _of_link(name: str) -> DeviceRef | None:
    address = pci_address(link_name(f"{DRM}/{name}/device"))
    return ("pci", address) if PCI_ADDRESS.fullmatch(address) else None


def _of_minor(minor: str) -> DeviceRef:
    """Return NVIDIA's GPU with this device node: by its number where the driver does not know the UUID yet."""
    uuid = _nvidia().get(minor, "")
    return ("uuid", uuid) if uuid else ("minor", minor)


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


# Read by the daemon


def read_small(path: str | Path, trusted: bool = False, folder: int | None = None, largest: int = LARGEST_FILE) -> str:
    """Read a small file.

    Args:
        path: The file.
        trusted: Whether it must be root's or this user's, and writable by nobody else.
        folder: The open directory that ``path`` is in.
        largest: Bytes that it may have.

    Raises:
        OSError: It cannot be read.
        ValueError: It is a link, no plain file, or too large; or no UTF-8; or another user's.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError("it is a link, which is not followed") from error
        raise
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no plain file")
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"it has more than {largest} bytes")
    if trusted and (status.st_uid not in {0, os.geteuid()} or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise ValueError(f"it is neither root's nor this user's alone: user {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError("it is no UTF-8") from error


def parsed(text: str) -> Any:
    """Read JSON.

    Raises:
        ValueError: It is none, in words about the file.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def reason_of(error: OSError | ValueError) -> str:
    """Return why a file or a directory cannot be used, in words."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def parse_job(text: str) -> Job:
    """Read a job's file.

    Raises:
        ValueError: It is none.
    """
    document = parsed(text)
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"it is no description of a job in version {VERSION}")
    job_id, scheduler, labels = document.get("job_id"), document.get("scheduler"), document.get("labels")
    if not (isinstance(job_id, str) and _JOB_ID.fullmatch(job_id) and isinstance(scheduler, str) and _JOB_ID.fullmatch(scheduler)):
        raise ValueError("job_id or scheduler is missing or impossible")
    if not isinstance(labels, dict):
        raise ValueError("labels is no object")
    told = {name: value[:LONGEST_LABEL] for name in LABELS if isinstance(value := labels.get(name), str) and value}
    ended = None if document.get("ended") is None else _moment(document["ended"])
    listed = document.get("devices")
    if not isinstance(listed, list) or len(listed) > MOST_DEVICES:
        raise ValueError(f"devices is no list of at most {MOST_DEVICES}")
    devices: list[DeviceRef] = []
    for entry in listed:
        match entry:
            case {"uuid": str(uuid)} if UUID.fullmatch(uuid):
                devices.append(("uuid", uuid))
            case {"pci": str(address)} if PCI_ADDRESS.fullmatch(pci_address(address)):
                devices.append(("pci", pci_address(address)))
            case {"minor": str(minor)} if _GPU_FILE.fullmatch(minor):
                devices.append(("minor", minor))
            case _:
                raise ValueError(f"{str(entry)[:LONGEST_LABEL]} is no device")
    return Job(job_id, scheduler, told, tuple(devices), _moment(document.get("began")), ended)


def _moment(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError("began or ended is missing or impossible")
    return float(value)


def _each(folder: str, form: re.Pattern[str], parse: Callable[[str, str], Any], problems: list[str]) -> Iterator[Any]:
    """Yield what the files of a folder say; one that cannot be used costs itself alone.

    Raises:
        OSError: The folder is there, and cannot be read.
    """
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names alone are wanted
    except FileNotFoundError:
        return
    chosen = [name for name in names if form.fullmatch(name)]
    if len(chosen) > MOST_FILES:
        problems.append(f"{folder} has {len(chosen)} files: the first {MOST_FILES} are read")
    for name in chosen[:MOST_FILES]:
        try:
            yield parse(name, read_small(Path(folder, name), trusted=True))
        except FileNotFoundError:
            continue  # removed meanwhile
        except (OSError, ValueError) as error:
            problems.append(f"{folder}/{name} is passed over: {reason_of(error)}")


def read_jobs(folder: str, problems: list[str]) -> list[Job]:
    """Read the jobs of a folder, those too that have ended and whose Epilog waits.

    Args:
        folder: The folder; one that is not there has no jobs.
        problems: What could not be used is added here, in words.

    Raises:
        OSError: The folder is there, and cannot be read.
    """

    def parse(name: str, text: str) -> Job:
        job = parse_job(text)
        if name != f"{job.job_id}.json":
            raise ValueError(f"it is of job {job.job_id}")
        return job

    return list(_each(folder, _JOB_FILE, parse, problems))


def job_source(folder: str, follow: Callable[[Sequence[Job]], object] | None = None) -> ClaimSource:
    """Make the source of our own files.

    Args:
        folder: Where they are.
        follow: Called with the jobs at each look.
    """

    def read() -> Listing | None:
        problems: list[str] = []
        jobs = read_jobs(folder, problems)
        if follow is not None:
            follow(jobs)
        if not jobs and not problems and not Path(folder).exists():
            return None
        return tuple(job.claim for job in jobs if job.ended is None), tuple(problems)

    return ClaimSource("slurm", INTERVAL, read)


def dcgm_source(folder: str) -> ClaimSource:
    """Make the source of the files that DCGM's exporter reads (``--hpc-job-mapping-dir``). The folder was named: it must be there."""

    def parse(name: str, text: str) -> list[Claim]:
        ids = dict.fromkeys(line.strip() for line in text.splitlines() if line.strip())
        if wrong := [one for one in ids if not _JOB_ID.fullmatch(one)]:
            raise ValueError(f"{wrong[0][:LONGEST_LABEL]!r} is no job")
        return [("job", {"job_id": one}, (("index", name),)) for one in ids]

    def read() -> Listing | None:
        if not Path(folder).is_dir():
            raise FileNotFoundError(f"there is no folder {folder}")
        problems: list[str] = []
        claims = [claim for found in _each(folder, _GPU_FILE, parse, problems) for claim in found]
        return tuple(claims), tuple(problems)

    return ClaimSource("dcgm", INTERVAL, read)
