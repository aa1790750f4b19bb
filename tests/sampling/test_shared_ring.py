"""Rows in a file: what is read is what was written, or nothing, whatever becomes of the file."""

from __future__ import annotations

import os
import random
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from accelmetrics.sampling.shared_ring import (
    FINDINGS as FOUND,
    HEADERS,
    PROCESSES as LISTED,
    ROWS,
    SLOTS,
    WRITER,
    SharedRing,
    SharedRingWriter,
    SharedRow,
)
from accelmetrics.sampling.slot_file import PAGE, NotSharedError, SlotFile
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceProcess, DeviceSlot
from accelmetrics.schemas.record import CannotTell, Finding, Findings
from accelmetrics.schemas.snapshot import Snapshot
from tests.support.programs import Program

DEVICES = [
    DeviceSlot(f"gpu.{number}", number, None, DeviceIdentity("gpu", "nvidia", number, memory_total_bytes=1 << 36), "nvidia")
    for number in (0, 1)
]
STATUSES = (
    BackendStatus("nvidia", "ok", "", "nvml", 0.25, "2001-09-09T01:46:39.500000Z", 0.5, 7, 2),
    BackendStatus("amd", "absent", "no PCI device of it"),
)
WHY = Unavailable(Reason.NOT_SUPPORTED, "NVML_ERROR_NOT_SUPPORTED")
PROCESSES = {"gpu.0": (DeviceProcess(7, "compute", 1 << 30, 12.5), DeviceProcess(8))}
FINDINGS = Findings(
    (Finding("hot", "warning", "gpu.1", "91 °C", 91.0, 85.0, 10**18, None, "cool it"),),
    (Finding("idle", "info", "gpu.0", "0 %", 0.0, 5.0, 10**18, 10**18 + 1, ""),),
    (CannotTell("slow", ("gpu.0",), "temp", "not_read", "it is not selected"),),
)
NUMBERS = st.one_of(st.integers(-(2**63), 2**64 - 1), st.floats(-1.7e308, 1.7e308))


def snapshot(numbers: Sequence[int | float], devices: Sequence[DeviceSlot] = DEVICES, **more: object) -> Snapshot:
    """A reading whose keys follow from how many numbers there are."""
    metrics = {f"gpu.0.metric{place}": number for place, number in enumerate(numbers)}
    parts = {"unavailable": {"gpu.1.temp": WHY}, "backends": STATUSES, "processes": PROCESSES, "unlisted": {"gpu.1": WHY}, **more}
    return Snapshot(10**18, "node", metrics, devices, **parts)  # type: ignore[arg-type]


def shown(row: SharedRow) -> Snapshot:
    return Snapshot.of(row.header, row.numbers, row.time_ns, row.backends, row.processes)


def own(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid()


@contextmanager
def ring(directory: Path) -> Iterator[tuple[SharedRingWriter, SharedRing]]:
    """A ring and its reader."""
    writer, reader = SharedRingWriter(directory / "a.ring"), SharedRing(directory / "a.ring", own)
    writer.take(1.0)
    try:
        yield writer, reader
    finally:
        writer.close()
        reader.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(NUMBERS, max_size=4), min_size=1, max_size=6))
def test_what_is_read_is_what_was_written(tmp_path: Path, turns: list[list[int | float]]) -> None:
    """Ints as ints and floats as floats, however large; the header is the very same object."""
    with ring(tmp_path) as (writer, reader):
        first = writer.number
        for numbers in turns:
            sent = snapshot(numbers)
            assert writer.write(sent, 1.5, 2.5, FINDINGS)
            row = reader.newest()
            assert row is not None
            assert [(type(one), one) for one in row.numbers] == [(type(one), one) for one in numbers]
            assert (row.header, row.at, row.ended, row.findings) == (sent.header, 1.5, 2.5, FINDINGS)
            assert shown(row) == sent
        assert [row.number for row in reader.rows(first)] == list(range(first + 1, writer.number + 1))


