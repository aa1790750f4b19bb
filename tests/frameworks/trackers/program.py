"""`program.py TRACKER [EXPORTER]`: an exporter logs into the run that this program has, or beside an EXPORTER that begins its own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from accelmetrics.exporters.registry import create
from tests.records import record

Begun = tuple[Any, Callable[[str, float, int], object], Callable[[], object]]
"""What the exporter is given, how the program logs, and how it ends its run."""


def trackio(module: Any) -> Begun:
    run = module.init(project="theirs", name="their-run", auto_log_gpu=False, auto_log_cpu=False, embed=False)
    return "trackio", lambda name, value, step: run.log({name: value}, step=step), run.finish


def swanlab(module: Any) -> Begun:
    settings = module.Settings(probe=module.Settings.Probe(monitor=False))
    run = module.init(project="theirs", mode="offline", settings=settings)
    return "swanlab", lambda name, value, step: run.log({name: value}, step=step), run.finish


def aim(module: Any) -> Begun:
    from accelmetrics.exporters.tracker import AimExporter

    run = module.Run(repo=".", system_tracking_interval=None, capture_terminal_logs=False)
    return AimExporter(run), lambda name, value, step: run.track(value, name=name, step=step), run.close


def clearml(module: Any) -> Begun:
    # Looking for a repository may hang: see `accelmetrics.exporters.tracker`.
    connected = {"detect_repository": False}
    task = module.Task.init("theirs", "their task", auto_resource_monitoring=False, auto_connect_frameworks=connected)
    return "clearml", lambda name, value, step: task.get_logger().report_scalar("own", name, value, step), task.close


def main() -> None:
    tracker, *exporters = sys.argv[1:]
    if exporters:
        exporter, log, end = exporters[0], None, None
    else:
        exporter, log, end = globals()[tracker](importlib.import_module(tracker))
    one, taken = create(exporter), record()
    if log is not None:
        log("accuracy", 0.5, 1)
    one.open()
    one.export(taken)
    if log is not None:
        log("accuracy", 0.75, 2)
    one.flush()
    one.close()
    if log is not None and end is not None:
        log("accuracy", 1.0, 3)  # the exporter has closed, the run goes on
        end()


if __name__ == "__main__":
    main()
