"""Replay of a bundle in a machine's place: its files below ``ACCELMETRICS_SYSROOT``, recorded answers of commands and of NVML.

An archive comes from somebody else and is not trusted. Its size, number of files and depth are bounded, it holds plain files only, it is
written only into a new directory, and no link in there leads out of it.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import signal
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from accelmetrics.backends.guard import TAPS
from accelmetrics.backends.kit.commands import GLANCE, Completed
from accelmetrics.backends.kit.system import VARIABLE
from accelmetrics.backends.nvidia.recorded import LONGEST_WAIT, ReplayedLibrary
from accelmetrics.schemas.errors import DocumentError, DriverGoneError, Reason, SourceError
from accelmetrics.visibility.bundle import (
    COMMANDS,
    DESCRIPTOR,
    FILES,
    FORMAT,
    MANIFEST,
    MOST_BYTES,
    MOST_ENTRIES,
    NVML,
    SUFFIXES,
    VARIABLES,
)

LONGEST_NAME, DEEPEST = 1024, 64
LARGEST_ARCHIVE = 64 << 20
_SYSTEM = re.compile(r"/(?:sys|proc|dev|usr/share|opt/amdgpu)(?:/[^/\0]+)*")


def read_archive(path: str) -> dict[str, bytes]:
    """Read the files of an archive, by name.

    Raises:
        DocumentError: The archive does not exist, is damaged, or exceeds the bounds of a bundle.
    """

    def refuse(why: str) -> NoReturn:
        raise DocumentError(f"{path} cannot be replayed: {why}")

    found: dict[str, bytes] = {}
    left = MOST_BYTES

    def take(name: str, read: Callable[[int], bytes]) -> None:
        nonlocal left
        parts = name.split("/")
        if len(name) > LONGEST_NAME or len(parts) > DEEPEST:
            refuse("a name in it is too long or too deep")
        if {"", ".", ".."} & set(parts) or not name.isprintable() or "\\" in name or name in found:
            refuse(f"it has a file {name!r}, which does not belong in a bundle")
        if len(found) == MOST_ENTRIES:
            refuse(f"it has more than {MOST_ENTRIES} files")
        content = read(left + 1)
        left -= len(content)
        if left < 0:
            refuse(f"it unpacks to more than {MOST_BYTES >> 20} MiB")
        found[name] = content

    try:
        with open(path, "rb") as file:  # noqa: PTH123
            packed = file.read(LARGEST_ARCHIVE + 1)
        if len(packed) > LARGEST_ARCHIVE:
            refuse(f"it is larger than {LARGEST_ARCHIVE >> 20} MiB")
        if packed[:2] == b"PK":
            with zipfile.ZipFile(io.BytesIO(packed)) as archive:
                for info in archive.infolist():
                    if info.external_attr >> 28 not in (0, 8) or info.is_dir():  # the Unix file type: none, or a regular file
                        refuse(f"{info.filename!r} in it is not a regular file")
                    with archive.open(info) as entry:
                        take(info.filename, entry.read)
        elif packed[:2] == b"\x1f\x8b":
            # Unpacked as a whole with its own bound, because take() does not count the headers of tar.
            with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
                unpacked = stream.read(2 * MOST_BYTES + 1)
            if len(unpacked) > 2 * MOST_BYTES:
                refuse(f"it unpacks to more than {2 * MOST_BYTES >> 20} MiB")
            with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as tar:
                for member in tar:
                    entry_file = tar.extractfile(member) if member.type == tarfile.REGTYPE else None
                    if entry_file is None:
                        refuse(f"{member.name!r} in it is not a regular file")
                    take(member.name, entry_file.read)
        else:
            refuse(f"it is not an archive ({', '.join(SUFFIXES)})")
    except OSError as error:
        refuse(error.strerror or str(error))
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, ValueError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, DocumentError):
            raise
        refuse(f"the archive is damaged ({error})")
    return found


class Recording:
    """The checked contents of a bundle.

    Args:
        path: The archive.

    Attributes:
        pid: The process that recorded it.
        nvml: Recorded answers of NVML or one of its clones, by vendor.
        hostname: The pseudonym of the machine's name.
        file_systems: Bytes used and available in file systems, by path.
        options: The options of the recorded readings.

    Raises:
        DocumentError: The archive is no bundle.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.entries = read_archive(path)
        manifest = self._document(MANIFEST)
        if manifest.get("format") != FORMAT:
            raise DocumentError(f"{path} cannot be replayed: its format is {manifest.get('format')!r}, but this release reads {FORMAT}")
        self.pid = manifest.get("pid")
        if not isinstance(self.pid, int) or not 0 < self.pid < 2**31:
            self._refuse("it has no valid process id")
        options, variables, errors = (self._mapping(manifest, name) for name in ("options", "environment", "errors"))
        self.options: dict[str, Any] = {
            "backends": [each for each in options.get("backends") or () if isinstance(each, str)],
            "amd_source": options["amd_source"] if isinstance(options.get("amd_source"), str) else None,
        }
        self.environment = {name: str(value) for name, value in variables.items() if VARIABLES.fullmatch(name) and str(value).isprintable()}
        self.installed = manifest.get("nvml_installed") is True
        hostname = manifest.get("hostname")
        self.hostname = hostname if isinstance(hostname, str) and hostname.isprintable() else ""
        file_systems = self._mapping(manifest, "file_systems") if "file_systems" in manifest else {}
        self.file_systems = {
            path: (sizes[0], sizes[1])
            for path, sizes in file_systems.items()
            if isinstance(sizes, list) and len(sizes) == 2 and all(isinstance(each, int) for each in sizes)
        }
        self.names = {name: directory is True for name, directory in self._mapping(manifest, "names").items()}
        self.links = {name: target for name, target in self._mapping(manifest, "links").items() if isinstance(target, str)}
        self.errors = {name: number for name, number in errors.items() if isinstance(number, int) and number in errno.errorcode}
        commands = self._document(COMMANDS)
        try:
            self.nvml = {vendor: ReplayedLibrary(notes) for vendor, notes in self._document(NVML).items()}
        except ValueError as error:
            self._refuse(f"{NVML} in it cannot be read: {error}")
        self.found = {name: place for name, place in self._mapping(commands, "found").items() if isinstance(place, str)}
        self.may_run = {place for place, may in self._mapping(commands, "may_run").items() if may is True}
        runs = commands.get("runs")
        self.runs = [run for run in runs if isinstance(run, dict) and isinstance(run.get("argv"), list)] if isinstance(runs, list) else []

    def _refuse(self, why: str) -> NoReturn:
        raise DocumentError(f"{self._path} cannot be replayed: {why}")

    def _document(self, name: str) -> dict[str, Any]:
        if name not in self.entries:
            self._refuse(f"it has no {name}")
        try:
            found = json.loads(self.entries[name])
        except (ValueError, RecursionError) as error:
            self._refuse(f"{name} in it is not JSON ({error})")
        return found if isinstance(found, dict) else self._refuse(f"{name} in it is not an object")

    def _mapping(self, document: Mapping[str, Any], name: str) -> dict[str, Any]:
        found = document.get(name)
        return found if isinstance(found, dict) else self._refuse(f"{name} in it is not an object")

    def unpack(self, directory: str) -> None:
        """Write the files of the bundle below a new, empty directory.

        Raises:
            DocumentError: A file or link would lie outside of it, or cannot be written.
        """
        root = os.path.realpath(directory)
        prefix = FILES + "/"
        files = {name[len(FILES) :]: content for name, content in self.entries.items() if name.startswith(prefix)}
        wanted = (*files, *self.names, *self.links, *self.errors)
        if len(wanted) > 3 * MOST_ENTRIES:
            self._refuse("it names too many files")
        for name in wanted:
            parts = name.split("/")
            usual = _SYSTEM.fullmatch(name) and not {".", ".."} & set(parts) and len(name) <= LONGEST_NAME and len(parts) <= DEEPEST
            if not usual and name not in ("/", "/usr", "/opt", "/usr/share", "/opt/amdgpu"):
                self._refuse(f"it has a file {name!r}, which does not belong in a bundle")
        try:
            for name in (name for name, is_directory in self.names.items() if is_directory):
                Path(root + name).mkdir(parents=True, exist_ok=True)
            for name, content in {**dict.fromkeys((name for name, directory in self.names.items() if not directory), b""), **files}.items():
                Path(root + name).parent.mkdir(parents=True, exist_ok=True)
                Path(root + name).write_bytes(content)
            for name in self.errors:
                with suppress(FileNotFoundError):  # its directory is not part of the bundle
                    Path(root + name).touch()
            # Links come last, so that no file is written through one. Their targets are checked when all of them exist.
            for name in self.links:
                Path(root + name).parent.mkdir(parents=True, exist_ok=True)
            for name, target in self.links.items():
                place = Path(root + name)
                if os.path.realpath(place.parent) != str(place.parent):
                    self._refuse(f"{name!r} in it is behind a link")
                place.symlink_to(target)
            for name, target in self.links.items():
                seen_only = DESCRIPTOR.fullmatch(name) and target.startswith("/dev/")
                if not seen_only and not f"{os.path.realpath(root + name)}/".startswith(f"{root}/"):
                    self._refuse(f"the link {name!r} in it points outside of it")
            ours = Path(f"{root}/proc/{os.getpid()}")
            if Path(f"{root}/proc/{self.pid}").is_dir() and not os.path.lexists(ours):
                ours.symlink_to(str(self.pid))  # code that reads about this process reads about the recording one
        except (OSError, ValueError) as error:
            if isinstance(error, DocumentError):
                raise
            self._refuse(f"its files cannot be unpacked: {getattr(error, 'strerror', None) or error}")


