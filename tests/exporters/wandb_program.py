"""A program that logs its own steps to W&B, alone or beside the exporter, which works on a thread of its own as in a monitor."""

from __future__ import annotations

import sys
import threading
import time

import wandb

from accelmetrics.exporters.registry import create
from tests.records import record

STEPS = 20


def log_steps(run: wandb.Run, manner: str) -> None:
    """Steps 0, 2, 4, … with a loss each, in one of the manners that W&B has."""
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
        time.sleep(0.03)


def export_until(ended: threading.Event, exporter: str) -> None:
    """What a monitor's thread does, as fast as it can."""
    one, taken = create(exporter), record()
    one.open()
    while not ended.wait(0.003):
        one.export(taken)
    one.close()


def main() -> None:
    """`wandb_program.py MANNER [EXPORTER]`."""
    manner, *exporters = sys.argv[1:]
    run = wandb.init(mode="offline", project="theirs", settings=wandb.Settings(silent=True, x_disable_stats=True, console="off"))
    ended = threading.Event()
    threads = [threading.Thread(target=export_until, args=(ended, exporter)) for exporter in exporters]
    for thread in threads:
        thread.start()
    log_steps(run, manner)
    ended.set()
    for thread in threads:
        thread.join()
    run.log({"after": 1}, commit=True)  # the exporter has closed, the run goes on
    run.finish()


if __name__ == "__main__":
    main()
