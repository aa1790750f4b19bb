"""A real Prometheus (or node_exporter) for a test, on free ports, gone at its end."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.support.network import free_port
from tests.support.waiting import HANG, wait_for


def program(name: str) -> str:
    """The path of a server's program; skips the test where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"server: {name} is not installed")
    return found


def fetch(url: str) -> str:
    """What a URL answers."""
    with urllib.request.urlopen(url, timeout=HANG) as answer:
        return str(answer.read().decode())


def check_metrics(text: bytes) -> str:
    """What ``promtool check metrics`` finds wrong with an exposition; nothing where it is clean."""
    done = subprocess.run([program("promtool"), "check", "metrics"], input=text, capture_output=True, timeout=2 * HANG)
    said = (done.stdout + done.stderr).decode().strip()
    assert done.returncode == 0 or said, "promtool failed without a word"
    return said


class Server:
    """A child process that serves HTTP.

    Args:
        command: What is run.
        port: Where it serves.
        ready: The path that answers 200 once it is up.
        directory: Where its output goes.
    """

    def __init__(self, command: Sequence[str], port: int, ready: str, directory: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = directory / f"server-{port}.log"
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_for(lambda: self._answers(ready))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it."""
        self._child.terminate()
        try:
            self._child.wait(HANG)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _answers(self, path: str) -> bool:
        assert self._child.poll() is None, self._log.read_text()[-2000:]
        try:
            fetch(self.url + path)
        except OSError:
            return False
        return True

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


class PrometheusServer(Server):
    """Prometheus, scraping every second.

    Args:
        directory: An empty folder for its data.
        jobs: Its ``scrape_configs``, but for the intervals.
        rules: Files of rules, which it evaluates every second.
        alertmanager: Where it sends alerts, as HOST:PORT.
    """

    def __init__(
        self, directory: Path, jobs: Sequence[Mapping[str, Any]], rules: Sequence[Path] = (), alertmanager: str | None = None
    ) -> None:
        config = directory / "prometheus.yml"
        every = {"scrape_interval": "1s", "scrape_timeout": "1s"}
        told = [{"static_configs": [{"targets": [alertmanager]}]}] if alertmanager else []
        # YAML that is JSON.
        config.write_text(
            json.dumps(
                {
                    "global": {"evaluation_interval": "1s"},
                    "rule_files": [str(path) for path in rules],
                    "alerting": {"alertmanagers": told},
                    "scrape_configs": [{**every, **job} for job in jobs],
                }
            )
        )
        port = free_port()
        command = [program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}"]
        super().__init__([*command, f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"], port, "/-/ready", directory)

    def query(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series that an expression gives now.

        Raises:
            AssertionError: Prometheus refuses the expression.
        """
        try:
            answer = json.loads(fetch(f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': promql})}"))
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error
        return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]

    def value(self, promql: str) -> float:
        """The value of the one series that an expression gives, waiting until it gives one."""
        found = wait_for(lambda: self.query(promql))
        assert len(found) == 1, found
        return float(found[0][1])

    def rules(self) -> list[dict[str, Any]]:
        """Each of its rules, with how its last evaluation went."""
        groups = json.loads(fetch(f"{self.url}/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def targets(self) -> dict[str, dict[str, Any]]:
        """The state of each target by its job's name."""
        active = json.loads(fetch(f"{self.url}/api/v1/targets"))["data"]["activeTargets"]
        return {target["labels"]["job"]: target for target in active}
