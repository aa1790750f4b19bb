"""What several nodes answer, for many clients at once; and their pages of metrics as one, each with an ``instance`` of its own.

A node that is away, slow, or answers with what is no page of metrics costs itself alone: ``accelmetrics_fleet_up`` is 0 for it. Clients at
the same time, and within a second, share one round of questions. ``prometheus_client`` reads the pages and writes the one.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample
from tornado.httputil import HTTPServerRequest

from accelmetrics.exporters.http.node_poller import METRICS, FleetNode, NodePoller, Page
from accelmetrics.exporters.http.server import SCRAPE_TIMEOUT, SPARE, HttpAnswer, Route
from accelmetrics.exporters.scrape_cache import TEXT
from accelmetrics.schemas.metrics_page import MetricFamily, PageSample, parse_page

PATIENCE = 5.0
"""Seconds for all nodes together, where the scrape leaves as much."""
KEPT = 1.0
"""Seconds for which a round of answers is served again."""
INSTANCE, FORMER = "instance", "exported_instance"
UP = "accelmetrics_fleet_up"

log = logging.getLogger("accelmetrics")


class FleetScraper(NodePoller):
    """The nodes, asked on the loop of the server that the routes belong to.

    Args:
        nodes: Gives the nodes; called at each round, and cheap.
        discovery: Gives the same for service discovery.
        token_file: Sends this token to the nodes.
        ca_file: Believes certificates of these authorities alone, a PEM file.

    Raises:
        InvalidOptionError: A file cannot be read.
    """

    def __init__(
        self,
        nodes: Callable[[], Sequence[FleetNode]],
        discovery: Callable[[], object],
        token_file: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        super().__init__(nodes, token_file, ca_file)
        self._discovery = discovery
        self._polls: dict[str, tuple[float, asyncio.Task[list[Page]]]] = {}  # by path, when it was asked for last
        self._failed: dict[str, dict[str, str]] = {}

    @property
    def routes(self) -> list[tuple[str, type[Route], dict[str, Any]]]:
        """What the server is to answer."""
        targets: dict[str, Any] = {"compute": self._targets, "any_name": True}
        return [("/fleet/metrics", FleetRoute, {"fleet": self}), ("/fleet/targets", Route, targets)]

    def _targets(self, _: HTTPServerRequest) -> HttpAnswer:
        return HttpAnswer(json.dumps(self._discovery()).encode(), "application/json")

    async def pages(self, seconds: float, path: str = METRICS) -> list[Page]:
        """Ask all nodes, or take the answers of a poll that goes on or has just ended.

        Args:
            seconds: For how long a poll may take that begins now.
            path: What they are asked for.
        """
        now = asyncio.get_running_loop().time()
        asked_at, poll = self._polls.get(path, (now, None))
        if poll is None or (poll.done() and now - asked_at > KEPT):
            poll = asyncio.ensure_future(self._asked(seconds, path))
            self._polls[path] = now, poll
        return await asyncio.shield(poll)

    async def _asked(self, seconds: float, path: str) -> list[Page]:
        """Ask the nodes; log one that does not answer once, until it does."""
        pages = await self.ask(seconds, path)
        known, failed = self._failed.get(path, {}), {page.node.instance: page.failure for page in pages if page.failure}
        for instance in failed.keys() - known.keys():
            log.warning("fleet: %s: %s", instance, failed[instance])
        self._failed[path] = failed
        return pages


class FleetRoute(Route):
    """Answers with the one page."""

    def initialize(self, fleet: FleetScraper) -> None:  # type: ignore[override]  # its own arguments
        """Take the nodes."""
        super().initialize(compute=self._merged, any_name=True)
        self._fleet = fleet
        self._pages: list[Page] = []

    async def get(self) -> None:
        """Ask the nodes, then write their page."""
        seconds = PATIENCE
        with suppress(ValueError):  # no header, or no number in it
            asked = float(self.request.headers.get(SCRAPE_TIMEOUT, ""))
            if asked > 0:
                seconds = min(PATIENCE, max(asked / 2, asked - 4 * SPARE))
        self._pages = await self._fleet.pages(seconds)
        await super().get()

    head = get

    def _merged(self, _: HTTPServerRequest) -> HttpAnswer:
        return HttpAnswer(merge(self._pages), TEXT)


def merge(pages: Sequence[Page]) -> bytes:
    """Write the pages as one. Where two have another type for a metric, the first one's counts, and the other's series are left out."""
    up = Metric(UP, "1 if the node answered with a page of metrics, else 0.", "gauge")
    families: dict[str, Metric] = {}
    for page in pages:
        added = None if page.failure else _families(page)
        up.samples.append(Sample(UP, {INSTANCE: page.node.instance}, float(added is not None)))
        for family in added or ():
            known = families.setdefault(family.name, Metric(family.name, family.meaning, family.type))
            if known.type == family.type:
                known.samples.extend(_with(page.node, sample) for sample in family.samples)

    class Collected:
        """What ``generate_latest`` takes in the place of a registry."""

        def collect(self) -> Iterator[Metric]:
            yield up
            yield from families.values()

    return bytes(generate_latest(Collected()))


def _families(page: Page) -> list[MetricFamily] | None:
    try:
        return list(parse_page(page.text))
    except ValueError:
        log.debug("fleet: %s answers with what is no page of metrics", page.node.instance)
        return None


def _with(node: FleetNode, sample: PageSample) -> Sample:
    labels = {FORMER if name == INSTANCE else name: value for name, value in sample.labels.items()}
    return Sample(sample.name, {**node.labels, **labels, INSTANCE: node.instance}, sample.value)
