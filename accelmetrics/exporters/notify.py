"""Messages about findings: as a JSON POST to an address, or by any service that apprise supports.

>>> accelmetrics.Monitor(notify=["https://hooks.example.org/gpu"])                                 # doctest: +SKIP
>>> accelmetrics.Monitor(notify=["ntfy://my-topic", "slack://TokenA/TokenB/TokenC"])               # doctest: +SKIP

A message lists the findings that have begun and the ones that are over. The first message is sent at once. Findings of the following
minute are combined into one message, so that a node on which everything fails sends one message per minute and not hundreds.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from accelmetrics.schemas.errors import InvalidOptionError, require
from accelmetrics.schemas.record import SEVERITIES, Finding, Record
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.schemas.text import counted, printable

PAUSE = 60.0
"""Minimum number of seconds between two messages."""
TIMEOUT = 10.0
"""Seconds after which a request to a server fails."""
MOST = 20
"""Maximum number of findings in a message's text; further ones are only counted."""
KEPT = 1000
"""Maximum number of findings that wait for a message; further ones are only counted."""
BEGUN, OVER = "begin", "end"


Send = Callable[[str, str, Mapping[str, Any]], None]
"""Function that sends a message: title, text and details. It raises :class:`ConnectionError` if the message is not accepted."""


