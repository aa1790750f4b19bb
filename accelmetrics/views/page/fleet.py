"""The nodes of a fleet for the page: a line of each, asked for once however many clients look."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from accelmetrics.exporters.http.fleet import PATIENCE, FleetScraper
from accelmetrics.exporters.http.node_poller import Page
from accelmetrics.exporters.http.server import Route
from accelmetrics.exporters.network import words
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.text import printable
from accelmetrics.views.node_summary import NodeSummary
from accelmetrics.views.page.documents import SharedAnswers

SUMMARY = "/api/summary"
SHORT = 0.5
"""Seconds that an answer waits for nodes while there is one of before."""
RECENT = 3 * PATIENCE
"""Seconds for which that may be given."""


def fleet_routes(fleet: FleetScraper) -> list[tuple[str, type[Route], dict[str, Any]]]:
    """Return what answers with the nodes."""
    return [("/api/fleet", FleetPageRoute, {"answers": FleetAnswers(fleet)})]


class FleetAnswers:
    """What was made of the latest answers of the nodes. On the loop's thread alone.

    Args:
        fleet: Asks the nodes.
    """

    def __init__(self, fleet: FleetScraper) -> None:
        self._fleet = fleet
        self._latest: tuple[list[Page], SharedAnswers] = [], SharedAnswers()
        self._since = float("-inf")

    async def pages(self) -> tuple[list[Page], SharedAnswers]:
        """Return what the nodes answer, and what is made of that for all clients.

        A node that hangs holds up the first answer alone: then what was said shortly before is given meanwhile.
        """
        poll = asyncio.ensure_future(self._fleet.pages(PATIENCE, SUMMARY))
        poll.add_done_callback(self._take)
        recent = asyncio.get_running_loop().time() - self._since < RECENT
        await asyncio.wait({poll}, timeout=SHORT if recent else None)
        return self._latest

    def _take(self, poll: asyncio.Task[list[Page]]) -> None:
        if not poll.cancelled() and poll.exception() is None and poll.result() is not self._latest[0]:
            self._latest = poll.result(), SharedAnswers()
            self._since = poll.get_loop().time()


class FleetPageRoute(Route):
    """Answers with the nodes."""

    def initialize(self, answers: FleetAnswers) -> None:  # type: ignore[override]  # its own arguments
        """Take what asks the nodes."""
        super().initialize()
        self._answers = answers

    async def get(self) -> None:
        """Answer."""
        pages, answers = await self._answers.pages()
        self.answer(await answers.answer(self, partial(fleet_document, pages)))

    head = get


def fleet_document(pages: Sequence[Page]) -> dict[str, Any]:
    """Return the nodes in plain containers, in the order in which they are named; one that cannot be shown is there with its reason."""
    return {"nodes": [_node(page) for page in pages]}


def _node(page: Page) -> dict[str, Any]:
    parts = urlsplit(page.node.url)
    told = {"name": page.node.instance, "url": f"{parts.scheme}://{parts.netloc}/", "labels": dict(page.node.labels)}
    failure = page.failure
    if not failure:
        try:
            summary = NodeSummary.from_json(page.text)
            return {**told, "state": summary.state, "words": summary_words(summary), "error": "", "summary": summary.to_dict()}
        except DocumentError as error:
            failure = str(error)
    failure = words(printable(failure))
    return {**told, "state": "bad", "words": [failure], "error": failure, "summary": None}


def summary_words(summary: NodeSummary) -> list[str]:
    """Say a node in a few words: what it has, what that does, and what is wrong."""
    said = [", ".join(f"{count} {kind}" for kind, count in summary.kinds.items()) or "no devices"]
    if summary.utilization is not None:
        said.append(f"{summary.utilization:.0f} % used")
    if summary.power_watts is not None:
        limit = "" if summary.power_limit_watts is None else f" of {summary.power_limit_watts / 1000:.1f}"
        said.append(f"{summary.power_watts / 1000:.1f}{limit} kW")
    return [*said, *summary.troubles]
