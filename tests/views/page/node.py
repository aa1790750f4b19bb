"""A node as its users meet it: `accelmetrics serve --ui` in a process of its own, which can be killed and started again."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.cli.shell import environment, start
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG, wait_for

INTERVAL = "0.5"


class Node:
    """A running server with the page.

    Args:
        simulator: Its GPUs.
        arguments: More of the command.
        user: Name and password with which the test asks.
        variables: More of its environment.

    Attributes:
        url: Of the page.
    """

    def __init__(self, simulator: NvmlSimulator, *arguments: str, user: str = "", **variables: str) -> None:
        self._headers = {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()} if user else {}
        self._environment = environment(**simulator.environment(), **variables)
        self._arguments = ("--backends", "nvidia,host", "--interval", INTERVAL, *arguments)
        self.url = ""
        self._program: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, at its old address if it had one, and wait until it has read something."""
        address = self.url.removeprefix("http://").removesuffix("/") or "127.0.0.1:0"
        self._program = start("serve", "--ui", "--listen", address, *self._arguments, env=self._environment)
        assert self._program.stderr is not None
        line = self._program.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, line
        self.url = found[0]
        wait_for(lambda: self.sequence() > 0, what="nothing was read")

    def kill(self) -> None:
        """End it as no program can prevent."""
        if self._program is not None:
            self._program.kill()
            self._program.communicate(timeout=HANG)

    def get(self, path: str) -> Any:
        """Give a document that it serves."""
        with urlopen(Request(self.url + path, headers=self._headers), timeout=HANG) as answer:
            return json.load(answer)

    def sequence(self) -> int:
        """The number of the latest reading; 0 before the first."""
        try:
            return int(self.get("api/state")["sequence"])
        except HTTPError as error:
            with error:
                assert error.code == HTTPStatus.SERVICE_UNAVAILABLE, error.read()
                return 0

    def read_on(self, readings: int = 2) -> None:
        """Wait until it has read some more."""
        before = self.sequence()
        wait_for(lambda: self.sequence() >= before + readings)


@contextmanager
def serving(simulator: NvmlSimulator, *arguments: str, user: str = "", **variables: str) -> Iterator[Node]:
    """Serve the page of a simulated machine."""
    node = Node(simulator, *arguments, user=user, **variables)
    try:
        node.start()
        yield node
    finally:
        node.kill()
