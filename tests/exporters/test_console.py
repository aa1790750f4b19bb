"""The console exporter: lines anywhere, a table in place on a terminal."""

from __future__ import annotations

import io
import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from accelmetrics import Snapshot
from accelmetrics.exporters.console import ConsoleExporter, begin_line, host_line, line, table
from accelmetrics.exporters.registry import create
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceSlot
from accelmetrics.schemas.record import Finding, Findings, Record
from accelmetrics.schemas.text import bar, block
from tests.cli.shell import environment
from tests.cli.terminals import Terminal
from tests.records import record, snapshot
from tests.support.exporting import export, exporting

LINE = "GPU Monitor - GPU0: 86%/1% | GPU1: 0%/3%"
PROGRAM = """
import sys
from accelmetrics import Monitor
from tests.records import host, machine
backend, pipe = machine(2), open(sys.argv[1], "rb", buffering=0)
with Monitor({interval}, ["console:table"], backends=[backend, host()], timeout=30):
    pipe.read(1)
    {middle}
    backend.device(0).set(gpu=12)
    pipe.read(1)
print("after")
"""


class Waiting(Terminal):
    """A program that shows the table on a terminal and waits twice to go on."""

    def __init__(self, pipe: Path, middle: str = "pass", interval: float = 0.05) -> None:
        os.mkfifo(pipe)
        self._pipe = os.open(pipe, os.O_RDWR)
        super().__init__([sys.executable, "-c", PROGRAM.format(middle=middle, interval=interval), str(pipe)], environment())

    def go_on(self) -> None:
        os.write(self._pipe, b"!")

    def through(self) -> None:
        """See both readings, and the program's end."""
        for percent in ("86", "12"):
            self.until(rf"GPU0 .* {percent} %")
            self.go_on()
        assert self.end() == 0

    def hang_up(self) -> None:
        if not self._hung_up.is_set():
            os.close(self._pipe)
        super().hang_up()


def shown(snapshot: Snapshot, width: int) -> list[str]:
    """A table as text."""
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=width).print(table(snapshot, width))
    return [row.rstrip() for row in stream.getvalue().splitlines()]


def test_a_line_for_every_record() -> None:
    """Utilisation and memory of each device, at once."""
    stream = io.StringIO()
    with exporting(ConsoleExporter(stream=stream)) as exporter:
        exporter.export(record())
        assert stream.getvalue() == LINE + "\n"
        exporter.export(record())
        exporter.flush()
    assert stream.getvalue() == f"{LINE}\n{LINE}\n"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (["hot"], "1 finding: hot gpu.0"),
        (["hot", "leak"], "2 findings: hot gpu.0, leak gpu.1"),
        (["hot", "leak", "xid", "hang", "throttled"], "5 findings: hot gpu.0, leak gpu.1, xid gpu.2, and 2 more"),
    ],
)
def test_what_rules_find_stands_behind_the_devices(found: list[str], said: str) -> None:
    """For as long as it lasts."""
    stream = io.StringIO()
    exporter = ConsoleExporter(stream=stream)
    current = tuple(Finding(rule, "warning", f"gpu.{key}", "", 1.0, 0.0, 1, None, "") for key, rule in enumerate(found))
    exporter.export(record()._replace(findings=Findings(current)))
    exporter.export(record())
    first, second = stream.getvalue().splitlines()
    assert first.endswith(f" | ! {said}") and first.startswith(LINE[: len(first) - len(said) - 5] if len(found) < 3 else "GPU %: 0:8")
    assert second == LINE and len(first) <= 80


@pytest.mark.parametrize(("devices", "begin"), [(2, "GPU Monitor - GPU0: "), (8, "GPU %: 0:100/"), (64, "64 GPUs, util 50")])
def test_a_line_is_no_wider_than_eighty_columns(devices: int, begin: str) -> None:
    """However many devices there are, and whatever is wrong; a device that says nothing has its reason."""
    values: dict[str, int | float] = {}
    for number in range(devices):
        values |= {f"gpu.{number}.gpu": 100 - 100 * (number % 2), f"gpu.{number}.memoryAllocated": 100.0}
    slots = [
        DeviceSlot(f"gpu.{number}", number, None, DeviceIdentity("gpu", "nvidia", number, "GPU", f"GPU-{number}"))
        for number in range(devices)
    ]
    findings = [Finding(f"a_rule_with_a_name_{number}", "warning", f"gpu.{number}", "", 1.0, 0.0, 1, None, "") for number in range(9)]
    sources = [BackendStatus("amd", "failed"), BackendStatus("intel", "timed_out")]
    reading = Snapshot(0, "host", values, slots)
    assert line(reading).startswith(begin)
    for given in (reading, Snapshot(0, "host", values, slots, backends=sources)):
        for found in ([], findings[:2], findings):
            assert len(line(given, found)) <= 80
            assert not found or f"| ! {len(found)} findings" in line(given, found)


