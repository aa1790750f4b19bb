"""A program that logs its own steps to W&B, alone or beside the exporter, which works on a thread of its own as in a monitor."""

from __future__ import annotations

import sys
import threading

import wandb

from accelmetrics.exporters.registry import create
from tests.records import record

STEPS = 20


class Exporting(threading.Thread):
    """Exports again and again, as fast as it can, until told to end."""

    def __init__(self, exporter: str) -> None:
        super().__init__()
        self._exporter = exporter
        self._ended = threading.Event()
        self._exported = threading.Semaphore(0)

    def run(self) -> None:
        one, taken = create(self._exporter), record()
        one.open()
        while not self._ended.is_set():
            one.export(taken)
            self._exported.release()
        one.close()

    def wait_for_another(self) -> None:
        """Wait until a record that began after this call has been exported."""
        while self._exported.acquire(blocking=False):
            pass
        self._exported.acquire(timeout=30)
        self._exported.acquire(timeout=30)

    def end(self) -> None:
        self._ended.set()
        self.join()


def log_steps(run: wandb.Run, manner: str, beside: list[Exporting]) -> None:
    """Steps 0, 2, 4, … with a loss each, in one of the manners that W&B has; between two of them the exporter has its turn."""
    for number in range(0, 2 * STEPS, 2):
        loss = {"loss": 1 / (number + 1)}
        if manner == "explicit":
            run.log(loss, step=number)
            run.log({"rate": number}, step=number)
        elif manner == "committed":
            run.log(loss | {"rate": number}, step=number, commit=True)
        else:
            run.log(loss, commit=False)
            run.log({"rate": number})
        for exporting in beside:
            exporting.wait_for_another()


def main() -> None:
    """`wandb_program.py MANNER [EXPORTER]`."""
    manner, *exporters = sys.argv[1:]
    run = wandb.init(mode="offline", project="theirs", settings=wandb.Settings(silent=True, x_disable_stats=True, console="off"))
    beside = [Exporting(exporter) for exporter in exporters]
    for exporting in beside:
        exporting.start()
    log_steps(run, manner, beside)
    for exporting in beside:
        exporting.end()
    run.log({"after": 1}, commit=True)  # the exporter has closed, the run goes on
    run.finish()


if __name__ == "__main__":
    main()
