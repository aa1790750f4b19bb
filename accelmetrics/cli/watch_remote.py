"""``watch --url``: what another machine's ``accelmetrics serve`` reads; and the thread that asks machines, which ``--fleet`` uses too."""

from __future__ import annotations

import asyncio
import base64
import ssl
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import unquote, urlsplit

from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from accelmetrics.backends.guard import guarded
from accelmetrics.cli.options import UsageError
from accelmetrics.cli.watch_records import RecordSource
from accelmetrics.cli.watch_source import LATE
from accelmetrics.exporters.network import USER_AGENT, words
from accelmetrics.schemas.errors import InvalidOptionError, without_passwords
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.recording import parse_record
from accelmetrics.schemas.text import printable
from accelmetrics.views.device_view import WarningLevels
from accelmetrics.visibility.nodes import METRICS, Node, parse_hosts

T = TypeVar("T")

RECORD = "/api/record"
PATIENCE = 3.0
"""Seconds that machines have for an answer."""
LARGEST_ANSWER = 4 * 1024 * 1024
MOST_AT_ONCE = 64
NOT_MODIFIED = 304


@dataclass(frozen=True)
class Access:
    """How machines are asked.

    Attributes:
        headers: Credentials among them.
        tls: The authorities whose certificates are believed; None for the system's.
        patience: Seconds that a machine has for an answer.
        largest: Bytes that an answer may have.
    """

    headers: Mapping[str, str]
    tls: ssl.SSLContext | None = None
    patience: float = PATIENCE
    largest: int = LARGEST_ANSWER

    @classmethod
    def of(cls, options: Namespace, password: str = "") -> Access:
        """Read the files that the options name.

        Args:
            options: Of the command.
            password: ``name:password`` of the address; a token comes before it.

        Raises:
            InvalidOptionError: A file cannot be read.
        """
        headers = {"User-Agent": USER_AGENT, "Accept": "application/json"}
        if password:
            headers["Authorization"] = f"Basic {base64.b64encode(password.encode()).decode()}"
        try:
            if options.fleet_token_file:
                headers["Authorization"] = f"Bearer {Path(options.fleet_token_file).read_text(encoding='utf-8').strip()}"
            return cls(headers, ssl.create_default_context(cafile=options.fleet_ca) if options.fleet_ca else None)
        except (OSError, ValueError) as error:
            raise InvalidOptionError(f"the fleet's token or authorities cannot be read: {error}") from error


@dataclass(frozen=True)
class NodeState(Generic[T]):
    """What is known of a machine.

    Attributes:
        node: The machine.
        content: Its last answer; None before the first.
        taken: When that answer came first, by the monotonic clock.
        failure: Why there is no answer now, in words; empty where there is one.
        since: Since when, in seconds since 1970.
        tag: The ``Etag`` of the last answer.
    """

    node: Node
    content: T | None = None
    taken: float = 0.0
    failure: str = ""
    since: float = 0.0
    tag: str = ""


