"""Recording of a reading, so that a fault can be reproduced elsewhere: all questions to the machine, and its answers.

:class:`Recorder` records at three places that every reading passes: system files, the runner of commands and the loader of NVML.
:func:`assemble` makes a :class:`Bundle` of the recording and replaces personal values by pseudonyms.
:mod:`~accelmetrics.visibility.replay` answers from a bundle in a machine's place.

Files are noticed by Python's audit events, and their contents are read once, at the end. A bundle also has the symbolic links and
directories near an opened file. So a replay finds them too where the code only checks whether they exist.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import platform
import re
import socket
import stat
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

from accelmetrics._version import __version__
from accelmetrics.backends.guard import TAPS
from accelmetrics.backends.kit.commands import Child
from accelmetrics.backends.kit.system import read_text, sysroot
from accelmetrics.backends.nvidia import Maker, kernel_module_version
from accelmetrics.backends.nvidia.recorded import OWN, PLATFORM, RecordedCalls, RecordingLibrary
from accelmetrics.schemas.errors import DriverGoneError, SourceError
from accelmetrics.schemas.snapshot import Snapshot, rfc3339
from accelmetrics.visibility.pseudonyms import HOST, PROCESS, SERIAL, USER, UUID, Pseudonyms

FORMAT = 1
MANIFEST, COMMANDS, NVML, FILES = "manifest.json", "commands.json", "nvml.json", "files"
SUFFIXES = (".zip", ".tar.gz", ".tgz")
ROOTS = ("/sys", "/proc", "/dev")
# AMD's list of product names is the only file outside ROOTS that is read. This is the end of its path.
MARKET_NAMES = "/libdrm/amdgpu.ids"
LARGEST_FILE = 1 << 20
LARGEST_STREAM = 4 << 20
MOST_ENTRIES, MOST_BYTES = 20_000, 64 << 20
# Linux follows at most 40 links in one path, too.
LINKS = 40
PATIENCE = 2.0
"""Seconds to wait for one file."""
VARIABLES = re.compile("[A-Z_]*VISIBLE_DEVICES|CUDA_DEVICE_ORDER")
_OF_PROCESS = re.compile(r"/proc/(\d+)(?:/|$)")
# Links of open files. Readers look at their targets and never follow them, so their targets stay absolute in a bundle.
DESCRIPTOR = re.compile(r"/proc/\d+/fd/\d+")
_SERIAL_FILES = re.compile(r"(?:.*_)?(?:serial|serial_number|unique_id)")
_NAME_OF_PROCESS = re.compile(rb"(\A\d+ \(|\AName:\t)(.*)(?=\) |$)", re.MULTILINE)
_CGROUP = re.compile(rb"^.* - cgroup2? .*\n?", re.MULTILINE)


class FileTree:
    """System files that were read, by their resolved paths below the root.

    Attributes:
        files: Contents of files.
        names: True for a directory, False for another entry of a directory that was not read itself.
        links: Targets of symbolic links. They are relative, except links of open device nodes, which no reader follows.
        errors: Error numbers of files that could not be read.
        silent: Files that did not answer in time.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.names: dict[str, bool] = {}
        self.links: dict[str, str] = {}
        self.errors: dict[str, int] = {}
        self.silent: list[str] = []
        self._seen: set[str] = set()

    def add(self, path: str, listed: bool) -> None:
        """Add an opened path, the links that lead to it, the links and directories near it, and its names if it was listed."""
        real = self.place(path)
        parent = path.rpartition("/")[0]
        if parent not in ("", "/") and (at := self.place(parent)):
            self._add_directory(at, every_name=False)
        if real is None:
            return
        status = os.stat(sysroot() + real)  # noqa: PTH116
        if stat.S_ISDIR(status.st_mode):
            self._add_directory(real, every_name=listed)
        elif stat.S_ISREG(status.st_mode) and real not in self.files:
            # Non-blocking, so that reading a file that waits for new data fails at once.
            try:
                with open(os.open(sysroot() + real, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb", buffering=0) as file:  # noqa: PTH123
                    self.files[real] = b"".join(iter(lambda: file.read(LARGEST_FILE), b""))[:LARGEST_FILE]
            except OSError as error:
                self.errors[real] = error.errno or errno.EIO
        else:
            self.names.setdefault(real, False)

    def place(self, path: str) -> str | None:
        """Return the resolved path below the root and record the links on the way. None if it does not exist."""
        done, rest = "", path.strip("/").split("/")
        for _ in range(LINKS * 4 + len(rest)):
            if not rest:
                return done or "/"
            name = rest.pop(0)
            if name in ("", ".", ".."):
                done = done.rpartition("/")[0] if name == ".." else done
                continue
            here = f"{done}/{name}"
            try:
                mode = os.lstat(sysroot() + here).st_mode
                target = os.readlink(sysroot() + here) if stat.S_ISLNK(mode) else ""  # noqa: PTH115
            except OSError:
                return None
            if not target:
                done = here
                if stat.S_ISDIR(mode):
                    self.names.setdefault(here, True)
                continue
            if DESCRIPTOR.fullmatch(here):
                if target.startswith("/dev/"):  # other open files of a program are private
                    self.links[here] = target
                return None
            if target.startswith("/"):
                target = target.removeprefix(sysroot()) or "/"
                # A target outside the recorded folders, or in our own descriptors, is not followed: only its name is kept.
                if not target.startswith(ROOTS) or target.startswith("/proc/self/fd"):
                    if not _OF_PROCESS.match(here):
                        self.names.setdefault(here, False)
                    return here
                self.links[here] = os.path.relpath(target, done or "/")
                done = ""
            else:
                self.links[here] = target
            rest = [*target.split("/"), *rest]
        return None

    def _add_directory(self, directory: str, every_name: bool) -> None:
        """Record the links and directories in a directory, and all of its names if ``every_name`` is set."""
        if (mark := f"{directory}{every_name}") in self._seen:
            return
        self._seen.add(mark)
        self.names.setdefault(directory, True)
        with suppress(OSError):
            for entry in os.scandir(sysroot() + directory):
                if len(self.names) + len(self.links) > MOST_ENTRIES:
                    return
                here = f"{directory.rstrip('/')}/{entry.name}"
                if entry.is_symlink():
                    at = self.place(here)
                    if at is not None and at not in self.files and at not in self.links:
                        self.names.setdefault(at, os.path.isdir(sysroot() + at))  # noqa: PTH112
                elif every_name or entry.is_dir(follow_symlinks=False):
                    self.names.setdefault(here, entry.is_dir(follow_symlinks=False))


class RecordedChild:
    """A long-running command that records its lines as it prints them.

    Args:
        child: The command.
        run: The record. It receives the lines, each with the seconds since the start and 1 for standard error, and the exit
            status if the command ends by itself.

    Attributes:
        process: The object that ends the command, which is this one, as in :class:`Child`.
    """

    def __init__(self, child: Child, run: dict[str, Any]) -> None:
        self._child = child
        self._run = run
        self._run["lines"] = []
        self._bytes_left = LARGEST_STREAM
        self.process = self
        self._by_itself = True

    @property
    def ended(self) -> bool:
        """Whether the command has ended."""
        return self._child.process.ended

    @property
    def returncode(self) -> int:
        """Its exit status, known when the ``with`` block is over."""
        return self._child.returncode

    def end(self) -> None:
        """End the command."""
        self._by_itself = self._by_itself and self.ended
        self._child.process.end()

    def __enter__(self) -> RecordedChild:
        return self

    def __exit__(self, *error: Any) -> None:
        self._child.__exit__(*error)
        if self._by_itself and self.ended:
            self._run["returncode"] = self._child.returncode

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Read as :meth:`Child.read` does."""
        started, begun = time.monotonic(), [b"", b""]
        for stream, piece in self._child.read():
            *lines, begun[stream] = (begun[stream] + piece).split(b"\n")
            for line in lines:
                self._bytes_left -= len(line) + 1
                if self._bytes_left >= 0:
                    self._run["lines"].append([round(time.monotonic() - started, 3), stream, line.decode("utf-8", "replace")])
            yield stream, piece


class Recorder:
    """The tap that records calls, with an audit hook that notices opened files.

    Attributes:
        answers: Answers of other calls, by the name of the function and by its argument, which is empty if there is none.
        runs: Runs of commands, in order.
        nvml: Calls of NVML or one of its clones, by vendor.
        opened: System paths that were opened (False) or listed (True).
    """

    moment = None

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any]] = {name: {} for name in ("find", "may_run", "is_installed", "file_system_usage")}
        self.runs: list[dict[str, Any]] = []
        self.nvml: dict[str, RecordedCalls] = {}
        self.opened: dict[str, bool] = {}

    def __call__(self, call: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Make a call and record its answer."""
        name = call.__name__
        if name == "load_nvml":
            return self._load(call, arguments[0])
        if name in ("run", "start"):
            answer, run = self._run(call, arguments, options)
            if name == "start":
                return RecordedChild(answer, run)
            run.update(answer._asdict())
            return answer
        answer = call(*arguments, **options)
        if name in self.answers:
            self.answers[name][arguments[0] if arguments else ""] = answer
        return answer

    def _load(self, call: Callable[..., Any], maker: Maker) -> RecordingLibrary | None:
        calls = self.nvml.setdefault(maker.name, RecordedCalls())
        try:
            loaded = call(maker)
        except SourceError as error:
            calls.failure = error
            raise
        return None if loaded is None else RecordingLibrary(loaded, calls)

    def _run(self, call: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Run or start a command. Return the answer of the call, and the record of the run."""
        started = time.monotonic()
        run: dict[str, Any] = {"argv": list(arguments[0])}
        self.runs.append(run)
        try:
            return call(*arguments, **options), run
        except SourceError as error:
            gone = isinstance(error, DriverGoneError)
            run.update(error=error.message, reason=str(error.reason), gone=gone, seconds=time.monotonic() - started)
            raise

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record while the block runs."""
        listening, root = True, sysroot()
        beginnings = tuple(f"{root}{each}" for each in ROOTS)

        def notice(event: str, arguments: tuple[Any, ...]) -> None:
            if listening and event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str):
                path = arguments[0]
                if path.startswith(beginnings) or (path.startswith(root) and path.endswith(MARKET_NAMES)):
                    path = path[len(root) :]
                    self.opened[path] = self.opened.get(path, False) or event != "open"

        sys.addaudithook(notice)  # an audit hook cannot be removed: the flag makes it idle afterwards
        TAPS.append(self)
        try:
            yield
        finally:
            TAPS.remove(self)
            listening = False

    def tree(self) -> FileTree:
        """Read the opened files. A file that does not answer within ``PATIENCE`` is skipped, because its driver may hang."""
        # The namespaces and the number of threads of a process are read by readlink and stat, which raise no audit event.
        for pid in {"1"} | {found[1] for path in self.opened if (found := _OF_PROCESS.match(path))}:
            for name, listed in (("ns/pid", False), ("ns/mnt", False), ("ns/cgroup", False), ("task", True)):
                self.opened.setdefault(f"/proc/{pid}/{name}", listed)
        tree, rest = FileTree(), [("/proc/self", False), *self.opened.items()]
        while rest:
            done: SimpleQueue[str] = SimpleQueue()
            late = Event()

            def read(paths: list[tuple[str, bool]], done: SimpleQueue[str], late: Event) -> None:
                for path, listed in paths:
                    with suppress(OSError):  # it no longer exists
                        tree.add(path, listed)
                    if late.is_set():
                        return
                    done.put(path)

            Thread(target=read, args=(rest, done, late), name="accelmetrics-bundle", daemon=True).start()
            number = 0
            with suppress(Empty):
                while number < len(rest):
                    done.get(timeout=PATIENCE)
                    number += 1
            late.set()
            # The thread hangs in the next file. It is abandoned, and another thread continues behind that file.
            tree.silent += [path for path, _ in rest[number : number + 1]]
            rest = rest[number + 1 :]
        # A thread that still hangs in a file may change the tree later, but not this one.
        copied = FileTree()
        copied.files, copied.names, copied.links, copied.errors = dict(tree.files), dict(tree.names), dict(tree.links), dict(tree.errors)
        copied.silent = list(tree.silent)
        return copied


class Bundle:
    """The contents of an archive.

    Attributes:
        entries: Contents by name in the archive.
        replaced: Number of values that were replaced by pseudonyms, by kind.
        left: Names that were not replaced, because they are ordinary words in vendors' output.
        silent: Files that did not answer and are left out.
    """

    def __init__(self, entries: Mapping[str, bytes], replaced: Mapping[str, int], left: Iterable[str], silent: Iterable[str]) -> None:
        self.entries = entries
        self.replaced = replaced
        self.left = sorted(left)
        self.silent = list(silent)

    def archive(self, name: str) -> bytes:
        """Return the archive as bytes, in the format of the name's suffix."""
        buffer = io.BytesIO()
        if name.endswith(".zip"):
            with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
                for path, content in self.entries.items():
                    made.writestr(zipfile.ZipInfo(path), content, zipfile.ZIP_DEFLATED)
        else:
            with gzip.GzipFile("", "wb", fileobj=buffer, mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
                for path, content in self.entries.items():
                    entry = tarfile.TarInfo(path)
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
        return buffer.getvalue()


def assemble(recorder: Recorder, readings: list[Snapshot], documents: Mapping[str, Any], options: Mapping[str, Any]) -> Bundle:
    """Return the bundle of a recording, with pseudonyms in place of personal values.

    Args:
        recorder: The recording.
        readings: The readings taken during the recording.
        documents: Further texts and plain data, by name.
        options: The options of the readings.
    """
    tree = recorder.tree()
    names = Pseudonyms()
    lines = [json.loads(reading.to_json()) for reading in readings]
    answers = recorder.answers
    commands = {"found": answers["find"], "may_run": answers["may_run"], "runs": recorder.runs}
    # All names are learned before the first one is replaced: a name in one file may be labelled as such only in another.
    _learn(names, tree, recorder, readings)
    for document in (*documents.values(), lines):
        names.learn((document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)).encode())
    manifest = {
        "format": FORMAT,
        "made_at": rfc3339(time.time_ns()),
        "versions": {
            "accelmetrics": __version__,
            "python": platform.python_version(),
            "system": platform.platform(),
            "nvidia": kernel_module_version(),
            "amdgpu": read_text("/sys/module/amdgpu/version") or "",
        },
        "pid": os.getpid(),
        "options": dict(options),
        "environment": {name: value for name, value in os.environ.items() if VARIABLES.fullmatch(name)},
        "nvml_installed": answers["is_installed"].get(""),
        "hostname": readings[0].hostname,
        "file_systems": answers["file_system_usage"],
        "names": {name: tree.names[name] for name in sorted(tree.names.keys() - tree.links.keys() - tree.files.keys())},
        "links": dict(sorted(tree.links.items())),
        "errors": tree.errors,
        "silent": tree.silent,
    }
    texts = {MANIFEST: manifest, **documents, COMMANDS: commands}
    entries = {name: _text(names.document(content)) for name, content in texts.items()}
    entries[NVML] = _text({vendor: calls.to_dict(names.replace, names.text) for vendor, calls in recorder.nvml.items()})
    entries["readings.jsonl"] = b"".join(_text(names.document(line), None) + b"\n" for line in lines)
    bytes_left = MOST_BYTES - sum(map(len, entries.values()))
    for path, content in sorted(tree.files.items()):
        if len(content) <= bytes_left and len(entries) < MOST_ENTRIES:
            bytes_left -= len(content)
            entries[FILES + names.text(path)] = _content(names, path, content)
    return Bundle(entries, {kind: len(values) for kind, values in sorted(names.replaced.items())}, names.left, tree.silent)


def _learn(names: Pseudonyms, tree: FileTree, recorder: Recorder, readings: Iterable[Snapshot]) -> None:
    """Teach ``names`` the names and ids of this machine, its devices, users and processes."""
    from accelmetrics.schemas.catalogue import CATALOGUE

    names.keep(metric.key for metric in CATALOGUE)
    # Readers look for system files by name, so a word in a file name is never replaced.
    for path in (*tree.files, *tree.names):
        if not path.startswith("/proc/"):
            names.keep([path.rpartition("/")[2]])
    hosts = [socket.gethostname(), platform.node(), read_text("/proc/sys/kernel/hostname") or ""]
    for host in (*hosts, *(reading.hostname for reading in readings)):
        names.add_name(HOST, host)
    home = os.path.expanduser("~").rpartition("/")[2]  # noqa: PTH111 - it raises where there is none
    for user in (home, *(os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER"))):
        names.add_name(USER, user)
    for device in (device for reading in readings for device in reading.devices):
        names.add_identity(UUID, device.uuid)
        for serial in (device.serial, device.chassis_serial, *re.findall("[0-9a-f]{32}", device.fabric)):
            names.add_identity(SERIAL, serial)
    for pid in {process.pid for reading in readings for listed in reading.processes.values() for process in listed}:
        names.add_name(PROCESS, read_text(f"/proc/{pid}/comm") or "")
    for path, content in tree.files.items():
        if _SERIAL_FILES.fullmatch(path.rpartition("/")[2]):
            names.add_identity(SERIAL, content.decode("utf-8", "replace"))
        names.learn(content)
    for function, written in (each for calls in recorder.nvml.values() for each in calls.written()):
        names.learn(written)
        if function[OWN] == "DeviceGetSerial":
            names.add_identity(SERIAL, written.partition(b"\0")[0].decode("utf-8", "replace"))
        elif function[OWN] == PLATFORM:  # GUID and serial number of the chassis
            for start in (4, 20):
                names.add_raw(written[start : start + 16])
    for run in recorder.runs:
        for output in ("stdout", "stderr", "written", "error"):
            names.learn((run.get(output) or "").encode())
        for _, _, line in tuple(run.get("lines", ())):
            names.learn(line.encode())


def _text(document: Any, indent: int | None = 1) -> bytes:
    text = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False, indent=indent)
    return text.encode("utf-8", "surrogateescape")


def _content(names: Pseudonyms, path: str, content: bytes) -> bytes:
    """Return the content of a file for the bundle: without environments and with masked command lines."""
    name = path.rpartition("/")[2] if path.startswith("/proc/") else ""
    # An environment may hold secrets.
    if name == "environ":
        return b""
    if name in ("cmdline", "comm"):
        return names.mask(content)
    if name in ("stat", "status"):
        content = _NAME_OF_PROCESS.sub(lambda found: found[1] + names.mask(found[2]), content, count=1)
    if name == "mountinfo":  # only cgroup mounts are read. The others name disks and servers.
        content = b"".join(_CGROUP.findall(content))
    return names.replace(content)
