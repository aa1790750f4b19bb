"""Readings for a program that knows NVIDIA's binding alone: what ``accelmetrics run --as-nvml`` starts it with, and keeps up to date.

The program re-reads a file when that has changed. It lies in a folder that is this user's alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from importlib import resources
from importlib.util import find_spec
from math import inf
from pathlib import Path

from accelmetrics.backends.guard import guarded
from accelmetrics.integrations.compat.answers import WIDE_FIELDS, answers, devices
from accelmetrics.schemas.energy import COUNTER, DRAW, DeviceEnergy
from accelmetrics.schemas.errors import InvalidOptionError, Reason
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot

STARTUP = Path(__file__).parent / "startup"
"""What a program's Python runs first."""
VALID_SECONDS = 10.0
"""For which a reading is believed, at least: then the program is told that the driver does not answer."""
SHEBANG = re.compile(rb"#!\s*(\S+)[ \t]+-([A-Za-z]+)[ \t]*$")
"""The first line of a script, with options of its interpreter."""
ASK_SECONDS = 10.0


class NvmlFeed:
    """Writes each reading as NVML would answer it; an exporter of the monitor that watches the program.

    Args:
        first: The reading that the program begins with.
        interval: Seconds between two readings.
        everything: Whether NVIDIA's devices are among those that the program sees.

    Attributes:
        folder: Where the readings lie. It is removed by ``remove``.
        devices: How many the program is shown at first.

    Raises:
        InvalidOptionError: There are NVIDIA devices, and the program is to see the others alone.
        OSError: There is no place for the readings.
    """

    name = "as-nvml"
    processes = 1

    def __init__(self, first: Snapshot, interval: float, everything: bool = False) -> None:
        own = [slot.key for slot in first.identities if slot.identity.vendor == "nvidia"]
        if own and not everything:
            words = f"--as-nvml: this machine has NVIDIA devices ({', '.join(own)}), which the program would no longer see"
            raise InvalidOptionError(f"{words}: --as-nvml=all gives it those first and the others after them")
        self.devices = len(devices(first, everything))
        self._everything = everything
        self._valid = max(VALID_SECONDS, 2 * interval + 1)
        self._energy: dict[str, DeviceEnergy] = {}  # of devices without a counter, by their power since the first reading
        self._counting: set[str] = set()
        binding = find_spec("pynvml")
        self._binding = "" if binding is None else binding.origin or ""
        self.folder = Path(tempfile.mkdtemp(prefix="accelmetrics-nvml-"))
        self._startup = STARTUP
        try:
            if not STARTUP.is_dir():  # the package is imported from a zip
                self._startup = self.folder / "startup"
                self._startup.mkdir()
                for file in resources.files(__package__).joinpath("startup").iterdir():
                    (self._startup / file.name).write_bytes(file.read_bytes())
            self.write(first)
        except OSError:
            self.remove()
            raise

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the program is started with."""
        path = [str(self._startup), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(path), "ACCELMETRICS_AS_NVML": str(self.folder)}

    def reached(self, command: Sequence[str]) -> list[str]:
        """Return a command as it has to be started to be reached.

        Installers such as pipx write ``-E`` into the first line of scripts. What else the options there say stays as it is.
        """
        path = shutil.which(command[0])
        try:
            with open(path or "", "rb") as file:  # noqa: PTH123 - a path, or none
                found = SHEBANG.match(file.readline(4096).rstrip())
        except OSError:
            found = None
        if path is None or found is None:
            return list(command)
        interpreter, options = os.fsdecode(found[1]), found[2].decode()
        if "python" not in Path(interpreter).name or not {"E", "I"} & set(options):
            return list(command)
        kept = [f"-{option}" for option in dict.fromkeys(options) if option not in "EI"]
        if "I" in options:  # -s and, for a Python that knows it, -P are what is left of it without -E
            ask = [interpreter, "-I", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
            asked = guarded(subprocess.run, ask, timeout=ASK_SECONDS, check=False, capture_output=True, stdin=subprocess.DEVNULL).value
            kept = list(dict.fromkeys([*kept, "-s", *(["-P"] if asked is not None and asked.returncode == 0 else [])]))
        return [interpreter, *kept, path, *command[1:]]

    @property
    def attached(self) -> bool:
        """Whether a binding has been given the readings."""
        return (self.folder / "attached").exists()

    def write(self, snapshot: Snapshot) -> None:
        """Put a reading in the place of the one before.

        Raises:
            OSError: It cannot be written.
        """
        now, seen, answered = time.monotonic(), devices(snapshot, self._everything), []
        for slot in seen:
            counter, why = f"{slot.key}.{COUNTER}", snapshot.unavailable.get(f"{slot.key}.{COUNTER}")
            power, joules = snapshot.metrics.get(f"{slot.key}.{DRAW}"), None
            if counter in snapshot.metrics or (why is not None and why.reason != Reason.NOT_SUPPORTED):
                self._counting.add(slot.key)  # or may have one: what is added up here would begin anew beside it
            if slot.key not in self._counting and (power is not None or slot.key in self._energy):
                energy = self._energy.setdefault(slot.key, DeviceEnergy(now, waits=False))
                energy.add(now, inf, True, None, power)
                used = energy.result()
                joules = 0.0 if used is None else used.joules
            answered.append({**answers(snapshot, slot, joules), "wide_fields": WIDE_FIELDS})
        reading = {
            "monotonic": now,
            "valid_seconds": self._valid,
            "microseconds": snapshot.time_ns // 1000,
            "driver_version": next((slot.identity.driver_version for slot in seen), ""),
            "vendors": sorted({slot.identity.vendor for slot in seen}),
            "binding": self._binding,
            "devices": answered,
        }
        draft = self.folder / "draft.json"
        draft.write_text(json.dumps(reading), encoding="utf-8")
        draft.replace(self.folder / "reading.json")

    def open(self) -> None:
        """Do nothing: the folder is there."""

    def export(self, record: Record) -> None:
        """Write a record's reading."""
        self.write(record.snapshot)

    def flush(self) -> None:
        """Do nothing: each reading is written at once."""

    def close(self) -> None:
        """Do nothing: the folder is removed when the program has ended."""

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
