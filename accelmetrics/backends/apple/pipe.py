"""``macmon pipe`` as a long-lived child, once it has shown that it is macmon.

Another program of that name is on PyPI: a dashboard that starts a web server. So a command of the name is asked for its
version first, and its first line must be one of macmon's; if not, it is left alone. One that ends is started again, with back-off,
by :mod:`~accelmetrics.backends.kit.line_process`.
"""

from __future__ import annotations

import re

from accelmetrics.backends.apple.macmon import NAMES, parse
from accelmetrics.backends.apple.sheet import Sheet
from accelmetrics.backends.apple.tools import find
from accelmetrics.backends.clock import Clock
from accelmetrics.backends.kit import commands
from accelmetrics.backends.kit.line_process import LineProcess
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason, Unavailable

INTERVAL = 1.0
"""Seconds between two lines."""
FRESH = 2 * INTERVAL
"""Seconds after which a line is stale."""
SILENCE = 10.0
"""Seconds without a line after which the child is replaced."""
FIRST_LINE = 4.0
"""Seconds to wait for the first line when the source is opened."""
TRIAL = 15.0
"""Seconds within which a command must show that it is macmon."""
RETRY = 60.0
"""Seconds after which one that was not there, or may not be executed, is looked for again."""
VERSION_TIMEOUT = 3.0

MISSING = Unavailable(Reason.DRIVER_UNAVAILABLE, "macmon is not installed (brew install macmon)")
STALE = Unavailable(Reason.STALE, "macmon's last line is too old")

_VERSION = re.compile(r"macmon v?\d+\.\d+", re.ASCII)


class MacmonPipe:
    """The command, kept running.

    Args:
        clock: Where ages are taken from.

    Attributes:
        trusted: Whether it has shown that it is macmon.
    """

    name = "macmon"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stream: LineProcess | None = None
        self._why = MISSING
        self._rejected = False
        self._try_at = self._tried_at = clock.monotonic()
        self.trusted = False

    def wait(self) -> None:
        """Wait for its first line, if it is there."""
        if self._stream is not None:
            self._stream.wait(FIRST_LINE)

    def read(self) -> Sheet:
        """The metrics of its latest line."""
        if self._stream is None and not self._rejected and self._clock.monotonic() >= self._try_at:
            self.start()
        if self._stream is None:
            return Sheet.missing(self.name, NAMES, self._why)
        return self._latest(self._stream)

    def close(self) -> None:
        """End it."""
        stream, self._stream, self.trusted = self._stream, None, False
        if stream is not None:
            stream.close()

    def start(self) -> None:
        """Start it, if it is there and says that it is macmon."""
        self._tried_at = self._clock.monotonic()
        self._try_at = self._tried_at + RETRY
        path = find("macmon")
        if path is None:
            self._why = MISSING
            return
        try:
            stranger = _stranger(path)
        except SourceError as error:
            self._why = error.unavailable
            return
        if stranger:
            self._rejected, self._why = True, Unavailable(Reason.DRIVER_UNAVAILABLE, stranger)
            return
        argv = [path, "pipe", "-s", "0", "-i", str(round(INTERVAL * 1000))]
        self._stream = LineProcess(argv, silence=SILENCE, clock=self._clock)

    def _latest(self, stream: LineProcess) -> Sheet:
        record = stream.latest()
        values = parse(record.line) if record is not None else None
        if not self.trusted and values is None:
            return self._on_trial(stream, record is not None)
        self.trusted = True
        if values is None or record is None:
            return Sheet.missing(self.name, NAMES, Unavailable(Reason.PARSE_ERROR, "macmon printed a line that is none of its own"))
        if record.age > FRESH:
            return Sheet.missing(self.name, NAMES, stream.failure or STALE)
        return Sheet(self.name, NAMES, values, read_at=record.arrived)

    def _on_trial(self, stream: LineProcess, spoke: bool) -> Sheet:
        """It has not shown yet that it is macmon."""
        late = self._clock.monotonic() - self._tried_at >= TRIAL
        self._why = stream.failure or Unavailable(Reason.TIMED_OUT, "macmon has printed nothing yet")
        if spoke:
            self._why = Unavailable(Reason.PARSE_ERROR, "a program named macmon prints something else than macmon does")
        # One that ends may do better when it is started again; a stranger that stays is not started time and again.
        self._rejected = spoke or (late and not stream.ends)
        if self._rejected:
            self.close()
        return Sheet.missing(self.name, NAMES, self._why)


def _stranger(path: str) -> str:
    """What speaks against a command of that name; empty when it is macmon.

    Raises:
        SourceError: It may not be executed, or cannot be started.
    """
    try:
        said = commands.run([path, "--version"], timeout=VERSION_TIMEOUT, max_output=commands.CHUNK).stdout.strip()
    except SourceError as error:
        if error.reason != Reason.TIMED_OUT:
            raise
        return f"{path} is another program of that name: it does not answer --version"
    return "" if _VERSION.match(said) else f"{path} is another program of that name: its --version prints {said[:60]!r}"
