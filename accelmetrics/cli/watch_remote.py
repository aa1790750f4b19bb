"""``watch --url``: what another machine's ``accelmetrics serve`` reads; and the thread that asks nodes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from accelmetrics.backends.guard import guarded
from accelmetrics.cli.options import UsageError
from accelmetrics.cli.watch_records import RecordSource
from accelmetrics.cli.watch_source import LATE
from accelmetrics.exporters.http.node_poller import METRICS, FleetNode, NodePoller, Page
from accelmetrics.exporters.network import words
from accelmetrics.schemas.errors import InvalidOptionError, without_passwords
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.recording import parse_record
from accelmetrics.schemas.text import printable
from accelmetrics.views.device_view import WarningLevels
from accelmetrics.visibility.nodes import parse_hosts

T = TypeVar("T")

RECORD = "/api/record"
PATIENCE = 3.0
"""Seconds that nodes have for an answer."""


class NodeState(NamedTuple, Generic[T]):
    """What is known of a node.

    Attributes:
        node: The node.
        content: The last that it said; None before that.
        taken: When it said that first, by the monotonic clock.
        failure: Why it says nothing now, in words; empty where it does.
        since: Since when, in seconds since 1970.
    """

    node: FleetNode
    content: T | None = None
    taken: float = 0.0
    failure: str = ""
    since: float = 0.0


class NodePolls(Generic[T]):
    """Nodes that are asked again and again, on a thread of its own: one that hangs holds up nothing here.

    Args:
        nodes: Those that there are at the beginning.
        poller: Asks them.
        path: What they are asked for.
        interval: Seconds between two questions.
        read: Makes of an answer what is wanted; raises something for what is none.

    Attributes:
        states: What is known of each, by name; another object after each round.
    """

    def __init__(self, nodes: Iterable[FleetNode], poller: NodePoller, path: str, interval: float, read: Callable[[str], T]) -> None:
        self.states: Mapping[str, NodeState[T]] = {}
        self._poller = poller
        self._path = path
        self._interval = interval
        self._read = read
        self._pages = {node.instance: Page(node) for node in nodes}
        self._loop = asyncio.new_event_loop()
        self._polling = self._loop.create_task(self._poll())
        threading.Thread(target=self._run, name="accelmetrics-watch", daemon=True).start()

    def close(self) -> None:
        """Ask no more; what is being asked is given up."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._polling.cancel)

    def _run(self) -> None:
        try:
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._polling)
        finally:
            self._loop.close()

    async def _poll(self) -> None:
        while True:
            due = self._loop.time() + self._interval
            pages = await self._ask()
            self.states = {page.node.instance: self._state(page) for page in pages}
            self._pages = {page.node.instance: page for page in pages}
            await asyncio.sleep(due - self._loop.time())

    async def _ask(self) -> list[Page]:
        """Ask once; whatever goes wrong here is why no node says anything, until the next time."""
        asking = self._loop.create_task(self._poller.ask(PATIENCE, self._path))
        try:
            await asyncio.wait([asking])
        finally:
            asking.cancel()
        outcome = guarded(asking.result)
        if outcome.failure is None:
            return outcome.value or []
        return [Page(page.node, failure=f"it cannot be asked: {outcome.failure.detail}") for page in self._pages.values()]

    def _state(self, page: Page) -> NodeState[T]:
        name = page.node.instance
        before = self.states.get(name, NodeState(page.node))
        if page is self._pages.get(name) and not page.failure:  # nothing is new
            return before
        failure = page.failure
        if not failure:
            outcome = guarded(self._read, page.text)
            if outcome.failure is None:
                return NodeState(page.node, outcome.value, time.monotonic())
            failure = f"it answers with something else: {outcome.failure.detail}"
        if "HTTP 404" in failure:
            failure += f"; {self._path} is answered by accelmetrics serve of this release"
        failure = words(printable(without_passwords(failure)))
        return before._replace(failure=failure, since=before.since if before.failure else time.time())


class RemoteSource(RecordSource):
    """The readings of another machine.

    Args:
        node: The machine.
        poller: Asks it, and it alone.
        interval: Seconds between two questions.
        levels: From where on values are warnings.
    """

    def __init__(self, node: FleetNode, poller: NodePoller, interval: float, levels: WarningLevels) -> None:
        super().__init__(levels, interval)
        self._node = node
        self._polls = NodePolls([node], poller, RECORD, interval, lambda text: parse_record(text.encode()))
        self._state: NodeState[Record] = NodeState(node)
        self._due = 0.0

    @property
    def label(self) -> str:
        """Where the readings come from."""
        return self._node.instance

    @property
    def notice(self) -> str:
        """Why nothing new comes."""
        if not self._state.failure:
            return ""
        since = time.strftime("%H:%M:%S", time.localtime(self._state.since))
        return f"no answer since {since}: {self._state.failure}"

    def look(self) -> bool:
        """Take what is new; return whether there is another view, or another reason for none."""
        state, before = self._polls.states.get(self._node.instance, self._state), self._state
        now = time.monotonic()
        self._state = state
        if state.content is not None and state.content is not self.record:
            self._take(state.content)
        elif self.record is not None and now >= self._due:
            self._show(now - state.taken)
        else:
            return state.failure != before.failure
        self._due = now + LATE * self.trails.interval
        return True

    def close(self) -> None:
        """Ask no more."""
        self._polls.close()


def remote_source(url: str, token_file: str | None, ca_file: str | None, interval: float, levels: WarningLevels) -> RemoteSource:
    """Make the source of a machine by its address, with a name and a password where it needs them.

    Args:
        url: ``http://node:9500``, ``https://user:password@node/below``, or ``node`` for the usual port.
        token_file: Sends this token.
        ca_file: Believes certificates of these authorities alone.
        interval: Seconds between two questions.
        levels: From where on values are warnings.

    Raises:
        UsageError: It is no address.
        InvalidOptionError: A file cannot be read.
    """
    try:
        parts = urlsplit(url if "://" in url else parse_hosts(url)[0].url)
        if parts.scheme not in ("http", "https") or not parts.hostname or (parts.port or 1) < 1 or parts.query or parts.fragment:
            raise ValueError
    except (ValueError, IndexError, InvalidOptionError):
        raise UsageError(f"--url {without_passwords(url)!r} is no address of accelmetrics serve, such as http://node-1:22235") from None
    name = parts.netloc.rpartition("@")[2]
    node = FleetNode(name, f"{parts.scheme}://{name}{parts.path.rstrip('/').removesuffix(METRICS)}{METRICS}", {})
    password = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    return RemoteSource(node, NodePoller(lambda: [node], token_file, ca_file, password), interval, levels)
