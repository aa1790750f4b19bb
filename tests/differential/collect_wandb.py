"""A program that W&B watches, offline. Runs in the environment that has wandb.

Arguments: a directory for the run, the sampling interval in seconds. Prints one JSON object with its process id, that of
a child, and the run's directory; ends when its standard input is closed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys


def main() -> None:
    """Starts a run and keeps it until told to stop."""
    import wandb  # type: ignore[import-not-found,unused-ignore]  # in an environment of its own

    directory, interval = sys.argv[1:]
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    run = wandb.init(
        project="differential",
        mode="offline",
        dir=directory,
        settings=wandb.Settings(x_stats_sampling_interval=float(interval), console="off", silent=True),
    )
    facts = {"pid": os.getpid(), "child": child.pid, "file": run.settings.sync_file, "version": wandb.__version__}
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    run.finish()
    child.communicate()


if __name__ == "__main__":
    main()
