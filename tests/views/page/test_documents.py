"""What `serve` says of its node in JSON: made once a reading, the same for all, refused where there is nothing to say."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest

from accelmetrics.exporters.prometheus import PrometheusExporter
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.record import CannotTell, Finding, Findings, Holder, Holders, Record, Step
from accelmetrics.schemas.recording import RecordFile, parse_record
from accelmetrics.testing import FakeBackend
from accelmetrics.views.node_view import NodeSummary
from accelmetrics.views.page import documents as made
from accelmetrics.views.page.documents import NodeDocuments
from accelmetrics.visibility import processes as lookup
from accelmetrics.visibility.processes import ProcessInfo, ProcessListing
from tests.records import LABELS, STATUS, host, machine
from tests.support.waiting import HANG
from tests.views.page.test_files import ask

HOT = Finding("hot", "warning", "gpu.0", "88 °C", 88.0, 80.0, 1_700_000_000_000_000_000, None, "look at its fans")


class Node:
    """A server with the documents of a scripted machine, and records of it."""

    def __init__(self, gpus: int, **options: Any) -> None:
        self.gpus = machine(gpus)
        self.sampler = Sampler([self.gpus, host()], timeout=HANG)
        self.documents = NodeDocuments(1.0, **options)
        self.endpoint = PrometheusExporter("127.0.0.1:0")
        self.endpoint.routes += self.documents.routes
        self.endpoint.open()
        self.base = f"http://{self.endpoint.address}"

    def read(self, **parts: Any) -> Record:
        """Take a reading."""
        record = Record(self.sampler.sample(), LABELS, monitor=STATUS, **parts)
        self.documents.take(record)
        self.endpoint.export(record)
        return record

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        return ask(self.base + path, **headers)

    def document(self, path: str) -> Any:
        status, headers, body = self.get(path)
        assert (status, headers["Content-Type"]) == (200, "application/json"), body
        return json.loads(body)

    def close(self) -> None:
        self.endpoint.close()
        self.sampler.close()


@pytest.fixture
def node() -> Iterator[Callable[..., Node]]:
    """Makes nodes, closed with the test."""
    with ExitStack() as stack:

        def make(gpus: int = 2, **options: Any) -> Node:
            made = Node(gpus, **{"page": True, **options})
            stack.callback(made.close)
            return made

        yield make


def test_the_record_reads_back_whole(node: Callable[..., Node]) -> None:
    """With labels, findings, holders and what was logged: the record of a monitor elsewhere."""
    steps = (Step(1_700_000_000_000_000_000, 7, {"loss": float("nan")}, 0, "node-1"),)
    holders = Holders(
        (Holder("gpu.0", "job", {"job_id": "42", "user": "ann"}), Holder("gpu.1", "pod", {"pod": "a"})), {"slurm": "", "dcgm": "no"}
    )
    one = node(page=False)
    record = one.read(findings=Findings((HOT,)), holders=holders, steps=steps)
    status, _, body = one.get("/api/record")
    assert status == 200
    read = parse_record(body)
    assert read.snapshot == record.snapshot
    assert (read.labels, read.findings, read.holders) == (record.labels, record.findings, holders)
    assert [(step.step, step.rank, step.node, str(step.values["loss"])) for step in read.steps] == [(7, 0, "node-1", "nan")]


def test_the_record_is_a_line_of_a_recording(node: Callable[..., Node], tmp_path: Any) -> None:
    """What was polled into a file is read as one."""
    one = node()
    file = tmp_path / "polled.jsonl"
    with file.open("wb") as lines:
        for _ in range(3):
            one.read()
            lines.write(one.get("/api/record")[2] + b"\n")
    assert [len(record.snapshot.identities) for record in RecordFile(file)] == [2, 2, 2]
    with pytest.raises(DocumentError, match="not a whole record"):
        parse_record(b'{"timestamp":"1970-01-01T00:00:00.000000Z","stream":"1f2e3d4c","metrics":{}}')


def test_the_state_says_what_the_snapshot_says(node: Callable[..., Node]) -> None:
    """Values, words for those that are missing, findings by their place."""
    one = node()
    record = one.read(findings=Findings((HOT,)), holders=Holders((Holder("gpu.1", "job", {"job_id": "42"}),)))
    state = one.document("/api/state")
    first, second = state["devices"]
    assert first["values"]["power_watts"] == record.snapshot.metrics["gpu.0.powerWatts"] == 300.0
    assert (first["state"], first["mark"], first["findings"]) == ("warn", "!", [0])
    assert state["findings"][0]["message"] == "88 °C"
    assert second["missing"]["fan_percent"]["word"] == "n/a"
    assert (second["state"], second["holders"]) == ("ok", ["job 42"])
    assert state["head"]["states"] == {"ok": 1, "warn": 1}
    assert {source["name"] for source in state["sources"]} == {"nvidia", "host"}
    assert NodeSummary.from_dict(one.document("/api/summary")).findings == {"warning": 1}


def test_what_is_not_judged_is_in_the_state_in_words(node: Callable[..., Node]) -> None:
    """And as the record has it."""
    lacks = (
        CannotTell("hot", ("gpu.1",), "temp", "not_supported", "NVML_ERROR_NOT_SUPPORTED"),
        CannotTell("hang", (), "*", "not_logged", "a rule about a training run: no program logs here"),
    )
    one = node()
    one.read(findings=Findings(cannot_tell=lacks))
    state = one.document("/api/state")
    assert state["cannot_tell"] == [lack.to_dict() for lack in lacks]
    assert state["not_judged"] == [{"rules": ["hot"], "words": "temp of gpu.1: not supported"}]
    assert state["not_logged"] == "rules about a training run: no program logs here"


def test_a_device_that_is_lost_says_since_when(node: Callable[..., Node]) -> None:
    """Where the page has looked shortly before; and what it gave last."""
    one = node()
    one.read()
    assert one.document("/api/state")["devices"][1]["silent"] is None
    one.gpus.device(1).lose()
    one.read()
    device = one.document("/api/state")["devices"][1]
    assert (device["state"], device["silent"]["word"], device["silent"]["detail"]) == ("bad", "lost", "the device has fallen off the bus")
    assert device["silent_since"] is not None
    assert device["last"]["power_watts"] == 70.0
    assert "power_watts" not in device["values"]


def test_a_loss_that_was_not_looked_at_is_not_dated(node: Callable[..., Node]) -> None:
    """Views are made on request alone: one of an hour ago does not say when it was."""
    one = node()
    record = one.read()
    one.document("/api/state")
    one.gpus.device(1).lose()
    later = one.sampler.sample()
    hour = 3600 * 10**9
    snapshot = type(later)(
        record.snapshot.time_ns + hour, later.hostname, later.metrics, later.identities, later.unavailable, later.backends, later.processes
    )
    with patch.object(made, "is_recent", return_value=True):
        one.documents.take(record._replace(snapshot=snapshot))
        device = one.document("/api/state")["devices"][1]
    assert (device["silent"]["word"], device["silent_since"]) == ("lost", None)


def test_a_client_that_has_the_reading_is_told_so(node: Callable[..., Node]) -> None:
    """304, without a body and without anything made; the next reading is another one."""
    one = node()
    one.read()
    for path in ("/api/state", "/api/summary", "/api/record"):
        status, headers, _ = one.get(path)
        assert headers["Cache-Control"] == "private, no-cache"
        again = one.get(path, If_None_Match=headers["Etag"])
        assert (status, again[0], again[2]) == (200, 304, b"")
    one.read()
    assert one.get("/api/state", If_None_Match=headers["Etag"])[0] == 200


def test_head_says_what_get_would(node: Callable[..., Node]) -> None:
    """Type and length."""
    one = node()
    one.read()
    for path in ("/api/state", "/api/record", "/api/summary", "/api/history"):
        status, headers, body = ask(one.base + path, "HEAD")
        assert (status, body, headers["Content-Type"]) == (200, b"", "application/json")
        assert int(headers["Content-Length"]) == len(one.get(path)[2])


def test_it_is_packed_for_clients_that_take_it(node: Callable[..., Node]) -> None:
    """The same text."""
    one = node()
    one.read()
    status, headers, body = one.get("/api/state", Accept_Encoding="gzip")
    assert (status, headers["Content-Encoding"], headers["Vary"]) == (200, "gzip", "Accept-Encoding")
    assert gzip.decompress(body) == one.get("/api/state")[2]


@pytest.mark.parametrize("path", ["/api/state", "/api/history", "/api/summary", "/api/record"])
def test_what_is_old_is_never_served_as_fresh(node: Callable[..., Node], path: str) -> None:
    """503 before the first reading, and once the latest is too old, with the reason."""
    one = node(max_age=HANG)
    assert one.get(path)[::2] == (503, b"nothing was read yet\n")
    one.read()
    assert one.get(path)[0] == 200
    with patch("accelmetrics.exporters.scrape_cache.time.monotonic", lambda: time.perf_counter() + 10 * HANG):
        assert one.get(path)[::2] == (503, b"there is no recent reading\n")


def test_command_lines_are_told_on_request_alone(node: Callable[..., Node]) -> None:
    """They may hold secrets: without it no path has them."""
    secret = "--token=hunter2"
    for commands in (False, True):
        one = node(commands=commands)
        one.gpus.device(0).run(DeviceProcess(7, "compute", 1 << 30))
        one.read()
        with patch.object(lookup, "processes", _listing(secret)):
            answers = [one.get(path)[2].decode() for path in ("/api/state", "/api/record", "/api/summary", "/api/history", "/api/snapshot")]
        (process,) = json.loads(answers[0])["processes"]
        assert (process["pid"], process["user"], process["program"]) == (7, "ann", "python")
        assert [secret in text for text in answers] == [commands, False, False, False, False]


def _listing(secret: str) -> Callable[[Any], Any]:
    info = ProcessInfo("gpu.0", 7, user="ann", command=f"/usr/bin/python train.py {secret}")
    return lambda snapshot: ProcessListing("", snapshot.hostname, (info,), (), (), {})


def test_pages_of_other_sites_read_no_document(node: Callable[..., Node]) -> None:
    """Nor do those whose name was made to mean this machine."""
    one = node()
    one.read()
    for path in ("/api/state", "/api/history", "/api/summary", "/api/record", "/api/snapshot"):
        assert one.get(path, Sec_Fetch_Site="cross-site")[0] == 403
        assert one.get(path, Host="evil.example")[0] == 421
        assert one.get(path, Sec_Fetch_Site="same-origin", Host="localhost:8080")[0] == 200


def test_without_a_page_there_are_no_documents_for_it(node: Callable[..., Node]) -> None:
    """Those that other programs poll are there always."""
    one = node(page=False)
    one.read()
    assert [one.get(path)[0] for path in ("/api/record", "/api/summary", "/api/state", "/api/history")] == [200, 200, 404, 404]


def test_a_mixed_machine_is_shown(node: Callable[..., Node]) -> None:
    """Devices of any kind, and a source that does not answer."""
    broken = FakeBackend("amd", devices=1)
    broken.opening.hang()
    one = node()
    with Sampler([one.gpus, broken], timeout=0.05, open_timeout=0.05) as sampler:
        one.documents.take(Record(sampler.sample(), monitor=STATUS))
        state = one.document("/api/state")
        broken.opening.release()
    (silent,) = [source for source in state["sources"] if source["name"] == "amd"]
    assert (silent["status"], silent["state"], silent["silent"]) == ("timed_out", "bad", True)
    assert silent["advice"]
    assert state["head"]["failed"] == 1