def test_parts_that_do_not_change_are_the_same_objects(tmp_path: Path) -> None:
    with ring(tmp_path) as (writer, reader):
        for number in range(3):
            writer.write(snapshot([number]), 1.0, 2.0, FINDINGS)
        rows = list(reader.rows(0))
        assert len({(id(row.header), id(row.processes), id(row.findings)) for row in rows}) == 1
        assert [row.number for row in rows] == [1, 2, 3]


def test_the_last_rows_are_there_and_the_others_are_passed_over(tmp_path: Path) -> None:
    with ring(tmp_path) as (writer, reader):
        for number in range(SLOTS + 100):
            writer.write(snapshot([number]), 1.0, 2.0)
        assert [row.numbers for row in reader.rows(0)] == [(number,) for number in range(100, SLOTS + 100)]
        assert list(reader.rows(writer.number)) == []


def test_of_rows_that_are_not_wanted_the_newest_comes(tmp_path: Path) -> None:
    with ring(tmp_path) as (writer, reader):
        for number in range(5):
            writer.write(snapshot([number]), float(number), 9.0)
        asked: list[float] = []

        def wants(at: float) -> bool:
            asked.append(at)
            return at == 2.0

        assert [row.at for row in reader.rows(1, wants)] == [2.0, 4.0]
        assert asked == [1.0, 2.0, 3.0, 4.0]


def test_rows_that_grow_lose_none(tmp_path: Path) -> None:
    """Larger files take the place of the first, with its rows."""
    with ring(tmp_path) as (writer, reader):
        seen: list[int] = []
        for count in (1, 2, 500, 501, 5000, 3):
            writer.write(snapshot([0.5] * count), 1.0, 2.0)
            if count in (1, 5000):
                seen += [len(row.numbers) for row in reader.rows(len(seen))]
        assert seen + [len(row.numbers) for row in reader.rows(len(seen))] == [1, 2, 500, 501, 5000, 3]
        assert [path.name for path in tmp_path.iterdir()] == ["a.ring"]


def test_a_header_that_is_too_large_for_the_file_has_a_larger_one(tmp_path: Path) -> None:
    with ring(tmp_path) as (writer, reader):
        large = snapshot([1.0], unavailable={f"gpu.0.missing{number}": Unavailable(Reason.STALE, "x" * 200) for number in range(5000)})
        writer.write(snapshot([1.0]), 1.0, 2.0)
        for sent in (large, snapshot([2.0]), large):
            writer.write(sent, 1.0, 2.0)
            row = reader.newest()
            assert row is not None
            assert row.header is sent.header


def test_keys_that_come_and_go_do_not_have_their_headers_written_again(tmp_path: Path) -> None:
    with ring(tmp_path) as (writer, reader):
        turns = [snapshot([1.0] * count) for count in range(1, 9)]
        for sent in turns:
            writer.write(sent, 1.0, 2.0)
        written = SlotFile(tmp_path / "a.ring").newest()[HEADERS]
        for sent in turns * 20:
            writer.write(sent, 1.0, 2.0)
        assert SlotFile(tmp_path / "a.ring").newest()[HEADERS] == written
        assert [len(row.numbers) for row in reader.rows(0)] == 21 * list(range(1, 9))


def test_lists_of_processes_that_change_leave_the_header_in_place(tmp_path: Path) -> None:
    """Much more is written than the file has room for: what newer rows refer to is there, and older ones have no lists."""
    with ring(tmp_path) as (writer, reader):
        for turn in range(300):
            listed = {"gpu.0": tuple([DeviceProcess(number, "compute", turn) for number in range(200)])}
            writer.write(snapshot([turn], processes=listed), 1.0, 2.0)
        rows = list(reader.rows(0))
        assert [row.numbers for row in rows] == [(number,) for number in range(300)]
        assert {row.processes["gpu.0"][0].memory_bytes - row.numbers[0] for row in rows if row.processes} == {0}  # type: ignore[operator]
        assert [bool(row.processes) for row in rows] == [False] * 284 + [True] * 16


