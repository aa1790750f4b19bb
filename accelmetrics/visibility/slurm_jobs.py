"""Which jobs hold which devices, in files: our own, which Prolog and Epilog write and remove, and those of DCGM's exporter.

Ours is ``<job>.json``, with the job's UUIDs, PCI addresses, or minor numbers where no UUID was found. A job that has ended stays there with
the moment of its end until its Epilog has its summary. In DCGM's folder a file is called after the number that NVIDIA's driver gives a GPU
(``0``, ``2.1`` for a GPU instance) and has a job's id on each line.

Only files of root and of this user are believed: the labels go to everyone's dashboards.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from accelmetrics.backends.kit.system import PCI_ADDRESS, pci_address
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.visibility.attribution import Claim, ClaimSource, DeviceRef, Listing
from accelmetrics.visibility.slurm_devices import MOST_DEVICES, UUID, devices_of

INTERVAL = 0.5
"""Seconds between two looks at the files: how late a job's beginning and end may be noticed."""
VERSION = 1
LARGEST_FILE = 64 * 1024
MOST_FILES = 4096
LONGEST_LABEL = 128
LABELS = {"user": "SLURM_JOB_USER", "partition": "SLURM_JOB_PARTITION", "account": "SLURM_JOB_ACCOUNT", "cluster": "SLURM_CLUSTER_NAME"}
"""What is told of a job, and the variable of Prolog that says it."""

_JOB_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._+-]{0,63}", re.ASCII)
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
        return Claim("job", {"scheduler": self.scheduler, "job_id": self.job_id, **self.labels}, self.devices)


# Written by Prolog and Epilog


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
        "devices": [{device.by: device.value} for device in job.devices],
        "began": job.began,
        "ended": job.ended,
    }
    return json.dumps(document) + "\n"


# Read by the daemon


def read_small(path: Path) -> tuple[str, os.stat_result]:
    """Read a small file, and who has written it.

    Raises:
        OSError: It cannot be read, or is a link.
        ValueError: It is no plain file, or too large; or no UTF-8.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no plain file")
        data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise ValueError(f"it has more than {LARGEST_FILE} bytes")
    return data.decode(), status


def read_trusted(path: Path) -> str:
    """Read a small file that root or this user has written. Raises as :func:`read_small`, and ``ValueError`` for one of another user."""
    text, status = read_small(path)
    if status.st_uid not in {0, os.geteuid()} or status.st_mode & stat.S_IWOTH:
        raise ValueError(f"it is neither root's nor this user's alone: user {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}")
    return text


def parse_job(text: str) -> Job:
    """Read a job's file.

    Raises:
        ValueError: It is none.
    """
    try:
        document: Any = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"it is no description of a job in version {VERSION}")
    job_id, scheduler, labels = document.get("job_id"), document.get("scheduler"), document.get("labels")
    if not (isinstance(job_id, str) and _JOB_ID.fullmatch(job_id) and isinstance(scheduler, str) and _JOB_ID.fullmatch(scheduler)):
        raise ValueError("job_id or scheduler is missing or impossible")
    if not isinstance(labels, dict):
        raise ValueError("labels is no object")
    told = {name: value[:LONGEST_LABEL] for name in LABELS if isinstance(value := labels.get(name), str) and value}
    ended = None if document.get("ended") is None else _moment(document["ended"])
    return Job(job_id, scheduler, told, tuple(_refs(document.get("devices"))), _moment(document.get("began")), ended)


def _moment(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError("began or ended is missing or impossible")
    return float(value)


def _refs(listed: object) -> Iterator[DeviceRef]:
    if not isinstance(listed, list) or len(listed) > MOST_DEVICES:
        raise ValueError(f"devices is no list of at most {MOST_DEVICES}")
    for entry in listed:
        match entry:
            case {"uuid": str(uuid)} if UUID.fullmatch(uuid):
                yield DeviceRef("uuid", uuid)
            case {"pci": str(address)} if PCI_ADDRESS.fullmatch(address.lower()):
                yield DeviceRef("pci", pci_address(address))
            case {"minor": str(minor)} if _GPU_FILE.fullmatch(minor):
                yield DeviceRef("minor", minor)
            case _:
                raise ValueError(f"{str(entry)[:LONGEST_LABEL]} is no device")


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
            yield parse(name, read_trusted(Path(folder, name)))
        except FileNotFoundError:
            continue  # removed meanwhile
        except (OSError, ValueError) as error:
            words = error.strerror if isinstance(error, OSError) else error
            problems.append(f"{folder}/{name} is passed over: {words}")


_JOB_FILE = re.compile(_JOB_ID.pattern + r"\.json", re.ASCII)


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
        return Listing(tuple(job.claim for job in jobs if job.ended is None), tuple(problems))

    return ClaimSource("slurm", INTERVAL, read)


def dcgm_source(folder: str) -> ClaimSource:
    """Make the source of the files that DCGM's exporter reads (``--hpc-job-mapping-dir``). The folder was named: it must be there."""

    def parse(name: str, text: str) -> list[Claim]:
        ids = dict.fromkeys(line.strip() for line in text.splitlines() if line.strip())
        if wrong := [one for one in ids if not _JOB_ID.fullmatch(one)]:
            raise ValueError(f"{wrong[0][:LONGEST_LABEL]!r} is no job")
        return [Claim("job", {"job_id": one}, (DeviceRef("index", name),)) for one in ids]

    def read() -> Listing | None:
        if not Path(folder).is_dir():
            raise FileNotFoundError(f"there is no folder {folder}")
        problems: list[str] = []
        claims = [claim for found in _each(folder, _GPU_FILE, parse, problems) for claim in found]
        return Listing(tuple(claims), tuple(problems))

    return ClaimSource("dcgm", INTERVAL, read)
