"""What the tests of shared readings share: processes of one job, and a bare client of the wire."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelmetrics.sampling.node import connected, listening
from accelmetrics.sampling.node_server import NodeServer
from accelmetrics.sampling.node_wire import LONGEST_READING, PROTOCOL, Frames, frame
from tests.support.programs import Program
from tests.support.waiting import HANG, wait_for

RANK = """
    import logging, os, sys
    from accelmetrics import Monitor
    from accelmetrics.schemas.errors import Unavailable
    logging.basicConfig(format="%(message)s")
    heard = []
    monitor = Monitor(0.05, share="node", **{options})
    monitor.channel.subscribe(heard.append)
    def source(name):
        return next((status for status in monitor.latest.backends if status.name == name), None)
    def until(condition):
        import time
        while not condition():
            time.sleep(0.005)
"""
"""The beginning of a program that is one rank of a job."""


def job_environment(directory: Path, **more: str) -> dict[str, str]:
    """Return the environment of a job's processes, whose files are in a directory of the test's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RAY_", "TORCHELASTIC_", "ACCELMETRICS_S"))}
    return {**kept, "XDG_RUNTIME_DIR": str(directory), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", **more}


def rank(text: str, env: Mapping[str, str], **options: Any) -> Program:
    """Start a program that is one rank of a job."""
    chosen = {"backends": ["host"], "metrics": "cpu,load.1m", **options}
    return Program(RANK.replace("{options}", repr(chosen)) + text, env=env)


@contextmanager
def serving(path: Path, **options: Any) -> Iterator[NodeServer]:
    """A server in this process that lets this user in."""
    server = NodeServer(listening(str(path)), {"backends": ["host"], **options}, lambda peer: peer.uid == os.geteuid())
    server.start()
    try:
        yield server
    finally:
        server.close()


class BareClient:
    """A client that says what a test has it say.

    Attributes:
        got: What it was sent.
    """

    def __init__(self, path: Path) -> None:
        self.got: list[dict[str, Any]] = []
        self._frames = Frames(LONGEST_READING)
        wait_for(path.exists)
        self.socket = connected(str(path))
        self.socket.settimeout(HANG)

    def __enter__(self) -> BareClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def hello(self, **other: Any) -> BareClient:
        """Say hello."""
        said = {"type": "hello", "protocol": PROTOCOL, "interval": 0.02, "metrics": ["load.1m"], "backends": ["host"], "job": "a"}
        self.socket.sendall(frame({**said, **other}))
        return self

    def receive(self) -> bool:
        """Take what comes next; whether the connection stands."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionError:
            return False
        self.got.extend(self._frames.feed(data))
        return bool(data)

    def wait_for(self, kind: str, count: int = 1) -> dict[str, Any]:
        """Receive until so many messages of a type have come; the last of them."""
        while len(found := [message for message in self.got if message["type"] == kind]) < count:
            assert self.receive(), f"the connection ended, after {self.got}"
        return found[-1]

    def is_hung_up_on(self) -> bool:
        """Receive until the connection ends."""
        while self.receive():
            pass
        return True
