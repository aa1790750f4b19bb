"""``watch --replay``: recordings as the exporter writes them, played, gone through, growing, of several hosts, long."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from accelmetrics.cli.watch_replay import ReplaySource
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.lines import LineWriter
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.recording import RecordReader
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.testing import FakeBackend
from accelmetrics.views.device_view import USUAL_LEVELS
from accelmetrics.views.trails import HOST_KEY
from tests.cli.shell import environment, run
from tests.cli.terminals import on_terminal
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import wait_for

SECOND = 1_000_000_000
BEGIN = 1_767_225_600 * SECOND
"""2026-01-01 in UTC."""


@pytest.fixture(scope="module")
def reading() -> Snapshot:
    """A reading of two devices."""
    backend = FakeBackend("nvidia", devices=2)
    for number in range(2):
        backend.device(number).set(gpu=0, powerWatts=300.0, temp=40)
    with Sampler([backend]) as sampler:
        return sampler.sample()


def lines(reading: Snapshot, seconds: range, host: str = "node7", rank: str = "") -> Iterator[str]:
    """A recording at 1 Hz, in which a device is busy by the second: ``n % 100`` percent."""
    writer = LineWriter(f"{host}{rank}")
    for number in seconds:
        metrics = {**reading.metrics, "gpu.0.gpu": float(number % 100)}
        snapshot = Snapshot(BEGIN + number * SECOND, host, metrics, reading.identities, reading.unavailable, reading.backends)
        yield writer.lines(Record(snapshot, {"rank": rank} if rank else {}), number == seconds[0])
        writer.wrote()


def settled(source: ReplaySource) -> ReplaySource:
    """Look until all is gone through and filled."""
    wait_for(lambda: not source.look() and source._index.complete and source._filling is None and source._target is None)
    return source


def busy(source: ReplaySource) -> float | None:
    """How busy the first device is shown to be."""
    assert source.view is not None
    return source.view.devices[0].values.get("utilization")


@pytest.fixture
def paused() -> Iterator[Callable[..., ReplaySource]]:
    """Opens a recording that stands still at its beginning."""
    with ExitStack() as stack:

        def opened(path: Path, host: str = "") -> ReplaySource:
            source = stack.enter_context(closing(ReplaySource(str(path), USUAL_LEVELS, host)))
            source.press(" ", "1 min")  # before the first look, which plays on by the time since it was opened
            return settled(source)

        yield opened


def test_a_recording_of_the_exporter_is_played(simulator: NvmlSimulator, tmp_path: Path) -> None:
    """Its devices and time; speed, pause, places by keys; at its end it stays on the last reading."""
    path = tmp_path / "run.jsonl"
    done = run(
        *("record", "--interval", "0.1", "--duration", "1.5", "--no-console", "--backends", "nvidia", "--exporter", f"jsonl:{path}"),
        env=environment(**simulator.environment()),
    )
    assert done.returncode == 0, done.stderr
    with on_terminal("watch", "--replay", str(path), "--speed", "0.1", columns=140) as terminal:
        terminal.until(r"^\S+ +2 gpu .* replay 20\d\d-\d\d-\d\d 0\.1x +\d+%", r"gpu\.0 .*37%")
        terminal.type(" ", "0.1x .*paused")
        terminal.type(">", "0.2x .*paused")
        terminal.type("\x1b[F", "100% live", "power gpu.0, 1 min .*now ")
        terminal.type("\x1b[H", r" [0-9]% ")
        terminal.type("?", "move back or forward in the recording")
        terminal.type("?")
        terminal.type(">" * 20, "3600x 100% end")
        terminal.type("s", r"since the start or the last reset: .* readings")
        assert terminal.end("q") == 0
        assert terminal.attributes == terminal.before


def test_a_long_recording_is_gone_to_without_being_read_again(
    paused: Callable[..., ReplaySource], reading: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100,000 lines, a place is found by reading a few thousand; the history before it is there."""
    path = tmp_path / "long.jsonl"
    with path.open("w") as file:
        file.writelines(lines(reading, range(100_000)))
    source = paused(path)
    assert (busy(source), len(source._index._marks) > 50) == (0.0, True)
    read: list[int] = []
    line = RecordReader.line

    def counted(reader: RecordReader) -> bytes:
        if reader is source._reader:  # others fill the history
            read.append(1)
        return line(reader)

    monkeypatch.setattr(RecordReader, "line", counted)
    source._go(BEGIN + 61_234 * SECOND)
    settled(source)
    assert busy(source) == 34.0
    assert source.view is not None and source.view.time_ns == BEGIN + 61_234 * SECOND
    assert sum(read) < 2000
    for scale in ("1 min", "5 min", "1 h"):
        kinds = [point.kind for point in source.trails.points("gpu.0", "utilization", scale, 60)]
        assert kinds[1:] == ["value"] * 59, scale
    kinds = [point.kind for point in source.trails.points("gpu.0", "utilization", "24 h", 24)]
    assert kinds[:6] == ["before"] * 6 and kinds[-16:] == ["value"] * 16


