"""The process that a tracker's library lives in: what it answers, and what becomes of it when it does not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelmetrics.exporters.rejected import RejectedError
from accelmetrics.exporters.tracker import Tracker
from tests.exporters.files_tools import child_of, end_of


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracker]:
    monkeypatch.setenv("EXTRA", "here")
    one = Tracker("Theirs", "tests.exporters.tracker_session", {"HOME": "/elsewhere", "EXTRA": None})
    one.start()
    yield one
    one.kill()


def test_it_answers_in_an_environment_of_its_own(tracker: Tracker, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Another process, no terminal, another environment; long answers arrive whole, and what it prints arrives nowhere."""
    told = tracker.request("open", {"mark": str(tmp_path / "mark")}, 10)
    assert told == {"pid": told["pid"], "home": "/elsewhere", "extra": None, "terminal": False}
    assert told["pid"] != os.getpid()
    assert tracker.request("log", {"what": "word"}, 10) == {"said": "word" * 200_000}
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("refuse", RejectedError, "Theirs: refuse"),
        ("refuse until later", ConnectionError, "Theirs: refuse until later"),
        ("disk", ConnectionError, r"Theirs: \[Errno 28\] No space left on device"),
        ("lost", ConnectionError, "Theirs: Connection lost"),
        ("bug", RejectedError, "Theirs: KeyError: 'nobody foresaw this'"),
    ],
)
def test_a_failure_says_whether_it_may_pass(tracker: Tracker, what: str, error: type[Exception], message: str) -> None:
    """The tracker's own words arrive, as an OSError where trying again may help; after some another process is needed."""
    with pytest.raises(error, match=message):
        tracker.request("log", {"what": what}, 10)
    assert tracker.running == (what not in ("bug", "lost"))
    if not tracker.running:
        with pytest.raises(ConnectionError, match="the process that speaks to Theirs ended"):
            tracker.request("log", {"what": "word"}, 10)
        tracker.start()
    assert tracker.request("log", {"what": "word"}, 10)["said"]


def test_without_a_run_there_is_no_process(tracker: Tracker, tmp_path: Path) -> None:
    """One whose run could not be begun is ended, so that nothing is logged into no run."""
    with pytest.raises(ConnectionError, match="Theirs: away until later"):
        tracker.begin({"mark": "away"}, 10)
    assert not tracker.running
    assert tracker.begin({"mark": str(tmp_path / "mark")}, 10)["pid"] and tracker.running


def test_one_that_hangs_is_killed(tracker: Tracker, tmp_path: Path) -> None:
    """No answer costs the timeout, and the process is gone."""
    pid = tracker.request("open", {"mark": str(tmp_path / "mark")}, 10)["pid"]
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"Theirs gave no answer within 0\.2 s"):
        tracker.request("log", {"what": "hang"}, 0.2)
    assert time.monotonic() - began < 1
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_it_ends_its_run_when_nobody_is_left_to_ask(tracker: Tracker, tmp_path: Path) -> None:
    """A program that was killed closes nothing: its end of the line does, and the child then closes and ends by itself."""
    tracker.request("open", {"mark": str(tmp_path / "mark")}, 10)
    tracker.stop()
    assert (tmp_path / "mark").exists()


def test_what_the_program_has_forked_does_not_hold_it_up(tracker: Tracker, tmp_path: Path) -> None:
    """A forked process has the line too: the tracker's child is told to end all the same, and the fork's own end tells it nothing."""
    tracker.request("open", {"mark": str(tmp_path / "mark")}, 10)
    assert end_of(child_of(tracker.stop)) == 0
    assert tracker.request("log", {"what": "word"}, 10)["said"]
    worker = child_of(lambda: time.sleep(60))
    try:
        began = time.monotonic()
        tracker.stop()
        assert time.monotonic() - began < 1.5
        assert (tmp_path / "mark").exists()
    finally:
        os.kill(worker, signal.SIGKILL)
        end_of(worker)
