"""The devices that Slurm gives a job, and files of jobs with their devices: our own files and the ones of DCGM's exporter.

Our file is ``<job>.json``. Prolog writes it and Epilog removes it. It lists the job's devices by UUID or PCI address, or by minor number
if the UUID is not known. A job that has ended stays in the folder, with the time of its end, until its Epilog has its summary. In DCGM's
folder, a file is named after the number of a GPU in NVIDIA's driver (``0``, or ``2.1`` for a GPU instance) and has a job's id on each line.

Only files of root and of this user are trusted, because the labels go to everyone's dashboards.

``SLURM_JOB_GPUS`` in Prolog has positions in the node's list of GPUs. This list is in ``gres.conf``, as device files. If ``gres.conf``
names no files (``AutoDetect``), the list has the GPUs of the node in the order of their device files. The number in a device file's name
is not NVML's index. It is looked up in ``/proc/driver/nvidia`` or ``/sys/class/drm``. No driver is loaded.
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
"""Seconds between two reads of the files. The start and end of a job are noticed with this delay."""
VERSION = 1
LARGEST_FILE = 64 * 1024
MOST_FILES = 4096
MOST_LINKS = 40
LONGEST_LABEL = 128
LABELS = {"user": "SLURM_JOB_USER", "partition": "SLURM_JOB_PARTITION", "account": "SLURM_JOB_ACCOUNT", "cluster": "SLURM_CLUSTER_NAME"}
"""Labels of a job, and the variable of Prolog with each value."""

PROC_NVIDIA = "/proc/driver/nvidia/gpus"
DRM = "/sys/class/drm"
AMD = "0x1002"
GRES = ("/run/slurm/conf/gres.conf", "/etc/slurm/gres.conf", "/etc/slurm-llnl/gres.conf")
"""Places of ``gres.conf``, after the folder of the file that ``SLURM_CONF`` names."""
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
    """A job on this machine.

    Attributes:
        job_id: Its id.
        scheduler: The scheduler that gave it the devices.
        labels: Further labels: ``user``, ``partition``, ``account``, ``cluster``.
        devices: The devices that it was given.
        began: When its Prolog ran, in seconds since 1970.
        ended: When its Epilog ran, in seconds since 1970. None until then.
    """

    job_id: str
    scheduler: str
    labels: Mapping[str, str]
    devices: tuple[DeviceRef, ...]
    began: float
    ended: float | None = None

    @property
    def claim(self) -> Claim:
        """The job's claim on its devices."""
        return "job", {"scheduler": self.scheduler, "job_id": self.job_id, **self.labels}, self.devices


# Written by Prolog and Epilog


