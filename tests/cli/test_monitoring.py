"""What commands share that run for long: their messages, and how they are stopped."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from argparse import Namespace
from datetime import datetime, timezone

import pytest

from accelmetrics.cli.monitoring import JsonFormatter, exporters, set_up, tell, until_stopped
from accelmetrics.cli.output import Stdout
from accelmetrics.exporters.registry import exporting
from accelmetrics.schemas.log import log
from tests.support.waiting import HANG

pytestmark = pytest.mark.usefixtures("log_as_before")

LABELS = {"run_id": "abc", "team": 'a"b\\c\n'}


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """From warnings up, behind the program's name."""
    set_up("text", LABELS)
    log.warning("a disk is 100 % full")
    tell("summary", data={"power": 1})
    tell("a message", "accelmetrics run: a line")
    logging.getLogger("accelmetrics").info("hello")
    logging.getLogger("accelmetrics.sampling").error("at %d", 5)
    assert capsys.readouterr().err.splitlines() == [
        "accelmetrics: warning: a disk is 100 % full",
        "accelmetrics run: a line",
        "accelmetrics: error: at 5",
    ]


def test_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """An object a line with the labels, whatever is in them; also what only tells how it goes."""
    before = datetime.now(timezone.utc).replace(microsecond=0)
    set_up("json", LABELS)
    log.warning("a disk\nis full")
    tell("summary", "a line", data={"power": 1})
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["level"], first["message"], first["labels"], first["logger"]) == ("warning", "a disk\nis full", LABELS, "accelmetrics")
    assert "data" not in first
    assert (second["level"], second["message"], second["data"]) == ("info", "summary", {"power": 1})
    assert before <= datetime.fromisoformat(second["timestamp"].replace("Z", "+00:00")) <= datetime.now(timezone.utc)


def test_an_exception_is_part_of_its_message() -> None:
    """With its traceback, on the same line."""
    try:
        raise ValueError("wrong")
    except ValueError:
        record = logging.LogRecord("accelmetrics", logging.ERROR, "", 0, "it failed", (), sys.exc_info())
    text = JsonFormatter({}).format(record)
    assert "\n" not in text
    assert json.loads(text)["exception"].endswith("ValueError: wrong")


def test_setting_up_twice_says_things_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The last one holds, and the program's own logging is not touched."""
    set_up("json", LABELS)
    set_up("text", LABELS)
    log.warning("once")
    assert capsys.readouterr().err == "accelmetrics: warning: once\n"
    assert not logging.getLogger("accelmetrics").propagate


def test_a_closed_standard_error_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error may be closed."""
    set_up("text", LABELS)
    monkeypatch.setattr(sys, "stderr", None)
    log.warning("it is lost")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_every_wait(number: signal.Signals) -> None:
    """The one that is under way and those that follow; afterwards the signal acts as before."""
    before = signal.getsignal(number)
    with until_stopped() as stopped:
        assert (stopped.wait(0), stopped.signal) == (False, 0)
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        assert stopped.wait(HANG)
        assert (stopped.wait(), stopped.signal) == (True, number)
    assert signal.getsignal(number) == before


def test_a_signal_that_another_thread_takes_ends_a_wait() -> None:
    """The kernel may give it to any thread: the one that waits is not interrupted then."""
    with until_stopped() as stopped:
        threading.Timer(0.05, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)).start()
        assert stopped.wait()


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As under ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with until_stopped():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_asked_for_the_end_first_decides() -> None:
    """A signal during the stop does not hide that the reader of the output has gone."""
    with pytest.raises(BrokenPipeError), until_stopped() as stopped:
        stopped.ask(signal.SIGPIPE)
        signal.raise_signal(signal.SIGTERM)
        assert stopped.wait(0)


@pytest.mark.parametrize("more", [{}, {"lines": str, "path": "/nowhere/file"}])
def test_an_exporter_that_writes_no_lines_writes_to_its_own_target(more: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """One of another package, with an attribute of the same name as the files' own."""
    made = exporting("acme", bool, **more)
    monkeypatch.setattr("accelmetrics.cli.monitoring.create", lambda wanted: made)
    assert exporters(Namespace(exporters=["acme:/dev/stderr", "acme"]), Stdout()) == [made, made]
