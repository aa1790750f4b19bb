"""What several nodes answer, fetched side by side. Tornado asks.

A node that is away, slow, or answers with too much costs itself alone. Redirects are not followed: a question goes where it was told to.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from accelmetrics.exporters.network import USER_AGENT, words
from accelmetrics.schemas.errors import InvalidOptionError

LARGEST_PAGE = 4 * 1024 * 1024
MOST_AT_ONCE = 64
METRICS = "/metrics"
NOT_MODIFIED = 304


class FleetNode(NamedTuple):
    """A node.

    Attributes:
        instance: What it is called: host and port.
        url: Where its page of metrics is.
        labels: Of service discovery; they are put on its series too.
    """

    instance: str
    url: str
    labels: Mapping[str, str]

    def address(self, path: str) -> str:
        """Return where another path of it is: in the place of ``/metrics``, which a proxy may have put below a path of its own."""
        scheme, _, rest = self.url.partition("://")
        return self.url.removesuffix(METRICS) + path if self.url.endswith(METRICS) else f"{scheme}://{rest.partition('/')[0]}{path}"


class Page(NamedTuple):
    """What a node answered. The same object is given again where the node says that nothing has changed.

    Attributes:
        node: The node.
        text: What it said; empty where it said nothing.
        failure: Why it said nothing, in words; empty where it did.
    """

    node: FleetNode
    text: str = ""
    failure: str = ""


class NodePoller:
    """Nodes that are asked on one event loop.

    Args:
        nodes: Gives the nodes; called at each round, and cheap.
        token_file: Sends this token to the nodes.
        ca_file: Believes certificates of these authorities alone, a PEM file.
        password: Sends this to the nodes: ``name:password``.

    Raises:
        InvalidOptionError: A file cannot be read.
    """

    def __init__(
        self, nodes: Callable[[], Sequence[FleetNode]], token_file: str | None = None, ca_file: str | None = None, password: str = ""
    ) -> None:
        self._nodes = nodes
        self._headers = {"User-Agent": USER_AGENT}
        if password:
            self._headers["Authorization"] = f"Basic {base64.b64encode(password.encode()).decode()}"
        try:
            if token_file:
                self._headers["Authorization"] = f"Bearer {Path(token_file).read_text(encoding='utf-8').strip()}"
            self._tls = ssl.create_default_context(cafile=ca_file) if ca_file else None
        except (OSError, ValueError) as error:
            raise InvalidOptionError(f"the fleet's token or authorities cannot be read: {error}") from error
        self._client: SimpleAsyncHTTPClient | None = None
        self._known: dict[str, dict[str, tuple[str, Page]]] = {}  # by path and instance, the last answer that had a tag

    async def ask(self, seconds: float, path: str = METRICS) -> list[Page]:
        """Ask all nodes now.

        Args:
            seconds: For how long it may take.
            path: What they are asked for.
        """
        nodes = self._nodes()
        if self._client is None:
            self._client = SimpleAsyncHTTPClient(force_instance=True, max_clients=MOST_AT_ONCE, max_body_size=LARGEST_PAGE)
        known = self._known.get(path, {})
        asked = [asyncio.ensure_future(self._fetch(self._client, node, seconds, path, known.get(node.instance))) for node in nodes]
        if asked:
            try:
                await asyncio.wait(asked, timeout=seconds)
            finally:
                for one in asked:
                    one.cancel()
        answers = [_answer(node, one, f"no answer within {seconds:g} s") for node, one in zip(nodes, asked, strict=True)]
        self._known[path] = {page.node.instance: (tag, page) for tag, page in answers if tag}
        return [page for _, page in answers]

    async def _fetch(
        self, client: SimpleAsyncHTTPClient, node: FleetNode, seconds: float, path: str, known: tuple[str, Page] | None
    ) -> tuple[str, Page]:
        """Ask a node; return the tag of its answer too."""
        request = HTTPRequest(
            node.url if path == METRICS else node.address(path),
            headers={
                **self._headers,
                "Accept": "text/plain;version=0.0.4" if path == METRICS else "application/json",
                **({} if known is None else {"If-None-Match": known[0]}),
            },
            connect_timeout=seconds,
            request_timeout=seconds,
            follow_redirects=False,
            decompress_response=False,
            ssl_options=self._tls,
        )
        try:
            answer = await client.fetch(request)
        except HTTPClientError as error:
            if known is not None and error.code == NOT_MODIFIED:
                return known
            raise
        return answer.headers.get("Etag", ""), Page(node, answer.body.decode("utf-8", "replace"))


def _answer(node: FleetNode, asked: asyncio.Task[tuple[str, Page]], late: str) -> tuple[str, Page]:
    """Return what a question came to; whatever it failed of costs this node alone."""
    if not asked.done() or asked.cancelled():
        return "", Page(node, failure=late)
    error = asked.exception()
    if error is None:
        return asked.result()
    if isinstance(error, HTTPClientError) and error.response is not None:  # says what is wrong, where it is one of ours
        said = error.response.body.decode("utf-8", "replace") if "text/plain" in error.response.headers.get("Content-Type", "") else ""
        return "", Page(node, failure=f"{error}: {words(said)}" if said else str(error))
    return "", Page(node, failure=f"{type(error).__name__}: {error}")