class NodePolls(Generic[T]):
    """Machines that are asked again and again, side by side, on a thread of their own: one that hangs delays nothing else.

    Redirects are not followed: credentials go where they were told to.

    Args:
        nodes: Returns the machines; called at each round, and cheap.
        access: How they are asked.
        path: What they are asked for.
        interval: Seconds between two rounds.
        read: Makes the content of an answer; whatever it raises is the failure of that machine alone.

    Attributes:
        states: By name, what is known of each machine; another object after each round.
    """

    def __init__(self, nodes: Callable[[], Sequence[Node]], access: Access, path: str, interval: float, read: Callable[[str], T]) -> None:
        self.states: Mapping[str, NodeState[T]] = {}
        self._nodes = nodes
        self._access = access
        self._path = path
        self._interval = interval
        self._read = read
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
        client = SimpleAsyncHTTPClient(force_instance=True, max_clients=MOST_AT_ONCE, max_body_size=self._access.largest)
        while True:
            due = self._loop.time() + self._interval
            states = [self._known(node) for node in self._nodes()]
            asked = [self._loop.create_task(self._ask(client, state)) for state in states]
            if asked:
                try:
                    await asyncio.wait(asked, timeout=self._access.patience)
                finally:
                    for one in asked:
                        one.cancel()
            self.states = {state.node.target: self._answered(state, one) for state, one in zip(states, asked, strict=True)}
            await asyncio.sleep(due - self._loop.time())

    def _known(self, node: Node) -> NodeState[T]:
        known = self.states.get(node.target)
        return known if known is not None and known.node == node else NodeState(node)

    async def _ask(self, client: SimpleAsyncHTTPClient, known: NodeState[T]) -> NodeState[T]:
        """Ask a machine. Where nothing has changed since its last answer, what is known of it is returned as it is."""
        request = HTTPRequest(
            known.node.address(self._path),
            headers={**self._access.headers, **({"If-None-Match": known.tag} if known.tag else {})},
            connect_timeout=self._access.patience,
            request_timeout=self._access.patience,
            follow_redirects=False,
            decompress_response=False,
            ssl_options=self._access.tls,
        )
        try:
            answer = await client.fetch(request)
        except HTTPClientError as error:
            if known.tag and error.code == NOT_MODIFIED:
                return replace(known, failure="", since=0.0) if known.failure else known
            raise
        read = guarded(self._read, answer.body.decode("utf-8", "replace"))
        if read.failure is not None:
            return self._failed(known, f"it answers with something else: {read.failure.detail}")
        return NodeState(known.node, read.value, time.monotonic(), tag=answer.headers.get("Etag", ""))

    def _answered(self, known: NodeState[T], asked: asyncio.Task[NodeState[T]]) -> NodeState[T]:
        """Return what a question came to; whatever it failed of costs this machine alone."""
        if not asked.done() or asked.cancelled():
            return self._failed(known, f"no answer within {self._access.patience:g} s")
        error = asked.exception()
        if error is None:
            return asked.result()
        if not isinstance(error, HTTPClientError):
            return self._failed(known, f"{type(error).__name__}: {error}")
        said = ""
        if error.response is not None and error.response.headers.get("Content-Type", "").startswith(("text/plain", "application/json")):
            said = error.response.body.decode("utf-8", "replace")  # the reason, where it is one of ours or Prometheus'
        failure = f"{error}: {words(said)}" if said else str(error)
        if error.code == 404:
            path = self._path.partition("?")[0]
            failure += f"; {path} is answered by {'Prometheus' if path.startswith('/api/v1/') else 'accelmetrics serve of this release'}"
        return self._failed(known, failure)

    def _failed(self, known: NodeState[T], failure: str) -> NodeState[T]:
        since = known.since if known.failure else time.time()
        return replace(known, failure=words(printable(without_passwords(failure))), since=since)


class RemoteSource(RecordSource):
    """The readings of another machine.

    Args:
        node: The machine.
        access: How it is asked.
        interval: Seconds between two questions.
        levels: From where on values are warnings.
    """

    def __init__(self, node: Node, access: Access, interval: float, levels: WarningLevels) -> None:
        super().__init__(levels, interval)
        self._node = node
        self._polls = NodePolls(lambda: [node], access, RECORD, interval, lambda text: parse_record(text.encode()))
        self._state: NodeState[Record] = NodeState(node)
        self._due = 0.0

    @property
    def label(self) -> str:
        """Where the readings come from."""
        return self._node.target

    @property
    def notice(self) -> str:
        """Why nothing new comes."""
        if not self._state.failure:
            return ""
        since = time.strftime("%H:%M:%S", time.localtime(self._state.since))
        return f"no answer since {since}: {self._state.failure}"

    def look(self) -> bool:
        """Take what is new; return whether there is another view, or another reason for none."""
        state, before = self._polls.states.get(self._node.target, self._state), self._state
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


def remote_source(options: Namespace, levels: WarningLevels) -> RemoteSource:
    """Return the source of the machine of ``--url``.

    Raises:
        UsageError: It is no address.
        InvalidOptionError: A file cannot be read.
    """
    try:
        url = options.url if "://" in options.url else parse_hosts(options.url)[0].url
    except (IndexError, InvalidOptionError):
        url = options.url
    node, password = parse_address(url, "--url", "accelmetrics serve, such as http://node-1:22235")
    return RemoteSource(node, Access.of(options, password), options.interval, levels)


def parse_address(url: str, flag: str, wanted: str) -> tuple[Node, str]:
    """Return the machine of an address, such as ``https://user:password@node/below``, and the name and password in it.

    Args:
        url: The address.
        flag: The flag that gave it, for the message.
        wanted: What the address should be of.

    Raises:
        UsageError: It is no address.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or (parts.port or 1) < 1 or parts.query or parts.fragment:
            raise ValueError
    except ValueError:
        raise UsageError(f"{flag} {without_passwords(url)!r} is no address of {wanted}") from None
    path = parts.path.rstrip("/").removesuffix(METRICS) + METRICS
    node = Node(parts.netloc.rpartition("@")[2], {"__metrics_path__": path}, parts.scheme)
    return node, f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
