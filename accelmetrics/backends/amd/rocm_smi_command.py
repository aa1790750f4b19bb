"""How ``rocm-smi`` is found and called, and what its failures mean.

Its exit status says little: 0 when the driver is missing and when nothing was printed, other than 0 with a good payload.
So the cards decide, and where there are none its words do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from accelmetrics.backends.amd.detection import LOAD_DRIVER, PASS_DEVICES
from accelmetrics.backends.amd.rocm_smi_json import Output, parse
from accelmetrics.backends.amd.values import quoted
from accelmetrics.backends.kit import commands
from accelmetrics.schemas.errors import DriverGoneError, SourceError
from accelmetrics.schemas.reasons import Reason

NAME = "rocm-smi"
TIMEOUT = 8.0
"""Seconds. The tool takes 1 to 3; opening a source is allowed 10."""
DIRECTORIES = ("/opt/rocm/bin", "/usr/bin", "/usr/local/bin")

FULL = (
    *("--showid", "--showuniqueid", "--showserial", "--showvbios", "--showbus", "--showproductname", "--showdriverversion"),
    *("--showuse", "--showmemuse", "--showmeminfo", "vram", "gtt", "--showmemoverdrive"),
    *("--showtemp", "--showpower", "--showmaxpower", "--showclocks", "--showfan", "--showenergycounter", "--showreplaycount"),
    "--json",
)
"""All that is read, and nothing that is slow: the processes are left out."""
ALL = ("-a", "--json")
"""For releases that do not know some of those flags; without the bytes of memory."""
INVOCATIONS = (FULL, ALL)

INSTALL = "install ROCm's package rocm-smi-lib (Debian and Ubuntu also have it as rocm-smi), or put rocm-smi on PATH"
JOIN_GROUPS = "add the user to the video and render groups: sudo usermod -aG video,render $USER, then log in again"

_REFUSED = re.compile(r"^usage:|unrecognized arguments|invalid choice|expected (one|at least one) argument", re.IGNORECASE | re.MULTILINE)
_REFUSED_STATUS = 2
FOREIGN_KEYS = ("hcu ", "dcu ")
"""How Hygon's tool, which has the same name, begins what AMD's begins with "GPU "."""
ADVICE: Mapping[str, str] = {
    Reason.TIMED_OUT: "run rocm-smi by hand and look at dmesg: a GPU or its driver may hang",
    Reason.NO_PERMISSION: "let this user execute it",
    Reason.DRIVER_UNAVAILABLE: INSTALL,
}


class Finding(NamedTuple):
    """What some words in the output mean.

    Attributes:
        words: What to look for.
        gone: Whether the driver must be opened again once this is over.
        reason: The reason for every value.
        message: What is wrong.
        advice: What to do about it.
    """

    words: re.Pattern[str]
    gone: bool
    reason: Reason
    message: str
    advice: str


def _finding(words: str, reason: Reason, message: str, advice: str, gone: bool = False) -> Finding:
    return Finding(re.compile(words, re.IGNORECASE), gone, reason, message, advice)


FINDINGS = (
    _finding(
        "permission denied|not permitted|insufficient permission|RSMI_STATUS_PERMISSION|returned 4 ",
        Reason.NO_PERMISSION,
        "rocm-smi may not read the devices",
        JOIN_GROUPS,
    ),
    _finding(
        "driver not initialized|amdgpu not found", Reason.DRIVER_UNAVAILABLE, "the kernel driver amdgpu is not loaded", LOAD_DRIVER, True
    ),
    _finding("no amd gpus|no drm devices|returned 8 ", Reason.DRIVER_UNAVAILABLE, "rocm-smi sees no AMD GPU", PASS_DEVICES, True),
    _finding(
        "rsmibindings|librocm_smi64|cannot open shared object",
        Reason.DRIVER_UNAVAILABLE,
        "rocm-smi cannot load its library",
        f"reinstall ROCm's package: {INSTALL}",
    ),
    _finding("no json data to report", Reason.DRIVER_UNAVAILABLE, "rocm-smi has nothing to report about any card", PASS_DEVICES, True),
)


class Tool:
    """The command, and which of its invocations works here.

    Args:
        timeout: Seconds after which one run is given up.
    """

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self._invocation = 0

    def read(self) -> Output:
        """Run it once; twice where it refuses the flags that would be best, which is remembered.

        Raises:
            SourceError: There is no tool, or it gave no cards.
            DriverGoneError: It gave no cards since the driver is not there.
        """
        path = find()
        completed, output = self._run(path)
        if not output.cards and refused(completed) and self._invocation + 1 < len(INVOCATIONS):
            self._invocation += 1
            completed, output = self._run(path)
        if not output.cards:
            raise failure(completed)
        if any(key.startswith(FOREIGN_KEYS) for card in output.cards.values() for key in card):
            raise SourceError(Reason.DRIVER_UNAVAILABLE, f"{path} is another vendor's tool of the same name (Hygon's)", advice=INSTALL)
        return output

    def _run(self, path: str) -> tuple[commands.Completed, Output]:
        try:
            completed = commands.run([path, *INVOCATIONS[self._invocation]], timeout=self.timeout)
        except SourceError as error:
            error.advice = error.advice or ADVICE.get(error.reason, "")
            raise
        return completed, parse(completed.stdout)


def find() -> str:
    """The absolute path of the tool.

    Raises:
        SourceError: It is not installed.
    """
    directories = (f"{os.environ.get('ROCM_PATH', '')}/bin", *DIRECTORIES)
    path = commands.find(NAME, directories)
    if path is None:
        raise SourceError(Reason.DRIVER_UNAVAILABLE, "rocm-smi was found neither on PATH nor in /opt/rocm/bin", advice=INSTALL)
    return path


def refused(completed: commands.Completed) -> bool:
    """Whether the tool does not know one of the flags."""
    return completed.returncode == _REFUSED_STATUS or _REFUSED.search(completed.stderr) is not None


def failure(completed: commands.Completed) -> SourceError:
    """What a run without cards means."""
    said = f"{completed.stderr}\n{completed.stdout}"
    for finding in FINDINGS:
        if finding.words.search(said):
            kind: Callable[..., SourceError] = DriverGoneError if finding.gone else SourceError
            return kind(finding.reason, f"{finding.message}: {_line(said, finding.words)}", advice=finding.advice)
    if completed.truncated:
        return SourceError(Reason.PARSE_ERROR, f"rocm-smi printed more than {commands.MAX_OUTPUT} bytes and was killed")
    if refused(completed):
        return SourceError(
            Reason.NOT_SUPPORTED, f"this rocm-smi knows neither the flags nor -a --json: {_last_line(said)}", advice="update ROCm"
        )
    return _unexplained(completed)


def _unexplained(completed: commands.Completed) -> SourceError:
    status = f"exit status {completed.returncode}"
    if not completed.stdout.strip():
        said = _last_line(completed.stderr)
        reason = Reason.DRIVER_ERROR if said else Reason.PARSE_ERROR
        return SourceError(reason, f"rocm-smi printed nothing ({status})" + (f": {said}" if said else ""))
    if "{" in completed.stdout:
        return SourceError(Reason.PARSE_ERROR, f"rocm-smi's output was cut or holds no card ({status}): {_last_line(completed.stdout)}")
    return SourceError(
        Reason.PARSE_ERROR, f"rocm-smi printed no JSON ({status}): {_last_line(completed.stderr.strip() or completed.stdout)}"
    )


def _line(text: str, words: re.Pattern[str]) -> str:
    return next((quoted(line.strip()) for line in text.splitlines() if words.search(line)), "")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return quoted(lines[-1].strip()) if lines else ""
