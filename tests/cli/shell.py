"""The command, in this process or from outside as a user's shell runs it, and machines to run it on.

``call`` calls ``main()`` here and is what tests use; ``run`` and ``start`` are for those whose subject is the process: signals,
descriptors, exit, a cold start, what is loaded.
"""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

import jsonschema

from accelmetrics.backends import registry
from accelmetrics.cli.main import main
from accelmetrics.sampling.sources import SourceRegistry
from accelmetrics.schemas.document import json_schema
from accelmetrics.schemas.snapshot import Snapshot
from tests.simulators.nvml import attached
from tests.support.waiting import HANG

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "accelmetrics"]
PASSED_ON = ("PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "LD_LIBRARY_PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
GPU_CLASS = "0x030200"


def environment(**changes: str) -> dict[str, str]:
    """A plain environment: nothing of a container's, nothing of this terminal's."""
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "LC_ALL": "C.UTF-8", **changes}


def call(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command line in this process, which sees nothing but ``env`` and has no source open: its status and what it printed.

    What ``PYTHONPATH`` names can be imported while it runs, and is forgotten afterwards.
    """
    given = {**(environment() if env is None else env), "ACCELMETRICS_VALIDATE": "1"}
    out, errors = io.StringIO(), io.StringIO()
    log = logging.getLogger("accelmetrics")
    logged = log.handlers[:], log.level, log.propagate
    log.handlers[:] = []
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, given, clear=True))
        stack.enter_context(attached(given))
        stack.enter_context(_importable(given.get("PYTHONPATH", "")))
        stack.enter_context(patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO())))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(errors))
        stack.enter_context(_new_process())
        status = main(arguments)
    log.handlers[:], log.level, log.propagate = logged
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), errors.getvalue())


@contextmanager
def _new_process() -> Iterator[None]:
    """Let no source have been opened and no device number been given out, and look for plug-ins anew."""
    registry.forget()
    with patch("accelmetrics.sampling.sampler.SHARED", SourceRegistry()):
        yield
    registry.forget()


@contextmanager
def _importable(path: str) -> Iterator[None]:
    """Find modules in these directories too while the block runs, and forget those that were loaded from there."""
    added = [entry for entry in path.split(":") if entry and entry != str(REPOSITORY)]
    with patch.object(sys, "path", [*added, *sys.path]):
        yield
    for name, module in list(sys.modules.items()):
        if any(str(getattr(module, "__file__", None)).startswith(f"{entry}/") for entry in added):
            del sys.modules[name]


def run(
    *arguments: str, env: Mapping[str, str] | None = None, stdout: Any = subprocess.PIPE, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own to its end; ``before`` is called there first."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment() if env is None else env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=HANG,
        preexec_fn=before,
    )


class Started(subprocess.Popen[str]):
    """A process whose output and messages can be read."""

    stdout: IO[str]
    stderr: IO[str]


def start(*arguments: str, env: Mapping[str, str] | None = None, session: bool = False) -> Started:
    """Start the command, in a session of its own if that is wanted."""
    return Started(
        [*COMMAND, *arguments],
        env=environment() if env is None else env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=session,
    )


def rest_of(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait for a process's end: what it has printed and said since what was read of it.

    `Popen.communicate` loses what `readline` has read ahead.
    """
    with ThreadPoolExecutor(2) as pool:
        reading = [pool.submit(stream.read) if stream is not None else None for stream in (process.stdout, process.stderr)]
        try:
            process.wait(HANG)
        except subprocess.TimeoutExpired:
            process.kill()  # or nothing would end what reads its outputs
            raise
        out, errors = (one.result(HANG) if one is not None else "" for one in reading)
    for stream in filter(None, (process.stdout, process.stderr)):
        stream.close()
    return out, errors


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, as by Ctrl-Z."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@cache
def _validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json_schema(), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


@cache
def _device_validator() -> jsonschema.Draft202012Validator:
    schema = json_schema()
    return jsonschema.Draft202012Validator({"$ref": "#/$defs/DeviceEntry", "$defs": schema["$defs"]})


def documents(text: str) -> list[Snapshot]:
    """Read JSON lines, each of which must be a document, and whole."""
    assert text.endswith("\n")
    return [document(line) for line in text.splitlines()]


def document(text: str) -> Snapshot:
    """Read a document that must be one: against the published schema, and through the models."""
    _validator().validate(json.loads(text))
    return Snapshot.from_json(text)


def device_entries(text: str) -> list[dict[str, Any]]:
    """Read what ``list --json`` printed, each entry against the published schema's part for devices."""
    entries: list[dict[str, Any]] = json.loads(text)
    for entry in entries:
        _device_validator().validate(entry)
    return entries


def one_line(text: str) -> str:
    """The only line of standard error."""
    assert text.endswith("\n")
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    return text.rstrip("\n")


class Tree:
    """What stands in front of ``/sys``, ``/proc`` and ``/dev``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.root.mkdir()

    def write(self, path: str, text: str = "") -> Tree:
        """A file."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        return self

    def gpu(self, address: str, vendor: str, driver: str = "") -> Tree:
        """A GPU on the PCI bus, bound to a driver if one is named."""
        base = f"/sys/bus/pci/devices/{address}"
        self.write(f"{base}/vendor", f"{vendor}\n").write(f"{base}/class", f"{GPU_CLASS}\n")
        if driver:
            self.write(f"/sys/bus/pci/drivers/{driver}/uevent")
            (self.root / base.lstrip("/") / "driver").symlink_to(self.root / "sys/bus/pci/drivers" / driver)
        return self

    def device(self, address: str, vendor: str, device: str, pci_class: str) -> Tree:
        """Any function on the PCI bus."""
        for name, text in (("vendor", vendor), ("device", device), ("class", pci_class)):
            self.write(f"/sys/bus/pci/devices/{address}/{name}", f"{text}\n")
        return self

    def environment(self, **changes: str) -> dict[str, str]:
        """The environment in which the command sees this."""
        return environment(ACCELMETRICS_SYSROOT=str(self.root), **changes)


def plug_in(directory: Path, name: str, target: str, source: str) -> None:
    """Install a package that registers a backend, as pip leaves it."""
    info = directory / f"accelmetrics_{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: accelmetrics-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[accelmetrics.backends]\n{name} = {target}\n")
    (directory / f"accelmetrics_{name}.py").write_text(source)


def on_path(directory: Path) -> dict[str, str]:
    """The environment in which that package is installed."""
    plain = environment()
    return {**plain, "PYTHONPATH": f"{directory}:{plain['PYTHONPATH']}"}