def test_the_hosts_numbers_have_a_history_too(paused: Callable[..., ReplaySource], reading: Snapshot, tmp_path: Path) -> None:
    """Of what was before a place that was gone to."""
    path = tmp_path / "host.jsonl"
    writer = LineWriter("node7")
    with path.open("w") as file:
        for number in range(120):
            metrics = {**reading.metrics, "memory_percent": float(number)}
            snapshot = Snapshot(BEGIN + number * SECOND, "node7", metrics, reading.identities, reading.unavailable, reading.backends)
            file.write(writer.lines(Record(snapshot), number == 0))
            writer.wrote()
    source = paused(path)
    source._go(BEGIN + 100 * SECOND)
    settled(source)
    points = source.trails.points(HOST_KEY, "memory_percent", "1 min", 60)
    assert [point.mean for point in points[-3:]] == [98.0, 99.0, 100.0]


def test_a_gap_is_a_gap(paused: Callable[..., ReplaySource], reading: Snapshot, tmp_path: Path) -> None:
    """In which values age, and the history has nothing."""
    path = tmp_path / "gap.jsonl"
    path.write_text("".join([*lines(reading, range(100)), *lines(reading, range(130, 200))]))
    source = paused(path)
    source._go(BEGIN + 115 * SECOND)
    settled(source)
    assert busy(source) == 99.0
    source._show(16.0)
    assert source.view is not None and source.view.aged
    source._go(BEGIN + 150 * SECOND)
    settled(source)
    kinds = [point.kind for point in source.trails.points("gpu.0", "utilization", "1 min", 60)]
    assert kinds[-19:] == ["value"] * 19
    assert kinds[20:35] == ["gap"] * 15


def test_rotated_and_compressed_files_are_one_recording(paused: Callable[..., ReplaySource], reading: Snapshot, tmp_path: Path) -> None:
    """Oldest first; places in the packed one too."""
    path = tmp_path / "run.jsonl"
    with gzip.open(tmp_path / "run.20260101T000000.000000Z.jsonl.gz", "wt") as file:
        file.writelines(lines(reading, range(100)))
    (tmp_path / "run.20260101T000140.000000Z.jsonl").write_text("".join(lines(reading, range(100, 200))))
    path.write_text("".join(lines(reading, range(200, 300))))
    source = paused(path)
    for second in (250, 50, 150, 299):
        source._go(BEGIN + second * SECOND)
        settled(source)
        assert busy(source) == second % 100
    assert [point.kind for point in source.trails.points("gpu.0", "utilization", "5 min", 50)] == ["value"] * 50


def test_hosts_and_ranks_are_chosen(paused: Callable[..., ReplaySource], reading: Snapshot, tmp_path: Path) -> None:
    """By a key, or from the beginning; one that is not there is told with those that are."""
    path = tmp_path / "run.jsonl"
    streams = zip(lines(reading, range(50)), lines(reading, range(50), "node8", "0"), lines(reading, range(50), "node8", "1"), strict=True)
    path.write_text("".join(line for both in streams for line in both))
    source = paused(path)
    assert source.view is not None and source.view.hostname == "node7"
    said = source.press("n", "1 min")
    assert said == "node8:0, 2 of 3"
    assert settled(source).view is not None
    assert source.label.startswith("replay 2026-01-01 1x")
    assert source.record is not None
    assert source.record.snapshot.hostname == "node8"
    chosen = paused(path, host="node8:1")
    assert chosen.record is not None and chosen.record.labels == {"rank": "1"}
    nowhere = paused(path, host="node9")
    assert nowhere.notice == "run.jsonl has no record of node9, only of node7, node8:0, node8:1"


def test_a_growing_file_is_followed_through_its_rotation(paused: Callable[..., ReplaySource], reading: Snapshot, tmp_path: Path) -> None:
    """After ``end``; a line that is being written is waited for."""
    path = tmp_path / "run.jsonl"
    path.write_text("".join(lines(reading, range(10))))
    source = paused(path)
    source.press("end", "1 min")
    wait_for(lambda: (source.look(), busy(source))[1] == 9.0)
    more = "".join(list(lines(reading, range(10, 12))))
    with path.open("a") as file:
        file.write(more[:-20])
        file.flush()
        wait_for(lambda: (source.look(), busy(source))[1] == 10.0)
        file.write(more[-20:])
    wait_for(lambda: (source.look(), busy(source))[1] == 11.0)
    path.rename(tmp_path / "run.20260101T000000.000000Z.jsonl")
    path.write_text("".join(lines(reading, range(12, 14))))
    wait_for(lambda: (source.look(), busy(source))[1] == 13.0)
    assert "live" in source.label