def test_of_two_writers_the_one_that_took_the_ring_last_writes(tmp_path: Path) -> None:
    with ring(tmp_path) as (first, reader):
        assert first.write(snapshot([1]), 1.0, 2.0)
        second = SharedRingWriter(tmp_path / "a.ring")
        second.take(1.0)
        assert second.write(snapshot([2]), 1.0, 2.0)
        assert not first.write(snapshot([3]), 1.0, 2.0)
        first.take(1.0)
        assert first.write(snapshot([4]), 1.0, 2.0)
        assert not second.write(snapshot([5] * 999), 1.0, 2.0)
        assert [row.numbers for row in reader.rows(0)] == [(1,), (2,), (4,)]
        second.close()


def test_a_writer_does_not_write_on_where_another_has_put_a_larger_file(tmp_path: Path) -> None:
    with ring(tmp_path) as (first, reader):
        assert first.write(snapshot([1]), 1.0, 2.0)
        second = SharedRingWriter(tmp_path / "a.ring")
        second.take(1.0)
        assert second.write(snapshot([2] * 999), 1.0, 2.0)
        assert not first.write(snapshot([3]), 1.0, 2.0)
        assert [len(row.numbers) for row in reader.rows(0)] == [1, 999]
        second.close()


def test_a_file_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    with ring(tmp_path) as (writer, reader):
        writer.write(snapshot([1]), 1.0, 2.0)
        assert [row.numbers for row in reader.rows(0)] == [(1,)]
        (tmp_path / "a.ring").unlink()
        assert writer.write(snapshot([2]), 1.0, 2.0)
        assert [row.numbers for row in reader.rows(1)] == [(2,)]


def test_a_descriptor_that_the_program_has_closed_is_not_written_to(tmp_path: Path) -> None:
    """Its number is that of a file of the program by now."""
    with Program(
        """
        import os, sys
        from pathlib import Path
        from accelmetrics.sampling.shared_ring import SharedRing, SharedRingWriter
        from accelmetrics.schemas.snapshot import Snapshot
        path = Path(sys.argv[1]) / "a.ring"
        writer, reader = SharedRingWriter(path), SharedRing(path, lambda found: True)
        writer.take(1.0)
        writer.write(Snapshot(0, "node", {"a": 1}), 1.0, 2.0)
        assert reader.newest().numbers == (1,)
        os.closerange(3, 100)
        others = [open(path.with_name("checkpoint"), "w+b") for _ in range(20)]
        wrote = writer.write(Snapshot(0, "node", {"a": 2}), 1.0, 2.0)
        if not wrote:
            writer.take(1.0)
            writer.write(Snapshot(0, "node", {"a": 2}), 1.0, 2.0)
        open("/proc/self/fd/1", "w").write(f"{reader.newest().numbers} {path.with_name('checkpoint').stat().st_size}")
        """,
        str(tmp_path),
    ) as program:
        assert program.end() == 0, program.errors
        assert program.output == "(2,) 0"


def test_a_child_of_the_writer_does_not_write(tmp_path: Path) -> None:
    with ring(tmp_path) as (writer, _):
        child = os.fork()
        if child == 0:
            os._exit(int(writer.write(snapshot([1]), 1.0, 2.0)))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Files that are not as they should be


@pytest.mark.parametrize("content", [b"", b"accelrow", b"accelrow" + struct.pack("<IIII", 99, 4096, 512, 1 << 21), b"x" * 99999])
def test_what_is_no_ring_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(NotSharedError):
        SharedRing(tmp_path / "a", own).newest()


def test_a_file_of_another_user_or_that_is_none_is_refused(tmp_path: Path) -> None:
    with ring(tmp_path) as (writer, _):
        writer.write(snapshot([1]), 1.0, 2.0)
        with pytest.raises(NotSharedError, match="of user"):
            SharedRing(tmp_path / "a.ring", lambda _: False).newest()
        (tmp_path / "link").symlink_to(tmp_path / "a.ring")
        with pytest.raises(NotSharedError, match="cannot be read"):
            SharedRing(tmp_path / "link", own).newest()
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(NotSharedError, match="of user"):
            SharedRing(tmp_path / "fifo", own).newest()
    assert SharedRing(tmp_path / "none", own).newest() is None