def test_by_its_string(capsys: pytest.CaptureFixture[str]) -> None:
    """To standard output, or to standard error."""
    for wanted in ("console", "console?stderr=true", "console:line"):
        export(wanted, record())
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (f"{LINE}\n{LINE}\n", f"{LINE}\n")
    with pytest.raises(UnknownNameError, match="stderr"):
        create("console?stdrr=true")
    with pytest.raises(InvalidOptionError, match="it must be true or false"):
        create("console?stderr=perhaps")


def test_a_style_that_is_none() -> None:
    """Is refused where it is asked for."""
    with pytest.raises(InvalidOptionError, match="line, table"):
        create("console:tabel")


def test_other_devices_and_none() -> None:
    """Each kind by its name; partitions are part of their device; a machine without devices has its host's line."""
    places = [
        DeviceSlot("gpu.0", 0, None, DeviceIdentity("gpu", "nvidia", 0, uuid="GPU-y")),
        DeviceSlot("gpu.0.mig.1", 0, None, DeviceIdentity("gpu", "nvidia", 0, uuid="MIG-x", parent="GPU-y")),
        DeviceSlot("tpu.0", 0, None, DeviceIdentity("tpu", "google", 0)),
    ]
    metrics = {"gpu.0.memoryAllocated": 50.0, "gpu.0.mig.1.memoryAllocated": 20.0, "tpu.0.dutyCycle": 33.3}
    assert line(Snapshot(0, "host", metrics, places)) == "GPU/TPU Monitor - GPU0: -/50% | TPU0: 33%/-"
    assert line(Snapshot(0, "host", {"cpu.0.cpu_percent": 10.0, "cpu": 99.0})) == "Host Monitor - CPU 10% | memory -"


def test_a_source_that_does_not_answer_has_its_place() -> None:
    """Beside devices or without any; one whose devices are listed is shown by these."""
    sources = (BackendStatus("nvidia", "failed", devices=1), BackendStatus("amd", "timed_out", devices=2), BackendStatus("tpu", "absent"))
    assert line(Snapshot(0, "host", {}, backends=sources)) == "Host Monitor - CPU - | memory - | nvidia: failed | amd: timed_out"
    taken = snapshot(1)
    both = Snapshot(0, "host", taken.metrics, taken.identities, backends=sources)
    assert line(both).endswith("| amd: timed_out")
    assert "nvidia" not in line(both)


def test_a_source_that_does_not_answer_has_a_row() -> None:
    """With what is wrong, cut where there is no room, behind those of the devices."""
    silent = Snapshot(0, "host", {}, backends=(BackendStatus("amd", "failed", "rocm-smi: no permission", devices=1),))
    rows = shown(silent, 100)
    assert rows[1] == "amd  failed: rocm-smi: no permission"
    assert "no device was found" not in rows
    assert shown(silent, 20)[1] == "amd  failed: rocm-s…"
    taken = snapshot(2)
    both = Snapshot(0, "vm", taken.metrics, taken.identities, backends=silent.backends)
    assert [row.split()[0] for row in shown(both, 100)] == ["vm", "Device", "GPU0", "GPU1", "amd", "host"]


