"""An offline run that W&B's collector watches until standard input is closed. Runs in the environment that has wandb.

Arguments: a directory for the run, the sampling interval in seconds.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Prints a line when the run has begun."""
    import wandb  # type: ignore[import-not-found,unused-ignore]  # in an environment of its own

    directory, interval = sys.argv[1:]
    settings = wandb.Settings(x_stats_sampling_interval=float(interval), console="off", silent=True)
    run = wandb.init(project="benchmark", mode="offline", dir=directory, settings=settings)
    sys.stdout.write("{}\n")
    sys.stdout.flush()
    sys.stdin.read()
    run.finish()


if __name__ == "__main__":
    main()