@pytest.mark.parametrize("left", [0, 63, 130, PAGE, PAGE + 2570, PAGE + 2600])
def test_a_truncated_file_ends_nobody(tmp_path: Path, left: int) -> None:
    """Neither the reader nor the writer, which begins a new file."""
    with ring(tmp_path) as (writer, reader):
        writer.write(snapshot([1]), 1.0, 2.0)
        assert reader.newest() is not None
        os.truncate(tmp_path / "a.ring", left)
        if left < PAGE:
            with pytest.raises(NotSharedError):
                reader.newest()
            with pytest.raises(NotSharedError):
                writer.write(snapshot([2]), 1.0, 2.0)
        else:
            assert reader.newest() is None
        writer.take(1.0)
        assert writer.write(snapshot([3]), 1.0, 2.0)
        row = reader.newest()
        assert row is not None
        assert row.numbers == (3,)


def test_a_full_disk_refuses_the_file_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))

    program = f"""
import signal
from pathlib import Path
from accelmetrics.sampling.shared_ring import SharedRingWriter
from accelmetrics.sampling.slot_file import NotSharedError
from accelmetrics.schemas.snapshot import Snapshot
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = SharedRingWriter(Path({str(tmp_path / "a.ring")!r}))
writer.take(1.0)
try:
    writer.write(Snapshot(0, "node", dict.fromkeys(map(str, range(100)), 1)), 1.0, 2.0)
except NotSharedError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], preexec_fn=limit, capture_output=True, text=True, check=True)
    assert "cannot be created: File too large" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["a.ring"], "the small one"


def test_a_full_tmpfs_refuses_the_file(tmp_path: Path) -> None:
    """A file that was made has its space: rows are written there while others fill the rest."""
    script = f"""
mount -t tmpfs -o size=6m none {tmp_path} || exit 77
exec {sys.executable} - <<'EOF'
from pathlib import Path
from accelmetrics.sampling.shared_ring import SharedRingWriter
from accelmetrics.sampling.slot_file import NotSharedError
from accelmetrics.schemas.snapshot import Snapshot
directory = Path({str(tmp_path)!r})
writers = [SharedRingWriter(directory / name) for name in "ab"]
for writer in writers:
    writer.take(1.0)
