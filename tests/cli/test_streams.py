"""Names of the streams that a command was given: written to as they are, whatever they lead to; nothing else's place is taken."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from accelmetrics.cli.output import stream_number
from tests.cli.shell import COMMAND, document, documents, environment
from tests.support.waiting import HANG

DUMP = ("dump", "--backends", "host", "--settle", "0", "--json")
RECORD = ("record", "--backends", "host", "--interval", "0.1", "--duration", "0.4")


def shell(line: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell in which ``am`` is the command."""
    script = f'am() {{ {" ".join(COMMAND)} "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", script], cwd=directory, env=environment(), capture_output=True, text=True, timeout=HANG)


def test_which_paths_lead_to_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All names of the system, and links to them; nothing else, be it of the same name."""
    (tmp_path / "link").symlink_to("further")
    (tmp_path / "further").symlink_to("/dev/stdout")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "1").touch()
    for path, number in {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2, "/dev/fd/7": 7, "/proc/self/fd/1": 1}.items():
        assert stream_number(path) == number
    assert stream_number(f"/proc/{os.getpid()}/fd/1") == stream_number("/dev/../dev/stdout") == stream_number(str(tmp_path / "link")) == 1
    for path in ("", "1", ".", "/", "/dev/null", "/dev/fd/x", "/proc/1/fd/1", "a\0b", str(tmp_path / "loop"), str(tmp_path / "1")):
        assert stream_number(path) is None
    monkeypatch.chdir("/dev/fd/")
    assert stream_number("1") == 1


def test_a_summary_comes_behind_the_commands_output(tmp_path: Path) -> None:
    """Where both go to the same file, nothing of the output is lost."""
    shell("am run --backends host --stats /dev/stdout --quiet -- echo X > out", tmp_path)
    first, rest = (tmp_path / "out").read_text().split("\n", 1)
    assert first == "X"
    assert json.loads(rest)["exit_status"] == 0


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
def test_a_document_for_standard_output(tmp_path: Path, name: str) -> None:
    """It lands there behind what was there; standard error and the files that lie beside are left alone."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    shell(f"(echo before; am {' '.join(DUMP)} --output {name}; echo after) > out 2> err", tmp_path)
    before, text, after = (tmp_path / "out").read_text().splitlines()
    document(text)
    assert (before, after, (tmp_path / "err").read_text()) == ("before", "after", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["err", "link", "out"]


def test_a_document_for_other_streams(tmp_path: Path) -> None:
    """Standard error, and one that the shell has opened; a stream of documents too."""
    shell(f"am {' '.join(DUMP)} --output /dev/stderr > out 2> err", tmp_path)
    document((tmp_path / "err").read_text())
    shell(f"(echo head >&5; am {' '.join(DUMP[:-3])} --interval 0.05 --count 3 --output /dev/fd/5) 5> five > out", tmp_path)
    assert len(documents((tmp_path / "five").read_text().removeprefix("head\n"))) == 3
    assert (tmp_path / "out").read_text() == ""


@pytest.mark.parametrize(("name", "closed"), [("/dev/stdout", ">&-"), ("/dev/fd/3", ""), ("/dev/fd/77", "")])
def test_a_stream_that_was_not_given(tmp_path: Path, name: str, closed: str) -> None:
    """One line says so; a descriptor that the command has opened itself is none that it was given."""
    for command in (f"{' '.join(DUMP)} --output {name}", f"{' '.join(RECORD)} --no-console --exporter jsonl:{name}"):
        done = shell(f"am {command} {closed}", tmp_path)
        assert done.returncode == 1
        assert done.stderr == f"accelmetrics {command.split()[0]}: cannot write {name}: Bad file descriptor\n"


def test_records_on_standard_output(tmp_path: Path) -> None:
    """Through a file, behind what is there, and through a pipe; nothing on standard error."""
    shell(f"(echo before; am {' '.join(RECORD)} --no-console --exporter jsonl:/dev/stdout) > out 2> err", tmp_path)
    before, header, *lines = (tmp_path / "out").read_text().splitlines()
    assert (before, (tmp_path / "err").read_text()) == ("before", "")
    assert json.loads(header)["schema_version"] == "2.0"
    assert sum("timestamp" in json.loads(line) for line in lines) >= 2
    piped = shell(f"am {' '.join(RECORD)} --no-console --exporter csv:/dev/stdout | cat", tmp_path)
    head, *rows = piped.stdout.splitlines()
    assert head.startswith("timestamp,") and len(rows) >= 2 and piped.stderr == ""


def test_line_protocol_on_standard_output(tmp_path: Path) -> None:
    """A stream like those of other files: behind what is there, every line whole, and the console's line is not among them."""
    shell(f"(echo before; am {' '.join(RECORD)} --no-console --exporter 'influx:/dev/stdout?prefix=x') > out 2> err", tmp_path)
    before, comment, *lines = (tmp_path / "out").read_text().splitlines()
    assert (before, comment, (tmp_path / "err").read_text()) == ("before", "# accelmetrics line protocol", "")
    assert sum(line.startswith("xhost,host=") for line in lines) >= 2
    assert all(line.startswith(("xhost,", "xmonitor,")) and line.rpartition(" ")[2].isdigit() for line in lines)


def test_records_of_some_metrics_on_standard_output(tmp_path: Path) -> None:
    """What is chosen of a file is chosen of a stream too."""
    done = shell(f"am {' '.join(RECORD)} --no-console --exporter 'jsonl:/dev/stdout?metrics=memory_percent' | cat", tmp_path)
    header, first, *_ = map(json.loads, done.stdout.splitlines())
    assert list(first["metrics"]) == ["memory_percent"]
    assert header["unavailable"] == {}


def test_records_and_the_console_side_by_side(tmp_path: Path) -> None:
    """Both go to the same file, none over the other; the exporter ``console`` prints where the user sees it."""
    shell(f"am {' '.join(RECORD)} --exporter jsonl:/dev/stdout --exporter console > out 2> err", tmp_path)
    lines = (tmp_path / "out").read_text().splitlines()
    records = sum(line.startswith('{"timestamp"') and bool(json.loads(line)) for line in lines)
    assert records >= 2
    assert sum(line.startswith("Host Monitor") for line in lines) == 2 * records
    assert (tmp_path / "err").read_text() == ""


def test_other_commands_print_there_too(tmp_path: Path) -> None:
    """``run`` beside the command's own output; standard error stays what it is."""
    shell("am run --backends host --quiet --exporter console --exporter jsonl:/dev/stdout -- echo X > out 2> err", tmp_path)
    lines = (tmp_path / "out").read_text().splitlines()
    assert "X" in lines and any(line.startswith("Host Monitor") for line in lines) and any(line.startswith("{") for line in lines)
    assert (tmp_path / "err").read_text() == ""
    shell("am record --backends host --no-console --duration 0.1 --exporter 'console?stderr=true' > out 2> err", tmp_path)
    assert (tmp_path / "out").read_text() == ""
    assert (tmp_path / "err").read_text().startswith("Host Monitor")


@pytest.mark.parametrize("exporter", ["jsonl:/dev/stdout", "influx:/dev/stdout", "console"])
def test_a_reader_of_records_that_has_gone_ends_it(tmp_path: Path, exporter: str) -> None:
    """With the status of any command of a pipeline."""
    done = shell(
        f"am record --backends host --no-console --interval 0.1 --exporter {exporter} | head -1; echo ${{PIPESTATUS[0]}}", tmp_path
    )
    assert (done.stdout.splitlines()[1:], done.stderr) == (["141"], "")