def test_a_program_without_a_console(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is printed, and nothing is wrong."""
    monkeypatch.setattr(sys, "stdout", None)
    export(ConsoleExporter(), record())


def test_a_table_elsewhere_is_lines() -> None:
    """In a file nothing is drawn in place."""
    stream = io.StringIO()
    export(ConsoleExporter("table", stream=stream), record())
    assert stream.getvalue() == LINE + "\n"


def test_a_table_in_place_on_a_terminal(tmp_path: Path) -> None:
    """One that changes, and stays as it was last; the program goes on below it."""
    terminal = Waiting(tmp_path / "pipe")
    with terminal:
        terminal.through()
        assert sum("GPU0" in row for row in terminal.everything) == 1
        assert next(row for row in terminal.lines if "GPU1" in row).split()[-1] == "°C"
        assert [row for row in terminal.lines if row][-1] == "after"
        assert terminal.attributes == terminal.before
        assert terminal.raw.rstrip().endswith(b"after")
        assert terminal.raw.count(b"\x1b[?25l") == terminal.raw.count(b"\x1b[?25h") == 1


def test_what_the_program_prints_stands_above_the_table(tmp_path: Path) -> None:
    """Neither spoils the other."""
    terminal = Waiting(tmp_path / "pipe", "print('step 1'); print('step 2')")
    with terminal:
        terminal.through()
        rows = [row for row in terminal.lines if row]
        assert rows.index("step 1") + 1 == rows.index("step 2")
        assert rows.index("step 2") < next(number for number, row in enumerate(rows) if "GPU0" in row)
        assert sum("GPU0" in row for row in rows) == 1


def test_a_progress_bar_stays_one_line_above_the_table(tmp_path: Path) -> None:
    """In whichever way it moves back, with lines between; it is as it would be without the table."""
    bar = """
    for step in range(5):
        sys.stderr.write(f"\\rstep {step} of 5 ")
        sys.stderr.flush()
        if step == 2: print("a line")
    sys.stderr.write("\\n")
    for step in range(5):
        sys.stdout.write(f"part {step} of 5\\r")
        sys.stdout.flush()"""
    terminal = Waiting(tmp_path / "pipe", bar)
    with terminal:
        terminal.through()
        rows = [row for row in terminal.everything if row]
        assert rows[:3] == ["a line", "step 4 of 5", "part 4 of 5"]
        assert sum("GPU0" in row for row in rows) == 1 and rows[-1] == "after"


def test_lines_of_a_program_and_pictures_of_the_ticker_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """Both move the cursor back to where the last picture began, from two threads."""
    prints = """
    for number in range(300):
        sys.stdout.write(f"line {number}")
        sys.stdout.flush()
        sys.stdout.write("\\n")"""
    terminal = Waiting(tmp_path / "pipe", prints, interval=0.01)
    with terminal:
        terminal.through()
        rows = [row for row in terminal.everything if row]
        assert rows[:300] == [f"line {number}" for number in range(300)]


def test_children_of_a_fork_and_signal_handlers_print_too(tmp_path: Path) -> None:
    """Even if a thread was printing at the fork, as with workers of a data loader, or the handler interrupts a print."""
    prints = """
    import os, signal, threading
    held, done = threading.Event(), threading.Event()
    def hold():
        with sys.stdout._lock:
            held.set()
            done.wait()
    threading.Thread(target=hold).start()
    held.wait()
    if not (child := os.fork()):
        print("of the child", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    done.set()
    signal.signal(signal.SIGUSR1, lambda *_: print("of the handler"))
    with sys.stdout._lock:
        signal.raise_signal(signal.SIGUSR1)"""
    terminal = Waiting(tmp_path / "pipe", prints)
    with terminal:
        terminal.through()
        assert b"of the child" in terminal.raw
        assert b"of the handler" in terminal.raw


def test_standard_error_in_a_file_stays_there(tmp_path: Path) -> None:
    """The table redirects streams that are on a terminal, and gives them back."""
    program = PROGRAM.replace("import sys", "import sys\nbefore = sys.stdout, sys.stderr", 1) + "print((sys.stdout, sys.stderr) == before)"
    pipe, path = tmp_path / "pipe", tmp_path / "errors"
    os.mkfifo(pipe)
    writing = os.open(pipe, os.O_RDWR)
    command = [sys.executable, "-c", program.format(middle="print('in the file', file=sys.stderr)", interval=0.05), str(pipe)]
    with path.open("w") as errors, Terminal(command, environment(), stderr=errors) as terminal:
        terminal.until(r"GPU0 .* 86 %")
        os.write(writing, b"!!")
        assert terminal.end() == 0
        assert "in the file" not in terminal.text and [row for row in terminal.lines if row][-1] == "True"
    os.close(writing)
    assert path.read_text() == "in the file\n"


def test_the_table_fits_its_width() -> None:
    """First bars grow shorter, then names go, then amounts, then bars: no row is ever wider."""
    seen = {}
    for width in (40, 50, 60, 80, 100, 140):
        rows = shown(snapshot(), width)
        assert max(map(len, rows)) <= width
        assert len(rows) == 5
        seen[width] = rows[2]
    assert "█" not in seen[40]
    assert "GiB" in seen[80]
    assert "█████████░" in seen[140]


def test_bars_and_blocks_end_where_their_scale_does() -> None:
    """Whatever a driver says."""
    assert [bar(percent, 4) for percent in (-5.0, 0.0, 50.0, 100.0, 1e9)] == ["░░░░", "░░░░", "██░░", "████", "████"]
    assert "".join(block(value, 100.0) for value in (-5.0, 0.0, 50.0, 99.0, 100.0, 1e300)) == "▁▁▅███"
    assert block(3.0, 4.0, "_.-#") == "#"


@pytest.mark.parametrize("width", [8, 14, 16, 20, 22, 24, 30, 36, 38, 39])
def test_a_narrow_table_leaves_numbers_out_and_cuts_none(width: int) -> None:
    """Power first, then the temperature, then memory: the utilisation is there as long as anything is."""
    rows = shown(snapshot(), width)
    assert max(map(len, rows)) <= width
    assert ("86 %" in rows[2]) == (width >= 14)
    assert ("  1 %" in rows[2]) == (width >= 22)
    assert ("35 °C" in rows[2]) == (width >= 28)
    assert ("W" in rows[2]) == (width >= 39)
    assert not any("…" in row for row in rows[2:]) or width < 14


def named(first: str, second: str) -> Snapshot:
    """Two devices with these names."""
    names = (first, second)
    places = [DeviceSlot(f"gpu.{number}", number, None, DeviceIdentity("gpu", "x", number, name=name)) for number, name in enumerate(names)]
    return Snapshot(0, "host", {f"gpu.{number}.{name}": 50.0 for number in (0, 1) for name in ("gpu", "temp", "powerWatts")}, places)


def test_wide_characters_are_two_columns_each() -> None:
    """Nothing is cut off that there is room for, and columns stand below each other."""
    from rich.cells import cell_len

    for width in (50, 60, 66, 70, 80, 100):
        rows = shown(named("华为昇腾加速卡九一〇", "Card"), width)
        assert max(map(cell_len, rows)) <= width
        assert "…" not in "".join(rows)
        assert len({cell_len(row.partition("50 °C")[0]) for row in rows if "50 °C" in row}) == 1


def test_a_name_changes_nothing_about_the_terminal() -> None:
    """Whatever a device calls itself: colours, bells, moved cursors and reversed text are question marks."""
    rows = shown(named("Evil\x1b[31m\x07Card", "a\u202eb\x9bc\rd"), 120)
    assert "Evil?[31m?Card" in rows[2]
    assert "a?b?c d" in rows[3]


def test_the_hosts_line() -> None:
    """The machine's processors and the process are two things; what is absent is left out."""
    taken = Snapshot(0, "h", {"cpu": 12.5, "cpu.0.cpu_percent": 50.0, "memory_percent": 40.0, "proc.memory.rssMB": 512.0})
    assert host_line(taken) == "host  cpu 50 %  memory 40 %  process cpu 13 %  process memory 512 MiB"
    assert host_line(taken, 40) == "host  cpu 50 %  memory 40 %"
    assert host_line(Snapshot(0, "h", {"memory_percent": 40.0})) == "host  memory 40 %"


def test_a_reader_that_has_gone_is_an_error_that_passes() -> None:
    """The monitor's to handle: it is the system's own."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        exporter = ConsoleExporter(stream=stream)
        exporter.open()
        with pytest.raises(BrokenPipeError):
            exporter.export(Record(snapshot()))
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())  # closing would say it again


PROGRESS = """
import sys
from accelmetrics.exporters.console import ConsoleExporter
from tests.records import record
exporter = ConsoleExporter(stderr=sys.argv[1] == "stderr")
for step in range(3):
    sys.stderr.write(f"\\rstep {step} of 100")
    sys.stderr.flush()
    exporter.export(record())
print("done")
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_line_does_not_land_on_a_progress_bar(stream: str) -> None:
    """The program's own line stays, ours is the next one, and nothing is between two of ours."""
    with Terminal([sys.executable, "-c", PROGRESS, stream], environment()) as terminal:
        assert terminal.end() == 0
        shown = [text for text in terminal.lines if text]
    assert shown == ["step 0 of 100", LINE, "step 1 of 100", LINE, "step 2 of 100", LINE, "done"]


def test_a_terminal_of_no_columns_is_taken_for_a_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is not known there, and a progress bar may be on the line all the same."""
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    with open(theirs, "w", encoding="utf-8") as stream, closing(os.fdopen(ours, "rb")):  # noqa: PTH123
        assert os.get_terminal_size(stream.fileno()).columns == 0
        assert begin_line(stream) == " " * 80 + "\r\x1b[K"