assert writers[0].write(Snapshot(0, "node", {{"a": 1}}), 1.0, 2.0)
with (directory / "filler").open("wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        pass
try:
    writers[1].write(Snapshot(0, "node", dict.fromkeys(map(str, range(100)), 1)), 1.0, 2.0)
except NotSharedError as error:
    print(error)
for number in range(2000):
    assert writers[0].write(Snapshot(0, "node", {{"a": number}}), 1.0, 2.0)
EOF
"""
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("privilege: no file system may be mounted here")
    assert done.returncode == 0, done.stderr
    assert "cannot be created: No space left on device" in done.stdout


def mutated(content: bytearray, chance: random.Random, sizes: Sequence[tuple[int, int]]) -> None:
    """Change something on the first page, in a row or in what rows refer to; where a checksum would tell, it is made to fit."""
    begins = [PAGE + sum(slot * slots for slot, slots in sizes[:part]) for part in range(len(sizes))]
    what = chance.choice(("page", "row", "record", "text", "anywhere"))
    if what == "page":
        large = (0, 1, 2**31, 2**63, 2**64 - 1, chance.getrandbits(64))
        struct.pack_into("<Q", content, chance.choice((8 * chance.randrange(15), 128 + 8 * chance.randrange(5))), chance.choice(large))
    elif what == "row":
        begin = begins[ROWS] + chance.choice((1, 2, 3)) * sizes[ROWS][0]
        place, length = begin + 4 + chance.randrange(200 if chance.random() < 0.7 else sizes[ROWS][0] - 12), chance.choice((1, 2, 4, 8))
        content[place : place + length] = bytes([chance.choice((0, 1, 127, 255))]) * length
        resealed(content, begin, sizes[ROWS][0])
    elif what in ("record", "text"):
        part = chance.choice((WRITER, HEADERS, LISTED, FOUND))
        begin, length = begins[part] + sizes[part][0], struct.unpack_from("<I", content, begins[part] + sizes[part][0] + 4)[0]
        before = crc32(content[begin + 16 : begin + 16 + length]).to_bytes(4, "little")
        words = [b'"', b"null", b"[", b"{", b"1e999", b"NaN", b"-1", b"9" * 30, b"[" * length, b'"gpu.0"', b"true", b"{}"]
        word = chance.choice(words)[:length] if what == "text" else bytes([chance.randrange(256)])
        place = begin + 16 + chance.randrange(length - len(word) + 1)
        content[place : place + len(word)] = word
        resealed(content, begin, sizes[part][0])
        checksum = crc32(content[begin + 16 : begin + 16 + length]).to_bytes(4, "little")
        for number in (1, 2, 3):  # rows say which checksum they expect
            row = begins[ROWS] + number * sizes[ROWS][0]
            content[row : row + 94] = content[row : row + 94].replace(before, checksum)
            resealed(content, row, sizes[ROWS][0])
    else:
        content[chance.randrange(len(content))] = chance.randrange(256)


def resealed(content: bytearray, begin: int, slot: int) -> None:
    """Make the checksum of a record fit."""
    end = begin + 16 + min(struct.unpack_from("<I", content, begin + 4)[0], slot - 16)
    struct.pack_into("<I", content, begin, crc32(content[begin + 4 : end]))


def test_hostile_contents_give_a_row_or_none(tmp_path: Path) -> None:
    """Anything may stand anywhere: nothing is raised but why the reading is not shared, and what comes is a row."""
    with ring(tmp_path) as (writer, _):
        for number in range(3):
            writer.write(snapshot([number, 0.5, 2**63]), 1.0, 2.0, FINDINGS)
    whole = (tmp_path / "a.ring").read_bytes()
    sizes = SlotFile(tmp_path / "a.ring").sizes
    came = {"row": 0, "none": 0, "refused": 0}
    for seed in range(1500):
        chance, content = random.Random(seed), bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 5))):
            mutated(content, chance, sizes)
        with (tmp_path / "a.ring").open("r+b") as file:
            file.write(content)
        reader = SharedRing(tmp_path / "a.ring", own)
        try:
            told = reader.writer()
            newest = reader.newest()
            rows = list(reader.rows(0))
        except NotSharedError:
            came["refused"] += 1
        else:
            came["row" if newest else "none"] += 1
            assert told is not None
            assert len(rows) <= SLOTS
            for row in rows:
                assert len(shown(row).metrics) == len(row.header.keys) == len(row.numbers)
                assert all(type(number) in (int, float) for number in row.numbers)
        reader.close()
    assert min(came.values()) > 50, came


def test_rows_that_are_read_while_they_are_written_are_whole(tmp_path: Path) -> None:
    """The writer is as fast as it can, in a process of its own: the ring is written over many times."""
    text = """
    import os, sys
    from pathlib import Path
    from accelmetrics.sampling.shared_ring import SharedRingWriter
    from accelmetrics.schemas.snapshot import Snapshot
    writer = SharedRingWriter(Path(sys.argv[1]))
    writer.take(1.0)
    keys = [f"k{place}" for place in range(2000)]
    snapshot = Snapshot(0, "node", dict.fromkeys(keys, 0))
    number = 0
    while os.getppid() == int(sys.argv[2]):
        assert writer.write(Snapshot.of(snapshot.header, (number,) * 2000, number, (), {}), 1.0, 2.0)
        number += 1
        if number == 1:
            tell("begun")
    """
    with Program(text, str(tmp_path / "a.ring"), str(os.getpid())) as program:
        program.told()
        reader = SharedRing(tmp_path / "a.ring", own)
        read = 0
        first = last = -1
        while read < 3000 or last - first < 3 * SLOTS:
            for row in [reader.newest(), *reader.rows(max(0, last - SLOTS + 20))]:
                if row is not None:
                    assert len(set(row.numbers)) == 1
                    assert row.numbers[0] == row.time_ns == row.number - 1
                    read += 1
                    first, last = max(first, 0) or row.number, row.number