def test_a_place_in_a_file_that_rotation_has_removed_is_the_oldest_that_is_left(
    paused: Callable[..., ReplaySource], reading: Snapshot, tmp_path: Path
) -> None:
    path, oldest = tmp_path / "run.jsonl", tmp_path / "run.20260101T000000.000000Z.jsonl"
    oldest.write_text("".join(lines(reading, range(10))))
    path.write_text("".join(lines(reading, range(12, 20))))
    source = paused(path)
    source.press("end", "1 min")
    wait_for(lambda: (source.look(), busy(source))[1] == 19.0)
    oldest.unlink()
    source.press("home", "1 min")
    wait_for(lambda: (source.look(), source.view is not None and busy(source) == 12.0)[1])


@pytest.mark.parametrize("how", ["replaced", "removed first", "cut"])
def test_a_file_is_followed_when_another_takes_its_place(how: str, reading: Snapshot, tmp_path: Path) -> None:
    """It begins at its end with the last hour, and not the day before it; a run that writes the file anew is shown from then on."""
    path = tmp_path / "run.jsonl"
    path.write_text("".join([*lines(reading, range(0, 9000, 10)), *lines(reading, range(9000, 9010))]))
    with closing(ReplaySource(str(path), USUAL_LEVELS, follow=True)) as source:
        wait_for(lambda: (source.look(), busy(source) == 9.0 and source._filling is None)[1])
        assert source.label == "run.jsonl live"
        kinds = [point.kind for point in source.trails.points("gpu.0", "utilization", "24 h", 24)]
        assert (kinds[:22], kinds[-1]) == (["before"] * 22, "value")
        anew = "".join(lines(reading, range(20_000, 20_003), "node8"))
        if how == "removed first":
            path.unlink()
            source.look()
        if how != "cut":
            (tmp_path / "new").write_text(anew)
            (tmp_path / "new").rename(path)
        else:
            path.write_text(anew)
        wait_for(lambda: (source.look(), busy(source) == 2.0)[1])
        with path.open("a") as file:
            file.writelines(lines(reading, range(20_003, 20_005), "node8"))
        wait_for(lambda: (source.look(), busy(source) == 4.0)[1])
        wait_for(lambda: (source.look(), source.view is not None and source.view.aged)[1])  # it was recorded long ago
        assert source.view is not None
        assert (source.view.hostname, source.ended) == ("node8", False)


def test_changes_of_a_recording_in_lines(reading: Snapshot, tmp_path: Path) -> None:
    """Each, however fast; it ends at the recording's end."""
    path = tmp_path / "run.jsonl"
    lost = reading.with_values(
        {key: value for key, value in reading.metrics.items() if not key.startswith("gpu.1.")},
        {**reading.unavailable, **{f"gpu.1.{name}": _lost() for name in ("gpu", "powerWatts", "temp")}},
    )
    path.write_text("".join([*lines(reading, range(50)), *lines(lost, range(50, 52)), *lines(reading, range(52, 500))]))
    done = run("watch", "--plain", "--replay", str(path), "--speed", "3600")
    assert (done.returncode, done.stderr) == (0, "")
    told = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in done.stdout.splitlines() if not line.startswith("  ")]
    assert told[0].startswith("node7: 2 gpu")
    assert [line.partition(";")[0] for line in told[1:]] == ["gpu.1: lost", "gpu.1: back"]


def _lost() -> Unavailable:
    return Unavailable("device_lost", "it fell off the bus")


def test_what_no_writer_makes_is_refused(reading: Snapshot, tmp_path: Path) -> None:
    """A recording that ends in blanks without end is played until they are met, and refused in a sentence."""
    path = tmp_path / "run.jsonl.gz"
    for beginning in ("", "".join(lines(reading, range(3)))):
        with gzip.open(path, "wb", 1) as file:
            file.write(beginning.encode())
            for _ in range(64):
                file.write(b"\n" * (1 << 20))
        done = run("watch", "--replay", str(path))
        assert done.returncode == (1 if beginning else 2)
        assert done.stderr == f"accelmetrics watch: {path}: more than 200,000 lines are no records\n"