class PlayedChild:
    """A recorded long-running command. It prints its lines at the recorded pace, and repeats them if it had not ended.

    Attributes:
        process: The object that ends the command, which is this one, as in :class:`Child`.
        ended: Whether it has ended by itself.
        returncode: Its exit status.
    """

    def __init__(self, run: Mapping[str, Any]) -> None:
        lines, status = run.get("lines"), run.get("returncode")
        self.process = self
        self.ended = False
        self.returncode = status if isinstance(status, int) else -signal.SIGKILL
        self._ends = isinstance(status, int)
        self._lines = [
            (_seconds(line[0]), 1 if line[1] else 0, str(line[2]).encode() + b"\n")
            for line in (lines if isinstance(lines, list) else ())
            if isinstance(line, list) and len(line) == 3
        ]
        self._end_requested = threading.Event()

    def __enter__(self) -> PlayedChild:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """End the command: it prints no more lines."""
        self._end_requested.set()

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines, and empty output every ``GLANCE`` seconds in between, as :meth:`Child.read` does."""
        last = 0.0
        while not self._end_requested.is_set():
            for seconds, stream, line in self._lines:
                due = time.monotonic() + seconds - last
                while (rest := due - time.monotonic()) > 0:
                    if self._end_requested.wait(min(rest, GLANCE)):
                        return
                    yield 0, b""
                last = max(last, seconds)
                yield stream, line
            if self._ends:
                self.ended = True
                return
            last = 0.0
            if not self._end_requested.wait(GLANCE):
                yield 0, b""


class Player:
    """The tap that answers calls from a recording.

    Attributes:
        moment: The start of the replay, on the monotonic clock.
    """

    def __init__(self, recording: Recording) -> None:
        self.moment = time.monotonic()
        self._recording = recording
        self._times: Counter[tuple[str, ...]] = Counter()

    def __call__(self, call: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Return the recorded answer of a call."""
        name, recording = call.__name__, self._recording
        if name == "find":
            return recording.found.get(arguments[0])
        if name == "may_run":
            return arguments[0] in recording.may_run
        if name == "start":
            return PlayedChild(self._next([str(each) for each in arguments[0]]))
        if name == "run":
            run = self._next([str(each) for each in arguments[0]])
            seconds = min(_seconds(run.get("seconds")), float(options.get("timeout", 0)))
            time.sleep(seconds)
            return Completed(
                str(run.get("stdout", "")),
                str(run.get("stderr", "")),
                run["returncode"] if isinstance(run.get("returncode"), int) else 0,
                seconds,
                run.get("truncated") is True,
                run["written"] if isinstance(run.get("written"), str) else None,
            )
        if name == "is_installed":
            return recording.installed
        if name == "hostname":
            return recording.hostname
        if name == "file_system_usage" and arguments[0] in recording.file_systems:
            return recording.file_systems[arguments[0]]
        if name == "load_nvml":
            library = recording.nvml.get(arguments[0].name)
            if library is not None and library.failure is not None:
                failure = library.failure
                raise SourceError(failure.reason, failure.message, backend=arguments[0].name, advice=failure.advice)
            return library if library is not None and library.was_used else None
        # A call without a record never reaches this machine, whose answer would be mixed into the replay.
        raise OSError(errno.ENOENT, f"{arguments[0]}: {os.strerror(errno.ENOENT)}")

    def _next(self, argv: list[str]) -> Mapping[str, Any]:
        """Return the next recorded run of a command, and the last one again when all were returned."""
        runs = [run for run in self._recording.runs if run["argv"] == argv]
        if not runs:
            raise SourceError(Reason.DRIVER_UNAVAILABLE, f"the bundle has no run of {' '.join(argv)}")
        run = runs[min(self._times[tuple(argv)], len(runs) - 1)]
        self._times[tuple(argv)] += 1
        if "error" in run:
            time.sleep(_seconds(run.get("seconds")))
            kind = DriverGoneError if run.get("gone") is True else SourceError
            raise kind(str(run.get("reason", Reason.DRIVER_ERROR)), str(run["error"]))
        return run