@contextmanager
def open_folder(path: str, *, owned: bool, make: bool = False) -> Iterator[int]:
    """Open a directory safely for root, even if another user may write to its parent directories.

    The daemon's user owns ``/run/accelmetrics``, for example, and could put a link there. So the path is opened part by part.

    Args:
        path: The directory.
        owned: Whether it must belong to root or this user, and be writable by nobody else.
        make: Whether to create missing directories.

    Yields:
        The descriptor of the directory, for ``dir_fd``.

    Raises:
        OSError: The directory does not exist, or cannot be created.
        ValueError: It belongs to another user, or the path has a link of another user.
    """
    trusted_owners = {0, os.geteuid()}
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
                # A link like /var/run is followed if it and its directory belong to root or this user. Then nobody else can have made
                # it, or moved it there: a moved link keeps its owner.
                if not {found.st_uid, os.fstat(at).st_uid} <= trusted_owners:
                    raise ValueError(f"{name} is a link of user {found.st_uid} and is not followed") from None
                target = Path(os.readlink(name, dir_fd=at))
                parts += target.parts[: 0 if target.is_absolute() else None : -1]
                step = os.open("/" if target.is_absolute() else ".", flags, dir_fd=at)
            os.close(at)
            at = step
        found = os.fstat(at)
        if owned and (found.st_uid not in trusted_owners or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            raise ValueError(
                f"only root or this user may own and write it: user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}: remove it"
            )
        yield at
    finally:
        os.close(at)


def write_in(folder: int, name: str, text: str) -> None:
    """Write or replace a file in an open directory atomically, following no link.

    Raises:
        OSError: It cannot be written. The previous file is unchanged.
    """
    # A name with a leading dot is no name of a job's file, so the daemon never reads an unfinished one.
    new = f".{name}.{os.urandom(8).hex()}"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    with ExitStack() as undo:
        undo.callback(os.unlink, new, dir_fd=folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            # The daemon may run as another user.
            os.fchmod(descriptor, 0o644)
            os.fsync(descriptor)
        os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        undo.pop_all()


def job_of(environment: Mapping[str, str], began: float) -> Job:
    """Return the job of an environment of Prolog or Epilog.

    Args:
        environment: Slurm's variables.
        began: When the job began, in seconds since 1970.

    Raises:
        InvalidOptionError: The variables name no job.
    """
    job_id = environment.get("SLURM_JOB_ID", "")
    if not _JOB_ID.fullmatch(job_id):
        problem = f"is {job_id[:LONGEST_LABEL]!r}, not a job id" if job_id else "is not set"
        raise InvalidOptionError(f"SLURM_JOB_ID {problem}: run this command in Slurm's Prolog and Epilog")
    labels = {name: value[:LONGEST_LABEL] for name, variable in LABELS.items() if (value := environment.get(variable, ""))}
    return Job(job_id, "slurm", labels, devices_of(environment), began)


def job_text(job: Job) -> str:
    """Return the text of a job's file."""
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

    Args:
        environment: The environment of Prolog.
    """
    # CUDA_VISIBLE_DEVICES is used only if it has UUIDs (MIG, Slurm 25.11). Numbers in it count within the job, not on the node.
    visible = [entry.strip() for entry in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if all(UUID.fullmatch(entry) for entry in visible):
        return tuple(("uuid", entry) for entry in dict.fromkeys(visible))
    positions = environment.get("SLURM_JOB_GPUS", "")
    entries = [part for entry in positions.split(",") for part in number_range(entry.strip())][:MOST_DEVICES]
    listed = [_of_file(file) for file in gpu_files(environment)] or _present()
    found: dict[DeviceRef, None] = {}
    for entry in entries:
        if UUID.fullmatch(entry):
            found[("uuid", entry)] = None
        elif entry.isascii() and entry.isdecimal():
            place = int(entry)
            # A number beyond the end of the list is no position. It can only be the number of a device node.
            device = listed[place] if place < len(listed) else _of_link(f"renderD{place}") or _of_minor(str(place))
            if device is not None:
                found[device] = None
    return tuple(found)


def gpu_files(environment: Mapping[str, str]) -> list[str]:
    """Return the device files of this node's GPUs in the order of ``gres.conf``, or none if it cannot be read or names none.

    Args:
        environment: The environment of Prolog, with the path of Slurm's configuration and Slurm's name of the node.
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
    """Expand a host list of Slurm: ``gpu[01-03,7],login`` is ``gpu01``, ``gpu02``, ``gpu03``, ``gpu7``, ``login``."""
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
    """Return the device of a device file, or None if it is no GPU's."""
    if found := _NVIDIA_FILE.fullmatch(file):
        return _of_minor(str(int(found[1])))
    found = _DRM_FILE.fullmatch(file)
    return _of_link(found[1]) if found else None


def _of_link(name: str) -> DeviceRef | None:
    address = pci_address(link_name(f"{DRM}/{name}/device"))
    return ("pci", address) if PCI_ADDRESS.fullmatch(address) else None


def _of_minor(minor: str) -> DeviceRef:
    """Return NVIDIA's GPU with this device node, by UUID, or by the node's number while the driver does not know the UUID."""
    uuid = _nvidia().get(minor, "")
    return ("uuid", uuid) if uuid else ("minor", minor)


def _present() -> Sequence[DeviceRef | None]:
    """Return the GPUs of the node in the order of their device files: NVIDIA's, or AMD's if there are none."""
    if minors := sorted(_nvidia(), key=int):
        return [_of_minor(minor) for minor in minors]
    nodes = (found for found in map(_RENDER_NODE.fullmatch, list_directory(DRM)) if found)
    return [
        _of_link(found[0])
        for found in sorted(nodes, key=lambda found: int(found[1]))
        if read_text(f"{DRM}/{found[0]}/device/vendor") == AMD
    ]


def _nvidia() -> dict[str, str]:
    """Return the UUIDs of NVIDIA's GPUs by the number of their device node. A UUID is empty while the driver does not know it."""
    found: dict[str, str] = {}
    for address in list_directory(PROC_NVIDIA):
        about = dict(_INFORMATION.findall(read_text(f"{PROC_NVIDIA}/{address}/information") or ""))
        uuid, minor = about.get("GPU UUID", ""), about.get("Device Minor", "")
        if minor.isascii() and minor.isdecimal():
            found[str(int(minor))] = uuid if UUID.fullmatch(uuid) else ""  # GPU-???????? before the GPU's first use
    return found


# Read by the daemon


def read_small(path: str | Path, trusted: bool = False, folder: int | None = None, largest: int = LARGEST_FILE) -> str:
    """Read a small file.

    Args:
        path: The file.
        trusted: Whether it must belong to root or this user, and be writable by nobody else.
        folder: Descriptor of the directory that ``path`` is in.
        largest: Maximum size in bytes.

    Raises:
        OSError: It cannot be read.
        ValueError: It is a link, no plain file, too large or not UTF-8, or it belongs to another user.
    """
    # Without O_NONBLOCK, opening a named pipe would wait for a writer. The owner is checked on the open file, which nobody can exchange.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError("it is a link and is not followed") from error
        raise
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"it has more than {largest} bytes")
    if trusted and (status.st_uid not in {0, os.geteuid()} or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise ValueError(f"only root or this user may own and write it: user {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error


def parsed(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: It is no JSON. The message is a clause about the file.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def reason_of(error: OSError | ValueError) -> str:
    """Return the reason, in words, why a file or directory cannot be used."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def parse_job(text: str) -> Job:
    """Parse the text of a job's file.

    Raises:
        ValueError: It describes no job.
    """
    document = parsed(text)
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"it does not describe a job in version {VERSION}")
    job_id, scheduler, labels = document.get("job_id"), document.get("scheduler"), document.get("labels")
    if not (isinstance(job_id, str) and _JOB_ID.fullmatch(job_id) and isinstance(scheduler, str) and _JOB_ID.fullmatch(scheduler)):
        raise ValueError("job_id or scheduler is missing or invalid")
    if not isinstance(labels, dict):
        raise ValueError("labels is not an object")
    kept_labels = {name: value[:LONGEST_LABEL] for name in LABELS if isinstance(value := labels.get(name), str) and value}
    ended = None if document.get("ended") is None else _moment(document["ended"])
    listed = document.get("devices")
    if not isinstance(listed, list) or len(listed) > MOST_DEVICES:
        raise ValueError(f"devices is not a list of at most {MOST_DEVICES}")
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
                raise ValueError(f"{str(entry)[:LONGEST_LABEL]} is not a device")
    return Job(job_id, scheduler, kept_labels, tuple(devices), _moment(document.get("began")), ended)


def _moment(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError("began or ended is missing or invalid")
    return float(value)


def _parsed_files(folder: str, form: re.Pattern[str], parse: Callable[[str, str], Any], problems: list[str]) -> Iterator[Any]:
    """Yield the parsed files of a folder. A file that cannot be used is added to ``problems``, and the others are still read.

    Raises:
        OSError: The folder exists, but cannot be read.
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
            problems.append(f"{folder}/{name} is skipped: {reason_of(error)}")


def read_jobs(folder: str, problems: list[str]) -> list[Job]:
    """Return the jobs of a folder, including jobs that have ended and still wait for their summary.

    Args:
        folder: The folder. A missing folder has no jobs.
        problems: Receives problems with files, in words.

    Raises:
        OSError: The folder exists, but cannot be read.
    """

    def parse(name: str, text: str) -> Job:
        job = parse_job(text)
        if name != f"{job.job_id}.json":
            raise ValueError(f"it belongs to job {job.job_id}")
        return job

    return list(_parsed_files(folder, _JOB_FILE, parse, problems))


def job_source(folder: str, follow: Callable[[Sequence[Job]], object] | None = None) -> ClaimSource:
    """Return the source of claims from our own files.

    Args:
        folder: The folder of the files.
        follow: Called with the jobs after each read.
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
    """Return the source of claims from the files of DCGM's exporter (``--hpc-job-mapping-dir``)."""

    def parse(name: str, text: str) -> list[Claim]:
        ids = dict.fromkeys(line.strip() for line in text.splitlines() if line.strip())
        if wrong := [one for one in ids if not _JOB_ID.fullmatch(one)]:
            raise ValueError(f"{wrong[0][:LONGEST_LABEL]!r} is not a job id")
        return [("job", {"job_id": one}, (("index", name),)) for one in ids]

    def read() -> Listing | None:
        if not Path(folder).is_dir():  # the user named this folder, so its absence is an error
            raise FileNotFoundError(f"there is no folder {folder}")
        problems: list[str] = []
        claims = [claim for found in _parsed_files(folder, _GPU_FILE, parse, problems) for claim in found]
        return tuple(claims), tuple(problems)

    return ClaimSource("dcgm", INTERVAL, read)