class _NoRedirects(HTTPRedirectHandler):
    """A handler that follows no redirect."""

    # The user has named the recipient of the message and of the password. A redirect could send both elsewhere.
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def json_post(url: str) -> tuple[str, Send]:
    """Return the printable form of an ``http://`` or ``https://`` address, and a function that posts messages there as JSON objects.

    A user name and password in the address are sent as basic authentication. The printable form omits the path, which may be secret.

    Raises:
        InvalidOptionError: The address is invalid.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("http:")
    shown = f"{parts.scheme}://{f'[{host}]' if host and ':' in host else host}{'' if port is None else f':{port}'}/…"
    if not host:
        raise InvalidOptionError(f"notify: an {parts.scheme}:// address needs a host: write https://HOST/PATH")
    place = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path or "/", parts.query, ""))
    headers = {"content-type": "application/json", "user-agent": "accelmetrics"}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    opener = build_opener(_NoRedirects)

    def send(title: str, message: str, details: Mapping[str, Any]) -> None:
        body = json.dumps({"title": title, "message": message, **details}).encode()
        try:
            with opener.open(Request(place, body, headers, method="POST"), timeout=TIMEOUT):
                pass
        except HTTPError as error:
            error.close()
            raise ConnectionError(f"{shown} answered {error.code}") from None
        except (URLError, TimeoutError, OSError, ValueError) as error:
            why = getattr(error, "reason", error)
            raise ConnectionError(f"{shown}: {getattr(why, 'strerror', None) or type(why).__name__}") from None

    return shown, send


def apprise(url: str) -> tuple[str, Send]:
    """Return the printable form of an apprise address, and a function that sends title and message to its service.

    Addresses begin with ``ntfy://``, ``slack://``, ``discord://``, ``mailto://`` and many more. The printable form has only this part: the
    rest is secret.

    Raises:
        InvalidOptionError: Apprise does not accept the address.
        MissingDependencyError: Apprise is not installed.
    """
    shown = f"{url.partition('://')[0]}://…"
    services = require("apprise", "notify").Apprise()
    if not services.add(url):
        raise InvalidOptionError(f"notify: apprise does not accept the address {shown}: see its list of services")

    def send(title: str, message: str, details: Mapping[str, Any]) -> None:
        if not services.notify(title=title, body=message):
            raise ConnectionError(f"{shown}: the message was not accepted")

    return shown, send


def target(url: object) -> tuple[str, Send]:
    """Return the printable form of an address, and a function that sends messages there.

    Raises:
        InvalidOptionError: The address is invalid.
        MissingDependencyError: The address needs a package that is not installed.
    """
    if not isinstance(url, str) or "://" not in url:
        raise InvalidOptionError("notify takes addresses: https://HOST/PATH for a JSON POST, or one of apprise's, such as ntfy://TOPIC")
    return json_post(url) if url.lower().startswith(("http://", "https://")) else apprise(url)


class NotifyExporter:
    """Sends a message when findings begin or are over.

    Args:
        url: The recipient: a JSON POST for an ``http://`` or ``https://`` address, otherwise an address of apprise.
        pause: Minimum number of seconds between two messages.
        clock: Monotonic clock, in seconds.

    Raises:
        InvalidOptionError: The address is invalid.
        MissingDependencyError: The address needs a package that is not installed.
    """

    name = "notify"

    def __init__(self, url: str, *, pause: float = PAUSE, clock: Callable[[], float] = time.monotonic) -> None:
        self._shown, self._post = target(url)
        self.metrics = MetricSelection("core")  # messages contain findings and no metrics
        self._pause, self._clock = pause, clock
        self._due = float("-inf")
        self._began_ns = time.time_ns()
        self._known: frozenset[Finding] | None = None
        self._waiting: list[tuple[str, Finding]] = []
        self._more = 0
        self._labels: Mapping[str, str] = {}

    def open(self) -> None:
        """Do nothing: a connection is made for each message."""

    def export(self, record: Record) -> None:
        """Collect findings that began or ended, and send them if a message is due.

        Raises:
            ConnectionError: The message was not accepted; its findings are part of the next one.
        """
        if self._known is None:  # findings that began before a restart were sent before it
            self._known = frozenset(one for one in record.findings.current if one.since_ns < self._began_ns)
        before, self._known = self._known, frozenset((*record.findings.current, *record.findings.ended))
        self._labels = record.labels
        for event, findings in ((OVER, record.findings.ended), (BEGUN, record.findings.current)):
            for finding in findings:
                if finding not in before and len(self._waiting) < KEPT:
                    self._waiting.append((event, finding))
                elif finding not in before:
                    self._more += 1
        if self._clock() >= self._due:
            self._send()

    def flush(self) -> None:
        """Do nothing: a flush does not shorten the pause between messages."""

    def close(self) -> None:
        """Send the findings that wait for a message.

        Raises:
            ConnectionError: The message was not accepted.
        """
        self._send()

    def test(self) -> str:
        """Send a test message. Return the printable form of the address.

        Raises:
            ConnectionError: The message was not accepted.
        """
        self._post("accelmetrics: a test", "Messages about findings arrive here.", {"test": True})
        return self._shown

    def _send(self) -> None:
        if not self._waiting:
            return
        severities = {finding.severity for event, finding in self._waiting if event == BEGUN}
        worst = next((one for one in SEVERITIES if one in severities), None)
        host = printable(self._labels.get("hostname", ""))
        begun = sum(event == BEGUN for event, _ in self._waiting)
        heads = [
            f"{counted(begun, 'finding')}" if begun else "",
            f"{len(self._waiting) - begun} over" if begun < len(self._waiting) else "",
        ]
        title = f"accelmetrics {host}: {', '.join(filter(None, heads))}{f' ({worst})' if worst else ''}"
        lines = [_line(event, finding) for event, finding in self._waiting[:MOST]]
        hidden = len(self._waiting) - len(lines) + self._more
        details = {
            "hostname": host,
            "severity": worst,
            "labels": dict(self._labels),
            "findings": [{"event": event, **finding.to_dict()} for event, finding in self._waiting],
            "left_out": self._more,
        }
        self._post(title, "\n".join([*lines, *([f"and {hidden} more"] if hidden else [])]), details)
        self._waiting, self._more = [], 0
        self._due = self._clock() + self._pause


def _line(event: str, finding: Finding) -> str:
    text = f"{finding.key}: {finding.message}" if finding.key else finding.message
    return printable(f"over: {finding.rule} {text}" if event == OVER else f"{finding.severity}: {finding.rule} {text} ({finding.advice})")