def _seconds(value: object) -> float:
    return min(max(0.0, value), LONGEST_WAIT) if isinstance(value, (int, float)) else 0.0


@contextmanager
def replaying(recording: Recording) -> Iterator[None]:
    """Replay a recording in this machine's place while the ``with`` block runs.

    Raises:
        DocumentError: Its files cannot be unpacked.
    """
    with tempfile.TemporaryDirectory(prefix="accelmetrics-bundle-") as directory:
        recording.unpack(directory)
        # Device lists of this machine would hide recorded devices, so the recorded ones replace them.
        before = {name: os.environ[name] for name in list(os.environ) if VARIABLES.fullmatch(name) or name == VARIABLE}
        for name in before:
            del os.environ[name]
        os.environ.update(recording.environment)
        os.environ[VARIABLE] = directory
        root = os.path.realpath(directory)
        errors = {root + name: number for name, number in recording.errors.items()}

        def fail(event: str, arguments: tuple[Any, ...]) -> None:
            """Raise the recorded error when a file is opened that could not be read."""
            # File modes would not do: root may read any file.
            if errors and event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(directory):
                number = errors.get(os.path.realpath(arguments[0]))
                if number is not None:
                    raise OSError(number, os.strerror(number), arguments[0])

        sys.addaudithook(fail)  # an audit hook cannot be removed: without errors it is idle
        TAPS.append(player := Player(recording))
        try:
            yield
        finally:
            TAPS.remove(player)
            errors.clear()
            for name in (*recording.environment, VARIABLE):
                os.environ.pop(name, None)
            os.environ.update(before)
